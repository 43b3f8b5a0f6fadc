// Audit, claims and patch pictures: shown where their files exist, said so where not.
function absent(section, text) { fill(body(section), el("p", { class: "muted" }, text)); }

function buildAudit() {
  if (!data.audit) return absent("audit", "No audit.json was given to this report. Make one: python -m sdtps audit");
  fill(body("audit"), data.audit.map((part) => el("div", { class: "card scroll" }, el("h3", {}, part.title), part.notes.map((n) => el("p", { class: "muted" }, n)),
    el("table", {}, el("thead", {}, el("tr", {}, part.columns.map((c) => el("th", { scope: "col" }, c)))),
      el("tbody", {}, part.rows.map((row) => el("tr", {}, row.map((value, i) => el(i ? "td" : "th", i ? {} : { scope: "row" }, value)))))))));
}

function buildClaims() {
  if (!data.claims) return absent("claims", "No claims.json was given to this report. Make one: python -m analysis claims");
  const verdicts = [...new Set(data.claims.map((c) => c.verdict))], on = new Set(verdicts);
  const list = el("tbody");
  const draw = () => fill(list, data.claims.filter((c) => on.has(c.verdict)).map((c) => el("tr", { "data-claim": c.id },
    el("th", { scope: "row" }, c.id), el("td", {}, c.text, el("div", { class: "small muted" }, c.source)),
    el("td", { class: `verdict ${c.verdict.replaceAll(" ", "_")}` }, c.verdict),
    el("td", { class: "small" }, c.why, c.runs.length > 0 && el("div", {}, numberButton(counted(c.runs.length, "run"), () => openBehind(`Claim ${c.id}`, c.runs.map((i) => data.runs[i]), () => null, c.text), `behind claim ${c.id}`))))));
  const chips = verdicts.map((v) => { const chip = el("button", { type: "button", class: "chip", "aria-pressed": "true", on: { click: () => { if (on.has(v)) on.delete(v); else on.add(v); chip.setAttribute("aria-pressed", String(on.has(v))); draw(); } } }, `${v} ${data.claims.filter((c) => c.verdict === v).length}`); return chip; });
  fill(body("claims"), el("div", { class: "card scroll" }, el("div", { class: "row chips" }, chips),
    el("table", {}, el("thead", {}, el("tr", {}, ["Claim", "What it says", "Verdict", "Why"].map((t) => el("th", { scope: "col" }, t)))), list)));
  draw();
}

function buildPatches() {
  if (!data.patches.length) return absent("patches", "No patch pictures were given to this report. Make them: python -m analysis patches RUN... -o FILE.png");
  fill(body("patches"), el("div", { class: "pictures" }, data.patches.map((p) => el("figure", { class: "card" }, el("img", { src: p.image, alt: p.alt, loading: "lazy" }), el("figcaption", {}, p.caption)))));
}
