// Types with the keyboard of the page, without the page: node check_session.mjs MODEL
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { Fgram } from "../../src/fedgram/keyboard/web/static/fgram.js";
import { SHIFT, Session } from "../../src/fedgram/keyboard/web/static/session.js";
import { contextOf, isSentenceStart } from "../../src/fedgram/keyboard/web/static/text.js";
import { Languages, MultilingualKeyboard, loadLayout, wordKey } from "../../src/fedgram/keyboard/web/static/typing.js";

const bytes = readFileSync(process.argv[2]);
const model = Fgram.open(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength));
const layout = loadLayout("en_us");
const board = new MultilingualKeyboard(new Languages([model]), layout);
const begin = () => new Session(board);
let seed = 7;
const random = () => (seed = (Math.imul(seed, 1103515245) + 12345) & 0x7fffffff) / 0x80000000;
const gaussian = () => Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());
const type = (session, text) => Array.from(text).forEach((character) => session.type(character));
const erase = (session, times) => Array.from({ length: times }, () => session.backspace());
const words = (session) => session.suggestions().map(({ word }) => word);
const kinds = (session) => session.suggestions().map(({ kind }) => kind);

// What the models see of a text.
assert.deepEqual(contextOf("Hi there! It's 3.5 now,\nsee you-all  "), ["Hi", "there", "</s>", "It's", "3", "5", "now", "</s>", "see", "you-all"]);
assert.deepEqual([contextOf(""), contextOf("Hi."), contextOf("a ".repeat(999)).length], [[], ["Hi", "</s>"], 64]);
assert.deepEqual(["", "Hi. ", "Hi.", "a\n", "a, "].map(isSentenceStart), [true, true, false, true, false]);

// A sentence of the model's own, by its best predictions, tapped with noise.
const sentence = [];
while (sentence.length < 6) {
  const next = model.predict(sentence, 5).map((p) => p.word).find((word) => /^[a-z']+$/iu.test(word) && !sentence.includes(word));
  if (!next) break;
  sentence.push(next);
}
assert.ok(sentence.length >= 3);
let session = begin();
assert.equal(session.text, "");
assert.equal(session.suggestions().length, 3);
for (const word of sentence) {
  for (const [x, y] of layout.typed(wordKey(word))) session.tap(x + 0.3 * gaussian(), y + 0.3 * gaussian());
  session.type(" ");
}
const typed = session.text.trim().split(" ");
assert.equal(typed.length, sentence.length);
const right = typed.filter((word, i) => wordKey(word) === wordKey(sentence[i])).length;
assert.ok(right >= sentence.length - 1, `${session.text} for ${sentence.join(" ")}`);

// A correction: what was typed is offered, a space corrects it, a backspace restores it, and it is then a word.
session = begin();
type(session, "we think thr");
assert.equal(session.text, "We think thr");
assert.deepEqual([words(session)[0], kinds(session)[0], kinds(session)[1]], ["thr", "literal", "best"]);
const corrected = words(session)[1];
assert.notEqual(corrected, "thr");
session.type(" ");
assert.equal(session.text, `We think ${corrected} `);
assert.deepEqual(session.personal.learned(), []);
session.backspace();
assert.equal(session.text, "We think thr ");
assert.deepEqual(session.personal.unknownWords(), ["thr"]);
type(session, "we think thr ");
assert.ok(session.text.endsWith("think thr "), session.text);
session.backspace();
assert.ok(session.text.endsWith("think thr"), "there was nothing to undo");

// A correction before a mark; other keys end the chance to undo it.
session.clear();
type(session, "weathrr,");
assert.equal(session.text, "Weather,");
session.backspace();
assert.equal(session.text, "Weathrr,");
session.clear();
type(session, "goood i");
erase(session, 1);
assert.equal(session.text, "Good ");
erase(session, 1);
assert.equal(session.text, "Good");

// The literal of an unknown word: kept, learned, and offered after its first letters.
session = begin();
type(session, "my Zulexy");
assert.deepEqual(session.suggestions()[0], { word: "Zulexy", kind: "literal" });
session.choose("Zulexy", "literal");
assert.equal(session.text, "My Zulexy ");
assert.deepEqual(session.personal.unknownWords(), ["Zulexy"]);
type(session, "and zule");
assert.ok(words(session).includes("Zulexy"), words(session).join());
type(session, "xy ");
assert.ok(session.text.endsWith("Zulexy "), session.text);
for (let i = 0; i < 30; i++) type(session, "call Zulexy. ");
type(session, "call ");
assert.ok(words(session).includes("Zulexy"), words(session).join());

// Common words are learned, but they are not the user's own.
assert.ok(session.personal.learned().some(([word]) => word === "call"));
assert.deepEqual(session.personal.unknownWords(), ["Zulexy"]);

// A sentence is learned once, however often its end is typed; capitals at its beginning are not part of words.
session = begin();
type(session, "good weather.");
assert.deepEqual(session.personal.learned().map(([word]) => word.toLowerCase()).sort(), ["good", "weather"]);
session.backspace();
session.type("!");
assert.ok(session.personal.learned().every(([, count]) => count < 1.01));
type(session, " the weather is good\n");
assert.equal(session.personal.learned().find(([word]) => word === "weather")?.[1].toFixed(1), "2.0");

// Shift, caps lock, capitals at the beginning of sentences.
session = begin();
assert.equal(session.shift, SHIFT.once);
type(session, "good. ");
assert.equal(session.shift, SHIFT.once);
session.pressShift(0);
type(session, "good ");
session.pressShift(10_000);
type(session, "good ");
session.pressShift(20_000); // soon behind, but letters are between
type(session, "good ");
session.pressShift(20_050);
session.pressShift(20_100);
assert.equal(session.shift, SHIFT.locked);
type(session, "good ");
session.pressShift(30_000);
type(session, "good");
assert.equal(session.text, "Good. good Good Good GOOD good");

// Digits, apostrophes, accents and marks are what they are.
session = begin();
type(session, "it's 25, caf\u00e9 h2o (good) 3");
assert.equal(session.text, "It's 25, caf\u00e9 h2o (good) 3");
session.type("\n");
assert.equal(session.text.at(-1), "\n");

// Two spaces end a sentence; the space of a suggestion gives way to a mark.
session = begin();
type(session, "good  ");
assert.equal(session.text, "Good. ");
session.choose("Well");
type(session, ",");
assert.equal(session.text, "Good. Well, ");
type(session, "good");
assert.equal(session.text, "Good. Well, good");

// Backspace goes through letters, spaces and words, which can be mended.
session = begin();
type(session, "the good weathet");
erase(session, 1);
type(session, "r ");
erase(session, 10);
assert.equal(session.text, "The goo");
type(session, "d");
assert.equal(session.text, "The good");
assert.equal(session.best, "good");
erase(session, 20);
assert.equal(session.text, "");
assert.deepEqual(session.context, []);

// A trail gives a word; the strip then offers what else it may have meant, and choosing replaces it.
const long = board.boards[0].lexicon.keys.filter((key) => key.length > 5)[3];
session = begin();
const given = session.glide(layout.typed(long));
assert.equal(wordKey(given), long);
assert.equal(session.text, `${given} `);
if (session.others.length) {
  const [other] = session.suggestions();
  session.choose(other.word);
  assert.equal(session.text, `${other.word} `);
}
session.glide(layout.typed("weather"));
assert.equal(session.text.split(" ").length, 3);
session.backspace();
assert.equal(session.text.split(" ").length, 2);
assert.equal(session.glide([[0, 0]]), null);

// Words move from one keyboard to another.
const other = begin();
session = begin();
type(session, "Qyxwort is good. ");
session.personal.learn(["Qyxwort", "Bexel"]);
other.personal.learn(["Qyxwort"]);
other.personal.addJSON(session.personal.toJSON());
assert.deepEqual(new Set(other.personal.unknownWords()), new Set(["Qyxwort", "Bexel"]));
assert.equal(Math.round(other.personal.learned().find(([word]) => word === "Qyxwort")[1]), 2 + Number(session.personal.learned().find(([word]) => word === "Qyxwort")[1] > 1.5));
assert.throws(() => other.personal.addJSON("{}"));
console.log("typed");
