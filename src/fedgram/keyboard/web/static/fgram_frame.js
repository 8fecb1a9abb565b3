// @ts-check
/** The frame of an `lm.fgram`: its header, its tables and its alphabet, and all that a reader must refuse. */

import { BLOCK, Bits, checksum, sequenceSize, wholeWords } from "./fgram_bits.js";

const MAGIC = [0x52474689, 0x0a0d4d41]; // "\x89FGRAM\r\n"
const VERSION = 1;
const HEADER_BYTES = 416;
const MAX_BYTES = 1 << 28;
export const BUCKET = 16;
export const MAX_WORD_SYMBOLS = 255;
const MAX_CODE_LENGTH = 24;
export const LOG_ZERO = -99;

/** What is wrong with a file. */
export class FgramError extends Error {}

/**
 * @typedef {{ngrams: number, contexts: number, low: number, step: number, lists: number, listBits: number,
 *   pointers: number, pointerWidth: number, pointerHigh: number, starts: number, startWidth: number, startHigh: number,
 *   children: number, book: Float32Array, probability: Float64Array}} Level
 */

/** A file that was checked. */
export class Frame extends Bits {
  /** @param {ArrayBuffer} buffer @param {boolean} verify */
  constructor(buffer, verify) {
    const size = buffer.byteLength;
    if (size < 8 || size % 4) throw new FgramError("is not an lm.fgram file");
    super(buffer);
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
    /** @type {Map<string, number[][]>} */ this._begun = new Map();
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
}
