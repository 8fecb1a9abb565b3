// @ts-check
/** What the page says about the keyboard: times, sizes, and the user's own words. */

import { cleared, colour, find, make } from "./dom.js";

/** @typedef {import("./phone.js").Phone} Phone */
/** @typedef {import("./fgram.js").Fgram} Fgram */

const LIMIT_MS = 5;
const BIN_MS = 0.25;
const BINS = 26;
const SHOWN = 100;
const PERSONAL = "fedgram-personal";
const PEERS = [["KenLM trie, 8 bits", 4.99], ["OpenFst NGramFst", 9.71], ["KenLM probing", 20.96], ["presage", 45]];

/** @param {number[]} times milliseconds */
export function showTimes(times) {
  const { context, width, height } = cleared(/** @type {HTMLCanvasElement} */ (find("#histogram")));
  const counts = new Array(BINS).fill(0);
  times.forEach((ms) => counts[Math.min(Math.floor(ms / BIN_MS), BINS - 1)]++);
  const [most, bar, floor] = [Math.max(...counts, 1), width / BINS, height - 20];
  context.fillStyle = colour("accent");
  counts.forEach((n, i) => n && context.fillRect(i * bar, floor - Math.max((floor - 4) * (n / most), 2), bar - 2, Math.max((floor - 4) * (n / most), 2)));
  context.fillStyle = colour("line");
  context.fillRect(0, floor, width, 1);
  context.fillStyle = colour("limit");
  context.fillRect((LIMIT_MS / BIN_MS) * bar - 1, 0, 2, floor);
  context.font = "12px system-ui, sans-serif";
  context.textAlign = "center";
  context.fillText(`${LIMIT_MS} ms`, (LIMIT_MS / BIN_MS) * bar, height - 5);
  context.fillStyle = colour("quiet");
  [1, 2, 3, 4].forEach((ms) => context.fillText(String(ms), (ms / BIN_MS) * bar, height - 5));
  const sorted = [...times].sort((a, b) => a - b);
  const at = (/** @type {number} */ share) => (sorted[Math.ceil(share * sorted.length) - 1] ?? 0).toFixed(2);
  find("#speed").textContent = times.length
    ? `${times.length} keys: median ${at(0.5)} ms, 99th percentile ${at(0.99)} ms, from the key to the finished layout.`
    : "Type something to see how long each key takes.";
}

/** @param {{name: string, bytes: number}[]} listed @param {Fgram[]} models */
export function showSizes(listed, models) {
  const ours = listed.map(({ name, bytes }, i) => {
    const ngrams = models[i].levels.reduce((total, level) => total + level.ngrams, -1);
    return [name, (bytes / ngrams).toFixed(2), (bytes / 1000).toFixed(0)];
  });
  const rows = [...ours, ...PEERS.map(([name, each]) => [String(name), Number(each).toFixed(2), "–"])];
  find("#sizes tbody").replaceChildren(...rows.map((cells, i) => {
    const row = make("tr", { className: i < ours.length ? "ours" : "" });
    row.append(...cells.map((text) => make("td", { textContent: text })));
    return row;
  }));
}

/** The panel of the user's own words: shown, kept, exported, imported, erased. */
export class PersonalPanel {
  /** @param {() => Phone[]} phones */
  constructor(phones) {
    this.phones = phones;
    this._shown = -1; // the edition on the page
    find("#erase").addEventListener("click", () => this._change((personal) => personal.erase(), "Erased."));
    find("#export").addEventListener("click", () => this._export());
    const file = /** @type {HTMLInputElement} */ (find("#file"));
    find("#import").addEventListener("click", () => file.click());
    file.addEventListener("change", () => this._import(file));
    addEventListener("pagehide", () => this.keep());
  }

  get personal() {
    return this.phones()[0].session.personal;
  }

  /** Keep the words in the browser, where it keeps anything. */
  keep() {
    try {
      localStorage.setItem(PERSONAL, this.personal.toJSON());
    } catch {
      // the words last as long as the page
    }
  }

  /** @returns {string | null} what was kept */
  static kept() {
    try {
      return localStorage.getItem(PERSONAL);
    } catch {
      return null;
    }
  }

  /** Show and keep what was learned since the last time. */
  show() {
    const { personal } = this;
    if (personal.edition === this._shown) return;
    this._shown = personal.edition;
    this.keep();
    find("#personal").replaceChildren(...personal.unknownWords().slice(0, SHOWN).map((word) => {
      const button = make("button", { type: "button", textContent: "×" });
      button.setAttribute("aria-label", `Forget ${word}`);
      button.addEventListener("click", () => this._change((each) => each.forget(word), `Forgot ${word}.`));
      const item = make("li");
      item.append(make("span", { textContent: word }), button);
      return item;
    }));
  }

  /** Show everything again. */
  refresh() {
    this._shown = -1;
    this.show();
  }

  /** @param {(personal: import("./personal.js").PersonalModel) => void} change @param {string} done what is then said */
  _change(change, done) {
    this.phones().forEach((phone) => {
      change(phone.session.personal);
      phone.session.reread();
      phone.show();
    });
    this.show();
    find("#personal-status").textContent = done;
  }

  _export() {
    const url = URL.createObjectURL(new Blob([this.personal.toJSON()], { type: "application/json" }));
    make("a", { href: url, download: "fedgram-words.json" }).click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
    find("#personal-status").textContent = "Saved as fedgram-words.json.";
  }

  /** @param {HTMLInputElement} input */
  async _import(input) {
    const [file] = input.files ?? [];
    if (!file) return;
    try {
      const text = await file.text();
      this._change((personal) => personal.addJSON(text), "Imported.");
    } catch {
      find("#personal-status").textContent = "This file holds no words of a fedgram keyboard; choose one that was exported here.";
    }
    input.value = "";
  }
}
