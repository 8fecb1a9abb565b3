// @ts-check
/** Typed text as words: what the models see of it, and what is learned. */

const MEMORY = 64; // words; older ones decide nothing
const SCANNED = 1200; // characters from the end of a text
const ENDS = /[.!?…]+(?=\s|$)|\n/gu;
const WORD = /[\p{L}\p{M}\p{N}]+(?:['’-][\p{L}\p{M}\p{N}]+)*/gu;
const LAST_WORD = /[\p{L}\p{M}\p{N}]+(?:['’-][\p{L}\p{M}\p{N}]*)*$/u;

/** @param {string} text @returns {string[]} its words */
export const wordsOf = (text) => text.match(WORD) ?? [];

/** @param {string} text @returns {string} the word that it ends with, or nothing */
export const lastWordOf = (text) => text.match(LAST_WORD)?.[0] ?? "";

/** @param {string} text @returns {string[]} its last words, with `</s>` behind each sentence that is finished */
export function contextOf(text) {
  const recent = text.slice(-SCANNED);
  const from = recent.length < text.length ? recent.indexOf(" ") : 0; // no half words
  const sentences = recent.slice(from).replace(ENDS, "\n").split("\n").map(wordsOf);
  const last = /** @type {string[]} */ (sentences.pop());
  const finished = sentences.filter((sentence) => sentence.length).flatMap((sentence) => [...sentence, "</s>"]);
  return [...finished, ...last].slice(-MEMORY);
}

/** @param {string} text @returns {boolean} whether the next word begins a sentence */
export const isSentenceStart = (text) => /(^|[.!?…]["')”’]*\s+|\n)\s*$/u.test(text.slice(-40));
