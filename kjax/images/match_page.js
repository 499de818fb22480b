"use strict";
// Lines are drawn on a canvas: five thousand matches as elements would not move smoothly.
const data = JSON.parse(document.getElementById("data").textContent);
const canvas = document.getElementById("view");
const context = canvas.getContext("2d", { alpha: false });
const overlay = document.getElementById("mark").getContext("2d");
const score = document.getElementById("score");
const agreeing = document.getElementById("agreeing");
const opacity = document.getElementById("opacity");
const panel = document.getElementById("panel");
const GAP = 12, HUES = 24, REACH = 14, NEAR_LINE = 5, LARGEST = 40, PHONE = 640;
const count = data.distance.length;
// Where each end lies, in pixels of its photograph.
const ends = data.ends.map((values) => Float32Array.from(values));
const [ax, ay, aside, aangle, bx, by, bside, bangle] = ends;
const view = { scale: 1, x: 0, y: 0, width: 0, height: 0, stacked: false, fitted: true };
let photos = [], shown = [], hovered = -1, pinned = -1, chosenOpacity = false;
const current = () => (pinned >= 0 ? pinned : hovered);

// Half as large again and again: reading a small copy is quicker, and smoother, than shrinking.
function copies(image) {
  const levels = [];
  let source = image, width = image.naturalWidth, height = image.naturalHeight;
  do {
    const level = document.createElement("canvas");
    level.width = width;
    level.height = height;
    level.getContext("2d", { alpha: false }).drawImage(source, 0, 0, width, height);
    levels.push(level);
    source = level;
    width = Math.max(1, width >> 1);
    height = Math.max(1, height >> 1);
  } while (Math.max(width, height) > 64);
  return levels;
}
function level(photo, scale) {
  const number = Math.floor(Math.log2(1 / Math.min(scale, 1)));
  return photo.levels[Math.min(number, photo.levels.length - 1)];
}

const scoreOf = (match) => 1 - data.ratio[match];
const best = [...data.ratio.keys()].sort((a, b) => data.ratio[a] - data.ratio[b]);
function choose() {
  const least = Number(score.value), rounding = 1e-6;
  shown = best.filter((match) => scoreOf(match) >= least - rounding
    && (data.agrees[match] || !agreeing.checked));
  document.getElementById("least").textContent = least.toFixed(2);
  document.getElementById("count").textContent =
    `${shown.length.toLocaleString("en")} of ${count.toLocaleString("en")} matches`;
  // The more lines, the fainter: they leave the photographs visible.
  if (!chosenOpacity) opacity.value = Math.min(0.8, 8 / Math.sqrt(shown.length));
  document.getElementById("opaque").textContent = `${Math.round(100 * opacity.value)} %`;
  if (pinned >= 0 && !shown.includes(pinned)) pinned = -1;
  if (hovered >= 0 && !shown.includes(hovered)) hovered = -1;
  tell();
  ask();
}

// Side by side, or one above the other if they are larger then, and always on a phone.
function arrange() {
  const [a, b] = photos, across = a.width + GAP + b.width, down = a.height + GAP + b.height;
  const wide = Math.max(a.width, b.width), high = Math.max(a.height, b.height);
  const sizeOf = (width, height) => Math.min(view.width / width, view.height / height);
  const phone = innerWidth < PHONE && innerWidth < innerHeight;
  view.stacked = phone || sizeOf(wide, down) > sizeOf(across, high);
  for (const photo of photos) {
    photo.left = view.stacked ? (wide - photo.width) / 2 : 0;
    photo.top = view.stacked ? 0 : (high - photo.height) / 2;
  }
  if (view.stacked) b.top = a.height + GAP;
  else b.left = a.width + GAP;
  return view.stacked ? [wide, down] : [across, high];
}
function fit() {
  const [width, height] = arrange();
  view.scale = Math.min(view.width / width, view.height / height);
  view.x = (view.width - view.scale * width) / 2;
  view.y = (view.height - view.scale * height) / 2;
  view.fitted = true;
  ask();
}
function zoom(factor, x = view.width / 2, y = view.height / 2) {
  const scale = Math.min(LARGEST, Math.max(0.01, view.scale * factor));
  view.x = x - (x - view.x) * (scale / view.scale);
  view.y = y - (y - view.y) * (scale / view.scale);
  view.scale = scale;
  view.fitted = false;
  ask();
}
function pan(x, y) {
  view.x += x;
  view.y += y;
  view.fitted = false;
  ask();
}
function resize() {
  const earlier = view.stacked;
  view.width = canvas.clientWidth;
  view.height = canvas.clientHeight;
  for (const one of [canvas, overlay.canvas]) {
    one.width = Math.round(view.width * devicePixelRatio);
    one.height = Math.round(view.height * devicePixelRatio);
  }
  arrange();
  if (view.fitted || view.stacked !== earlier) fit();
  else ask();
}

// A frame draws so many lines, best first, and the next ones go on while nothing moves. Frames that
// come late draw fewer: what moves stays smooth on any machine.
const SLOW = 40, QUICK = 25, FEWEST = 100;
let pace = 1000, drawn = 0, fresh = true, asked = false, before = null;
function ask() {
  fresh = true;
  next();
}
function next() {
  if (asked) return;
  asked = true;
  requestAnimationFrame(frame);
}
function frame(now) {
  asked = false;
  const gap = before === null ? 0 : now - before;
  if (gap > SLOW) pace = Math.max(FEWEST, Math.round(0.6 * pace));
  else if (gap > 0 && gap < QUICK) pace = Math.min(count, Math.round(1.25 * pace));
  if (fresh) background();
  fresh = false;
  lines(shown.slice(drawn, drawn + pace));
  drawn = Math.min(shown.length, drawn + pace);
  before = drawn < shown.length ? now : null;
  if (drawn < shown.length) next();
}
const across = (match) => [
  view.x + view.scale * (photos[0].left + ax[match]), view.y + view.scale * (photos[0].top + ay[match]),
  view.x + view.scale * (photos[1].left + bx[match]), view.y + view.scale * (photos[1].top + by[match]),
];
function background() {
  drawn = 0;
  context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
  context.globalAlpha = 1;
  context.fillStyle = "#202226";
  context.fillRect(0, 0, view.width, view.height);
  context.imageSmoothingEnabled = view.scale < 4;
  for (const photo of photos) {
    context.drawImage(
      level(photo, view.scale * devicePixelRatio),
      view.x + view.scale * photo.left, view.y + view.scale * photo.top,
      view.scale * photo.width, view.scale * photo.height,
    );
  }
  mark();
}
function lines(matches) {
  const bins = Array.from({ length: HUES + 1 }, () => []);
  for (const match of matches) {
    const hue = Math.min(HUES - 1, Math.floor((HUES * ax[match]) / photos[0].width));
    bins[data.agrees[match] ? Math.max(0, hue) : HUES].push(match);
  }
  context.lineWidth = 1;
  const faint = Number(opacity.value), clear = Math.min(1, 3 * faint);
  bins.forEach((alike, bin) => {
    // From orange over green and blue to violet; red is for what does not agree.
    const colour = bin < HUES ? `hsl(${30 + (270 * bin) / HUES} 85% 62%)` : "#e5383b";
    context.strokeStyle = context.fillStyle = colour;
    for (const match of alike) {
      const [x0, y0, x1, y1] = across(match);
      // A path for each: browsers are quick with single lines, and slow where a path crosses itself.
      context.beginPath();
      context.moveTo(x0, y0);
      context.lineTo(x1, y1);
      context.globalAlpha = faint;
      context.stroke();
      context.globalAlpha = clear;
      context.fillRect(x0 - 1.5, y0 - 1.5, 3, 3);
      context.fillRect(x1 - 1.5, y1 - 1.5, 3, 3);
    }
  });
}

// The match that is looked at is on a canvas of its own: the others need not be drawn again.
function mark() {
  overlay.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
  overlay.clearRect(0, 0, view.width, view.height);
  const match = current();
  if (match < 0) return;
  const [x0, y0, x1, y1] = across(match);
  for (const [width, colour] of [[5, "#000"], [2, "#fff"]]) {
    overlay.lineWidth = width;
    overlay.strokeStyle = colour;
    overlay.beginPath();
    overlay.moveTo(x0, y0);
    overlay.lineTo(x1, y1);
    overlay.stroke();
    square(x0, y0, view.scale * aside[match], aangle[match]);
    square(x1, y1, view.scale * bside[match], bangle[match]);
  }
}
function square(x, y, side, angle) {
  overlay.save();
  overlay.translate(x, y);
  overlay.rotate(angle);
  overlay.strokeRect(-side / 2, -side / 2, side, side);
  overlay.restore();
}

// The match under the pointer: an end within reach, or else a line that passes close by.
function find(x, y, touch = false) {
  const wider = touch ? 2 : 1;
  let end = -1, least = wider * REACH, line = -1, closest = wider * NEAR_LINE;
  for (const match of shown) {
    const [x0, y0, x1, y1] = across(match);
    const away = Math.min(Math.hypot(x - x0, y - y0), Math.hypot(x - x1, y - y1));
    if (away < least) [end, least] = [match, away];
    const [dx, dy] = [x1 - x0, y1 - y0];
    const share = ((x - x0) * dx + (y - y0) * dy) / (dx * dx + dy * dy || 1);
    if (share < 0 || share > 1) continue;
    const beside = Math.hypot(x - x0 - share * dx, y - y0 - share * dy);
    if (beside < closest) [line, closest] = [match, beside];
  }
  return end >= 0 ? end : line;
}
function hover(match) {
  if (match === hovered) return;
  hovered = match;
  canvas.style.cursor = match >= 0 ? "pointer" : "grab";
  tell();
}
function patch(id, photo, x, y, side, angle) {
  const target = document.getElementById(id), brush = target.getContext("2d");
  const scale = target.width / side;
  brush.setTransform(1, 0, 0, 1, 0, 0);
  brush.clearRect(0, 0, target.width, target.height);
  brush.translate(target.width / 2, target.height / 2);
  brush.scale(scale, scale);
  brush.rotate(-angle);
  brush.translate(-x, -y);
  brush.drawImage(level(photo, scale), 0, 0, photo.width, photo.height);
}
function tell() {
  const match = current();
  mark();
  panel.hidden = match < 0;
  if (match < 0) return;
  patch("first", photos[0], ax[match], ay[match], aside[match], aangle[match]);
  patch("second", photos[1], bx[match], by[match], bside[match], bangle[match]);
  const distance = data.distance[match];
  document.getElementById("distance").textContent = data.bits ? `${distance} bits` : distance.toFixed(3);
  document.getElementById("ratio").textContent = data.ratio[match].toFixed(3);
  document.getElementById("score-of").textContent = scoreOf(match).toFixed(3);
  document.getElementById("agrees").textContent = data.agrees[match] ? "yes" : "no";
}
function step(by) {
  if (!shown.length) return;
  const place = shown.indexOf(current());
  pinned = shown[(place + by + (place < 0 && by < 0 ? 1 : 0) + shown.length) % shown.length];
  tell();
}

// One pointer moves the view or selects a match, two zoom.
const pointers = new Map();
let moved = false;
canvas.addEventListener("pointerdown", (event) => {
  canvas.setPointerCapture(event.pointerId);
  moved = pointers.size > 0;
  pointers.set(event.pointerId, { x: event.offsetX, y: event.offsetY });
});
canvas.addEventListener("pointermove", (event) => {
  const { offsetX: x, offsetY: y, pointerId: id } = event, touch = event.pointerType === "touch";
  const old = pointers.get(id);
  if (!old) return hover(find(x, y));
  if (!moved && Math.hypot(x - old.x, y - old.y) < (touch ? 10 : 4)) return undefined;
  moved = true;
  pointers.set(id, { x, y });
  if (pointers.size === 1) return pan(x - old.x, y - old.y);
  const [other] = [...pointers].filter(([name]) => name !== id).map(([, place]) => place);
  const spread = Math.hypot(old.x - other.x, old.y - other.y) || 1;
  // Each finger in turn: half of its shift is the middle's.
  pan((x - old.x) / 2, (y - old.y) / 2);
  return zoom(Math.hypot(x - other.x, y - other.y) / spread, (x + other.x) / 2, (y + other.y) / 2);
});
canvas.addEventListener("pointerup", (event) => {
  if (pointers.delete(event.pointerId) && !moved) {
    const match = find(event.offsetX, event.offsetY, event.pointerType === "touch");
    pinned = match === pinned ? -1 : match;
    tell();
  }
});
canvas.addEventListener("pointercancel", (event) => pointers.delete(event.pointerId));
canvas.addEventListener("pointerleave", () => hover(-1));
canvas.addEventListener("wheel", (event) => {
  event.preventDefault();
  // Lines and pages are some 30 and 300 pixels.
  const pixels = event.deltaY * [1, 30, 300][event.deltaMode];
  zoom(Math.exp(-0.0015 * pixels), event.offsetX, event.offsetY);
}, { passive: false });
canvas.addEventListener("dblclick", fit);
const KEYS = {
  "+": () => zoom(1.3), "=": () => zoom(1.3), "-": () => zoom(1 / 1.3), 0: fit,
  ArrowLeft: () => pan(60, 0), ArrowRight: () => pan(-60, 0),
  ArrowUp: () => pan(0, 60), ArrowDown: () => pan(0, -60),
  n: () => step(1), p: () => step(-1),
};
canvas.addEventListener("keydown", (event) => {
  const act = KEYS[event.key];
  if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  act();
});
document.getElementById("closer").addEventListener("click", () => zoom(1.3));
document.getElementById("farther").addEventListener("click", () => zoom(1 / 1.3));
document.getElementById("whole").addEventListener("click", fit);
score.addEventListener("input", choose);
opacity.addEventListener("input", () => {
  chosenOpacity = true;
  choose();
});
agreeing.addEventListener("change", choose);

const images = [...document.querySelectorAll("img")];
Promise.all(images.map((image) => image.decode())).then(() => {
  photos = images.map((image) => ({
    levels: copies(image), width: image.naturalWidth, height: image.naturalHeight, left: 0, top: 0,
  }));
  new ResizeObserver(resize).observe(canvas);
  resize();
  choose();
  document.body.dataset.ready = "";
});
