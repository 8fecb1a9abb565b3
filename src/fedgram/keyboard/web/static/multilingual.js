// @ts-check
/** Typing and gliding in several languages at once. The twin of the Python module `multilingual`; same numbers, same answers. */

import { bestCandidates, ownWords, typedCandidates } from "./candidates.js";
import { Glider, draw } from "./glide.js";
import { Languages } from "./languages.js";
import { Layout } from "./layout.js";
import { Keyboard, MAX_TAPS, TAP_OPTIONS, Typing } from "./taps.js";

/** @typedef {import("./layout.js").Point} Point */
/** @typedef {import("./candidates.js").Candidate} Candidate */
/** @typedef {import("./candidates.js").OwnWords} OwnWords */
/** @typedef {import("./languages.js").LanguagesState} LanguagesState */
/** @typedef {import("./personal.js").PersonalModel} PersonalModel */

/**
 * The readings of several models as those of one: worth = score + weight · ln Σ_l π_l · p_l(word).
 * @param {Candidate[][]} readings @param {number[]} logPosterior @param {number} weight @returns {Candidate[]}
 */
export function mergeReadings(readings, logPosterior, weight) {
  const literals = readings.flat().filter(({ isLiteral }) => isLiteral).length;
  /** @type {Map<string, Candidate>} */ const merged = new Map();
  readings.forEach((rows, l) => {
    for (const row of bestCandidates(rows, rows.length)) {
      if (row.isLiteral && literals < readings.length) continue;
      const key = `${row.isComplete} ${row.word}`;
      const other = merged.get(key)?.worth;
      let worth = row.worth + weight * logPosterior[l];
      if (other !== undefined) worth = Math.max(worth, other) + weight * Math.log1p(Math.exp(-Math.abs(worth - other) / weight));
      merged.set(key, { ...row, worth });
    }
  });
  return [...merged.values()];
}

/** Several languages and a layout, ready to decode. */
export class MultilingualKeyboard {
  /** @param {Languages} languages @param {Layout} layout @param {Partial<typeof TAP_OPTIONS>} [options] */
  constructor(languages, layout, options = {}) {
    this.languages = languages;
    this.layout = layout;
    this.options = { ...TAP_OPTIONS, ...options };
    this.boards = languages.models.map((model) => new Keyboard(model, layout, options));
    this.gliders = this.boards.map((board) => new Glider(board));
  }

  /** @param {string[]} [context] words @param {PersonalModel} [personal] @returns {MultilingualTyping} a new word behind these */
  typing(context = [], personal = undefined) {
    return new MultilingualTyping(this, this.languages.state(context), ownWords(personal, this.layout, context));
  }

  /** @param {Point[]} taps @param {string[]} [context] @param {number} [k] @param {PersonalModel} [personal] @returns {Candidate[]} */
  decode(taps, context = [], k = 3, personal = undefined) {
    const word = this.typing(context, personal);
    for (const [x, y] of taps.slice(0, MAX_TAPS)) word.tap(x, y);
    return word.candidates(k, false);
  }

  /** @param {Point[]} trail @param {string[]} [context] @param {number} [k] @param {PersonalModel} [personal] @returns {Candidate[]} */
  glide(trail, context = [], k = 3, personal = undefined) {
    const drawn = draw(trail);
    if (!drawn) return [];
    const { states, logPosterior } = this.languages.state(context);
    const rows = mergeReadings(this.gliders.map((glider, l) => glider.readings(drawn, states[l], k)), logPosterior, 1);
    const own = ownWords(personal, this.layout, context);
    return own ? this.gliders[0].withOwnWords(drawn, rows, own, k) : bestCandidates(rows, k);
  }
}

/** One word while it is being typed. */
export class MultilingualTyping {
  /** @param {MultilingualKeyboard} keyboard @param {LanguagesState} state @param {OwnWords | null} [own] */
  constructor(keyboard, { states, logPosterior }, own = null) {
    this.keyboard = keyboard;
    this.own = own;
    this.logPosterior = logPosterior;
    this._words = keyboard.boards.map((board, l) => new Typing(board, states[l]));
  }

  /** @returns {Point[]} */
  get taps() {
    return this._words[0].taps;
  }

  /** @returns {string} the letters of the keys that were hit */
  get literal() {
    return this._words[0].literal;
  }

  /** @param {number} x @param {number} y @returns {boolean} whether there was room for a tap */
  tap(x, y) {
    return this._words.map((word) => word.tap(x, y)).every(Boolean);
  }

  /** Take the last tap back. */
  backspace() {
    this._words.forEach((word) => word.backspace());
  }

  /** @param {number} [k] @param {boolean} [complete] words that the taps only begin may be among them @returns {Candidate[]} */
  candidates(k = 3, complete = true) {
    const { options } = this.keyboard;
    const rows = mergeReadings(this._words.map((word) => word.readings(k, complete)), this.logPosterior, options.weight);
    return typedCandidates(rows, this.own, this._words[0].costs, options, k, complete);
  }
}
