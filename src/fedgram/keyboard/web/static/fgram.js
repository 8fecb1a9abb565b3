// @ts-check
/**
 * A reader of `lm.fgram` for browsers, React Native and Node: a few ES modules, nothing else needed.
 *
 *   const model = Fgram.open(await (await fetch("lm.fgram")).arrayBuffer());
 *   model.predict(["she", "lives", "in", "New"], 3);           // [{word: "York", logP: -0.1, id: 4711}, …]
 *
 * docs/formats/fgram.md is the specification; the functions bear the names of the Python reader's. Nothing is copied but
 * tables. A file that is damaged, cut or of another version throws an FgramError; one that was made to deceive is answered
 * with nonsense, but never read beyond its end.
 */

import { BLOCK, checksum, setBits } from "./fgram_bits.js";
import { FgramError, LOG_ZERO } from "./fgram_frame.js";
import { BOS, EOS, FIRST_WORD, UNK, Words } from "./fgram_words.js";

export { BOS, EOS, FgramError, UNK, checksum };

/** @typedef {import("./fgram_lists.js").State} State */
/** @typedef {import("./fgram_lists.js").List} List */
/** @typedef {{word: string, id: number, logP: number}} Prediction */

/** An open file. */
export class Fgram extends Words {
  /**
   * @param {ArrayBuffer} buffer the whole file
   * @param {{verify?: boolean}} [options] `verify: false` leaves out the checksum of the content
   * @returns {Fgram}
   */
  static open(buffer, { verify = true } = {}) {
    return new Fgram(buffer, verify);
  }

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

  /** What many questions to one state need: its lists, and the sum of the log backoff weights above each. @param {State} state */
  openLists(state) {
    /** @type {(List | null)[]} */ const lists = [null];
    const above = new Float64Array(state[0] + 1);
    for (let i = 1; i <= state[0]; i++) {
      const lower = lists[i - 1];
      const list = this._list(state[2 * i], i, lower ? lower.m : this.size);
      lists.push(list);
      above[i - 1] = this._logBackoff(list, lower);
    }
    for (let i = state[0] - 1; i >= 0; i--) above[i] += above[i + 1];
    return { lists, above };
  }

  /** @param {ReturnType<Fgram["openLists"]>} open @param {number} word an id of the vocabulary @returns {number} log p(word | state) */
  logProb({ lists, above }, word) {
    let [logP, x, i] = [this.levels[0].book[this._unigramCode(word)], word, 1];
    if (logP <= LOG_ZERO) logP = -Infinity;
    for (; i < lists.length; i++) {
      const [position, code] = this._listRank(/** @type {List} */ (lists[i]), x);
      if (code < 0) break;
      [logP, x] = [this.levels[i].book[code], position];
    }
    return above[i - 1] + logP;
  }

  /** @param {string[]} context words; a sentence ends at `</s>` @returns {State} the state behind the words of the last sentence */
  state(context) {
    let state = this.start();
    const sentence = context.slice(context.lastIndexOf("</s>") + 1);
    for (const word of sentence.slice(-this.order)) state = this.step(state, this.knownId(word)).state;
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
    const ranges = prefix ? this.begunRanges(prefix) : [[FIRST_WORD, this.size]];
    return this.topWords(state, ranges, k).map(([id, logP]) => ({ word: this.word(id), id, logP }));
  }

  /** @param {State} state @param {number[][]} ranges of ids @param {number} k @returns {[number, number][]} [id, log p] */
  topWords(state, ranges, k) {
    const depth = state[0];
    const { lists, above } = this.openLists(state);
    const spans = [ranges];
    for (let i = 1; i <= depth; i++) {
      spans.push(spans[i - 1].map((span) => span.map((x) => this._listRank(/** @type {List} */ (lists[i]), x)[0])));
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
    for (let i = depth; i > 0; i--) {
      const total = above[i];
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
    }
    const total = above[0];
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
}
