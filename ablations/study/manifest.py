"""A study's YAML becomes a `Study`, or one error that names every mistake with its line.

Nothing is queued, and nothing outside the manifest, its base file and its CSV files is read.
The schema is described in ablations/README.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError

from ablations.study.attribution import design
from ablations.study.grid import fields_of, fill, known_columns, read_rows
from ablations.study.labels import unprintable
from ablations.study.mistakes import Mistakes, Source
from ablations.study.model import RunSpec, Study, Variant, is_safe
from ablations.study.resolve import Resolver
from ablations.study.schema import (
    AttributionSpec,
    BudgetSpec,
    FigureSpec,
    MetricSpec,
    Reported,
    ReportedCsv,
    Resources,
    RoundsSpec,
    TableSpec,
)
from ablations.study.variants import Draft, Text, VariantReader
from sdtps.config import AnyConfig, CommandConfig, ReidConfig, config_keys, resolved
from sdtps.config.common import Frozen
from sdtps.config.identity import flatten
from sdtps.config.load import TASKS, tuples
from sdtps.config.wording import sentences, shown
from sdtps.config.yaml12 import KeyPath
from sdtps.system.errors import ManifestError, did_you_mean

__all__ = ["RunSpec", "Study", "Variant", "load_study"]

Section = TypeVar("Section", bound=BaseModel)
Seed = Annotated[int, Field(ge=0, lt=2**32)]  # what NumPy's generators take


class _Header(Frozen):
    """The keys of a manifest that are values; the others are sections, read one by one."""

    study: Text
    baseline: Text
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1)]
    task: Literal["reid", "retrieval", "command"] | None = None
    base: Text | None = None
    varies: tuple[str, ...] = ()
    title: str | None = None
    notes: str = ""


# Tables that analysis makes for every study, as STUDY-NAME.
MADE_FOR_EVERY_STUDY = ("variants", "compute", "audit")
_SECTIONS = (
    *("overrides", "variants", "grid", "resources", "metrics", "tables", "figures", "reported"),
    *("attributions", "rounds", "budget"),
)
_KEYS = frozenset([*_Header.model_fields, *_SECTIONS])


def load_study(path: Path | str, *, data_root: Path | str | None = None) -> Study:
    """The study that the manifest at `path` describes.

    Args:
        data_root: written into configurations that name no `data.root` of their own and generate no
            data; where data lie is not part of a run's identity.

    Raises:
        ManifestError: every mistake at once, each with file, line and the nearest allowed word.
    """
    path = Path(path)
    if not path.exists() and not path.is_symlink() and (near := _studies_near(path)):
        # `gumbel` and `gumbel.yml` are meant as `ablations/gumbel.yaml`
        meant = next((name for name in near if Path(name).stem == path.stem), str(path))
        raise ManifestError(f"{path}: no such study. {did_you_mean(meant, near)}")
    source = Source.read(path)
    tree = source.document.data
    if not isinstance(tree, dict):
        keys = ", ".join([*_Header.model_fields, *_SECTIONS])
        raise ManifestError(f"{path}: a study is a mapping with keys {keys}; found {shown(tree)}")
    return _Reader(path, source, tree, data_root).study()


def _studies_near(path: Path) -> list[str]:
    """Manifests beside `path`; for a bare name where studies are kept, if there is none here."""
    here = sorted(map(str, path.parent.glob("*.yaml")))
    return here or (
        sorted(map(str, Path("ablations").glob("*.yaml"))) if path.name == str(path) else []
    )


class _Reader:
    """Reads one manifest from top to bottom, noting mistakes and going on."""

    def __init__(self, path: Path, source: Source, tree: dict[str, Any], data_root: Any) -> None:
        self.path, self.source, self.tree = path, source, tree
        self.data_root = None if data_root is None else str(Path(data_root).absolute())
        self.mistakes = Mistakes()
        self.mistakes.add_problems(source)

    def study(self) -> Study:
        self._unknown_keys()
        header = self._header()
        resolver = Resolver(
            self.mistakes, self.path, self.source, header, self.tree, self.data_root, _KEYS
        )
        resources = self._section("resources", Resources) or Resources()
        reader = VariantReader(self.mistakes, self.source, self.tree)
        drafts = reader.drafts()
        variants = reader.variants(drafts, resolver, resources)
        names = [d.name for d in drafts]
        metrics = self._metrics()
        tables = self._entries("tables", TableSpec)
        figures = self._entries("figures", FigureSpec)
        self._check_files("tables", header.get("study") or "", tables)
        self._check_files("figures", header.get("study") or "", figures)
        reported, csv_digest = read_reported(self.mistakes, self.source, self.tree.get("reported"))
        configs = [resolver.base, *(variant.config for variant in variants)]
        keys = config_keys(resolver.task).keys() | {k for c in configs for k in flatten(resolved(c))}
        check_references(
            self.mistakes, self.source, sorted(keys), names, metrics, tables, figures, reported
        )
        check_logged(self.mistakes, self.source, resolver.task, configs, metrics, figures)
        self._printable(header, metrics, drafts, tables, figures)
        rounds = self._section("rounds", RoundsSpec)
        if rounds and header["seeds"] and len(header["seeds"]) != rounds.looks[-1]:
            listed = len(header["seeds"])
            text = f"end at {rounds.looks[-1]} seeds, and 'seeds' lists {listed}: list as many"
            self.mistakes.add(self.source, ("rounds", "looks"), text)
        budget = self._section("budget", BudgetSpec)
        attributions = self._attributions(metrics)
        reader.check_names(header, drafts)
        reader.check_components(tables, drafts)
        self.mistakes.raise_if_any(self.path)
        digest = hashlib.sha256(
            "\0".join([self.source.document.text, resolver.text, csv_digest]).encode()
        )
        made = Study(
            name=header["study"],
            path=self.path,
            task=resolver.task,
            seeds=header["seeds"],
            baseline=header["baseline"],
            base=resolver.base,
            varies=header["varies"],
            variants={v.name: v for v in variants},
            resources=resources,
            metrics=metrics,
            tables=tuple(t for _, t in tables),
            figures=tuple(f for _, f in figures),
            reported=tuple(r for _, r in reported),
            title=header["title"] or header["study"],
            notes=header["notes"],
            digest=digest.hexdigest()[:16],
            attributions=attributions,
            rounds=rounds,
            gpu_hours=None if budget is None else budget.gpu_hours,
        )
        for i, spec in enumerate(made.attributions):
            try:
                design(made, spec)
            except ManifestError as error:
                self.mistakes.add(self.source, ("attributions", i), str(error).partition(": ")[2])
        self.mistakes.raise_if_any(self.path)
        return made

    def _attributions(self, metrics: dict[str, MetricSpec]) -> tuple[AttributionSpec, ...]:
        value = self.tree.get("attributions")
        if value is None:
            return ()
        if not isinstance(value, list):
            self.mistakes.add(self.source, ("attributions",), f"must be a list; found {shown(value)}")
            return ()
        found = []
        for i, item in enumerate(value):
            entry = self.mistakes.check(self.source, ("attributions", i), AttributionSpec, item)
            if entry is None:
                continue
            if entry.metric is not None and entry.metric not in metrics:
                text = f"'{entry.metric}' is not among 'metrics'. {did_you_mean(entry.metric, metrics)}"
                self.mistakes.add(self.source, ("attributions", i, "metric"), text)
            found.append(entry)
        return tuple(found)

    def _printable(
        self,
        header: dict[str, Any],
        metrics: dict[str, MetricSpec],
        drafts: list[Draft],
        tables: list[tuple[KeyPath, Any]],
        figures: list[tuple[KeyPath, Any]],
    ) -> None:
        """Texts that reach the paper hold only characters that LaTeX can print."""
        texts: list[tuple[KeyPath, Any]] = [((k,), header.get(k)) for k in ("title", "notes")]
        for name, metric in metrics.items():
            own = [("label", metric.label), ("unit", metric.unit)]
            texts += [(("metrics", name, key), text) for key, text in own]
            if not metric.label:
                texts.append((("metrics", name), name))
        for draft in drafts:
            texts += [((*draft.path, k), getattr(draft.about, k)) for k in ("label", "source", "note")]
            if not draft.about.label:
                texts.append((draft.path, draft.name))
            for component, has in draft.about.components.items():
                texts.append(((*draft.path, "components", component), f"{component} {has}"))
        for path, entry in (*tables, *figures):
            texts += [((*path, k), getattr(entry, k, None)) for k in ("title", "caption", "notes")]
        for path, text in texts:
            if text and (found := unprintable(text)):
                told = f"LaTeX cannot print {', '.join(found)}: write it in Latin letters"
                self.mistakes.add(self.source, path, told)

    # -- parts ----------------------------------------------------------------------------------

    def _unknown_keys(self) -> None:
        for key in self.tree:
            if key not in _KEYS:
                self.mistakes.add(self.source, (key,), f"unknown key. {did_you_mean(key, _KEYS)}")

    def _header(self) -> dict[str, Any]:
        """Header values; those with mistakes get a harmless default so that reading can go on."""
        values = {k: v for k, v in self.tree.items() if k in _Header.model_fields}
        header = self.mistakes.check(self.source, (), _Header, values)
        if header is None:
            fallback = {k: f.default for k, f in _Header.model_fields.items() if not f.is_required()}
            good: dict[str, Any] = {
                k: v for k, v in values.items() if k in ("study", "baseline") and isinstance(v, str)
            }
            if isinstance(values.get("varies"), list):
                good["varies"] = tuple(v for v in values["varies"] if isinstance(v, str))
            if isinstance(values.get("base"), str) and values["base"]:
                good["base"] = values["base"]
            if values.get("task") in list(TASKS):
                good["task"] = values["task"]
            seeds = values.get("seeds")
            good["seeds"] = tuple(seeds) if isinstance(seeds, list) else ()
            return {**fallback, **good}
        if not is_safe(header.study):
            text = f"'{header.study}' names a folder: letters, digits and _ . - only, 80 at most"
            self.mistakes.add(self.source, ("study",), text)
        for i, seed in enumerate(header.seeds):
            if seed in header.seeds[:i]:
                text = f"seed {seed} is repeated: each seed is one replicate"
                self.mistakes.add(self.source, ("seeds", i), text)
        return dict(header)

    def _section(self, key: str, model: type[Section]) -> Section | None:
        value = self.tree.get(key)
        return None if value is None else self.mistakes.check(self.source, (key,), model, value)

    def _metrics(self) -> dict[str, MetricSpec]:
        value = self.tree.get("metrics")
        if value is None:
            return {}
        if not isinstance(value, dict):
            text = f"must map each metric to its direction, digits, unit; found {shown(value)}"
            self.mistakes.add(self.source, ("metrics",), text)
            return {}
        found = {
            k: self.mistakes.check(self.source, ("metrics", k), MetricSpec, v) for k, v in value.items()
        }
        for name, spec in found.items():
            if spec is not None and spec.direction is None:
                text = "must say which way is better: up or down"
                self.mistakes.add(self.source, ("metrics", name, "direction"), text)
        # A metric with a mistake still exists: tables that name it are not wrong as well.
        return {k: v or MetricSpec(direction="up") for k, v in found.items()}

    def _entries(self, key: str, model: type[Any]) -> list[tuple[KeyPath, Any]]:
        value = self.tree.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            self.mistakes.add(self.source, (key,), f"must be a list; found {shown(value)}")
            return []
        entries: list[tuple[KeyPath, Any]] = []
        for i, item in enumerate(value):
            entry = self.mistakes.check(self.source, (key, i), model, item)
            if entry is None:
                continue
            if not is_safe(entry.name):
                text = f"'{entry.name}' names a file: letters, digits and _ . - only"
                self.mistakes.add(self.source, (key, i, "name"), text)
            entries.append(((key, i), entry))
        return entries

    def _check_files(self, key: str, study: str, entries: list[tuple[KeyPath, Any]]) -> None:
        """Tables (or figures) are files of their own: STUDY-NAME, or NAME where it says the study."""
        made = MADE_FOR_EVERY_STUDY if key == "tables" else ()
        files: dict[str, str] = {}
        for path, entry in entries:
            name = entry.name
            file = (name if name.startswith(study) else f"{study}-{name}").casefold()
            text = None
            if file in [f"{study}-{word}".casefold() for word in made]:
                text = f"'{name}' is made for every study by itself: give this table another name"
            elif file in files:
                same = files[file].casefold() == name.casefold()
                text = f"'{name}' is used twice"
                if not same:
                    text = f"'{name}' would share files with '{files[file]}'"
            if text is not None:
                self.mistakes.add(self.source, (*path, "name"), text)
            files.setdefault(file, name)


# -- names that one part uses and another declares ----------------------------------------------------


# What runs log (tests/ablations/test_logged_metrics.py compares them with the tasks themselves).
EVALUATED = {
    "reid": ("mAP", "rank1", "rank5", "rank10"),
    "retrieval": (*(f"{d}_r{k}" for d in ("i2t", "t2i") for k in (1, 5, 10)), "rsum"),
}
# In training; parts follow a slash, such as loss/sdtps_id and grad_norm/score_mlp.
TRAINED = (
    "loss",
    "epoch_loss",
    "running_loss",
    "accuracy",
    "lr",
    "grad_norm",
    "amp_scale",
    "amp_skipped",
    "images_per_s",
    "memory_mib",
)
# Of retrieval's evaluation: the dense text, and COCO's folds.
RETRIEVAL_CONDITIONS = ("own", "shuffled", "none", "1k")


def check_logged(
    mistakes: Mistakes,
    source: Source,
    task: str,
    configs: list[AnyConfig],
    metrics: dict[str, MetricSpec],
    figures: list[tuple[KeyPath, FigureSpec]],
) -> None:
    """Metrics that no run of the study will log: a misspelt one would be missed after the training."""
    if task not in EVALUATED or any(isinstance(config, CommandConfig) for config in configs):
        return  # another program logs what it likes
    evaluated = EVALUATED[task]
    conditions = list(RETRIEVAL_CONDITIONS)
    if task == "reid":
        ours = [config for config in configs if isinstance(config, ReidConfig)]
        conditions = sorted({condition for config in ours for condition in config.eval.also})

    def check(path: KeyPath, name: str, allowed: tuple[str, ...]) -> None:
        bare, _, condition = name.removeprefix("dev_").partition("@")
        if bare.partition("/")[0] not in allowed:
            mistakes.add(source, path, f"no run logs '{name}'. {did_you_mean(bare, allowed)}")
        for word in condition.split("@") if condition else ():
            # Scored after training: sdtps evaluate RUN --data-root FOLDER --as NAME.
            if word not in conditions and not word.startswith("on_"):
                text = f"no run is evaluated under '{word}'. {did_you_mean(word, conditions)}"
                more = " Conditions of re-identification are listed in eval.also." * (task == "reid")
                mistakes.add(source, path, f"{text}{more}")

    for name in metrics:
        check(("metrics", name), name, evaluated)
    for path, figure in figures:
        if figure.kind == "curves":
            check((*path, "metric"), figure.metric, (*evaluated, *TRAINED))


def check_references(
    mistakes: Mistakes,
    source: Source,
    keys: list[str],
    variants: list[str],
    metrics: dict[str, MetricSpec],
    tables: list[tuple[KeyPath, TableSpec]],
    figures: list[tuple[KeyPath, FigureSpec]],
    reported: list[tuple[KeyPath, Reported]],
) -> None:
    """Variants, metrics and configuration keys that tables, figures and reported numbers name.

    Args:
        keys: of the configurations, a program's own settings among them.
    """

    def variant(path: KeyPath, name: str) -> None:
        if variants and name not in variants:
            mistakes.add(source, path, f"'{name}' is not a variant. {did_you_mean(name, variants)}")

    def metric(path: KeyPath, name: str) -> None:
        if name not in metrics:
            text = f"'{name}' is not among 'metrics'. {did_you_mean(name, metrics)}"
            mistakes.add(source, path, text)

    def key(path: KeyPath, name: str | None) -> None:
        if name is not None and name not in keys:
            text = f"'{name}' is not a configuration key. {did_you_mean(name, keys)}"
            mistakes.add(source, path, text)

    for path, table in tables:
        for i, name in enumerate(table.rows):
            variant((*path, "rows", i), name)
        for i, name in enumerate(table.metrics):
            metric((*path, "metrics", i), name)
        if table.baseline is not None:
            variant((*path, "baseline"), table.baseline)
        key((*path, "axis"), table.axis)
        key((*path, "group_by"), table.group_by)
        if not metrics:
            mistakes.add(source, path, "a table needs 'metrics' with their directions")
        if table.kind == "conditions" and not any("@" in m for m in table.metrics or metrics):
            text = "kind conditions has a row for each condition of its metrics, and none names one: "
            text += "declare metrics such as mAP@missing_r, and eval.also: [missing_r]"
            mistakes.add(source, path, text)
        if table.kind == "reported" and not reported:
            mistakes.add(source, path, "kind reported, but the study has no 'reported' numbers")
    for path, figure in figures:
        for i, name in enumerate(figure.variants):
            variant((*path, "variants", i), name)
        for i, name in enumerate(figure.in_every_panel):
            variant((*path, "in_every_panel", i), name)
        key((*path, "panel_by"), figure.panel_by)
        key((*path, "axis"), figure.axis)
        key((*path, "axis_y"), figure.axis_y)
        if figure.kind != "curves":
            metric((*path, "metric"), figure.metric)
    for path, entry in reported:
        if entry.variant is not None:
            variant((*path, "variant"), entry.variant)
            for name in entry.settings:
                key((*path, "settings", name), name)
        for name in entry.values:
            metric((*path, "values", name), name)


def read_reported(
    mistakes: Mistakes, source: Source, value: Any
) -> tuple[list[tuple[KeyPath, Reported]], str]:
    """Entries of `reported:` with CSV references looked up, and a digest of the CSV files."""
    if value is None:
        return [], ""
    if not isinstance(value, list):
        mistakes.add(source, ("reported",), f"must be a list; found {shown(value)}")
        return [], ""
    entries: list[tuple[KeyPath, Reported]] = []
    files: dict[str, list[dict[str, str]] | None] = {}
    for i, item in enumerate(value):
        path: KeyPath = ("reported", i)
        if isinstance(item, dict) and "csv" in item:
            reference = mistakes.check(source, path, ReportedCsv, item)
            if reference is not None:
                if reference.csv not in files:
                    files[reference.csv] = read_rows(mistakes, source, (*path, "csv"), reference.csv)
                found = _look_up(mistakes, source, path, reference, files[reference.csv])
                entries += [(path, entry) for entry in found]
        elif (entry := mistakes.check(source, path, Reported, item)) is not None:
            entries.append((path, entry))
    digest = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest() if files else ""
    return entries, digest


def _look_up(
    mistakes: Mistakes,
    source: Source,
    path: KeyPath,
    reference: ReportedCsv,
    rows: list[dict[str, str]] | None,
) -> Iterator[Reported]:
    """One entry for the one row; for each row with values, where the variant is a template."""
    wanted: list[tuple[KeyPath, str]] = [(("where", c), c) for c in reference.where]
    wanted += [(("columns", m), c) for m, c in reference.columns.items()]
    fields = fields_of(reference.variant)
    wanted += [(("variant",), c) for c in fields] + [
        (("source",), c) for c in fields_of(reference.source)
    ]
    if rows is None or not known_columns(mistakes, source, path, rows, wanted):
        return
    found = [r for r in rows if all(r[c] == v for c, v in reference.where.items())]
    if fields:
        found = [row for row in found if all(row[c] for c in reference.columns.values())]
    if len(found) != 1 and not (fields and found):
        text = f"selects {len(found)} rows of {reference.csv}; it must select exactly one"
        mistakes.add(source, (*path, "where"), text)
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
                mistakes.add(source, path, f"{where}: {text}" if where else text)
