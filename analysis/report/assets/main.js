// Puts the page together. One study at a time; `#run=FOLDER` opens a run. A live page asks for news every second.
const shownStudy = () => data.studies[Number(document.getElementById("study").value)];

function showStudy(index) {
  const study = data.studies[index];
  chosen.hidden.clear();
  table.words = "";
  buildMarks(study); buildCurves(study); buildCompare(study); buildTables(study); buildOverview(study); buildRuns(study);
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
  const theme = (name) => { document.documentElement.dataset.theme = name; if (curveChart) { const study = shownStudy(); buildCurves(study); buildCompare(study); } };
  const dark = matchMedia("(prefers-color-scheme: dark)");
  theme(dark.matches ? "dark" : "light");
  dark.addEventListener("change", () => theme(dark.matches ? "dark" : "light"));
  document.getElementById("theme").addEventListener("click", () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
  fill(select, data.studies.map((s, i) => el("option", { value: String(i) }, s.name)));
  select.addEventListener("change", () => showStudy(Number(select.value)));
  document.getElementById("headline").textContent = data.headline;
  fill(document.getElementById("nav"), [...document.querySelectorAll("main > section")].map((s) => el("a", { href: `#${s.id}` }, s.querySelector("h2").textContent)));
  buildAudit(); buildClaims(); buildPatches();
  if (data.live) setTimeout(follow, 1000);
  if (!data.studies.length) return void fill(body("overview"), el("p", { class: "mark" }, "No study was given to this report."));
  const wanted = location.hash.startsWith("#run=") ? byWhere.get(decodeURIComponent(location.hash.slice(5))) : null;
  showStudy(wanted ? wanted.study : 0);
  select.value = String(wanted ? wanted.study : 0);
  if (wanted) openRun(wanted);
}
start();
