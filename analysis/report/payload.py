"""The page and everything that it shows: `Collected`, frames and tables in, one HTML file out.

Text that a reader sees is made here and in `analysis.tables`, means in `analysis.results.curves`; the
page's script computes nothing that is printed in a table.

The page is self-contained: styles, scripts and data inside, nothing fetched. Its content security
policy allows its own script by hash and pictures inside the file, so data cannot become script,
whatever a variant is called. A live page may ask its own server for data, too.
"""

from __future__ import annotations

import base64
import glob
import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from ablations.study.model import as_written
from analysis.figures.curves import metric_name
from analysis.figures.style import palette
from analysis.importers.text import clean, decode
from analysis.results import curves as curveframe
from analysis.results import numbers
from analysis.results.curves import Clock, Curve
from analysis.results.frames import EPOCHS, Results, results, standing
from analysis.runs import hints
from analysis.runs.collect import Collected
from analysis.runs.comparable import KINDS, refuse_to_average
from analysis.runs.record import RECORDED, Run, as_rows
from analysis.tables.forms import to_html
from analysis.tables.model import Table, difference_cell, score_cell
from sdtps.audit.table import gradient_table
from sdtps.run.folder import RunFolder
from sdtps.run.locations import runs_root
from sdtps.system.errors import counted
from sdtps.system.files import read_bytes

ASSETS = Path(__file__).parent / "assets"
# In the order in which they use each other.
SCRIPTS = (
    *("dom.js", "chart.js", "curves.js", "panel.js", "settings.js"),
    *("compare.js", "runs.js", "sections.js", "view.js", "main.js"),
)
LINE_WIDTH = 2.0  # pixels; dashes are in line widths
# Numbers in all curves of single seeds, and as many in those of means: together about 10 MB of text,
# which a browser opens in a second.
CURVE_BUDGET = 900_000
FEWEST_POINTS = 12
LOG_BUDGET = 4_000_000  # bytes of all logs of a report together
QUERY_BUDGET = 2_000_000  # characters of what is known of each query of all runs together
MOST_EPOCH_ENDS, MOST_TIMES = 200, 60
_SHOWN = (
    *("where", "planned", "imported", "identity", "state", "reason", "commit", "code", "dirty"),
    *("seed", "attempts", "epoch", "step", "best_epoch", "final_epoch", "parameters"),
    *("train_seconds", "wall_seconds", "peak_memory_mib", "selected_on", "gpu", "host", "source"),
)

KIND = ("train", "eval")


def payload(
    collected: Collected,
    *,
    tables: Mapping[str, Sequence[Table]],
    audits: Sequence[Mapping[str, Any]] = (),
    claims: Sequence[Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """The page's data.

    Args:
        tables: study name to its tables.
        audits, claims: see `analysis.report.verb.report_data`.
    """
    records = {run.where: run for run in collected.runs}
    place = {where: number for number, where in enumerate(records)}
    logged, means, lines = [], 0, 0
    for study in collected.studies:
        logged.append([(kind, m) for kind in KIND for m in collected.metrics_of(study.name, kind)])
        means += len(logged[-1]) * len(results(collected, study).outcomes)
        lines += len(logged[-1]) * len(collected.runs_of(study.name))
    points = _share(6 * means, curveframe.POINTS), _share(2 * lines, curveframe.SEED_POINTS)
    room = max(400, min(6000, LOG_BUDGET // max(1, len(records))))
    runs: list[dict[str, Any]] = [{} for _ in records]
    studies, series = [], {}
    for index, study in enumerate(collected.studies):
        found = results(collected, study)
        epochs = curveframe.epoch_clocks(collected, study)
        clocks = curveframe.second_clocks(collected, study)
        variants = _variants(study, found)
        for number, (variant, outcome) in enumerate(
            zip(variants, found.outcomes.values(), strict=True)
        ):
            for where in (run.where for run in outcome.runs):
                record = records[where]
                variant["runs"].append(place[where])
                runs[place[where]] = {
                    **_run(record, collected, study, room),
                    **{"study": index, "variant": number},
                    **_times(clocks.get(where), study, record, min(MOST_TIMES, points[1])),
                }
            variant["epoch_ends"] = _epoch_ends(epochs.get(outcome.key))
            variant["completed"] = len(outcome.completed)
            variant["planned"] = sum(runs[i]["planned"] for i in variant["runs"])
        places = {key: number for number, key in enumerate(found.outcomes)}
        for kind, metric in logged[index]:
            curves = curveframe.curves(collected, study, metric, kind, points=points)
            series[f"{index}|{kind}|{metric}"] = _series(curves, places, place)
        studies.append(_study(collected, study, variants, logged[index], tables.get(study.name, ())))
    named = dict(place)
    named |= {run.folder: place[where] for where, run in records.items()}
    return {
        "headline": _headline(collected),
        "studies": studies,
        "runs": runs,
        "series": series,
        "queries": _queries(collected.runs),
        "audit": [part for document in audits for part in audit_parts(document)] or None,
        "claims": None
        if claims is None
        else [
            {
                "id": str(claim["id"]),
                "text": claim["claim"],
                "why": claim["evidence"],
                **{key: claim[key] for key in ("source", "verdict")},
                "runs": [named[run] for run in claim["runs"] if run in named],
            }
            for claim in claims
        ],
    }


def _share(numbers: int, most: int) -> int:
    """Points of each curve, where one point of all of them is so many numbers."""
    return max(FEWEST_POINTS, min(most, CURVE_BUDGET // max(1, numbers)))


def _headline(collected: Collected) -> str:
    runs = collected.runs
    done = sum(run.state == "completed" for run in runs)
    text = f"{done} of {counted(len(runs), 'run')} completed"
    if imported := sum(run.imported for run in runs):
        text += f", {imported} imported"
    commits = sorted({run.commit[:10] for run in runs if run.commit})
    return f"{text}; commit {', '.join(commits)}" if commits else text


# -- studies and variants -----------------------------------------------------------------------


def _study(
    collected: Collected,
    study: Any,
    variants: list[dict[str, Any]],
    logged: Sequence[tuple[str, str]],
    tables: Sequence[Table],
) -> dict[str, Any]:
    marks = refuse_to_average(collected, allow=KINDS, studies=[study.name])
    kinds = {kind: [metric for k, metric in logged if k == kind] for kind in KIND}
    kinds["train"].sort(key=lambda name: (name.split("/")[0] != "loss", name))
    order = list(study.metrics)
    kinds["eval"].sort(key=lambda name: (order.index(name) if name in order else len(order), name))
    return {
        "name": study.name,
        "title": study.title or study.name,
        "notes": study.notes or "",
        "baseline": study.baseline,
        "seeds": list(study.seeds),
        "metrics": [
            {"name": name, "label": spec.label or name, "unit": spec.unit}
            for name, spec in study.metrics.items()
        ],
        "names": {metric: metric_name(study, metric) for _, metric in logged},
        "base": {k: as_written(v) for k, v in study.flat_base.items()},
        "variants": variants,
        "kinds": kinds,
        "marks": [mark.text for mark in marks],
        "tables": [
            {
                **{"table": table.name, "title": table.title, "marks": list(table.marks)},
                **{"html": to_html(table), "keys": [column.key for column in table.columns]},
            }
            for table in tables
        ],
    }


def _variants(study: Any, found: Results) -> list[dict[str, Any]]:
    """The manifest's variants, then those that only imported runs have."""
    others = tuple(key for key in found.outcomes if key not in study.variants)
    styles = palette(study, others)
    listed = []
    for key, outcome in found.outcomes.items():
        variant = study.variants.get(key)
        style = styles[key]
        listed.append(
            {
                "name": key,
                "label": outcome.label if variant or key != outcome.variant else f"{key} (imported)",
                "color": style.colour,
                "dash": [round(part * LINE_WIDTH, 1) for part in style.dashes or ()],
                "marker": style.marker,
                "fill": style.fill,
                "runs": [],
                "overrides": [
                    [k, as_written(v)] for k, v in (variant.overrides if variant else {}).items()
                ],
                "known": variant is not None,
                "differences": _differences(study, key) if variant else {},
                "differences_to_baseline": _to_baseline(found, key),
                "scores": {
                    metric: {
                        epoch: score_cell(found.get(key, metric, epoch), outcome, spec).plain
                        for epoch in EPOCHS
                    }
                    for metric, spec in study.metrics.items()
                },
            }
        )
    return listed


def _differences(study: Any, variant: str) -> dict[str, list[str]]:
    """Setting to its value in the base and in the variant."""
    found = study.differences(variant)
    return {key: [as_written(base), as_written(here)] for key, (base, here) in found.items()}


def _to_baseline(found: Results, key: str) -> dict[str, dict[str, Any]]:
    """Metric to its difference at the last epoch, as the forest plot draws it, in the printed unit."""
    drawn = {}
    for name, spec in found.study.metrics.items():
        row = found.get(key, name)
        scale = 100.0 if spec.unit == "%" else 1.0
        ends = {
            "mean": row.difference,
            "low": row.difference_low,
            "high": row.difference_high,
            "least": row.least_starred,
        }
        drawn[name] = {
            **{k: round(v * scale, 6) if math.isfinite(v) else None for k, v in ends.items()},
            "word": standing(row, spec),
            "text": difference_cell(row, spec).plain or found.outcomes[key].glyph(),
        }
    return drawn


# -- curves -------------------------------------------------------------------------------------


def _series(
    curves: Sequence[Curve], places: Mapping[str, int], runs: Mapping[str, int]
) -> dict[str, Any]:
    """The curves of one metric: single seeds, and the frame's means of variants with several.

    Numbers stay arrays, a quarter of the size of lists; `embedded` writes them.
    """
    seeds, means = [], []
    for curve in curves:
        pairs = zip(curve.outcome.runs, curve.seeds, strict=True)
        logged = [(run.where, seed) for run, seed in pairs if len(seed.step)]
        seeds += [
            {
                "run": runs[where],
                "x": seed.step.astype(np.int32),
                "y": rounded(seed.value),
            }
            for where, seed in logged
        ]
        if len(logged) > 1:
            means.append(
                {
                    "variant": places[curve.variant],
                    "planned": curve.planned,
                    "x": rounded(curve.step, 7),
                    "y": rounded(curve.mean),
                    "lo": rounded(curve.low),
                    "hi": rounded(curve.high),
                    "n": curve.n.astype(np.int32),
                    "part": curve.stretch.astype(np.int32),
                    "interpolated": curve.interpolated,
                    "merged": curve.merged and round(curve.merged, 1),
                }
            )
    return {"seeds": seeds, "means": means}


def rounded(values: np.ndarray, digits: int = 5) -> np.ndarray:
    """The values with so many significant digits; five are more than a screen shows."""
    return np.array([float(f"{v:.{digits}g}") for v in values.tolist()])


def _epoch_ends(clock: Clock | None) -> list[list[float]]:
    """Pairs of (step, epoch) between which the page interpolates."""
    return [] if clock is None else _pairs(clock, MOST_EPOCH_ENDS)


def _times(clock: tuple[Clock, bool] | None, study: Any, run: Run, most: int) -> dict[str, Any]:
    """The run's (step, seconds) pairs, whether its rows carry them, and how many GPUs it held."""
    if clock is None:
        return {"times": [], "timed": False, "gpus": 0}
    variant = study.variants.get(run.variant)
    gpus = 0
    if run.gpu:
        gpus = max(1, getattr(getattr(variant, "resources", None), "gpus", 1) or 1)
    return {"times": _pairs(clock[0], most), "timed": clock[1], "gpus": gpus}


def _pairs(clock: Clock, most: int) -> list[list[float]]:
    index = np.unique(np.linspace(0, len(clock.steps) - 1, most).astype(np.int64))
    columns = clock.steps[index].tolist(), clock.values[index].tolist()
    return [[float(f"{a:.7g}"), float(f"{b:.7g}")] for a, b in zip(*columns, strict=True)]


# -- runs ---------------------------------------------------------------------------------------


def _run(run: Run, collected: Collected, study: Any, room: int) -> dict[str, Any]:
    scores = {
        which: {
            name: [value, numbers.printed(value, spec)]
            for name, spec in study.metrics.items()
            if (value := run.scores(epoch).get(name)) is not None
        }
        for epoch, which in RECORDED.items()
    }
    return {
        **{name: getattr(run, name) for name in _SHOWN},
        **scores,
        "notes": "; ".join(run.notes),
        "log": log_tail(RunFolder(run.folder), room),
        "jobs": ", ".join(run.jobs),
        "rerun": None if run.imported else _rerun(study, run, _named(collected.runs_dir)),
    }


def _named(runs_dir: Path) -> Path:
    """What commands call the folder of runs: as given, but absolute ones by their last part alone.

    A report does not depend on where its store lies; whoever copies a command knows that.
    """
    return Path(runs_dir.name) if runs_dir.is_absolute() and runs_dir != runs_root() else runs_dir


def _rerun(study: Any, run: Run, runs_dir: Path) -> str:
    """The command that runs exactly this run: for the first time, or again as `explain` has it."""
    if run.state == "planned":
        words = ("--variant", glob.escape(run.variant), "--seed", str(run.seed))
        return hints.submit(study.path, runs_dir, *words)
    return "\n".join(hints.again(as_rows([run]), runs_dir, {study.name: study.path}))


def log_tail(folder: RunFolder, most: int) -> str:
    """The last whole lines of train.log, or of the scheduler's newest log; at most `most` bytes."""
    if text := _tail_of(folder.log_file, most):
        return text
    logs = [p for p in folder.submitit_folder.glob("*.*") if p.suffix in (".err", ".out", ".log")]
    logs = [p for p in logs if p.is_file() and p.stat().st_size > 0]
    if not logs:
        return ""
    return _tail_of(max(logs, key=lambda p: (p.stat().st_mtime, p.suffix == ".err", p.name)), most)


def _tail_of(path: Path, most: int) -> str:
    try:
        content = read_bytes(path, last=most + 1)
    except OSError:
        content = None
    if content is None:
        return ""
    if len(content) > most:
        content = content[1:].partition(b"\n")[2] or content[1:]
    return clean(decode(content).replace("\r\n", "\n")).strip()


def _queries(runs: Sequence[Run]) -> dict[str, Any]:
    """What completed runs kept of each query of their last evaluation.

    Returns:
        runs: place of a run to its arrays in base64, by their names in queries.safetensors: AP as
            float32, so that the page counts as `sdtps compare` does; ranks as bytes, 255 for any above.
            `identity` is a place in `lists`, which holds the identities of each list of queries.
        over: all would take more than `QUERY_BUDGET` characters; then there is nothing else.
    """
    found: dict[int, dict[str, Any]] = {}
    lists: dict[tuple[int, ...], int] = {}
    size = 0
    for number, run in enumerate(runs):
        arrays = RunFolder(run.folder).queries() if run.state == "completed" else {}
        for name, values in sorted(arrays.items()):
            mine = found.setdefault(number, {})
            if name.endswith("identity"):
                mine[name] = lists.setdefault(tuple(values.tolist()), len(lists))
                continue
            small = values.astype("<f4") if name == "AP" else np.minimum(values, 255).astype("u1")
            mine[name] = base64.b64encode(small.tobytes()).decode()
            size += len(mine[name])
        if size > QUERY_BUDGET:
            return {"over": True}
    return {"runs": found, "lists": list(lists)}


# -- audit --------------------------------------------------------------------------------------


def audit_parts(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """An audit.json for the page: what was found in sentences, then the gradients as tables of text."""
    study = str(document["study"]) or "audit"
    labels = {v["variant"]: str(v["label"]) for v in document["variants"]}
    said = [
        {
            "severity": str(f["severity"]),
            "text": f"{labels.get(f['variant'], f['variant'])}: {f['text']}",
        }
        for f in document["findings"]
    ]
    found_in = {str(finding["variant"]) for finding in document["findings"]}
    silent = [label for name, label in labels.items() if name not in found_in]
    if silent:
        said.append({"severity": "ok", "text": f"Nothing was found in: {'; '.join(silent)}."})
    parts: list[dict[str, Any]] = [{"title": f"{study}: what the audit found", "said": said}]
    for when, words in (("initial", "at initialisation"), ("after", "after the training steps")):
        if any(row["when"] == when for row in document["gradients"]):
            found = gradient_table(document, when)
            parts.append(
                {
                    "title": f"{study}: gradients {words}",
                    "notes": list(found.notes),
                    "columns": ["Variant", *found.columns.values()],
                    "rows": [
                        [found.labels[name], *(row[key] for key in found.columns)]
                        for name, row in found.rows.items()
                    ],
                }
            )
    return parts


# -- the page -----------------------------------------------------------------------------------


def page(data: Mapping[str, Any]) -> Iterator[bytes]:
    """The report as HTML, in parts. The same data give the same bytes: no date is in it.

    Args:
        data: see `payload`; with `live` true the page asks `data.json` beside it for news.

    Raises:
        ValueError: a non-finite number in `data`.
    """
    style = _asset("report.css")
    script = '"use strict";\n' + "\n".join(_asset(name) for name in SCRIPTS)
    parts = {
        "style": style,
        "style_hashes": _hash(style),
        "script": script,
        "script_hash": _hash(script),
        "connect": "connect-src 'self'; " if data.get("live") else "",
        "data": embedded(data),
    }
    marks = jinja2.Environment(variable_start_string="<<", variable_end_string=">>")
    return (part.encode() for part in marks.from_string(_asset("page.html")).generate(parts))


def embedded(data: Mapping[str, Any]) -> str:
    """JSON that is safe inside a script element: ASCII, without `<`, `>` and `&`.

    A number of an array that is not finite becomes null; any other is refused.
    """

    def listed(array: np.ndarray) -> list[float | None]:
        return [value if math.isfinite(value) else None for value in array.tolist()]

    text = json.dumps(data, allow_nan=False, separators=(",", ":"), default=listed)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
