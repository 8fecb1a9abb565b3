// @ts-check
/** From taps to words. The twin of the Python modules `keyboard` and `tap_search`, which say why; same numbers, same answers. */

import { candidate, ownWords, typedCandidates } from "./candidates.js";
import { Fgram, UNK } from "./fgram.js";
import { FIRST_WORD } from "./fgram_words.js";
import { Layout } from "./layout.js";
import { Lexicon, MAX_LETTERS } from "./lexicon.js";

/** @typedef {import("./layout.js").Point} Point */
/** @typedef {import("./candidates.js").Candidate} Candidate */
/** @typedef {import("./candidates.js").OwnWords} OwnWords */
/** @typedef {import("./personal.js").PersonalModel} PersonalModel */

export const MAX_TAPS = MAX_LETTERS + 8;
const ROOM = 1 << 14;
const BINS = 512;

export const TAP_OPTIONS = Object.freeze({
  sigma: 0.35, weight: 0.55, slip: -8, insertion: -6, deletion: -3, transposition: -4.5, completion: -1, unknown: -4,
  width: 14, hypotheses: 200,
});

/** A packed model and a layout, ready to decode. */
export class Keyboard {
  /** @param {Fgram} model @param {Layout} layout @param {Partial<typeof TAP_OPTIONS>} [options] */
  constructor(model, layout, options = {}) {
    this.model = model;
    this.layout = layout;
    this.options = { ...TAP_OPTIONS, ...options };
    const words = model.words();
    /** @type {string[]} */
    this.keys = words.map((word) => String.fromCodePoint(...model.keyOf(word)));
    const ids = words.map((_, i) => i).slice(FIRST_WORD);
    const { book } = model.levels[0];
    this.lexicon = new Lexicon(layout, this.keys.slice(FIRST_WORD), ids, ids.map((id) => book[model._unigramCode(id)]));
    this.known = new Set(this.lexicon.keys);
    this._seen = new Int32Array(this.lexicon.letter.length);
    this._place = new Int32Array(this.lexicon.letter.length);
    this._round = 0;
    this._out = new Int32Array(ROOM);
    this._score = new Float64Array(ROOM);
    this._bins = new Int32Array(BINS + 1);
    this._count = 0;
  }

  /** @param {string[]} [context] words @param {PersonalModel} [personal] @returns {Typing} a new word behind these */
  typing(context = [], personal = undefined) {
    return new Typing(this, this.model.state(context), ownWords(personal, this.layout, context));
  }

  /**
   * @param {Point[]} taps @param {string[]} [context] @param {number} [k] @param {PersonalModel} [personal]
   * @returns {Candidate[]}
   */
  decode(taps, context = [], k = 3, personal = undefined) {
    const word = this.typing(context, personal);
    for (const [x, y] of taps.slice(0, MAX_TAPS)) word.tap(x, y);
    return word.candidates(k, false);
  }

  /** Note a hypothesis, or a better score of one already noted. @param {number} node @param {number} score */
  _keep(node, score) {
    if (this._seen[node] === this._round) {
      const place = this._place[node];
      if (score > this._score[place]) this._score[place] = score;
    } else if (this._count < ROOM) {
      this._seen[node] = this._round;
      this._place[node] = this._count;
      this._out[this._count] = node;
      this._score[this._count++] = score;
    }
  }

  /**
   * @param {Beam} beam @param {Beam} before @param {Float64Array} cost @param {Float64Array} last
   * @returns {Beam} the hypotheses after one more tap
   */
  _advance(beam, before, cost, last) {
    const { letter, child, sibling, best } = this.lexicon;
    const { insertion, deletion, transposition, weight, width } = this.options;
    const [nearest, lastNearest] = [Math.max(...cost), Math.max(...last)];
    this._round++;
    this._count = 0;
    for (let i = 0; i < beam.nodes.length; i++) {
      const score = beam.scores[i];
      this._keep(beam.nodes[i], score + insertion);
      for (let c = child[beam.nodes[i]]; c >= 0; c = sibling[c]) this._keep(c, score + cost[letter[c]]);
    }
    const { top, limit } = this._limit();
    const least = top - (width * (limit + 1)) / BINS; // what more than `hypotheses` are worth
    for (let i = 0; i < beam.nodes.length; i++) {
      const missed = beam.scores[i] + deletion;
      for (let c = child[beam.nodes[i]]; c >= 0 && missed + nearest + weight * best[c] >= least; c = sibling[c]) {
        for (let d = child[c]; d >= 0 && missed + nearest + weight * best[d] >= least; d = sibling[d]) {
          const value = missed + cost[letter[d]];
          if (value + weight * best[d] >= least) this._keep(d, value);
        }
      }
    }
    for (let i = 0; i < before.nodes.length; i++) {
      const hope = before.scores[i] + transposition + nearest + lastNearest;
      for (let c = child[before.nodes[i]]; c >= 0 && hope + weight * best[c] >= least; c = sibling[c]) {
        const swapped = before.scores[i] + transposition + cost[letter[c]];
        for (let d = child[c]; d >= 0 && hope + weight * best[d] >= least; d = sibling[d]) {
          const value = swapped + last[letter[d]];
          if (value + weight * best[d] >= least) this._keep(d, value);
        }
      }
    }
    return this._prune();
  }

  /** @param {number} i @param {number} top @returns {number} how many bins hypothesis i is worth less than `top` */
  _gap(i, top) {
    const { weight, width } = this.options;
    return ((top - this._score[i] - weight * this.lexicon.best[this._out[i]]) / width) * BINS;
  }

  /** The best hypothesis, its worth, and how many bins below it at most about `hypotheses` others are in. */
  _limit() {
    const { weight, hypotheses } = this.options;
    const { best } = this.lexicon;
    let [top, first] = [-Infinity, 0];
    for (let i = 0; i < this._count; i++) {
      const worth = this._score[i] + weight * best[this._out[i]];
      if (worth > top) [top, first] = [worth, i];
    }
    const bins = this._bins.fill(0);
    for (let i = 0; i < this._count; i++) bins[Math.floor(Math.min(this._gap(i, top), BINS))]++;
    let [limit, total] = [0, 0];
    while (limit < BINS && total + bins[limit] <= hypotheses) total += bins[limit++];
    return { first, top, limit };
  }

  /** @returns {Beam} the hypotheses within `width` of the best, at most about `hypotheses`, the best first */
  _prune() {
    const { first, top, limit } = this._limit();
    const nodes = [this._out[first]];
    const scores = [this._score[first]];
    for (let i = 0; i < this._count; i++) {
      if (i !== first && this._gap(i, top) < limit) {
        nodes.push(this._out[i]);
        scores.push(this._score[i]);
      }
    }
    return { nodes, scores };
  }
}

/** @typedef {{nodes: number[], scores: number[]}} Beam */

/** One word while it is being typed. */
export class Typing {
  /** @param {Keyboard} keyboard @param {Int32Array} state @param {OwnWords | null} [own] */
  constructor(keyboard, state, own = null) {
    this.keyboard = keyboard;
    this.state = state;
    this.own = own;
    this._lists = keyboard.model.openLists(state);
    /** The greatest log-probability that a word has here. */
    this._greatest = keyboard.model.topWords(state, [[FIRST_WORD, keyboard.model.size]], 1)[0]?.[1] ?? 0;
    /** @type {Point[]} */ this.taps = [];
    /** @type {Float64Array[]} */ this.costs = [];
    /** @type {Beam[]} */ this._beams = [{ nodes: [0], scores: [0] }];
  }

  /** @param {number} x @param {number} y a finger came down here @returns {boolean} whether there was room for a tap */
  tap(x, y) {
    const { layout, options } = this.keyboard;
    if (this.taps.length >= MAX_TAPS) return false;
    const cost = layout.squaredDistances([x, y]).map((d) => Math.max(-d / (2 * options.sigma ** 2), options.slip));
    const before = this._beams.length > 1 ? this._beams[this._beams.length - 2] : { nodes: [], scores: [] };
    const last = this.costs.length ? this.costs[this.costs.length - 1] : cost;
    this._beams.push(this.keyboard._advance(this._beams[this._beams.length - 1], before, cost, last));
    this.taps.push([x, y]);
    this.costs.push(cost);
    return true;
  }

  /** Take the last tap back. */
  backspace() {
    if (!this.taps.length) return;
    this.taps.pop();
    this.costs.pop();
    this._beams.pop();
  }

  /** @returns {string} the letters of the keys that were hit */
  get literal() {
    return this.taps.map((point) => this.keyboard.layout.nearest(point)).join("");
  }

  /** @param {number} [k] @param {boolean} [complete] words that the taps only begin may be among them @returns {Candidate[]} */
  candidates(k = 3, complete = true) {
    return typedCandidates(this.readings(k, complete), this.own, this.costs, this.keyboard.options, k, complete);
  }

  /** @param {number} k @param {boolean} complete @returns {Candidate[]} the model's own words, at least the k best, in no order */
  readings(k, complete) {
    if (!this.taps.length) return [];
    const { model } = this.keyboard;
    const rows = this._bestWords(k).map(([id, worth]) => candidate(model.word(id), worth));
    if (complete) rows.push(...this._completions(k));
    const literal = this._literalCandidate();
    if (literal) rows.push(literal);
    return rows;
  }

  /** @param {number} k @returns {[number, number][]} */
  _bestWords(k) {
    const { model, lexicon, options } = this.keyboard;
    const { nodes, scores } = this._beams[this._beams.length - 1];
    /** @type {Map<number, number>} */ const worth = new Map();
    const best = /** @type {number[]} */ ([]);
    const least = () => (best.length < k ? -Infinity : best[k - 1]);
    const offer = (/** @type {number} */ node, /** @type {number} */ score) => {
      for (let w = lexicon.firstWord[node]; w < lexicon.firstWord[node + 1]; w++) {
        const id = lexicon.words[w];
        const value = score + options.weight * model.logProb(this._lists, id);
        const known = worth.get(id);
        if (known !== undefined && known >= value) continue;
        if (known === undefined && value <= least()) continue;
        worth.set(id, value);
        best.length = 0;
        best.push(...[...worth.values()].sort((a, b) => b - a).slice(0, k));
      }
    };
    const hope = options.weight * this._greatest;
    for (let i = 0; i < nodes.length; i++) {
      if (scores[i] + hope > least()) offer(nodes[i], scores[i]);
    }
    for (let i = 0; i < nodes.length; i++) {
      const missed = scores[i] + options.deletion;
      for (let c = lexicon.child[nodes[i]]; c >= 0 && missed + hope > least(); c = lexicon.sibling[c]) offer(c, missed);
    }
    return [...worth].sort((a, b) => b[1] - a[1]).slice(0, k);
  }

  /** @param {number} k @returns {Candidate[]} longer words from the two best beginnings */
  _completions(k) {
    const { model, lexicon, options, keys } = this.keyboard;
    const { nodes, scores } = this._beams[this._beams.length - 1];
    const worth = nodes.map((node, i) => scores[i] + options.weight * lexicon.best[node]);
    const order = nodes.map((_, i) => i).sort((a, b) => worth[b] - worth[a]).slice(0, 2);
    return order.flatMap((i) => {
      const depth = lexicon.depth[nodes[i]];
      if (!depth) return [];
      const begun = lexicon.keys[lexicon.firstWord[nodes[i]]].slice(0, depth);
      return model.predictFrom(this.state, k + 1, begun).flatMap(({ id, word, logP }) => {
        const untyped = keys[id].length - begun.length;
        const value = scores[i] + options.weight * logP + options.completion * untyped;
        return untyped > 0 ? [candidate(word, value, { isComplete: false })] : [];
      });
    });
  }

  /** @returns {Candidate | null} what was hit, if it is no word */
  _literalCandidate() {
    const { known, model, options } = this.keyboard;
    const { literal } = this;
    if (known.has(literal) || literal.length < 2) return null;
    const { logP } = model.step(this.state, UNK);
    const hit = this.costs.reduce((total, cost) => total + Math.max(...cost), 0);
    const worth = hit + options.weight * (Number.isFinite(logP) ? logP : -8) + options.unknown * literal.length;
    return candidate(literal, worth, { isLiteral: true });
  }
}
