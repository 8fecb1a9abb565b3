// @ts-check
/**
 * From taps and trails to words, with a packed model: layouts, tap decoding, glide decoding, personal words. The twin of
 * fedgram's Python modules `spatial`, `lexicon`, `keyboard`, `glide`, `own_words` and `personal`, which say why; same numbers, same answers.
 *
 *   const board = new Keyboard(model, loadLayout("en_us"));
 *   const word = board.typing(["she", "lives", "in", "New"]);
 *   word.tap(5.6, 0.7); …                                       // places in key widths
 *   word.candidates(3);                                         // [{word: "York", worth: -1.2, …}, …]
 */

import { Fgram, UNK } from "./fgram.js";

/** @typedef {[number, number]} Point in key widths from the upper left corner of the letters */
/** @typedef {{word: string, worth: number, isComplete: boolean, isLiteral: boolean}} Candidate */

const ROW_HEIGHT = 1.5;
const MAX_LETTERS = 32;
const MAX_TAPS = MAX_LETTERS + 8;
const ROOM = 1 << 14;
const BINS = 512;
const POINTS = 32;
const BAND = 5;
const SHORTLIST = 150;
const FIRST_WORD = 3;

/** @type {Record<string, [string, number][]>} */
const ROWS = {
  en_us: [["qwertyuiop", 0], ["asdfghjkl", 0.5], ["zxcvbnm", 1.5]],
  pt_br: [["qwertyuiop", 0], ["asdfghjklç", 0], ["zxcvbnm", 1.5]],
};

/** @param {string} text @returns {string} what one types for a text */
export const wordKey = (text) =>
  text.toLowerCase().replace(/ß/gu, "ss").normalize("NFD").replace(/[\p{M}'’-]/gu, "");

/** The letter keys of a keyboard. */
export class Layout {
  /** @param {string} name en_us or pt_br */
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

  /** @param {string} key @returns {Point[]} a perfect typist's taps */
  typed(key) {
    return Array.from(key, (letter) => this.places[/** @type {number} */ (this.rank.get(letter))]);
  }
}

/** @param {string} name @returns {Layout} */
export const loadLayout = (name) => new Layout(name);

/** Words by what is typed for them: a trie, children the most promising first. */
export class Lexicon {
  /** @param {Layout} layout @param {string[]} keys @param {number[]} words @param {number[]} logP */
  constructor(layout, keys, words, logP) {
    const canType = (/** @type {string} */ key) =>
      key.length > 0 && key.length <= MAX_LETTERS && Array.from(key).every((c) => layout.rank.has(c));
    const typed = keys.map((_, i) => i).filter((i) => canType(keys[i]));
    typed.sort((a, b) => (keys[a] < keys[b] ? -1 : keys[a] > keys[b] ? 1 : a - b));
    this.keys = typed.map((i) => keys[i]);
    this.words = Int32Array.from(typed, (i) => words[i]);
    this.logP = Float64Array.from(typed, (i) => logP[i]);
    this._build(layout);
  }

  /** @param {Layout} layout */
  _build(layout) {
    let nodes = 1;
    this.keys.forEach((key, w) => {
      const before = w > 0 ? this.keys[w - 1] : "";
      let shared = 0;
      while (shared < key.length && key[shared] === before[shared]) shared++;
      nodes += key.length - shared;
    });
    this.letter = new Int32Array(nodes).fill(-1);
    this.depth = new Int32Array(nodes);
    this.child = new Int32Array(nodes).fill(-1);
    this.sibling = new Int32Array(nodes).fill(-1);
    this.best = new Float64Array(nodes).fill(-Infinity);
    this.firstWord = new Int32Array(nodes + 1).fill(this.keys.length);
    this.firstWord[0] = 0;
    const path = new Int32Array(MAX_LETTERS + 1);
    let [made, depth] = [1, 0];
    this.keys.forEach((key, w) => {
      const spelled = Array.from(key, (c) => /** @type {number} */ (layout.rank.get(c)));
      let shared = 0;
      while (shared < Math.min(spelled.length, depth) && this.letter[path[shared + 1]] === spelled[shared]) shared++;
      for (let k = shared; k < spelled.length; k++, made++) {
        const parent = path[k];
        this.letter[made] = spelled[k];
        this.sibling[made] = this.child[parent];
        this.child[parent] = made;
        this.firstWord[made] = w;
        path[k + 1] = made;
        this.depth[made] = k + 1;
      }
      depth = spelled.length;
      for (let k = 0; k <= depth; k++) this.best[path[k]] = Math.max(this.best[path[k]], this.logP[w]);
    });
    for (let node = 0; node < nodes; node++) this._sortChildren(node);
  }

  /** @param {number} node */
  _sortChildren(node) {
    const children = [];
    for (let c = this.child[node]; c >= 0; c = this.sibling[c]) children.push(c);
    if (children.length < 2) return;
    children.sort((a, b) => this.best[b] - this.best[a]);
    this.child[node] = children[0];
    children.forEach((c, i) => (this.sibling[c] = i + 1 < children.length ? children[i + 1] : -1));
  }
}

export const TAP_OPTIONS = Object.freeze({
  sigma: 0.35, weight: 0.7, slip: -9, insertion: -7.5, deletion: -3.5, transposition: -5, completion: -1, unknown: -2.4,
  width: 14, hypotheses: 300,
});

/** @param {number} value @param {number} item @param {number[]} values @param {number[]} items @param {number} most */
function insert(value, item, values, items, most) {
  if (items.length >= most && value <= values[most - 1]) return;
  let [low, j] = [0, items.length];
  while (low < j) {
    const middle = (low + j) >>> 1;
    if (values[middle] < value) j = middle;
    else low = middle + 1;
  }
  values.splice(j, 0, value);
  items.splice(j, 0, item);
  if (items.length > most) {
    values.pop();
    items.pop();
  }
}

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
    const { letter, child, sibling } = this.lexicon;
    const { insertion, deletion, transposition, width } = this.options;
    this._round++;
    this._count = 0;
    for (let i = 0; i < beam.nodes.length; i++) {
      const score = beam.scores[i];
      this._keep(beam.nodes[i], score + insertion);
      const deletes = score + deletion > beam.scores[0] - width;
      for (let c = child[beam.nodes[i]]; c >= 0; c = sibling[c]) {
        this._keep(c, score + cost[letter[c]]);
        if (!deletes) continue;
        for (let d = child[c]; d >= 0; d = sibling[d]) this._keep(d, score + deletion + cost[letter[d]]);
      }
    }
    for (let i = 0; i < before.nodes.length; i++) {
      for (let c = child[before.nodes[i]]; c >= 0; c = sibling[c]) {
        const swapped = before.scores[i] + transposition + cost[letter[c]];
        for (let d = child[c]; d >= 0; d = sibling[d]) this._keep(d, swapped + last[letter[d]]);
      }
    }
    return this._prune();
  }

  /** @returns {Beam} the hypotheses within `width` of the best, at most about `hypotheses`, the best first */
  _prune() {
    const { weight, width, hypotheses } = this.options;
    const { best } = this.lexicon;
    const worth = (/** @type {number} */ i) => this._score[i] + weight * best[this._out[i]];
    let [top, first] = [-Infinity, 0];
    for (let i = 0; i < this._count; i++) {
      if (worth(i) > top) [top, first] = [worth(i), i];
    }
    const bins = new Int32Array(BINS + 1);
    const gap = (/** @type {number} */ i) => ((top - this._score[i] - weight * best[this._out[i]]) / width) * BINS;
    for (let i = 0; i < this._count; i++) bins[Math.floor(Math.min(gap(i), BINS))]++;
    let [limit, total] = [0, 0];
    while (limit < BINS && total + bins[limit] <= hypotheses) total += bins[limit++];
    const nodes = [this._out[first]];
    const scores = [this._score[first]];
    for (let i = 0; i < this._count; i++) {
      if (i !== first && gap(i) < limit) {
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
    /** @type {Point[]} */ this.taps = [];
    /** @type {Float64Array[]} */ this._costs = [];
    /** @type {Beam[]} */ this._beams = [{ nodes: [0], scores: [0] }];
  }

  /** @param {number} x @param {number} y a finger came down here @returns {boolean} whether there was room for a tap */
  tap(x, y) {
    const { layout, options } = this.keyboard;
    if (this.taps.length >= MAX_TAPS) return false;
    const cost = layout.squaredDistances([x, y]).map((d) => Math.max(-d / (2 * options.sigma ** 2), options.slip));
    const before = this._beams.length > 1 ? this._beams[this._beams.length - 2] : { nodes: [], scores: [] };
    const last = this._costs.length ? this._costs[this._costs.length - 1] : cost;
    this._beams.push(this.keyboard._advance(this._beams[this._beams.length - 1], before, cost, last));
    this.taps.push([x, y]);
    this._costs.push(cost);
    return true;
  }

  /** Take the last tap back. */
  backspace() {
    if (!this.taps.length) return;
    this.taps.pop();
    this._costs.pop();
    this._beams.pop();
  }

  /** @returns {string} the letters of the keys that were hit */
  get literal() {
    return this.taps.map((point) => this.keyboard.layout.nearest(point)).join("");
  }

  /** @param {number} [k] @param {boolean} [complete] words that the taps only begin may be among them @returns {Candidate[]} */
  candidates(k = 3, complete = true) {
    if (!this.taps.length) return [];
    const { model } = this.keyboard;
    const rows = this._bestWords(k).map(([id, worth]) => candidate(model.word(id), worth));
    if (complete) rows.push(...this._completions(k));
    const literal = this._literalCandidate();
    if (literal) rows.push(literal);
    if (!this.own) return bestCandidates(rows, k);
    const { whole, begun } = align(this._costs, this.own, this.keyboard.options);
    return mixedCandidates(rows, this.own, this.keyboard.options.weight, complete ? [whole, begun] : [whole], k);
  }

  /** @param {number} k @returns {[number, number][]} */
  _bestWords(k) {
    const { model, lexicon, options } = this.keyboard;
    const { nodes, scores } = this._beams[this._beams.length - 1];
    /** @type {Map<number, number>} */ const worth = new Map();
    const best = /** @type {number[]} */ ([]);
    const least = () => (best.length < k ? -Infinity : best[k - 1]);
    const offer = (/** @type {number} */ node, /** @type {number} */ score) => {
      if (score <= least()) return;
      for (let w = lexicon.firstWord[node]; w < lexicon.firstWord[node + 1]; w++) {
        const id = lexicon.words[w];
        const value = score + options.weight * model.step(this.state, id).logP;
        const known = worth.get(id);
        if (known !== undefined && known >= value) continue;
        if (known === undefined && value <= least()) continue;
        worth.set(id, value);
        best.length = 0;
        best.push(...[...worth.values()].sort((a, b) => b - a).slice(0, k));
      }
    };
    for (let i = 0; i < nodes.length; i++) {
      offer(nodes[i], scores[i]);
      for (let c = lexicon.child[nodes[i]]; c >= 0; c = lexicon.sibling[c]) offer(c, scores[i] + options.deletion);
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
    const hit = this._costs.reduce((total, cost) => total + Math.max(...cost), 0);
    const worth = hit + options.weight * (Number.isFinite(logP) ? logP : -8) + options.unknown * literal.length;
    return candidate(literal, worth, { isLiteral: true });
  }
}

/** @param {string} word @param {number} worth @param {{isComplete?: boolean, isLiteral?: boolean}} [kind] @returns {Candidate} */
const candidate = (word, worth, { isComplete = true, isLiteral = false } = {}) => ({ word, worth, isComplete, isLiteral });

/** @param {Candidate[]} rows @param {number} k @returns {Candidate[]} the k best, each word once */
function bestCandidates(rows, k) {
  /** @type {Map<string, Candidate>} */ const unique = new Map();
  for (const row of rows) {
    const known = unique.get(row.word);
    if (!known || known.worth < row.worth) unique.set(row.word, row);
  }
  const rank = (/** @type {Candidate} */ c) => -Math.round(c.worth * 1e9);
  const inOrder = (/** @type {Candidate} */ a, /** @type {Candidate} */ b) => rank(a) - rank(b) || (a.word < b.word ? -1 : 1);
  return [...unique.values()].sort(inOrder).slice(0, k);
}

/** @typedef {{typed: number[], words: string[], letters: Uint8Array[]}} Spelled learned words on a layout */
/** @typedef {{words: string[], spelled: Uint8Array[], logP: Float64Array, logRest: number}} OwnWords of the user, in one context */

/** @param {PersonalModel | undefined} personal @param {Layout} layout @param {string[]} context @returns {OwnWords | null} */
function ownWords(personal, layout, context) {
  if (!personal?.share) return null;
  const { words, keys, spelled } = personal.table;
  const mixed = personal.mixed(context);
  if (!spelled.has(layout.name)) {
    const canType = (/** @type {string} */ key) =>
      key.length > 0 && key.length <= MAX_LETTERS && Array.from(key).every((c) => layout.rank.has(c));
    const typed = words.map((_, i) => i).filter((i) => canType(keys[i]));
    const letters = typed.map((i) => Uint8Array.from(keys[i], (c) => /** @type {number} */ (layout.rank.get(c))));
    spelled.set(layout.name, { typed, words: typed.map((i) => words[i]), letters });
  }
  const own = /** @type {Spelled} */ (spelled.get(layout.name));
  const logP = Float64Array.from(own.typed, (i) => Math.log(Math.max(mixed[i], 1e-300)));
  return { words: own.words, spelled: own.letters, logP, logRest: Math.log1p(-personal.share) };
}

/**
 * @param {Float64Array[]} cost what each tap is worth for each letter @param {OwnWords} own @param {typeof TAP_OPTIONS} options
 * @returns {{whole: Float64Array, begun: Float64Array}} what taps are worth for words, typed wholly and in part
 */
function align(cost, { spelled }, { insertion, deletion, transposition, completion }) {
  const whole = new Float64Array(spelled.length).fill(-Infinity);
  const begun = new Float64Array(spelled.length).fill(-Infinity);
  const rows = [0, 1, 2].map(() => new Float64Array(MAX_LETTERS + 1));
  spelled.forEach((word, w) => {
    const n = word.length;
    rows.forEach((row) => row.fill(-Infinity));
    rows[0][0] = 0;
    for (let t = 1; t <= cost.length; t++) {
      const [now, last, before] = [rows[t % 3], rows[(t + 2) % 3], rows[(t + 1) % 3]];
      const tap = cost[t - 1];
      for (let j = 0; j <= n; j++) {
        let value = last[j] + insertion;
        if (j >= 1) value = Math.max(value, last[j - 1] + tap[word[j - 1]]);
        if (j >= 2) {
          value = Math.max(value, last[j - 2] + deletion + tap[word[j - 1]]);
          if (t >= 2) value = Math.max(value, before[j - 2] + transposition + tap[word[j - 2]] + cost[t - 2][word[j - 1]]);
        }
        now[j] = value;
      }
    }
    const end = rows[cost.length % 3];
    whole[w] = Math.max(end[n], end[n - 1] + deletion);
    for (let j = 1; j < n; j++) begun[w] = Math.max(begun[w], end[j] + completion * (n - j));
  });
  return { whole, begun };
}

/**
 * A packed model's candidates, less what personal words take, and those words.
 * @param {Candidate[]} rows @param {OwnWords} own @param {number} weight @param {Float64Array[]} worths typed wholly and in part
 * @param {number} k @returns {Candidate[]}
 */
function mixedCandidates(rows, own, weight, worths, k) {
  const result = rows.map((row) => ({ ...row, worth: row.worth + weight * own.logRest }));
  worths.forEach((values, part) => {
    /** @type {number[]} */ const best = [];
    /** @type {number[]} */ const bestWorth = [];
    values.forEach((value, i) => Number.isFinite(value) && insert(value + weight * own.logP[i], i, bestWorth, best, k + 1));
    best.forEach((i, n) => result.push(candidate(own.words[i], bestWorth[n], { isComplete: part === 0 })));
  });
  return bestCandidates(result, k);
}

export const GLIDE_OPTIONS = Object.freeze({ sharpness: 40, weight: 0.35, reach: 1.7 });

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
    if (trail.length < 2 || !trail.every(([x, y]) => Number.isFinite(x) && Number.isFinite(y))) return [];
    const { lexicon, layout, model } = this.keyboard;
    const { sharpness, weight, reach } = this.options;
    const letters = layout.letters.length;
    const length = pathLength(trail);
    const points = resample(trail, POINTS);
    const near = (/** @type {Point} */ end) => layout.places.flatMap((p, n) => (distance(p, end) <= reach ? [n] : []));
    /** @type {number[]} */ const short = [];
    /** @type {number[]} */ const shortWorth = [];
    const ends = near(trail[trail.length - 1]);
    for (const a of near(trail[0])) {
      for (const b of ends) {
        for (const w of this.byEnds[a * letters + b]) {
          if (!isAboutAsLong(this.length[w], length)) continue;
          const prior = weight * lexicon.logP[w];
          const least = short.length < SHORTLIST ? -Infinity : shortWorth[SHORTLIST - 1];
          const most = (prior - least) / sharpness;
          if (!(most > 0)) continue;
          this._makeTemplate(this.spelled[w], this.length[w]);
          insert(prior - sharpness * this._pointwise(points, most), w, shortWorth, short, SHORTLIST);
        }
      }
    }
    const state = model.state(context);
    /** @type {number[]} */ const best = [];
    /** @type {number[]} */ const worth = [];
    for (const w of short) {
      this._makeTemplate(this.spelled[w], this.length[w]);
      const id = lexicon.words[w];
      insert(weight * model.step(state, id).logP - sharpness * this._warped(points), id, worth, best, k);
    }
    const rows = best.map((id, i) => candidate(model.word(id), worth[i]));
    const own = ownWords(personal, layout, context);
    return own ? mixedCandidates(rows, own, weight, [this._trace(trail, points, length, own.spelled)], k) : rows;
  }

  /**
   * @param {Point[]} trail @param {Float64Array} points @param {number} length @param {Uint8Array[]} spelled
   * @returns {Float64Array} what a trail is worth for each of a few words
   */
  _trace(trail, points, length, spelled) {
    const { sharpness, reach } = this.options;
    const { places } = this.keyboard.layout;
    return Float64Array.from(spelled, (word) => {
      const [a, b] = [places[word[0]], places[word[word.length - 1]]];
      const lasting = this._templateLength(word);
      const isNear = distance(a, trail[0]) <= reach && distance(b, trail[trail.length - 1]) <= reach;
      if (!isNear || !isAboutAsLong(lasting, length)) return -Infinity;
      this._makeTemplate(word, lasting);
      return -sharpness * this._warped(points);
    });
  }

  /** @param {Uint8Array} word @returns {number} */
  _templateLength(word) {
    let total = 0;
    for (let i = 1; i < word.length; i++) total += this.apart[word[i - 1]][word[i]];
    return total;
  }

  /** @param {Uint8Array} word @param {number} length resample a word's line through its letters */
  _makeTemplate(word, length) {
    const out = this._template;
    const [xs, ys] = [this._x, this._y];
    const last = word.length - 1;
    const step = length / (POINTS - 1);
    let i = 1;
    let along = 0;
    let piece = last > 0 ? this.apart[word[0]][word[1]] : 0;
    out[0] = xs[word[0]];
    out[1] = ys[word[0]];
    for (let k = 1; k < POINTS; k++) {
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
    }
  }

  /** @param {Float64Array} points @param {number} most @returns {number} the mean squared distance, inexact beyond `most` */
  _pointwise(points, most) {
    const template = this._template;
    const limit = most * POINTS;
    let total = 0;
    for (let k = 0; k < 2 * POINTS; k += 2) {
      const dx = points[k] - template[k];
      const dy = points[k + 1] - template[k + 1];
      total += dx * dx + dy * dy;
      if (total > limit) break;
    }
    return total / POINTS;
  }

  /** @param {Float64Array} points @returns {number} the mean squared distance when points may wait for each other */
  _warped(points) {
    const template = this._template;
    this._rows.forEach((row) => row.fill(Infinity));
    this._rows[0][0] = 0;
    for (let i = 1; i <= POINTS; i++) {
      const now = this._rows[i & 1];
      const last = this._rows[(i - 1) & 1];
      now.fill(Infinity);
      for (let j = Math.max(1, i - BAND); j <= Math.min(POINTS, i + BAND); j++) {
        const dx = points[2 * i - 2] - template[2 * j - 2];
        const dy = points[2 * i - 1] - template[2 * j - 1];
        const squared = dx * dx + dy * dy;
        now[j] = Math.min(last[j - 1] + 2 * squared, last[j] + squared, now[j - 1] + squared);
      }
      if (i === 1) last[0] = Infinity;
    }
    return this._rows[POINTS & 1][POINTS] / (2 * POINTS);
  }
}

export const PERSONAL_OPTIONS = Object.freeze({ most: 0.25, patience: 200, fading: 0.9995, words: 2000, pairs: 8000 });
const BEGIN = "<s>";

/** The user's own words on top of a packed model; no word loses more than −ln(1 − most) nats. */
export class PersonalModel {
  /** @param {Fgram} base @param {Partial<typeof PERSONAL_OPTIONS>} [options] */
  constructor(base, options = {}) {
    this.base = base;
    this.options = { ...PERSONAL_OPTIONS, ...options };
    /** @type {{edition: number, words: string[], keys: string[], ids: number[], counts: number[], spelled: Map<string, Spelled>} | undefined} */
    this._table = undefined;
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

  /** @param {string[]} sentence that the user has sent */
  learn(sentence) {
    let before = BEGIN;
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
    const pairs = [...this._pairs].flatMap(([u, row]) => [...row].map(([x, count]) => ({ u, x, count })));
    if (pairs.length > this.options.pairs) {
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

  /** @param {string} word remove it and all its pairs @returns {boolean} whether it was there */
  forget(word) {
    this.edition++;
    this._pairs.delete(word);
    for (const row of this._pairs.values()) row.delete(word);
    return this._words.delete(word);
  }

  /** @returns {number} the weight of what was learned */
  get share() {
    const n = sum(this._words) / this._unit;
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

  /** What was learned, as lists; made anew after a change. */
  get table() {
    if (this._table?.edition !== this.edition) {
      const words = [...this._words.keys()];
      this._table = {
        edition: this.edition, words, keys: words.map(wordKey), ids: words.map((word) => this.base.wordId(word)),
        counts: [...this._words.values()], spelled: new Map(),
      };
    }
    return this._table;
  }

  /** @param {string[]} context @returns {Float64Array} p(word | context) of both models, for every word of `table` */
  mixed(context) {
    const { words, ids, counts } = this.table;
    const [state, share, total] = [this.base.state(context), this.share, sum(this._words)];
    const row = this._pairs.get(context.length ? context[context.length - 1] : BEGIN) ?? new Map();
    const [pairs, kinds] = [sum(row), row.size * this._unit];
    return Float64Array.from(words, (word, i) => {
      const alone = counts[i] / total;
      const learned = row.size ? ((row.get(word) ?? 0) + kinds * alone) / (pairs + kinds) : alone;
      const base = ids[i] === UNK ? 0 : Math.exp(this.base.step(state, ids[i]).logP);
      return (1 - share) * base + share * learned;
    });
  }

  /** @param {string[]} context @param {number} [k] @param {string} [prefix] @returns {{word: string, logP: number}[]} */
  predict(context, k = 3, prefix = "") {
    const [state, share, key] = [this.base.state(context), this.share, wordKey(prefix)];
    /** @type {Map<string, number>} */ const mixed = new Map();
    for (const p of this.base.predictFrom(state, k, prefix)) mixed.set(p.word, (1 - share) * Math.exp(p.logP));
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
}

/** @param {Map<string, number>} counts @returns {number} */
const sum = (counts) => [...counts.values()].reduce((a, b) => a + b, 0);
