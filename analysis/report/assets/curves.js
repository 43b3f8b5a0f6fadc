// The curves section: one metric of one study against steps, epochs, wall clock or GPU hours.
// logs holds a metric's vertical axis once somebody decides; until then it is what the values ask for. more: metrics with a chart of their own.
const chosen = { kind: "train", metric: "loss", x: "step", logs: {}, logX: false, smooth: 0, seeds: true, hidden: new Set(), more: new Set() };
const WORTH_A_LOG_AXIS = 50; // largest over smallest value, as in the figures
let curveChart;
const moreCharts = new Map(); // "kind|metric" to its chart

const metricKey = () => `${chosen.kind}|${chosen.metric}`;
const isLog = (study) => chosen.logs[metricKey()] ?? explodes(study);

// The metric that a study opens on.
function firstMetric(study) {
  const kind = study.kinds.train.includes("loss") || !study.kinds.eval.length ? "train" : "eval";
  return `${kind}|${study.kinds[kind].includes("loss") ? "loss" : study.kinds[kind][0]}`;
}

// What `make` gives where another metric is chosen.
function withMetric(key, make) {
  const before = [chosen.kind, chosen.metric];
  [chosen.kind, chosen.metric] = key.split(/\|(.*)/s);
  try { return make(); } finally { [chosen.kind, chosen.metric] = before; }
}

const seriesOf = (study, kind, metric) => data.series[`${study}|${kind}|${metric}`] ?? { seeds: [], means: [] };

// Linear between pairs [step, value] and beyond the last.
function between(pairs, step) {
  if (pairs.length < 2) return null;
  let i = 1;
  while (i < pairs.length - 1 && step > pairs[i][0]) i++;
  const [[s0, v0], [s1, v1]] = [pairs[i - 1], pairs[i]];
  return s1 === s0 ? v1 : v0 + (step - s0) / (s1 - s0) * (v1 - v0);
}

// Steps in the chosen unit; null where nothing says. A mean's step takes as long as the mean of the runs that got so far.
function placed(variant, ran, steps) {
  if (chosen.x === "step") return steps;
  if (chosen.x === "epoch") return steps.map((step) => between(variant.epoch_ends, step));
  const timed = ran.filter((run) => run.times.length > 1 && (chosen.x === "wall" || run.gpus > 0));
  if (!timed.length) return steps.map(() => null);
  const unit = chosen.x === "wall" ? wallUnit(data.studies[timed[0].study]).seconds : 3600;
  const spent = (run, step) => between(run.times, step) * (chosen.x === "gpu" ? run.gpus : 1) / unit;
  let sum = 0, before = 0;
  return steps.map((step) => {
    const there = timed.filter((run) => run.times[run.times.length - 1][0] >= step), runs = there.length ? there : timed;
    sum += runs.reduce((all, run) => all + spent(run, step) - spent(run, before), 0) / runs.length;
    before = step;
    return sum;
  });
}

function wallUnit(study) {
  const most = Math.max(0, ...data.runs.filter((r) => r.study === study.index && r.times.length).map((r) => r.times[r.times.length - 1][1]));
  return most > 3 * 3600 ? { name: "hours", seconds: 3600 } : most > 180 ? { name: "minutes", seconds: 60 } : { name: "seconds", seconds: 1 };
}

const xName = (study) => ({ step: "step", epoch: "epoch", wall: `wall clock (${wallUnit(study).name})`, gpu: "GPU hours" })[chosen.x];

// Debiased exponential moving average, begun anew after a gap and where a seed leaves, as in the figures.
function smooth(y, part, weight) {
  let total = 0, norm = 0;
  return y.map((value, i) => {
    if (value === null || (part && i && part[i] !== part[i - 1])) { total = 0; norm = 0; }
    if (value === null) return null;
    total = weight * total + (1 - weight) * value; norm = weight * norm + 1 - weight;
    return total / norm;
  });
}

// A variant's lines for the chosen metric: its mean (or only seed) last, with everything that is drawn behind it.
function variantLines(study, variant, { seeds = chosen.seeds } = {}) {
  const index = study.variants.indexOf(variant), series = seriesOf(study.index, chosen.kind, chosen.metric), lines = [];
  const look = { color: variant.color, dash: variant.dash, marker: variant.marker, fill: variant.fill };
  const mine = series.seeds.filter((s) => data.runs[s.run].study === study.index && data.runs[s.run].variant === index), mean = series.means.find((m) => m.variant === index);
  for (const s of mine) {
    const run = data.runs[s.run], x = placed(variant, [run], s.x);
    if (mean) lines.push({ label: runName(run), color: variant.color, x, y: s.y, run, width: 0.9, alpha: seeds ? 0.45 : 0, silent: true, steps: s.x });
    else lines.push(...smoothable({ ...look, label: variant.label, x, y: s.y, n: s.x.map(() => 1), planned: variant.planned || variant.runs.length, run, width: 1.8, steps: s.x }));
  }
  if (mean) lines.push(...smoothable({ ...look, label: variant.label, x: placed(variant, mine.map((s) => data.runs[s.run]), mean.x), y: mean.y, lo: mean.lo, hi: mean.hi, n: mean.n, part: mean.part, planned: mean.planned, width: 2, mean: true, steps: mean.x, merged: mean.merged, interpolated: mean.interpolated }));
  return lines;
}

// With smoothing, the raw line stays behind the smoothed one.
function smoothable(line) {
  if (!chosen.smooth) return [line];
  return [{ ...line, lo: null, hi: null, width: 1, alpha: 0.4, silent: true, dash: [], raw: true }, { ...line, raw_y: line.y, y: smooth(line.y, line.part, chosen.smooth) }];
}

function runLines(run) {
  const variant = variantOf(run), series = seriesOf(run.study, chosen.kind, chosen.metric).seeds.find((s) => data.runs[s.run] === run);
  if (!series) return [];
  return smoothable({ label: runName(run), color: variant.color, dash: variant.dash, marker: variant.marker, fill: variant.fill, x: placed(variant, [run], series.x), y: series.y, width: 1.8, run, steps: series.x });
}

// A cross at the last finite value of every run that diverged, a bar where one stopped without finishing.
function endMarks(lines) {
  const found = [];
  for (const line of lines) {
    if (!line.run || line.raw || !["diverged", "failed", "cancelled", "interrupted"].includes(line.run.state)) continue;
    const y = line.raw_y ?? line.y;
    for (let i = y.length - 1; i >= 0; i--) if (y[i] !== null) { found.push({ x: line.x[i], y: y[i], color: line.color, bar: line.run.state !== "diverged", run: line.run }); break; }
  }
  return found;
}

// Whether a linear axis would hide most of what happens.
function explodes(study) {
  const values = seriesOf(study.index, chosen.kind, chosen.metric).seeds.flatMap((s) => s.y).filter((v) => v !== null);
  const least = values.reduce((a, b) => Math.min(a, b), Infinity), most = values.reduce((a, b) => Math.max(a, b), -Infinity);
  return !percent(study) && least > 0 && most / least > WORTH_A_LOG_AXIS;
}

// Variants that ran and never logged this metric: a bf16 run has no AMP scale.
function unlogged(study) {
  const logged = new Set(seriesOf(study.index, chosen.kind, chosen.metric).seeds.map((s) => data.runs[s.run].variant));
  return study.variants.filter((v, i) => v.completed > 0 && !logged.has(i)).map((v) => v.label);
}

const percent = (study) => chosen.kind === "eval" && study.metrics.find((m) => m.name === chosen.metric)?.unit === "%";
const chartFormat = (study) => (percent(study) ? (v) => short(v * 100) : short);
const chartLabel = (study) => (study.names[chosen.metric] ?? chosen.metric) + (percent(study) ? " (%)" : "");

function drawCurves(study) {
  const lines = study.variants.filter((v) => !chosen.hidden.has(v.name)).flatMap((v) => variantLines(study, v));
  const log = isLog(study), marks = endMarks(lines), absent = unlogged(study);
  document.getElementById("log-axis").checked = log;
  const shown = lines.filter((l) => l.alpha !== 0 && l.x.some((x) => x !== null));
  curveChart.set({ lines: shown, marks, log, logX: chosen.logX, xLabel: xName(study), yLabel: chartLabel(study), format: chartFormat(study) });
  curveChart.canvas.setAttribute("aria-label", `${chartLabel(study)} against ${xName(study)} of ${study.name}: ${shown.filter((l) => !l.silent).map((l) => l.label).join(", ")}`);
  drawValues(study, shown);
  document.getElementById("curve-note").textContent = notes(study, lines, marks, log, absent).join(" ");
  drawMore(study);
  keepView();
}

// The chosen metrics beside the first one, a small chart each.
function drawMore(study) {
  const host = document.getElementById("more-charts"), keys = [...chosen.more];
  if (keys.join() !== [...moreCharts.keys()].join() || !host.children.length) {
    moreCharts.clear();
    fill(host, keys.map((key) => { const plot = el("div", { class: "chart" }); moreCharts.set(key, new Chart(plot, { height: 190 })); return el("div", { "data-chart": key }, plot); }));
  }
  for (const [key, chart] of moreCharts) withMetric(key, () => {
    const lines = study.variants.filter((v) => !chosen.hidden.has(v.name)).flatMap((v) => variantLines(study, v)).filter((l) => l.alpha !== 0 && l.x.some((x) => x !== null));
    chart.set({ lines, marks: endMarks(lines), log: isLog(study), logX: chosen.logX, xLabel: xName(study), yLabel: chartLabel(study), format: chartFormat(study) });
    chart.canvas.setAttribute("aria-label", `${chartLabel(study)} against ${xName(study)}`);
  });
}

// Which metrics have a small chart.
function morePicker(study) {
  const every = Object.entries(study.kinds).flatMap(([kind, names]) => names.map((name) => [`${kind}|${name}`, study.names[name] ?? name]));
  for (const key of chosen.more) if (!every.some(([k]) => k === key)) chosen.more.delete(key);
  const boxes = every.map(([key, text]) => { const input = el("input", { type: "checkbox", "data-more": key, checked: chosen.more.has(key), on: { change: () => { if (input.checked) chosen.more.add(key); else chosen.more.delete(key); drawCurves(study); } } }); return el("label", { class: "compact" }, input, text); });
  const all = (on) => { chosen.more = new Set(on ? every.map(([key]) => key) : []); for (const input of host.querySelectorAll("input")) input.checked = on; drawCurves(study); };
  const host = el("details", { class: "unprinted", open: chosen.more.size > 0 }, el("summary", {}, "More charts at once"), el("div", { class: "row" }, boxes, button("All", () => all(true), { "aria-label": "Show a chart of every metric" }), button("None", () => all(false), { "aria-label": "Show no further chart" })));
  return host;
}

function notes(study, lines, marks, log, absent) {
  const means = lines.filter((l) => l.mean && !l.raw), seeds = lines.filter((l) => l.run);
  const below = seeds.reduce((sum, l) => sum + (l.raw_y ?? l.y).filter((v) => v !== null && v <= 0).length, 0), left = lines.reduce((sum, l) => sum + l.x.filter((x) => x !== null && x <= 0).length, 0);
  const nowhere = [...new Set(seeds.filter((l) => l.x.every((x) => x === null)).map((l) => runName(l.run)))], guessed = ["wall", "gpu"].includes(chosen.x) && seeds.some((l) => !l.run.timed && l.run.times.length);
  const bars = marks.filter((m) => m.bar).length, crosses = marks.length - bars;
  return [
    means.length ? "Thick: mean over seeds, in linear space; band: least to most over seeds; dotted where fewer seeds than planned are left." : "One line a run.",
    means.some((l) => l.interpolated) ? "Seeds that log at different steps are interpolated linearly between their own values." : "",
    means.some((l) => l.merged) ? "Points of a mean are averages over windows of steps." : "",
    chosen.smooth ? `Smoothed: exponential moving average with weight ${chosen.smooth}; faint behind it: the values themselves.` : "",
    crosses ? `× ${counted(crosses, "run")} diverged there: the last finite value.` : "",
    bars ? `| ${counted(bars, "run")} stopped there without finishing.` : "",
    seeds.some((l) => l.y.includes(null)) ? "A gap: values that were not finite." : "",
    log && below ? `${counted(below, "value")} of zero or less: not on a logarithmic axis.` : "",
    chosen.logX && left ? `${counted(left, "point")} at or left of zero: not on a logarithmic axis.` : "",
    guessed ? "Some runs logged no times: their training time is spread evenly over their steps." : "",
    nowhere.length ? `No ${xName(study)} is known of ${nowhere.slice(0, 6).join("; ")}${nowhere.length > 6 ? ` and ${nowhere.length - 6} more` : ""}${chosen.x === "gpu" ? ": no GPU" : ""}.` : "",
    absent.length ? `${chosen.metric} was not logged by ${absent.join("; ")}.` : "",
    !log && explodes(study) ? `Values span more than a factor of ${WORTH_A_LOG_AXIS}: try the logarithmic axis.` : "",
    "Single seeds are thinned for display; every part keeps its least and greatest value.",
  ].filter(Boolean);
}

// Least, last and greatest value of every line that has a name, as drawn, before smoothing.
function drawValues(study, lines) {
  const format = chartFormat(study);
  const rows = lines.filter((l) => !l.silent).map((line) => {
    const values = (line.raw_y ?? line.y).map((v, i) => [v, line.x[i]]).filter(([v]) => v !== null);
    if (!values.length) return null;
    const by = (better) => values.reduce((a, b) => (better(b[0], a[0]) ? b : a)), at = ([v, x]) => [format(v), el("span", { class: "muted small" }, ` at ${short(x)}`)];
    const last = values[values.length - 1];
    return [line.label, at(by((a, b) => a < b)), at(last), at(by((a, b) => a > b)), line.n ? `${line.n[line.n.length - 1]}/${line.planned}` : ""];
  }).filter(Boolean);
  fill(document.getElementById("curve-values"), rows.length > 0 && el("details", { open: true }, el("summary", {}, `Least, last and greatest value (${chartLabel(study)}, at ${xName(study)})`),
    el("div", { class: "scroll" }, grid(["Variant", { text: "Min", value: true }, { text: "Last", value: true }, { text: "Max", value: true }, { text: "Seeds left", value: true }], rows, { id: "extremes" }))));
}

// What the chart shows as CSV: one row a point, the mean's without a seed.
function curvesCsv(study) {
  const quote = (v) => (v === null || v === undefined ? "" : /[",\n]/.test(String(v)) ? `"${String(v).replaceAll('"', '""')}"` : String(v));
  const other = chosen.x === "step" ? [] : [xName(study)];
  const rows = [["study", "variant", "seed", "metric", "step", ...other, "value", "smoothed", "low", "high", "n"]];
  for (const line of curveChart.lines) {
    if (line.raw) continue;
    const variant = line.run ? variantOf(line.run).name : study.variants.find((v) => v.label === line.label)?.name, values = line.raw_y ?? line.y;
    line.steps.forEach((step, i) => rows.push([study.name, variant, line.run?.seed, chosen.metric, step, ...(other.length ? [line.x[i]] : []), values[i], line.raw_y ? line.y[i] : null, line.lo?.[i], line.hi?.[i], line.n?.[i]]));
  }
  return rows.map((row) => row.map(quote).join(",")).join("\n") + "\n";
}

function saveButtons(chart, name, csv) {
  const file = (ending) => `${name().replace(/[^A-Za-z0-9._-]+/g, "_")}.${ending}`;
  return el("span", { class: "chips", role: "group", "aria-label": "Save the chart" },
    button("SVG", () => save(file("svg"), new Blob([chart().svg()], { type: "image/svg+xml" })), { "aria-label": "Save the chart as SVG" }),
    button("PNG", async () => save(file("png"), await chart().png()), { "aria-label": "Save the chart as PNG" }),
    button("CSV", () => save(file("csv"), new Blob([csv()], { type: "text/csv" })), { "aria-label": "Save the chart's values as CSV" }));
}

function buildCurves(study) {
  const host = body("curves"), kinds = study.kinds;
  if (!kinds.train.length && !kinds.eval.length) return void fill(host, el("p", { class: "muted" }, "Nothing has been logged yet."));
  if (!kinds[chosen.kind].includes(chosen.metric)) {
    [chosen.kind, chosen.metric] = firstMetric(study).split(/\|(.*)/s);
  }
  const redraw = () => { drawCurves(study); drawCompared(study); };
  const metric = el("select", { id: "metric", on: { change: () => { [chosen.kind, chosen.metric] = metric.value.split(/\|(.*)/s); redraw(); } } },
    [["train", "Training"], ["eval", "Evaluation"]].map(([kind, title]) => kinds[kind].length > 0 && el("optgroup", { label: title },
      kinds[kind].map((name) => el("option", { value: `${kind}|${name}`, selected: kind === chosen.kind && name === chosen.metric }, study.names[name] ?? name)))));
  const gpus = data.runs.some((r) => r.study === study.index && r.gpus > 0);
  const units = [["step", "step"], ["epoch", "epoch"], ["wall", "wall clock"], ["gpu", gpus ? "GPU hours" : "GPU hours (no run used a GPU)"]];
  if (chosen.x === "gpu" && !gpus) chosen.x = "step";
  const x = el("select", { id: "x-axis", on: { change: () => { chosen.x = x.value; curveChart.zoom = null; redraw(); } } }, units.map(([v, text]) => el("option", { value: v, selected: v === chosen.x, disabled: v === "gpu" && !gpus }, text)));
  const box = (id, text, key, after = () => {}) => { const input = el("input", { type: "checkbox", id, checked: chosen[key], on: { change: () => { chosen[key] = input.checked; after(); redraw(); } } }); return el("label", { class: "compact" }, input, text); };
  const logInput = el("input", { type: "checkbox", id: "log-axis", on: { change: () => { chosen.logs[metricKey()] = logInput.checked; redraw(); } } }), logAxis = el("label", { class: "compact" }, logInput, "Logarithmic y");
  const amount = el("output", {}, String(chosen.smooth)), slider = el("input", { type: "range", id: "smoothing", min: "0", max: "0.99", step: "0.01", value: String(chosen.smooth), on: { input: () => { chosen.smooth = Number(slider.value); amount.textContent = slider.value; redraw(); } } });
  const plot = el("div", { class: "chart" });
  const legend = el("ul", { class: "legend", "aria-label": "Variants" }, study.variants.map((variant) => {
    const input = el("input", { type: "checkbox", checked: !chosen.hidden.has(variant.name), "data-variant": variant.name, on: { change: () => { if (input.checked) chosen.hidden.delete(variant.name); else chosen.hidden.add(variant.name); drawCurves(study); } } });
    return el("li", {}, el("label", {}, input, swatch(variant), el("span", { class: "name" }, variant.label), el("span", { class: "count", "data-count": variant.name }, `${variant.completed}/${variant.planned || variant.runs.length}`)));
  }));
  const every = (on) => { for (const v of study.variants) if (on) chosen.hidden.delete(v.name); else chosen.hidden.add(v.name); for (const input of legend.querySelectorAll("input")) input.checked = on; drawCurves(study); };
  fill(host, el("div", { class: "card" },
    el("div", { class: "row" }, el("label", { class: "compact" }, "Metric ", metric), el("label", { class: "compact" }, "Against ", x), logAxis, box("log-x", "Logarithmic x", "logX", () => { curveChart.zoom = null; }),
      el("label", { class: "compact" }, "Smoothing ", slider, amount), box("seed-lines", "Single seeds", "seeds")),
    el("div", { class: "plot" }, plot, el("div", {}, el("div", { class: "row" }, button("All", () => every(true), { "aria-label": "Show all variants" }), button("None", () => every(false), { "aria-label": "Hide all variants" })), legend)),
    el("div", { class: "row" }, el("span", { class: "chips", role: "group", "aria-label": "Zoom" }, button("+", () => curveChart.scale(0.7), { "aria-label": "Zoom in" }), button("−", () => curveChart.scale(1.4), { "aria-label": "Zoom out" }), button("Reset zoom", () => curveChart.reset())),
      saveButtons(() => curveChart, () => `${study.name}-${chosen.metric}`, () => curvesCsv(study))),
    el("p", { class: "small muted", id: "curve-note" }), el("p", { class: "small muted unprinted" }, "Drag to zoom, double-click to reset; with the keyboard: arrows read values, + and − zoom, 0 resets."),
    morePicker(study), el("div", { class: "grid", id: "more-charts" }),
    el("div", { id: "curve-values" })));
  const zoom = curveChart?.zoom ?? null;
  curveChart = new Chart(plot, { height: innerWidth < 600 ? 300 : 420 });
  Object.assign(curveChart, { zoom, zoomed: keepView });
  drawCurves(study);
}
