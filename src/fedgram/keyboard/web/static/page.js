// @ts-check
/** The page around the keyboard: keys, fingers, trails, suggestions, figures. All work is done in `session.js`. */

import { Fgram } from "./fgram.js";
import { SHIFT, Session, gaussian } from "./session.js";
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
/** A colour of the style sheet, light or dark. @param {string} name @returns {string} */
const colour = (name) => {
  const probe = document.body.appendChild(document.createElement("i"));
  probe.style.color = `var(--${name})`;
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
};
/** An empty canvas as fine as the screen, measured in CSS pixels. @param {HTMLCanvasElement} canvas */
const cleared = (canvas) => {
  const { clientWidth: width, clientHeight: height } = canvas;
  [canvas.width, canvas.height] = [width, height].map((size) => Math.round(size * devicePixelRatio));
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.scale(devicePixelRatio, devicePixelRatio);
  return { context, width, height };
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
      button.addEventListener("click", (event) => event.detail === 0 && tapEverywhere(centres[i])); // Enter or a screen reader
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
    /** @type {[string, string, (session: Session) => void][]} */
    const others = [
      ["⇧", "shift", (session) => session.pressShift()],
      ["?", "question mark", (session) => session.mark("?")], ["!", "exclamation mark", (session) => session.mark("!")],
      ["space", "space", (session) => session.space()], [".", "full stop", (session) => session.mark(".")],
      ["⌫", "backspace", (session) => session.backspace()],
    ];
    for (const [text, label, action] of others) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = text;
      button.setAttribute("aria-label", label);
      button.addEventListener("click", () => everywhere(action));
      find(".bottom", this.root).append(button);
    }
    this.shift = /** @type {HTMLElement} */ (find("[aria-label=shift]", this.root));
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
      if (far) everywhere((session) => session.glide(points));
      else tapEverywhere(points[0]);
      if (!far) this._drawTrail([]);
    });
  }

  /** @param {Point[]} points */
  _drawTrail(points) {
    const { context, width, height } = cleared(this.trail);
    const { layout } = this.session.board;
    context.lineWidth = 6;
    context.lineCap = context.lineJoin = "round";
    context.globalAlpha = 0.55;
    context.strokeStyle = colour("accent");
    context.beginPath();
    points.forEach(([x, y]) => context.lineTo((x / layout.width) * width, (y / layout.height) * height));
    context.stroke();
  }

  /** @param {(session: Session) => void} action do it, show the result, and note how long it took */
  act(action) {
    const began = performance.now();
    action(this.session);
    this.show();
    times.push(performance.now() - began);
  }

  show() {
    const { session } = this;
    find(".decoded", this.root).textContent = session.text;
    find(".hit", this.root).textContent = session.literalText;
    const { shift } = session;
    this.shift.setAttribute("aria-pressed", String(shift !== SHIFT.off));
    this.shift.textContent = shift === SHIFT.locked ? "⇪" : "⇧";
    for (const key of this.keys.children) {
      const letter = key.textContent ?? "";
      key.textContent = shift === SHIFT.off ? letter.toLowerCase() : letter.toUpperCase();
    }
    const strip = find(".strip", this.root);
    strip.replaceChildren(...session.suggestions(3).map(({ word, isLiteral }) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = word;
      button.classList.toggle("hit", isLiteral);
      button.addEventListener("click", () => everywhere((each) => each.choose(word)));
      return button;
    }));
  }
}

/** What is done on one keyboard is done on the other too, for comparison. @param {(session: Session) => void} action */
function everywhere(action) {
  phones.forEach((phone) => phone.act(action));
  showTimes();
  showPersonal();
}

/** @param {Point} point where a finger aimed; noise is added here, the same for all */
function tapEverywhere([x, y]) {
  const [dx, dy] = [noise() * gaussian(), noise() * gaussian()];
  everywhere((session) => session.tap(x + dx, y + dy));
}

function showTimes() {
  const { context, width, height } = cleared(/** @type {HTMLCanvasElement} */ (find("#histogram")));
  const counts = new Array(BINS).fill(0);
  times.forEach((ms) => counts[Math.min(Math.floor(ms / BIN_MS), BINS - 1)]++);
  const [most, bar, floor] = [Math.max(...counts, 1), width / BINS, height - 18];
  context.fillStyle = colour("accent");
  counts.forEach((n, i) => context.fillRect(i * bar, floor * (1 - n / most), bar - 1, (floor * n) / most));
  context.fillStyle = colour("line");
  context.fillRect(0, floor, width, 1);
  context.fillStyle = colour("limit");
  context.fillRect((LIMIT_MS / BIN_MS) * bar - 1, 0, 2, floor);
  context.font = "12px system-ui, sans-serif";
  context.fillText(`${LIMIT_MS} ms`, (LIMIT_MS / BIN_MS) * bar - 14, height - 3);
  context.fillStyle = colour("quiet");
  [0, 5, 10, 15].forEach((ms) => context.fillText(String(ms), (ms / BIN_MS) * bar, height - 3));
  const sorted = [...times].sort((a, b) => a - b);
  const at = (/** @type {number} */ share) => (sorted[Math.floor(share * (sorted.length - 1))] ?? 0).toFixed(2);
  find("#speed").textContent = `${times.length} keys: median ${at(0.5)} ms, 99th percentile ${at(0.99)} ms; the line is at 20 ms.`;
}

let shown = -1; // the edition of the personal words on the page

function showPersonal() {
  const { personal } = phones[0].session;
  if (personal.edition === shown) return;
  shown = personal.edition;
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
  const ours = listed.map(({ name, bytes }, i) => {
    const ngrams = models[i].levels.reduce((total, level) => total + level.ngrams, -1);
    return [name, (bytes / ngrams).toFixed(2), (bytes / 1000).toFixed(0)];
  });
  const rows = [...ours, ...PEERS.map(([name, each]) => [String(name), Number(each).toFixed(2), "–"])];
  find("#sizes tbody").replaceChildren(...rows.map((cells, i) => {
    const row = document.createElement("tr");
    row.classList.toggle("ours", i < ours.length);
    row.append(...cells.map((text) => Object.assign(document.createElement("td"), { textContent: text })));
    return row;
  }));
}

/** Keys of a real keyboard, when no button or field has them. @param {KeyboardEvent} event */
function typeOnRealKeys(event) {
  const target = /** @type {HTMLElement} */ (event.target);
  if (event.ctrlKey || event.altKey || event.metaKey || target.closest("input[type=range], select")) return;
  const onButton = target.closest("button, input") !== null;
  const { layout } = phones[0].session.board;
  const i = layout.keys.indexOf(event.key.toLowerCase());
  if (i >= 0) {
    if (event.shiftKey) phones.forEach(({ session }) => (session.shift = session.shift || SHIFT.once));
    tapEverywhere(layout.centres[i]);
  } else if (event.key === " " && !onButton) everywhere((session) => session.space());
  else if (event.key === "Backspace") everywhere((session) => session.backspace());
  else if ([".", "?", "!"].includes(event.key)) everywhere((session) => session.mark(event.key));
  else return;
  event.preventDefault();
}

async function main() {
  const listed = await (await fetch("models.json")).json();
  const models = await Promise.all(listed.map(async (/** @type {{url: string}} */ { url }) =>
    Fgram.open(await (await fetch(url)).arrayBuffer())));
  const layout = /** @type {HTMLSelectElement} */ (find("#layout"));
  const autocorrect = /** @type {HTMLInputElement} */ (find("#autocorrect"));
  const setAutocorrect = () => phones.forEach((phone) => {
    phone.session.autocorrect = autocorrect.checked;
    phone.show();
  });
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
    setAutocorrect();
    phones.forEach(({ session }) => session.warmUp());
    find("#phones").replaceChildren(...phones.map((phone) => phone.root));
    shown = -1;
    showPersonal();
  };
  begin();
  showSizes(listed, models);
  showTimes();
  layout.addEventListener("change", begin);
  autocorrect.addEventListener("change", setAutocorrect);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showTimes);
  addEventListener("resize", showTimes);
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
