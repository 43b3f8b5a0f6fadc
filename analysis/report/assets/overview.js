// Planned against got, and the results with the runs behind every number.
function buildOverview(study) {
  const runs = data.runs.filter((r) => r.study === study.index), planned = runs.filter((r) => r.planned).length;
  const counts = STATES.map((s) => [s, runs.filter((r) => r.state === s).length]).filter(([, n]) => n > 0);
  const done = runs.filter((r) => r.state === "completed").length;
  const total = planned || runs.length;
  const dots = (variant) => el("div", { class: "seeds" }, variant.runs.map((i) => data.runs[i]).map((run) =>
    el("button", { type: "button", class: `dot ${run.state}`, title: `seed ${run.seed}: ${run.state}${run.reason ? `, ${run.reason}` : ""}`, "aria-label": `${runName(run)}: ${run.state}`, on: { click: () => openRun(run) } }, GLYPHS[run.state] ?? "")));
  fill(body("overview"),
    study.marks.map((m) => el("p", { class: "mark" }, m)),
    el("div", { class: "card" },
      el("h3", {}, study.title || study.name), study.notes && el("p", { class: "muted" }, study.notes),
      el("p", {}, planned ? `${done} of ${counted(planned, "planned run")} completed: ${counted(study.variants.length, "variant")}, ${study.seeds.length === 1 ? "seed" : "seeds"} ${study.seeds.join(", ")}.` : `${done} of ${counted(runs.length, "imported run")} complete. Nothing was planned here.`),
      el("div", { class: "bar", role: "img", "aria-label": counts.map(([s, n]) => `${n} ${s}`).join(", ") }, counts.filter(([s]) => s !== "missing").map(([s, n]) => el("i", { class: s, css: { width: `${100 * n / total}%` } }))),
      el("div", { class: "chips" }, counts.map(([s, n]) => el("span", { class: "tag" }, `${n} ${s}`))),
      el("div", { class: "scroll" }, el("table", {},
        el("thead", {}, el("tr", {}, ["Variant", "What differs", "Got", "Seeds"].map((t) => el("th", { scope: "col" }, t)))),
        el("tbody", {}, study.variants.map((v) => el("tr", { class: v.name === study.baseline ? "baseline" : null }, el("th", { scope: "row" }, v.label),
          el("td", { class: "small" }, v.overrides.length ? v.overrides.map(([k, value]) => el("div", {}, el("code", {}, `${k} = ${value}`))) : el("span", { class: "muted" }, "nothing")),
          el("td", {}, `${v.completed}/${v.planned || v.runs.length}`), el("td", {}, dots(v)))))))));
}

// Tables as the paper prints them: same text, same ranks; every number leads to the runs behind it.
function buildTables(study) {
  if (!study.tables.length) return void fill(body("tables"), el("p", { class: "muted" }, "This study declares no table."));
  fill(body("tables"), study.tables.map((t) => el("div", { class: "card scroll" }, el("h3", {}, t.title),
    t.marks.map((m) => el("p", { class: "mark" }, m)),
    el("table", { "data-table": t.table }, el("caption", {}, t.caption[0] ?? ""), tableHead(t), el("tbody", {}, t.rows.map((row) => tableRow(t, row)))),
    el("p", { class: "small muted wide" }, [...t.caption.slice(1), ...t.notes, ...(opens(t) ? ["Dotted: opens the runs behind it."] : [])].join(" ")))));
}

// Whether any cell leads to runs.
const opens = (t) => t.rows.some((row) => Object.values(row.cells ?? {}).some((c) => c.text && c.runs.some((where) => byWhere.has(where))));

function tableHead(t) {
  const heads = el("tr", {}, t.columns.map((c, i) => el("th", { scope: "col", class: i && c.direction ? "value" : null }, c.head)));
  if (!t.columns.some((c) => c.group)) return el("thead", {}, heads);
  const groups = [];
  for (const c of t.columns) { const last = groups[groups.length - 1]; if (last && last[0] === c.group) last[1]++; else groups.push([c.group, 1]); }
  return el("thead", {}, el("tr", {}, groups.map(([name, span]) => el("th", { scope: "colgroup", colspan: String(span) }, name))), heads);
}

function tableRow(t, row) {
  if (row.heading) return el("tr", {}, el("th", { colspan: String(t.columns.length), scope: "rowgroup" }, row.heading));
  return el("tr", { class: row.shaded ? "shaded" : null }, t.columns.map((c, i) => {
    const cell = row.cells[c.key], tag = i ? "td" : "th";
    const runs = cell.runs.map((where) => byWhere.get(where)).filter(Boolean);
    const rank = cell.rank === 1 ? " best" : cell.rank === 2 ? " second" : "";
    const title = `${c.head} of ${row.cells[t.columns[0].key].text}`;
    const content = runs.length && cell.text ? el("button", { type: "button", class: `num${rank}`, "aria-label": `${cell.text}: ${title}`, "data-cell": `${t.table}|${row.key}|${c.key}`, on: { click: () => openBehind(title, runs, (run) => seedValue(cell, run)) } }, cell.text) : cell.text || (cell.kind === "check" ? "" : "");
    return el(tag, { scope: i ? null : "row", class: cell.kind === "number" || c.direction ? "value" : null }, content);
  }));
}

// What one run contributes: its own value, printed as the metric is printed.
function seedValue(cell, run) {
  const value = cell.seeds[String(run.seed)];
  const found = [run.best[cell.metric], run.final[cell.metric]].find((v) => v && v[0] === value);
  return found ? found[1] : value === undefined ? null : short(value);
}
