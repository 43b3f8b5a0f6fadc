// What is looked at, kept in the address, so that a link shows the same: study, metrics, axes, variants, zoom, theme, runs.
let opened = null; // the run in the dialog
let viewIsKept = false; // not while the page is put together

function viewParts() {
  const study = shownStudy(), parts = [], key = metricKey(), first = firstMetric(study);
  const put = (name, value, usual = "") => { if (value !== usual && value !== null && value !== undefined) parts.push(`${name}=${encodeURIComponent(value)}`); };
  put("run", opened?.where);
  if (study !== data.studies[0]) put("study", study.name);
  put("metric", key, first);
  put("charts", [...chosen.more].join(","));
  put("x", chosen.x, "step");
  if (key in chosen.logs) put("log", Number(chosen.logs[key]));
  put("logx", Number(chosen.logX), 0);
  put("smooth", chosen.smooth, 0);
  put("seeds", Number(chosen.seeds), 1);
  put("hidden", [...chosen.hidden].map(encodeURIComponent).join(","));
  if (curveChart?.zoom) put("zoom", curveChart.zoom.map((v) => Number(v.toPrecision(6))).join(","));
  if (pair.chosen) { put("left", pair.a); put("right", pair.b); }
  put("find", table.words);
  put("group", table.group);
  put("sort", table.key === "variant" && !table.down ? "" : `${table.down ? "-" : ""}${table.key}`);
  put("theme", themeChosen);
  return parts;
}

function keepView() {
  if (!viewIsKept) return;
  const parts = viewParts(), hash = parts.length ? `#${parts.join("&")}` : "";
  if (hash !== location.hash) history.replaceState(null, "", location.pathname + location.search + hash);
}

const viewOf = (hash) => Object.fromEntries(hash.slice(1).split("&").filter((part) => part.includes("=")).map((part) => {
  const at = part.indexOf("=");
  try { return [part.slice(0, at), decodeURIComponent(part.slice(at + 1))]; } catch { return [part.slice(0, at), ""]; }
}));

// Choices that the view names, before the page is put together. What it names and the data lack is left out.
function chooseView(view, study) {
  const known = (key) => { const at = key.indexOf("|"); return study.kinds[key.slice(0, at)]?.includes(key.slice(at + 1)); };
  if (view.metric && known(view.metric)) [chosen.kind, chosen.metric] = view.metric.split(/\|(.*)/s);
  if (view.charts) view.charts.split(",").filter(known).forEach((key) => chosen.more.add(key));
  if (["epoch", "wall", "gpu"].includes(view.x)) chosen.x = view.x;
  if (view.log !== undefined) chosen.logs[metricKey()] = view.log === "1";
  chosen.logX = view.logx === "1";
  if (view.seeds === "0") chosen.seeds = false;
  if (view.smooth > 0 && view.smooth < 1) chosen.smooth = Number(view.smooth);
  (view.hidden ?? "").split(",").filter(Boolean).map(decodeURIComponent).forEach((name) => chosen.hidden.add(name));
  if (view.left && view.right) Object.assign(pair, { a: view.left, b: view.right, chosen: true });
  if (view.find) table.words = view.find;
  if (view.group) table.group = view.group;
  if (view.sort) { table.down = view.sort.startsWith("-"); table.key = view.sort.replace(/^-/, ""); }
}
