// The runs table of one study: sorted by any column, filtered by words and states.
const table = { key: "variant", down: false, words: "", group: "", states: new Set(), only: null, title: "", shown: 200 };

function runColumns(study) {
  const metric = (m) => ({ key: `final:${m.name}`, title: m.label, value: true, of: (r) => r.final[m.name]?.[0] ?? null, show: (r) => numberButton(r.final[m.name]?.[1], () => openRun(r), `${m.label} of ${runName(r)}`) });
  return [
    { key: "variant", title: "Variant", of: (r) => r.variant, show: (r) => [el("button", { type: "button", class: "num", on: { click: () => openRun(r) } }, variantOf(r).label), r.imported && el("span", { class: "tag" }, "imported")] },
    { key: "seed", title: "Seed", value: true, of: (r) => r.seed, show: (r) => String(r.seed) },
    { key: "state", title: "State", of: (r) => STATES.indexOf(r.state), show: (r) => stateBadge(r) },
    ...study.metrics.map(metric),
    ...varying(study).map((key) => ({ key: `setting:${key}`, title: key, of: (r) => settingOf(study, variantOf(r), key), show: (r) => settingOf(study, variantOf(r), key) ?? "–" })),
    { key: "best_epoch", title: "Best epoch", value: true, of: (r) => r.best_epoch, show: (r) => r.best_epoch ?? "–" },
    { key: "time", title: "Time", value: true, of: (r) => r.train_seconds ?? r.wall_seconds, show: (r) => duration(r.train_seconds ?? r.wall_seconds) },
    { key: "reason", title: "Why", of: (r) => r.reason, show: (r) => r.reason ?? "" },
    { key: "host", title: "Host", of: (r) => r.host, show: (r) => r.host ?? "–" },
    { key: "gpu", title: "GPU", of: (r) => r.gpu, show: (r) => r.gpu ?? "–" },
    { key: "commit", title: "Commit", of: (r) => r.commit, show: (r) => (r.commit ? el("code", {}, r.commit.slice(0, 10) + (r.dirty ? "+" : "")) : "–") },
  ];
}

function numberButton(text, action, label) {
  return text === undefined || text === null ? "–" : el("button", { type: "button", class: "num", "aria-label": `${text}: ${label}`, on: { click: action } }, text);
}

function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  if (a !== "" && b !== "" && Number.isFinite(Number(a)) && Number.isFinite(Number(b))) return a - b; // settings are text: 1e-4 < 0.1
  return String(a).localeCompare(String(b), "en", { numeric: true });
}

function selectedRuns(study, column) {
  const words = table.words.toLowerCase().split(/\s+/).filter(Boolean);
  const found = data.runs.filter((run) => run.study === study.index
    && (!table.only || table.only.has(run)) && (!table.states.size || table.states.has(run.state))
    && words.every((word) => run.text.includes(word) || settingText(study, run).includes(word)));
  const absent = (v) => v === null || v === undefined || v === "";
  return found.map((run) => [column.of(run), run]).sort(([a, p], [b, q]) => {
    if (absent(a) || absent(b)) return absent(a) - absent(b) || p.index - q.index; // absent last, either way
    return (table.down ? compare(b, a) : compare(a, b)) || p.index - q.index;
  }).map(([, run]) => run);
}

function drawRuns(study) {
  const columns = runColumns(study), column = columns.find((c) => c.key === table.key) ?? columns[0];
  const runs = selectedRuns(study, column), all = data.runs.filter((r) => r.study === study.index).length;
  const head = columns.map((c) => el("th", { scope: "col", class: c.value ? "value" : null, "aria-sort": c === column ? (table.down ? "descending" : "ascending") : "none" },
    el("button", { type: "button", class: "sort", "data-key": c.key, on: { click: () => { table.down = table.key === c.key ? !table.down : Boolean(c.key.startsWith("final:")); table.key = c.key; drawRuns(study); document.querySelector(`#runs .sort[data-key="${CSS.escape(c.key)}"]`).focus(); } } }, c.title)));
  const grouped = columns.find((c) => c.key === table.group), groups = new Map();
  if (grouped) { for (const run of runs) { const of = grouped.key === "variant" ? variantOf(run).label : grouped.key === "state" ? run.state : String(grouped.of(run) ?? "–"); groups.set(of, [...(groups.get(of) ?? []), run]); } }
  const line = (run) => el("tr", { "data-run": run.identity, "data-state": run.state }, columns.map((c) => el("td", { class: c.value ? "value" : c.key === "reason" ? "why" : null }, c.show(run))));
  const ordered = [...groups].sort(([a], [b]) => compare(a, b)).flatMap(([of, members]) => members.map((run, i) => [run, i ? null : el("tr", { class: "heading" }, el("th", { colspan: columns.length, scope: "rowgroup" }, el("span", {}, `${grouped.title}: ${of} (${counted(members.length, "run")})`)))]));
  const rows = (grouped ? ordered : runs.map((run) => [run, null])).slice(0, table.shown).flatMap(([run, head]) => [head, line(run)]).filter(Boolean);
  fill(document.getElementById("runs-table"), el("table", {}, el("thead", {}, el("tr", {}, head)), el("tbody", {}, rows)));
  fill(document.getElementById("runs-more"), runs.length > table.shown && el("button", { type: "button", on: { click: () => { table.shown += 500; drawRuns(study); document.querySelector("#runs-more button")?.focus(); } } }, `Show more (${runs.length - table.shown} left)`));
  const text = `${runs.length} of ${counted(all, "run")}`;
  document.getElementById("runs-count").textContent = text;
  say(text);
  fill(document.getElementById("runs-only"), table.only && el("button", { type: "button", class: "chip", "aria-pressed": "true", on: { click: () => { table.only = null; drawRuns(study); document.getElementById("filter").focus(); } } }, `Only: ${table.title} ✕`));
  keepView();
}

const settingText = (study, run) => varying(study).map((key) => `${key}=${settingOf(study, variantOf(run), key) ?? ""}`).join(" ").toLowerCase();

function buildRuns(study) {
  const runs = data.runs.filter((r) => r.study === study.index);
  table.only = null; table.shown = 200; table.states.clear();
  const search = el("input", { type: "search", id: "filter", placeholder: "Search: words in any column", "aria-label": "Search runs", value: table.words, on: { input: () => { table.words = search.value; table.shown = 200; drawRuns(study); } } });
  const chips = STATES.filter((s) => runs.some((r) => r.state === s)).map((s) => {
    const chip = el("button", { type: "button", class: "chip", "aria-pressed": "false", "data-filter": s, on: { click: () => {
      if (table.states.has(s)) table.states.delete(s); else table.states.add(s);
      chip.setAttribute("aria-pressed", String(table.states.has(s))); drawRuns(study);
    } } }, `${s} ${runs.filter((r) => r.state === s).length}`);
    return chip;
  });
  const groups = runColumns(study).filter((c) => ["variant", "state", "host", "gpu"].includes(c.key) || c.key.startsWith("setting:"));
  if (!groups.some((c) => c.key === table.group)) table.group = "";
  const group = el("select", { id: "runs-group", on: { change: () => { table.group = group.value; drawRuns(study); } } }, el("option", { value: "" }, "nothing"), groups.map((c) => el("option", { value: c.key, selected: c.key === table.group }, c.title)));
  fill(body("runs"), el("div", { class: "card" },
    el("div", { class: "row" }, search, el("label", { class: "compact" }, "Group by ", group), el("span", { class: "chips", role: "group", "aria-label": "States" }, chips), el("span", { id: "runs-only" }), el("span", { class: "muted small", id: "runs-count" })),
    el("div", { class: "scroll", id: "runs-table" }), el("div", { id: "runs-more" })));
  drawRuns(study);
}

function showOnly(runs, title) {
  table.only = new Set(runs); table.title = title; table.words = ""; table.states.clear();
  const study = studyOf(runs[0]);
  document.getElementById("filter").value = "";
  for (const chip of document.querySelectorAll("#runs .chip[data-filter]")) chip.setAttribute("aria-pressed", "false");
  drawRuns(study);
  document.getElementById("runs").scrollIntoView();
}
