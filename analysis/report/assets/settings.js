// Settings against results: a metric against one setting, all settings that differ at once, and differences to the baseline.
const plane = { x: null, y: null, forest: null };
const svg = (tag, attributes = {}, ...children) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== null && value !== undefined) node.setAttribute(name, value);
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
};

// A variant's setting as the manifest writes it; null where nobody knows (imported runs).
const settingOf = (study, variant, key) => (variant.known ? variant.differences[key]?.[1] ?? study.base[key] ?? null : null);

// The settings in which the variants of a study differ.
function varying(study) {
  const known = study.variants.filter((v) => v.known), keys = [...new Set(known.flatMap((v) => Object.keys(v.differences)))];
  return keys.filter((key) => new Set(known.map((v) => settingOf(study, v, key))).size > 1);
}

const metricOf = (study, name) => study.metrics.find((m) => m.name === name);
const inUnit = (metric, value) => (metric.unit === "%" ? value * 100 : value);
const metricLabel = (metric) => metric.label + (metric.unit ? ` (${metric.unit})` : "");

// Places of values between 0 and 1 and ticks for them: numbers by size (logarithmic over more than two decades, but for per cent), words at equal distances.
function axisOf(values, unit) {
  const words = [...new Set(values)], numbers = words.map(Number);
  if (words.some((w) => w === "" || w === null || !Number.isFinite(Number(w)))) {
    words.sort((a, b) => String(a).localeCompare(String(b), "en", { numeric: true }));
    return { slot: 1 / words.length, at: (v) => (words.indexOf(v) + 0.5) / words.length, ticks: words.map((w, i) => [(i + 0.5) / words.length, String(w)]) };
  }
  const least = Math.min(...numbers), most = Math.max(...numbers), log = unit !== "%" && least > 0 && most / least > 100, of = log ? Math.log10 : Number;
  const pad = (of(most) - of(least) || 1) * 0.06, low = of(least) - pad, span = of(most) + pad - low;
  const marks = log ? logTicks(least, most) : ticks(least, most === least ? least + 1 : most, 5);
  return { at: (v) => (of(v) - low) / span, ticks: (numbers.length <= 6 ? numbers : marks).map((v) => [(of(v) - low) / span, short(Number(v.toPrecision(3)))]) };
}

// A variant's marker, as drawMarker draws it.
function shape(variant, x, y, size = 4.2) {
  const color = Chart.paint(variant.color), half = HALVES[variant.fill], outline = SHAPES[variant.marker] ?? SHAPES.o;
  const trace = (corners, fill) => svg("polygon", { points: corners.map(([a, b]) => `${x + a * size},${y + b * size}`).join(" "), fill, stroke: color });
  return [trace(outline, variant.fill === "full" ? color : "var(--card)"), half && trace(outline.map(([a, b]) => half(a, b)), color)];
}

// One Tab stop for many marks: arrows move among them, Enter or Space does what a click does. `note` says which is focused or under the pointer.
function rove(marks, note, action = () => {}) {
  note.dataset.usual ??= note.textContent;
  const untell = () => { note.textContent = note.dataset.usual; };
  untell();
  marks.forEach((mark, i) => {
    const tell = () => { note.textContent = mark.querySelector("title").textContent; };
    const key = (event) => {
      const to = { ArrowRight: i + 1, ArrowDown: i + 1, ArrowLeft: i - 1, ArrowUp: i - 1, Home: 0, End: marks.length - 1 }[event.key];
      if (to === undefined && !["Enter", " "].includes(event.key)) return;
      event.preventDefault();
      if (to === undefined) action(mark); else marks[to]?.focus();
    };
    const focus = () => { tell(); for (const other of marks) other.tabIndex = other === mark ? 0 : -1; };
    for (const [name, heard] of Object.entries({ focus, blur: untell, mouseenter: tell, mouseleave: untell, keydown: key, click: () => action(mark) })) mark.addEventListener(name, heard);
    mark.tabIndex = i ? -1 : 0;
  });
  return marks;
}

function drawScatter(study, host) {
  const metric = metricOf(study, plane.y), key = plane.x, runs = data.runs.filter((r) => r.study === study.index && r.final[metric.name]);
  const of = (run) => (key.startsWith("metric:") ? inUnit(metricOf(study, key.slice(7)), run.final[key.slice(7)]?.[0]) : key === "seed" ? run.seed : settingOf(study, variantOf(run), key));
  const shown = runs.map((run) => ({ run, x: of(run), y: inUnit(metric, run.final[metric.name][0]) })).filter((p) => p.x !== null && p.x !== undefined && !Number.isNaN(p.x));
  if (!shown.length) return void fill(host, el("p", { class: "muted" }, "No finished run has both."));
  const width = Math.max(300, host.clientWidth), height = 300, box = { left: 62, right: width - 12, top: 10, bottom: height - 44 };
  const X = axisOf(shown.map((p) => p.x)), Y = axisOf(shown.map((p) => p.y), metric.unit), px = (p) => box.left + (X.at(p.x) + (X.slot ?? 0) * 0.7 * ((p.run.variant + 0.5) / study.variants.length - 0.5)) * (box.right - box.left), py = (v) => box.bottom - Y.at(v) * (box.bottom - box.top);
  const words = X.ticks.length > 1 && X.ticks.some(([, text]) => text.length > 8) ? Math.floor((box.right - box.left) / X.ticks.length / 7) : 99;
  const name = key.startsWith("metric:") ? metricLabel(metricOf(study, key.slice(7))) : key;
  shown.sort((p, q) => px(p) - px(q) || p.y - q.y);
  const dots = shown.map((p) => svg("g", { class: "dot-run", role: "button", "data-run": p.run.where }, shape(variantOf(p.run), px(p), py(p.y)), svg("title", {}, `${runName(p.run)}: ${name} ${p.x}, ${metric.label} ${p.run.final[metric.name][1]}`)));
  fill(host, svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "picture", role: "group", "aria-label": `${metricLabel(metric)} against ${name}: ${shown.length} runs` },
    Y.ticks.map(([at, text]) => { const y = box.bottom - at * (box.bottom - box.top); return [svg("line", { x1: box.left, x2: box.right, y1: y, y2: y, class: "grid-line" }), svg("text", { x: box.left - 8, y, "text-anchor": "end", "dominant-baseline": "middle" }, text)]; }),
    X.ticks.map(([at, text]) => svg("text", { x: box.left + at * (box.right - box.left), y: box.bottom + 16, "text-anchor": "middle" }, text.length > words ? `${text.slice(0, Math.max(1, words - 1))}…` : text, svg("title", {}, text))),
    svg("text", { x: (box.left + box.right) / 2, y: height - 8, "text-anchor": "middle", class: "ink" }, name),
    svg("text", { x: 14, y: (box.top + box.bottom) / 2, "text-anchor": "middle", class: "ink", transform: `rotate(-90 14 ${(box.top + box.bottom) / 2})` }, metricLabel(metric)),
    rove(dots, host.nextSibling, (dot) => openRun(byWhere.get(dot.dataset.run)))));
}

// A line a variant through its settings to the mean of its finished runs.
function drawParallel(study, host) {
  const metric = metricOf(study, plane.y), keys = varying(study);
  const rows = study.variants.filter((v) => v.known).map((variant) => { const values = variant.runs.map((i) => data.runs[i].final[metric.name]?.[0]).filter((v) => v !== undefined); return { variant, mean: values.length ? inUnit(metric, values.reduce((a, b) => a + b, 0) / values.length) : null }; }).filter((row) => row.mean !== null);
  if (!keys.length || rows.length < 2) return void fill(host, el("p", { class: "muted" }, "Fewer than two finished variants differ in a setting."));
  const axes = [...keys.map((key) => ({ name: key, of: (row) => settingOf(study, row.variant, key) ?? "–" })), { name: metricLabel(metric), of: (row) => row.mean, unit: metric.unit }].map((a) => ({ ...a, ...axisOf(rows.map(a.of), a.unit) }));
  const cut = host.clientWidth < 560 ? 18 : 30, names = rows.map(({ variant: { label } }) => (label.length > cut ? `${label.slice(0, cut - 1)}…` : label));
  const room = 64 + 7.6 * Math.max(...names.map((name) => name.length)), width = Math.max(host.clientWidth, 84 * axes.length + room), height = Math.max(300, 60 + 15 * rows.length), top = 34, bottom = height - 14, left = 8, right = width - room;
  const x = (i) => left + i * (right - left) / (axes.length - 1), y = (axis, value, n = 0) => bottom - axis.at(value) * (bottom - top) + (axis.slot ? Math.min(16, 0.6 * axis.slot * (bottom - top)) * (n / (rows.length - 1) - 0.5) : 0), last = axes[axes.length - 1];
  // Names stand at the right end, in the order in which the lines arrive there and 15 pixels apart.
  const ends = rows.map((row) => y(last, row.mean)), order = rows.map((row, i) => i).sort((i, j) => ends[i] - ends[j]), at = [];
  order.forEach((i, n) => { at[i] = Math.max(ends[i], n ? at[order[n - 1]] + 15 : top); });
  order.reverse().forEach((i, n) => { at[i] = Math.min(at[i], n ? at[order[n - 1]] - 15 : bottom); });
  const lines = rows.map((row, n) => svg("g", { class: "variant-line", role: "img", "data-variant": row.variant.name },
    svg("polyline", { points: [...axes.map((a, i) => `${x(i)},${y(a, a.of(row), n)}`), `${right + 22},${at[n]}`, `${right + 50},${at[n]}`].join(" "), fill: "none", stroke: Chart.paint(row.variant.color), "stroke-dasharray": row.variant.dash.join(" ") }),
    shape(row.variant, right + 36, at[n]), svg("text", { x: right + 56, y: at[n], "dominant-baseline": "middle", class: "ink" }, names[n]),
    svg("title", {}, `${row.variant.label}: ${axes.map((a) => `${a.name} ${typeof a.of(row) === "number" ? short(a.of(row)) : a.of(row)}`).join(", ")}`)));
  fill(host, svg("svg", { viewBox: `0 0 ${width} ${height}`, width, class: "picture parallel", role: "group", "aria-label": `Settings and ${metric.label} of ${rows.length} variants` },
    rove(order.reverse().map((i) => lines[i]), host.nextSibling),
    axes.map((a, i) => [svg("line", { x1: x(i), x2: x(i), y1: top, y2: bottom, class: "axis-line" }), svg("text", { x: x(i), y: 14 + (i % 2) * 12, "text-anchor": i ? (a === last ? "end" : "middle") : "start", class: "ink" }, a.name),
      a.ticks.map(([place, text]) => svg("text", { x: x(i) + (a === last ? -5 : 5), y: -5 + bottom - place * (bottom - top), "dominant-baseline": "middle", "text-anchor": a === last ? "end" : "start" }, text))])));
}

function buildSettings(study) {
  const host = body("settings"), keys = varying(study), names = study.metrics.map((m) => m.name).filter((name) => data.runs.some((r) => r.study === study.index && r.final[name]));
  if (!names.length) return void fill(host, el("p", { class: "muted" }, "No run has finished yet."));
  const places = [...keys.map((key) => [key, key]), ["seed", "seed"], ...names.map((name) => [`metric:${name}`, metricLabel(metricOf(study, name))])];
  if (!places.some(([key]) => key === plane.x)) plane.x = places[0][0];
  if (!names.includes(plane.y)) plane.y = names[0];
  const scatter = el("div", { class: "scroll", id: "scatter" }), parallel = el("div", { class: "scroll", id: "parallel" });
  const draw = () => { drawScatter(study, scatter); drawParallel(study, parallel); };
  const pick = (id, side, options) => { const select = el("select", { id, on: { change: () => { plane[side] = select.value; draw(); } } }, options.map(([value, text]) => el("option", { value, selected: value === plane[side] }, text))); return select; };
  fill(host, el("div", { class: "card" }, el("div", { class: "row" }, el("label", { class: "compact" }, "Result ", pick("scatter-y", "y", names.map((name) => [name, metricLabel(metricOf(study, name))]))), el("label", { class: "compact" }, "Against ", pick("scatter-x", "x", places))),
    scatter, el("p", { class: "small muted wide" }, "A mark a finished run, at its last epoch; a click or Enter opens it, arrows move. At a word the variants stand side by side."),
    el("h3", {}, "All settings that differ"), parallel, el("p", { class: "small muted wide" }, "A line a variant, through its settings to the mean of its finished runs at the last epoch and its name. Point at a name, or use arrows, to see one line alone.")));
  draw();
  if (!host.observed) { host.observed = new ResizeObserver(() => { const now = shownStudy(), width = host.clientWidth; if (width && width !== host.drawn && document.getElementById("scatter")) { drawScatter(now, document.getElementById("scatter")); drawParallel(now, document.getElementById("parallel")); } host.drawn = width; }); host.observed.observe(host); }
}

// ---- differences to the baseline, as the figure `kind: differences` draws them
const STANDING = { starred: ["#0072B2", "D", true], open: ["#808080", "o", false], "not tested": ["#999999", "x", false] };

function drawForest(study, host) {
  const name = plane.forest, rows = study.variants.filter((v) => v.name !== study.baseline && v.differences_to_baseline?.[name]).map((v) => ({ variant: v, ...v.differences_to_baseline[name] }));
  const metric = metricOf(study, name), far = 1.6 * Math.max(...rows.map((r) => Math.abs(r.mean ?? 0))) || Infinity;
  const ends = [0, ...rows.flatMap((r) => [r.low, r.mean, r.high]).filter((v) => v !== null).map((v) => Math.min(Math.max(v, -far), far))];
  const pad = 0.05 * (Math.max(...ends) - Math.min(...ends)) || 1, low = Math.min(...ends) - pad, high = Math.max(...ends) + pad;
  const width = 400, X = (v) => 6 + (Math.min(Math.max(v, low), high) - low) / (high - low) * (width - 12), marks = ticks(low, high, 4);
  const cell = (row) => { const [color, marker, filled] = STANDING[row.word], y = 12, parts = [svg("line", { x1: X(0), x2: X(0), y1: 0, y2: 24, class: "axis-line" })];
    if (row.least !== null) parts.unshift(svg("rect", { x: X(-row.least), width: X(row.least) - X(-row.least), y: 2, height: 20, class: "band" }));
    if (row.low !== null) parts.push(svg("line", { x1: X(row.low), x2: X(row.high), y1: y, y2: y, stroke: color, "stroke-width": 2 }), [[row.low, low, -1], [row.high, high, 1]].filter(([end, border, side]) => (end - border) * side > 0).map(([, border, side]) => svg("path", { d: `M${X(border) + side * 5} ${y}l${-side * 7} -4v8z`, fill: color })));
    if (row.mean !== null) parts.push(marker === "x" ? svg("path", { d: `M${X(row.mean) - 4} ${y - 4}l8 8m0 -8l-8 8`, stroke: color, "stroke-width": 2 }) : svg("polygon", { points: SHAPES[marker].map(([a, b]) => `${X(row.mean) + a * 4.5},${y + b * 4.5}`).join(" "), fill: filled ? color : "var(--card)", stroke: color, "stroke-width": 1.5 }));
    return svg("svg", { viewBox: `0 0 ${width} 24`, class: "forest", "aria-hidden": "true" }, parts); };
  const scale = svg("svg", { viewBox: `0 0 ${width} 24`, class: "forest", "aria-hidden": "true" }, marks.map((v) => svg("text", { x: X(v), y: 14, "text-anchor": "middle" }, short(v))));
  fill(host, grid(["Variant", `Difference in ${metric.label} to the baseline${metric.unit === "%" ? " (points)" : metric.unit && ` (${metric.unit})`}`, { text: "", value: true }, ""], [...rows.map((row) => [row.variant.label, cell(row), row.text.replace(/-(?=[\d.])/g, "−"), row.word]), ["", scale, "", ""]], { class: "forest-table" }));
}

function buildForest(study) {
  const names = study.metrics.map((m) => m.name).filter((name) => study.variants.some((v) => v.differences_to_baseline?.[name]?.mean !== null && v.differences_to_baseline?.[name]));
  if (!names.length) return null;
  if (!names.includes(plane.forest)) plane.forest = names[0];
  const host = el("div", { class: "scroll", id: "forest" }), select = el("select", { id: "forest-metric", on: { change: () => { plane.forest = select.value; drawForest(study, host); } } }, names.map((name) => el("option", { value: name, selected: name === plane.forest }, metricLabel(metricOf(study, name)))));
  const card = el("div", { class: "card" }, el("h3", {}, "Differences to the baseline"), el("div", { class: "row" }, el("label", { class: "compact" }, "Metric ", select)), host,
    el("p", { class: "small muted wide" }, "Mean over seeds at the last epoch with its 95 % t interval; an arrow: it goes on. ◆ starred: p < 0.05 after Holm's correction; ○ open: not shown; × not tested. Grey: with this spread and these seeds, a difference within it could not have been starred alone."));
  drawForest(study, host);
  return card;
}
