// @ts-check
/** The lists of an `lm.fgram`: what follows a context, and with which code. The twin of the Python module `lists`. */

import { BLOCK, bitLength, setBits } from "./fgram_bits.js";
import { Frame, LOG_ZERO } from "./fgram_frame.js";

const ROOM_LEFT = 1e-9;

/** @typedef {Int32Array} State contexts of one word, of two, …: [how many, number, bit of its list, number, bit, …] */
/** @typedef {ReturnType<Lists["_list"]>} List */

/** A file whose lists can be read. `i` is the number of words of a context. */
export class Lists extends Frame {
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
}
