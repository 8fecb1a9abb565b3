// Keeps the page and its models, so that it works without a network once loaded. It asks the network first. It leaves
// all other addresses alone, and keeps no answer of another program that listens here later: those lack the header MARK.
const CACHE = "fedgram-keyboard-5";
const MARK = "Fedgram-Keyboard";
const MODULES = [
  "page", "dom", "phone", "keys", "fingers", "real_keys", "panels", "simulation", "session", "text", "typing", "taps", "glide",
  "candidates", "lexicon", "languages", "layout", "multilingual", "personal", "fgram", "fgram_words", "fgram_lists",
  "fgram_frame", "fgram_bits",
];
const FILES = ["./", "models.json", "static/style.css", "static/icon.svg", ...MODULES.map((name) => `static/${name}.js`)];
const OWN = new Set([...FILES, "models/0.fgram", "models/1.fgram", "models/2.fgram", "models/3.fgram"].map((name) => new URL(name, self.location).href));

self.addEventListener("install", (event) => {
  event.waitUntil((async () => {
    const cache = await caches.open(CACHE);
    const models = await (await fetch("models.json")).json();
    await cache.addAll([...FILES, ...models.map(({ url }) => url)]);
    await self.skipWaiting();
  })());
});

self.addEventListener("activate", (event) => {
  event.waitUntil((async () => {
    const earlier = (await caches.keys()).filter((name) => name.startsWith("fedgram-keyboard-") && name !== CACHE);
    await Promise.all(earlier.map((name) => caches.delete(name)));
    await self.clients.claim();
  })());
});

self.addEventListener("fetch", (event) => {
  if (event.request.method !== "GET" || !OWN.has(event.request.url.split("#")[0])) return;
  event.respondWith((async () => {
    const cache = await caches.open(CACHE);
    try {
      const answer = await fetch(event.request);
      if (answer.ok && answer.headers.has(MARK)) await cache.put(event.request, answer.clone());
      return answer;
    } catch (error) {
      const kept = await cache.match(event.request);
      if (kept) return kept;
      throw error;
    }
  })());
});
