"use strict";
// The manual can be read without this. It adds buttons that copy code, and the search.

for (const button of document.querySelectorAll(".copy")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const code = button.previousElementSibling;
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch { // only secure origins have a clipboard: select the text instead
      getSelection().selectAllChildren(code);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
}

const here = document.querySelector("nav.pages [aria-current]");
if (here) {
  const nav = here.closest("nav");
  nav.scrollTop = here.offsetTop - nav.offsetTop - nav.clientHeight / 2;
}

const mostWords = 60;    // words of a query that count
const mostResults = 20;
const mostEndings = 60;  // words of the index that a word of the query may begin
const usualWords = 150;  // of a section; words of a longer one count less
const inTitle = 8, inPageTitle = 3, inText = 1, begun = 0.45; // weights
const background = /^(changelog|architecture|threat-model|readme|format\/)/; // pages that few look for
const languageWeight = 0.6; // of pages in another language than this one

// words splits text: letters and digits, and pairs of characters where a script has no blanks.
function words(text) {
  const list = [];
  for (const [word] of text.toLowerCase().matchAll(/[\p{L}\p{N}]+/gu)) {
    for (const [part] of word.matchAll(/[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}]+|[^\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}]+/gu)) {
      const letters = [...part];
      if (!/^[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}]/u.test(part) || letters.length < 2) {
        list.push(part);
        continue;
      }
      for (let i = 0; i + 1 < letters.length; i++) { list.push(letters[i] + letters[i + 1]); }
    }
  }
  return list;
}

// An Index knows in which sections a word is, and how much it counts there.
class Index {
  constructor(data) {
    this.pages = data.pages;
    this.places = new Map(); // word to a map of section to weight
    this.sections = data.sections.map(([page, anchor, title, text, level, message], number) => {
      const own = new Set(words(title.replace(/<[^>]*>/g, message ? " " : "$&"))); // a placeholder of a message stands for anything
      const body = words(text);
      const weight = message ? inTitle : inText * Math.min(1, Math.sqrt(usualWords / body.length)); // the text of a message is its remedy
      for (const word of body) { this.put(word, number, weight); }
      for (const word of words(message ? "" : this.pages[page][1])) { this.put(word, number, inPageTitle); }
      for (const word of own) { this.put(word, number, inTitle); }
      return {page, anchor, title, text, level, message: Boolean(message), own};
    });
    this.known = [...this.places.keys()].sort();
  }

  put(word, number, weight) {
    let places = this.places.get(word);
    if (!places) { this.places.set(word, places = new Map()); }
    places.set(number, Math.max(places.get(number) ?? 0, weight));
  }

  rarity(word) { return Math.log(1 + this.sections.length / (this.places.get(word)?.size ?? 1)); }

  // beginning returns known words that begin with a word, itself first.
  beginning(word) {
    let low = 0, high = this.known.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.known[middle] < word) { low = middle + 1; } else { high = middle; }
    }
    const list = [];
    for (; low < this.known.length && list.length < mostEndings && this.known[low].startsWith(word); low++) { list.push(this.known[low]); }
    return list;
  }

  // search returns the best sections for a query, the best first. A pasted message has words that no page can know: sections are
  // ranked by the words that they share, and a message by how much of it the query has.
  search(query, lang) {
    const asked = [...new Set(words(query))].slice(0, mostWords);
    const scores = new Map(); // section to its score and the words' share
    let total = 0;
    for (const word of asked) {
      const rarity = this.rarity(word);
      total += rarity;
      const best = new Map();
      const begins = word.length > 1 || asked.length === 1 ? this.beginning(word) : [word];
      for (const known of begins) {
        for (const [number, weight] of this.places.get(known) ?? []) {
          best.set(number, Math.max(best.get(number) ?? 0, weight * (known === word ? 1 : begun)));
        }
      }
      for (const [number, weight] of best) {
        const s = scores.get(number) ?? {score: 0, share: 0};
        s.score += rarity * weight;
        s.share += rarity;
        scores.set(number, s);
      }
    }
    const results = [];
    for (const [number, s] of scores) {
      const section = this.sections[number];
      let score = s.score * (s.share / total) ** (section.message ? 1 : 2) * this.fit(section, asked);
      if (this.pages[section.page][2] !== lang) { score *= languageWeight; }
      results.push({section, score, share: s.share / total});
    }
    results.sort((a, b) => b.score - a.score || a.section.level - b.section.level);
    const whole = results.filter((r) => r.share > 0.99);
    return (asked.length <= 3 && whole.length > 0 ? whole : results).slice(0, mostResults);
  }

  // fit weighs how much of a title was asked for; pages count more than their sections.
  fit(section, asked) {
    let own = 0, shared = 0;
    for (const word of section.own) {
      const rarity = this.rarity(word);
      own += rarity;
      if (asked.some((a) => word === a || (a.length > 2 && word.startsWith(a)))) { shared += rarity; }
    }
    const part = own > 0 ? shared / own : 0;
    if (section.message) { return asked.length > 3 ? 0.1 + 2 * part ** 2 : 0.05 + 0.6 * part; }
    if (this.pages[section.page][0] === "reference/glossary.html") { return 0.6 + part / 2; }
    return (1 + part) * (section.level === 1 ? 1.3 : 1) * (background.test(this.pages[section.page][0]) ? 0.4 : 1);
  }
}

const box = document.getElementById("q");
const found = document.getElementById("found");
const list = document.getElementById("results");
const root = document.body.dataset.root;
let index = null, loading = false, chosen = -1;

// manualIndex is called by assets/index.js.
globalThis.manualIndex = (data) => {
  index = new Index(data);
  show();
};

// find returns the results of a query as data, for tests.
globalThis.manualFind = (query) => index?.search(query, document.documentElement.lang)
  .map((r) => ({path: index.pages[r.section.page][0], anchor: r.section.anchor, title: r.section.title, message: r.section.message}));

function load() {
  if (index || loading) { return; }
  loading = true;
  const script = document.createElement("script");
  script.src = root + "assets/index.js";
  document.head.append(script);
}

// marked appends text with the words of the query marked.
function marked(to, text, asked) {
  let at = 0;
  for (const m of text.matchAll(/[\p{L}\p{N}]+/gu)) {
    const word = m[0].toLowerCase();
    if (!asked.some((a) => word.startsWith(a) || (/\p{Script=Han}/u.test(a) && word.includes(a)))) { continue; }
    to.append(text.slice(at, m.index));
    const mark = document.createElement("mark");
    mark.textContent = m[0];
    to.append(mark);
    at = m.index + m[0].length;
  }
  to.append(text.slice(at));
}

// excerpt returns the part of a text around the first word of the query.
function excerpt(text, asked) {
  const lower = text.toLowerCase();
  let first = text.length;
  for (const a of asked) {
    const at = lower.indexOf(a);
    if (at >= 0 && at < first) { first = at; }
  }
  const from = first === text.length || first < 60 ? 0 : lower.lastIndexOf(" ", first - 40) + 1;
  return (from > 0 ? "… " : "") + text.slice(from, from + 160) + (from + 160 < text.length ? " …" : "");
}

function show() {
  const query = box.value.trim();
  found.hidden = query === "";
  box.setAttribute("aria-expanded", String(!found.hidden));
  list.replaceChildren();
  chosen = -1;
  if (query === "") { return; }
  const count = document.getElementById("count");
  if (!index) {
    count.textContent = "Loading…";
    return;
  }
  const asked = [...new Set(words(query))].filter((w) => w.length > 1);
  const results = index.search(query, document.documentElement.lang);
  count.textContent = results.length === 0 ? "Nothing found" : results.length === mostResults ? "The best " + mostResults : results.length + (results.length === 1 ? " result" : " results");
  for (const [number, {section}] of results.entries()) {
    const [path, title] = index.pages[section.page];
    const item = document.createElement("li");
    item.role = "option";
    item.id = "result" + number;
    const link = document.createElement("a");
    link.href = root + path + (section.anchor && section.level > 1 ? "#" + section.anchor : "");
    const name = document.createElement("strong");
    marked(name, section.title, asked);
    link.append(name);
    if (section.title !== title) {
      const where = document.createElement("span");
      where.className = "where";
      where.textContent = title;
      link.append(where);
    }
    const text = document.createElement("span");
    text.className = "text";
    marked(text, excerpt(section.text, asked), asked);
    link.append(text);
    item.append(link);
    list.append(item);
  }
}

function choose(next) {
  const items = [...list.children];
  if (items.length === 0) { return; }
  chosen = (next + items.length) % items.length;
  items.forEach((item, i) => { item.setAttribute("aria-selected", String(i === chosen)); });
  box.setAttribute("aria-activedescendant", items[chosen].id);
  items[chosen].scrollIntoView({block: "nearest"});
}

if (box) {
  box.closest(".search").hidden = false;
  box.addEventListener("focus", load);
  box.addEventListener("input", () => { load(); show(); });
  box.addEventListener("keydown", (e) => {
    if (e.key === "ArrowDown") { choose(chosen + 1); } else if (e.key === "ArrowUp") { choose(chosen - 1); } else if (e.key === "Escape") {
      box.value = "";
      show();
    } else if (e.key === "Enter") { list.children[Math.max(chosen, 0)]?.querySelector("a").click(); } else { return; }
    e.preventDefault();
  });
  document.addEventListener("keydown", (e) => {
    if (e.key === "/" && !/^(INPUT|TEXTAREA)$/.test(document.activeElement.tagName)) {
      e.preventDefault();
      box.focus();
    }
  });
  document.addEventListener("click", (e) => {
    if (!e.target.closest(".search")) { found.hidden = true; } else if (e.target === box && box.value !== "") { found.hidden = false; }
    if (e.target.closest("#results a")) { found.hidden = true; }
    if (e.target.closest("nav.pages a, nav.inside a")) { document.getElementById("menu").checked = false; }
  });
}
