// @ts-check
/** The keys of one keyboard as they are drawn: letters where the layout has them, the others where phones have them. */

import { find, icon, make } from "./dom.js";
import { Layout, wordKey } from "./layout.js";

/** @typedef {import("./layout.js").Point} Point */
/** @typedef {{label: string, name: string, x: number, y: number, width: number, action?: string, text?: string}} Key places are centres, in key widths */

const ROW = 1.5;
const GAP = { x: 0.1, y: 0.22 }; // between keys, in key widths
const SYMBOLS = ["1234567890", "@#$%&-+()/", "*\"':;!?"];
const ACCENTS = { a: "áàâãäåæ", c: "ç", d: "ð", e: "éèêë", i: "íìîï", n: "ñ", o: "óòôõöøœ", s: "ßš", u: "úùûü", y: "ýÿ", z: "ž" };
const NAMES = { ",": "comma", ".": "full stop", " ": "space" };

/** @param {Layout} layout the room beside the last row of letters, and whether shift and backspace fit there */
function roomOf({ centres, width }) {
  const y = Math.max(...centres.map((place) => place[1]));
  const last = centres.filter((place) => place[1] === y).map(([x]) => x);
  const [left, right] = [Math.min(...last) - 0.5, width - Math.max(...last) - 0.5];
  return { y, left, right, fits: left >= 0.95 && right >= 0.95 };
}

/** @param {Layout} layout @returns {Key[]} shift, backspace and the last row */
function otherKeys(layout) {
  const { width, height } = layout;
  const { y, left, right, fits } = roomOf(layout);
  const below = height + ROW / 2;
  const side = fits ? 1.5 : 1.3;
  const [from, to] = fits ? [0, width] : [1.3, width - 1.3];
  const shift = { label: "shift", name: "shift", action: "shift" };
  const backspace = { label: "backspace", name: "backspace", action: "backspace" };
  const at = (/** @type {number} */ begin, /** @type {number} */ size, /** @type {number} */ row) => ({ x: begin + size / 2, y: row, width: size });
  return [
    fits ? { ...shift, ...at(0, left, y) } : { ...shift, ...at(0, 1.3, below) },
    fits ? { ...backspace, ...at(width - right, right, y) } : { ...backspace, ...at(width - 1.3, 1.3, below) },
    { label: "?123", name: "digits and symbols", action: "layer", ...at(from, side, below) },
    { label: ",", name: "comma", text: ",", ...at(from + side, 1, below) },
    { label: "", name: "space", text: " ", ...at(from + side + 1, to - from - 2 * side - 2, below) },
    { label: ".", name: "full stop", text: ".", ...at(to - side - 1, 1, below) },
    { label: "enter", name: "enter", text: "\n", ...at(to - side, side, below) },
  ];
}

/** @param {Layout} layout @returns {Key[]} the other layer: digits and symbols, in the same rows */
function symbolKeys(layout) {
  const rows = layout.height / ROW;
  const { left, right, fits } = roomOf(layout);
  return SYMBOLS.slice(0, rows).flatMap((row, n) => Array.from(row, (text, i) => {
    const inset = n === rows - 1 && fits ? [left, right] : [0, 0]; // beside shift and backspace
    const width = (layout.width - inset[0] - inset[1]) / row.length;
    return { label: text, name: NAMES[/** @type {","} */ (text)] ?? text, text, x: inset[0] + (i + 0.5) * width, y: (n + 0.5) * ROW, width };
  }));
}

/** All keys of one keyboard, and what lies behind them. */
export class Keys {
  /** @param {HTMLElement} root @param {Layout} layout @param {string[]} characters of the models' words */
  constructor(root, layout, characters) {
    this.root = root;
    this.layout = layout;
    this.height = layout.height + ROW;
    root.style.aspectRatio = `${layout.width} / ${this.height}`;
    /** @type {Map<string, string[]>} */ this.alternatives = alternatives(layout, characters);
    this.letters = layout.keys.map((label, i) => this._draw(".letters", { label, name: label, text: label, x: layout.centres[i][0], y: layout.centres[i][1], width: 1 }));
    this.letters.forEach((button, i) => {
      button.tabIndex = i ? -1 : 0; // arrows move among the letters
      const [digit] = this.alternatives.get(layout.keys[i])?.filter((text) => /\d/u.test(text)) ?? [];
      if (digit) button.append(make("small", { textContent: digit, ariaHidden: "true" }));
      button.addEventListener("keydown", (event) => this._moveFocus(event, i));
    });
    symbolKeys(layout).forEach((key) => this._draw(".symbols-layer", key));
    /** @type {Map<string, HTMLButtonElement>} */
    this.others = new Map(otherKeys(layout).map((key) => [key.name, this._draw(".others", key)]));
    this._isUpper = false;
  }

  /** @param {string} where @param {Key} key @returns {HTMLButtonElement} */
  _draw(where, { label, name, x, y, width, action, text }) {
    const button = make("button", { type: "button", className: `key ${action ?? (text === "\n" ? "enter" : text === " " ? "space" : "")}` });
    const whole = this.layout.width;
    button.style.left = `${((x - width / 2 + GAP.x / 2) / whole) * 100}%`;
    button.style.width = `${((width - GAP.x) / whole) * 100}%`;
    button.style.top = `${((y - ROW / 2 + GAP.y / 2) / this.height) * 100}%`;
    button.style.height = `${((ROW - GAP.y) / this.height) * 100}%`;
    button.setAttribute("aria-label", name);
    if (action) button.dataset.action = action;
    if (text !== undefined) button.dataset.text = text;
    const drawn = ["shift", "backspace", "enter"].includes(label);
    button.append(drawn ? icon(label) : make("span", { textContent: label }));
    find(where, this.root).append(button);
    return button;
  }

  /** @param {KeyboardEvent} event @param {number} i */
  _moveFocus(event, i) {
    const step = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, ROW], ArrowUp: [0, -ROW] }[event.key];
    if (!step) return;
    event.preventDefault();
    const { centres } = this.layout;
    const [x, y] = [centres[i][0] + step[0], centres[i][1] + step[1]];
    const near = centres.map(([a, b]) => (a - x) ** 2 + (b - y) ** 2);
    this.letters[near.indexOf(Math.min(...near))].focus();
  }

  /** @param {boolean} isUpper @param {boolean} isLocked letters as they will be typed */
  showShift(isUpper, isLocked) {
    const shift = /** @type {HTMLButtonElement} */ (this.others.get("shift"));
    if (shift.ariaPressed === String(isUpper) && shift.dataset.locked === String(isLocked)) return;
    shift.ariaPressed = String(isUpper);
    shift.dataset.locked = String(isLocked);
    shift.replaceChildren(icon(isLocked ? "lock" : "shift"));
    this.letters.forEach((button, i) => {
      const label = isUpper ? this.layout.keys[i].toUpperCase() : this.layout.keys[i];
      find("span", button).textContent = label;
      button.setAttribute("aria-label", label);
    });
  }

  /** Letters, or digits and symbols. @param {boolean} isSymbols */
  showLayer(isSymbols) {
    /** @type {HTMLElement} */ (find(".letters", this.root)).hidden = isSymbols;
    /** @type {HTMLElement} */ (find(".symbols-layer", this.root)).hidden = !isSymbols;
    const layer = /** @type {HTMLButtonElement} */ (this.others.get("digits and symbols"));
    find("span", layer).textContent = isSymbols ? "abc" : "?123";
    layer.ariaPressed = String(isSymbols);
  }

  /** @param {(string | Node)[]} label of the space bar */
  showLanguages(label) {
    find("span", /** @type {HTMLButtonElement} */ (this.others.get("space"))).replaceChildren(...label);
  }

  /** @param {PointerEvent} event @returns {Point} in key widths */
  place(event) {
    const box = this.root.getBoundingClientRect();
    return [((event.clientX - box.left) / box.width) * this.layout.width, ((event.clientY - box.top) / box.height) * this.height];
  }
}

/** What a long press of each key offers: a digit, and the letters of the models' words that the key types. @param {Layout} layout @param {string[]} characters @returns {Map<string, string[]>} */
function alternatives(layout, characters) {
  const row = layout.centres[0][1];
  const result = new Map(layout.keys.map((key, i) => {
    const others = [...(ACCENTS[/** @type {"a"} */ (key)] ?? ""), ...characters.filter((c) => wordKey(c) === key && c === c.toLowerCase())];
    const digit = layout.centres[i][1] === row && i < 10 ? [String((i + 1) % 10)] : [];
    return /** @type {[string, string[]]} */ ([key, [...new Set([...digit, ...others])].filter((c) => c !== key && !layout.keys.includes(c))]);
  }));
  result.set("$", ["€", "£"]).set("-", ["–", "_"]).set("+", ["=", "×"]);
  result.set(",", ["'", ";", ":", '"', "-"]);
  result.set(".", ["?", "!", "…", "'", "/"]);
  return result;
}
