// @ts-check
/** One keyboard on the page: its text, its suggestions and its keys. All decoding is done in `session.js`. */

import { find, make } from "./dom.js";
import { Fingers } from "./fingers.js";
import { Keys } from "./keys.js";
import { SHIFT, Session } from "./session.js";
import { Languages, MultilingualKeyboard, PersonalModel, loadLayout } from "./typing.js";

/** @typedef {import("./session.js").Suggestion} Suggestion */
/** @typedef {(session: Session) => void} Action */

const PLACES = 3;
const KEPT = 10_000; // times

/** A keyboard for one or more models. */
export class Phone {
  /**
   * @param {string[]} names of the models @param {Languages} languages @param {string} layout @param {PersonalModel} personal
   * @param {(action: Action) => void} everywhere does something on all keyboards of the page
   */
  constructor(names, languages, layout, personal, everywhere) {
    const content = /** @type {HTMLTemplateElement} */ (find("#phone")).content.cloneNode(true);
    this.root = /** @type {HTMLElement} */ (find(".phone", /** @type {ParentNode} */ (content)));
    this.names = names.map((name) => name.replace(/\.fgram$/u, ""));
    this.session = new Session(new MultilingualKeyboard(languages, loadLayout(layout)), personal);
    /** @type {number[]} milliseconds of the last keys */ this.times = [];
    this.screen = /** @type {HTMLElement} */ (find(".screen", this.root));
    this._before = /** @type {HTMLElement} */ (find(".before", this.root)).appendChild(document.createTextNode(""));
    this._literal = /** @type {HTMLElement} */ (find(".literal", this.root));
    this._everywhere = everywhere;
    this._isSymbols = false;
    find("h2", this.root).textContent = this.names.join(" + ");
    const characters = languages.models.flatMap((model) => model.character);
    this.keys = new Keys(/** @type {HTMLElement} */ (find(".keys", this.root)), this.session.board.layout, characters);
    this.keys.showLayer(false);
    this._addStrip();
    new Fingers(/** @type {HTMLElement} */ (find(".board", this.root)), this.keys, {
      tap: ([x, y]) => everywhere((session) => session.tap(x, y)),
      glide: (trail) => everywhere((session) => session.glide(trail)),
      type: (text) => this._type(text),
      press: (action) => this._press(action),
    });
  }

  /** @param {string} text */
  _type(text) {
    this._everywhere((session) => session.type(text));
    if (this._isSymbols && /[\s.,?!;:'"]/u.test(text)) this._press("layer"); // back to the letters, as on phones
  }

  /** @param {string} action */
  _press(action) {
    if (action === "shift") this._everywhere((session) => session.pressShift());
    else if (action === "backspace") this._everywhere((session) => session.backspace());
    else {
      this._isSymbols = !this._isSymbols;
      this.keys.showLayer(this._isSymbols);
    }
  }

  _addStrip() {
    /** @type {Suggestion[]} */ this._offered = [];
    this._places = Array.from({ length: PLACES }, (_, i) => {
      const button = make("button", { type: "button" });
      button.addEventListener("click", () => {
        const offer = this._offered[i];
        if (offer) this._everywhere((session) => session.choose(offer.word, offer.kind));
      });
      return button;
    });
    find(".strip", this.root).append(...this._places);
  }

  /** @param {Action} action do it, show the result, and note how long it took */
  act(action) {
    const began = performance.now();
    action(this.session);
    this.show();
    this.times.push(performance.now() - began);
    if (this.times.length > KEPT) this.times.shift();
  }

  /** Show the text, the suggestions and the keys, laid out. */
  show() {
    const { session } = this;
    const { data } = this._before;
    if (session.before.startsWith(data)) this._before.appendData(session.before.slice(data.length));
    else this._before.data = session.before;
    this._literal.textContent = session.literal;
    this.screen.classList.toggle("blank", !session.text);
    this._showStrip();
    this.keys.showShift(session.shift !== SHIFT.off, session.shift === SHIFT.locked);
    this._showLanguages();
    this.screen.scrollTop = this.screen.scrollHeight;
  }

  _showStrip() {
    const found = this.session.suggestions();
    /** @type {Suggestion[]} */ this._offered = found.length === 1 ? [, found[0]] : found; // one alone is in the middle
    this._places.forEach((button, i) => {
      const offer = this._offered[i];
      button.textContent = offer?.word ?? "";
      button.className = offer?.kind ?? "empty";
      button.disabled = !offer;
    });
  }

  /** The languages on the space bar; the likely one is the clear one. */
  _showLanguages() {
    const { names, session } = this;
    if (names.length === 1) {
      if (!this._labelled) this.keys.showLanguages([names[0]]);
      this._labelled = names[0];
      return;
    }
    const posterior = session.board.languages.posterior(session.context);
    const label = names.map((name, i) => `${name} ${Math.round(100 * posterior[i])} %`);
    if (this._labelled === label.join()) return;
    this._labelled = label.join();
    const most = posterior.indexOf(Math.max(...posterior));
    this.keys.showLanguages(label.map((text, i) => make(i === most ? "b" : "i", { textContent: text })));
  }
}
