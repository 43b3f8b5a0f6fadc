"""Imported runs on disk: runs/_imported/STUDY/VARIANT/seedK-HASH/, read by analysis like our own.

`run.json` has the key `imported` (source, its SHA-256, format, what was parsed and what could not be
read), and there is no `config.yaml`: such a run can be shown and compared, never resumed or rerun.
Importing a log again after it has grown replaces the run.

Where no manifest plans them, imported runs are a study of their own (`ImportedStudy`). Nothing is
planned, so nothing can be missing.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from ablations.study.model import Study, Variant, slug
from ablations.study.schema import FigureSpec, MetricSpec, Resources, TableSpec
from analysis.importers.names import direction_of
from analysis.importers.run import ImportedRun, LogError
from analysis.runs import IMPORTED
from sdtps.run.folder import RunFolder, finite, folder_name
from sdtps.system import files
from sdtps.system.errors import did_you_mean

# File and folder names that say nothing about a run.
_GENERIC = re.compile(
    r"^(?:train(?:ing)?(?:_log)?|logs?|runs?|metrics?|out(?:put)?|stdout|results?|trainer_state|trainer_log|progress|"
    r"history|scalars|vis_data|version_\d+|checkpoint-\d+|tensorboard|tb|csv|lightning_logs|values|"
    r"\d{8}_\d{6})$",
    re.IGNORECASE,
)
_SEED = re.compile(r"(?:^|[-_. ])seed[-_=]?(\d+)", re.IGNORECASE)
_SUFFIXES = {".log", ".txt", ".csv", ".json", ".jsonl", ".tsv", ".out"}


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
    """The runs of one study, each with a place of its own: byte-identical logs and earlier states of a
    log once, seeds known.

    Raises:
        LogError: two logs claim one variant and seed.
    """
    kept: list[ImportedRun] = []
    for run in runs:
        same = next((o for o in kept if o.sha256 == run.sha256 and o.source != run.source), None)
        if same is not None:
            same.notes.append(f"{run.source} is a byte-identical copy")
            continue
        if run.seed is None:
            run.seed = 0
            run.notes.append("nothing tells its seed; it is shown as seed 0")
        kept.append(run)
    places: dict[tuple[str, int | None], list[ImportedRun]] = {}
    for run in kept:
        places.setdefault((run.variant, run.seed), []).append(run)
    settled: list[ImportedRun] = []
    clashes = []
    for (variant, seed), same_place in places.items():
        longest = max(same_place, key=lambda run: len(run.rows))
        others = []
        for run in same_place:
            n = len(run.rows)
            if 0 < n < len(longest.rows) and longest.rows[:n] == run.rows:
                longest.notes.append(f"{run.source} is an earlier state of this log")
            else:
                others.append(run)
        settled += others
        if len(others) > 1:
            sources = " and ".join(str(run.source) for run in others)
            clashes.append(f"  {variant} seed {seed}: {sources}")
    if clashes:
        told = "\n".join(["two logs for one variant and seed:", *clashes])
        raise LogError(
            f"{told}\n  Say which is which: --variant NAME and --seed N for one file at a time, or a "
            "mapping with `variant: {path: N}` and `seed: {path: N}`."
        )
    return settled


def label_runs(runs: Sequence[ImportedRun]) -> None:
    """Labels of a study: several variants of one arrangement have their names behind it."""
    variants = {
        run.label: {r.variant for r in runs if r.label == run.label} for run in runs if run.label
    }
    for run in runs:
        if len(variants.get(run.label, ())) > 1:
            run.label = f"{run.label}, {run.variant}"


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
    rows = (json.dumps(finite(row), allow_nan=False, ensure_ascii=False) for row in run.rows)
    files.write_text(folder.metrics_file, "".join(f"{row}\n" for row in rows))
    last = run.rows[-1] if run.rows else {}
    # A log that just ends is what collect calls `interrupted`: it said it was running, and fell silent.
    # One that names no planned length has ended as far as anybody can tell.
    state = {"incomplete": "running", "ended": "completed"}.get(run.state, run.state)
    status = {"state": state, "attempt": run.facts["attempts"], "heartbeat": 0.0, "time": None}
    status |= {"epoch": last.get("epoch"), "step": last.get("step"), "reason": run.reason or None}
    if run.failure:
        status["kind"] = run.failure
    files.write_json(folder.status_file, status)
    parameters = run.facts.get("parameters_million")
    about = {
        "study": study,
        "variant": run.variant,
        "seed": seed,
        "identity": name,
        "label": run.label or run.variant,
        "parameters": round(parameters * 1e6) if parameters else None,
        "imported": {
            **asdict(replace(run, rows=[], config={})),
            "source": run.source.name,
            "source_folder": run.source.absolute().parent.name,
        },
        "imported_config": run.config,
    }
    files.write_json(folder.run_file, files.finite_tree(about))
    if run.state in ("completed", "ended"):  # last, as in a run of ours: its existence means completed
        result = {
            "attempt": run.facts["attempts"],
            "best": run.best or {},
            "final": run.final or {},
            "selected_on": run.selected_on,
            "train_seconds": run.facts.get("train_seconds"),
            "peak_memory_mib": max((r.get("memory_mib", 0.0) for r in run.rows), default=0) or None,
            "steps": last.get("step", 0),
        }
        folder.write_result(files.finite_tree(result))
    return folder


# -- as a study ----------------------------------------------------------------------------------


_LABELS = {f"rank{k}": f"Rank-{k}" for k in (1, 5, 10, 20)}


@dataclass(frozen=True)
class ImportedStudy(Study):
    """Runs of other people under one name. A `config` is what their logs printed, flat and as text."""

    imported: bool = True

    def runs(self) -> list[Any]:
        """Nothing is planned."""
        return []

    @cached_property
    def flat_base(self) -> dict[str, Any]:
        return self.base  # type: ignore[return-value]

    def differences(self, variant: str) -> dict[str, tuple[Any, Any]]:
        """Settings in which a variant differs from the baseline: (there, here)."""
        base, config = self.flat_base, cast("dict[str, Any]", self.variants[variant].config)
        pairs = {key: (base.get(key), config.get(key)) for key in {**base, **config}}
        return {key: (there, here) for key, (there, here) in pairs.items() if there != here}


def imported_names(runs_dir: Path | str) -> list[str]:
    """Names of all studies that have imported runs."""
    names = {
        str(RunFolder(file.parent).run().get("study", file.parents[2].name))
        for file in (Path(runs_dir) / IMPORTED).glob("*/*/seed*/run.json")
    }
    return sorted(names)


def imported_study(name: str, runs_dir: Path | str) -> ImportedStudy:
    """The imported runs called `name`.

    Raises:
        LogError: nothing was imported under that name.
    """
    place = Path(runs_dir) / IMPORTED / slug(name)
    records = [RunFolder(file.parent).run() for file in sorted(place.glob("*/seed*/run.json"))]
    records = [record for record in records if record.get("imported")]
    if not records:
        known = imported_names(runs_dir)
        hint = did_you_mean(name, known) if known else "Import logs first: sdtps import"
        raise LogError(f"{place}: no imported runs. {hint}")
    by_variant: dict[str, dict[str, Any]] = {}
    for record in records:
        by_variant.setdefault(str(record["variant"]), record)
    # The baseline is the variant that is called so, by its label or by its name, or else the first.
    labelled = [name for name, record in by_variant.items() if record.get("label") == "baseline"]
    named = [name for name in by_variant if "baseline" in name.lower()]
    baseline = next(iter([*labelled, *named, *by_variant]))
    configs = {v: _texts(record.get("imported_config")) for v, record in by_variant.items()}
    # Components that are on in some variants and off in others.
    switched = {v: record["imported"].get("components") or {} for v, record in by_variant.items()}
    switches = [
        component
        for component in dict.fromkeys(name for found in switched.values() for name in found)
        if len({bool(found.get(component)) for found in switched.values()}) > 1
    ]
    variants = {
        variant: Variant(
            name=variant,
            slug=slug(variant),
            label=str(record.get("label") or variant),
            config=configs[variant],  # type: ignore[arg-type]
            overrides={k: v for k, v in configs[variant].items() if v != configs[baseline].get(k)},
            resources=Resources(),
            components={s: bool(switched[variant].get(s)) for s in switches},
            source=f"{record['imported'].get('source_folder')}/{record['imported'].get('source')}",
            note="; ".join(record["imported"].get("notes") or []),
        )
        for variant, record in by_variant.items()
    }
    metrics = _metrics(records)
    facts = [record["imported"]["facts"] for record in records]
    datasets = sorted({str(fact.get("dataset") or "") for fact in facts} - {""})
    tables = [TableSpec(name="main", title="Scores", epoch="both")] if metrics else []
    if metrics and switches:
        tables.append(TableSpec(name="components", kind="components", title="Components"))
    figures = [FigureSpec(name=name, metric=name) for name in list(metrics)[:1]]
    if any(fact.get("max_loss") is not None for fact in facts):
        figures.insert(0, FigureSpec(name="loss", metric="loss", title="Training loss"))
    digests = "\0".join(sorted(str(record["imported"].get("sha256")) for record in records))
    return ImportedStudy(
        name=name,
        path=place,
        task="reid",
        variants=variants,
        seeds=tuple(sorted({int(record.get("seed", 0)) for record in records})),
        baseline=baseline,
        base=configs[baseline],  # type: ignore[arg-type]
        varies=(),
        resources=Resources(),
        metrics=metrics,
        digest=files.digest(digests.encode())[:16],
        title=f"{name} ({', '.join([*datasets, 'imported'])})",
        tables=tuple(tables),
        figures=tuple(figures),
        reported=(),
        notes="Read from other people's logs; the seed and what selected the best epoch are theirs.",
    )


def _texts(config: Any) -> dict[str, str]:
    return {str(key): str(value) for key, value in (config or {}).items()}


def _metrics(records: Sequence[dict[str, Any]]) -> dict[str, MetricSpec]:
    """Scores that any run was evaluated on; other heads than the main one are left to the curves."""
    described: dict[str, dict[str, Any]] = {}
    printed: dict[str, list[float]] = {}
    for record in records:
        imported = record["imported"]
        for name, value in {**(imported.get("final") or {}), **(imported.get("best") or {})}.items():
            if isinstance(value, float) and "/" not in name:
                described.setdefault(name, (imported.get("metrics") or {}).get(name) or {})
                printed.setdefault(name, []).append(value)
    found = {}
    for name, metric in described.items():
        share = metric.get("unit") in ("percent", "fraction")
        direction = metric.get("direction") or direction_of(name)
        found[name] = MetricSpec(
            direction=direction if direction in ("up", "down") else None,
            digits=_digits(printed[name], 2 if share else 0),
            unit="%" if share else "",
            label=_LABELS.get(name),
        )
    return found


def _digits(values: Sequence[float], shift: int) -> int:
    """Decimals that the logs print, after `shift` digits go to the per cent: between 1 and 4."""
    exponents = [Decimal(repr(value)).scaleb(shift).normalize().as_tuple().exponent for value in values]
    return min(max([1, *(-e for e in exponents if isinstance(e, int))]), 4)
