// @ts-check
/** Where the keys are. The twin of the Python module `layout`, which says why. */

/** @typedef {[number, number]} Point in key widths from the upper left corner of the letters */

const ROW_HEIGHT = 1.5;
const SPELLED = 8192; // words whose letters are kept

/** @type {Record<string, [string, number][]>} */
const ROWS = {
  en_us: [["qwertyuiop", 0], ["asdfghjkl", 0.5], ["zxcvbnm", 1.5]],
  pt_br: [["qwertyuiop", 0], ["asdfghjklç", 0], ["zxcvbnm", 1.5]],
  cs_cz: [["qwertzuiop", 0], ["asdfghjkl", 0.5], ["yxcvbnm", 1.5]],
  da_dk: [["qwertyuiopå", 0], ["asdfghjklæø", 0], ["zxcvbnm", 2]],
  de_de: [["qwertzuiopü", 0], ["asdfghjklöä", 0], ["yxcvbnm", 2]],
  el_gr: [["ςερτυθιοπ", 0.5], ["ασδφγηξκλ", 0.5], ["ζχψωβνμ", 1.5]],
  es_es: [["qwertyuiop", 0], ["asdfghjklñ", 0], ["zxcvbnm", 1.5]],
  fr_fr: [["azertyuiop", 0], ["qsdfghjklm", 0], ["wxcvbn", 2]],
  it_it: [["qwertyuiop", 0], ["asdfghjkl", 0.5], ["zxcvbnm", 1.5]],
  nb_no: [["qwertyuiopå", 0], ["asdfghjkløæ", 0], ["zxcvbnm", 2]],
  nl_nl: [["qwertyuiop", 0], ["asdfghjkl", 0.5], ["zxcvbnm", 1.5]],
  pl_pl: [["qwertyuiop", 0], ["asdfghjkl", 0.5], ["zxcvbnm", 1.5]],
  ru_ru: [["йцукенгшщзх", 0], ["фывапролджэ", 0], ["ячсмитьбю", 1]],
  sv_se: [["qwertyuiopå", 0], ["asdfghjklöä", 0], ["zxcvbnm", 2]],
  tr_tr: [["qwertyuıopğü", 0], ["asdfghjklşi", 0.5], ["zxcvbnmöç", 1.5]],
  uk_ua: [["йцукенгшщзхї", 0], ["фівапролджє", 0.5], ["ґячсмитьбю", 1]],
};

/** @param {string} name @returns {string} what people call a layout, such as Português (Brasil) */
function titleOf(name) {
  const tag = name.replace("_", "-");
  const title = new Intl.DisplayNames([tag], { type: "language", languageDisplay: "standard" }).of(tag) ?? name;
  return title[0].toUpperCase() + title.slice(1);
}

/** The layouts by their names, and what people call them. @type {Record<string, string>} */
export const LAYOUTS = Object.fromEntries(Object.keys(ROWS).map((name) => [name, titleOf(name)]));

/** @param {string} text @returns {string} what one types for a text */
export const wordKey = (text) =>
  text.toLowerCase().replace(/ß/gu, "ss").normalize("NFD").replace(/[\p{M}'’-]/gu, "");

/** The letter keys of a keyboard. */
export class Layout {
  /** @param {string} name such as en_us */
  constructor(name) {
    if (!ROWS[name]) throw new RangeError(`there is no layout ${name}`);
    this.name = name;
    /** @type {string[]} */ this.keys = [];
    /** @type {Point[]} */ this.centres = [];
    ROWS[name].forEach(([letters, indent], row) => {
      Array.from(letters).forEach((key, i) => {
        this.keys.push(key);
        this.centres.push([indent + i + 0.5, (row + 0.5) * ROW_HEIGHT]);
      });
    });
    this.letters = [...new Set(this.keys.map(wordKey))];
    /** @type {Map<string, number>} */ this.rank = new Map(this.letters.map((letter, n) => [letter, n]));
    /** @type {Map<string, Uint8Array>} */ this._spelled = new Map();
    this.owner = this.keys.map((key) => /** @type {number} */ (this.rank.get(wordKey(key))));
    this.width = Math.max(...this.centres.map((c) => c[0])) + 0.5;
    this.height = Math.max(...this.centres.map((c) => c[1])) + ROW_HEIGHT / 2;
    /** @type {Point[]} the first key of each letter */
    this.places = this.letters.map((_, n) => this.centres[this.owner.indexOf(n)]);
  }

  /** @param {Point} point @returns {string} the key that was hit */
  nearest([x, y]) {
    let best = 0;
    const squared = this.centres.map(([a, b]) => (a - x) ** 2 + (b - y) ** 2);
    squared.forEach((d, i) => (best = d < squared[best] ? i : best));
    return this.keys[best];
  }

  /** @param {Point} point @returns {Float64Array} for each letter the squared distance to its nearest key */
  squaredDistances([x, y]) {
    const result = new Float64Array(this.letters.length).fill(Infinity);
    this.centres.forEach(([a, b], i) => {
      result[this.owner[i]] = Math.min(result[this.owner[i]], (a - x) ** 2 + (b - y) ** 2);
    });
    return result;
  }

  /** @param {string} key @returns {Uint8Array} its letters as ranks; none if the layout cannot type it */
  spell(key) {
    let found = this._spelled.get(key);
    if (!found) {
      const ranks = Array.from(key, (letter) => this.rank.get(letter) ?? -1);
      found = Uint8Array.from(ranks.includes(-1) ? [] : ranks);
      if (this._spelled.size > SPELLED) this._spelled.clear();
      this._spelled.set(key, found);
    }
    return found;
  }

  /** @param {string} key @returns {Point[]} a perfect typist's taps */
  typed(key) {
    return Array.from(key, (letter) => this.places[/** @type {number} */ (this.rank.get(letter))]);
  }
}

/** @param {string} name @returns {Layout} */
export const loadLayout = (name) => new Layout(name);
