// @ts-check
/** Words that may have been meant, the packed model's and the user's own. The twin of `own_words` and parts of `keyboard`. */

import { Layout } from "./layout.js";
import { MAX_LETTERS } from "./lexicon.js";

/** @typedef {{word: string, worth: number, isComplete: boolean, isLiteral: boolean}} Candidate */
/** @typedef {import("./personal.js").PersonalModel} PersonalModel */

/** @param {number} value @param {number} item @param {number[]} values @param {number[]} items @param {number} most */
export function insert(value, item, values, items, most) {
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

/** @param {string} word @param {number} worth @param {{isComplete?: boolean, isLiteral?: boolean}} [kind] @returns {Candidate} */
export const candidate = (word, worth, { isComplete = true, isLiteral = false } = {}) => ({ word, worth, isComplete, isLiteral });

/** @param {Candidate[]} rows @param {number} k @returns {Candidate[]} the k best, each word once */
export function bestCandidates(rows, k) {
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
export function ownWords(personal, layout, context) {
  if (!personal?.share) return null;
  const { words, keys, spelled } = personal.table;
  const mixed = personal.mixed(context);
  if (!spelled.has(layout.name)) {
    const all = keys.map((key) => layout.spell(key));
    const typed = words.map((_, i) => i).filter((i) => all[i].length > 0 && all[i].length <= MAX_LETTERS);
    spelled.set(layout.name, { typed, words: typed.map((i) => words[i]), letters: typed.map((i) => all[i]) });
  }
  const own = /** @type {Spelled} */ (spelled.get(layout.name));
  const logP = Float64Array.from(own.typed, (i) => Math.log(Math.max(mixed[i], 1e-300)));
  return { words: own.words, spelled: own.letters, logP, logRest: Math.log1p(-personal.share) };
}

/**
 * @param {Float64Array[]} cost what each tap is worth for each letter @param {OwnWords} own @param {typeof TAP_OPTIONS} options
 * @returns {{whole: Float64Array, begun: Float64Array}} what taps are worth for words, typed wholly and in part
 */
export function align(cost, { spelled }, { insertion, deletion, transposition, completion }) {
  const whole = new Float64Array(spelled.length).fill(-Infinity);
  const begun = new Float64Array(spelled.length).fill(-Infinity);
  const rows = [0, 1, 2].map(() => new Float64Array(MAX_LETTERS + 1));
  spelled.forEach((word, w) => {
    const n = word.length;
    for (let j = 0; j <= n; j++) rows[0][j] = rows[1][j] = rows[2][j] = -Infinity;
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
export function mixedCandidates(rows, own, weight, worths, k) {
  const result = rows.map((row) => ({ ...row, worth: row.worth + weight * own.logRest }));
  worths.forEach((values, part) => {
    /** @type {number[]} */ const best = [];
    /** @type {number[]} */ const bestWorth = [];
    values.forEach((value, i) => Number.isFinite(value) && insert(value + weight * own.logP[i], i, bestWorth, best, k + 1));
    best.forEach((i, n) => result.push(candidate(own.words[i], bestWorth[n], { isComplete: part === 0 })));
  });
  return bestCandidates(result, k);
}

/**
 * The k best of packed models' readings of some taps, and of the user's own words.
 * @param {Candidate[]} rows @param {OwnWords | null} own @param {Float64Array[]} costs @param {typeof TAP_OPTIONS} options
 * @param {number} k @param {boolean} complete @returns {Candidate[]}
 */
export function typedCandidates(rows, own, costs, options, k, complete) {
  if (!own || !costs.length) return bestCandidates(rows, k);
  const { whole, begun } = align(costs, own, options);
  return mixedCandidates(rows, own, options.weight, complete ? [whole, begun] : [whole], k);
}
