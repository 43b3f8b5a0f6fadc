// Puts the page together. One study at a time; the address keeps the view (view.js). A live page asks for news every second.
let themeChosen = "";
const shownStudy = () => data.studies[Number(document.getElementById("study").value)];

function showStudy(index) {
  const study = data.studies[index];
  buildMarks(study); buildCurves(study); buildCompare(study); buildTables(study); buildSettings(study); buildOverview(study); buildRuns(study);
}

// Another study, by the reader's hand: what was hidden or searched in the last one is forgotten.
function changeStudy(index) {
  chosen.hidden.clear();
  Object.assign(table, { words: "", group: "" });
  if (curveChart) curveChart.zoom = null;
  showStudy(index);
}

// New data of the same studies: what is chosen, typed and focused stays.
function refresh(news) {
  const before = shownStudy();
  data = news;
  prepare();
  const index = data.studies.findIndex((s) => s.name === before.name), study = data.studies[index];
  if (index < 0) return;
  document.getElementById("headline").textContent = data.headline;
  const here = (id) => document.getElementById(id).contains(document.activeElement);
  if (!curveChart || JSON.stringify(before.kinds) !== JSON.stringify(study.kinds)) buildCurves(study);
  else { drawCurves(study); for (const v of study.variants) { const count = document.querySelector(`[data-count="${CSS.escape(v.name)}"]`); if (count) count.textContent = `${v.completed}/${v.planned || v.runs.length}`; } }
  buildMarks(study);
  if (here("compare")) drawCompared(study); else buildCompare(study);
  if (!here("tables")) buildTables(study);
  if (!here("settings")) buildSettings(study);
  if (!here("overview")) buildOverview(study);
  drawRuns(study);
}

async function follow() {
  const news = document.getElementById("news");
  try {
    const answer = await fetch(`data.json?${data.version}`, { cache: "no-store" });
    if (answer.status === 200) refresh(await answer.json());
    news.textContent = `Live, ${new Date().toLocaleTimeString()}`;
  } catch { news.textContent = "Live: the server does not answer"; }
  setTimeout(follow, 1000);
}

function start() {
  prepare();
  const select = document.getElementById("study");
  const theme = (name) => { document.documentElement.dataset.theme = name; if (curveChart) { const study = shownStudy(); buildCurves(study); buildCompare(study); buildTables(study); buildSettings(study); } };
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const view = viewOf(location.hash);
  if (["light", "dark"].includes(view.theme)) themeChosen = view.theme;
  theme(themeChosen || (dark.matches ? "dark" : "light"));
  dark.addEventListener("change", () => { if (!themeChosen) theme(dark.matches ? "dark" : "light"); });
  document.getElementById("theme").addEventListener("click", () => { themeChosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark"; theme(themeChosen); keepView(); });
  fill(select, data.studies.map((s, i) => el("option", { value: String(i) }, s.name)));
  select.addEventListener("change", () => changeStudy(Number(select.value)));
  document.getElementById("headline").textContent = data.headline;
  fill(document.getElementById("nav"), [...document.querySelectorAll("main > section")].map((s) => el("a", { href: `#${s.id}`, on: { click: (event) => { event.preventDefault(); s.scrollIntoView(); s.tabIndex = -1; s.focus({ preventScroll: true }); } } }, s.querySelector("h2").textContent)));
  buildAudit(); buildClaims();
  if (data.live) setTimeout(follow, 1000);
  if (!data.studies.length) return void fill(body("overview"), el("p", { class: "mark" }, "No study was given to this report."));
  const run = byWhere.get(view.run), index = run ? run.study : Math.max(0, data.studies.findIndex((s) => s.name === view.study));
  select.value = String(index);
  chooseView(view, data.studies[index]);
  showStudy(index);
  const zoom = (view.zoom ?? "").split(",").map(Number);
  if (curveChart && zoom.length === 2 && zoom.every(Number.isFinite)) { curveChart.zoom = zoom; curveChart.draw(); }
  if (run) openRun(run);
  viewIsKept = true;
  if (!Object.keys(view).length && location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
}
start();
