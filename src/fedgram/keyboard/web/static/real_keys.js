// @ts-check
/**
 * Keys of a real keyboard. They type, whatever was clicked before: a click never takes the focus away from the text. Only
 * after Tab do Space and Enter press what has the focus, until a letter is typed.
 */

/** @typedef {import("./session.js").Session} Session */

const CONTROLS = "button, input, select, a[href]";

/** @param {(action: (session: Session) => void) => void} everywhere @param {() => HTMLElement} screen where the text is */
export function listenToRealKeys(everywhere, screen) {
  let isTabbing = false; // whether the focus was moved by Tab
  document.addEventListener("pointerdown", () => (isTabbing = false), true);
  document.addEventListener("mousedown", (event) => {
    const target = /** @type {HTMLElement} */ (event.target);
    if (target.closest("button, label, [type=checkbox]") && !target.closest("select")) event.preventDefault();
  });
  document.addEventListener("change", (event) => {
    if (!isTabbing) /** @type {HTMLElement} */ (event.target).blur();
  });
  document.addEventListener("keydown", (event) => {
    const { key } = event;
    const target = /** @type {HTMLElement} */ (event.target);
    if (key === "Tab" || (isTabbing && key.startsWith("Arrow"))) isTabbing = true;
    if (event.ctrlKey || event.metaKey || (event.altKey && !event.getModifierState("AltGraph"))) return;
    if (isTabbing && target.closest(CONTROLS) && [" ", "Enter"].includes(key)) return;
    if (isTabbing && target.closest("select")) return;
    const text = key === "Enter" ? "\n" : key;
    if (key === "Backspace") everywhere((session) => session.backspace());
    else if (Array.from(text).length === 1) everywhere((session) => session.type(text));
    else return;
    event.preventDefault();
    isTabbing = false;
    if (document.activeElement !== screen()) screen().focus({ preventScroll: true });
  });
}
