// Two variants or two runs side by side: their curves, and only what differs.
const pair = { a: null, b: null, chosen: false };
let pairChart;

// This study's variants and runs, and the variants of the others.
const sides = (study) => [...study.variants.map((v) => ({ key: `v|${v.name}`, text: v.label, variant: v, study })),
  ...data.studies.filter((s) => s !== study).flatMap((s) => s.variants.map((v) => ({ key: `s|${s.name}|${v.name}`, text: `${s.name}: ${v.label}`, variant: v, study: s }))),
  ...data.runs.filter((r) => r.study === study.index).map((r) => ({ key: `r|${r.where}`, text: runName(r), variant: variantOf(r), run: r, study }))];

function buildCompare(study) {
  const host = body("compare"), all = sides(study);
  if (all.length < 2) return void fill(host, el("p", { class: "muted" }, "There is one variant only."));
  const known = (key) => all.some((s) => s.key === key);
  if (!known(pair.a)) pair.a = `v|${study.baseline ?? study.variants[0].name}`;
  if (!known(pair.a)) pair.a = all[0].key;
  if (!known(pair.b)) pair.b = all.find((s) => s.key !== pair.a).key;
  const pick = (id, side, label) => {
    const select = el("select", { id, "aria-label": label, on: { change: () => { pair[side] = select.value; pair.chosen = true; drawCompared(study); } } },
      [["Variants", all.filter((s) => !s.run && s.study === study)], ["Other studies", all.filter((s) => s.study !== study)], ["Runs", all.filter((s) => s.run)]].map(([title, members]) => members.length > 0 && el("optgroup", { label: title }, members.map((s) => el("option", { value: s.key, selected: s.key === pair[side] }, s.text)))));
    return select;
  };
  const plot = el("div", { class: "chart" });
  fill(host, el("div", { class: "card" },
    el("div", { class: "row" }, el("label", { class: "compact" }, "Left ", pick("compare-a", "a", "Left side")), el("label", { class: "compact" }, "Right ", pick("compare-b", "b", "Right side")), saveButtons(() => pairChart, () => `${study.name}-side-by-side-${chosen.metric}`, () => pairCsv(study))),
    plot, el("div", { class: "scroll", id: "differences" }), el("p", { class: "small muted", id: "equal" }), el("div", { class: "scroll", id: "queries" })));
  pairChart = new Chart(plot, { height: 260 });
  drawCompared(study);
}

const picked = (study) => ["a", "b"].map((side) => sides(study).find((s) => s.key === pair[side]));

function drawCompared(study) {
  if (!document.getElementById("differences")) return;
  const [a, b] = picked(study);
  if (!a || !b) return;
  const lines = [a, b].flatMap((side) => (side.run ? runLines(side.run) : variantLines(side.study, side.variant)));
  if (a.variant === b.variant) lines.filter((l) => l.label === b.text).forEach((l) => { l.color = "#D55E00"; l.dash = []; l.marker = "^"; });
  if (a.study !== b.study) { const own = new Set(variantLines(a.study, a.variant).map((l) => l.label)); lines.forEach((l, i) => { if (i >= lines.length - variantLines(b.study, b.variant).length) { l.color = "#D55E00"; l.dash = []; l.marker = "^"; if (own.has(l.label)) l.label = `${b.study.name}: ${l.label}`; } }); }
  const shown = lines.filter((l) => l.alpha !== 0 && l.x.some((x) => x !== null));
  pairChart.set({ lines: shown, marks: endMarks(shown), log: isLog(study), logX: chosen.logX, xLabel: xName(study), yLabel: chartLabel(study), format: chartFormat(study) });
  pairChart.canvas.setAttribute("aria-label", `${chartLabel(study)} of ${a.text} and ${b.text}`);
  const rows = facts2(study, a, b), differ = rows.filter(([, p, q]) => p !== q);
  const equal = rows.filter(([, p, q]) => p === q && p !== "–").map(([name]) => name);
  fill(document.getElementById("differences"), differ.length ? grid(["Differs in", a.text, b.text], differ) : el("p", {}, "Nothing that this report knows differs."));
  const foreign = [a, b].some((side) => runsOf(side).some((r) => r.imported)), same = equal.length ? `${equal.join(", ")} ${equal.length === 1 ? "is" : "are"} equal.` : "";
  document.getElementById("equal").textContent = foreign ? `Of imported runs only those settings are known that their logs print. ${same}` : `All other settings are equal; ${same}`;
  drawQueries(study, a, b);
  keepView();
}

// Which queries changed from the left to the right, by metric.
function drawQueries(study, a, b) {
  const host = document.getElementById("queries"), note = (text) => fill(host, el("p", { class: "small muted" }, text));
  if (data.queries.over) return void note(`Which queries changed is not in this page, it would take more than 2 MB: sdtps compare ${study.name} A B counts them.`);
  const names = [...new Set([...study.metrics.map((m) => m.name), "mAP", "i2t_r1", "t2i_r1"])];
  const rows = names.map((name) => [metricOf(study, name)?.label ?? name, changedQueries(a, b, name)]).filter(([, found]) => found);
  if (!rows.length) return void note("No run of the one or the other kept its queries.");
  if (rows.some(([, found]) => !found.changed)) return void note("The two were tested on different queries.");
  const { runs } = rows[0][1], percent = (v) => short(Number((100 * v).toFixed(1)));
  fill(host, grid(["Queries that changed", { text: "Gained", value: true }, { text: "Lost", value: true }, { text: "Of", value: true }, "Most changed"], rows.map(([label, { changed, count }]) => {
    const texts = changed.map((q) => `${q.query} (identity ${q.identity}) ${percent(q.from)} → ${percent(q.to)}`), rest = texts.slice(5);
    return [label, ...[1, -1].map((way) => String(changed.filter((q) => (q.to - q.from) * way > 0).length)), String(count), [texts.slice(0, 5).join("; "), rest.length > 0 && el("details", {}, el("summary", {}, `and ${rest.length} more`), rest.join("; "))]];
  })), el("p", { class: "small muted" }, `In per cent, left → right, at the last evaluation${runs[0] + runs[1] > 2 ? `; means over ${runs[0]} and ${counted(runs[1], "run")}` : ""}. Queries are numbered from 0, as in queries.safetensors.`));
}

// A metric's value for each query, as analysis/results/queries.py reads it; nothing where the run kept none.
function byQuery(run, metric) {
  const kept = data.queries.runs[run.index], hit = /^(?:(i2t|t2i)_r|rank)(\d+)$/.exec(metric), way = hit?.[1] ? `${hit[1]}_` : "", name = hit && hit[2] < 255 ? `${way}rank` : metric === "mAP" && "AP";
  if (!kept?.[name]) return {};
  const bytes = Uint8Array.from(atob(kept[name]), (c) => c.charCodeAt(0));
  return { list: kept[`${way}identity`], values: hit ? Array.from(bytes, (rank) => Number(rank <= hit[2])) : new Float32Array(bytes.buffer) };
}

// Means over the runs of each side, of two variants over the seeds of both; without `changed` where their queries are others.
function changedQueries(a, b, metric) {
  const known = [a, b].map((side) => runsOf(side).map((run) => ({ seed: run.seed, ...byQuery(run, metric) })).filter((r) => r.values));
  const [left, right] = a.run || b.run ? known : known.map((mine, i) => mine.filter((r) => known[1 - i].some((other) => other.seed === r.seed)));
  if (!left.length || !right.length) return null;
  const identities = data.queries.lists[left[0].list] ?? [], runs = [left.length, right.length], count = identities.length;
  if ([...left, ...right].some((r) => r.list !== left[0].list || r.values.length !== count)) return { runs, count };
  const mean = (side, i) => side.reduce((sum, r) => sum + r.values[i], 0) / side.length;
  const all = identities.map((identity, query) => ({ query, identity, from: mean(left, query), to: mean(right, query) }));
  return { runs, count, changed: all.filter((q) => q.from !== q.to).sort((p, q) => Math.abs(q.to - q.from) - Math.abs(p.to - p.from) || p.query - q.query) };
}

// Names with both values: settings, commit, machine, metrics.
function facts2(study, a, b) {
  const own = ({ variant, study: s }) => [...Object.keys(variant.differences), ...(a.study === b.study ? [] : Object.keys(s.base))];
  const value = (side, key) => settingOf(side.study, side.variant, key) ?? "–";
  const keys = [...new Set([...own(a), ...own(b)])].filter((key) => value(a, key) !== value(b, key));
  const both = (name, of) => [name, ...[a, b].map((side) => { const found = [...new Set(runsOf(side).map(of).filter((v) => v !== null && v !== undefined && v !== ""))]; return found.length ? found.join(", ") : "–"; })];
  return [
    ...keys.map((key) => [key, value(a, key), value(b, key)]),
    ...study.metrics.flatMap((m) => [["last epoch", "final"], ["best epoch", "best"]].map(([word, which]) => [`${m.label}, ${word}`, score(a, m, which), score(b, m, which)])),
    both("state", (r) => r.state), both("why", (r) => r.reason), both("seed", (r) => r.seed), both("commit", (r) => (r.commit ? r.commit.slice(0, 10) + (r.dirty ? " with uncommitted changes" : "") : null)), both("code", (r) => r.code), both("machine", (r) => r.host), both("GPU", (r) => r.gpu),
    both("attempts", (r) => r.attempts), both("parameters", (r) => (r.parameters === null ? null : count(r.parameters))), both("training time", (r) => (r.train_seconds === null ? null : duration(r.train_seconds))), both("peak memory", (r) => (r.peak_memory_mib === null ? null : `${Math.round(r.peak_memory_mib)} MiB`)),
  ];
}

const runsOf = (side) => (side.run ? [side.run] : side.variant.runs.map((i) => data.runs[i]));
const score = (side, metric, which) => (side.run ? side.run[which][metric.name]?.[1] : side.variant.scores?.[metric.name]?.[which === "final" ? "last" : "best"]) ?? "–";

function pairCsv(study) {
  const mine = curveChart.lines;
  curveChart.lines = pairChart.lines;
  try { return curvesCsv(study); } finally { curveChart.lines = mine; }
}

function comparedWith(run, side) {
  pair[side] = `r|${run.where}`; pair.chosen = true;
  panel.close();
  buildCompare(studyOf(run));
  document.getElementById("compare").scrollIntoView();
}
