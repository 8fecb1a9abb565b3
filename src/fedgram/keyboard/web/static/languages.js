// @ts-check
/** Several languages in one keyboard. The twin of the Python module `languages`, which says why; same numbers, same answers. */

import { Fgram, UNK } from "./fgram.js";

/** @typedef {import("./fgram_lists.js").State} State */
/** @typedef {{states: State[], logPosterior: number[]}} LanguagesState */

const MEMORY = 64;
const LOG_UNKNOWN = -8;
const MAX_PREDICTIONS = 1000;
const END = "</s>";

export const LANGUAGE_OPTIONS = Object.freeze({ switch: 0.02, sentenceSwitch: 0.05, unknown: -12 });

/** One or more packed models, each with the posterior probability of its language. */
export class Languages {
  /** @param {Fgram[]} models @param {Partial<typeof LANGUAGE_OPTIONS>} [options] */
  constructor(models, options = {}) {
    if (!models.length) throw new RangeError("a keyboard needs at least one model");
    this.models = models;
    this.options = { ...LANGUAGE_OPTIONS, ...options };
    this._uniform = models.map(() => -Math.log(models.length));
    /** The last context and its state: a key asks several times. */
    this._last = { key: "\0", state: /** @type {LanguagesState} */ ({ states: [], logPosterior: [] }) };
  }

  /** @param {string[]} [context] words, in which `</s>` ends a sentence @returns {LanguagesState} */
  state(context = []) {
    const key = context.join(" ");
    if (key !== this._last.key) this._last = { key, state: this._state(context) };
    return this._last.state;
  }

  /** @param {string[]} context @returns {LanguagesState} */
  _state(context) {
    if (this.models.length === 1) return { states: [this.models[0].state(context)], logPosterior: this._uniform };
    const start = this.models.map((model) => model.start());
    let [states, logPosterior] = [start, this._uniform];
    for (const word of context.slice(-MEMORY)) {
      if (word === END) {
        [states, logPosterior] = [start, this._change(logPosterior, this.options.sentenceSwitch)];
        continue;
      }
      const steps = this.models.map((model, l) => this._step(model, states[l], word));
      states = steps.map(({ state }) => state);
      const isKnown = this.models.some((model) => model.knownId(word) !== UNK); // a word that nobody knows says nothing
      logPosterior = this._change(logPosterior.map((x, l) => x + (isKnown ? steps[l].logP : 0)), this.options.switch);
    }
    return { states, logPosterior };
  }

  /** @param {Fgram} model @param {State} state @param {string} word log p of a word as evidence of the language, and the next state */
  _step(model, state, word) {
    const id = model.knownId(word);
    const { logP, state: after } = model.step(state, id);
    return { logP: (Number.isFinite(logP) ? logP : LOG_UNKNOWN) + (id === UNK ? this.options.unknown : 0), state: after };
  }

  /** @param {number[]} logWeights @param {number} change its probability @returns {number[]} the normalised log-posterior */
  _change(logWeights, change) {
    const most = Math.max(...logWeights);
    const weights = logWeights.map((x) => Math.exp(x - most));
    const total = weights.reduce((a, b) => a + b, 0);
    return weights.map((x) => Math.log(((1 - change) * x) / total + change / weights.length));
  }

  /** @param {string[]} [context] @returns {number[]} the probability of each language for the next word */
  posterior(context = []) {
    return this.state(context).logPosterior.map(Math.exp);
  }

  /** @param {string} word @returns {boolean} whether a model has it as it is written */
  knows(word) {
    return this.models.some((model) => model.wordId(word) !== UNK);
  }

  /** @param {string[]} words @returns {number[][]} their ids, a row per model */
  wordIds(words) {
    return this.models.map((model) => words.map((word) => model.wordId(word)));
  }

  /** @param {LanguagesState} state @param {number[][]} ids of `wordIds` @returns {Float64Array} p(word | state) */
  probabilities({ states, logPosterior }, ids) {
    const total = new Float64Array(ids[0].length);
    this.models.forEach((model, l) => {
      const open = model.openLists(states[l]);
      ids[l].forEach((id, i) => {
        if (id !== UNK) total[i] += Math.exp(logPosterior[l] + model.logProb(open, id));
      });
    });
    return total;
  }

  /** @param {string[]} [context] @param {number} [k] @param {string} [prefix] @returns {{word: string, logP: number}[]} exactly the k most probable words */
  predict(context = [], k = 3, prefix = "") {
    const state = this.state(context);
    if (this.models.length === 1) return this.models[0].predictFrom(state.states[0], k, prefix);
    for (let count = k; ; count = Math.min(2 * count, MAX_PREDICTIONS)) {
      const found = this.models.map((model, l) => model.predictFrom(state.states[l], count, prefix));
      const words = [...new Set(found.flat().map(({ word }) => word))];
      const p = this.probabilities(state, this.wordIds(words));
      const rows = words.map((word, i) => ({ word, logP: Math.log(p[i]) })).filter(({ logP }) => logP > -Infinity);
      rows.sort((a, b) => b.logP - a.logP || (a.word < b.word ? -1 : 1));
      const last = (/** @type {{logP: number}[]} */ list, /** @type {number} */ l) =>
        list.length === count ? Math.exp(state.logPosterior[l] + list[count - 1].logP) : 0;
      const beyond = found.reduce((total, list, l) => total + last(list, l), 0);
      const isExact = beyond === 0 || (rows.length >= k && Math.exp(rows[k - 1].logP) >= beyond);
      if (isExact || count === MAX_PREDICTIONS) return rows.slice(0, k);
    }
  }
}
