// Elements and text. Everything that comes from data goes through textContent, never through HTML.
let data = JSON.parse(document.getElementById("data").textContent);

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "on") for (const [event, action] of Object.entries(value)) node.addEventListener(event, action);
    else if (name === "css") for (const [key, v] of Object.entries(value)) node.style.setProperty(key, v);
    else if (name === "class") node.className = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== undefined && child !== null && child !== false));
  return node;
}

function fill(node, ...children) {
  node.replaceChildren(...children.flat(Infinity).filter(Boolean));
  return node;
}

const button = (text, action, attributes = {}) => el("button", { type: "button", ...attributes, on: { click: action } }, text);

// A table. heads: texts, or {text, value: true} for columns of numbers; rows: lists of cells, the first of which names the row.
function grid(heads, rows, attributes = {}) {
  const numeric = heads.map((h) => Boolean(h.value));
  return el("table", attributes,
    el("thead", {}, el("tr", {}, heads.map((h) => el("th", { scope: "col", class: h.value ? "value" : null }, h.text ?? h)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell, i) => el(i ? "td" : "th", { scope: i ? null : "row", class: numeric[i] ? "value" : null }, cell))))));
}

const body = (section) => document.querySelector(`#${section} .body`);
const say = (text) => { document.getElementById("live").textContent = text; };
const GLYPHS = { completed: "✓", diverged: "×", failed: "!", damaged: "!", cancelled: "−", interrupted: "?", unknown: "?", running: "▸", requeued: "↻", queued: "…" };
const STATES = ["completed", "diverged", "failed", "damaged", "cancelled", "interrupted", "unknown", "requeued", "running", "queued", "planned"];
const counted = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;

function stateBadge(run) {
  return el("span", { class: "state" }, el("span", { class: `dot ${run.state}`, "aria-hidden": "true" }, GLYPHS[run.state] ?? ""), run.state);
}

// A number as people write it: 5 significant digits, and powers of ten where it is very large or small.
function short(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e5 || size < 1e-3)) return value.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e").replaceAll("-", "−");
  return String(Number(value.toPrecision(5))).replace("-", "−");
}

/* A large count with three digits: 999, 365 k, 25.6 M. */
function count(n) {
  const [size, unit] = [[1e9, " G"], [1e6, " M"], [1e3, " k"]].find(([size]) => n >= size) || [1, ""];
  return unit ? `${(n / size).toFixed(n / size >= 99.95 ? 0 : 1)}${unit}` : `${n}`;
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

// Offers `content` as a file; nothing leaves this machine.
function save(name, content) {
  const link = el("a", { href: URL.createObjectURL(content), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  say(`Saved ${name}`);
}

const studyOf = (run) => data.studies[run.study];
const variantOf = (run) => studyOf(run).variants[run.variant];
const runName = (run) => `${variantOf(run).label}, seed ${run.seed}`;

// Runs by their folder below runs/: what tables and claims name, and what `#run=` in the address opens.
let byWhere = new Map();

function prepare() {
  data.studies.forEach((study, index) => { study.index = index; });
  data.runs.forEach((run, index) => {
    run.index = index;
    run.text = [studyOf(run).name, variantOf(run).name, variantOf(run).label, `seed ${run.seed}`, `seed${run.seed}`, run.state, run.host, run.gpu, run.commit, run.reason, run.identity, run.imported ? "imported" : ""].join(" ").toLowerCase();
  });
  byWhere = new Map(data.runs.map((run) => [run.where, run]));
}
