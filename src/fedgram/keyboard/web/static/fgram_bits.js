// @ts-check
/**
 * The bits of an `lm.fgram` and what is written in them: numbers, rising sequences, bitmaps and sets. docs/formats/fgram.md
 * says how. What lies outside the file reads as 0.
 */

export const BLOCK = 128;

/** @param {number} n @returns {number} how many bits a number below 2³² has */
export const bitLength = (n) => 32 - Math.clz32(n);

/** @param {number} x @returns {number} the ones of a 32-bit word */
export function popcount(x) {
  x -= (x >>> 1) & 0x55555555;
  x = (x & 0x33333333) + ((x >>> 2) & 0x33333333);
  return Math.imul((x + (x >>> 4)) & 0x0f0f0f0f, 0x01010101) >>> 24;
}

/** @param {number} bits @returns {number} the bits of the whole 64-bit words they need */
export const wholeWords = (bits) => Math.ceil(bits / 64) * 64;

/** @param {number} n @param {number} u @returns {number} */
export const lowWidth = (n, u) => Math.max(bitLength(Math.floor((11 * u) / 16)) - bitLength(n), 0);

/** @param {number} n @param {number} u @returns {number} the bits of a set of n numbers below u */
export function setBits(n, u) {
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

/** @param {number} count @param {number} last @returns {[number, number, number]} low bits a number, high bits, all bits */
export function sequenceSize(count, last) {
  const width = Math.max(bitLength(Math.floor(last / Math.max(count, 1))) - 1, 0);
  const high = count + Math.floor(last / 2 ** width) + 1;
  return [width, high, wholeWords(high) + wholeWords(count * width) + wholeWords(32 * Math.ceil(count / 64))];
}

/** Bits that can be read. */
export class Bits {
  /** @param {ArrayBuffer} buffer whole 32-bit words */
  constructor(buffer) {
    /** @type {Uint32Array} */
    this.data = new Uint32Array(buffer);
  }

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
}
