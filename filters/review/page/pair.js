// One pair on the page: question, options, what was said of it. Text goes in as text, never as HTML.

const $ = (id) => document.getElementById(id);
const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
const DONE = { keep: "kept", reject: "rejected", unsure: "are unsure of" };

export function element(name, text = "", className = "") {
  const made = document.createElement(name);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

export function draw(pair, onAnswer) {
  $("item").textContent = [pair.item, pair.category].filter(Boolean).join(" · ");
  $("question").textContent = pair.question;
  $("options").replaceChildren(...(pair.hidden ? choices(pair, onAnswer) : answers(pair)));
  $("free").hidden = !(pair.hidden && !pair.options.length);
  $("free-text").value = "";
  $("more").replaceChildren(...pair.more.map(further));
  $("blind-hint").hidden = !pair.hidden;
  document.querySelector(".decide").classList.toggle("hidden-answer", pair.hidden);
  $("caption").hidden = $("others").hidden = pair.hidden;
  $("given").textContent = pair.hidden ? "" : given(pair);
  $("note").value = pair.mine?.note ?? "";
  if (pair.hidden) return;
  $("caption").querySelector("p").textContent = pair.caption;
  const said = pair.others.map(opinion);
  $("others").querySelector("ul").replaceChildren(...said);
  $("others").hidden = !said.length;
}

function answers(pair) {
  if (!pair.options.length) {
    return [row("", pair.new_text, "new", "new answer"), row("", pair.old_text, "old", "old answer")];
  }
  return pair.options.map((text, index) => {
    if (index === pair.new_answer) return row(LETTERS[index], text, "new", "new answer");
    if (index === pair.old_answer) return row(LETTERS[index], text, "old", "old answer");
    return row(LETTERS[index], text);
  });
}

function row(letter, text, className = "", tag = "") {
  const made = element("li", "", className);
  if (letter) made.append(element("span", letter, "letter"), " ");
  made.append(element("span", text, "text"));
  if (tag) made.append(" ", element("span", tag, "tag"));
  return made;
}

function choices(pair, onAnswer) {
  const offered = [...pair.options.map((text, index) => [index + 1, LETTERS[index], text, text])];
  offered.push([0, "", "No single answer follows", "UNCLEAR"]);
  return offered.map(([digit, letter, label, answer]) => {
    const made = element("li", "", "choice");
    const button = element("button");
    button.type = "button";
    if (letter) button.append(element("span", letter, "letter"), " ");
    button.append(element("span", label, "text"));
    if (digit < 10) {
      button.append(" ", element("kbd", String(digit)));
      button.dataset.digit = digit;
    }
    button.addEventListener("click", () => onAnswer(answer));
    made.append(button);
    return made;
  });
}

function further(picture, index) {
  const img = new Image();
  img.src = picture.src;
  img.alt = `Further picture ${index + 2}, the same before and after`;
  return img;
}

function given(pair) {
  const parts = [];
  const { mine } = pair;
  if (mine?.blind_answer) {
    const same = mine.blind_answer === pair.new_text;
    const answer = mine.blind_answer === "UNCLEAR" ? "that no single answer follows" : `“${mine.blind_answer}”`;
    parts.push(same ? `You answered ${answer}, which is the new answer.` : `You answered ${answer}; the new answer is “${pair.new_text}”.`);
  }
  if (mine?.decision) parts.push(`You ${DONE[mine.decision]} this pair${mine.reason ? `: ${mine.reason}` : ""}.`);
  return parts.join(" ");
}

function opinion(one) {
  const made = element("li");
  made.append(element("b", one.rater), ` (${one.kind}): ${one.decision}`);
  const why = [one.reason, one.note].filter(Boolean).join(": ");
  if (why) made.append(`, ${why}`);
  return made;
}
