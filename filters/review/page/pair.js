// One pair on the page: question, options, verdicts. Text is inserted as text, never as HTML.

const $ = (id) => document.getElementById(id);
const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
const { labels } = JSON.parse($("settings").textContent);

// what would turn a line around, or hide in it, as `flipbench.core.files.printable` writes it
const STEERING = /[\0-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;
const escape = (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`;
export const printable = (text) => text.replace(STEERING, escape);

export function element(name, text = "", className = "") {
  const node = document.createElement(name);
  node.textContent = printable(text);
  if (className) node.className = className;
  return node;
}

export function draw(pair, onAnswer) {
  $("item").textContent = printable([pair.item, pair.category, pair.place].filter(Boolean).join(" · "));
  $("question").textContent = printable(pair.question);
  $("options").replaceChildren(...(pair.hidden ? choices(pair, onAnswer) : answers(pair)));
  $("free").hidden = !(pair.hidden && !pair.options.length);
  $("free-text").value = "";
  $("more").replaceChildren(...pair.more.map(furtherImage));
  $("blind-hint").hidden = !pair.hidden;
  document.querySelector(".decide").classList.toggle("hidden-answer", pair.hidden);
  $("details").hidden = $("others").hidden = pair.hidden;
  $("given").textContent = pair.hidden ? "" : printable(ownVerdict(pair));
  $("note").value = pair.mine?.note ?? "";
  if (pair.hidden) return;
  $("details").querySelector("p").textContent = printable(pair.details);
  $("others").querySelector("ul").replaceChildren(...pair.others.map(otherVerdict));
  $("others").hidden = !pair.others.length;
}

function answers(pair) {
  if (!pair.options.length) {
    if (!pair.new_text) return [];
    return [row("", pair.new_text, "new", "new answer"), row("", pair.old_text, "old", "old answer")];
  }
  return pair.options.map((text, index) => {
    if (index === pair.new_answer) return row(LETTERS[index], text, "new", "new answer");
    if (index === pair.old_answer) return row(LETTERS[index], text, "old", "old answer");
    return row(LETTERS[index], text);
  });
}

function row(letter, text, className = "", tag = "") {
  const node = element("li", "", className);
  if (letter) node.append(element("span", letter, "letter"), " ");
  node.append(element("span", text, "text"));
  if (tag) node.append(" ", element("span", tag, "tag"));
  return node;
}

function choices(pair, onAnswer) {
  const entries = pair.options.map((text, index) => [index + 1, LETTERS[index], text, text]);
  entries.push([0, "", "No single answer follows", "UNCLEAR"]);
  return entries.map(([digit, letter, label, answer]) => {
    const node = element("li", "", "choice");
    const button = element("button");
    button.type = "button";
    if (letter) button.append(element("span", letter, "letter"), " ");
    button.append(element("span", label, "text"));
    if (digit < 10) {
      button.append(" ", element("kbd", String(digit)));
      button.dataset.digit = digit;
    }
    button.addEventListener("click", () => onAnswer(answer));
    node.append(button);
    return node;
  });
}

function furtherImage(image) {
  const img = new Image();
  img.src = image.src;
  img.alt = `Image ${image.number}, the same before and after`;
  return img;
}

function ownVerdict(pair) {
  const parts = [];
  const { mine } = pair;
  if (mine?.blind_answer) {
    const same = mine.blind_answer === pair.new_text;
    const answer = mine.blind_answer === "UNCLEAR" ? "that no single answer follows" : `“${mine.blind_answer}”`;
    parts.push(same ? `You answered ${answer}, which is the new answer.` : `You answered ${answer}; the new answer is “${pair.new_text}”.`);
  }
  const label = labels.find(({ value }) => value === mine?.decision);
  if (label) parts.push(`${label.chosen}${mine.reason ? `: ${mine.reason}` : ""}.`);
  return parts.join(" ");
}

function otherVerdict(verdict) {
  const node = element("li");
  node.append(element("b", verdict.rater), ` (${verdict.kind}): ${verdict.decision}`);
  const why = [verdict.reason, verdict.note].filter(Boolean).join(": ");
  if (why) node.append(`, ${printable(why)}`);
  return node;
}
