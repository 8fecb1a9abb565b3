// @ts-check
/**
 * What a keyboard remembers while somebody types: the text, the word being typed, and the suggestions. No page needed.
 *
 *   const session = new Session(new MultilingualKeyboard(languages, loadLayout("en_us")));
 *   session.tap(5.6, 0.7); …; session.type(" ");
 *   session.text;                                               // the text, with the letters typed so far
 *
 * A space or a mark commits the best guess at the word; a backspace right behind it restores what was typed.
 */

import { contextOf, isSentenceStart, lastWordOf, wordsOf } from "./text.js";
import { MultilingualKeyboard, PersonalModel, wordKey } from "./typing.js";

/** @typedef {import("./typing.js").Point} Point */
/** @typedef {"literal" | "best" | "other"} Kind what was typed; what a space commits; anything else */
/** @typedef {{word: string, kind: Kind}} Suggestion */
/** @typedef {{text: string, tap: Point | null, isExact: boolean}} Letter of the word being typed; no other letter is read for an exact one */

const ENDS = [".", "?", "!", "…"];
const DOUBLE_MS = 400;
export const SHIFT = Object.freeze({ off: 0, once: 1, locked: 2 });

/** One text in the making. */
export class Session {
  /** @param {MultilingualKeyboard} board @param {PersonalModel} [personal] */
  constructor(board, personal = new PersonalModel(board.languages)) {
    this.board = board;
    this.personal = personal;
    /** Whether a space commits the best guess, and not the letters that were typed. */
    this.autocorrect = true;
    /** Whether sentences begin with a capital by themselves. */
    this.autocapitals = true;
    this.clear();
  }

  /** Decode something for nothing, so that the first key does not wait for the browser's compiler. */
  warmUp() {
    const aims = this.board.layout.centres.slice(2, 7);
    for (let i = 0; i < 10; i++) {
      const word = this.board.typing([], this.personal);
      aims.forEach(([x, y]) => word.tap(x, y) && word.candidates(3));
      this.board.glide(aims, [], 3, this.personal);
    }
  }

  /** Begin an empty text. */
  clear() {
    /** The text without the word being typed. */
    this.before = "";
    this.shift = SHIFT.off;
    /** The text up to here was learned, from there. */
    this._learned = { from: 0, to: 0 };
    this._begin();
  }

  /** Begin a new word. */
  _begin() {
    /** @type {Letter[]} */ this.letters = [];
    /** A word that was come back to stays as it is until a letter is added. */
    this._isReopened = false;
    this._typing = /** @type {ReturnType<MultilingualKeyboard["typing"]> | null} */ (null);
    this.reread();
    /** @type {string[]} other words that the last trail may have meant */ this.others = [];
    /** @type {{word: string, literal: string} | null} the correction that a backspace would undo */ this._undo = null;
    this._hasOwnSpace = false;
    /** When shift was pressed, if nothing was typed since then. */ this._shiftedAt = -Infinity;
    const isStart = isSentenceStart(this.before);
    /** Whether the word begins a sentence in lower case, as the user wishes. */
    this._isLowered = isStart && !this.autocapitals;
    if (this.shift !== SHIFT.locked) this.shift = this.autocapitals && isStart ? SHIFT.once : SHIFT.off;
  }

  /** @returns {string[]} the words before, as models take them */
  get context() {
    return contextOf(this.before);
  }

  /** @returns {string} the letters of the word being typed, as they were typed */
  get literal() {
    return this.letters.map(({ text }) => text).join("");
  }

  /** @returns {string} */
  get text() {
    return this.before + this.literal;
  }

  /** The decoder of the word being typed, with all its taps. */
  get typing() {
    if (!this._typing) {
      this._typing = this.board.typing(this.context, this.personal);
      for (const { tap } of this.letters) if (tap) this._typing.tap(...tap);
    }
    return this._typing;
  }

  /** Read the word being typed again, since the learned words have changed. */
  reread() {
    this._typing = null;
    /** @type {{literal: string, word: string} | null} the best word for what was typed */ this._best = null;
  }

  /** One press: the next letter is a capital, or no longer. Two at once: all letters are. @param {number} [now] milliseconds */
  pressShift(now = performance.now()) {
    const isDouble = now - this._shiftedAt < DOUBLE_MS && this.shift !== SHIFT.locked;
    this._shiftedAt = isDouble ? -Infinity : now;
    this.shift = isDouble ? SHIFT.locked : this.shift === SHIFT.off ? SHIFT.once : SHIFT.off;
    if (!this.letters.length) this._isLowered = this.shift === SHIFT.off && isSentenceStart(this.before);
  }

  /** @param {number} x @param {number} y a finger came down here, in key widths */
  tap(x, y) {
    this._add({ text: this.board.layout.nearest([x, y]), tap: [x, y], isExact: false });
  }

  /** @param {string} character of a key that means itself: a letter, also an accented one, a digit, a mark, a space, a new line */
  type(character) {
    const { layout } = this.board;
    const i = layout.keys.indexOf(character.toLowerCase());
    const isCapital = character !== character.toLowerCase();
    if (character === " ") this.space();
    else if (character === "\n") this.enter();
    else if (i >= 0) this._add({ text: character, tap: layout.centres[i], isExact: false }, isCapital);
    else if (/[\p{L}\p{M}\p{N}]/u.test(character) || (/['’-]/u.test(character) && this.letters.length)) {
      const n = layout.rank.get(wordKey(character));
      this._add({ text: character, tap: n === undefined ? null : layout.places[n], isExact: true }, isCapital);
    } else this._mark(character);
  }

  /** @param {Letter} letter @param {boolean} [isCapital] */
  _add(letter, isCapital = false) {
    if (this.others.length || this._undo) Object.assign(this, { others: [], _undo: null });
    if (!this.letters.length) this._hasOwnSpace = false;
    this._shiftedAt = -Infinity;
    const text = isCapital || this.shift !== SHIFT.off ? letter.text.toUpperCase() : letter.text;
    this._isReopened = false;
    const { typing } = this;
    if (letter.tap && !typing.tap(...letter.tap)) letter = { ...letter, tap: null, isExact: true };
    this.letters.push({ ...letter, text });
    this._best = null;
    if (this.shift === SHIFT.once) this.shift = SHIFT.off;
  }

  /** @param {string} word @param {boolean[]} capitals of what was typed @returns {string} with the capitals that were asked for */
  _cased(word, capitals) {
    if (capitals.length > 1 && capitals.every(Boolean)) return word.toUpperCase();
    const [first = "", ...rest] = word;
    const lowered = first.toLowerCase() + rest.join("");
    if (this._isLowered && !capitals[0]) return this.board.languages.knows(lowered) ? lowered : word;
    return capitals[0] ? first.toUpperCase() + rest.join("") : word;
  }

  /** @param {number} k @param {boolean} complete @returns {string[]} words for the letters so far, the best first */
  _readings(k, complete) {
    const exact = this.letters.filter(({ isExact }) => isExact).map(({ text }) => text.toLowerCase());
    const capitals = this.letters.map(({ text }) => text !== text.toLowerCase());
    const fits = (/** @type {string} */ word) => exact.every((character) => word.toLowerCase().includes(character));
    const rows = this.typing.candidates(exact.length ? k + 5 : k, complete);
    const words = rows.map(({ word, isLiteral }) => (isLiteral ? this.literal : this._cased(word, capitals)));
    return [...new Set(words.filter(fits))];
  }

  /** @returns {string} the word that a space commits */
  get best() {
    if (!this.letters.length || !this.autocorrect || this._isReopened) return this.literal;
    const { literal } = this;
    if (this._best?.literal !== literal) this._best = { literal, word: this._readings(1, false)[0] ?? literal };
    return this._best.word;
  }

  /** Commit the word being typed, and note what it was. @param {string} behind what comes behind it */
  _commit(behind) {
    const { best, literal } = this;
    this.before += best + behind;
    this._begin();
    if (best !== literal) this._undo = { word: best + behind, literal: literal + behind };
  }

  /** Commit the word; twice, end the sentence, as on phones. */
  space() {
    if (this.letters.length) return this._commit(" ");
    if (/[\p{L}\p{N})"'’] $/u.test(this.before) && !this._hasOwnSpace) {
      this.before = `${this.before.slice(0, -1)}. `;
      this._learn();
    } else if (this.before && !/\s$/u.test(this.before)) this.before += " ";
    this._begin();
  }

  /** @param {string} mark that ends a word */
  _mark(mark) {
    if (this.letters.length) this._commit(mark);
    else if (this._hasOwnSpace) {
      this.before = `${this.before.slice(0, -1)}${mark} `;
      this._begin();
      this._hasOwnSpace = true;
    } else {
      this.before += mark;
      this._begin();
    }
    if (ENDS.includes(mark)) this._learn();
  }

  /** A new line; it ends the sentence. */
  enter() {
    if (this.letters.length) this._commit("\n");
    else {
      this.before = `${this._hasOwnSpace ? this.before.slice(0, -1) : this.before}\n`;
      this._begin();
    }
    this._learn();
  }

  /** @param {string} word @returns {string} as it is learned: a capital at the beginning of a sentence is no part of it */
  _plain(word) {
    if (/\p{N}/u.test(word)) return "<number>";
    const [{ languages }, lower] = [this.board, word.toLowerCase()];
    return !languages.knows(word) && (languages.knows(lower) || this.personal.has(lower)) ? lower : word;
  }

  /** Learn the sentence that has just been finished, once. */
  _learn() {
    const text = this.before.trimEnd().replace(/[.!?…]+$/u, "");
    const start = Math.max(text.search(/[^.!?…\n]*$/u), this._learned.to);
    const words = wordsOf(text.slice(start)).map((word) => this._plain(word));
    if (words.length) this.personal.learn(words);
    this._learned = { from: start, to: Math.max(this.before.length, this._learned.to) };
    this.reread();
  }

  /** Learn a word that the user insists on, at once. @param {string} word @param {string[]} context */
  _keep(word, context) {
    if (!this.board.languages.knows(word)) this.personal.learn(wordsOf(word).map((part) => this._plain(part)), context[context.length - 1]);
    this.reread();
  }

  /** Take back a correction, a trail, a letter, or what stands before. */
  backspace() {
    const undo = this._undo;
    if (undo) {
      const before = this.before.slice(0, -undo.word.length);
      this._keep(lastWordOf(undo.literal.replace(/\s$/u, "")) || undo.literal.trim(), contextOf(before));
      this.before = before + undo.literal;
      this._begin();
    } else if (this.others.length) {
      this.before = this.before.slice(0, -1 - lastWordOf(this.before.slice(0, -1)).length);
      this._begin();
    } else if (this.letters.length) this._deleteLetter();
    else this._deleteBefore();
    if (this.before.length <= this._learned.from) this._learned = { from: this.before.length, to: this.before.length };
  }

  _deleteLetter() {
    const letter = /** @type {Letter} */ (this.letters.pop());
    if (letter.tap) this._typing?.backspace();
    this._best = null;
    if (!this.letters.length) this._begin();
  }

  /** Delete a character; a word that then ends the text is opened again. */
  _deleteBefore() {
    this.before = Array.from(this.before).slice(0, -1).join("");
    this._begin();
    const word = lastWordOf(this.before);
    if (!word) return;
    const { layout } = this.board;
    this.before = this.before.slice(0, -word.length);
    this._begin();
    this.shift = this.shift === SHIFT.locked ? SHIFT.locked : SHIFT.off;
    this._isReopened = true;
    this.letters = Array.from(word, (text) => {
      const i = layout.keys.indexOf(text.toLowerCase());
      const n = layout.rank.get(wordKey(text));
      return { text, tap: i >= 0 ? layout.centres[i] : n === undefined ? null : layout.places[n], isExact: i < 0 };
    });
  }

  /** @param {string} word a suggestion; behind a trail it replaces the word that the trail gave @param {Kind} [kind] */
  choose(word, kind = "other") {
    if (this.others.length) this.before = this.before.slice(0, -1 - lastWordOf(this.before.slice(0, -1)).length);
    if (kind === "literal") this._keep(word, this.context);
    this._append(word);
  }

  /** @param {string} word with a space of the keyboard's own, which gives way to a mark */
  _append(word) {
    const gap = this.before && !/[\s([{"“‘/-]$/u.test(this.before) && !this.letters.length ? " " : "";
    this.before += `${gap}${word} `;
    this._begin();
    this._hasOwnSpace = true;
  }

  /** @param {Point[]} trail @returns {string | null} the word that it gave */
  glide(trail) {
    if (this.letters.length) this._commit(" ");
    const capitals = { [SHIFT.off]: [], [SHIFT.once]: [true], [SHIFT.locked]: [true, true] }[this.shift];
    const rows = this.board.glide(trail, this.context, 4, this.personal);
    const found = [...new Set(rows.map(({ word }) => this._cased(word, capitals)))];
    if (!found.length) return null;
    this._append(found[0]);
    this.others = found.slice(1);
    return found[0];
  }

  /** @returns {Suggestion[]} three for the strip, from left to right; the best is in the middle */
  suggestions() {
    if (this.others.length) return this.others.slice(0, 3).map((word) => ({ word, kind: "other" }));
    const { best, literal } = this;
    const offered = this.letters.length ? (this._isReopened ? this._predicted(literal) : this._readings(4, true)) : this._predicted("");
    const others = offered.filter((word) => word !== best && word !== literal).map((word) => ({ word, kind: /** @type {Kind} */ ("other") }));
    if (!this.letters.length) return [others[1], others[0], others[2]].filter(Boolean);
    /** @type {Suggestion} */ const middle = { word: best, kind: "best" };
    return best === literal
      ? [...others.slice(0, 1), middle, ...others.slice(1, 2)]
      : [{ word: literal, kind: "literal" }, middle, ...others.slice(0, 1)];
  }

  /** @param {string} prefix @returns {string[]} words that are likely next */
  _predicted(prefix) {
    const rows = this.personal.predict(this.context, 7, prefix).filter(({ word }) => !word.startsWith("<"));
    const capitals = prefix ? Array.from(prefix, (c) => c !== c.toLowerCase()) : this.shift === SHIFT.off ? [] : [true];
    return [...new Set(rows.map(({ word }) => this._cased(word, capitals)))];
  }
}
