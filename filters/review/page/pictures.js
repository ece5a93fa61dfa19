// The two images: one zoom and, if they can be compared point by point, one scale. Side by side, flipped in place, or
// one over the other with a divider between them or as their difference.

const stage = document.getElementById("stage");
const figures = { left: document.getElementById("left"), right: document.getElementById("right") };
const { same_scale: sameScale } = JSON.parse(document.getElementById("settings").textContent);
const narrow = matchMedia("(max-width: 45rem)");
const PHONE_SHARE = document.querySelector(".many") ? 0.36 : 0.55; // of the height; many labels need more
const MAX_ZOOM = 16;
const MARGIN = 10;
let shown = {}; // name → {img, width, height, fit}
const OVERLAYS = ["swipe", "difference"];
const captions = Object.values(figures).map((figure) => figure.querySelector("figcaption").textContent);
const divider = document.getElementById("divider");
let view = { mode: narrow.matches ? "flip" : "beside", front: "right" };
let zoom = { scale: 1, x: 0, y: 0 };

export function load(picture) {
  const img = new Image();
  img.decoding = "sync";
  img.draggable = false;
  img.src = picture.src;
  const ready = img.decode().then(() => true, () => false);
  return { ...picture, img, ready };
}

export function show(pictures, alts) {
  shown = {};
  for (const [name, figure] of Object.entries(figures)) {
    const picture = pictures[name];
    const frame = figure.querySelector(".frame");
    if (!picture) {
      frame.replaceChildren();
      continue;
    }
    shown[name] = picture;
    picture.img.alt = alts[name];
    frame.replaceChildren(picture.img);
    picture.ready.then((ok) => ok || frame.replaceChildren(missing()));
  }
  zoom = { scale: 1, x: 0, y: 0 };
  view.front = "right";
  layout();
}

function missing() {
  const text = document.createElement("p");
  text.className = "missing";
  text.textContent = "This image cannot be shown: its file is missing or damaged.";
  return text;
}

export function flip() {
  if (!shown.left) return null;
  view.front = view.mode === "flip" && view.front === "left" ? "right" : "left";
  view.mode = "flip";
  layout();
  return view.front;
}

export function look(mode) {
  if (OVERLAYS.includes(mode) && !(sameScale && shown.left && shown.right)) return;
  view = { mode, front: "right" };
  layout();
}

export function zoomBy(factor, x = 0, y = 0) {
  const scale = Math.min(MAX_ZOOM, Math.max(1, zoom.scale * factor));
  const ratio = scale / zoom.scale;
  zoom = { scale, x: x - (x - zoom.x) * ratio, y: y - (y - zoom.y) * ratio };
  paint();
}

export function zoomOut() {
  zoom = { scale: 1, x: 0, y: 0 };
  paint();
}

export function pan(x, y) {
  zoom.x += x;
  zoom.y += y;
  paint();
}

export function isZoomed() {
  return zoom.scale > 1;
}

function layout() {
  const names = Object.keys(shown);
  if (!names.length) return;
  const both = names.length > 1;
  const overlay = both && OVERLAYS.includes(view.mode);
  const single = view.mode !== "beside" || !both;
  stage.classList.toggle("one", single);
  for (const mode of OVERLAYS) stage.classList.toggle(mode, overlay && view.mode === mode);
  stage.querySelector(".under")?.remove();
  divider.hidden = !(overlay && view.mode === "swipe");
  if (overlay) {
    const under = shown.left.img.cloneNode();
    under.className = "under";
    shown.right.img.before(under);
  }
  for (const [name, figure] of Object.entries(figures)) {
    figure.hidden = !shown[name] || (single && both && name !== view.front);
  }
  const over = { swipe: captions.join(" | "), difference: "Difference" };
  figures.right.querySelector("figcaption").textContent = overlay ? over[view.mode] : captions[1];
  const gap = parseFloat(getComputedStyle(stage).columnGap) || 0;
  const room = single ? stage.clientWidth : (stage.clientWidth - gap) / 2;
  const label = figures[single ? view.front : "right"].querySelector("figcaption").offsetHeight;
  const maxHeight = narrow.matches ? innerHeight * PHONE_SHARE : stage.clientHeight - MARGIN;
  const fitting = ({ width, height }) => Math.max(0.02, Math.min(room / width, (maxHeight - label) / height, 4));
  const smallest = Math.min(...names.map((name) => fitting(shown[name])));
  for (const name of names) {
    const picture = shown[name];
    picture.fit = sameScale ? smallest : fitting(picture);
    const frame = figures[name].querySelector(".frame");
    frame.style.width = `${Math.round(picture.width * picture.fit)}px`;
    frame.style.height = `${Math.round(picture.height * picture.fit)}px`;
  }
  for (const mode of ["flip", "beside", ...OVERLAYS]) {
    const button = document.getElementById(mode);
    if (!button) continue; // pictures of different kinds cannot lie on each other
    button.disabled = !both;
    button.setAttribute("aria-pressed", String(both && view.mode === mode));
  }
  paint();
}

function paint() {
  for (const { img, width, height, fit } of Object.values(shown)) {
    const x = clamp(zoom.x, (width * fit * (zoom.scale - 1)) / 2);
    const y = clamp(zoom.y, (height * fit * (zoom.scale - 1)) / 2);
    [zoom.x, zoom.y] = [x, y];
    const under = img.previousElementSibling;
    const moved = zoom.scale > 1 ? `translate(${x}px, ${y}px) scale(${zoom.scale})` : "";
    for (const each of under ? [under, img] : [img]) each.style.transform = moved;
  }
  stage.classList.toggle("zoomed", isZoomed());
}

function clamp(value, limit) {
  return Math.min(limit, Math.max(-limit, value));
}

function fromCentre(event, frame) {
  const box = frame.getBoundingClientRect();
  return [event.clientX - box.x - box.width / 2, event.clientY - box.y - box.height / 2];
}

for (const figure of Object.values(figures)) {
  const frame = figure.querySelector(".frame");
  frame.addEventListener("wheel", (event) => {
    if (narrow.matches && !event.ctrlKey) return;
    event.preventDefault();
    zoomBy(Math.exp(-event.deltaY / 400), ...fromCentre(event, frame));
  }, { passive: false });
  frame.addEventListener("dblclick", (event) => {
    if (isZoomed()) zoomOut();
    else zoomBy(3, ...fromCentre(event, frame));
  });
  frame.addEventListener("pointerdown", (event) => {
    if (!isZoomed()) return;
    frame.setPointerCapture(event.pointerId);
    const move = (next) => pan(next.movementX, next.movementY);
    frame.addEventListener("pointermove", move);
    const stop = () => frame.removeEventListener("pointermove", move);
    frame.addEventListener("pointerup", stop, { once: true });
    frame.addEventListener("pointercancel", stop, { once: true });
  });
}
new ResizeObserver(layout).observe(stage);
narrow.addEventListener("change", () => {
  look(narrow.matches ? "flip" : "beside");
});
const divide = () => stage.style.setProperty("--at", `${100 - divider.value}%`);
divider.addEventListener("input", divide);
divide();
