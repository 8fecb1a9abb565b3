// @ts-check
/** A simulated thumb that types a sentence of the model's own and misses. */

import { find } from "./dom.js";
import { wordKey } from "./layout.js";

/** @typedef {import("./phone.js").Phone} Phone */

const WORDS = 8;
const PAUSE_MS = 30;

/** @returns {number} a Gaussian random number */
export const gaussian = () => Math.sqrt(-2 * Math.log(1 - Math.random())) * Math.cos(2 * Math.PI * Math.random());

/** @param {Phone} phone @returns {string[]} words that the models expect behind each other, some of each language */
export function sampleSentence({ session }) {
  const { languages, layout } = session.board;
  const canType = (/** @type {string} */ word) => /^[\p{L}\p{M}'’]+$/u.test(word) && Array.from(wordKey(word)).every((c) => layout.rank.has(c));
  /** @type {string[]} */ const words = [];
  while (words.length < WORDS) {
    const model = languages.models[Math.floor((words.length * languages.models.length) / WORDS)];
    const likely = model.predict(words, 12).map(({ word }) => word).filter((word) => canType(word) && word !== words[words.length - 1]);
    if (!likely.length) break;
    words.push(likely[Math.floor(Math.random() ** 2 * likely.length)]);
  }
  return words;
}

/**
 * @param {Phone[]} phones @param {number} sigma in key widths @param {(action: import("./phone.js").Action) => void} everywhere
 * @returns {Promise<{meant: string[], hit: string[], read: string[]}>}
 */
export async function simulate(phones, sigma, everywhere) {
  const [{ session }] = phones;
  const { layout } = session.board;
  const meant = sampleSentence(phones[0]);
  /** @type {string[]} */ const hit = [];
  /** @type {string[]} */ const read = [];
  everywhere((each) => each.clear());
  for (const word of meant) {
    const from = session.before.length;
    for (const [x, y] of layout.typed(wordKey(word))) {
      const [dx, dy] = [sigma * gaussian(), sigma * gaussian()];
      everywhere((each) => each.tap(x + dx, y + dy));
      await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
    }
    hit.push(session.literal);
    everywhere((each) => each.type(" "));
    read.push(session.before.slice(from).trim());
    showSimulated(meant, hit, read);
  }
  return { meant, hit, read };
}

/** @param {string[]} meant @param {string[]} hit @param {string[]} read */
export function showSimulated(meant, hit, read) {
  const right = (/** @type {string[]} */ words) => words.filter((word, i) => wordKey(word) === wordKey(meant[i])).length;
  /** @type {HTMLElement} */ (find("#simulated")).hidden = false;
  find("#simulated .meant").textContent = meant.join(" ");
  find("#simulated .hit").textContent = hit.join(" ").toLowerCase();
  find("#simulated .read").textContent = read.join(" ");
  find("#simulated-result").textContent = hit.length < meant.length ? "" : `${right(read)} of ${meant.length} words were read as they were meant; the keys alone spell ${right(hit)}.`;
}
