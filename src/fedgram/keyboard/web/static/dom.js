// @ts-check
/** Small things that the page's modules share. */

/** @type {<T extends Element>(selector: string, root?: ParentNode) => T} */
export const find = (selector, root = document) => {
  const found = root.querySelector(selector);
  if (!found) throw new Error(`the page lacks ${selector}`);
  return /** @type {any} */ (found);
};

/** @template {keyof HTMLElementTagNameMap} K @param {K} tag @param {Partial<HTMLElementTagNameMap[K]>} [properties] @returns {HTMLElementTagNameMap[K]} */
export const make = (tag, properties = {}) => Object.assign(document.createElement(tag), properties);

/** @param {string} name @returns {Node} an icon of the page */
export const icon = (name) => find(`[data-icon=${name}]`, /** @type {HTMLTemplateElement} */ (find("#icons")).content).cloneNode(true);

/** A colour of the style sheet, light or dark. @param {string} name @returns {string} */
export function colour(name) {
  const probe = document.body.appendChild(make("i"));
  probe.style.color = `var(--${name})`;
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}

/** An empty canvas as fine as the screen, measured in CSS pixels. @param {HTMLCanvasElement} canvas */
export function cleared(canvas) {
  const { clientWidth: width, clientHeight: height } = canvas;
  [canvas.width, canvas.height] = [width, height].map((size) => Math.round(size * devicePixelRatio));
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.scale(devicePixelRatio, devicePixelRatio);
  return { context, width, height };
}

/** @param {() => void} action @returns {() => void} a function that does it once before the next frame, however often it is called */
export function onceAFrame(action) {
  let isWaiting = false;
  return () => {
    if (isWaiting) return;
    isWaiting = true;
    requestAnimationFrame(() => {
      isWaiting = false;
      action();
    });
  };
}
