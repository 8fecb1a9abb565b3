// @ts-check
/** The words that can be typed on a layout, as a trie over their keys. The twin of the Python module `lexicon`. */

import { Layout } from "./layout.js";

export const MAX_LETTERS = 32;

/** Words by what is typed for them: a trie, children the most promising first. */
export class Lexicon {
  /** @param {Layout} layout @param {string[]} keys @param {number[]} words @param {number[]} logP */
  constructor(layout, keys, words, logP) {
    const canType = (/** @type {string} */ key) =>
      key.length > 0 && key.length <= MAX_LETTERS && Array.from(key).every((c) => layout.rank.has(c));
    const typed = keys.map((_, i) => i).filter((i) => canType(keys[i]));
    typed.sort((a, b) => (keys[a] < keys[b] ? -1 : keys[a] > keys[b] ? 1 : a - b));
    this.keys = typed.map((i) => keys[i]);
    this.words = Int32Array.from(typed, (i) => words[i]);
    this.logP = Float64Array.from(typed, (i) => logP[i]);
    this._build(layout);
  }

  /** @param {Layout} layout */
  _build(layout) {
    let nodes = 1;
    this.keys.forEach((key, w) => {
      const before = w > 0 ? this.keys[w - 1] : "";
      let shared = 0;
      while (shared < key.length && key[shared] === before[shared]) shared++;
      nodes += key.length - shared;
    });
    this.letter = new Int32Array(nodes).fill(-1);
    this.depth = new Int32Array(nodes);
    this.child = new Int32Array(nodes).fill(-1);
    this.sibling = new Int32Array(nodes).fill(-1);
    this.best = new Float64Array(nodes).fill(-Infinity);
    this.firstWord = new Int32Array(nodes + 1).fill(this.keys.length);
    this.firstWord[0] = 0;
    const path = new Int32Array(MAX_LETTERS + 1);
    let [made, depth] = [1, 0];
    this.keys.forEach((key, w) => {
      const spelled = Array.from(key, (c) => /** @type {number} */ (layout.rank.get(c)));
      let shared = 0;
      while (shared < Math.min(spelled.length, depth) && this.letter[path[shared + 1]] === spelled[shared]) shared++;
      for (let k = shared; k < spelled.length; k++, made++) {
        const parent = path[k];
        this.letter[made] = spelled[k];
        this.sibling[made] = this.child[parent];
        this.child[parent] = made;
        this.firstWord[made] = w;
        path[k + 1] = made;
        this.depth[made] = k + 1;
      }
      depth = spelled.length;
      for (let k = 0; k <= depth; k++) this.best[path[k]] = Math.max(this.best[path[k]], this.logP[w]);
    });
    for (let node = 0; node < nodes; node++) this._sortChildren(node);
  }

  /** @param {number} node */
  _sortChildren(node) {
    const children = [];
    for (let c = this.child[node]; c >= 0; c = this.sibling[c]) children.push(c);
    if (children.length < 2) return;
    children.sort((a, b) => this.best[b] - this.best[a]);
    this.child[node] = children[0];
    children.forEach((c, i) => (this.sibling[c] = i + 1 < children.length ? children[i + 1] : -1));
  }
}
