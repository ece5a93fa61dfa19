// Tables that sort and filter, one detector at a time, and the section in view.
(() => {
  const ROWS_TO_FILTER = 10;

  function element(tag, properties = {}, ...children) {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  }

  // "−18.1 [−23.3, −13.3]" → −18.1, "<.001" → just below .001, "268/320" → 268; else NaN
  function number(text) {
    const found = text.replace(/−/g, "-").match(/[-+]?(\d+\.?\d*|\.\d+)/);
    if (!found) return NaN;
    return parseFloat(found[0]) - (/^\s*</.test(text) ? 1e-9 : 0);
  }

  function compare(one, other, at, numeric) {
    const [a, b] = [one, other].map((row) => row.cells[at].textContent.trim());
    if (!numeric) return a.localeCompare(b, undefined, { numeric: true });
    const [x, y] = [number(a), number(b)];
    return Number.isNaN(x) || Number.isNaN(y) ? Number.isNaN(x) - Number.isNaN(y) : x - y;
  }

  function makeSortable(table) {
    const heads = Array.from(table.tHead.rows[table.tHead.rows.length - 1].cells);
    const groups = Array.from(table.tBodies).map((body) => [body, Array.from(body.rows)]);
    heads.forEach((head, at) => {
      const numeric = head.classList.contains("n");
      const button = element("button", { type: "button", title: "Sort by this column" });
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const order = { none: "ascending", ascending: "descending", descending: "none" };
        const next = order[head.getAttribute("aria-sort") || "none"];
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        if (next !== "none") head.setAttribute("aria-sort", next);
        const sign = next === "descending" ? -1 : 1;
        for (const [body, rows] of groups) {
          const titles = rows.filter((row) => row.classList.contains("group"));
          const data = rows.filter((row) => !titles.includes(row));
          if (next !== "none") {
            const unknown = (row) => numeric && Number.isNaN(number(row.cells[at].textContent));
            data.sort((a, b) => {
              const last = unknown(a) - unknown(b); // what has no number stays last
              return last || sign * compare(a, b, at, numeric);
            });
          }
          body.append(...titles, ...data);
        }
      });
    });
  }

  function makeFilterable(table) {
    const input = element("input", { type: "search", autocomplete: "off" });
    const count = element("output");
    const label = element("label", {}, "Filter rows ", input);
    const scroll = table.closest(".scroll");
    scroll.before(element("div", { className: "rows" }, label, count));
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      let all = 0;
      for (const body of table.tBodies) {
        const title = body.querySelector(".group")?.textContent ?? "";
        let here = 0;
        for (const row of body.querySelectorAll("tr:not(.group)")) {
          const text = `${title} ${row.textContent}`.toLowerCase();
          row.hidden = !words.every((word) => text.includes(word));
          here += !row.hidden;
          all += 1;
        }
        body.hidden = !here;
        shown += here;
      }
      count.textContent = words.length ? `${shown} of ${all} rows` : "";
    });
  }

  for (const table of document.querySelectorAll(".table table")) {
    const rows = table.querySelectorAll("tbody tr:not(.group)").length;
    if (rows > 1) makeSortable(table);
    if (rows >= ROWS_TO_FILTER) makeFilterable(table);
  }

  // Every cell that has items behind it is a link to them.
  for (const cell of document.querySelectorAll("[data-cell]")) {
    const link = element("a", { className: "open", href: `#cell=${encodeURIComponent(cell.dataset.cell)}` });
    if (cell.dataset.label) {
      link.title = cell.dataset.label;
      link.setAttribute("aria-label", cell.dataset.label);
    }
    link.append(...cell.childNodes);
    cell.append(link);
  }

  const holder = document.getElementById("one-detector");
  if (holder) {
    const all = Array.from(holder.children);
    const select = element("select", { id: "detector" });
    select.append(...all.map((one) => element("option", {}, one.dataset.title)));
    const label = element("label", { htmlFor: "detector" }, "Detector ", select);
    holder.before(element("div", { className: "one" }, label));
    const show = (at) => {
      select.selectedIndex = at;
      all[at].open = true; // the others close, since they share a name
    };
    select.addEventListener("change", () => show(select.selectedIndex));
    const follow = () => {
      const target = document.getElementById(location.hash.slice(1));
      const at = all.findIndex((one) => target && one.contains(target));
      if (at >= 0) {
        show(at);
        target.scrollIntoView();
      }
    };
    addEventListener("hashchange", follow);
    show(0);
    follow();
  }

  const links = new Map(
    Array.from(document.querySelectorAll("nav a")).map((link) => [link.hash.slice(1), link])
  );
  const seen = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) {
        const link = links.get(entry.target.id);
        if (entry.isIntersecting) link?.setAttribute("aria-current", "true");
        else link?.removeAttribute("aria-current");
      }
    },
    { rootMargin: "-15% 0px -75% 0px" }
  );
  document.querySelectorAll("main > section[id]").forEach((section) => seen.observe(section));
})();
