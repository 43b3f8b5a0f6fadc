// The dialog: one run in full, or the runs behind a number.
const panel = document.getElementById("panel");
panel.addEventListener("click", (event) => { if (event.target === panel) panel.close(); });
panel.addEventListener("close", () => { opened = null; keepView(); });

function openPanel(title, ...content) {
  fill(panel,
    el("div", { class: "head" }, el("h3", { id: "panel-title" }, title), el("button", { type: "button", on: { click: () => panel.close() } }, "Close")),
    el("div", { class: "content" }, content));
  if (!panel.open) panel.showModal();
  panel.scrollTop = 0;
}

function facts(pairs) {
  return el("dl", { class: "facts" }, pairs.filter(([, value]) => value !== null && value !== undefined && value !== "")
    .flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

function command(text) {
  const copy = button("Copy", async () => {
    try { await navigator.clipboard.writeText(text); say("Copied"); copy.textContent = "Copied"; }
    catch { getSelection().selectAllChildren(code); say("Selected: press Ctrl+C to copy"); }
  });
  const code = el("pre", {}, text);
  return el("div", { class: "command" }, code, copy);
}

function scoreTable(run) {
  const metrics = studyOf(run).metrics.filter((m) => run.best[m.name] || run.final[m.name]);
  if (!metrics.length) return null;
  const heads = ["Metric", { text: `Last (epoch ${run.final_epoch ?? "?"})`, value: true }, { text: `Best (epoch ${run.best_epoch ?? "?"})`, value: true }];
  return el("div", { class: "scroll" }, grid(heads, metrics.map((m) => [m.label, run.final[m.name]?.[1] ?? "–", run.best[m.name]?.[1] ?? "–"])));
}

function openRun(run) {
  const study = studyOf(run), variant = variantOf(run);
  const differences = Object.entries(variant.differences);
  const chartHost = el("div", { class: "chart" });
  openPanel(`${variant.label}, seed ${run.seed}`,
    el("p", {}, stateBadge(run), run.imported && " ", run.imported && el("span", { class: "tag" }, "imported"), run.reason && ` ${run.reason}`),
    facts([
      ["Study", study.name], ["Variant", variant.name], ["Seed", String(run.seed)], ["Identity", el("code", {}, run.identity)],
      ["Folder", el("code", {}, run.where)], ["Commit", run.commit && el("code", {}, run.commit + (run.dirty ? " with uncommitted changes" : ""))],
      ["Code digest", run.code && el("code", {}, run.code)], ["Host", run.host], ["GPU", run.gpu], ["Attempts", run.attempts && String(run.attempts)],
      ["Jobs", run.jobs], ["Stopped at", run.epoch !== null && run.state !== "completed" ? `epoch ${run.epoch}, step ${run.step}` : null],
      ["Selected on", run.selected_on], ["Training time", run.train_seconds !== null ? duration(run.train_seconds) : null],
      ["Time on machines", run.wall_seconds !== null ? duration(run.wall_seconds) : null],
      ["Peak memory", run.peak_memory_mib !== null ? `${Math.round(run.peak_memory_mib)} MiB` : null],
      ["Parameters", run.parameters !== null ? count(run.parameters) : null],
      ["Read from", run.source], ["Notes", run.notes],
    ]),
    scoreTable(run),
    differences.length > 0 && [el("h4", {}, "Differs from the base in"), el("div", { class: "scroll" }, grid(["Setting", "Base", "Here"], differences.map(([key, [base, here]]) => [el("code", {}, key), base, here])))],
    el("p", { class: "chips" }, button("Compare, on the left", () => comparedWith(run, "a")), button("Compare, on the right", () => comparedWith(run, "b"))),
    el("h4", {}, chartLabel(study)), chartHost,
    run.rerun && [el("h4", {}, "Run it again"), command(run.rerun)],
    el("h4", {}, "End of its log"), run.log ? el("pre", { class: "log", tabindex: "0" }, run.log) : el("p", { class: "muted" }, "No log was found in its folder."));
  const lines = runLines(run);
  if (lines.length) new Chart(chartHost, { height: 190, label: `${chartLabel(study)} of ${runName(run)}` }).set({ lines, marks: endMarks(lines), log: isLog(study), xLabel: xName(study), yLabel: chartLabel(study), format: chartFormat(study) });
  else fill(chartHost, el("p", { class: "muted" }, `No ${chartLabel(study)} was logged.`));
  opened = run;
  keepView();
}

// runs: the runs behind a number; value(run) shows what each contributes.
function openBehind(title, runs, value, note) {
  const heads = ["Seed", "State", { text: "Value", value: true }, "", { text: "Best epoch", value: true }, "Commit", "Host"];
  openPanel(title,
    el("p", { class: "muted" }, note ?? `${counted(runs.length, "run")} behind this number.`),
    el("div", { class: "scroll" }, grid(heads, runs.map((run) => [String(run.seed), stateBadge(run), value(run) ?? "–", button("Open", () => openRun(run), { "aria-label": `Open ${runName(run)}` }), run.best_epoch ?? "–", run.commit ? el("code", {}, run.commit.slice(0, 10)) : "–", run.host ?? "–"]), { class: "behind" })),
    el("p", {}, button("Show these in the runs table", () => { panel.close(); showOnly(runs, title); })));
}
