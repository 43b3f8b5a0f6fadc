"""Imported runs on disk: runs/_imported/STUDY/VARIANT/seedK-HASH/, read by analysis like our own.

`run.json` has the key `imported` (source, its SHA-256, format, what was parsed and what could not be
read), and there is no `config.yaml`: such a run can be shown and compared, never resumed or rerun.
Importing a log again after it has grown replaces the run.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analysis.importers.naming import slug
from analysis.importers.record import ImportedRun, LogError
from sdtps.files import write_json, write_text
from sdtps.run.folder import RunFolder, finite, folder_name

IMPORTED = "_imported"
# Settings of a foreign configuration that never make a variant.
_NOT_A_DIFFERENCE = (
    "DIR",
    "PATH",
    "DEVICE",
    "LOG_",
    "PERIOD",
    "WORKERS",
    "NAME",
    "SEED",
    "seed",
    "exp",
)


def identity(study: str, variant: str, seed: int) -> str:
    """Ten digits that name an imported run: its place, not its content, so that it can be replaced."""
    text = json.dumps(["imported", study, variant, seed])
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def settle_seeds(runs: Sequence[ImportedRun]) -> list[ImportedRun]:
    """Give each run its place: byte-identical logs once, unknown seeds numbered from 0.

    Logs of one name in several folders get the folder's name in front.

    Raises:
        LogError: two logs claim the same variant and seed.
    """
    seen: dict[tuple[str, str, int | None], ImportedRun] = {}
    kept: list[ImportedRun] = []
    for run in runs:
        key = (run.sha256, run.variant, run.seed)
        if (first := seen.get(key)) is not None and first.source != run.source:
            first.notes.append(f"{run.source} is a byte-identical copy")
            continue
        seen[key] = run
        kept.append(run)
    folders: dict[str, set[str]] = {}
    for run in kept:
        folders.setdefault(run.variant, set()).add(_parent(run))
    for run in kept:
        if len(folders[run.variant]) > 1 and run.variant != _parent(run):
            run.variant = f"{_parent(run)}/{run.variant}"
    counts = Counter(run.variant for run in kept if run.seed is None)
    for variant in counts:
        unknown = [run for run in kept if run.variant == variant and run.seed is None]
        taken = {run.seed for run in kept if run.variant == variant and run.seed is not None}
        free = (seed for seed in range(len(kept) + 1) if seed not in taken)
        for run in unknown:
            run.seed = next(free)
            run.notes.append(f"the log does not tell its seed; it is shown as seed {run.seed}")
    places: dict[tuple[str, int | None], ImportedRun] = {}
    clashes = []
    for run in kept:
        other = places.setdefault((run.variant, run.seed), run)
        if other is not run:
            clashes.append(f"  {run.variant} seed {run.seed}: {other.source} and {run.source}")
    if clashes:
        raise LogError(
            "two logs for one variant and seed:\n"
            + "\n".join(clashes)
            + "\n  Import them under names of their own: --variant NAME, one file at a time."
        )
    return kept


def _parent(run: ImportedRun) -> str:
    return run.source.absolute().parent.name


def label_runs(runs: Sequence[ImportedRun]) -> None:
    """Labels of a study: its arrangement, and the settings in which a run differs from its likes."""
    for label in {run.label for run in runs if run.label}:
        likes = [run for run in runs if run.label == label]
        if len({run.variant for run in likes}) == 1:
            continue
        keys = sorted({key for run in likes for key in run.config})
        usual = {
            key: Counter(run.config.get(key) for run in likes).most_common(1)[0][0] for key in keys
        }
        for run in likes:
            differences = [
                f"{key.rsplit('.', 1)[-1]}={run.config[key]}"
                for key in keys
                if key in run.config
                and run.config[key] != usual[key]
                and not any(word in key for word in _NOT_A_DIFFERENCE)
            ]
            if differences:
                run.label = f"{label}, {', '.join(differences)}"


def write(run: ImportedRun, study: str, runs_dir: Path) -> RunFolder:
    """Write one run below `runs_dir`/_imported, replacing an earlier import of the same log.

    Raises:
        RunError: the folder holds something that was not imported.
    """
    seed = run.seed or 0
    name = identity(study, run.variant, seed)
    place = Path(runs_dir) / IMPORTED / slug(study) / slug(run.variant) / folder_name(seed, name)
    folder = RunFolder(place)
    if place.exists():
        if "imported" not in folder.run():
            raise LogError(f"{place}: exists and is no imported run; nothing was written")
        shutil.rmtree(place)
    place.mkdir(parents=True)
    lines = [json.dumps(finite(row), allow_nan=False, ensure_ascii=False) for row in run.rows]
    write_text(folder.metrics_file, "".join(f"{line}\n" for line in lines))
    last = run.rows[-1] if run.rows else {}
    # A log that just ends is what collect calls `interrupted`: it said it was running, and fell silent.
    state = "running" if run.state == "incomplete" else run.state
    status = {"state": state, "attempt": run.facts["attempts"], "heartbeat": 0.0, "time": None}
    status |= {"epoch": last.get("epoch"), "step": last.get("step"), "reason": run.reason or None}
    if run.failure:
        status["kind"] = run.failure
    write_json(folder.status_file, status)
    write_json(folder.run_file, finite_tree(_provenance(run, study, seed, name)))
    if run.state == "completed":  # last, as in a run of ours: its existence means completed
        write_json(folder.result_file, finite_tree(_result(run)))
    return folder


def _provenance(run: ImportedRun, study: str, seed: int, name: str) -> dict[str, Any]:
    parameters = run.facts.get("parameters_million")
    return {
        "study": study,
        "variant": run.variant,
        "seed": seed,
        "identity": name,
        "label": run.label or run.variant,
        "parameters": round(parameters * 1e6) if parameters else None,
        "imported": {
            "source": run.source.name,
            "source_folder": run.source.absolute().parent.name,
            "sha256": run.sha256,
            "format": run.format,
            "state": run.state,
            "reason": run.reason,
            "select": run.select,
            "best": run.best,
            "final": run.final,
            "heads": run.heads,
            "printed": run.printed,
            "facts": run.facts,
            "components": run.components,
            "notes": run.notes,
            "unread": [vars(unread) for unread in run.unread],
        },
        "imported_config": run.config,
    }


def _result(run: ImportedRun) -> dict[str, Any]:
    return {
        "attempt": run.facts["attempts"],
        "best": run.best or {},
        "final": run.final or {},
        "heads": run.heads,
        "selected_on": run.selected_on,
        "train_seconds": run.facts.get("train_seconds"),
        "peak_memory_mib": max((r["memory_mib"] for r in run.rows if "memory_mib" in r), default=None),
        "steps": run.rows[-1]["step"] if run.rows else 0,
        "images_per_s": None,
    }


def finite_tree(value: Any) -> Any:
    """`value` as strict JSON can hold it, non-finite numbers as null at any depth."""
    if isinstance(value, dict):
        return {k: finite_tree(v) for k, v in finite(value).items()}
    if isinstance(value, list | tuple):
        return [finite_tree(v) for v in value]
    return value
