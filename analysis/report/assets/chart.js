// A line chart on a canvas: hover, zoom by dragging, logarithmic axes, crosses where a run diverged.
// lines: [{label, color, dash, width, alpha, x, y, lo, hi, n, part, planned, silent, marker, fill}]; null in y is a gap, and
// no line joins two parts: they are means over different seeds.
class Chart {
  constructor(host, { height = 380, label = "" } = {}) {
    this.height = height;
    this.canvas = el("canvas", { tabindex: "0", role: "img", "aria-label": label });
    this.tip = el("div", { class: "tip", hidden: true });
    host.append(this.canvas, this.tip);
    this.lines = []; this.marks = []; this.zoom = null; this.cursor = null; this.drag = null;
    this.log = false; this.logX = false; this.xLabel = ""; this.yLabel = ""; this.format = short;
    this.canvas.addEventListener("pointermove", (e) => this.#move(e));
    this.canvas.addEventListener("pointerleave", () => { this.cursor = null; this.draw(); });
    this.canvas.addEventListener("pointerdown", (e) => { this.drag = [this.#at(e), this.#at(e)]; this.canvas.setPointerCapture(e.pointerId); });
    this.canvas.addEventListener("pointerup", () => this.#release());
    this.canvas.addEventListener("pointercancel", () => { this.drag = null; this.draw(); });
    this.canvas.addEventListener("dblclick", () => this.reset());
    this.canvas.addEventListener("wheel", (e) => { if (!e.ctrlKey && !e.metaKey) return; e.preventDefault(); this.scale(e.deltaY > 0 ? 1.25 : 0.8, this.#at(e)); }, { passive: false });
    this.canvas.addEventListener("keydown", (e) => this.#key(e));
    new ResizeObserver(() => this.draw()).observe(host);
  }

  set(options) {
    Object.assign(this, options);
    this.cursor = null;
    this.draw();
  }

  reset() { this.zoom = null; this.draw(); this.zoomed?.(); }

  // Positions along an axis are linear in `across(v)`.
  #across(v) { return this.logX ? Math.log10(v) : v; }
  #back(v) { return this.logX ? 10 ** v : v; }

  scale(factor, centre) {
    const [a, b] = this.#xRange().map((v) => this.#across(v)), middle = centre === undefined || centre === null ? (a + b) / 2 : this.#across(centre);
    this.zoom = [middle - (middle - a) * factor, middle + (b - middle) * factor].map((v) => this.#back(v));
    const [least, most] = this.#fullX();
    if (this.zoom[0] <= least && this.zoom[1] >= most) this.zoom = null;
    this.draw();
    this.zoomed?.();
  }

  #fullX() {
    let least = Infinity, most = -Infinity;
    for (const line of this.lines) for (const x of line.x) if (x !== null && (!this.logX || x > 0)) { if (x < least) least = x; if (x > most) most = x; }
    if (least > most) return this.logX ? [1, 10] : [0, 1];
    return least === most ? (this.logX ? [least / 2, most * 2] : [least - 0.5, most + 0.5]) : [least, most];
  }

  #xRange() { return this.zoom ?? this.#fullX(); }

  #yRange(x0, x1) {
    let least = Infinity, most = -Infinity;
    const see = (v) => { if (v === null || v === undefined || (this.log && v <= 0)) return; if (v < least) least = v; if (v > most) most = v; };
    for (const line of this.lines) for (let i = 0; i < line.x.length; i++) {
      if (line.x[i] < x0 || line.x[i] > x1) continue;
      see(line.y[i]); if (line.hi) { see(line.hi[i]); see(line.lo[i]); }
    }
    for (const mark of this.marks) if (mark.x >= x0 && mark.x <= x1) see(mark.y);
    if (least > most) return this.log ? [0.1, 1] : [0, 1];
    if (this.log) return least === most ? [least / 2, most * 2] : [least / 1.1, most * 1.1];
    const pad = (most - least || Math.abs(most) || 1) * 0.05;
    return [least - pad, most + pad];
  }

  draw() {
    const width = this.canvas.parentElement.clientWidth;
    if (!width) return;
    const ratio = window.devicePixelRatio || 1, canvas = this.canvas, c = canvas.getContext("2d");
    canvas.width = Math.round(width * ratio); canvas.height = Math.round(this.height * ratio);
    canvas.style.setProperty("height", `${this.height}px`);
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.clearRect(0, 0, width, this.height);
    this.#paint(c, width);
    this.#hover(c);
  }

  // The picture as a PNG of twice the size, on paper.
  png() {
    const width = this.canvas.parentElement.clientWidth, canvas = el("canvas", { width: String(width * 2), height: String(this.height * 2) }), c = canvas.getContext("2d");
    c.scale(2, 2);
    c.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--card");
    c.fillRect(0, 0, width, this.height);
    this.#paint(c, width);
    return new Promise((done) => canvas.toBlob(done, "image/png"));
  }

  svg() {
    const width = this.canvas.parentElement.clientWidth, pen = new SvgPen(width, this.height);
    this.#paint(pen, width);
    return pen.text();
  }

  #paint(c, width) {
    const style = getComputedStyle(document.documentElement);
    const ink = style.getPropertyValue("--ink"), muted = style.getPropertyValue("--muted"), grid = style.getPropertyValue("--line");
    const [x0, x1] = this.#xRange(), [y0, y1] = this.#yRange(x0, x1);
    const marks = (this.log ? logTicks(y0, y1) : ticks(y0, y1, 6)).map((v) => [v, this.format(v)]), longest = Math.max(...marks.map(([, text]) => text.length), 0);
    const box = { left: Math.max(width < 500 ? 56 : 70, 34 + 7 * longest), right: width - 12, top: 12, bottom: this.height - 42 };
    const up = this.log ? Math.log10 : (v) => v;
    const X = (v) => box.left + (this.#across(v) - this.#across(x0)) / (this.#across(x1) - this.#across(x0)) * (box.right - box.left);
    const Y = (v) => box.bottom - (up(v) - up(y0)) / (up(y1) - up(y0)) * (box.bottom - box.top);
    this.frame = { box, x0, x1, X, Y, muted };
    c.font = "12px system-ui, sans-serif"; c.lineWidth = 1; c.strokeStyle = grid; c.fillStyle = muted;
    c.textAlign = "right"; c.textBaseline = "middle";
    for (const [tick, text] of marks) {
      const y = Math.round(Y(tick)) + 0.5;
      c.beginPath(); c.moveTo(box.left, y); c.lineTo(box.right, y); c.stroke();
      c.fillText(text, box.left - 8, y);
    }
    c.textAlign = "center"; c.textBaseline = "top";
    for (const tick of this.logX ? logTicks(x0, x1) : ticks(x0, x1, Math.max(2, Math.floor(width / 110)))) {
      const x = Math.round(X(tick)) + 0.5;
      c.beginPath(); c.moveTo(x, box.bottom); c.lineTo(x, box.bottom + 5); c.stroke();
      c.fillText(short(tick), x, box.bottom + 8);
    }
    c.fillStyle = ink; c.fillText(this.xLabel, (box.left + box.right) / 2, this.height - 16);
    c.save(); c.translate(6, (box.top + box.bottom) / 2); c.rotate(-Math.PI / 2); c.fillText(this.yLabel, 0, -6); c.restore();
    c.save(); c.beginPath(); c.rect(box.left, box.top - 6, box.right - box.left, box.bottom - box.top + 12); c.clip();
    for (const line of this.lines) if (line.hi) this.#band(c, line, X, Y);
    const dashed = (line) => Boolean(line.dash?.length); // last: over a curve that they equal, both are seen
    for (const line of [...this.lines.filter((l) => !dashed(l)), ...this.lines.filter(dashed)]) this.#line(c, line, X, Y);
    const named = this.lines.filter((line) => !line.silent && line.marker);
    named.forEach((line, number) => this.#markers(c, line, X, Y, number, named.length));
    for (const mark of this.marks) if (this.#seen(mark.x, mark.y)) this.#cross(c, mark, X(mark.x), Y(mark.y));
    if (this.drag) { c.fillStyle = muted; c.globalAlpha = 0.18; c.fillRect(X(this.drag[0]), box.top, X(this.drag[1]) - X(this.drag[0]), box.bottom - box.top); c.globalAlpha = 1; }
    c.restore();
  }

  #seen(x, y) { return x !== null && y !== null && y !== undefined && !(this.log && y <= 0) && !(this.logX && x <= 0); }

  // The baseline is black on white paper; on a dark card it is the colour of the text, and dark colours are lighter.
  static paint(color) {
    if (color.toLowerCase() === "#000000") return getComputedStyle(document.documentElement).getPropertyValue("--ink");
    const [r, g, b] = [1, 3, 5].map((i) => parseInt(color.slice(i, i + 2), 16)), dim = 0.3 * r + 0.59 * g + 0.11 * b < 90;
    return dim && document.documentElement.dataset.theme === "dark" ? `rgb(${[r, g, b].map((v) => Math.round(0.75 * v + 64))})` : color;
  }

  // Unbroken pieces [first, last] of a line.
  #pieces(line, ok) {
    const found = [];
    for (let i = 0; i < line.x.length; i++) {
      if (!ok(i)) continue;
      let end = i;
      while (end + 1 < line.x.length && ok(end + 1) && (!line.part || line.part[end + 1] === line.part[i])) end++;
      found.push([i, end]);
      i = end;
    }
    return found;
  }

  #band(c, line, X, Y) {
    const floor = this.frame.box.bottom + 8;
    c.fillStyle = Chart.paint(line.color); c.globalAlpha = 0.13;
    for (const [i, end] of this.#pieces(line, (k) => line.lo[k] !== null && this.#seen(line.x[k], line.hi[k]))) {
      c.beginPath();
      for (let k = i; k <= end; k++) c.lineTo(X(line.x[k]), Y(line.hi[k]));
      for (let k = end; k >= i; k--) c.lineTo(X(line.x[k]), this.log && line.lo[k] <= 0 ? floor : Y(line.lo[k]));
      c.fill();
    }
    c.globalAlpha = 1;
  }

  // A mean over fewer seeds than planned is dotted, so that it cannot be missed.
  #line(c, line, X, Y) {
    c.strokeStyle = Chart.paint(line.color); c.lineWidth = line.width ?? 1.8; c.globalAlpha = line.alpha ?? 1; c.lineJoin = "round";
    for (const [i, end] of this.#pieces(line, (k) => this.#seen(line.x[k], line.y[k]))) {
      c.setLineDash(line.n && line.n[i] < line.planned ? [2, 3] : line.dash ?? []);
      c.beginPath();
      for (let k = i; k <= end; k++) c.lineTo(X(line.x[k]), Y(line.y[k]));
      c.stroke();
      if (end === i) { c.beginPath(); c.arc(X(line.x[i]), Y(line.y[i]), 2.2, 0, 7); c.fillStyle = Chart.paint(line.color); c.fill(); }
    }
    c.setLineDash([]); c.globalAlpha = 1;
  }

  // Curves that overlap hide each other; their markers take turns along the axis.
  #markers(c, line, X, Y, number, count) {
    const { box } = this.frame, every = (box.right - box.left) / 5;
    const points = line.x.map((x, i) => i).filter((i) => this.#seen(line.x[i], line.y[i]));
    for (let at = box.left + every * (number + 0.5) / count; at < box.right; at += every) {
      let best = null;
      for (const i of points) if (best === null || Math.abs(X(line.x[i]) - at) < Math.abs(X(line.x[best]) - at)) best = i;
      if (best !== null && Math.abs(X(line.x[best]) - at) < every / 2) drawMarker(c, line, X(line.x[best]), Y(line.y[best]));
    }
  }

  #cross(c, mark, x, y) {
    c.strokeStyle = Chart.paint(mark.color); c.lineWidth = 2.2; c.beginPath();
    if (mark.bar) { c.moveTo(x, y - 6); c.lineTo(x, y + 6); } else { c.moveTo(x - 5, y - 5); c.lineTo(x + 5, y + 5); c.moveTo(x + 5, y - 5); c.lineTo(x - 5, y + 5); }
    c.stroke();
  }

  #hover(c) {
    if (this.cursor === null || this.drag) { this.tip.hidden = true; return; }
    const { X, box, muted } = this.frame, rows = [];
    let at = null;
    for (const line of this.lines) {
      if (line.silent || !line.x.length) continue;
      const i = nearest(line.x, this.cursor);
      if (at === null || Math.abs(line.x[i] - this.cursor) < Math.abs(at - this.cursor)) at = line.x[i];
    }
    if (at === null) { this.tip.hidden = true; return; }
    for (const line of this.lines) {
      if (line.silent || !line.x.length) continue;
      const i = nearest(line.x, at);
      const reach = (line.x[Math.min(i + 1, line.x.length - 1)] - line.x[Math.max(i - 1, 0)]) || 1;
      if (Math.abs(line.x[i] - at) > reach) continue;
      rows.push({ line, value: line.y[i], n: line.n ? line.n[i] : null });
    }
    rows.sort((a, b) => (b.value ?? -Infinity) - (a.value ?? -Infinity));
    c.strokeStyle = muted; c.lineWidth = 1; c.beginPath(); c.moveTo(X(at), box.top); c.lineTo(X(at), box.bottom); c.stroke();
    const shown = rows.slice(0, 14).map(({ line, value, n }) => el("tr", {},
      el("td", {}, swatch(line)), el("td", {}, line.label),
      el("td", { class: "value" }, value === null ? "no value" : this.format(value)),
      el("td", { class: "count" }, n === null ? "" : `${n}/${line.planned}`)));
    fill(this.tip, el("strong", {}, `${this.xLabel} ${short(at)}`), el("table", {}, el("tbody", {}, shown)),
      rows.length > 14 && el("span", { class: "muted" }, `and ${rows.length - 14} more`));
    this.tip.hidden = false;
    // Beside the line under the pointer; where that leaves no room, below the chart, so that the curves stay in sight.
    const width = this.canvas.parentElement.clientWidth, below = width < 560, right = X(at) > box.left + (box.right - box.left) / 2;
    const place = { top: below ? this.height : box.top + 6, left: below ? 0 : !right && X(at) + 12, right: !below && right && width - X(at) + 12 };
    for (const [side, v] of Object.entries(place)) this.tip.style.setProperty(side, v === false ? "auto" : `${v}px`);
    this.spoken = `${this.xLabel} ${short(at)}: ` + rows.slice(0, 6).map((r) => `${r.line.label} ${r.value === null ? "no value" : this.format(r.value)}`).join(", ");
  }

  // The value of x under the pointer.
  #at(event) {
    const rect = this.canvas.getBoundingClientRect(), { box, x0, x1 } = this.frame;
    const share = Math.min(1, Math.max(0, (event.clientX - rect.left - box.left) / (box.right - box.left)));
    const [a, b] = [this.#across(x0), this.#across(x1)];
    return this.#back(a + share * (b - a));
  }

  #move(event) {
    if (!this.frame) return;
    const x = this.#at(event);
    if (this.drag) this.drag[1] = x; else this.cursor = x;
    requestAnimationFrame(() => this.draw());
  }

  #release() {
    if (!this.drag) return;
    const [a, b] = this.drag.slice().sort((p, q) => p - q);
    this.drag = null;
    if (this.frame.X(b) - this.frame.X(a) > 6) this.zoom = [a, b];
    this.draw();
    this.zoomed?.();
  }

  #key(event) {
    const [a, b] = this.#xRange().map((v) => this.#across(v)), step = (b - a) / 60;
    if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
      const from = this.cursor === null ? (a + b) / 2 : this.#across(this.cursor);
      this.cursor = this.#back(Math.min(b, Math.max(a, from + (event.key === "ArrowRight" ? step : -step))));
      this.draw(); say(this.spoken ?? "");
    } else if (event.key === "+" || event.key === "=") this.scale(0.7, this.cursor);
    else if (event.key === "-") this.scale(1.4, this.cursor);
    else if (event.key === "0" || event.key === "Escape") this.reset();
    else return;
    event.preventDefault();
  }
}

// The part of a canvas's context that `Chart` uses, written down as SVG.
class SvgPen {
  constructor(width, height) {
    Object.assign(this, { width, height, parts: [], defs: [], path: "", dash: [], open: [0], move: "", globalAlpha: 1, font: "12px sans-serif" });
  }
  beginPath() { this.path = ""; }
  #point(x, y) { return `${Number(x.toFixed(2))} ${Number(y.toFixed(2))}`; }
  moveTo(x, y) { this.path += `M${this.#point(x, y)}`; }
  lineTo(x, y) { this.path += `${this.path ? "L" : "M"}${this.#point(x, y)}`; }
  closePath() { this.path += "Z"; }
  rect(x, y, w, h) { this.path += `M${this.#point(x, y)}h${w}v${h}h${-w}Z`; }
  arc(x, y, r) { this.path += `M${this.#point(x - r, y)}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0`; }
  setLineDash(dash) { this.dash = dash; }
  stroke() { this.parts.push(`<path d="${this.path}" fill="none" stroke="${this.strokeStyle.trim()}" stroke-width="${this.lineWidth}"${this.dash.length ? ` stroke-dasharray="${this.dash.join(" ")}"` : ""}${this.#faint()} stroke-linejoin="round"/>`); }
  fill() { this.parts.push(`<path d="${this.path}" fill="${this.fillStyle.trim()}"${this.#faint()}/>`); }
  fillRect(x, y, w, h) { this.beginPath(); this.rect(x, y, w, h); this.fill(); }
  #faint() { return this.globalAlpha === 1 ? "" : ` opacity="${this.globalAlpha}"`; }
  save() { this.open.push(0); }
  #group(attributes) { this.parts.push(`<g ${attributes}>`); this.open[this.open.length - 1]++; }
  restore() { for (let n = this.open.pop(); n > 0; n--) this.parts.push("</g>"); }
  translate(x, y) { this.#group(`transform="translate(${x} ${y})"`); }
  rotate(angle) { this.#group(`transform="rotate(${angle * 180 / Math.PI})"`); }
  clip() { const id = `clip${this.defs.length}`; this.defs.push(`<clipPath id="${id}"><path d="${this.path}"/></clipPath>`); this.#group(`clip-path="url(#${id})"`); }
  fillText(text, x, y) {
    const anchor = { right: "end", center: "middle" }[this.textAlign] ?? "start", base = { middle: "middle", top: "hanging" }[this.textBaseline] ?? "auto";
    const plain = String(text).replace(/[<>&]/g, (c) => ({ "<": "&lt;", ">": "&gt;", "&": "&amp;" })[c]);
    this.parts.push(`<text x="${x}" y="${y}" fill="${this.fillStyle.trim()}" text-anchor="${anchor}" dominant-baseline="${base}">${plain}</text>`);
  }
  text() { return `<svg xmlns="http://www.w3.org/2000/svg" width="${this.width}" height="${this.height}" viewBox="0 0 ${this.width} ${this.height}" font-family="sans-serif" font-size="12"><defs>${this.defs.join("")}</defs>${this.parts.join("\n")}</svg>`; }
}

// Shapes by matplotlib's names, as in the figures; `fill` says how much of one is filled.
const SHAPES = {
  s: [[-1, -1], [1, -1], [1, 1], [-1, 1]], D: [[0, -1.3], [1.3, 0], [0, 1.3], [-1.3, 0]],
  "^": [[0, -1.2], [1.15, 0.9], [-1.15, 0.9]], v: [[0, 1.2], [1.15, -0.9], [-1.15, -0.9]], "<": [[-1.2, 0], [0.9, -1.15], [0.9, 1.15]],
  P: [[-0.45, -1.2], [0.45, -1.2], [0.45, -0.45], [1.2, -0.45], [1.2, 0.45], [0.45, 0.45], [0.45, 1.2], [-0.45, 1.2], [-0.45, 0.45], [-1.2, 0.45], [-1.2, -0.45], [-0.45, -0.45]],
  "*": Array.from({ length: 10 }, (_, i) => { const r = i % 2 ? 0.55 : 1.45, a = i * Math.PI / 5 - Math.PI / 2; return [r * Math.cos(a), r * Math.sin(a)]; }),
  o: Array.from({ length: 16 }, (_, i) => [1.1 * Math.cos(i * Math.PI / 8), 1.1 * Math.sin(i * Math.PI / 8)]),
};

const HALVES = { left: (a, b) => [Math.min(a, 0), b], bottom: (a, b) => [a, Math.max(b, 0)], right: (a, b) => [Math.max(a, 0), b] };

function drawMarker(c, line, x, y, size = 3.6) {
  const color = Chart.paint(line.color), card = getComputedStyle(document.documentElement).getPropertyValue("--card");
  const trace = (keep) => { c.beginPath(); for (const [a, b] of SHAPES[line.marker] ?? SHAPES.o) { const [p, q] = keep(a, b); c.lineTo(x + p * size, y + q * size); } c.closePath(); };
  const half = HALVES[line.fill];
  trace((a, b) => [a, b]); c.fillStyle = line.fill === "full" || !line.fill ? color : card; c.fill();
  if (half) { trace(half); c.fillStyle = color; c.fill(); }
  trace((a, b) => [a, b]); c.strokeStyle = color; c.lineWidth = 1.1; c.stroke();
}

function nearest(sorted, value) {
  let low = 0, high = sorted.length - 1;
  while (low < high) { const middle = (low + high) >> 1; if (sorted[middle] < value) low = middle + 1; else high = middle; }
  return low > 0 && value - sorted[low - 1] <= sorted[low] - value ? low - 1 : low;
}

function ticks(from, to, wanted) {
  const raw = (to - from) / wanted, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw) ?? raw;
  const found = [];
  for (let i = Math.ceil(from / step); i * step <= to + step * 1e-9; i++) found.push(Number((i * step).toPrecision(12)));
  return found;
}

function logTicks(from, to) {
  const decades = Math.log10(to / from), found = [];
  const heads = decades > 4 ? [1] : decades > 1.2 ? [1, 3] : [1, 1.5, 2, 3, 5, 7];
  const every = Math.max(1, Math.ceil(decades / 8));
  for (let e = Math.floor(Math.log10(from)); e <= Math.ceil(Math.log10(to)); e++) {
    if (e % every) continue;
    for (const head of heads) { const v = head * 10 ** e; if (v >= from && v <= to) found.push(v); }
  }
  return found;
}

// A line sample for legends: colour, dashes and marker together, never colour alone.
function swatch(line) {
  const ratio = window.devicePixelRatio || 1, canvas = el("canvas", { width: 34 * ratio, height: 14 * ratio, "aria-hidden": "true", css: { width: "34px", height: "14px" } });
  const c = canvas.getContext("2d");
  c.scale(ratio, ratio); c.strokeStyle = Chart.paint(line.color); c.lineWidth = 2.2; c.setLineDash(line.dash ?? []);
  c.beginPath(); c.moveTo(0, 7); c.lineTo(34, 7); c.stroke(); c.setLineDash([]);
  drawMarker(c, line, 17, 7);
  return canvas;
}
