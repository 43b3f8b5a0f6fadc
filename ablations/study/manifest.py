"""A study's YAML becomes a `Study`, or one error that names every mistake with its line.

Nothing is queued, and nothing outside the manifest, its base file and its CSV files is read.
The schema is described in ablations/README.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ValidationError

from ablations.study.attribution import design
from ablations.study.grid import fields_of, fill, read_rows, select_rows
from ablations.study.labels import unprintable
from ablations.study.mistakes import Source
from ablations.study.model import RunSpec, Study, Variant
from ablations.study.resolve import Resolver
from ablations.study.schema import (
    AttributionSpec,
    BudgetSpec,
    FigureSpec,
    FileName,
    MetricSpec,
    Reported,
    ReportedCsv,
    Resources,
    RoundsSpec,
    Seeds,
    TableSpec,
)
from ablations.study.variants import Draft, Text, VariantReader
from sdtps.config import AnyConfig, ProgramConfig, ReidConfig, config_keys, resolved
from sdtps.config.common import Frozen
from sdtps.config.identity import flatten
from sdtps.config.load import tuples
from sdtps.config.wording import sentences, shown
from sdtps.config.yaml12 import KeyPath
from sdtps.system.errors import ManifestError, did_you_mean

__all__ = ["RunSpec", "Study", "Variant", "load_study"]

Section = TypeVar("Section", bound=BaseModel)
Entries = list[tuple[KeyPath, Any]]  # of a list in the manifest, each with its place


class _Header(Frozen):
    """The keys of a manifest that are values; the others are sections, read one by one."""

    study: FileName
    baseline: Text
    seeds: Seeds
    task: Literal["reid", "retrieval", "command"] | None = None
    base: Text | None = None
    varies: tuple[str, ...] | None = ()  # None: with a mistake, which is told already
    title: str | None = None
    notes: str = ""


class _Metric(MetricSpec):
    direction: Literal["up", "down"]  # here it has to be said


# Tables that analysis makes for every study, as STUDY-NAME.
MADE_FOR_EVERY_STUDY = ("variants", "compute", "audit")
_KEYS = (
    *_Header.model_fields,
    *("overrides", "variants", "grid", "resources", "metrics", "tables", "figures", "reported"),
    *("attributions", "rounds", "budget"),
)
# What is printed, beside the names of variants, components and metrics.
_TEXTS = frozenset({"title", "notes", "label", "unit", "source", "note", "caption"})


def load_study(path: Path | str, *, data_root: Path | str | None = None) -> Study:
    """The study that the manifest at `path` describes.

    Args:
        data_root: written into configurations that name no `data.root` of their own and generate no
            data; where data lie is not part of a run's identity.

    Raises:
        ManifestError: every mistake at once, each with file, line and the nearest allowed word.
    """
    source = Source.read(Path(path))
    tree = source.document.data
    if not isinstance(tree, dict):
        raise ManifestError(
            f"{path}: a study is a mapping with keys {', '.join(_KEYS)}; found {shown(tree)}"
        )
    root = None if data_root is None else str(Path(data_root).absolute())
    return _Reader(source, tree).study(root)


class _Reader:
    """Reads one manifest from top to bottom, noting mistakes and going on."""

    def __init__(self, source: Source, tree: dict[str, Any]) -> None:
        self.source, self.tree = source, tree

    def study(self, data_root: str | None) -> Study:
        for key in self.tree:
            if key not in _KEYS:
                self.source.mistake((key,), f"unknown key. {did_you_mean(key, _KEYS)}")
        maybe_misspelt = "varies" not in self.tree and not self.tree.keys() <= set(_KEYS)
        values = {k: v for k, v in self.tree.items() if k in _Header.model_fields}
        values["varies"] = [] if values.get("varies") is None else values["varies"]
        header = self.source.check((), _Header, values, study="", baseline="", seeds=(), varies=None)
        assert header is not None  # without the keys that have a mistake
        resolver = Resolver(
            self.source,
            task=header.task,
            base=header.base,
            varies=None if maybe_misspelt else header.varies,
            data_root=data_root,
        )
        resources = self._section("resources", Resources) or Resources()
        reader = VariantReader(self.source)
        drafts = reader.drafts()
        variants = reader.variants(drafts, resolver, resources)
        metrics = self._metrics()
        tables = self._entries("tables", TableSpec)
        figures = self._entries("figures", FigureSpec)
        attributions = self._entries("attributions", AttributionSpec)
        self._check_files(header.study, tables, MADE_FOR_EVERY_STUDY)
        self._check_files(header.study, figures, ())
        reported, csv_digest = read_reported(self.source, self.tree.get("reported"))
        configs = [resolver.base, *(variant.config for variant in variants)]
        keys = config_keys(resolver.task).keys() | {k for c in configs for k in flatten(resolved(c))}
        allowed = [draft.name for draft in drafts], metrics, sorted(keys)
        check_references(self.source, *allowed, tables, figures, reported, attributions)
        check_logged(self.source, resolver.task, configs, metrics, figures)
        self._check_printable(metrics, drafts)
        rounds = self._section("rounds", RoundsSpec)
        if rounds and header.seeds and len(header.seeds) != rounds.looks[-1]:
            text = f"end at {rounds.looks[-1]} seeds, and 'seeds' lists {len(header.seeds)}"
            self.source.mistake(("rounds", "looks"), f"{text}: list as many")
        budget = self._section("budget", BudgetSpec)
        reader.check_names(drafts)
        reader.check_components(tables, drafts)
        self.source.raise_if_any()
        texts = [self.source.document.text, resolver.text, csv_digest]
        made = Study(
            name=header.study,
            path=self.source.file,
            task=resolver.task,
            seeds=header.seeds,
            baseline=header.baseline,
            base=resolver.base,
            varies=header.varies or (),
            variants={v.name: v for v in variants},
            resources=resources,
            metrics=metrics,
            tables=tuple(t for _, t in tables),
            figures=tuple(f for _, f in figures),
            reported=tuple(r for _, r in reported),
            title=header.title or header.study,
            notes=header.notes,
            digest=hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16],
            attributions=tuple(a for _, a in attributions),
            rounds=rounds,
            gpu_hours=None if budget is None else budget.gpu_hours,
        )
        for path, spec in attributions:
            try:
                design(made, spec)
            except ManifestError as error:
                self.source.mistake(path, str(error).partition(": ")[2])
        self.source.raise_if_any()
        return made

    # -- parts ----------------------------------------------------------------------------------

    def _section(self, key: str, model: type[Section]) -> Section | None:
        value = self.tree.get(key)
        return None if value is None else self.source.check((key,), model, value)

    def _entries(self, key: str, model: type[BaseModel]) -> Entries:
        items = enumerate(self.source.list_of(key, self.tree.get(key)))
        found = [((key, i), self.source.check((key, i), model, item)) for i, item in items]
        return [(path, entry) for path, entry in found if entry is not None]

    def _metrics(self) -> dict[str, MetricSpec]:
        value = self.tree.get("metrics") or {}
        if not isinstance(value, dict):
            text = f"must map each metric to its direction, digits, unit; found {shown(value)}"
            self.source.mistake(("metrics",), text)
            return {}
        found = {k: self.source.check(("metrics", k), _Metric, v) for k, v in value.items()}
        # A metric with a mistake still exists: tables that name it are not wrong as well.
        return {k: v or MetricSpec(direction="up") for k, v in found.items()}

    def _check_files(self, study: str, entries: Entries, made: tuple[str, ...]) -> None:
        """Tables (or figures) are files of their own: STUDY-NAME, or NAME where it says the study."""
        files = {f"{study}-{name}".casefold(): f"{name}, made for every study" for name in made}
        for path, entry in entries:
            file = entry.name if entry.name.startswith(study) else f"{study}-{entry.name}"
            other = files.get(file.casefold())
            if other is not None:
                self.source.mistake((*path, "name"), f"'{entry.name}' would share files with {other}")
            files[file.casefold()] = f"'{entry.name}'"

    def _check_printable(self, metrics: dict[str, MetricSpec], drafts: list[Draft]) -> None:
        """Texts that reach the paper hold only characters that LaTeX can print."""
        texts: list[tuple[KeyPath, str]] = []
        for key in ("title", "notes", "metrics", "variants", "grid", "tables", "figures"):
            texts += _texts({key: self.tree.get(key)}, ())
        texts += [(("metrics", name), name) for name, spec in metrics.items() if not spec.label]
        texts += [(draft.path, draft.name) for draft in drafts if not draft.about.label]
        for draft in drafts:
            path = (*draft.path, "components")
            texts += [((*path, name), f"{name} {has}") for name, has in draft.about.components.items()]
        for place, text in texts:
            if found := unprintable(text):
                told = f"LaTeX cannot print {', '.join(found)}: write it in Latin letters"
                self.source.mistake(place, told)


def _texts(tree: Any, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    """Every text of the manifest that is printed."""
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        if isinstance(value, str) and key in _TEXTS:
            yield (*path, key), value
        elif isinstance(value, (dict, list)):
            yield from _texts(value, (*path, key))


# -- names that one part uses and another declares ----------------------------------------------------


# What runs log (tests/ablations/test_logged_metrics.py compares them with the tasks themselves).
EVALUATED = {
    "reid": ("mAP", "rank1", "rank5", "rank10"),
    "retrieval": (*(f"{d}_r{k}" for d in ("i2t", "t2i") for k in (1, 5, 10)), "rsum"),
}
# In training; parts follow a slash, such as loss/sdtps_id and grad_norm/score_mlp.
TRAINED = (
    *("loss", "epoch_loss", "running_loss", "accuracy", "lr", "grad_norm", "amp_scale", "amp_skipped"),
    *("images_per_s", "memory_mib"),
)
# Of retrieval's evaluation: the dense text, and COCO's folds.
RETRIEVAL_CONDITIONS = ("own", "shuffled", "none", "1k")


def check_logged(
    source: Source,
    task: str,
    configs: list[AnyConfig],
    metrics: dict[str, MetricSpec],
    figures: Entries,
) -> None:
    """Metrics that no run of the study will log: a misspelt one would be missed after the training."""
    if any(isinstance(config, ProgramConfig) for config in configs):
        return  # another program logs what it likes
    evaluated = EVALUATED[task]
    conditions = {c for config in configs if isinstance(config, ReidConfig) for c in config.eval.also}
    if task == "retrieval":
        conditions = set(RETRIEVAL_CONDITIONS)
    logged: list[tuple[KeyPath, str, tuple[str, ...]]]
    logged = [(("metrics", name), name, evaluated) for name in metrics]
    curves = [(path, figure) for path, figure in figures if figure.kind == "curves"]
    logged += [((*path, "metric"), curve.metric, (*evaluated, *TRAINED)) for path, curve in curves]
    for path, name, allowed in logged:
        bare, *words = name.removeprefix("dev_").split("@")
        source.expect(path, bare.partition("/")[0], allowed, "is logged by no run")
        for word in words:
            # Scored after training: sdtps evaluate RUN --data-root FOLDER --as NAME.
            if not word.startswith("on_"):
                text = "is no condition of the study's evaluation"
                source.expect(path, word, conditions, text + ": see eval.also" * (task == "reid"))


def check_references(
    source: Source,
    variants: list[str],
    metrics: dict[str, MetricSpec],
    keys: list[str],
    tables: Entries,
    figures: Entries,
    reported: Entries,
    attributions: Entries,
) -> None:
    """Variants, metrics and configuration keys that tables, figures and reported numbers name.

    Args:
        keys: of the configurations, a program's own settings among them.
    """
    variant = variants, "is not a variant"
    metric = metrics, "is not among 'metrics'"
    key = keys, "is not a configuration key"
    compared = [(path, entry) for path, entry in reported if entry.variant is not None]
    drawn = [(path, figure) for path, figure in figures if figure.kind != "curves"]
    for entries, names in (
        (tables, {"rows": variant, "metrics": metric, "baseline": variant}),
        (tables, {"axis": key, "group_by": key}),
        (figures, {"variants": variant, "in_every_panel": variant}),
        (figures, {"panel_by": key, "axis": key}),
        (drawn, {"metric": metric}),
        (reported, {"variant": variant, "values": metric}),
        (compared, {"settings": key}),
        (attributions, {"good": variant, "broken": variant, "metric": metric}),
    ):
        for path, entry in entries:
            for field, (allowed, otherwise) in names.items():
                value = getattr(entry, field)
                if isinstance(value, str):
                    source.expect((*path, field), value, allowed, otherwise)
                elif value is not None:
                    for i, name in enumerate(value):
                        place = name if isinstance(value, dict) else i
                        source.expect((*path, field, place), name, allowed, otherwise)
    for path, table in tables:
        if not metrics:
            source.mistake(path, "a table needs 'metrics' with their directions")
        if table.kind == "conditions" and not any("@" in m for m in table.metrics or metrics):
            text = "kind conditions has a row for each condition of its metrics, and none names one: "
            text += "declare metrics such as mAP@missing_r, and eval.also: [missing_r]"
            source.mistake(path, text)
        if table.kind == "reported" and not reported:
            source.mistake(path, "kind reported, but the study has no 'reported' numbers")


def read_reported(source: Source, value: Any) -> tuple[Entries, str]:
    """Entries of `reported:` with CSV references looked up, and a digest of the CSV files."""
    entries: Entries = []
    files: dict[str, list[dict[str, str]] | None] = {}
    for i, item in enumerate(source.list_of("reported", value)):
        path: KeyPath = ("reported", i)
        if isinstance(item, dict) and "csv" in item:
            reference = source.check(path, ReportedCsv, item)
            if reference is not None:
                if reference.csv not in files:
                    files[reference.csv] = read_rows(source, (*path, "csv"), reference.csv)
                found = _look_up(source, path, reference, files[reference.csv])
                entries += [(path, entry) for entry in found]
        elif (entry := source.check(path, Reported, item)) is not None:
            entries.append((path, entry))
    digest = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest() if files else ""
    return entries, digest


def _look_up(
    source: Source, path: KeyPath, reference: ReportedCsv, rows: list[dict[str, str]] | None
) -> Iterator[Reported]:
    """One entry for the one row; for each row with values, where the variant is a template."""
    fields = fields_of(reference.variant)
    named = {
        "columns": reference.columns.values(),
        "variant": fields,
        "source": fields_of(reference.source),
    }
    found = select_rows(source, path, rows, named, reference.where)
    if found is None:
        return
    if fields:
        found = [row for row in found if all(row[c] for c in reference.columns.values())]
    if len(found) != 1 and not (fields and found):
        text = f"selects {len(found)} rows of {reference.csv}; it must select exactly one"
        source.mistake((*path, "where"), text)
        return
    for row in found:
        entry = {
            **reference.model_dump(exclude={"csv", "where", "columns"}),
            "variant": reference.variant and fill(reference.variant, row),
            "dataset": reference.dataset or row.get("dataset") or None,
            "source": fill(reference.source or "", row) or row.get("source") or reference.csv,
            "values": {m: row[c] for m, c in reference.columns.items()},
        }
        try:
            yield Reported.model_validate(tuples(entry))
        except ValidationError as error:
            for inside, text in sentences(error, Reported, entry):
                where = ".".join(map(str, inside))
                source.mistake(path, f"{where}: {text}" if where else text)
