// @ts-check
/**
 * What a keyboard remembers while somebody types: the text, the word being typed, and the suggestions. No page needed.
 *
 *   const session = new Session(model, loadLayout("en_us"));
 *   session.tap(5.6, 0.7); …; session.space();
 *   session.text;                                               // what was decoded
 *   session.literalText;                                        // what was hit
 */

import { Fgram } from "./fgram.js";
import { Glider, Keyboard, Layout, PersonalModel } from "./typing.js";

/** @typedef {import("./typing.js").Point} Point */
/** @typedef {{word: string, isLiteral: boolean}} Suggestion */

const MARKS = [".", "?", "!"];
export const SHIFT = Object.freeze({ off: 0, once: 1, locked: 2 });

/** One text in the making. */
export class Session {
  /** @param {Fgram} model @param {Layout} layout @param {PersonalModel} [personal] */
  constructor(model, layout, personal = new PersonalModel(model)) {
    this.model = model;
    this.board = new Keyboard(model, layout);
    this.glider = new Glider(this.board);
    this.personal = personal;
    /** Whether a space commits the best guess, and not the keys that were hit. */
    this.autocorrect = true;
    this.clear();
  }

  /** Decode something for nothing, so that the first key does not wait for the browser's compiler. */
  warmUp() {
    const { board, glider } = this;
    const aims = board.layout.typed("there");
    for (let i = 0; i < 10; i++) {
      const word = board.typing([], this.personal);
      aims.forEach(([x, y]) => word.tap(x, y) && word.candidates(3));
      glider.decode(aims, [], 3, this.personal);
    }
  }

  /** Begin an empty text. */
  clear() {
    /** @type {{word: string, literal: string}[]} what was committed; marks end sentences */
    this.words = [];
    /** @type {string[]} other words that the last trail may have meant */
    this.others = [];
    this.shift = SHIFT.off;
    this._begin();
  }

  _begin() {
    this.typing = this.board.typing(this.context, this.personal);
    /** @type {boolean[]} which of the taps were made with shift */
    this.capitals = [];
  }

  /** The next letter is a capital; pressed twice, all are; pressed again, none. */
  pressShift() {
    this.shift = (this.shift + 1) % 3;
  }

  /** @param {string} word @param {boolean[]} capitals @returns {string} with the capitals that were asked for */
  _cased(word, capitals) {
    if (capitals.length > 1 && capitals.every(Boolean)) return word.toUpperCase();
    const [first = "", ...rest] = word;
    return capitals[0] ? first.toUpperCase() + rest.join("") : word;
  }

  /** @returns {string} the letters of the keys that were hit for the word being typed */
  get hit() {
    return Array.from(this.typing.literal, (letter, i) => (this.capitals[i] ? letter.toUpperCase() : letter)).join("");
  }

  /** @returns {string[]} the words of the sentence being typed */
  get context() {
    const ends = this.words.map(({ word }) => MARKS.includes(word)).lastIndexOf(true);
    return this.words.slice(ends + 1).map(({ word }) => word);
  }

  /** @param {"word" | "literal"} kind @param {string} last @returns {string} */
  _join(kind, last) {
    const parts = [...this.words.map((row) => row[kind]), ...(last ? [last] : [])];
    return parts.reduce((text, part) => text + (text && !MARKS.includes(part) ? " " : "") + part, "");
  }

  /** @returns {string} the text, with the best guess at the word being typed */
  get text() {
    return this._join("word", this.typing.taps.length ? this._best() : "");
  }

  /** @returns {string} the letters of the keys that were hit */
  get literalText() {
    return this._join("literal", this.hit);
  }

  /** @returns {string} */
  _best() {
    const [first] = this.autocorrect ? this.typing.candidates(1, false) : [];
    return first ? this._cased(first.word, this.capitals) : this.hit;
  }

  /** @param {number} x @param {number} y in key widths */
  tap(x, y) {
    this.others = [];
    if (!this.typing.tap(x, y)) return;
    this.capitals.push(this.shift !== SHIFT.off);
    this._spendShift();
  }

  _spendShift() {
    if (this.shift === SHIFT.once) this.shift = SHIFT.off;
  }

  /** Commit the word being typed. */
  space() {
    if (this.typing.taps.length) this._commit(this._best(), this.hit);
  }

  /** @param {string} mark one of . ? ! ends the sentence, which is then learned */
  mark(mark) {
    this.space();
    if (!this.context.length || !MARKS.includes(mark)) return;
    this.personal.learn(this.context);
    this.words.push({ word: mark, literal: mark });
    this.others = [];
    this._begin();
  }

  /** Take back the last tap, or the last word. */
  backspace() {
    this.others = [];
    if (this.typing.taps.length) {
      this.typing.backspace();
      this.capitals.pop();
      return;
    }
    this.words.pop();
    this._begin();
  }

  /** @param {string} word a suggestion; behind a trail it replaces the word that the trail gave */
  choose(word) {
    if (this.others.length) this.words.pop();
    this._commit(word, this.typing.taps.length ? this.hit : word);
  }

  /** @param {Point[]} trail @returns {string | null} the word that it gave */
  glide(trail) {
    this.space();
    const capitals = { [SHIFT.off]: [], [SHIFT.once]: [true], [SHIFT.locked]: [true, true] }[this.shift];
    const found = [...new Set(this.glider.decode(trail, this.context, 4, this.personal).map(({ word }) => this._cased(word, capitals)))];
    if (!found.length) return null;
    this._spendShift();
    const hit = [trail[0], trail[trail.length - 1]].map((point) => this.board.layout.nearest(point)).join("…");
    this._commit(found[0], hit);
    this.others = found.slice(1);
    return found[0];
  }

  /** @param {number} k @returns {Suggestion[]} of the word being typed; what was hit comes first where nothing is corrected */
  _readings(k) {
    const rows = this.typing.candidates(k + 1).map(({ word, isLiteral }) => ({
      word: isLiteral ? this.hit : this._cased(word, this.capitals), isLiteral,
    }));
    if (!this.autocorrect) rows.unshift({ word: this.hit, isLiteral: true });
    return rows.filter(({ word }, i) => rows.findIndex((row) => row.word === word) === i).slice(0, k);
  }

  /** @param {string} word @param {string} literal */
  _commit(word, literal) {
    this.words.push({ word, literal });
    this.others = [];
    this._begin();
  }

  /** @param {number} [k] @returns {Suggestion[]} for the strip: other readings of a trail, words being typed, or next words */
  suggestions(k = 3) {
    if (this.others.length) return this.others.slice(0, k).map((word) => ({ word, isLiteral: false }));
    if (this.typing.taps.length) return this._readings(k);
    return this.personal.predict(this.context, k + 4)
      .filter(({ word }) => !word.startsWith("<")).slice(0, k).map(({ word }) => ({ word, isLiteral: false }));
  }
}

/** @returns {number} a Gaussian random number */
export function gaussian() {
  return Math.sqrt(-2 * Math.log(1 - Math.random())) * Math.cos(2 * Math.PI * Math.random());
}
