// Types with the keyboard of the page, without the page: node check_session.mjs MODEL
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { Fgram } from "../../src/fedgram/keyboard/web/static/fgram.js";
import { Session } from "../../src/fedgram/keyboard/web/static/session.js";
import { loadLayout, wordKey } from "../../src/fedgram/keyboard/web/static/typing.js";

const bytes = readFileSync(process.argv[2]);
const model = Fgram.open(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength));
const layout = loadLayout("en_us");
let seed = 7;
const random = () => (seed = (Math.imul(seed, 1103515245) + 12345) & 0x7fffffff) / 0x80000000;
const gaussian = () => Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());

// A sentence of the model's own, by its best predictions.
const sentence = [];
while (sentence.length < 6) {
  const next = model.predict(sentence, 5).map((p) => p.word).find((word) => /^[a-z']+$/iu.test(word) && !sentence.includes(word));
  if (!next) break;
  sentence.push(next);
}
assert.ok(sentence.length >= 3);

const session = new Session(model, layout);
assert.equal(session.text, "");
assert.equal(session.suggestions(3).length, 3);
for (const word of sentence) {
  for (const [x, y] of layout.typed(wordKey(word))) session.tap(x + 0.3 * gaussian(), y + 0.3 * gaussian());
  session.space();
}
const typed = session.text.split(" ");
const right = typed.filter((word, i) => wordKey(word) === wordKey(sentence[i])).length;
assert.ok(right >= sentence.length - 1, `${session.text} for ${sentence.join(" ")}`);
assert.equal(typed.length, sentence.length);
assert.notEqual(session.literalText, "");

// Backspace takes back taps, then words.
session.tap(5, 0.7);
session.backspace();
assert.equal(session.text, typed.join(" "));
session.backspace();
assert.equal(session.text, typed.slice(0, -1).join(" "));

// Suggestions can be chosen; a mark ends the sentence, which is learned.
const [first] = session.suggestions(3);
session.choose(first.word);
assert.ok(session.text.endsWith(first.word));
session.mark(".");
assert.ok(session.text.endsWith("."));
assert.deepEqual(session.context, []);
assert.equal(session.personal.learned().length, new Set([...typed.slice(0, -1), first.word]).size);

// A trail gives a word; the strip then offers what else it may have meant, and choosing replaces it.
const long = session.board.lexicon.keys.filter((key) => key.length > 5)[3];
const given = session.glide(layout.typed(long));
assert.equal(wordKey(given), long);
const before = session.words.length;
if (session.others.length) {
  const [other] = session.suggestions(3);
  session.choose(other.word);
  assert.equal(session.words.length, before);
  assert.equal(session.words[before - 1].word, other.word);
}
assert.equal(session.glide([[0, 0]]), null);
session.clear();
assert.equal(session.text, "");
console.log("typed");
