// @ts-check
/**
 * The words of an `lm.fgram`: how they are spelled, and which begin with what was typed. Spelling replaces the symbols in
 * `_buffer`, which begin as those of the word before.
 */

import { BUCKET, MAX_WORD_SYMBOLS } from "./fgram_frame.js";
import { Lists } from "./fgram_lists.js";

const REMEMBERED = 4096; // words and beginnings whose ids are kept
const SPECIAL = ["<unk>", "<s>", "</s>"];
export const FIRST_WORD = 3;
export const UNK = 0;
export const BOS = 1;
export const EOS = 2;

/** A file whose words can be read. */
export class Words extends Lists {
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

  /** @param {string} prefix @returns {number[][]} `keyRanges` of words that it begins; few prefixes are typed again and again */
  begunRanges(prefix) {
    let ranges = this._begun.get(prefix);
    if (!ranges) {
      ranges = this.keyRanges(prefix, true);
      if (this._begun.size >= REMEMBERED) this._begun.clear();
      this._begun.set(prefix, ranges);
    }
    return ranges;
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

  /** @param {string} word @returns {number} its id as it is written, or else in lower case */
  knownId(word) {
    return this.wordId(word) || this.wordId(word.toLowerCase());
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
