// @ts-check
/**
 * From taps and trails to words, with a packed model: layouts, tap decoding, glide decoding, personal words. The twin of
 * fedgram's Python modules `layout`, `lexicon`, `decoder`, `glide`, `own_words`, `personal`, `languages` and `multilingual`, which say why; same numbers, same answers.
 *
 *   const board = new Keyboard(model, loadLayout("en_us"));
 *   const word = board.typing(["she", "lives", "in", "New"]);
 *   word.tap(5.6, 0.7); …                                       // places in key widths
 *   word.candidates(3);                                         // [{word: "York", worth: -1.2, …}, …]
 */

export { Glider, GLIDE_OPTIONS, resample } from "./glide.js";
export { LANGUAGE_OPTIONS, Languages } from "./languages.js";
export { Layout, loadLayout, wordKey } from "./layout.js";
export { Lexicon } from "./lexicon.js";
export { MultilingualKeyboard } from "./multilingual.js";
export { PERSONAL_OPTIONS, PersonalModel } from "./personal.js";
export { Keyboard, TAP_OPTIONS, Typing } from "./taps.js";

/** @typedef {import("./layout.js").Point} Point */
/** @typedef {import("./candidates.js").Candidate} Candidate */
