// The viewer: #cell=model/detector/rule lists the items behind a cell, #item=name shows one item.
(() => {
  const viewer = document.getElementById("viewer");
  const body = document.getElementById("viewer-body");
  const heading = document.getElementById("viewer-title");
  const packed = document.getElementById("explorer");
  const LISTED = 48;
  let content = null; // read once, when first needed
  let behind = null; // the cell that the shown item came from

  function element(tag, properties = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(properties)) {
      if (name in made) made[name] = value;
      else made.setAttribute(name, value);
    }
    made.append(...children.filter((child) => child !== null));
    return made;
  }

  async function read() {
    if (!content) {
      const bytes = Uint8Array.from(atob(JSON.parse(packed.textContent)), (c) => c.charCodeAt(0));
      const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
      content = JSON.parse(await new Response(stream).text());
      content.at = new Map(content.items.map((item, at) => [item.name, at]));
    }
    return content;
  }

  const card = (name) => document.getElementById(`item=${name}`);
  const link = (kind, key) => `#${kind}=${encodeURIComponent(key)}`;
  const letter = (at) => (at < 0 ? "?" : String.fromCharCode(65 + at));

  function pictures(name) {
    const frames = card(name)?.querySelectorAll(".frame") ?? [];
    return Array.from(frames, (frame) => frame.querySelector("img"));
  }

  function copy(image, className, alt) {
    return element("img", { src: image.src, className, alt, width: image.width, height: image.height });
  }

  function facts(pairs) {
    const rows = pairs.filter(([, value]) => value && value !== "–");
    return element("dl", { className: "facts" }, ...rows.map(([name, value]) =>
      element("div", {}, element("dt", {}, name), element("dd", {}, value))));
  }

  // ------------------------------------------------------------------ the items behind a cell

  function order(cell) {
    const values = cell.series < 0 ? [] : content.series[cell.series];
    const sign = cell.rises ? -1 : 1;
    return values
      .map((value, at) => [value, at])
      .filter(([value]) => value !== null)
      .sort((a, b) => sign * (a[0] - b[0]) || a[1] - b[1]);
  }

  function showCell(key) {
    const cell = content.cells[key];
    if (!cell) return close();
    behind = key;
    heading.textContent = `${cell.detector}, ${cell.rule}: ${cell.model}`;
    const items = order(cell);
    const list = element("ul", { className: "behind" });
    const add = (from) => list.append(...items.slice(from, from + LISTED).map(([value, at]) => {
      const item = content.items[at];
      const two = pictures(item.name).map((image) => copy(image, "", ""));
      return element("li", {}, element("a", { href: link("item", item.name) },
        two.length ? element("span", { className: "two" }, ...two) : null,
        element("span", { className: "asked" }, item.question), " ",
        element("span", { className: "small" }, `value ${String(value).replace("-", "−")}`)));
    }));
    add(0);
    const more = element("button", { type: "button" }, `Show all ${items.length}`);
    more.addEventListener("click", () => {
      add(list.children.length);
      if (list.children.length === items.length) more.remove();
    });
    body.replaceChildren(
      facts([["Verdict", cell.verdict], ["because", cell.reason], ["Statistic", cell.statistic],
        ["p", cell.p], ["Items", String(cell.n)]]),
      element("p", { className: "small" }, items.length
        ? `${items.length} items, those that speak most for contamination first (${cell.rises ? "highest" : "lowest"} values).`
        : "This score has no value for single items."),
      list, ...(items.length > LISTED ? [element("div", { className: "turn" }, more)] : []));
    open();
  }

  // ------------------------------------------------------------------ one item

  function stage(name, item) {
    const [before, after] = pictures(name);
    if (!before || !after) {
      return element("p", { className: "quiet" }, "To stay small, the page holds no thumbnails of this pair.");
    }
    const control = card(name).querySelector("img[alt^='control image']");
    const place = element("div", { className: "stage beside" },
      copy(before, "before", `original: ${item.answers[0]}`),
      copy(after, "after", `perturbed: ${item.answers[1]}`));
    const slide = element("input", { type: "range", min: "0", max: "100", value: "50", className: "slide", hidden: true, "aria-label": "Swipe from the original to the perturbed picture" });
    slide.addEventListener("input", () => place.style.setProperty("--at", `${100 - slide.value}%`));
    const guide = control ? copy(control, "guide", "control image: the edges that guided the edit") : null;
    const views = [["beside", "Side by side"], ["swipe", "Swipe"], ["difference", "Difference"],
      ...(guide ? [["control", "Control image"]] : [])];
    const choices = views.map(([view, text], at) => {
      const radio = element("input", { type: "radio", name: "view", value: view, checked: at === 0 });
      radio.addEventListener("change", () => {
        place.className = `stage ${view}`;
        slide.hidden = view !== "swipe";
        const shown = view === "control" ? [guide] : [...both];
        place.replaceChildren(...shown);
      });
      return element("label", {}, radio, text);
    });
    const both = Array.from(place.children);
    return element("div", {},
      element("fieldset", { className: "views" }, element("legend", { className: "hidden" }, "View"), ...choices),
      place, slide);
  }

  function reply(given, item) {
    if (!given) return "–";
    const [choice, logs, text] = given;
    const named = choice >= 0 ? `${letter(choice)} ${item.options[choice] ?? ""}` : text || "no option named";
    const detail = logs.map((log, at) => `${letter(at)} ${log.toFixed(2)}`.replace("-", "−")).join("  ");
    return [named, logs.length ? element("span", { className: "small" }, ` ${detail}`) : ""];
  }

  function replies(at, item) {
    const rows = content.models.map((model, number) => {
      const [old, now] = content.replies[number]?.[at] ?? [null, null];
      if (!old && !now) return null;
      const right = [old, now].map((one, side) => one && one[0] === item.right[side]);
      const change = right[0] && right[1] === false ? "right → wrong" : right[0] === false && right[1] ? "wrong → right" : right[0] ? "right on both" : "wrong on both";
      const kind = model.dose === null ? "unknown" : model.dose ? `dose ${model.dose}` : "clean";
      const mine = behind && content.cells[behind]?.model === model.name;
      return element("tr", { className: mine ? "chosen" : "" },
        element("th", { scope: "row" }, `${model.family}: ${model.label}`),
        element("td", {}, kind), element("td", {}, ...reply(old, item)),
        element("td", {}, ...reply(now, item)),
        element("td", {}, old && now ? change : "–"));
    }).filter(Boolean);
    if (!rows.length) return null;
    const heads = ["Model", "History", "Reply to the original, log p in nats", "Reply to the perturbed", "Outcome"];
    return element("div", { className: "replies", tabIndex: 0, role: "region", "aria-label": "Replies of the models" },
      element("table", {},
        element("caption", { className: "hidden" }, "Replies of the models to both versions"),
        element("thead", {}, element("tr", {}, ...heads.map((text) => element("th", { scope: "col" }, text)))),
        element("tbody", {}, ...rows)));
  }

  function neighbours(at) {
    const cell = behind && content.cells[behind];
    const shown = cell ? order(cell).map(([, item]) => item) : Array.from(
      document.querySelectorAll("#gallery article"), (one) => content.at.get(one.dataset.name));
    const place = shown.indexOf(at);
    const step = (to, text) => shown[to] === undefined ? null
      : element("a", { href: link("item", content.items[shown[to]].name) }, text);
    return element("p", { className: "turn" },
      behind ? element("a", { href: link("cell", behind) }, "↑ all items of this cell") : null,
      place > 0 ? step(place - 1, "← previous") : null,
      place >= 0 ? step(place + 1, "next →") : null);
  }

  function showItem(name) {
    const at = content.at.get(name);
    if (at === undefined) return close();
    const item = content.items[at];
    heading.textContent = item.question;
    const options = (item.options.length ? item.options : item.answers).map((text, n) => {
      const side = item.options.length ? item.right.indexOf(n) : n;
      const tag = ["right in the original", "right in the perturbed version"][side];
      return element("li", { className: ["original", "perturbed"][side] ?? "" },
        item.options.length ? `${letter(n)} ${text} ` : `${text} `,
        tag ? element("span", { className: "tag" }, tag) : null);
    });
    const caption = card(name)?.querySelector(".caption")?.textContent;
    const meta = card(name)?.querySelector(".meta")?.textContent ?? name;
    body.replaceChildren(
      neighbours(at),
      element("div", { className: "seen" }, stage(name, item), element("div", {},
        element("ul", { className: "options" }, ...options),
        caption ? element("p", {}, caption) : null,
        element("p", { className: "meta" }, meta))),
      ...[replies(at, item)].filter(Boolean));
    open();
  }

  // ------------------------------------------------------------------ addresses

  function open() {
    if (!viewer.open) viewer.showModal();
    viewer.scrollTop = 0;
    heading.focus();
  }

  function close() {
    if (viewer.open) viewer.close();
  }

  function decoded(text) {
    try {
      return decodeURIComponent(text);
    } catch {
      return text; // not an address of this page
    }
  }

  async function follow() {
    const [kind, key] = location.hash.slice(1).split(/=(.*)/s, 2);
    if (kind !== "item" && kind !== "cell") {
      behind = null;
      return close();
    }
    await read();
    (kind === "cell" ? showCell : showItem)(decoded(key));
  }

  document.getElementById("viewer-close").addEventListener("click", close);
  viewer.addEventListener("click", (event) => {
    if (event.target === viewer) close();
  });
  viewer.addEventListener("close", () => {
    behind = null;
    if (/^#(item|cell)=/.test(location.hash)) history.pushState(null, "", location.pathname + location.search);
  });
  document.getElementById("gallery")?.addEventListener("click", (event) => {
    const shown = event.target.closest(".pair")?.closest("article");
    if (shown) location.hash = link("item", shown.dataset.name).slice(1);
  });
  addEventListener("hashchange", follow);
  follow();
})();
