// What stands below the curves: tables, planned and finished runs, audit, claims.
function buildMarks(study) {
  fill(document.getElementById("marks"), study.marks.map((m) => el("p", { class: "mark" }, m)));
}

// Planned against finished runs, a dot each.
function buildOverview(study) {
  const runs = data.runs.filter((r) => r.study === study.index), planned = runs.filter((r) => r.planned).length;
  const counts = STATES.map((s) => [s, runs.filter((r) => r.state === s).length]).filter(([, n]) => n > 0);
  const done = runs.filter((r) => r.state === "completed").length, total = planned || runs.length;
  const dots = (variant) => el("div", { class: "seeds" }, variant.runs.map((i) => data.runs[i]).map((run) =>
    button(GLYPHS[run.state] ?? "", () => openRun(run), { class: `dot ${run.state}`, title: `seed ${run.seed}: ${run.state}${run.reason ? `, ${run.reason}` : ""}`, "aria-label": `${runName(run)}: ${run.state}` })));
  const differs = (v) => (v.overrides.length ? el("div", { class: "small" }, v.overrides.map(([k, value]) => el("div", {}, el("code", {}, `${k} = ${value}`)))) : el("span", { class: "muted" }, "nothing"));
  fill(body("overview"),
    el("div", { class: "card" },
      el("h3", {}, study.title || study.name), study.notes && el("p", { class: "muted" }, study.notes),
      el("p", {}, planned ? `${done} of ${counted(planned, "planned run")} completed: ${counted(study.variants.length, "variant")}, ${study.seeds.length === 1 ? "seed" : "seeds"} ${study.seeds.join(", ")}.` : `${done} of ${counted(runs.length, "imported run")} complete. Nothing was planned here.`),
      el("div", { class: "bar", role: "img", "aria-label": counts.map(([s, n]) => `${n} ${s}`).join(", ") }, counts.filter(([s]) => !["missing", "planned"].includes(s)).map(([s, n]) => el("i", { class: s, css: { width: `${100 * n / total}%` } }))),
      el("div", { class: "chips" }, counts.map(([s, n]) => el("span", { class: "tag" }, `${n} ${s}`))),
      el("div", { class: "scroll" }, grid(["Variant", "What differs", "Finished", "Seeds"], study.variants.map((v) => [v.name === study.baseline ? [v.label, " ", el("span", { class: "tag" }, "baseline")] : v.label, differs(v), `${v.completed}/${v.planned || v.runs.length}`, dots(v)])))));
}

// Tables as `sdtps tables` writes them in HTML; every number leads to the runs behind it.
function buildTables(study) {
  const forest = buildForest(study);
  if (!study.tables.length && !forest) return void fill(body("tables"), el("p", { class: "muted" }, "This study declares no table."));
  fill(body("tables"), forest, study.tables.map((t) => el("div", { class: "card" }, el("h3", {}, t.title),
    t.marks.map((m) => el("p", { class: "mark" }, m)),
    linked(t))));
}

function linked(t) {
  const made = new DOMParser().parseFromString(t.html, "text/html").body, host = el("div", {}, el("div", { class: "scroll" }, made.querySelector("table")), made.querySelector("p.notes"));
  const heads = [...host.querySelectorAll("thead tr:last-child th")].map((h) => h.textContent);
  for (const row of host.querySelectorAll("tr[data-row]")) [...row.cells].forEach((cell, i) => {
    if (!i) return void row.replaceChild(el("th", { scope: "row" }, ...cell.childNodes), cell);
    const runs = JSON.parse(cell.dataset.runs ?? "[]").map((where) => byWhere.get(where)).filter(Boolean), text = cell.textContent, title = `${heads[i]} of ${row.cells[0].textContent}`;
    if (!runs.length || !text) return;
    const key = cell.dataset.metric ? `${t.keys[i].split("/")[0]}/${cell.dataset.metric}` : t.keys[i];
    const open = button("", () => openBehind(title, runs, (run) => seedValue(key, run)), { class: "num", "aria-label": `${text}: ${title}`, "data-cell": `${t.table}|${row.dataset.row}|${t.keys[i]}` });
    open.append(...cell.childNodes);
    cell.append(open);
  });
  return host;
}

// What one run contributes to a column such as last/mAP: its own value, printed as the metric is printed.
function seedValue(key, run) {
  const [epoch, ...rest] = key.split("/"), metric = rest.join("/").replace(/\/difference$/, "");
  return { last: run.final, best: run.best }[epoch]?.[metric]?.[1] ?? null;
}

// Audit and claims: shown where their files exist, said so where not.
function absent(section, text) { fill(body(section), el("p", { class: "muted" }, text)); }

function buildAudit() {
  if (!data.audit) return absent("audit", "This report has no audit; `sdtps paper` writes one that has: paper/generated/report.html.");
  fill(body("audit"), data.audit.map((part) => el("div", { class: "card" }, el("h3", {}, part.title),
    part.said && el("ul", { class: "said" }, part.said.map((s) => el("li", { class: s.severity }, el("strong", {}, s.severity === "ok" ? "" : `${s.severity[0].toUpperCase()}${s.severity.slice(1)}. `), s.text))),
    part.rows && el("div", { class: "scroll" }, grid(part.columns, part.rows)),
    (part.notes ?? []).map((n) => el("p", { class: "small muted wide" }, n)))));
}

function buildClaims() {
  if (!data.claims) return absent("claims", "This report has no claims; `sdtps paper` writes one that has: paper/generated/report.html.");
  const verdicts = [...new Set(data.claims.map((c) => c.verdict))], on = new Set(verdicts), host = el("div", { class: "scroll" });
  const draw = () => fill(host, grid(["Claim", "What it says", "Verdict", "Why"], data.claims.filter((c) => on.has(c.verdict)).map((c) => [c.id, [c.text, el("div", { class: "small muted" }, c.source)],
    el("span", { class: `verdict ${c.verdict.replaceAll(" ", "_")}` }, c.verdict),
    [el("span", { class: "small" }, c.why), c.runs.length > 0 && el("div", {}, numberButton(counted(c.runs.length, "run"), () => openBehind(`Claim ${c.id}`, c.runs.map((i) => data.runs[i]), () => null, c.text), `behind claim ${c.id}`))]])));
  const chips = verdicts.map((v) => { const chip = button(`${v} ${data.claims.filter((c) => c.verdict === v).length}`, () => { if (on.has(v)) on.delete(v); else on.add(v); chip.setAttribute("aria-pressed", String(on.has(v))); draw(); }, { class: "chip", "aria-pressed": "true" }); return chip; });
  fill(body("claims"), el("div", { class: "card" }, el("div", { class: "row chips" }, chips), host));
  draw();
}
