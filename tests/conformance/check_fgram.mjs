// Checks the JavaScript reader against vectors: node check_fgram.mjs FOLDER
import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { Fgram, FgramError } from "../../src/fedgram/keyboard/web/static/fgram.js";

const folder = process.argv[2];
const load = (/** @type {string} */ path) => {
  const bytes = readFileSync(path);
  return bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength);
};
const near = (a, b) => assert.ok(b === null ? a === -Infinity : Math.abs(a - b) < 1e-6, `${a} is not ${b}`);
const contexts = (state) => Array.from({ length: state[0] }, (_, i) => state[2 * i + 1]);
let answers = 0;

for (const name of readdirSync(folder).filter((file) => file.endsWith(".json"))) {
  const { words, steps, predictions } = JSON.parse(readFileSync(join(folder, name), "utf8"));
  const model = Fgram.open(load(join(folder, name.replace(".json", ".fgram"))));
  const all = model.words();
  for (const [id, word] of words) {
    assert.equal(model.word(id), word);
    assert.equal(model.wordId(word), id);
    assert.equal(all[id], word);
  }
  for (const rows of steps) {
    let state = model.start();
    let total = 0;
    for (const [word, logP, expected] of rows) {
      const next = model.step(state, model.wordId(word));
      near(next.logP, logP);
      assert.deepEqual(contexts(next.state), expected);
      state = next.state;
      total += next.logP;
      answers++;
    }
    near(model.score(rows.slice(0, -1).map((row) => row[0])), total === -Infinity ? null : total);
  }
  for (const [context, prefix, k, expected] of predictions) {
    const found = model.predict(context, k, prefix);
    assert.deepEqual(found.map((p) => p.word), expected.map((row) => row[0]), `${name} ${context} ${prefix}`);
    found.forEach((p, i) => near(p.logP, expected[i][1]));
    answers++;
  }
}
for (const name of readdirSync(join(folder, "refused"))) {
  assert.throws(() => Fgram.open(load(join(folder, "refused", name))), FgramError, name);
  answers++;
}

// Files whose checksums match but whose content was changed at random: refused or answered.
const { checksum } = await import("../../src/fedgram/keyboard/web/static/fgram.js");
const whole = new Uint8Array(load(join(folder, "wide.fgram")));
let seed = 1;
const random = (/** @type {number} */ n) => (seed = (Math.imul(seed, 1103515245) + 12345) & 0x7fffffff) % n;
const rounds = Number(process.argv[3] ?? 100);
for (let round = 0; round < rounds; round++) {
  const bytes = whole.slice();
  for (let i = random(6); i >= 0; i--) bytes[random(3) ? 416 + random(bytes.length - 416) : 24 + random(392)] = random(256);
  const numbers = new Uint32Array(bytes.buffer);
  numbers[4] = checksum(numbers.subarray(104));
  numbers[5] = 0;
  numbers[5] = checksum(numbers.slice(0, 104));
  try {
    const model = Fgram.open(bytes.buffer);
    const state = model.state(["w1", "w0"]);
    for (const word of [0, 2, 3, model.size - 1]) assert.ok(!Number.isNaN(model.step(state, word).logP));
    for (const p of [...model.predictFrom(state, 3), ...model.predictFrom(state, 3, "w1")]) assert.ok(p.id < model.size);
  } catch (error) {
    if (!(error instanceof FgramError)) throw error;
  }
}
console.log(answers);
