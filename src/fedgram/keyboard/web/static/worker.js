// Keeps the page and its models, so that it works without a network once loaded. It asks the network first.
const CACHE = "fedgram-keyboard-3";
const MODULES = [
  "page", "session", "typing", "taps", "glide", "candidates", "lexicon", "layout", "personal", "fgram", "fgram_words",
  "fgram_lists", "fgram_frame", "fgram_bits",
];
const FILES = ["./", "models.json", "static/style.css", "static/icon.svg", ...MODULES.map((name) => `static/${name}.js`)];

self.addEventListener("install", (event) => {
  event.waitUntil((async () => {
    const cache = await caches.open(CACHE);
    const models = await (await fetch("models.json")).json();
    await cache.addAll([...FILES, ...models.map(({ url }) => url)]);
    await self.skipWaiting();
  })());
});

self.addEventListener("activate", (event) => event.waitUntil(self.clients.claim()));

self.addEventListener("fetch", (event) => {
  if (event.request.method !== "GET" || new URL(event.request.url).origin !== self.location.origin) return;
  event.respondWith((async () => {
    const cache = await caches.open(CACHE);
    try {
      const answer = await fetch(event.request);
      if (answer.ok) await cache.put(event.request, answer.clone());
      return answer;
    } catch (error) {
      const kept = await cache.match(event.request);
      if (kept) return kept;
      throw error;
    }
  })());
});
