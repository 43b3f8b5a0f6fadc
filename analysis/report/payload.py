"""Everything that the page shows, as plain data: `Collected` and its tables in, JSON out.

Text that a reader sees is made here and in `analysis.tables`; the page's script rounds nothing that
is printed in a table.
"""

from __future__ import annotations

import glob
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.figures.style import Style, palette
from analysis.report import logs, series
from analysis.results import numbers
from analysis.runs import hints
from analysis.runs.collect import Collected
from analysis.runs.comparable import KINDS, refuse_to_average
from analysis.runs.record import run_of
from analysis.tables import model as tablemodel
from analysis.tables.model import Table
from sdtps.errors import counted
from sdtps.run.folder import RunFolder

LINE_WIDTH = 2.0  # pixels; dashes are in line widths
_TEXTS = ("identity", "state", "commit", "code", "reason", "selected_on", "gpu", "host", "notes")
_COUNTS = ("seed", "attempt", "attempts", "epoch", "step", "best_epoch", "final_epoch", "parameters")
_FLOATS = ("train_seconds", "wall_seconds", "peak_memory_mib", "images_per_s")
MOST_EPOCH_ENDS = 200


def payload(
    collected: Collected,
    *,
    tables: Mapping[str, Sequence[Table]],
    audit: Sequence[Mapping[str, Any]] | None = None,
    claims: Sequence[Mapping[str, Any]] | None = None,
    pictures: Sequence[Mapping[str, str]] = (),
) -> dict[str, Any]:
    """The page's data.

    Args:
        tables: study name to its tables.
        audit: parts with title, notes, columns and rows, all text; None where there is no audit.
        claims: entries with id, text, source, verdict, why and runs (folders below runs/).
        pictures: patch pictures with image (a data URI), alt and caption.
    """
    studies = {study.name: index for index, study in enumerate(collected.studies)}
    records = collected.runs.to_dict("records")
    found = series.curves(collected.rows)
    lists = [_variants(collected, study) for study in collected.studies]
    variants = {
        (study.name, v["name"]): index
        for study, listed in zip(collected.studies, lists, strict=True)
        for index, v in enumerate(listed)
    }
    ends = _epoch_ends(collected.rows)
    room = max(400, min(6000, logs.BUDGET // max(1, len(records))))
    runs = [_run(r, collected, studies, variants, room) for r in records]
    index = {
        (str(r["study"]), str(r["variant"]), int(r["seed"])): number for number, r in enumerate(records)
    }
    for number, run in enumerate(runs):
        lists[run["study"]][run["variant"]]["runs"].append(number)
    for study, listed in zip(collected.studies, lists, strict=True):
        for variant in listed:
            mine = [runs[i] for i in variant["runs"]]
            variant["epoch_ends"] = ends.get((study.name, variant["name"]), [])
            variant["completed"] = sum(run["state"] == "completed" for run in mine)
            variant["planned"] = sum(run["planned"] for run in mine)
    planned = {
        (study.name, v["name"]): v["planned"]
        for study, listed in zip(collected.studies, lists, strict=True)
        for v in listed
    }
    where = {run[key]: number for number, run in enumerate(runs) for key in ("folder", "where")}
    return {
        "headline": _headline(collected),
        "studies": [
            _study(collected, study, listed, found, tables.get(study.name, ()))
            for study, listed in zip(collected.studies, lists, strict=True)
        ],
        "runs": runs,
        "series": series.payload(found, studies, variants, index, planned),
        "audit": audit,
        "claims": None
        if claims is None
        else [{**c, "runs": [where[r] for r in c["runs"] if r in where]} for c in claims],
        "patches": list(pictures),
    }


def _headline(collected: Collected) -> str:
    runs = collected.runs
    done = int((runs["state"] == "completed").sum())
    text = f"{done} of {counted(len(runs), 'run')} completed"
    if imported := int(runs["imported"].sum()):
        text += f", {imported} imported"
    commits = sorted({str(c)[:10] for c in runs["commit"].dropna()})
    return f"{text}; commit {', '.join(commits)}" if commits else text


# -- studies and variants -----------------------------------------------------------------------


def _study(
    collected: Collected,
    study: Any,
    variants: list[dict[str, Any]],
    found: Mapping[series.Key, Any],
    tables: Sequence[Table],
) -> dict[str, Any]:
    marks = refuse_to_average(collected, allow=KINDS, studies=[study.name])
    kinds = {
        kind: [metric for name, k, metric in found if name == study.name and k == kind]
        for kind in ("train", "eval")
    }
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
            {"name": name, "label": spec.label or name, "unit": spec.unit, "direction": spec.direction}
            for name, spec in study.metrics.items()
        ],
        "variants": variants,
        "kinds": kinds,
        "marks": [mark.text for mark in marks],
        "tables": [tablemodel.as_json(table) for table in tables],
    }


def _variants(collected: Collected, study: Any) -> list[dict[str, Any]]:
    """The manifest's variants, then variants that only imported runs have."""
    others = tuple(sorted(set(collected.runs_of(study.name)["variant"]) - set(study.variants)))
    styles = palette(study, others)
    listed = []
    for name, variant in study.variants.items():
        differences = study.differences(name) if hasattr(study, "differences") else {}
        listed.append(
            _variant(
                name,
                variant.label,
                styles[name],
                overrides=[[k, _plain(v)] for k, v in variant.overrides.items()],
                differences={k: [_plain(a), _plain(b)] for k, (a, b) in differences.items()},
            )
        )
    return [*listed, *(_variant(name, f"{name} (imported)", styles[name]) for name in others)]


def _variant(name: str, label: str, style: Style, **more: Any) -> dict[str, Any]:
    dash = [round(part * LINE_WIDTH, 1) for part in style.dashes or ()]
    base = {"name": name, "label": label, "color": style.colour, "dash": dash, "runs": []}
    return {**base, "overrides": [], "differences": {}, **more}


def _plain(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)


# -- runs ---------------------------------------------------------------------------------------


def _run(
    record: Mapping[Any, Any],
    collected: Collected,
    studies: Mapping[str, int],
    variants: Mapping[tuple[str, str], int],
    room: int,
) -> dict[str, Any]:
    study_name, variant = str(record["study"]), str(record["variant"])
    study = collected.studies[studies[study_name]]
    folder = RunFolder(str(record["folder"]))
    written, _ = run_of(folder)
    imported = bool(record["imported"])
    run: dict[str, Any] = {
        "study": studies[study_name],
        "variant": variants[study_name, variant],
        "where": str(record["where"]),
        "folder": str(folder.path),
        "planned": bool(record["planned"]),
        "imported": imported,
        "dirty": bool(record["dirty"]),
        "log": logs.tail(folder, room),
        "jobs": ", ".join(
            dict.fromkeys(str(a["job_id"]) for a in written.get("attempts") or [] if a.get("job_id"))
        ),
        "rerun": None if imported else _rerun(study, record, collected.runs_dir),
        "source": _source(written) if imported else None,
    }
    run |= {name: None if _absent(record[name]) else str(record[name]) for name in _TEXTS}
    run |= {name: None if _absent(record[name]) else int(record[name]) for name in _COUNTS}
    run |= {name: None if _absent(record[name]) else float(record[name]) for name in _FLOATS}
    for which in ("best", "final"):
        run[which] = {
            name: [value, numbers.printed(value, spec)]
            for name, spec in study.metrics.items()
            if not _absent(value := record.get(f"{which}/{name}", math.nan)) and math.isfinite(value)
        }
    return run


def _rerun(study: Any, record: Mapping[Any, Any], runs_dir: Path) -> str:
    """The command that runs exactly this run: for the first time, or again as `explain` has it."""
    if record["state"] == "missing":
        variant = glob.escape(str(record["variant"]))
        words = ("--variant", variant, "--seed", str(record["seed"]))
        return hints.submit(study.path, runs_dir, *words)
    run = {str(key): value for key, value in record.items()}
    return "\n".join(hints.again([run], runs_dir, {study.name: study.path}))


def _source(written: Mapping[str, Any]) -> str | None:
    imported = written.get("imported")
    if not isinstance(imported, Mapping):
        return None
    place = f"{imported.get('source_folder')}/{imported.get('source')}"
    return f"{place} ({imported.get('format')}, SHA-256 {str(imported.get('sha256'))[:16]})"


def _absent(value: Any) -> bool:
    return value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value))


def _epoch_ends(rows: pd.DataFrame) -> dict[tuple[str, str], list[list[int]]]:
    """For each variant: (epoch, last step of it), so that steps can be shown as epochs.

    The longest seed counts, and a last epoch that all seeds broke off is taken to be as long as the one
    before it: a run that diverged in the middle of an epoch did not end it.
    """
    if rows.empty:
        return {}
    found = {}
    epoch, step = rows["epoch"].to_numpy(), rows["step"].to_numpy()
    groups: Any = rows.groupby(["study", "variant"], sort=False, observed=True).indices
    for (study, variant), index in groups.items():
        epochs, inverse = np.unique(epoch[index], return_inverse=True)
        last = np.zeros(len(epochs), dtype=np.int64)
        np.maximum.at(last, inverse, step[index])
        pairs = [[int(e), int(s)] for e, s in zip(epochs, last, strict=True) if e > 0]
        if len(pairs) > 1:
            before = pairs[-3][1] if len(pairs) > 2 else 0
            pairs[-1][1] = max(pairs[-1][1], 2 * pairs[-2][1] - before)
        if len(pairs) > MOST_EPOCH_ENDS:
            pairs = [pairs[i] for i in np.linspace(0, len(pairs) - 1, MOST_EPOCH_ENDS).astype(int)]
        found[str(study), str(variant)] = pairs
    return found
