// A line chart on a canvas: hover, zoom by dragging, logarithmic axis, crosses where a run diverged.
// lines: [{label, color, dash, width, alpha, x, y, lo, hi, n, planned, silent}], null in y is a gap.
class Chart {
  constructor(host, { height = 380, label = "" } = {}) {
    this.height = height;
    this.canvas = el("canvas", { tabindex: "0", role: "img", "aria-label": label });
    this.tip = el("div", { class: "tip", hidden: true });
    host.append(this.canvas, this.tip);
    this.lines = []; this.marks = []; this.zoom = null; this.cursor = null; this.drag = null;
    this.log = false; this.xLabel = ""; this.yLabel = ""; this.format = short;
    this.canvas.addEventListener("pointermove", (e) => this.#move(e));
    this.canvas.addEventListener("pointerleave", () => { this.cursor = null; this.draw(); });
    this.canvas.addEventListener("pointerdown", (e) => { this.drag = [this.#at(e)[0], this.#at(e)[0]]; this.canvas.setPointerCapture(e.pointerId); });
    this.canvas.addEventListener("pointerup", () => this.#release());
    this.canvas.addEventListener("pointercancel", () => { this.drag = null; this.draw(); });
    this.canvas.addEventListener("dblclick", () => this.reset());
    this.canvas.addEventListener("wheel", (e) => { if (!e.ctrlKey && !e.metaKey) return; e.preventDefault(); this.scale(e.deltaY > 0 ? 1.25 : 0.8, this.#at(e)[0]); }, { passive: false });
    this.canvas.addEventListener("keydown", (e) => this.#key(e));
    new ResizeObserver(() => this.draw()).observe(host);
  }

  set(options) {
    Object.assign(this, options);
    this.cursor = null;
    this.draw();
  }

  reset() { this.zoom = null; this.draw(); }

  scale(factor, centre) {
    const [a, b] = this.#xRange();
    const middle = centre ?? (a + b) / 2;
    this.zoom = [middle - (middle - a) * factor, middle + (b - middle) * factor];
    const [least, most] = this.#fullX();
    if (this.zoom[0] <= least && this.zoom[1] >= most) this.zoom = null;
    this.draw();
  }

  #fullX() {
    let least = Infinity, most = -Infinity;
    for (const line of this.lines) if (line.x.length) { least = Math.min(least, line.x[0]); most = Math.max(most, line.x[line.x.length - 1]); }
    if (least > most) return [0, 1];
    return least === most ? [least - 0.5, most + 0.5] : [least, most];
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
    const style = getComputedStyle(document.documentElement);
    const ink = style.getPropertyValue("--ink"), muted = style.getPropertyValue("--muted"), grid = style.getPropertyValue("--line");
    const [x0, x1] = this.#xRange(), [y0, y1] = this.#yRange(x0, x1);
    const box = { left: 70, right: width - 12, top: 12, bottom: this.height - 42 };
    const up = this.log ? Math.log10 : (v) => v;
    const X = (v) => box.left + (v - x0) / (x1 - x0) * (box.right - box.left);
    const Y = (v) => box.bottom - (up(v) - up(y0)) / (up(y1) - up(y0)) * (box.bottom - box.top);
    this.frame = { box, x0, x1, X, Y };
    c.clearRect(0, 0, width, this.height);
    c.font = "12px system-ui, sans-serif"; c.lineWidth = 1; c.strokeStyle = grid; c.fillStyle = muted;
    c.textAlign = "right"; c.textBaseline = "middle";
    for (const tick of this.log ? logTicks(y0, y1) : ticks(y0, y1, 6)) {
      const y = Math.round(Y(tick)) + 0.5;
      c.beginPath(); c.moveTo(box.left, y); c.lineTo(box.right, y); c.stroke();
      c.fillText(this.format(tick), box.left - 8, y);
    }
    c.textAlign = "center"; c.textBaseline = "top";
    for (const tick of ticks(x0, x1, Math.max(2, Math.floor(width / 110)))) {
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
    for (const mark of this.marks) if (!(this.log && mark.y <= 0)) this.#cross(c, mark, X(mark.x), Y(mark.y));
    if (this.drag) { c.fillStyle = muted; c.globalAlpha = 0.18; c.fillRect(X(this.drag[0]), box.top, X(this.drag[1]) - X(this.drag[0]), box.bottom - box.top); }
    c.restore();
    this.#hover(c, box, muted);
  }

  // The baseline is black on white paper; on a dark card it is the colour of the text.
  static paint(color) { return color.toLowerCase() === "#000000" ? getComputedStyle(document.documentElement).getPropertyValue("--ink") : color; }

  #band(c, line, X, Y) {
    const ok = (i) => line.lo[i] !== null && line.hi[i] !== null && !(this.log && line.lo[i] <= 0);
    c.fillStyle = Chart.paint(line.color); c.globalAlpha = 0.13;
    for (let i = 0; i < line.x.length; i++) {
      if (!ok(i)) continue;
      let end = i;
      while (end + 1 < line.x.length && ok(end + 1)) end++;
      c.beginPath();
      for (let k = i; k <= end; k++) c.lineTo(X(line.x[k]), Y(line.hi[k]));
      for (let k = end; k >= i; k--) c.lineTo(X(line.x[k]), Y(line.lo[k]));
      c.fill(); i = end;
    }
    c.globalAlpha = 1;
  }

  // Drawn in stretches: a mean over fewer seeds than planned is dotted, so that it cannot be missed.
  #line(c, line, X, Y) {
    c.strokeStyle = Chart.paint(line.color); c.lineWidth = line.width ?? 1.8; c.globalAlpha = line.alpha ?? 1; c.lineJoin = "round";
    const drawable = (i) => line.y[i] !== null && !(this.log && line.y[i] <= 0);
    const thin = (i) => Boolean(line.n) && line.n[i] < line.planned;
    let start = 0;
    while (start < line.x.length) {
      if (!drawable(start)) { start++; continue; }
      let end = start;
      const few = thin(start);
      while (end + 1 < line.x.length && drawable(end + 1) && thin(end + 1) === few) end++;
      c.setLineDash(few ? [2, 3] : line.dash ?? []);
      c.beginPath();
      const from = few && start > 0 && drawable(start - 1) ? start - 1 : start;
      for (let i = from; i <= end; i++) c.lineTo(X(line.x[i]), Y(line.y[i]));
      c.stroke();
      if (end === from) { c.beginPath(); c.arc(X(line.x[end]), Y(line.y[end]), 2.2, 0, 7); c.fillStyle = Chart.paint(line.color); c.fill(); }
      start = end + 1;
    }
    c.setLineDash([]); c.globalAlpha = 1;
  }

  #cross(c, mark, x, y) {
    c.strokeStyle = Chart.paint(mark.color); c.lineWidth = 2.2; c.beginPath();
    c.moveTo(x - 5, y - 5); c.lineTo(x + 5, y + 5); c.moveTo(x + 5, y - 5); c.lineTo(x - 5, y + 5); c.stroke();
  }

  #hover(c, box, muted) {
    if (this.cursor === null || this.drag) { this.tip.hidden = true; return; }
    const { X } = this.frame, rows = [];
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
      el("td", { css: { color: Chart.paint(line.color) } }, "●"), el("td", {}, line.label),
      el("td", { class: "value" }, value === null ? "not finite" : this.format(value)),
      el("td", { class: "count" }, n === null ? "" : `${n}/${line.planned}`)));
    fill(this.tip, el("strong", {}, `${this.xLabel} ${short(at)}`), el("table", {}, el("tbody", {}, shown)),
      rows.length > 14 && el("span", { class: "muted" }, `and ${rows.length - 14} more`));
    this.tip.hidden = false;
    const right = X(at) > box.left + (box.right - box.left) / 2;
    this.tip.style.setProperty("top", `${box.top + 6}px`);
    this.tip.style.setProperty("left", right ? "auto" : `${X(at) + 12}px`);
    this.tip.style.setProperty("right", right ? `${this.canvas.parentElement.clientWidth - X(at) + 12}px` : "auto");
    this.spoken = `${this.xLabel} ${short(at)}: ` + rows.slice(0, 6).map((r) => `${r.line.label} ${r.value === null ? "not finite" : this.format(r.value)}`).join(", ");
  }

  #at(event) {
    const rect = this.canvas.getBoundingClientRect(), { box, x0, x1 } = this.frame;
    const share = (event.clientX - rect.left - box.left) / (box.right - box.left);
    return [x0 + Math.min(1, Math.max(0, share)) * (x1 - x0)];
  }

  #move(event) {
    if (!this.frame) return;
    const [x] = this.#at(event);
    if (this.drag) this.drag[1] = x; else this.cursor = x;
    requestAnimationFrame(() => this.draw());
  }

  #release() {
    if (!this.drag) return;
    const [a, b] = this.drag.slice().sort((p, q) => p - q);
    this.drag = null;
    if (this.frame.X(b) - this.frame.X(a) > 6) this.zoom = [a, b];
    this.draw();
  }

  #key(event) {
    const [a, b] = this.#xRange(), step = (b - a) / 60;
    if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
      this.cursor = Math.min(b, Math.max(a, (this.cursor ?? (a + b) / 2) + (event.key === "ArrowRight" ? step : -step)));
      this.draw(); say(this.spoken ?? "");
    } else if (event.key === "+" || event.key === "=") this.scale(0.7, this.cursor);
    else if (event.key === "-") this.scale(1.4, this.cursor);
    else if (event.key === "0" || event.key === "Escape") this.reset();
    else return;
    event.preventDefault();
  }
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

// A line sample for legends: colour and dashes together, never colour alone.
function swatch(line) {
  const ratio = window.devicePixelRatio || 1, canvas = el("canvas", { width: 30 * ratio, height: 12 * ratio, "aria-hidden": "true", css: { width: "30px", height: "12px" } });
  const c = canvas.getContext("2d");
  c.scale(ratio, ratio); c.strokeStyle = Chart.paint(line.color); c.lineWidth = 2.4; c.setLineDash(line.dash ?? []);
  c.beginPath(); c.moveTo(0, 6); c.lineTo(30, 6); c.stroke();
  return canvas;
}
