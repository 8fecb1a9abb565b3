// @ts-check
/**
 * A reader of `lm.fgram` for browsers, React Native and Node: one ES module, nothing else needed.
 *
 *   const model = Fgram.open(await (await fetch("lm.fgram")).arrayBuffer());
 *   model.predict(["she", "lives", "in", "New"], 3);           // [{word: "York", logP: -0.1, id: 4711}, …]
 *
 * docs/formats/fgram.md is the specification; the functions bear the names of the Python reader's. Nothing is copied but
 * tables. A file that is damaged, cut or of another version throws an FgramError; one that was made to deceive is answered
 * with nonsense, but never read beyond its end.
 */

const MAGIC = [0x52474689, 0x0a0d4d41]; // "\x89FGRAM\r\n"
const VERSION = 1;
const HEADER_BYTES = 416;
const MAX_BYTES = 1 << 28;
const BLOCK = 128;
const BUCKET = 16;
const FIRST_WORD = 3;
const MAX_WORD_SYMBOLS = 255;
const MAX_CODE_LENGTH = 24;
const ROOM_LEFT = 1e-9;
const LOG_ZERO = -99;
const REMEMBERED = 4096; // words whose ids are kept
const SPECIAL = ["<unk>", "<s>", "</s>"];
export const UNK = 0;
export const BOS = 1;
export const EOS = 2;

/** What is wrong with a file. */
export class FgramError extends Error {}

/**
 * @typedef {Int32Array} State contexts of one word, of two, …: [how many, number, bit of its list, number, bit, …]
 * @typedef {{word: string, id: number, logP: number}} Prediction
 * @typedef {{ngrams: number, contexts: number, low: number, step: number, lists: number, listBits: number,
 *   pointers: number, pointerWidth: number, pointerHigh: number, starts: number, startWidth: number, startHigh: number,
 *   children: number, book: Float32Array, probability: Float64Array}} Level
 */

/** @param {number} n @returns {number} how many bits a number below 2³² has */
const bitLength = (n) => 32 - Math.clz32(n);

/** @param {number} x @returns {number} the ones of a 32-bit word */
function popcount(x) {
  x -= (x >>> 1) & 0x55555555;
  x = (x & 0x33333333) + ((x >>> 2) & 0x33333333);
  return Math.imul((x + (x >>> 4)) & 0x0f0f0f0f, 0x01010101) >>> 24;
}

/** @param {number} bits @returns {number} the bits of the whole 64-bit words they need */
const wholeWords = (bits) => Math.ceil(bits / 64) * 64;

/** @param {number} n @param {number} u @returns {number} */
const lowWidth = (n, u) => Math.max(bitLength(Math.floor((11 * u) / 16)) - bitLength(n), 0);

/** @param {number} n @param {number} u @returns {number} the bits of a set of n numbers below u */
function setBits(n, u) {
  if (u < 4 * n) return u;
  if (n === 0) return 0;
  const low = lowWidth(n, u);
  return n * (low + 1) + ((u - 1) >>> low);
}

/** @param {Uint32Array} words @returns {number} */
export function checksum(words) {
  const lanes = new Int32Array(16);
  for (let i = 0; i < words.length; i++) {
    const h = Math.imul(lanes[i & 15] ^ words[i], 0x9e3779b1);
    lanes[i & 15] = h ^ (h >>> 15);
  }
  let total = words.length;
  for (const lane of lanes) {
    total = Math.imul(total ^ lane, 0x9e3779b1);
    total ^= total >>> 15;
  }
  return total >>> 0;
}

/** An open file. */
export class Fgram {
  /**
   * @param {ArrayBuffer} buffer the whole file
   * @param {{verify?: boolean}} [options] `verify: false` leaves out the checksum of the content
   * @returns {Fgram}
   */
  static open(buffer, { verify = true } = {}) {
    return new Fgram(buffer, verify);
  }

  /** @param {ArrayBuffer} buffer @param {boolean} verify */
  constructor(buffer, verify) {
    const size = buffer.byteLength;
    if (size < 8 || size % 4) throw new FgramError("is not an lm.fgram file");
    /** @type {Uint32Array} */
    this.data = new Uint32Array(buffer);
    if (this.data[0] !== MAGIC[0] || this.data[1] !== MAGIC[1]) throw new FgramError("is not an lm.fgram file");
    if (size % 8 || size <= HEADER_BYTES || size >= MAX_BYTES) throw new FgramError("is cut short or too large");
    if (this.data[2] !== VERSION) throw new FgramError(`has format version ${this.data[2]}, not ${VERSION}`);
    const header = this.data.slice(0, HEADER_BYTES / 4);
    header[5] = 0;
    if (checksum(header) !== this.data[5]) throw new FgramError("is damaged: its header does not match its checksum");
    if (this.data[3] !== size) throw new FgramError(`has ${size} bytes, not the ${this.data[3]} its header says`);
    if (verify && checksum(this.data.subarray(HEADER_BYTES / 4)) !== this.data[4]) {
      throw new FgramError("is damaged: its content does not match its checksum");
    }
    this._readHeader(new DataView(buffer));
    this._readAlphabet();
  }

  /** @param {number} offset in bytes @param {number} bits @returns {number} the section's first bit, if it lies inside */
  _section(offset, bits) {
    if (offset % 8 || offset < HEADER_BYTES || 8 * offset + bits > 32 * this.data.length - 64) {
      throw new FgramError("has a section that lies outside the file");
    }
    return 8 * offset;
  }

  /** @param {DataView} view */
  _readHeader(view) {
    const u32 = (/** @type {number} */ at) => view.getUint32(at, true);
    const nonsense = (/** @type {boolean} */ wrong) => {
      if (wrong) throw new FgramError("has a header that makes no sense");
    };
    [this.order, this.bits, this.backoffBits, this.derived] = [24, 25, 26, 27].map((at) => view.getUint8(at));
    this.size = u32(28);
    this.tierEnds = [32, 36, 40, 44].map(u32).filter((end) => end > 0);
    this.deviation = view.getFloat32(68, true);
    const [symbols, textBits, alphabet, buckets, text] = [48, 52, 56, 60, 64].map(u32);
    const { order, bits, size, tierEnds } = this;
    nonsense(order < 1 || order > 7 || bits < 2 || bits > 12 || this.backoffBits < 1 || this.backoffBits > 20);
    nonsense(tierEnds.length === 0 || tierEnds[tierEnds.length - 1] !== size || tierEnds[0] < 3 || this.derived > 64);
    nonsense(tierEnds.some((end, i) => i > 0 && end <= tierEnds[i - 1]) || symbols < 1 || symbols > 65536);
    this.symbols = symbols;
    this.alphabetAt = this._section(alphabet, 160 * symbols);
    const [width, high, bucketBits] = sequenceSize(Math.ceil(size / BUCKET), textBits);
    this.buckets = { at: this._section(buckets, bucketBits), count: Math.ceil(size / BUCKET), width, high };
    this.text = this._section(text, textBits);
    const codes = 1 << bits;
    /** @type {Level[]} */
    this.levels = [];
    for (let n = 1; n <= order; n++) {
      const at = 80 + 48 * (n - 1);
      const [ngrams, contexts] = [u32(at), u32(at + 4)];
      const [low, step] = [view.getFloat32(at + 8, true), view.getFloat32(at + 12, true)];
      const listBits = u32(at + 24);
      nonsense(![low, step].every((x) => Math.abs(x) < 1e4) || ngrams * bits > listBits || listBits >= 8 * MAX_BYTES);
      const below = n > 1 ? this.levels[n - 2].ngrams : 1;
      nonsense(contexts < 1 || contexts > below || contexts > ngrams || (n === 1 && ngrams !== size));
      /** @type {Level} */
      const level = {
        ngrams, contexts, low, step, listBits, lists: this._section(u32(at + 20), listBits),
        pointers: 0, pointerWidth: 0, pointerHigh: 0, starts: 0, startWidth: 0, startHigh: 0, children: 0,
        book: new Float32Array(view.buffer, this._section(u32(at + 16), 32 * codes) / 8, codes),
        probability: new Float64Array(codes),
      };
      if (n > 1) {
        const [w, h, total] = sequenceSize(contexts, listBits);
        [level.pointers, level.pointerWidth, level.pointerHigh] = [this._section(u32(at + 28), total), w, h];
      }
      if (n > 1 && n < order) {
        const [w, h, total] = sequenceSize(contexts, ngrams);
        [level.starts, level.startWidth, level.startHigh] = [this._section(u32(at + 32), total), w, h];
      }
      if (n < order) {
        const bitmap = wholeWords(ngrams) + wholeWords(32 * Math.ceil(ngrams / 512));
        level.children = this._section(u32(at + 36), bitmap);
      }
      const rising = level.book.every((x, i) => x <= 0 && x >= LOG_ZERO && (i === 0 || x >= level.book[i - 1]));
      if (!rising) throw new FgramError("has a codebook that is not one of rising log-probabilities");
      level.book.forEach((x, i) => (level.probability[i] = Math.exp(x)));
      this.levels.push(level);
    }
    this.unigrams = this.levels[0].lists;
    this.maxima = this.unigrams + wholeWords(size * bits);
    nonsense(this.levels[0].listBits !== wholeWords(size * bits) + wholeWords(Math.ceil(size / BLOCK) * bits));
  }

  _readAlphabet() {
    const at = this.alphabetAt / 32;
    /** @type {number[]} */ this.point = [];
    /** @type {number[][]} */ this.keys = [];
    /** @type {Map<number, number>} */ this.symbolOf = new Map();
    const lengths = [];
    const isCharacter = (/** @type {number} */ p) => p < 0x110000 && !(p >= 0xd800 && p < 0xe000);
    let share = 0;
    let fits = true;
    for (let s = 0; s < this.symbols; s++) {
      const row = Array.from(this.data.subarray(at + 5 * s, at + 5 * s + 5));
      const [length, key] = [row[1] & 255, row[1] >>> 8];
      fits &&= (s === 0 ? row[0] === 0 && length > 0 : row[0] > this.point[s - 1]) && length <= MAX_CODE_LENGTH;
      fits &&= key <= 3 && isCharacter(row[0]) && row.slice(2).every(isCharacter);
      this.point.push(row[0]);
      this.keys.push(row.slice(2, 2 + key));
      this.symbolOf.set(row[0], s);
      lengths.push(length);
      if (length > 0) share += 2 ** -length;
    }
    if (!fits || share > 1) throw new FgramError("has an alphabet that makes no sense");
    const used = lengths.map((_, s) => s).filter((s) => lengths[s] > 0);
    /** @type {number[]} symbols in the order of their codes */
    this.byCode = used.sort((a, b) => lengths[a] - lengths[b] || a - b);
    /** @type {{first: number, count: number, begin: number}[]} by length of code */
    this.codes = [{ first: 0, count: 0, begin: 0 }];
    for (let n = 1; n <= MAX_CODE_LENGTH; n++) {
      const last = this.codes[n - 1];
      const count = lengths.filter((length) => length === n).length;
      this.codes.push({ first: (last.first + last.count) * 2, count, begin: last.begin + last.count });
    }
    this.character = this.point.map((p) => String.fromCodePoint(p));
    /** Symbol × 32 + length of the code that the next 10 bits begin with, 0 if it is longer. */
    this._fast = new Uint32Array(1024);
    for (let window = 0; window < 1024; window++) {
      const entry = this._readLongSymbol(window);
      if ((entry & 31) <= 10 && lengths[entry >>> 5] === (entry & 31)) this._fast[window] = entry;
    }
    this._buffer = new Uint16Array(MAX_WORD_SYMBOLS + 1);
    this._behind = 0;
    /** @type {Map<string, number>} */ this._ids = new Map();
  }

  // Bits. What lies outside the file reads as 0.

  /** @param {number} at @returns {number} the 32 bits from bit `at` on, as a signed number */
  _word(at) {
    const k = Math.floor(at / 32);
    const shift = at & 31;
    const low = this.data[k] | 0;
    return shift === 0 ? low : (low >>> shift) | (this.data[k + 1] << (32 - shift));
  }

  /** @param {number} at @param {number} width 0 to 32 @returns {number} */
  _read(at, width) {
    return width === 0 ? 0 : (this._word(at) & (0xffffffff >>> (32 - width))) >>> 0;
  }

  /** @param {number} at @returns {boolean} */
  _bit(at) {
    return ((this.data[Math.floor(at / 32)] >>> (at & 31)) & 1) === 1;
  }

  /** @param {number} at @param {number} length @returns {number} the ones among `length` bits */
  _countOnes(at, length) {
    let total = 0;
    for (; length >= 32; length -= 32, at += 32) total += popcount(this._word(at));
    return length > 0 ? total + popcount(this._word(at) & (0xffffffff >>> (32 - length))) : total;
  }

  /**
   * @param {number} at @param {number} length @param {number} k
   * @param {number} kind 0 for ones, −1 for zeros
   * @returns {number} the place of the k-th one or zero among `length` bits, or `length`
   */
  _select(at, length, k, kind) {
    for (let place = 0; place < length; place += 32) {
      let word = this._word(at + place) ^ kind;
      const ones = popcount(word);
      if (k < ones) {
        for (; k > 0; k--) word &= word - 1;
        return Math.min(place + 31 - Math.clz32(word & -word), length);
      }
      k -= ones;
    }
    return length;
  }

  /** @param {number} at @param {number} count @param {number} width @param {number} high @param {number} i @returns {number} */
  _sequence(at, count, width, high, i) {
    const lowAt = at + wholeWords(high);
    const start = this._read(lowAt + wholeWords(count * width) + 32 * (i >>> 6), 32);
    const place = start + this._select(at + start, high - start, i & 63, 0);
    return (place - i) * 2 ** width + this._read(lowAt + i * width, width);
  }

  /** @param {number} at @param {number} length @param {number} i @returns {number} the ones before bit i of a bitmap */
  _rank(at, length, i) {
    const block = i >>> 9;
    return this._read(at + wholeWords(length) + 32 * block, 32) + this._countOnes(at + 512 * block, i & 511);
  }

  // Sets and segments.

  /**
   * @param {number} at @param {number} n @param {number} u @param {number} x
   * @returns {[number, boolean]} how many numbers are less than x, and whether x is one of them
   */
  _setRank(at, n, u, x) {
    if (u < 4 * n) return [this._countOnes(at, x), this._bit(at + x)];
    if (n === 0) return [0, false];
    const low = lowWidth(n, u);
    const high = n + ((u - 1) >>> low);
    const h = x >>> low;
    let place = h > 0 ? this._select(at, high, h - 1, -1) + 1 : 0;
    x &= 2 ** low - 1;
    let i = place - h;
    for (; i < n && this._bit(at + place); i++, place++) {
      const found = this._read(at + high + i * low, low);
      if (found >= x) return [i, found === x];
    }
    return [Math.min(i, n), false];
  }

  /** @param {number} at @param {number} n @param {number} u @param {number} i @returns {number} number i of a set */
  _setGet(at, n, u, i) {
    if (u < 4 * n) return Math.min(this._select(at, u, i, 0), u - 1);
    const low = lowWidth(n, u);
    const high = n + ((u - 1) >>> low);
    const h = this._select(at, high, i, 0) - i;
    return Math.min(h * 2 ** low + this._read(at + high + i * low, low), u - 1);
  }

  /** @param {number} n @param {number} u @returns {[number, number, number]} widths of first number, end and entry */
  _directory(n, u) {
    const first = bitLength(u - 1);
    const end = bitLength(n * (this.bits + first + 4));
    return [first, end, first + end + this.bits];
  }

  /** Block j of a segment. @param {number} at @param {number} n @param {number} u @param {number} j */
  _block(at, n, u, j) {
    const [firstWidth, endWidth, entry] = this._directory(n, u);
    const blocks = Math.ceil(n / BLOCK);
    const place = at + j * entry;
    const first = this._read(place, firstWidth);
    const begin = j > 0 ? this._read(place - entry + firstWidth, endWidth) : 0;
    const behind = j + 1 < blocks ? this._read(place + entry, firstWidth) : u;
    const size = Math.min(BLOCK, n - BLOCK * j);
    const below = Math.max(behind - first - 1, 0);
    const data = at + blocks * entry + begin;
    const best = this._read(place + firstWidth + endWidth, this.bits);
    return { at: data, size, first, below, best, codes: data + setBits(size - 1, below) };
  }

  /** @param {number} at @param {number} n @param {number} u @returns {number} the bit behind a segment */
  _segmentEnd(at, n, u) {
    if (n <= BLOCK) return at + setBits(n, u) + n * this.bits;
    const [firstWidth, endWidth, entry] = this._directory(n, u);
    const blocks = Math.ceil(n / BLOCK);
    return at + blocks * entry + this._read(at + (blocks - 1) * entry + firstWidth, endWidth);
  }

  /**
   * @param {number} at @param {number} n @param {number} u @param {number} x
   * @returns {[number, number]} how many numbers are less than x, and the code of x or −1
   */
  _segmentRank(at, n, u, x) {
    if (n <= BLOCK) {
      const [rank, found] = this._setRank(at, n, u, x);
      return [rank, found ? this._read(at + setBits(n, u) + rank * this.bits, this.bits) : -1];
    }
    const [firstWidth, , entry] = this._directory(n, u);
    let [begin, end] = [0, Math.ceil(n / BLOCK)];
    while (end - begin > 1) {
      const middle = (begin + end) >>> 1;
      if (this._read(at + middle * entry, firstWidth) <= x) begin = middle;
      else end = middle;
    }
    const block = this._block(at, n, u, begin);
    const base = begin * BLOCK;
    if (x <= block.first) return [base, x === block.first ? this._read(block.codes, this.bits) : -1];
    if (x - block.first - 1 >= block.below) return [base + block.size, -1];
    const [rank, found] = this._setRank(block.at, block.size - 1, block.below, x - block.first - 1);
    return [base + 1 + rank, found ? this._read(block.codes + (rank + 1) * this.bits, this.bits) : -1];
  }

  /** @param {number} at @param {number} n @param {number} u @param {number} i @returns {number} number i of a segment */
  _segmentGet(at, n, u, i) {
    if (n <= BLOCK) return this._setGet(at, n, u, i);
    const block = this._block(at, n, u, i >>> 7);
    if ((i & 127) === 0 || block.below === 0) return Math.min(block.first, u - 1);
    return Math.min(block.first + 1 + this._setGet(block.at, block.size - 1, block.below, (i & 127) - 1), u - 1);
  }

  /** @param {number} at @param {number} n @param {number} u @param {number} i @returns {number} code i of a segment */
  _segmentCode(at, n, u, i) {
    if (n <= BLOCK) return this._read(at + setBits(n, u) + i * this.bits, this.bits);
    return this._read(this._block(at, n, u, i >>> 7).codes + (i & 127) * this.bits, this.bits);
  }

  // Lists. `i` is the number of words of the context.

  /** @param {number} order @param {number} ngram @returns {number} the number of the context that an n-gram is, or −1 */
  _child(order, ngram) {
    const level = this.levels[order - 1];
    if (order >= this.order || ngram < 0 || ngram >= level.ngrams || !this._bit(level.children + ngram)) return -1;
    const number = this._rank(level.children, level.ngrams, ngram);
    return number < this.levels[order].contexts ? number : -1;
  }

  /** @param {State} state @param {number} order @param {number} ngram lengthen a state, if the n-gram is a context */
  _enter(state, order, ngram) {
    const context = this._child(order, ngram);
    if (context < 0) return;
    const level = this.levels[order];
    const { pointers, contexts, pointerWidth, pointerHigh } = level;
    const at = level.lists + this._sequence(pointers, contexts, pointerWidth, pointerHigh, context);
    [state[0], state[2 * order - 1], state[2 * order]] = [order, context, at];
  }

  /** The head of a list. @param {number} at @param {number} i @param {number} universe */
  _list(at, i, universe) {
    const zeros = this._word(at) === 0 ? 32 : 31 - Math.clz32(this._word(at) & -this._word(at));
    let m = 1;
    if (zeros > 31) at += 1;
    else {
      m = 2 ** zeros + this._read(at + zeros + 1, zeros);
      at += 2 * zeros + 1;
    }
    m = Math.min(m, Math.max(universe, 1));
    const weightAt = m > this.derived ? at : -1;
    if (weightAt >= 0) at += this.backoffBits;
    /** @type {{at: number, n: number, below: number, before: number, first: number}[]} */
    const segments = [];
    if (i > 1 || this.tierEnds.length === 1) segments.push({ at, n: m, below: universe, before: 0, first: 0 });
    else {
      const sizes = [];
      let left = m;
      for (let t = 0; t + 1 < this.tierEnds.length; t++) {
        const width = bitLength(left);
        sizes.push(Math.min(this._read(at, width), left));
        left -= sizes[t];
        at += width;
      }
      sizes.push(left);
      let [before, first] = [0, 0];
      this.tierEnds.forEach((end, t) => {
        segments.push({ at, n: Math.min(sizes[t], end - first), below: end - first, before, first });
        at = this._segmentEnd(at, sizes[t], end - first);
        before += sizes[t];
        first = end;
      });
    }
    return { i, m, universe, weightAt, segments };
  }

  /** @typedef {ReturnType<Fgram["_list"]>} List */

  /** @param {List} list @param {number} x @returns {[number, number]} how many are less than x; the code of x or −1 */
  _listRank(list, x) {
    if (x >= list.universe) return [list.m, -1];
    let t = list.segments.length - 1;
    while (t > 0 && x < list.segments[t].first) t--;
    const s = list.segments[t];
    const [rank, code] = this._segmentRank(s.at, s.n, s.below, x - s.first);
    return [s.before + rank, code];
  }

  /** @param {List} list @param {number} position */
  _listSegment(list, position) {
    return list.segments.find((s) => position < s.before + s.n);
  }

  /** @param {List} list @param {number} position @returns {number} */
  _listNumber(list, position) {
    const s = this._listSegment(list, position);
    return s ? s.first + this._segmentGet(s.at, s.n, s.below, position - s.before) : 0;
  }

  /** @param {List} list @param {number} position @returns {number} */
  _listCode(list, position) {
    const s = this._listSegment(list, position);
    return s ? this._segmentCode(s.at, s.n, s.below, position - s.before) : 0;
  }

  /** @param {number} word @returns {number} */
  _unigramCode(word) {
    return this._read(this.unigrams + word * this.bits, this.bits);
  }

  /** @param {List} list @param {List | null} lower the list of the context without its first word @returns {number} */
  _logBackoff(list, lower) {
    const level = this.levels[list.i];
    if (list.weightAt >= 0) return level.low + this._read(list.weightAt, this.backoffBits) * level.step;
    let [rest, room] = [1, 1];
    for (const s of list.segments) {
      for (let k = 0; k < s.n; k++) {
        const number = s.first + this._segmentGet(s.at, s.n, s.below, k);
        rest -= level.probability[this._segmentCode(s.at, s.n, s.below, k)];
        const code = lower ? this._listCode(lower, number) : this._unigramCode(number);
        room -= this.levels[list.i - 1].probability[code];
      }
    }
    return rest < ROOM_LEFT || room < ROOM_LEFT ? LOG_ZERO : Math.log(rest / room);
  }

  // Questions.

  /** @returns {State} the state at the beginning of a sentence */
  start() {
    const state = new Int32Array(2 * this.order);
    this._enter(state, 1, BOS);
    return state;
  }

  /**
   * @param {State} state @param {number} word an id
   * @returns {{logP: number, state: State}} log p(word | state), −Infinity if nothing reads it, and the state behind it
   */
  step(state, word) {
    const after = new Int32Array(2 * this.order);
    if (!(word >= 0 && word < this.size)) return { logP: -Infinity, state: after };
    let logP = this.levels[0].book[this._unigramCode(word)];
    if (logP <= LOG_ZERO) logP = -Infinity;
    this._enter(after, 1, word);
    let [universe, x, isThere, total] = [this.size, word, true, 0];
    /** @type {List | null} */ let lower = null;
    for (let i = 1; i <= state[0]; i++) {
      const list = this._list(state[2 * i], i, universe);
      if (isThere) {
        const [position, code] = this._listRank(list, x);
        isThere = code >= 0;
        if (isThere) {
          [logP, x] = [this.levels[i].book[code], position];
          if (after[0] === i && i + 1 < this.order) {
            const { starts, contexts, startWidth, startHigh } = this.levels[i];
            const begin = this._sequence(starts, contexts, startWidth, startHigh, state[2 * i - 1]);
            this._enter(after, i + 1, begin + position);
          }
        }
      }
      if (!isThere) total += this._logBackoff(list, lower);
      [lower, universe] = [list, list.m];
    }
    return { logP: total + logP, state: after };
  }

  /** @param {string[]} context words @returns {State} the state behind these words at the beginning of a sentence */
  state(context) {
    let state = this.start();
    for (const word of context.slice(-this.order)) {
      state = this.step(state, this.wordId(word) || this.wordId(word.toLowerCase())).state;
    }
    return state;
  }

  /** @param {string[]} sentence @returns {number} log p of a sentence and its end */
  score(sentence) {
    let [state, total] = [this.start(), 0];
    for (const word of [...sentence.map((w) => this.wordId(w)), EOS]) {
      const { logP, state: after } = this.step(state, word);
      [state, total] = [after, total + logP];
    }
    return total;
  }

  /**
   * The k most probable words behind the context, of those that the typed prefix begins.
   * @param {string[]} context @param {number} [k] @param {string} [prefix]
   * @returns {Prediction[]}
   */
  predict(context, k = 3, prefix = "") {
    return this.predictFrom(this.state(context), k, prefix);
  }

  /** @param {State} state @param {number} [k] @param {string} [prefix] @returns {Prediction[]} */
  predictFrom(state, k = 3, prefix = "") {
    const ranges = prefix ? this.keyRanges(prefix, true) : [[FIRST_WORD, this.size]];
    return this.topWords(state, ranges, k).map(([id, logP]) => ({ word: this.word(id), id, logP }));
  }

  /** @param {State} state @param {number[][]} ranges of ids @param {number} k @returns {[number, number][]} [id, log p] */
  topWords(state, ranges, k) {
    const depth = state[0];
    /** @type {(List | null)[]} */ const lists = [null];
    const spans = [ranges];
    for (let i = 1; i <= depth; i++) {
      const list = this._list(state[2 * i], i, i > 1 ? /** @type {List} */ (lists[i - 1]).m : this.size);
      lists.push(list);
      spans.push(spans[i - 1].map((span) => span.map((x) => this._listRank(list, x)[0])));
    }
    /** @type {[number, number][]} */ const best = [];
    const least = () => (best.length < k ? -Infinity : best[k - 1][1]);
    const offer = (/** @type {number} */ logP, /** @type {number} */ i, /** @type {number} */ position) => {
      if (i < depth && this._listRank(/** @type {List} */ (lists[i + 1]), position)[1] >= 0) return;
      for (; i > 0; i--) position = this._listNumber(/** @type {List} */ (lists[i]), position);
      let j = best.length;
      while (j > 0 && best[j - 1][1] < logP) j--;
      best.splice(j, 0, [position, logP]);
      best.length = Math.min(best.length, k);
    };
    let total = 0;
    for (let i = depth; i > 0; i--) {
      const list = /** @type {List} */ (lists[i]);
      const { book } = this.levels[i];
      for (const [from, to] of spans[i]) {
        for (const s of from < to ? list.segments : []) {
          const end = Math.min(to - s.before, s.n);
          for (let begin = Math.max(from - s.before, 0); begin < end; ) {
            let [codes, stop, base] = [s.at + setBits(s.n, s.below), end, 0];
            if (s.n > BLOCK) {
              const block = this._block(s.at, s.n, s.below, begin >>> 7);
              [codes, stop, base] = [block.codes, Math.min(end, ((begin >>> 7) + 1) * BLOCK), (begin >>> 7) * BLOCK];
              if (total + book[block.best] <= least()) {
                begin = stop;
                continue;
              }
            }
            for (; begin < stop; begin++) {
              const logP = total + book[this._read(codes + (begin - base) * this.bits, this.bits)];
              if (logP > least()) offer(logP, i, s.before + begin);
            }
          }
        }
      }
      total += this._logBackoff(list, lists[i - 1]);
    }
    const { book } = this.levels[0];
    for (const [from, to] of ranges) {
      for (let begin = from; begin < to; ) {
        const stop = Math.min(to, ((begin >>> 7) + 1) * BLOCK);
        if (total + book[this._read(this.maxima + (begin >>> 7) * this.bits, this.bits)] > least()) {
          for (let word = begin; word < stop; word++) {
            const own = book[this._unigramCode(word)];
            if (own > LOG_ZERO && total + own > least()) offer(total + own, 0, word);
          }
        }
        begin = stop;
      }
    }
    return best;
  }

  // Words. Spelling replaces the symbols in `_buffer`, which begin as those of the word before.

  /** @param {number} at @param {number} length of the word before @param {boolean} first @returns {number} the length */
  _spellNext(at, length, first) {
    const buffer = this._buffer;
    let n = 0;
    if (!first) {
      n = Math.min(this._read(at, 4), length);
      at += 4;
    }
    for (;;) {
      const window = this._word(at);
      let entry = this._fast[window & 1023];
      if (entry === 0) entry = this._readLongSymbol(window);
      at += entry & 31;
      if (entry < 32 || n >= MAX_WORD_SYMBOLS) break;
      buffer[n++] = entry >>> 5;
    }
    this._behind = at;
    return n;
  }

  /** @param {number} window @returns {number} symbol × 32 + length of its code; the end of a word if there is none */
  _readLongSymbol(window) {
    let code = 0;
    for (let n = 1; n <= MAX_CODE_LENGTH; n++, window >>>= 1) {
      code = code * 2 + (window & 1);
      const { first, count, begin } = this.codes[n];
      if (code >= first && code < first + count) return this.byCode[begin + code - first] * 32 + n;
    }
    return 1;
  }

  /** @param {number} bucket @returns {number} */
  _bucketAt(bucket) {
    const { at, count, width, high } = this.buckets;
    return this.text + this._sequence(at, count, width, high, bucket);
  }

  /** @param {number} id @returns {number} how many symbols of `_buffer` are the word */
  _spell(id) {
    this._behind = this._bucketAt(Math.floor(id / BUCKET));
    let n = 0;
    for (let i = 0; i <= id % BUCKET; i++) n = this._spellNext(this._behind, n, i === 0);
    return n;
  }

  /** @param {number} n @returns {string} the first n symbols of `_buffer` */
  _spelled(n) {
    let text = "";
    for (let i = 0; i < n; i++) text += this.character[this._buffer[i]];
    return text;
  }

  /** @param {number} id @returns {string} */
  word(id) {
    return id < FIRST_WORD ? SPECIAL[id] : this._spelled(this._spell(id));
  }

  /** All words by id. @returns {string[]} */
  words() {
    const result = [];
    let n = 0;
    for (let id = 0; id < this.size; id++) {
      if (id % BUCKET === 0) this._behind = this._bucketAt(id / BUCKET);
      n = this._spellNext(this._behind, n, id % BUCKET === 0);
      result.push(id < FIRST_WORD ? SPECIAL[id] : this._spelled(n));
    }
    return result;
  }

  /** @param {string} text @returns {number[]} what one types for a text, as code points */
  keyOf(text) {
    return Array.from(text).flatMap((character) => {
      const point = /** @type {number} */ (character.codePointAt(0));
      const symbol = this.symbolOf.get(point);
      return symbol === undefined ? [point] : this.keys[symbol];
    });
  }

  /** Compare the key of the n symbols in `_buffer` with a key, or its beginning.
   * @param {number} n @param {number[]} key @param {boolean} onlyPrefix @returns {number} −1, 0 or 1 */
  _compareKey(n, key, onlyPrefix) {
    let k = 0;
    for (let i = 0; i < n; i++) {
      const own = this.keys[this._buffer[i]];
      for (let c = 0; c < own.length; c++, k++) {
        if (k >= key.length) return onlyPrefix ? 0 : 1;
        if (own[c] !== key[k]) return own[c] > key[k] ? 1 : -1;
      }
    }
    return k === key.length ? 0 : -1;
  }

  /** The first word of begin…end whose comparison with the key is at least `least`.
   * @param {number} begin @param {number} end @param {number[]} key @param {boolean} onlyPrefix @param {number} least */
  _bound(begin, end, key, onlyPrefix, least) {
    let [low, high] = [Math.floor(begin / BUCKET), Math.ceil(end / BUCKET)];
    while (high - low > 1) {
      const middle = (low + high) >>> 1;
      if (this._compareKey(this._spell(middle * BUCKET), key, onlyPrefix) < least) low = middle;
      else high = middle;
    }
    this._behind = this._bucketAt(low);
    let n = 0;
    for (let id = low * BUCKET; id < Math.min((low + 1) * BUCKET, end); id++) {
      n = this._spellNext(this._behind, n, id === low * BUCKET);
      if (id >= begin && this._compareKey(n, key, onlyPrefix) >= least) return id;
    }
    return Math.min((low + 1) * BUCKET, end);
  }

  /** @param {string} text @param {boolean} onlyPrefix @returns {number[][]} a range of ids a tier: words with this key */
  keyRanges(text, onlyPrefix) {
    const key = this.keyOf(text);
    let begin = FIRST_WORD;
    return this.tierEnds.map((end) => {
      const from = this._bound(begin, end, key, onlyPrefix, 0);
      const to = this._bound(from, end, key, onlyPrefix, 1);
      begin = end;
      return [from, to];
    });
  }

  /** @param {string} word @returns {number} its id, that of `<unk>` if it is not known */
  wordId(word) {
    let id = this._ids.get(word);
    if (id === undefined) {
      id = this._findWord(word);
      if (this._ids.size >= REMEMBERED) this._ids.clear();
      this._ids.set(word, id);
    }
    return id;
  }

  /** @param {string} word @returns {number} */
  _findWord(word) {
    if (SPECIAL.includes(word)) return SPECIAL.indexOf(word);
    const symbols = Array.from(word, (c) => this.symbolOf.get(/** @type {number} */ (c.codePointAt(0))));
    if (symbols.includes(undefined)) return UNK;
    for (const [from, to] of this.keyRanges(word, false)) {
      for (let id = from; id < to; id++) {
        const n = this._spell(id);
        if (n === symbols.length && symbols.every((s, i) => s === this._buffer[i])) return id;
      }
    }
    return UNK;
  }
}

/** @param {number} count @param {number} last @returns {[number, number, number]} low bits a number, high bits, all bits */
function sequenceSize(count, last) {
  const width = Math.max(bitLength(Math.floor(last / Math.max(count, 1))) - 1, 0);
  const high = count + Math.floor(last / 2 ** width) + 1;
  return [width, high, wholeWords(high) + wholeWords(count * width) + wholeWords(32 * Math.ceil(count / 64))];
}
