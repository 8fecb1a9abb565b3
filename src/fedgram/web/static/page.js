// @ts-check
/** The page around the keyboard: keys, fingers, trails, suggestions, figures. All work is done in `session.js`. */

import { Fgram } from "./fgram.js";
import { Session, gaussian } from "./session.js";
import { loadLayout, PersonalModel } from "./typing.js";

/** @typedef {import("./typing.js").Point} Point */

const GLIDE_FROM = 0.8; // key widths that make a press a trail
const LIMIT_MS = 20;
const BIN_MS = 1;
const BINS = 25;
const PERSONAL = "fedgram-personal";
const PEERS = [["KenLM probing", 20.96], ["KenLM trie, 8 bits", 4.99], ["OpenFst NGramFst", 9.71], ["presage", 45]];

/** @type {<T extends Element>(selector: string, root?: ParentNode) => T} */
const find = (selector, root = document) => {
  const found = root.querySelector(selector);
  if (!found) throw new Error(`the page lacks ${selector}`);
  return /** @type {any} */ (found);
};
const noise = () => Number(/** @type {HTMLInputElement} */ (find("#noise")).value);
/** @type {number[]} */ const times = [];
/** @type {Phone[]} */ let phones = [];

/** One keyboard on the page. */
class Phone {
  /** @param {string} name @param {Fgram} model @param {string} layout @param {PersonalModel} personal */
  constructor(name, model, layout, personal) {
    const content = /** @type {HTMLTemplateElement} */ (find("#phone")).content.cloneNode(true);
    this.root = /** @type {HTMLElement} */ (find(".phone", /** @type {ParentNode} */ (content)));
    this.session = new Session(model, loadLayout(layout), personal);
    find("h2", this.root).textContent = name;
    this.keys = /** @type {HTMLElement} */ (find(".keys", this.root));
    this.trail = /** @type {HTMLCanvasElement} */ (find(".trail", this.root));
    this._drawKeys();
    this._addOtherKeys();
    this._followFingers();
    this.show();
  }

  _drawKeys() {
    const { keys, centres, width, height } = this.session.board.layout;
    this.keys.style.aspectRatio = `${width} / ${height}`;
    keys.forEach((key, i) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = key;
      button.tabIndex = i === 0 ? 0 : -1; // arrows move among the letters
      const [x, y] = centres[i];
      button.style.left = `${((x - 0.47) / width) * 100}%`;
      button.style.top = `${((y - 0.68) / height) * 100}%`;
      button.style.width = `${(0.94 / width) * 100}%`;
      button.style.height = `${(1.36 / height) * 100}%`;
      button.addEventListener("click", (event) => event.detail === 0 && this.tap(centres[i])); // Enter or a screen reader
      button.addEventListener("keydown", (event) => this._moveFocus(event, i));
      this.keys.append(button);
    });
  }

  /** @param {KeyboardEvent} event @param {number} i */
  _moveFocus(event, i) {
    const step = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1.5], ArrowUp: [0, -1.5] }[event.key];
    if (!step) return;
    event.preventDefault();
    const { centres } = this.session.board.layout;
    const [x, y] = [centres[i][0] + step[0], centres[i][1] + step[1]];
    const near = centres.map(([a, b]) => (a - x) ** 2 + (b - y) ** 2);
    /** @type {HTMLElement} */ (this.keys.children[near.indexOf(Math.min(...near))]).focus();
  }

  _addOtherKeys() {
    const { session } = this;
    const others = [
      ["?", "question mark", () => session.mark("?")], ["!", "exclamation mark", () => session.mark("!")],
      ["space", "space", () => session.space()], [".", "full stop", () => session.mark(".")],
      ["⌫", "backspace", () => session.backspace()],
    ];
    for (const [text, label, action] of others) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = String(text);
      button.setAttribute("aria-label", String(label));
      button.addEventListener("click", () => this.act(/** @type {() => void} */ (action)));
      find(".bottom", this.root).append(button);
    }
  }

  /** @param {PointerEvent} event @returns {Point} */
  _place(event) {
    const box = this.keys.getBoundingClientRect();
    const { width, height } = this.session.board.layout;
    return [((event.clientX - box.left) / box.width) * width, ((event.clientY - box.top) / box.height) * height];
  }

  _followFingers() {
    /** @type {Point[] | null} */ let trail = null;
    const board = /** @type {HTMLElement} */ (find(".board", this.root));
    board.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      board.setPointerCapture(event.pointerId);
      trail = [this._place(event)];
    });
    board.addEventListener("pointermove", (event) => {
      if (!trail) return;
      trail.push(this._place(event));
      this._drawTrail(trail);
    });
    board.addEventListener("pointercancel", () => (trail = null));
    board.addEventListener("pointerup", () => {
      const points = trail;
      trail = null;
      if (!points) return;
      const [x, y] = points[0];
      const far = points.some(([a, b]) => Math.hypot(a - x, b - y) > GLIDE_FROM);
      if (far) this.act(() => this.session.glide(points));
      else this.tap(points[0]);
      if (!far) this._drawTrail([]);
    });
  }

  /** @param {Point[]} points */
  _drawTrail(points) {
    const { width, height } = this.session.board.layout;
    const canvas = this.trail;
    canvas.width = canvas.clientWidth;
    canvas.height = canvas.clientHeight;
    const context = canvas.getContext("2d");
    if (!context) return;
    context.lineWidth = 5;
    context.lineCap = context.lineJoin = "round";
    context.strokeStyle = "#0a6cffaa";
    context.beginPath();
    points.forEach(([x, y]) => context.lineTo((x / width) * canvas.width, (y / height) * canvas.height));
    context.stroke();
  }

  /** @param {Point} point where a finger aimed; noise is added here */
  tap([x, y]) {
    const sigma = noise();
    this.act(() => this.session.tap(x + sigma * gaussian(), y + sigma * gaussian()));
  }

  /** @param {() => void} action do it, show the result, and note how long it took */
  act(action) {
    const began = performance.now();
    action();
    this.show();
    times.push(performance.now() - began);
    showTimes();
    showPersonal();
  }

  show() {
    const { session } = this;
    find(".decoded", this.root).textContent = session.text;
    find(".hit", this.root).textContent = session.literalText;
    const strip = find(".strip", this.root);
    strip.replaceChildren(...session.suggestions(3).map(({ word, isLiteral }) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = word;
      button.classList.toggle("hit", isLiteral);
      button.addEventListener("click", () => this.act(() => session.choose(word)));
      return button;
    }));
  }
}

function showTimes() {
  const canvas = /** @type {HTMLCanvasElement} */ (find("#histogram"));
  const context = canvas.getContext("2d");
  if (!context) return;
  const counts = new Array(BINS).fill(0);
  times.forEach((ms) => counts[Math.min(Math.floor(ms / BIN_MS), BINS - 1)]++);
  const [most, width] = [Math.max(...counts, 1), canvas.width / BINS];
  context.clearRect(0, 0, canvas.width, canvas.height);
  context.fillStyle = "#0a6cff";
  counts.forEach((n, i) => context.fillRect(i * width, canvas.height * (1 - n / most), width - 1, (canvas.height * n) / most));
  context.fillStyle = "#d00";
  context.fillRect((LIMIT_MS / BIN_MS) * width, 0, 2, canvas.height);
  const sorted = [...times].sort((a, b) => a - b);
  const at = (/** @type {number} */ share) => (sorted[Math.floor(share * (sorted.length - 1))] ?? 0).toFixed(2);
  find("#speed").textContent = `${times.length} keys: median ${at(0.5)} ms, 99th percentile ${at(0.99)} ms; the line is at 20 ms.`;
}

function showPersonal() {
  const { personal } = phones[0].session;
  try {
    localStorage.setItem(PERSONAL, personal.toJSON());
  } catch {
    // a browser that keeps nothing: the words last as long as the page
  }
  find("#personal").replaceChildren(...personal.learned().slice(0, 100).map(([word]) => {
    const item = document.createElement("li");
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "×";
    button.setAttribute("aria-label", `Forget ${word}`);
    button.addEventListener("click", () => {
      phones.forEach((phone) => phone.session.personal.forget(word));
      phones.forEach((phone) => phone.show());
      showPersonal();
    });
    item.append(`${word} `, button);
    return item;
  }));
}

/** @param {{name: string, bytes: number}[]} listed @param {Fgram[]} models */
function showSizes(listed, models) {
  const rows = [
    ...listed.map(({ name, bytes }, i) => {
      const ngrams = models[i].levels.reduce((total, level) => total + level.ngrams, -1);
      return [name, (bytes / ngrams).toFixed(2), bytes.toLocaleString()];
    }),
    ...PEERS.map(([name, each]) => [`${name} (a model of 1.45M n-grams)`, String(each), "–"]),
  ];
  find("#sizes tbody").replaceChildren(...rows.map((cells) => {
    const row = document.createElement("tr");
    row.append(...cells.map((text) => Object.assign(document.createElement("td"), { textContent: text })));
    return row;
  }));
}

/** Keys of a real keyboard, when no button or field has them. @param {KeyboardEvent} event */
function typeOnRealKeys(event) {
  const target = /** @type {HTMLElement} */ (event.target);
  if (event.ctrlKey || event.altKey || event.metaKey || target.closest("input, select")) return;
  const onButton = target.closest("button") !== null;
  for (const phone of phones) {
    const { session } = phone;
    const i = session.board.layout.keys.indexOf(event.key.toLowerCase());
    if (i >= 0) phone.tap(session.board.layout.centres[i]);
    else if (event.key === " " && !onButton) phone.act(() => session.space());
    else if (event.key === "Backspace") phone.act(() => session.backspace());
    else if ([".", "?", "!"].includes(event.key)) phone.act(() => session.mark(event.key));
    else return;
  }
  event.preventDefault();
}

async function main() {
  const listed = await (await fetch("models.json")).json();
  const models = await Promise.all(listed.map(async (/** @type {{url: string}} */ { url }) =>
    Fgram.open(await (await fetch(url)).arrayBuffer())));
  const layout = /** @type {HTMLSelectElement} */ (find("#layout"));
  const begin = () => {
    phones = models.map((model, i) => {
      const personal = new PersonalModel(model);
      try {
        const kept = localStorage.getItem(PERSONAL);
        if (kept) personal.loadJSON(kept);
      } catch {
        personal.erase();
      }
      return new Phone(listed[i].name, model, layout.value, personal);
    });
    find("#phones").replaceChildren(...phones.map((phone) => phone.root));
    showPersonal();
  };
  begin();
  showSizes(listed, models);
  showTimes();
  layout.addEventListener("change", begin);
  find("#noise").addEventListener("input", () => (find("#noise-value").textContent = noise().toFixed(2)));
  find("#clear").addEventListener("click", () => phones.forEach((phone) => {
    phone.session.clear();
    phone.show();
  }));
  find("#erase").addEventListener("click", () => {
    phones.forEach((phone) => phone.session.personal.erase());
    phones.forEach((phone) => phone.show());
    showPersonal();
  });
  document.addEventListener("keydown", typeOnRealKeys);
  find("#status").textContent = "Ready.";
  if ("serviceWorker" in navigator) await navigator.serviceWorker.register("worker.js");
}

main().catch((error) => (find("#status").textContent = `The model cannot be used: ${error.message}`));
