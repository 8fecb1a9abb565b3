// @ts-check
/** The user's own words, learned and kept on the device. The twin of the Python module `personal`, which says why. */

import { Fgram } from "./fgram.js";
import { Languages } from "./languages.js";
import { wordKey } from "./layout.js";

/** @typedef {import("./candidates.js").Spelled} Spelled */

export const PERSONAL_OPTIONS = Object.freeze({ most: 0.25, patience: 200, fading: 0.9995, words: 2000, pairs: 8000 });
const BEGIN = "<s>";
const END = "</s>";

/** The user's own words on top of a packed model; no word loses more than −ln(1 − most) nats. */
export class PersonalModel {
  /** @param {Fgram | Languages} base @param {Partial<typeof PERSONAL_OPTIONS>} [options] */
  constructor(base, options = {}) {
    this.base = base instanceof Languages ? base : new Languages([base]);
    this.options = { ...PERSONAL_OPTIONS, ...options };
    /** @type {{edition: number, words: string[], keys: string[], ids: number[][], counts: number[], total: number, spelled: Map<string, Spelled>} | undefined} */
    this._table = undefined;
    /** @type {Map<string, {key: string, ids: number[]}>} */ this._spellings = new Map();
    this._mixed = { context: "\0", p: new Float64Array(0) };
    /** Grows with every change. */
    this.edition = 0;
    this.erase();
  }

  /** Forget everything. */
  erase() {
    /** @type {Map<string, number>} */ this._words = new Map();
    /** @type {Map<string, Map<string, number>>} */ this._pairs = new Map();
    this._unit = 1;
    this.edition++;
  }

  /** @param {string[]} sentence that the user has sent @param {string} [after] the word before it, if it is part of a sentence */
  learn(sentence, after = BEGIN) {
    let before = after === END ? BEGIN : after;
    this.edition++;
    for (const word of sentence) {
      if (!word || word.length > 64 || word.startsWith("<") || /\s/u.test(word)) {
        before = BEGIN;
        continue;
      }
      this._unit /= this.options.fading;
      this._words.set(word, (this._words.get(word) ?? 0) + this._unit);
      const row = this._pairs.get(before) ?? new Map();
      this._pairs.set(before, row.set(word, (row.get(word) ?? 0) + this._unit));
      before = word;
    }
    this._keepWithinBounds();
  }

  _keepWithinBounds() {
    if (this._unit > 1e100) this._load(this._content());
    if (this._words.size > this.options.words) {
      const kept = Math.floor((this.options.words * 9) / 10);
      for (const [word] of this.learned().slice(kept)) this.forget(word);
    }
    let kinds = 0;
    for (const row of this._pairs.values()) kinds += row.size;
    if (kinds > this.options.pairs) {
      const pairs = [...this._pairs].flatMap(([u, row]) => [...row].map(([x, count]) => ({ u, x, count })));
      pairs.sort((a, b) => b.count - a.count);
      for (const { u, x } of pairs.slice(Math.floor((this.options.pairs * 9) / 10))) this._pairs.get(u)?.delete(x);
      for (const [u, row] of this._pairs) if (!row.size) this._pairs.delete(u);
    }
  }

  /** @returns {[string, number][]} every learned word with its faded count, the most used first */
  learned() {
    const rows = [...this._words].map(([word, count]) => /** @type {[string, number]} */ ([word, count / this._unit]));
    return rows.sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
  }

  /** @param {string} word @returns {boolean} whether it was learned */
  has(word) {
    return this._words.has(word);
  }

  /** @param {string} word remove it and all its pairs @returns {boolean} whether it was there */
  forget(word) {
    this.edition++;
    this._pairs.delete(word);
    for (const row of this._pairs.values()) row.delete(word);
    return this._words.delete(word);
  }

  /** @returns {number} the weight of what was learned */
  get share() {
    const n = this.table.total / this._unit;
    return (this.options.most * n) / (n + this.options.patience);
  }

  /** @param {string | undefined} before @param {string} word @returns {number} */
  probability(before, word) {
    const total = sum(this._words);
    if (!total) return 0;
    const alone = (this._words.get(word) ?? 0) / total;
    const row = this._pairs.get(before ?? BEGIN);
    if (!row || !row.size) return alone;
    const kinds = row.size * this._unit;
    return ((row.get(word) ?? 0) + kinds * alone) / (sum(row) + kinds);
  }

  /** What was learned, as lists; made anew after a change. Words keep what was found out about them. */
  get table() {
    if (this._table?.edition !== this.edition) {
      const words = [...this._words.keys()];
      const known = words.map((word) => this._spelling(word));
      this._table = {
        edition: this.edition, words, keys: known.map(({ key }) => key), total: sum(this._words),
        ids: this.base.models.map((_, l) => known.map(({ ids }) => ids[l])), counts: [...this._words.values()], spelled: new Map(),
      };
      this._mixed = { context: "\0", p: new Float64Array(0) };
    }
    return this._table;
  }

  /** @param {string} word @returns {{key: string, ids: number[]}} how it is typed, and its ids in the models */
  _spelling(word) {
    let found = this._spellings.get(word);
    if (!found) {
      found = { key: wordKey(word), ids: this.base.models.map((model) => model.wordId(word)) };
      if (this._spellings.size > 4 * this.options.words) this._spellings.clear();
      this._spellings.set(word, found);
    }
    return found;
  }

  /** @param {string[]} context @returns {Float64Array} p(word | context) of both models, for every word of `table` */
  mixed(context) {
    const { words, ids, counts, total } = this.table;
    const key = context.join(" ");
    if (this._mixed.context === key) return this._mixed.p;
    const share = this.share;
    const row = this._pairs.get(lastWord(context)) ?? new Map();
    const base = this.base.probabilities(this.base.state(context), ids);
    const [pairs, kinds] = [sum(row), row.size * this._unit];
    const p = Float64Array.from(words, (word, i) => {
      const alone = counts[i] / total;
      const learned = row.size ? ((row.get(word) ?? 0) + kinds * alone) / (pairs + kinds) : alone;
      return (1 - share) * base[i] + share * learned;
    });
    this._mixed = { context: key, p };
    return p;
  }

  /** @param {string[]} context @param {number} [k] @param {string} [prefix] @returns {{word: string, logP: number}[]} */
  predict(context, k = 3, prefix = "") {
    const [share, key] = [this.share, wordKey(prefix)];
    /** @type {Map<string, number>} */ const mixed = new Map();
    for (const p of this.base.predict(context, k, prefix)) mixed.set(p.word, (1 - share) * Math.exp(p.logP));
    if (share) {
      const { words, keys } = this.table;
      this.mixed(context).forEach((p, i) => keys[i].startsWith(key) && mixed.set(words[i], p));
    }
    const rows = [...mixed].filter(([, p]) => p > 0).sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
    return rows.slice(0, k).map(([word, p]) => ({ word, logP: Math.log(p) }));
  }

  _content() {
    const scaled = (/** @type {Map<string, number>} */ row) =>
      Object.fromEntries([...row].map(([word, count]) => [word, Number((count / this._unit).toFixed(6))]));
    const pairs = Object.fromEntries([...this._pairs].map(([u, row]) => [u, scaled(row)]));
    return { "fedgram-personal": 1, words: scaled(this._words), pairs };
  }

  /** @param {ReturnType<PersonalModel["_content"]>} content */
  _load(content) {
    const counts = (/** @type {Record<string, number>} */ row) => {
      const entries = Object.entries(row);
      if (entries.some(([w, c]) => !w || w.length > 64 || !(c >= 0 && c < 1e9))) throw new TypeError("not personal words");
      return new Map(entries);
    };
    if (content?.["fedgram-personal"] !== 1) throw new TypeError("not personal words");
    const words = counts(content.words);
    const pairs = new Map(Object.entries(content.pairs).map(([u, row]) => [u, counts(row)]));
    [this._words, this._pairs, this._unit] = [words, pairs, 1];
    this.edition++;
  }

  /** @returns {string} */
  toJSON() {
    return JSON.stringify(this._content());
  }

  /** @param {string} text what `toJSON` returned, here or in Python */
  loadJSON(text) {
    this._load(JSON.parse(text));
  }

  /** @param {string} text of `toJSON`, whose counts are added to what was learned here */
  addJSON(text) {
    const other = new PersonalModel(this.base, this.options);
    other.loadJSON(text);
    const add = (/** @type {Map<string, number>} */ row, /** @type {Map<string, number>} */ more) =>
      more.forEach((count, word) => row.set(word, (row.get(word) ?? 0) + count * this._unit));
    add(this._words, other._words);
    for (const [u, row] of other._pairs) {
      if (!this._pairs.has(u)) this._pairs.set(u, new Map());
      add(/** @type {Map<string, number>} */ (this._pairs.get(u)), row);
    }
    this.edition++;
    this._keepWithinBounds();
  }

  /** @returns {string[]} the learned words that no model knows, the most used first: those that are the user's own */
  unknownWords() {
    return this.learned().map(([word]) => word).filter((word) => !this.base.knows(word) && !this.base.knows(word.toLowerCase()));
  }
}

/** @param {string[]} context @returns {string} its last word, or the beginning of a sentence */
const lastWord = (context) => {
  const last = context[context.length - 1];
  return last === undefined || last === END ? BEGIN : last;
};

/** @param {Map<string, number>} counts @returns {number} */
function sum(counts) {
  let total = 0;
  for (const count of counts.values()) total += count;
  return total;
}
