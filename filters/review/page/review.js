// The review itself: queue, keys, verdicts. Each verdict is on disk before the next pair is shown.

import { ask, send } from "./api.js";
import { draw, element } from "./pair.js";
import * as notes from "./notes.js";
import * as pictures from "./pictures.js";

const $ = (id) => document.getElementById(id);
const settings = JSON.parse($("settings").textContent);
const SIDES = settings.sides.map((side) => side[0].toUpperCase() + side.slice(1));
const doubt = settings.labels.find(({ why }) => why); // the label of a reason that is chosen directly
const AHEAD = 2;
const cache = new Map(); // position → promise of {pair, loaded}
const pace = JSON.parse(sessionStorage.getItem("flipbench-pace") ?? "[]");
let reviewer = sessionStorage.getItem("flipbench-reviewer") ?? localStorage.getItem("flipbench-reviewer") ?? "";
let queue = [];
let at = 0;
let pair = null;
let pending = null; // the decision that still needs a reason
let busy = false;
let clock = { since: 0, away: 0, leftAt: 0 };

// ------------------------------------------------------------------------------ queue

function filters() {
  return { show: $("show").value, judges: $("judges")?.value ?? "", category: $("category")?.value ?? "" };
}

async function refill() {
  const reply = await ask("/api/queue", { reviewer, ...filters() });
  reviewer = reply.reviewer;
  queue = reply.positions;
  cache.clear();
  progress(reply);
}

async function begin() {
  const position = Number(new URLSearchParams(location.search).get("pair") ?? -1);
  remember();
  await refill();
  await go(filters().show === "undecided" ? 0 : Math.max(0, queue.indexOf(position)));
}

async function go(index) {
  if (index >= queue.length) {
    await refill(); // skipped pairs come up again
    if (!queue.length || filters().show !== "undecided") return finish();
    index = 0;
  }
  at = Math.max(0, index);
  const entry = await fetched(queue[at]);
  await Promise.all(Object.values(entry.loaded).map((picture) => picture?.ready));
  present(entry);
  for (let step = 1; step <= AHEAD && at + step < queue.length; step++) fetched(queue[at + step]).catch(() => {});
  for (const position of cache.keys()) {
    const distance = queue.indexOf(position, Math.max(0, at - 1)) - at;
    if (distance < -1 || distance > AHEAD) cache.delete(position);
  }
}

function fetched(position) {
  if (!cache.has(position)) {
    const entry = ask(`/api/pairs/${position}`, { reviewer }).then((fetchedPair) => ({
      pair: fetchedPair,
      loaded: load(fetchedPair),
    }));
    entry.catch(() => cache.delete(position));
    cache.set(position, entry);
  }
  return cache.get(position);
}

function load({ left, right }) {
  return { left: left ? pictures.load(left) : null, right: pictures.load(right) };
}

function present({ pair: next, loaded }) {
  pair = next;
  pending = null;
  $("review").hidden = false;
  $("done").hidden = true;
  draw(pair, answer);
  $("note").value = notes.get(reviewer, pair) ?? $("note").value;
  const [left, right] = SIDES.map((side) => `${side} image of ${pair.item}`);
  pictures.show(loaded, { left, right });
  wait(null);
  clock = { since: performance.now(), away: 0, leftAt: document.hidden ? performance.now() : 0 };
  remember();
  const newAnswer = pair.hidden || !pair.new_text ? "" : ` New answer: ${pair.new_text}.`;
  announce(`Pair ${at + 1} of ${queue.length}. ${pair.question}${newAnswer} ${$("given").textContent}`);
  document.body.dataset.shown = String(pair.position);
}

function finish() {
  pair = null;
  $("review").hidden = true;
  $("done").hidden = false;
  const complete = filters().show === "undecided";
  $("done-title").textContent = complete ? "You have decided on every pair here." : "No more pairs here.";
  $("done-text").textContent = $("count").textContent;
  $("done-title").focus();
  document.body.dataset.shown = "done";
}

// ------------------------------------------------------------------------------ verdicts

async function work(job) {
  if (busy) return;
  busy = true;
  document.body.classList.add("busy");
  try {
    await job();
    $("trouble").hidden = true;
  } catch (error) {
    $("trouble").textContent = `Failed: ${error.message}`;
    $("trouble").hidden = false;
  } finally {
    busy = false;
    document.body.classList.remove("busy");
  }
}

function decide(decision, reason = "") {
  if (!pair || pair.hidden) return;
  work(async () => {
    const seconds = spent();
    const verdict = { decision, reason, note: $("note").value, seconds };
    const place = { reviewer, key: pair.key };
    const counts = await send("/api/verdicts", { ...place, ...verdict }, { category: filters().category });
    notes.drop(reviewer, pair);
    cache.delete(pair.position);
    pace.push(seconds);
    sessionStorage.setItem("flipbench-pace", JSON.stringify(pace.slice(-50)));
    progress(counts);
    await go(at + 1);
  });
}

function answer(text) {
  if (!pair?.hidden || !text.trim()) return;
  work(async () => {
    const place = { reviewer, key: pair.key };
    const found = await send("/api/answers", { ...place, answer: text.trim(), seconds: spent() });
    const loaded = load(found);
    await Promise.all(Object.values(loaded).map((picture) => picture?.ready));
    const kept = clock;
    cache.delete(found.position);
    present({ pair: found, loaded });
    clock = kept;
  });
}

function undo() {
  work(async () => {
    const found = await send("/api/undo", { reviewer }, { category: filters().category });
    if (found.position === null) {
      $("live").textContent = $("given").textContent = "There is nothing to undo since the server started.";
      return;
    }
    pace.pop();
    progress(found);
    cache.delete(found.position);
    let index = queue.indexOf(found.position);
    if (index < 0) queue.splice((index = Math.min(at, queue.length)), 0, found.position);
    await go(index);
    announce(`Taken back. ${$("live").textContent}`);
  });
}

function wait(decision) {
  pending = decision;
  const panel = document.querySelector(".decide");
  panel.classList.toggle("pending", Boolean(decision));
  for (const button of document.querySelectorAll("[data-decision]")) {
    const chosen = decision ?? pair?.mine?.decision;
    button.setAttribute("aria-pressed", String(button.dataset.decision === chosen));
  }
  if (!settings.reasons.length) return;
  $("why").textContent = (labelled(decision) ?? doubt).why;
  if (decision) announce(`${$("why").textContent}: 1 to ${settings.reasons.length}, or the same key again for no reason.`);
}

function labelled(decision) {
  return settings.labels.find(({ value }) => value === decision);
}

function choose(decision) {
  if (!pair || pair.hidden) return;
  if (!labelled(decision).why || decision === pending) decide(decision);
  else wait(decision);
}

function spent() {
  const away = clock.away + (clock.leftAt ? performance.now() - clock.leftAt : 0);
  return Math.max(0, performance.now() - clock.since - away) / 1000;
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) clock.leftAt = performance.now();
  else if (clock.leftAt) clock = { ...clock, away: clock.away + performance.now() - clock.leftAt, leftAt: 0 };
});

// ------------------------------------------------------------------------------ messages

function announce(text) {
  $("live").textContent = text;
}

function progress({ n_pairs: total, counts }) {
  const done = Object.values(counts).reduce((sum, n) => sum + n, 0);
  $("bar").max = total;
  $("bar").value = done;
  const parts = [`${done} of ${total}`];
  for (const { value, past, always_counted: always } of settings.labels) {
    if (always || counts[value]) parts.push(`${counts[value]} ${past}`);
  }
  const median = [...pace.slice(-50)].sort((a, b) => a - b)[Math.floor(Math.min(pace.length, 50) / 2)];
  if (pace.length >= 3 && median > 0) {
    parts.push(`${(60 / median).toFixed(median > 6 ? 1 : 0)} per minute`);
    if (done < total) parts.push(`${duration((total - done) * median)} left`);
  }
  $("count").replaceChildren(...parts.map((part) => element("span", part)));
}

function duration(seconds) {
  if (seconds < 90) return `${Math.ceil(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

function remember() {
  const entries = Object.entries({ ...filters(), pair: pair ? String(pair.position) : "" });
  const query = new URLSearchParams(entries.filter(([, value]) => value));
  history.replaceState(null, "", `/?${query}`); // also removes the token from the address bar
}

// ------------------------------------------------------------------------------ keys and buttons

function toggle(id) {
  if (!$(id).hidden) $(id).open = !$(id).open;
}

function flip() {
  const front = pictures.flip();
  if (front) announce(`${SIDES[front === "right" ? 1 : 0]} picture`);
}

const KEYS = {
  ...Object.fromEntries(settings.labels.map(({ key, value }) => [key, () => choose(value)])),
  z: undo,
  n: () => $("note").focus(),
  f: flip,
  s: () => pictures.look("beside"),
  w: () => pictures.look("swipe"),
  d: () => pictures.look("difference"),
  c: () => toggle("details"),
  o: () => toggle("others"),
  "+": () => pictures.zoomBy(1.5),
  "=": () => pictures.zoomBy(1.5),
  "-": () => pictures.zoomBy(1 / 1.5),
  "?": () => $("help").showModal(),
  Escape: () => wait(null),
  Enter: () => pending && decide(pending),
  ArrowRight: () => pair && work(() => go(at + 1)),
  ArrowLeft: () => pair && work(() => go(at - 1)),
};
const PANS = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] };

function digit(value) {
  if (pair?.hidden) document.querySelector(`#options [data-digit="${value}"]`)?.click();
  else if (value === 0) pictures.zoomOut();
  else if (pair && settings.reasons[value - 1]) decide(pending ?? doubt.value, settings.reasons[value - 1]);
}

document.addEventListener("keydown", (event) => {
  const { key, target } = event;
  if (document.querySelector("dialog[open]")) return;
  if (target.type === "range" && key.startsWith("Arrow")) return; // moves the divider
  if (target.matches("input:not([type=range]), select, textarea")) {
    if (target.id === "note" && (key === "Enter" || key === "Escape")) target.blur();
    return;
  }
  if ((event.ctrlKey || event.metaKey) && key === "z") return event.preventDefault(), undo();
  if (event.ctrlKey || event.metaKey || event.altKey || !$("keys-on").checked) return;
  if (event.shiftKey && PANS[key] && pictures.isZoomed()) {
    event.preventDefault();
    return pictures.pan(...PANS[key]);
  }
  if (event.repeat || (key === "Enter" && target.matches("button, a, summary"))) return;
  const named = KEYS[key.length === 1 ? key.toLowerCase() : key];
  const action = named ?? (/^[0-9]$/.test(key) && (() => digit(Number(key))));
  if (!action) return;
  if (key.length === 1) event.preventDefault(); // keeps the shortcut N out of the note
  action();
});

$("note").addEventListener("input", ({ target }) => pair && notes.keep(reviewer, pair, target.value));

function onClick(button, action) {
  // the second click of a double click would decide on the next pair, which nobody has seen
  button.addEventListener("click", ({ detail }) => detail < 2 && action());
}

for (const button of document.querySelectorAll("[data-decision]")) {
  onClick(button, () => choose(button.dataset.decision));
}
if (settings.reasons.length) {
  settings.reasons.forEach((reason, index) => {
    const button = element("button");
    button.type = "button";
    button.append(element("kbd", String(index + 1)), " ", element("span", reason));
    onClick(button, () => decide(pending ?? doubt.value, reason));
    $("reasons").append(button);
  });
  const none = element("button", "no reason", "none");
  none.type = "button";
  onClick(none, () => pending && decide(pending));
  $("reasons").append(none);
}

$("undo").addEventListener("click", undo);
$("done-undo").addEventListener("click", undo);
$("back").addEventListener("click", KEYS.ArrowLeft);
$("next").addEventListener("click", KEYS.ArrowRight);
$("flip").addEventListener("click", flip);
for (const mode of ["beside", "swipe", "difference"]) {
  $(mode)?.addEventListener("click", () => pictures.look(mode));
}
$("larger").addEventListener("click", () => pictures.zoomBy(1.5));
$("smaller").addEventListener("click", () => pictures.zoomBy(1 / 1.5));
$("help-button").addEventListener("click", () => $("help").showModal());
$("data-button").addEventListener("click", () => $("data").showModal());
$("filter-button").addEventListener("click", () => {
  const open = $("filters").classList.toggle("open");
  $("filter-button").setAttribute("aria-expanded", String(open));
});
$("name-button").addEventListener("click", () => introduce());
$("done-all").addEventListener("click", () => {
  $("show").value = "all";
  work(begin);
});
$("filters").addEventListener("submit", (event) => event.preventDefault());
$("filters").addEventListener("change", (event) => {
  event.target.blur();
  work(begin);
});
$("free").addEventListener("submit", (event) => {
  event.preventDefault();
  answer($("free-text").value);
  $("free-text").blur();
});
$("keys-on").checked = localStorage.getItem("flipbench-keys") !== "off";
$("keys-on").addEventListener("change", () => {
  localStorage.setItem("flipbench-keys", $("keys-on").checked ? "on" : "off");
});
$("file").addEventListener("change", async () => {
  const [file] = $("file").files;
  if (!file) return;
  try {
    const report = await send("/api/import", file, { name: file.name });
    $("imported").textContent = report.summary;
    $("import-problems").replaceChildren(...report.problems.map((problem) => element("li", problem)));
    await work(begin);
  } catch (error) {
    $("imported").textContent = error.message;
  }
  $("file").value = "";
});

// ------------------------------------------------------------------------------ the reviewer

function introduce(wrong = "") {
  $("name").value = reviewer;
  $("name-wrong").textContent = wrong;
  if (!$("start").open) $("start").showModal();
}

async function start() {
  try {
    await ask("/api/queue", { reviewer, show: "disagreement" });
  } catch (error) {
    return introduce(error.message);
  }
  sessionStorage.setItem("flipbench-reviewer", reviewer);
  localStorage.setItem("flipbench-reviewer", reviewer);
  $("name-button").textContent = reviewer;
  $("name-button").setAttribute("aria-label", `Reviewer: ${reviewer}. Change`);
  await work(begin);
}

$("start").addEventListener("cancel", (event) => reviewer || event.preventDefault());
$("start").addEventListener("close", () => {
  reviewer = $("name").value.trim();
  start();
});

const query = new URLSearchParams(location.search);
for (const name of ["show", "judges", "category"]) {
  const select = $(name);
  if (select && [...select.options].some((option) => option.value === query.get(name))) select.value = query.get(name);
}
if (query.has("token")) history.replaceState(null, "", "/");
if (reviewer) start();
else introduce();
