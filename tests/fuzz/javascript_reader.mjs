// Opens and asks the .fgram files, and loads the personal words, whose paths are lines of standard input; answers each
// with one line: "read", "refused", or what went wrong.
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { Fgram, FgramError } from "../../src/fedgram/keyboard/web/static/fgram.js";
import { PersonalModel } from "../../src/fedgram/keyboard/web/static/personal.js";

const whole = process.argv[2];
const load = (path) => {
  const bytes = readFileSync(path);
  return bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength);
};

function readModel(path) {
  const model = Fgram.open(load(path));
  model.words();
  model.wordId("hello");
  model.predict(["i", "am"], 5, "");
  model.predict([], 5, "th");
  model.score(["i", "am", "here"]);
}

function readPersonal(path) {
  const personal = new PersonalModel(Fgram.open(load(whole)));
  personal.loadJSON(readFileSync(path, "utf8"));
  personal.predict(["a"], 3, "");
  personal.toJSON();
}

for await (const path of createInterface({ input: process.stdin })) {
  try {
    (path.endsWith(".fgram") ? readModel : readPersonal)(path);
    console.log("read");
  } catch (error) {
    const kinds = path.endsWith(".fgram") ? [FgramError] : [TypeError, SyntaxError]; // what the page expects
    const refused = kinds.some((kind) => error instanceof kind);
    console.log(refused ? "refused" : `${error}`.replaceAll("\n", " ").slice(0, 200));
  }
}
