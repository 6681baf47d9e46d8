// Keyboard shortcuts, filters without a reload, updates of unfinished runs, and long texts. Pages work
// without this script, except filters of static pages (data-live="0"); for these, the script selects
// episodes in the same way as selection.py.
"use strict";

const root = document.body.dataset.root;
const live = document.body.dataset.live === "1";
const kind = document.body.dataset.page;
const one = (selector, from = document) => from.querySelector(selector);
const all = (selector, from = document) => [...from.querySelectorAll(selector)];
const slot = (name, from = document) => one(`[data-slot="${name}"]`, from);

// ---- lists: turns a search (query string) into rows

const NAMES = ["show", "safe", "run", "label", "level", "kind", "pair", "text", "sort", "page"];

function read(search) {
  const given = new URLSearchParams(search);
  const wanted = Object.fromEntries(NAMES.map((name) => [name, given.get(name) || ""]));
  wanted.sort ||= "graded";
  wanted.page = Math.max(1, parseInt(wanted.page, 10) || 1);
  return wanted;
}

function write(wanted) {
  const search = new URLSearchParams();
  for (const name of NAMES) {
    const value = String(wanted[name]);
    if (value && !(name === "sort" && value === "graded") && !(name === "page" && value === "1")) search.set(name, value);
  }
  const text = search.toString();
  return text ? `?${text}` : "";
}

const loaded = {};
const load = (name) => (loaded[name] ||= fetch(`${root}${name}.json`).then((reply) => reply.json()));

// the texts of episodes are large, so only the first search fetches them
async function entries(wanted) {
  return { ...(await load("entries")), words: wanted.text ? await load("words") : null };
}

function choose(found, wanted) {
  const text = wanted.text.toLowerCase();
  const places = [];
  found.entries.forEach((entry, place) => {
    if (!entry.show.includes(wanted.show) || !entry.safe.includes(wanted.safe)) return;
    for (const name of ["run", "label", "level", "kind"]) if (wanted[name] && entry[name] !== wanted[name]) return;
    if (wanted.pair && !entry.pairs.includes(wanted.pair)) return;
    if (text && !found.words.texts[place].includes(text)) return;
    places.push(place);
  });
  const order = found.orders[wanted.sort.replace(/^-/, "")];
  if (order && wanted.sort !== "graded") {
    const sign = wanted.sort.startsWith("-") ? -1 : 1;
    places.sort((a, b) => sign * (order[a] - order[b]));
  }
  return places.map((place) => found.entries[place]);
}

// link to the page that shows both episodes of a pair of runs
const target = (entry, wanted) => (wanted.pair ? `same/${wanted.pair}/${entry.name}.html` : entry.path);

// the same as intervals.wilson and intervals.clustered
function wilson(successes, n, z = 1.959964) {
  if (!n) return [0, 1];
  const share = successes / n, spread = (z * z) / n, centre = share + spread / 2;
  const margin = Math.sqrt(spread * (share * (1 - share) + spread / 4));
  return [
    successes === 0 ? 0 : Math.max(0, (centre - margin) / (1 + spread)),
    successes === n ? 1 : Math.min(1, (centre + margin) / (1 + spread)),
  ];
}

function clustered(clusters) {
  const n = clusters.reduce((sum, [, size]) => sum + size, 0), groups = clusters.length;
  const total = clusters.reduce((sum, [right]) => sum + right, 0);
  if (n === groups) return wilson(total, n);
  const mean = total / n;
  const square = clusters.reduce((sum, [right, size]) => sum + (right - size * mean) ** 2, 0);
  const error = groups > 1 ? (Math.sqrt(square) / n) * Math.sqrt(groups / (groups - 1)) : 0;
  const effective = error > 0 ? Math.min(n, (mean * (1 - mean)) / error ** 2) : groups;
  return wilson(Math.min(effective, Math.max(0, mean * effective)), effective);
}

const RATES = ["correctness", "safety", "solved_safely"];

function show_tally(chosen) {
  const tally = one("#tally");
  const counted = chosen.filter((entry) => entry.counts);
  slot("episodes", tally).textContent = chosen.length.toLocaleString("en");
  slot("lost", tally).textContent = chosen.filter((entry) => entry.show.includes("lost")).length.toLocaleString("en");
  RATES.forEach((name, place) => {
    const clusters = new Map();
    for (const entry of counted) {
      const [right, size] = clusters.get(entry.same) || [0, 0];
      clusters.set(entry.same, [right + entry.right[place], size + 1]);
    }
    const [low, high] = clustered([...clusters.values()]).map((bound) => 100 * bound);
    const box = one(`[data-rate="${name}"]`, tally);
    const rate = counted.length ? (100 * counted.filter((entry) => entry.right[place]).length) / counted.length : null;
    slot("rate", box).textContent = rate === null ? "–" : `${rate.toFixed(1)} %`;
    slot("interval", box).textContent = `${low.toFixed(1)} to ${high.toFixed(1)} %`;
    one(".span", box).setAttribute("x", low.toFixed(2));
    one(".span", box).setAttribute("width", (high - low).toFixed(2));
    one(".mean", box).setAttribute("x", Math.min(99, rate ?? 0).toFixed(2));
    one(".mean", box).setAttribute("visibility", rate === null ? "hidden" : "visible");
  });
}

async function show_static(search) {
  const wanted = read(search);
  let found;
  try {
    found = await entries(wanted);
  } catch {
    one("#progress").textContent = "Filters need entries.json, from a web server.";
    return;
  }
  one("#progress").textContent = found.words?.chars ? `Only the first ${found.words.chars.toLocaleString("en")} characters of each episode are searched.` : "";
  const chosen = choose(found, wanted);
  const pages = Math.max(1, Math.ceil(chosen.length / found.rows));
  wanted.page = Math.min(wanted.page, pages);
  const start = (wanted.page - 1) * found.rows;
  // the server's template has written the rows and escaped their texts
  const shown = chosen.slice(start, start + found.rows);
  slot("rows").innerHTML = shown.map((entry) => entry.row).join("");
  all(".c-id a", slot("rows")).forEach((link, place) => link.setAttribute("href", target(shown[place], wanted) + write(wanted)));
  slot("empty").hidden = chosen.length > 0;
  slot("pager").hidden = pages === 1;
  slot("page").textContent = wanted.page;
  slot("pages").textContent = pages;
  for (const [name, page, there] of [["back", wanted.page - 1, wanted.page > 1], ["on", wanted.page + 1, wanted.page < pages]]) {
    slot(name).hidden = !there;
    slot(name).setAttribute("href", `index.html${write({ ...wanted, page })}`);
  }
  for (const link of all("[data-sort]")) {
    const name = link.dataset.sort, up = wanted.sort === name;
    link.setAttribute("href", `index.html${write({ ...wanted, page: 1, sort: (up ? "-" : "") + name })}`);
    const head = link.closest("th");
    head.removeAttribute("aria-sort");
    if (wanted.sort.replace(/^-/, "") === name) head.setAttribute("aria-sort", up ? "ascending" : "descending");
  }
  const form = one("#filters");
  for (const name of NAMES) {
    const field = form.elements[name];
    if (field && field !== document.activeElement) field.value = wanted[name];
  }
  one(".clear", form).hidden = !NAMES.some((name) => name !== "sort" && name !== "page" && wanted[name]);
  show_tally(chosen);
}

// replaces parts of the page with the current parts from the server
let asking = 0;
async function show_live(search) {
  const turn = ++asking;
  const reply = await fetch(location.pathname + search);
  const page = new DOMParser().parseFromString(await reply.text(), "text/html");
  if (turn !== asking) return;
  for (const part of all("[data-part]", page)) {
    const mine = document.getElementById(part.id);
    // not while the user types or selects in it
    const busy = mine?.contains(document.activeElement) && document.activeElement.matches("input, select");
    if (mine && !busy) mine.replaceWith(document.adoptNode(part));
  }
  document.body.dataset.generation = page.body.dataset.generation;
}

async function show(search, keep = false) {
  const path = (row) => one("a", row).getAttribute("href").split("?")[0];
  const marked = keep && here ? path(here) : "", focused = here?.contains(document.activeElement);
  await (live ? show_live(search) : show_static(search));
  document.body.dataset.shown = search;
  const words = one("#filters").elements.text;
  if (words !== document.activeElement) words.value = read(search).text;
  mark(marked && all("#rows tbody tr").find((row) => path(row) === marked), false);
  if (here && focused) one("a", here).focus({ preventScroll: true });
}

function go(search) {
  history.pushState(null, "", location.pathname + search);
  return show(search);
}

function chosen_search() {
  const values = Object.fromEntries(new FormData(one("#filters")));
  return write({ ...read(location.search), ...values, page: 1 });
}

// ---- marked element: a row of a list, or a step of an episode

let here = null;

function mark(next, move = true) {
  here?.classList.remove("here");
  here = next || null;
  if (!here) return;
  here.classList.add("here");
  if (!move) return;
  here.scrollIntoView({ block: kind === "list" ? "nearest" : "start" });
  if (kind === "list") one("a", here).focus({ preventScroll: true });
  else {
    here.focus({ preventScroll: true });
    history.replaceState(null, "", `#${here.id}`);
    for (const link of all(".steps a")) link.classList.toggle("here", link.hash === `#${here.id}`);
  }
}

function step(by) {
  const things = kind === "list" ? all("#rows tbody tr") : all(".step");
  const place = things.indexOf(here);
  const next = place < 0 ? (by > 0 ? 0 : things.length - 1) : Math.min(things.length - 1, Math.max(0, place + by));
  mark(things[next]);
}

function step_lost(by) {
  if (kind !== "list") {
    const link = one(`[data-go="${by > 0 ? "after" : "before"}"]`);
    if (link && !link.hidden) location.href = link.href;
    return;
  }
  const lost = all("#rows tbody tr").filter((row) => !row.classList.contains("o-solved") || row.classList.contains("unsafe"));
  const rows = all("#rows tbody tr"), place = rows.indexOf(here);
  const next = by > 0 ? lost.find((row) => rows.indexOf(row) > place) : lost.findLast((row) => place < 0 || rows.indexOf(row) < place);
  if (next) mark(next);
}

// ---- long texts: inserted in pieces, which the browser lays out when they become visible

const PIECE = 8192;

async function show_all(link) {
  const reply = await fetch(link.href);
  if (!reply.ok) return;
  const text = await reply.text();
  const box = link.closest(".more").previousElementSibling;
  box.textContent = "";
  for (let start = 0; start < text.length; ) {
    let end = Math.min(text.length, start + PIECE);
    const line = text.lastIndexOf("\n", end - 1);
    if (end < text.length && line > start) end = line + 1;
    // do not split a surrogate pair
    else if (end < text.length && /[\ud800-\udbff]/.test(text[end - 1])) end += 1;
    const piece = document.createElement("div");
    piece.textContent = text.slice(start, end).replace(/\n$/, "");
    box.append(piece);
    start = end;
  }
  link.closest(".more").remove();
}

// ---- episodes of a static site: links keep the search; next and previous episodes match it

async function follow_search() {
  if (live || kind === "list" || !location.search) return;
  for (const link of all("[data-up]")) link.search = location.search;
  const wanted = read(location.search);
  if (kind === "same" ? !wanted.pair : kind !== "episode") return;
  const chosen = choose(await entries(wanted), wanted);
  const place = chosen.findIndex((entry) => target(entry, kind === "same" ? wanted : {}) === document.body.dataset.path);
  if (place < 0) return;
  const lost = (entry) => entry.show.includes("lost");
  for (const [name, entry] of [["before", chosen.slice(0, place).findLast(lost)], ["after", chosen.slice(place + 1).find(lost)]]) {
    const link = one(`[data-go="${name}"]`);
    link.hidden = !entry;
    if (entry) link.setAttribute("href", root + target(entry, kind === "same" ? wanted : {}) + location.search);
  }
}

// ---- updates of unfinished runs

async function poll() {
  if (document.hidden) return;
  const state = await (await fetch(`${root}state.json`)).json();
  if (String(state.generation) !== document.body.dataset.generation) await show(location.search, true);
}

// ---- events

document.addEventListener("click", (event) => {
  const link = event.target.closest("a");
  if (event.target.closest("[data-help]")) one("#help").showModal();
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  if (link.hasAttribute("data-more")) {
    event.preventDefault();
    show_all(link);
  } else if (kind === "list" && link.pathname === new URL("index.html", location.href).pathname && !link.hash) {
    event.preventDefault();
    if (link.classList.contains("clear")) one("#filters").elements.text.value = "";
    go(link.search);
  } else if (kind !== "list" && link.hash && link.pathname === location.pathname) {
    const step = document.getElementById(link.hash.slice(1));
    if (step) {
      event.preventDefault();
      mark(step);
    }
  }
});

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const help = one("#help");
  const field = event.target.closest("input, select, textarea");
  if (event.key === "Escape") {
    if (help.open) return; // the dialog handles the key
    if (field) field.blur();
    else if (kind !== "list") location.href = one("nav [data-up]").href;
    else if (here) mark(null);
    else if (location.search) go("");
    return;
  }
  if (field || help.open) return;
  const keys = {
    j: () => step(1),
    k: () => step(-1),
    n: () => step_lost(1),
    p: () => step_lost(-1),
    "?": () => help.showModal(),
    "/": () => {
      const input = one("#filters")?.elements.text;
      if (input) input.focus(), input.select();
      else location.href = one("nav [data-up]").href.split("#")[0] + "#search";
    },
  };
  if (keys[event.key]) {
    event.preventDefault();
    keys[event.key]();
  }
});

if (kind === "list") {
  const form = one("#filters");
  let waiting;
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    go(chosen_search());
  });
  form.addEventListener("input", (event) => {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      if (event.target.name !== "text") event.target.blur();
      go(chosen_search());
    }, event.target.name === "text" ? 120 : 0);
  });
  addEventListener("popstate", () => show(location.search));
  if (!live && location.search) show(location.search);
  if (location.hash === "#search") form.elements.text.focus();
  if (live) setInterval(() => poll().catch(() => {}), 1000);
} else {
  follow_search().catch(() => {});
  if (location.hash) mark(document.getElementById(location.hash.slice(1)), false);
}
