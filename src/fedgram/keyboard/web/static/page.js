// @ts-check
/** The page around the keyboards: loads the models and connects keyboards, real keys and panels. */

import { find, make, onceAFrame } from "./dom.js";
import { Fgram } from "./fgram.js";
import { LAYOUTS } from "./layout.js";
import { PersonalPanel, showSizes, showTimes } from "./panels.js";
import { Phone } from "./phone.js";
import { listenToRealKeys } from "./real_keys.js";
import { simulate } from "./simulation.js";
import { Languages, PersonalModel, loadLayout, wordKey } from "./typing.js";

/** @typedef {{name: string, url: string, bytes: number, keyboard: number}} Listed */

const READY = "Ready."; // seen by screen readers only

/** @type {Phone[]} the keyboards of the page: one, or two that are compared */
export let phones = [];
const personal = new PersonalPanel(() => phones);
const showFigures = onceAFrame(() => {
  showTimes(phones[0].times);
  personal.show();
});

/** What is done on one keyboard is done on the other too, for comparison. @param {import("./phone.js").Action} action */
function everywhere(action) {
  phones.forEach((phone) => phone.act(action));
  showFigures();
}

/** @param {string} id @returns {HTMLInputElement} */
const input = (id) => /** @type {HTMLInputElement} */ (find(`#${id}`));

/** @param {Listed[]} listed @param {Fgram[]} models make the keyboards for the chosen layout */
function begin(listed, models) {
  const groups = [...new Set(listed.map(({ keyboard }) => keyboard))].map((n) => listed.flatMap((row, i) => (row.keyboard === n ? [i] : [])));
  phones = groups.map((group) => {
    const languages = new Languages(group.map((i) => models[i]));
    const own = new PersonalModel(languages);
    try {
      const kept = PersonalPanel.kept();
      if (kept) own.loadJSON(kept);
    } catch {
      own.erase();
    }
    return new Phone(group.map((i) => listed[i].name), languages, input("layout").value, own, everywhere);
  });
  find("#phones").replaceChildren(...phones.map((phone) => phone.root));
  document.body.classList.toggle("compared", phones.length > 1);
  setOptions();
  phones.forEach(({ session }) => session.warmUp());
  personal.refresh();
}

function setOptions() {
  phones.forEach((phone) => {
    phone.session.autocorrect = input("autocorrect").checked;
    phone.session.autocapitals = input("autocapitals").checked;
    if (!phone.session.text) phone.session.clear();
    phone.show();
  });
}

function clear() {
  phones.forEach((phone) => {
    phone.session.clear();
    phone.show();
  });
}

/** @param {string} text */
function say(text) {
  find("#status").textContent = text;
  find("#status").classList.toggle("ready", text === READY);
}

async function copy() {
  try {
    await navigator.clipboard.writeText(phones[0].session.text);
    say("Copied.");
  } catch {
    say("The browser does not allow copying.");
  }
}

async function runSimulation() {
  const button = /** @type {HTMLButtonElement} */ (find("#simulate"));
  button.disabled = true;
  phones[0].root.scrollIntoView({ block: "nearest" }); // on a phone it is out of sight
  await simulate(phones, Number(input("noise").value), everywhere);
  button.disabled = false;
}

/** @param {Listed[]} listed @param {Fgram[]} models @returns {string} the layout that the files are named for, or that types their letters */
function fittingLayout(listed, models) {
  const names = listed.filter(({ keyboard }) => keyboard === 0).map(({ name }) => name.toLowerCase().replaceAll("-", "_"));
  const named = Object.keys(LAYOUTS).filter((layout) => names.some((name) => name.includes(layout)));
  if (named.length) return named[named.length - 1];
  const letters = [...new Set(models[0].character.map(wordKey))].filter((key) => /^\p{L}$/u.test(key));
  const typed = Object.keys(LAYOUTS).map((name) => letters.filter((letter) => loadLayout(name).rank.has(letter)).length);
  return typed[0] >= 0.9 * Math.max(...typed) ? Object.keys(LAYOUTS)[0] : Object.keys(LAYOUTS)[typed.indexOf(Math.max(...typed))];
}

async function main() {
  /** @type {Listed[]} */ const listed = await (await fetch("models.json")).json();
  const models = await Promise.all(listed.map(async ({ url }) => Fgram.open(await (await fetch(url)).arrayBuffer())));
  find("#layout").append(...Object.entries(LAYOUTS).map(([value, textContent]) => make("option", { value, textContent })));
  input("layout").value = fittingLayout(listed, models);
  begin(listed, models);
  showSizes(listed, models);
  showFigures();
  find("#layout").addEventListener("change", () => begin(listed, models));
  ["autocorrect", "autocapitals"].forEach((id) => input(id).addEventListener("change", setOptions));
  input("noise").addEventListener("input", () => (find("#noise-value").textContent = `${Number(input("noise").value).toFixed(2)} key widths`));
  find("#clear").addEventListener("click", clear);
  find("#copy").addEventListener("click", copy);
  find("#simulate").addEventListener("click", runSimulation);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showFigures);
  addEventListener("resize", showFigures);
  listenToRealKeys(everywhere, () => phones[0].screen);
  say(READY);
  if ("serviceWorker" in navigator) await navigator.serviceWorker.register("worker.js");
}

main().catch((error) => say(`The model cannot be used: ${error.message}`));
