// The review itself: queue, keys, verdicts. Each verdict is on disk before the next pair is shown.

import { ask, send } from "./api.js";
import { draw, element } from "./pair.js";
import * as pictures from "./pictures.js";

const $ = (id) => document.getElementById(id);
const settings = JSON.parse($("settings").textContent);
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

function load({ original, edited }) {
  return { original: original ? pictures.load(original) : null, edited: pictures.load(edited) };
}

function present({ pair: next, loaded }) {
  pair = next;
  pending = null;
  $("review").hidden = false;
  $("done").hidden = true;
  draw(pair, answer);
  const name = `image of ${pair.item}`;
  pictures.show(loaded, { original: `Original ${name}`, edited: `Edited ${name}` });
  wait(null);
  clock = { since: performance.now(), away: 0, leftAt: document.hidden ? performance.now() : 0 };
  remember();
  const newAnswer = pair.hidden ? "" : ` New answer: ${pair.new_text}.`;
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
    const place = { reviewer, edit_id: pair.edit_id, image_sha256: pair.image_sha256 };
    const counts = await send("/api/verdicts", { ...place, ...verdict }, { category: filters().category });
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
    const place = { reviewer, edit_id: pair.edit_id, image_sha256: pair.image_sha256 };
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
  $("why").textContent = decision === "unsure" ? "Unsure because" : "Reject because";
  for (const button of document.querySelectorAll("[data-decision]")) {
    const chosen = decision ?? pair?.mine?.decision;
    button.setAttribute("aria-pressed", String(button.dataset.decision === chosen));
  }
  if (decision) announce(`${$("why").textContent}: 1 to ${settings.reasons.length}, or the same key again for no reason.`);
}

function choose(decision) {
  if (!pair || pair.hidden) return;
  if (decision === "keep" || decision === pending) decide(decision);
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
  const done = counts.keep + counts.reject + counts.unsure;
  $("bar").max = total;
  $("bar").value = done;
  const parts = [`${done} of ${total}`, `${counts.keep} kept`, `${counts.reject} rejected`];
  if (counts.unsure) parts.push(`${counts.unsure} unsure`);
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
  if (front) announce(front === "edited" ? "Edited picture" : "Original picture");
}

const KEYS = {
  k: () => choose("keep"),
  r: () => choose("reject"),
  u: () => choose("unsure"),
  z: undo,
  n: () => $("note").focus(),
  f: flip,
  s: pictures.beside,
  c: () => toggle("caption"),
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
  else if (pair && settings.reasons[value - 1]) decide(pending ?? "reject", settings.reasons[value - 1]);
}

document.addEventListener("keydown", (event) => {
  const { key, target } = event;
  if (document.querySelector("dialog[open]")) return;
  if (target.matches("input, select, textarea")) {
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
  const action = /^[0-9]$/.test(key) ? () => digit(Number(key)) : KEYS[key.length === 1 ? key.toLowerCase() : key];
  if (!action) return;
  if (key.length === 1) event.preventDefault(); // keeps the shortcut N out of the note
  action();
});

for (const button of document.querySelectorAll("[data-decision]")) {
  button.addEventListener("click", () => choose(button.dataset.decision));
}
settings.reasons.forEach((reason, index) => {
  const button = element("button");
  button.type = "button";
  button.append(element("kbd", String(index + 1)), " ", element("span", reason));
  button.addEventListener("click", () => decide(pending ?? "reject", reason));
  $("reasons").append(button);
});
const none = element("button", "no reason", "none");
none.type = "button";
none.addEventListener("click", () => pending && decide(pending));
$("reasons").append(none);

$("undo").addEventListener("click", undo);
$("done-undo").addEventListener("click", undo);
$("back").addEventListener("click", KEYS.ArrowLeft);
$("next").addEventListener("click", KEYS.ArrowRight);
$("flip").addEventListener("click", flip);
$("beside").addEventListener("click", pictures.beside);
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
