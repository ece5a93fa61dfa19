// Notes that were typed without a verdict: they wait in this tab until there is one.

const STORED = "flipbench-notes";
const notes = new Map(JSON.parse(sessionStorage.getItem(STORED) ?? "[]"));

const place = (reviewer, pair) => `${reviewer}: ${pair.key}`;
const store = () => sessionStorage.setItem(STORED, JSON.stringify([...notes]));

export function get(reviewer, pair) {
  return notes.get(place(reviewer, pair));
}

export function keep(reviewer, pair, text) {
  notes.set(place(reviewer, pair), text);
  store();
}

export function drop(reviewer, pair) {
  notes.delete(place(reviewer, pair));
  store();
}
