// @ts-check
/** Fingers on one keyboard: taps, trails, long presses, and keys that repeat. */

import { cleared, colour, make } from "./dom.js";
import { Keys } from "./keys.js";

/** @typedef {import("./layout.js").Point} Point */
/**
 * @typedef {object} Wishes what fingers ask for
 * @property {(point: Point) => void} tap @property {(trail: Point[]) => void} glide @property {(text: string) => void} type
 * @property {(action: string) => void} press a key that types nothing
 */
/** @typedef {{key: HTMLElement | null, trail: Point[], isFar: boolean, timer: number, chosen: string | null}} Finger */

const GLIDE_FROM = 0.8; // key widths that make a press a trail
const LONG_MS = 350;
const REPEAT_MS = 60;

/** Follows the fingers on a board. */
export class Fingers {
  /** @param {HTMLElement} board @param {Keys} keys @param {Wishes} wishes */
  constructor(board, keys, wishes) {
    this.keys = keys;
    this.wishes = wishes;
    this.trail = /** @type {HTMLCanvasElement} */ (board.querySelector(".trail"));
    this.popup = /** @type {HTMLElement} */ (board.querySelector(".popup"));
    /** @type {Map<number, Finger>} */ this.down = new Map();
    board.addEventListener("pointerdown", (event) => this._begin(event, board));
    board.addEventListener("pointermove", (event) => this._move(event));
    board.addEventListener("pointerup", (event) => this._end(event.pointerId));
    board.addEventListener("pointercancel", (event) => this._forget(event.pointerId));
    board.addEventListener("contextmenu", (event) => event.preventDefault());
    board.addEventListener("click", (event) => this._click(event));
  }

  /** @param {PointerEvent} event @param {HTMLElement} board */
  _begin(event, board) {
    if (event.button) return;
    event.preventDefault();
    for (const id of [...this.down.keys()]) this._end(id); // a second thumb: the first has tapped
    const key = /** @type {HTMLElement} */ (event.target).closest(".key");
    board.setPointerCapture(event.pointerId);
    /** @type {Finger} */
    const finger = { key: /** @type {HTMLElement | null} */ (key) ?? this._letterAt(event), trail: [this.keys.place(event)], isFar: false, timer: 0, chosen: null };
    finger.key?.classList.add("pressed");
    this.down.set(event.pointerId, finger);
    if (finger.key?.dataset.action === "backspace") {
      this.wishes.press("backspace");
      finger.timer = window.setTimeout(() => this._repeat(finger), LONG_MS);
    } else finger.timer = window.setTimeout(() => this._open(finger), LONG_MS);
  }

  /** @param {PointerEvent} event @returns {HTMLElement | null} the letter nearest to a gap between keys */
  _letterAt(event) {
    const { layout, letters } = this.keys;
    const [x, y] = this.keys.place(event);
    return y < layout.height ? letters[layout.keys.indexOf(layout.nearest([x, y]))] : null;
  }

  /** @param {Finger} finger */
  _repeat(finger) {
    this.wishes.press("backspace");
    finger.timer = window.setTimeout(() => this._repeat(finger), REPEAT_MS);
  }

  /** @param {PointerEvent} event */
  _move(event) {
    const finger = this.down.get(event.pointerId);
    if (!finger) return;
    if (finger.chosen !== null) return this._slide(finger, event);
    finger.trail.push(this.keys.place(event));
    const [[x, y], last] = [finger.trail[0], finger.trail[finger.trail.length - 1]];
    if (!this._isLetter(finger.key) || Math.hypot(last[0] - x, last[1] - y) <= GLIDE_FROM) {
      if (finger.isFar) this._draw(finger.trail);
      return;
    }
    if (!finger.isFar) {
      clearTimeout(finger.timer);
      finger.key?.classList.remove("pressed");
    }
    finger.isFar = true;
    this._draw(finger.trail);
  }

  /** @param {HTMLElement | null} key */
  _isLetter(key) {
    return key !== null && key.parentElement?.className === "letters";
  }

  /** @param {number} id */
  _end(id) {
    const finger = this.down.get(id);
    if (!finger) return;
    this._forget(id);
    const { key, trail, isFar, chosen } = finger;
    const { action, text } = key?.dataset ?? {};
    if (chosen !== null) this.wishes.type(chosen);
    else if (isFar) this.wishes.glide(trail);
    else if (this._isLetter(key)) this.wishes.tap(trail[0]);
    else if (text !== undefined) this.wishes.type(text);
    else if (action && action !== "backspace") this.wishes.press(action);
  }

  /** @param {number} id */
  _forget(id) {
    const finger = this.down.get(id);
    if (!finger) return;
    clearTimeout(finger.timer);
    finger.key?.classList.remove("pressed");
    this.popup.hidden = true;
    if (finger.isFar) this._fade();
    this.down.delete(id);
  }

  /** Enter on a focused key, or a screen reader. @param {MouseEvent} event */
  _click(event) {
    if (event.detail) return;
    const { action, text } = /** @type {HTMLElement} */ (event.target).closest(".key")?.dataset ?? {};
    if (action) this.wishes.press(action);
    else if (text !== undefined) this.wishes.type(text);
  }

  /** Show what a long press offers. @param {Finger} finger */
  _open(finger) {
    const { key } = finger;
    const offered = this.keys.alternatives.get(key?.dataset.text ?? "") ?? [];
    if (!key || finger.isFar || !offered.length) return;
    const isUpper = this.keys.others.get("shift")?.ariaPressed === "true";
    const offers = offered.map((text) => make("span", { textContent: isUpper ? text.toUpperCase() : text }));
    this.popup.replaceChildren(...offers);
    this.popup.hidden = false;
    const [box, board] = [key.getBoundingClientRect(), /** @type {HTMLElement} */ (this.popup.parentElement).getBoundingClientRect()];
    const [width, first] = [this.popup.offsetWidth, offers[0].offsetLeft + offers[0].offsetWidth / 2];
    const middle = box.left - board.left + box.width / 2;
    const isLeftwards = middle - first + width > board.width - 4; // the first offer is above the key, on either side
    if (isLeftwards) this.popup.replaceChildren(...[...offers].reverse());
    this.popup.style.left = `${isLeftwards ? Math.min(middle + first, board.width - 4) - width : Math.max(middle - first, 4)}px`;
    this.popup.style.top = `${box.top - board.top - this.popup.offsetHeight - 6}px`;
    this._choose(finger, offers[0]);
  }

  /** @param {number} x @returns {HTMLElement} the offer above this place */
  _nearest(x) {
    const offers = /** @type {HTMLElement[]} */ ([...this.popup.children]);
    const away = offers.map((offer) => {
      const box = offer.getBoundingClientRect();
      return Math.abs(box.left + box.width / 2 - x);
    });
    return offers[away.indexOf(Math.min(...away))];
  }

  /** @param {Finger} finger @param {HTMLElement} offer */
  _choose(finger, offer) {
    for (const other of this.popup.children) other.classList.toggle("chosen", other === offer);
    finger.chosen = offer.textContent;
  }

  /** @param {Finger} finger @param {PointerEvent} event */
  _slide(finger, event) {
    this._choose(finger, this._nearest(event.clientX));
  }

  /** @param {Point[]} points */
  _draw(points) {
    const { context, width, height } = cleared(this.trail);
    const { layout } = this.keys;
    this.trail.classList.remove("fading");
    context.lineWidth = 7;
    context.lineCap = context.lineJoin = "round";
    context.strokeStyle = colour("accent");
    context.globalAlpha = 0.6;
    context.beginPath();
    points.forEach(([x, y]) => context.lineTo((x / layout.width) * width, (y / this.keys.height) * height));
    context.stroke();
  }

  _fade() {
    this.trail.classList.add("fading");
  }
}
