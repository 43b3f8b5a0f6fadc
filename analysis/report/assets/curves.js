// The curves section: one metric of one study, its variants switched on and off.
// log is null until somebody decides: then it is what the values ask for.
const chosen = { kind: "train", metric: "loss", x: "step", log: null, seeds: true, hidden: new Set() };
const WORTH_A_LOG_AXIS = 50; // largest over smallest value, as in the figures
let curveChart;

const seriesOf = (study, kind, metric) => data.series[`${study}|${kind}|${metric}`] ?? { seeds: [], means: [] };

// Steps to epochs by the variant's own epoch ends, linear in between.
function clock(variant, x) {
  const ends = variant.epoch_ends;
  if (chosen.x !== "epoch" || !ends.length) return x;
  return x.map((step) => {
    let i = ends.findIndex(([, last]) => step <= last);
    if (i < 0) i = ends.length - 1;
    const [epoch, last] = ends[i], before = i > 0 ? ends[i - 1] : [epoch - 1, 0];
    return last === before[1] ? epoch : before[0] + (step - before[1]) / (last - before[1]) * (epoch - before[0]);
  });
}

function runLines(run, kind, metric, color) {
  return seriesOf(run.study, kind, metric).seeds.filter((s) => data.runs[s.run] === run)
    .map((s) => ({ label: runName(run), color, x: s.x, y: s.y, width: 1.4, run }));
}

// A cross at the last finite value of every run that diverged.
function crosses(lines, runs) {
  const found = [];
  for (const line of lines) {
    if (!line.run || line.run.state !== "diverged" || !runs.includes(line.run)) continue;
    for (let i = line.y.length - 1; i >= 0; i--) if (line.y[i] !== null) { found.push({ x: line.x[i], y: line.y[i], color: line.color }); break; }
  }
  return found;
}

function curveData(study) {
  const series = seriesOf(study.index, chosen.kind, chosen.metric), lines = [], marks = [];
  const shownRuns = data.runs.filter((run) => run.study === study.index);
  for (const s of series.seeds) {
    const run = data.runs[s.run], variant = variantOf(run);
    if (chosen.hidden.has(variant.name)) continue;
    const alone = !series.means.some((m) => m.variant === run.variant);
    const line = { label: alone ? variant.label : runName(run), color: variant.color, dash: alone ? variant.dash : [], x: clock(variant, s.x), y: s.y, run, width: alone ? 1.8 : 0.9, alpha: alone ? 1 : 0.45, silent: !alone };
    if (chosen.seeds || alone) lines.push(line);
    marks.push(...crosses([line], shownRuns));
  }
  for (const m of series.means) {
    const variant = study.variants[m.variant];
    if (chosen.hidden.has(variant.name)) continue;
    lines.push({ label: variant.label, color: variant.color, dash: variant.dash, x: clock(variant, m.x), y: m.y, lo: m.lo, hi: m.hi, n: m.n, planned: m.planned, width: 2 });
  }
  return { lines, marks };
}

// Whether a linear axis would hide most of what happens.
function explodes(study) {
  const values = seriesOf(study.index, chosen.kind, chosen.metric).seeds.flatMap((s) => s.y).filter((v) => v !== null);
  const least = values.reduce((a, b) => Math.min(a, b), Infinity), most = values.reduce((a, b) => Math.max(a, b), -Infinity);
  return least > 0 && most / least > WORTH_A_LOG_AXIS;
}

// Variants that ran and never logged this metric: a bf16 run has no AMP scale.
function unlogged(study) {
  const logged = new Set(seriesOf(study.index, chosen.kind, chosen.metric).seeds.map((s) => data.runs[s.run].variant));
  return study.variants.filter((v, i) => v.completed > 0 && !logged.has(i)).map((v) => v.label);
}

function drawCurves(study) {
  const { lines, marks } = curveData(study), absent = unlogged(study), log = chosen.log ?? explodes(study);
  document.getElementById("log-axis").checked = log;
  const metric = study.metrics.find((m) => m.name === chosen.metric);
  const percent = chosen.kind === "eval" && metric?.unit === "%";
  curveChart.set({ lines, marks, log, xLabel: chosen.x, yLabel: (metric?.label ?? chosen.metric) + (percent ? " (%)" : ""), format: percent ? (v) => short(v * 100) : short });
  curveChart.canvas.setAttribute("aria-label", `${chosen.metric} against ${chosen.x} of ${study.name}: ${lines.filter((l) => !l.silent).map((l) => l.label).join(", ")}`);
  document.getElementById("curve-note").textContent = [
    lines.some((l) => l.n) ? "Thick: mean over seeds, in linear space; band: least to most over seeds; dotted where fewer seeds than planned are left." : "One line a run.",
    marks.length ? `× ${counted(marks.length, "run")} diverged there: the last finite value.` : "",
    lines.some((l) => l.run && l.y.includes(null)) ? "A gap: values that were not finite." : "",
    absent.length ? `${chosen.metric} was not logged by ${absent.join("; ")}.` : "",
    !log && explodes(study) ? `Values span more than a factor of ${WORTH_A_LOG_AXIS}: try the logarithmic axis.` : "",
    "Curves are thinned for display; every bin keeps its least and greatest value.",
  ].filter(Boolean).join(" ");
}

function buildCurves(study) {
  const host = body("curves"), kinds = study.kinds;
  if (!kinds.train.length && !kinds.eval.length) return void fill(host, el("p", { class: "muted" }, "Nothing has been logged yet."));
  if (!kinds[chosen.kind].includes(chosen.metric)) {
    chosen.kind = kinds.train.includes("loss") || !kinds.eval.length ? "train" : "eval";
    chosen.metric = kinds[chosen.kind].includes("loss") ? "loss" : kinds[chosen.kind][0];
  }
  const metric = el("select", { id: "metric", on: { change: () => { [chosen.kind, chosen.metric] = metric.value.split("|"); drawCurves(study); } } },
    [["train", "Training"], ["eval", "Evaluation"]].map(([kind, title]) => kinds[kind].length > 0 && el("optgroup", { label: title },
      kinds[kind].map((name) => el("option", { value: `${kind}|${name}`, selected: kind === chosen.kind && name === chosen.metric }, name)))));
  const x = el("select", { id: "x-axis", on: { change: () => { chosen.x = x.value; curveChart.zoom = null; drawCurves(study); } } }, ["step", "epoch"].map((v) => el("option", { value: v, selected: v === chosen.x }, v)));
  const box = (id, text, key) => { const input = el("input", { type: "checkbox", id, checked: chosen[key], on: { change: () => { chosen[key] = input.checked; drawCurves(study); } } }); return el("label", { class: "compact" }, input, text); };
  const plot = el("div", { class: "chart" });
  const legend = el("ul", { class: "legend", "aria-label": "Variants" }, study.variants.map((variant) => {
    const input = el("input", { type: "checkbox", checked: !chosen.hidden.has(variant.name), "data-variant": variant.name, on: { change: () => { if (input.checked) chosen.hidden.delete(variant.name); else chosen.hidden.add(variant.name); drawCurves(study); } } });
    return el("li", {}, el("label", {}, input, swatch(variant), el("span", { class: "name" }, variant.label), el("span", { class: "count" }, `${variant.completed}/${variant.planned || variant.runs.length}`)));
  }));
  const every = (on) => { for (const v of study.variants) if (on) chosen.hidden.delete(v.name); else chosen.hidden.add(v.name); for (const input of legend.querySelectorAll("input")) input.checked = on; drawCurves(study); };
  const button = (text, action, label) => el("button", { type: "button", "aria-label": label, on: { click: action } }, text);
  fill(host, el("div", { class: "card" },
    el("div", { class: "row" }, el("label", { class: "compact" }, "Metric ", metric), el("label", { class: "compact" }, "Against ", x), box("log-axis", "Logarithmic", "log"), box("seed-lines", "Single seeds", "seeds"),
      el("span", { class: "chips" }, button("+", () => curveChart.scale(0.7), "Zoom in"), button("−", () => curveChart.scale(1.4), "Zoom out"), button("Reset zoom", () => curveChart.reset()))),
    el("div", { class: "plot" }, plot, el("div", {}, el("div", { class: "row" }, button("All", () => every(true), "Show all variants"), button("None", () => every(false), "Hide all variants")), legend)),
    el("p", { class: "small muted", id: "curve-note" }), el("p", { class: "small muted" }, "Drag to zoom, double-click to reset; with the keyboard: arrows read values, + and − zoom, 0 resets.")));
  curveChart = new Chart(plot, { height: 400 });
  drawCurves(study);
}
