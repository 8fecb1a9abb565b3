// Checks JavaScript typing against vectors: node check_typing.mjs FOLDER
import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { Fgram } from "../../src/fedgram/keyboard/web/static/fgram.js";
import { Glider, Keyboard, Languages, MultilingualKeyboard, PersonalModel, loadLayout } from "../../src/fedgram/keyboard/web/static/typing.js";

const folder = process.argv[2];
const openModel = (name) => {
  const bytes = readFileSync(join(folder, name));
  return Fgram.open(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength));
};
const near = (a, b, what) => assert.ok(Math.abs(a - b) < 1e-5, `${what}: ${a} is not ${b}`);
let answers = 0;

for (const name of readdirSync(folder).filter((file) => file.endsWith(".typing.json"))) {
  const { layout, taps, trails, said, expected, learned, own, personal: kept } = JSON.parse(readFileSync(join(folder, name), "utf8"));
  const model = openModel(name.replace(".typing.json", ".fgram"));
  const board = new Keyboard(model, loadLayout(layout));
  for (const [context, places, literal, found] of taps) {
    const word = board.typing(context);
    for (const [x, y] of places) word.tap(x, y);
    assert.equal(word.literal, literal);
    const ours = word.candidates(4);
    assert.deepEqual(ours.map((c) => [c.word, c.isComplete, c.isLiteral]), found.map((c) => [c[0], c[2], c[3]]), literal);
    ours.forEach((c, i) => near(c.worth, found[i][1], literal));
    word.tap(3, 3);
    word.backspace();
    assert.deepEqual(word.candidates(4), ours);
    answers++;
  }
  const glider = new Glider(board);
  for (const [context, trail, found] of trails) {
    const ours = glider.decode(trail, context, 4);
    assert.deepEqual(ours.map((c) => c.word), found.map((c) => c[0]));
    ours.forEach((c, i) => near(c.worth, found[i][1], c.word));
    answers++;
  }
  assert.deepEqual(glider.decode([[0, 0]]), []);
  const personal = new PersonalModel(model);
  const check = () => {
    for (const [context, prefix, rows] of expected) {
      const ours = personal.predict(context, 4, prefix);
      assert.deepEqual(ours.map((p) => p.word), rows.map((row) => row[0]));
      ours.forEach((p, i) => near(p.logP, rows[i][1], p.word));
      answers++;
    }
  };
  said.forEach((sentence) => personal.learn(sentence));
  check();
  for (const [context, places, typed, trail, traced] of own) {
    const word = board.typing(context, personal);
    for (const [x, y] of places) word.tap(x, y);
    const ours = word.candidates(4);
    assert.deepEqual(ours.map((c) => [c.word, c.isComplete, c.isLiteral]), typed.map((c) => [c[0], c[2], c[3]]));
    ours.forEach((c, i) => near(c.worth, typed[i][1], c.word));
    const glided = glider.decode(trail, context, 4, personal);
    assert.deepEqual(glided.map((c) => c.word), traced.map((c) => c[0]));
    glided.forEach((c, i) => near(c.worth, traced[i][1], c.word));
    answers++;
  }
  personal.learned().forEach(([word, count], i) => {
    assert.equal(word, learned[i][0]);
    near(count, learned[i][1], word);
  });
  personal.erase();
  assert.deepEqual(personal.learned(), []);
  personal.loadJSON(kept);
  check();
  assert.ok(personal.forget("Zuleica"));
  assert.ok(!personal.toJSON().includes("Zuleica"));
  for (const bad of ["[]", "{}", '{"fedgram-personal": 1, "words": {"a": -1}, "pairs": {}}']) {
    assert.throws(() => personal.loadJSON(bad), TypeError);
  }
}

// Two languages in one keyboard.
const { layout, cases, plain, said } = JSON.parse(readFileSync(join(folder, "languages.json"), "utf8"));
const languages = new Languages(["en_us.fgram", "pt_br.fgram"].map(openModel));
const both = new MultilingualKeyboard(languages, loadLayout(layout));
const personal = new PersonalModel(languages);
cases.forEach(([context, posterior, prefix, expected, places, typed, trail, traced], n) => {
  if (n === plain) said.forEach((sentence) => personal.learn(sentence));
  const own = n < plain ? undefined : personal;
  languages.posterior(context).forEach((p, l) => near(p, posterior[l], "posterior"));
  const compare = (ours, rows, value) => {
    assert.deepEqual(ours.map((c) => c.word), rows.map((row) => row[0]), `case ${n}`);
    ours.forEach((c, i) => near(c[value], rows[i][1], c.word));
    answers++;
  };
  compare((own ?? languages).predict(context, 4, prefix), expected, "logP");
  const word = both.typing(context, own);
  for (const [x, y] of places) word.tap(x, y);
  compare(word.candidates(4), typed, "worth");
  assert.deepEqual(word.candidates(4).map((c) => [c.isComplete, c.isLiteral]), typed.map((c) => [c[2], c[3]]));
  compare(both.glide(trail, context, 4, own), traced, "worth");
});
console.log(answers);
