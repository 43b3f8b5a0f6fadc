// Elements and text. Everything that comes from data goes through textContent, never through HTML.
const data = JSON.parse(document.getElementById("data").textContent);

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

const body = (section) => document.querySelector(`#${section} .body`);
const say = (text) => { document.getElementById("live").textContent = text; };
const GLYPHS = { completed: "✓", diverged: "×", failed: "!", cancelled: "−", interrupted: "?", running: "▸", requeued: "↻", queued: "…", missing: "" };
const counted = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;
const STATES = ["completed", "diverged", "failed", "cancelled", "interrupted", "requeued", "running", "queued", "missing"];

function stateBadge(run) {
  return el("span", { class: "state" }, el("span", { class: `dot ${run.state}`, "aria-hidden": "true" }, GLYPHS[run.state] ?? ""), run.state);
}

// A number as people write it: 5 significant digits, and powers of ten where it is very large or small.
function short(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e5 || size < 1e-3)) return value.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e").replace("-", "−");
  return String(Number(value.toPrecision(5))).replace("-", "−");
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

const studyOf = (run) => data.studies[run.study];
const variantOf = (run) => studyOf(run).variants[run.variant];
const runName = (run) => `${variantOf(run).label}, seed ${run.seed}`;

// Runs by their folder below runs/: what tables and claims name, and what `#run=` links to.
const byWhere = new Map(data.runs.flatMap((run) => [[run.folder, run], [run.where, run]]));
