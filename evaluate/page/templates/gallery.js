"use strict";
// The gallery's filter. Without scripts, every pair is shown.
(() => {
  const STEP = 8;
  const gallery = document.getElementById("gallery");
  if (!gallery) return;
  const cards = Array.from(gallery.querySelectorAll("article"));
  const texts = cards.map((card) => card.textContent.toLowerCase());
  const category = document.getElementById("category");
  const search = document.getElementById("search");
  const count = document.getElementById("count");
  const more = document.getElementById("more");
  let limit = STEP;

  function update() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let found = 0;
    cards.forEach((card, at) => {
      const matches =
        (!category.value || card.dataset.category === category.value) &&
        words.every((word) => texts[at].includes(word));
      if (matches) found += 1;
      card.hidden = !matches || found > limit;
    });
    const shown = Math.min(found, limit);
    count.textContent = found
      ? `${shown} of ${found} pairs shown` + (found < cards.length ? ` (${cards.length} in all)` : "")
      : "No pair matches. Clear the search or choose another category.";
    more.hidden = shown === found;
    more.textContent = `Show ${Math.min(2 * STEP, found - shown)} more`;
  }

  function restart() {
    limit = STEP;
    update();
  }

  category.addEventListener("change", restart);
  search.addEventListener("input", restart);
  more.addEventListener("click", () => {
    const first = cards.filter((card) => !card.hidden).length;
    limit += 2 * STEP;
    update();
    const next = cards.filter((card) => !card.hidden)[first];
    if (next) next.focus({ preventScroll: true });
  });
  const form = document.getElementById("filter");
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
  update();
})();
