// @ts-check
/** From a trail to a word. The twin of the Python module `glide`, which says why; same numbers, same answers. */

import { candidate, insert, mixedCandidates, ownWords } from "./candidates.js";
import { Keyboard } from "./taps.js";

/** @typedef {import("./layout.js").Point} Point */
/** @typedef {import("./candidates.js").Candidate} Candidate */
/** @typedef {import("./candidates.js").OwnWords} OwnWords */
/** @typedef {import("./fgram_lists.js").State} State */
/** @typedef {import("./personal.js").PersonalModel} PersonalModel */

const POINTS = 32;
const BAND = 5;
const SHORTLIST = 150;

export const GLIDE_OPTIONS = Object.freeze({ sharpness: 80, reach: 2 });

/** @param {Point} a @param {Point} b @returns {number} */
const distance = (a, b) => Math.sqrt((a[0] - b[0]) ** 2 + (a[1] - b[1]) ** 2);

/** @param {Point[]} points @returns {number} */
const pathLength = (points) => points.reduce((total, p, i) => (i ? total + distance(p, points[i - 1]) : 0), 0);

/** @param {Point[]} points @param {number} count @returns {Float64Array} x, y, x, y, … at equal distances along a line */
export function resample(points, count) {
  const out = new Float64Array(2 * count);
  const step = pathLength(points) / (count - 1);
  let [i, along] = [1, 0];
  [out[0], out[1]] = points[0];
  for (let k = 1; k < count; k++) {
    const wanted = k * step;
    let piece = 0;
    for (; i < points.length; along += piece, i++) {
      piece = distance(points[i], points[i - 1]);
      if (along + piece >= wanted && piece > 0) break;
    }
    const [a, b, share] = i < points.length
      ? [points[i - 1], points[i], (wanted - along) / piece]
      : [points[points.length - 1], points[points.length - 1], 0];
    out[2 * k] = a[0] + share * (b[0] - a[0]);
    out[2 * k + 1] = a[1] + share * (b[1] - a[1]);
  }
  [out[2 * count - 2], out[2 * count - 1]] = points[points.length - 1];
  return out;
}

/** @typedef {{first: Point, last: Point, points: Float64Array, length: number}} Trail */

/** @param {Point[]} trail @returns {Trail | null} ready to be compared; null if it is no trail */
export function draw(trail) {
  if (trail.length < 2 || !trail.every(([x, y]) => Number.isFinite(x) && Number.isFinite(y))) return null;
  return { first: trail[0], last: trail[trail.length - 1], points: resample(trail, POINTS), length: pathLength(trail) };
}

/** @param {number} length of a word's template @param {number} trail of a trail @returns {boolean} */
const isAboutAsLong = (length, trail) => 0.6 * length - 1 <= trail && trail <= 1.5 * length + 2;

/** A keyboard's lexicon, ready for trails. */
export class Glider {
  /** @param {Keyboard} keyboard @param {Partial<typeof GLIDE_OPTIONS>} [options] */
  constructor(keyboard, options = {}) {
    this.keyboard = keyboard;
    this.options = { ...GLIDE_OPTIONS, ...options };
    const { lexicon, layout } = keyboard;
    const letters = layout.letters.length;
    this.spelled = lexicon.keys.map((key) => Uint8Array.from(key, (c) => /** @type {number} */ (layout.rank.get(c))));
    this.apart = layout.places.map((a) => Float64Array.from(layout.places, (b) => distance(a, b)));
    this.length = Float64Array.from(this.spelled, (word) => this._templateLength(word));
    /** @type {number[][]} */ this.byEnds = Array.from({ length: letters * letters }, () => []);
    this.spelled.forEach((word, w) => this.byEnds[word[0] * letters + word[word.length - 1]].push(w));
    this.byEnds.forEach((words) => words.sort((a, b) => lexicon.logP[b] - lexicon.logP[a])); // the most probable first
    this._x = Float64Array.from(layout.places, (p) => p[0]);
    this._y = Float64Array.from(layout.places, (p) => p[1]);
    this._template = new Float64Array(2 * POINTS);
    this._rows = [new Float64Array(POINTS + 1), new Float64Array(POINTS + 1)];
  }

  /**
   * @param {Point[]} trail @param {string[]} [context] @param {number} [k] @param {PersonalModel} [personal]
   * @returns {Candidate[]}
   */
  decode(trail, context = [], k = 3, personal = undefined) {
    const drawn = draw(trail);
    if (!drawn) return [];
    const { layout, model } = this.keyboard;
    const rows = this.readings(drawn, model.state(context), k);
    const own = ownWords(personal, layout, context);
    return own ? this.withOwnWords(drawn, rows, own, k) : rows;
  }

  /** @param {Trail} trail @param {Candidate[]} rows of packed models @param {OwnWords} own @param {number} k @returns {Candidate[]} */
  withOwnWords(trail, rows, own, k) {
    return mixedCandidates(rows, own, 1, [this._trace(trail, own.spelled)], k);
  }

  /** @param {Trail} trail @param {State} state @param {number} k @returns {Candidate[]} the model's own words, the best first */
  readings(trail, state, k) {
    const { lexicon, model } = this.keyboard;
    const { sharpness } = this.options;
    const open = model.openLists(state);
    /** @type {number[]} */ const best = [];
    /** @type {number[]} */ const worth = [];
    for (const w of this._shortlist(trail)) {
      const id = lexicon.words[w];
      const likely = model.logProb(open, id);
      const most = best.length < k ? Infinity : (likely - worth[k - 1]) / sharpness;
      if (!(most > 0) || likely === -Infinity) continue;
      this._makeTemplate(this.spelled[w], this.length[w], trail.points, Infinity);
      const away = this._warped(trail.points, most);
      if (away < Infinity) insert(likely - sharpness * away, id, worth, best, k);
    }
    return best.map((id, i) => candidate(model.word(id), worth[i]));
  }

  /** @param {Trail} trail @returns {number[]} the words that are nearest point by point, weighed by their probability */
  _shortlist({ first, last, points, length }) {
    const { lexicon, layout } = this.keyboard;
    const { sharpness, reach } = this.options;
    const letters = layout.letters.length;
    const near = (/** @type {Point} */ end) => layout.places.flatMap((p, n) => (distance(p, end) <= reach ? [n] : []));
    /** @type {number[]} */ const short = [];
    /** @type {number[]} */ const shortWorth = [];
    const ends = near(last);
    for (const a of near(first)) {
      for (const b of ends) {
        for (const w of this.byEnds[a * letters + b]) {
          const prior = lexicon.logP[w];
          const least = short.length < SHORTLIST ? -Infinity : shortWorth[SHORTLIST - 1];
          const most = (prior - least) / sharpness;
          if (!(most > 0)) break;
          if (!isAboutAsLong(this.length[w], length)) continue;
          const away = this._makeTemplate(this.spelled[w], this.length[w], points, most);
          insert(prior - sharpness * away, w, shortWorth, short, SHORTLIST);
        }
      }
    }
    return short;
  }

  /** @param {Trail} trail @param {Uint8Array[]} spelled @returns {Float64Array} what a trail is worth for each of a few words */
  _trace({ first, last, points, length }, spelled) {
    const { sharpness, reach } = this.options;
    const { places } = this.keyboard.layout;
    return Float64Array.from(spelled, (word) => {
      const [a, b] = [places[word[0]], places[word[word.length - 1]]];
      const lasting = this._templateLength(word);
      const isNear = distance(a, first) <= reach && distance(b, last) <= reach;
      if (!isNear || !isAboutAsLong(lasting, length)) return -Infinity;
      this._makeTemplate(word, lasting, points, Infinity);
      return -sharpness * this._warped(points, Infinity);
    });
  }

  /** @param {Uint8Array} word @returns {number} */
  _templateLength(word) {
    let total = 0;
    for (let i = 1; i < word.length; i++) total += this.apart[word[i - 1]][word[i]];
    return total;
  }

  /**
   * Resample a word's line through its letters; where it is more than `most` away from a trail, the rest is left out.
   * @param {Uint8Array} word @param {number} length @param {Float64Array} points @param {number} most
   * @returns {number} the mean squared distance from the trail, point by point
   */
  _makeTemplate(word, length, points, most) {
    const out = this._template;
    const [xs, ys] = [this._x, this._y];
    const last = word.length - 1;
    const step = length / (POINTS - 1);
    let i = 1;
    let along = 0;
    let piece = last > 0 ? this.apart[word[0]][word[1]] : 0;
    out[0] = xs[word[0]];
    out[1] = ys[word[0]];
    const limit = most * POINTS;
    let total = (points[0] - out[0]) ** 2 + (points[1] - out[1]) ** 2;
    for (let k = 1; k < POINTS && total <= limit; k++) {
      const wanted = k * step;
      while (i <= last && !(along + piece >= wanted && piece > 0)) {
        along += piece;
        i++;
        if (i <= last) piece = this.apart[word[i - 1]][word[i]];
      }
      const a = word[i <= last ? i - 1 : last];
      const b = word[i <= last ? i : last];
      const share = i <= last ? (wanted - along) / piece : 0;
      out[2 * k] = xs[a] + share * (xs[b] - xs[a]);
      out[2 * k + 1] = ys[a] + share * (ys[b] - ys[a]);
      total += (points[2 * k] - out[2 * k]) ** 2 + (points[2 * k + 1] - out[2 * k + 1]) ** 2;
    }
    return total / POINTS;
  }

  /** @param {Float64Array} points @param {number} most @returns {number} the mean squared distance when points may wait for each other; infinite beyond `most` */
  _warped(points, most) {
    const template = this._template;
    this._rows.forEach((row) => row.fill(Infinity));
    this._rows[0][0] = 0;
    for (let i = 1; i <= POINTS; i++) {
      const now = this._rows[i & 1];
      const last = this._rows[(i - 1) & 1];
      now.fill(Infinity);
      let least = Infinity;
      for (let j = Math.max(1, i - BAND); j <= Math.min(POINTS, i + BAND); j++) {
        const dx = points[2 * i - 2] - template[2 * j - 2];
        const dy = points[2 * i - 1] - template[2 * j - 1];
        const squared = dx * dx + dy * dy;
        now[j] = Math.min(last[j - 1] + 2 * squared, last[j] + squared, now[j - 1] + squared);
        least = Math.min(least, now[j]);
      }
      if (least > most * 2 * POINTS) return Infinity;
      if (i === 1) last[0] = Infinity;
    }
    return this._rows[POINTS & 1][POINTS] / (2 * POINTS);
  }
}
