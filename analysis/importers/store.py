"""Imported runs on disk: runs/_imported/STUDY/VARIANT/seedK-HASH/, read by analysis like our own.

`run.json` has the key `imported` (source, its SHA-256, format, what was parsed and what could not be
read), and there is no `config.yaml`: such a run can be shown and compared, never resumed or rerun.
Importing a log again after it has grown replaces the run.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ablations.study.model import slug
from analysis.importers.run import ImportedRun, LogError
from analysis.runs import IMPORTED
from sdtps import files
from sdtps.run.folder import RunFolder, finite, folder_name

# Settings of a foreign configuration that never make a variant.
_NOT_A_DIFFERENCE = (
    "DIR", "PATH", "DEVICE", "LOG_", "PERIOD", "WORKERS", "NAME", "SEED", "seed", "exp",
)  # fmt: skip
# File and folder names that say nothing about a run.
_GENERIC = re.compile(
    r"^(?:train(?:ing)?(?:_log)?|logs?|metrics?|out(?:put)?|stdout|results?|trainer_state|trainer_log|progress|"
    r"history|scalars|vis_data|version_\d+|checkpoint-\d+|tensorboard|tb|csv|lightning_logs|values|"
    r"\d{8}_\d{6})$",
    re.IGNORECASE,
)
_SEED = re.compile(r"(?:^|[-_. ])seed[-_=]?(\d+)", re.IGNORECASE)
_SUFFIXES = {".log", ".txt", ".csv", ".json", ".jsonl", ".tsv", ".out"}
# Scores between 0 and 1 that some programs print in per cent; they are kept as printed.
_BOUNDED = re.compile(
    r"(?:^|_)(?:f1|precision|recall|ap\d*|auc|auroc|m?iou|dice|wer|cer|eer)$", re.IGNORECASE
)


def identity(study: str, variant: str, seed: int) -> str:
    """Ten digits that name an imported run: its place, not its content, so that it can be replaced."""
    text = json.dumps(["imported", study, variant, seed])
    return hashlib.sha256(text.encode()).hexdigest()[:10]


# -- names ----------------------------------------------------------------------------------------


def name_runs(runs: Sequence[ImportedRun], root: Path) -> None:
    """Variant and seed of each run that its file does not tell, from the path below `root`.

    `seed3` is a seed wherever it stands in the path. Folders and files with names that say nothing, and
    those that all runs share, are left out; what remains is the variant: METHOD/seedK/log.csv,
    METHOD/DATASET/log.txt and METHOD_seedK.log are all METHOD.
    """
    parts = {id(run): _parts(run.source, root) for run in runs}
    shared: set[str] = set()
    if len({run.source for run in runs}) > 1:
        shared = set.intersection(*(set(_without_seeds(parts[id(run)])) for run in runs))
    for run in runs:
        if run.seed is None:
            run.seed = next(
                (int(m.group(1)) for p in reversed(parts[id(run)]) if (m := _SEED.search(p))), None
            )
        if run.variant:
            continue
        words = _without_seeds(parts[id(run)])
        kept = [word for word in words if word not in shared]
        run.variant = "/".join(kept or words[-1:]) or _nearest_name(run.source)


def _parts(path: Path, root: Path) -> list[str]:
    """Folder names below `root` and the file's own name without its suffix."""
    path, root = path.absolute(), root.absolute()
    below = path.relative_to(root).parts if path.is_relative_to(root) else (path.name,)
    name = below[-1]
    if "tfevents" in name:
        return list(below[:-1])
    return [*below[:-1], Path(name).stem if Path(name).suffix in _SUFFIXES else name]


def _without_seeds(parts: Sequence[str]) -> list[str]:
    words = [_SEED.sub("", part) for part in parts]
    return [word for word in words if word and not _GENERIC.match(word)]


def _nearest_name(path: Path) -> str:
    """The nearest folder above a file whose name says something."""
    for folder in path.absolute().parents:
        if folder.name and (words := _without_seeds([folder.name])):
            return words[0]
    return path.stem


def name_studies(runs: Sequence[ImportedRun], root: Path, study: str | None) -> None:
    """Study, variant and seed of each run below `root` (see `name_runs`).

    The study is `study`, or the imported folder's name. Where the logs below a folder come from several
    data sets, each of its subfolders is a study.
    """
    root = root.absolute()
    if study is not None or len(_datasets(runs)) < 2:
        for run in runs:
            run.study = study or root.name
        name_runs(runs, root)
        return
    below = {id(run): run.source.absolute().relative_to(root).parts for run in runs}
    for run in runs:
        run.study = below[id(run)][0] if len(below[id(run)]) > 1 else root.name
    for name in {run.study for run in runs}:
        place = root / name if (root / name).is_dir() else root
        name_runs([run for run in runs if run.study == name], place)


def by_study(runs: Sequence[ImportedRun]) -> dict[str, list[ImportedRun]]:
    """The runs of each study.

    Raises:
        LogError: a study would mix data sets.
    """
    studies: dict[str, list[ImportedRun]] = {}
    for run in runs:
        studies.setdefault(run.study, []).append(run)
    mixed = []
    for study, members in studies.items():
        if len(found := _datasets(members)) > 1:
            told = "\n".join(f"    {data}: {', '.join(files[:3])}" for data, files in found.items())
            mixed.append(f"{study}: logs of {len(found)} data sets, which share no table:\n{told}")
    if mixed:
        raise LogError("\n".join(mixed) + "\n  Import each under a name of its own: --study NAME")
    return studies


def _datasets(runs: Sequence[ImportedRun]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for run in runs:
        if data := str(run.facts.get("dataset") or ""):
            found.setdefault(data, []).append(run.source.name)
    return found


def settle(runs: Sequence[ImportedRun]) -> list[ImportedRun]:
    """The runs of one study, each with a place of its own: byte-identical logs once, seeds known.

    Raises:
        LogError: two logs claim one variant and seed, or print one score in different units.
    """
    seen: dict[tuple[str, str, int | None], ImportedRun] = {}
    kept: list[ImportedRun] = []
    for run in runs:
        first = seen.get((run.sha256, run.variant, run.seed))
        same = next((o for o in kept if o.sha256 == run.sha256 and o.source != run.source), None)
        if (first or same) is not None and not (first and first.source == run.source):
            (first or same).notes.append(f"{run.source} is a byte-identical copy")  # type: ignore[union-attr]
            continue
        seen[run.sha256, run.variant, run.seed] = run
        kept.append(run)
    for run in kept:
        if run.seed is None:
            run.seed = 0
            run.notes.append("nothing tells its seed; it is shown as seed 0")
    mistakes = _clashes(kept) + _units_that_differ(kept)
    if mistakes:
        raise LogError("\n".join(mistakes))
    return kept


def _clashes(runs: Sequence[ImportedRun]) -> list[str]:
    places: dict[tuple[str, int | None], list[ImportedRun]] = {}
    for run in runs:
        places.setdefault((run.variant, run.seed), []).append(run)
    found = [
        f"  {variant} seed {seed}: {' and '.join(str(run.source) for run in same)}"
        for (variant, seed), same in places.items()
        if len(same) > 1
    ]
    if not found:
        return []
    return [
        "two logs for one variant and seed:",
        *found,
        "  Say which is which: --variant NAME and --seed N for one file at a time, or a mapping with "
        "`variant: {path: N}` and `seed: {path: N}`.",
    ]


def _units_that_differ(runs: Sequence[ImportedRun]) -> list[str]:
    """Scores that one log prints above 1 and another never does."""
    mistakes = []
    names = sorted(
        {n for run in runs for n, m in run.metrics.items() if m.unit == "raw" and _BOUNDED.search(n)}
    )
    for name in names:
        most = {
            run.source.name: max(values)
            for run in runs
            if (values := [row[name] for row in run.rows if isinstance(row.get(name), float)])
        }
        below = [source for source, value in most.items() if value <= 1]
        above = [source for source, value in most.items() if value > 1]
        if below and above:
            mistakes.append(
                f"{name}: {above[0]} prints per cents, {below[0]} no value above 1: fractions, or a "
                "run that learned nothing? Give each a mapping that says its unit"
            )
    return mistakes


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


# -- writing --------------------------------------------------------------------------------------


def write(run: ImportedRun, study: str, runs_dir: Path) -> RunFolder:
    """Write one run below `runs_dir`/_imported, replacing an earlier import of the same log.

    Raises:
        LogError: the folder holds something that was not imported.
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
    with files.replacing(folder.metrics_file) as stream:
        for row in run.rows:
            line = json.dumps(finite(row), allow_nan=False, ensure_ascii=False)
            stream.write(f"{line}\n".encode())
    last = run.rows[-1] if run.rows else {}
    # A log that just ends is what collect calls `interrupted`: it said it was running, and fell silent.
    # One that names no planned length has ended as far as anybody can tell.
    state = {"incomplete": "running", "ended": "completed"}.get(run.state, run.state)
    status = {"state": state, "attempt": run.facts["attempts"], "heartbeat": 0.0, "time": None}
    status |= {"epoch": last.get("epoch"), "step": last.get("step"), "reason": run.reason or None}
    if run.failure:
        status["kind"] = run.failure
    files.write_json(folder.status_file, status)
    files.write_json(folder.run_file, finite_tree(_provenance(run, study, seed, name)))
    if run.state in ("completed", "ended"):  # last, as in a run of ours: its existence means completed
        files.write_json(folder.result_file, finite_tree(_result(run)))
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
            "metrics": {name: asdict(metric) for name, metric in run.metrics.items()},
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
