// Puts the page together. One study at a time; `#run=FOLDER` opens a run.
function showStudy(index) {
  const study = data.studies[index];
  chosen.hidden.clear();
  table.words = "";
  buildOverview(study); buildTables(study); buildCurves(study); buildRuns(study);
}

function start() {
  data.studies.forEach((study, index) => { study.index = index; });
  data.runs.forEach((run, index) => {
    run.index = index;
    run.text = [studyOf(run).name, variantOf(run).name, variantOf(run).label, `seed ${run.seed}`, `seed${run.seed}`, run.state, run.host, run.gpu, run.commit, run.reason, run.identity, run.imported ? "imported" : ""].join(" ").toLowerCase();
  });
  const select = document.getElementById("study");
  const theme = (name) => { document.documentElement.dataset.theme = name; if (curveChart) buildCurves(data.studies[Number(select.value)]); };
  const dark = matchMedia("(prefers-color-scheme: dark)");
  theme(dark.matches ? "dark" : "light");
  dark.addEventListener("change", () => theme(dark.matches ? "dark" : "light"));
  document.getElementById("theme").addEventListener("click", () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
  fill(select, data.studies.map((s, i) => el("option", { value: String(i) }, s.name)));
  select.addEventListener("change", () => showStudy(Number(select.value)));
  document.getElementById("headline").textContent = data.headline;
  fill(document.getElementById("nav"), [...document.querySelectorAll("main > section")].map((s) => el("a", { href: `#${s.id}` }, s.querySelector("h2").textContent)));
  buildAudit(); buildClaims(); buildPatches();
  if (!data.studies.length) return void fill(body("overview"), el("p", { class: "mark" }, "No study was given to this report."));
  const wanted = location.hash.startsWith("#run=") ? byWhere.get(decodeURIComponent(location.hash.slice(5))) : null;
  showStudy(wanted ? wanted.study : 0);
  select.value = String(wanted ? wanted.study : 0);
  if (wanted) openRun(wanted);
}
start();
