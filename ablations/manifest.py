"""A study's YAML becomes a `Study`, or one error that names every mistake with its line.

Nothing is queued, and nothing outside the manifest, its base file and its CSV files is read.
The schema is described in ablations/README.md.
"""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from ablations import texlabel
from ablations.grid import expand
from ablations.mistakes import Mistakes, Source
from ablations.references import check_references, read_reported
from ablations.resolve import Resolver
from ablations.slugs import is_safe, slug
from ablations.spec import FigureSpec, MetricSpec, Resources, TableSpec
from ablations.study import RunSpec, Study, Variant
from sdtps.config.base import Frozen
from sdtps.config.identity import NOT_IN_IDENTITY
from sdtps.config.load import TASKS
from sdtps.config.wording import shown
from sdtps.errors import ManifestError, did_you_mean
from sdtps.yaml12 import KeyPath

__all__ = ["RunSpec", "Study", "Variant", "load_study"]

Seed = Annotated[int, Field(ge=0, lt=2**32)]  # what NumPy's generators take
Text = Annotated[str, Field(min_length=1)]
Color = Annotated[
    str,
    Field(
        pattern=r"^(#[0-9a-fA-F]{6}|C[0-9]|[a-z]+)$",
        description="a colour such as '#0072B2' (in quotes), C0 to C9, or a name such as red",
    ),
]
MOST_RUNS = 50_000


class _Header(Frozen):
    """The keys of a manifest that are values; the others are sections, read one by one."""

    study: Text
    baseline: Text
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1)]
    task: Literal["reid", "retrieval"] | None = None
    base: Text | None = None
    varies: tuple[str, ...] = ()
    title: str | None = None
    notes: str = ""


class _About(Frozen):
    """The keys of a variant that are not overrides: they have no dot."""

    label: Text | None = None
    label_tex: Text | None = None
    source: Text | None = None
    note: str = ""
    components: dict[str, bool | str] = Field(default_factory=dict)
    color: Color | None = None
    resources: dict[str, Any] = Field(default_factory=dict)

    @field_validator("color")
    @classmethod
    def _is_known(cls, value: str | None) -> str | None:
        if value is not None and value.isalpha():
            from matplotlib.colors import CSS4_COLORS, is_color_like  # only for a name: it loads slowly

            if not is_color_like(value):
                raise ValueError(f"'{value}' is no colour. {did_you_mean(value, CSS4_COLORS)}")
        return value


# Tables that analysis makes for every study, as STUDY-NAME.
MADE_FOR_EVERY_STUDY = ("variants", "compute", "audit")
_SECTIONS = ("overrides", "variants", "grid", "resources", "metrics", "tables", "figures", "reported")
_KEYS = frozenset([*_Header.model_fields, *_SECTIONS])


@dataclass
class _Draft:
    """A variant while it is being read."""

    name: str
    path: KeyPath
    about: _About
    overrides: dict[str, Any]
    places: dict[str, KeyPath]  # where each override is written
    broken: bool = False  # has mistakes already; no more are looked for in what is left of it


def load_study(path: Path | str, *, data_root: Path | str | None = None) -> Study:
    """The study that the manifest at `path` describes.

    Args:
        data_root: written into configurations that name no `data.root` of their own and generate no
            data; where data lie is not part of a run's identity.

    Raises:
        ManifestError: every mistake at once, each with file, line and the nearest allowed word.
    """
    path = Path(path)
    if not path.exists() and (near := _studies_near(path)):
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
        drafts = self._drafts()
        variants = self._variants(drafts, resolver, resources)
        names = [d.name for d in drafts]
        metrics = self._metrics()
        tables = self._entries("tables", TableSpec)
        figures = self._entries("figures", FigureSpec)
        self._check_files("tables", header.get("study") or "", tables)
        self._check_files("figures", header.get("study") or "", figures)
        reported, csv_digest = read_reported(self.mistakes, self.source, self.tree.get("reported"))
        check_references(
            self.mistakes, self.source, resolver.task, names, metrics, tables, figures, reported
        )
        self._check_drafts(header, drafts)
        self._check_components(tables, drafts)
        self.mistakes.raise_if_any(self.path)
        digest = hashlib.sha256("\0".join([self.source.text, resolver.text, csv_digest]).encode())
        return Study(
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
        )

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

    def _section(self, key: str, model: type[Resources]) -> Resources | None:
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

    # -- variants -------------------------------------------------------------------------------

    def _drafts(self) -> list[_Draft]:
        drafts: list[_Draft] = []
        declared = self.tree.get("variants")
        if declared is None:
            declared = {}
        if not isinstance(declared, dict):
            text = f"must map names to overrides; found {shown(declared)}"
            self.mistakes.add(self.source, ("variants",), text)
            declared = {}
        for name, value in declared.items():
            path: KeyPath = ("variants", name)
            if value is not None and not isinstance(value, dict):
                text = f"must map dotted keys to values; found {shown(value)}"
                self.mistakes.add(self.source, path, text)
                drafts.append(_Draft(name, path, _About(), {}, {}, broken=True))
                continue
            drafts.append(self._draft(name, path, value or {}))
        grids = self.tree.get("grid")
        listed = grids if isinstance(grids, list) else [] if grids is None else [grids]
        for i, grid in enumerate(listed):
            path = ("grid", i) if isinstance(grids, list) else ("grid",)
            points, places = expand(self.mistakes, self.source, path, grid)
            for point in points:
                self._check_tex((*path, "label_tex"), point.label_tex)
                about = _About(label=point.label or None, label_tex=point.label_tex or None)
                drafts.append(_Draft(point.name, path, about, point.overrides, places))
        if not drafts and "variants" not in self.tree and grids is None:
            self.mistakes.add(self.source, (), "no variants: give 'variants', 'grid' or both")
        elif not drafts and not self.mistakes.found:
            self.mistakes.add(self.source, ("variants",), "holds no variant")
        return drafts

    def _draft(self, name: str, path: KeyPath, value: dict[str, Any]) -> _Draft:
        before = self.mistakes.noted
        about = {k: v for k, v in value.items() if "." not in k}
        for key in [k for k in about if any(k in task.model_fields for task in TASKS.values())]:
            text = f"write the whole key with its dots, such as '{key}.{_first(about[key])}: ...'"
            self.mistakes.add(self.source, (*path, key), text)
            del about[key]
        checked = self.mistakes.check(self.source, path, _About, about)
        if checked is not None:
            self._check_tex((*path, "label_tex"), checked.label_tex)
        overrides = {k: v for k, v in value.items() if "." in k}
        places = {k: (*path, k) for k in overrides}
        broken = self.mistakes.noted > before
        return _Draft(name, path, checked or _About(), overrides, places, broken)

    def _check_tex(self, path: KeyPath, text: str | None) -> None:
        for fault in texlabel.faults(text or ""):
            self.mistakes.add(self.source, path, f"{shown(text)}: {fault}")

    def _variants(self, drafts: list[_Draft], resolver: Resolver, shared: Resources) -> list[Variant]:
        variants = []
        for draft in drafts:
            config = resolver.variant(draft.path, draft.name, draft.overrides, draft.places)
            resources = shared
            if draft.about.resources:
                merged = {**shared.model_dump(), **draft.about.resources}
                place = (*draft.path, "resources")
                resources = self.mistakes.check(self.source, place, Resources, merged) or shared
            about = draft.about
            variants.append(
                Variant(
                    name=draft.name,
                    slug=slug(draft.name),
                    label=about.label or draft.name,
                    overrides=draft.overrides,
                    config=config,
                    resources=resources,
                    label_tex=about.label_tex,
                    source=about.source,
                    note=about.note,
                    components=dict(about.components),
                    color=about.color,
                    line=self.source.document.line(draft.path),
                )
            )
            resolver.check_declared(draft.path, draft.name, draft.overrides, config)
        self._check_distinct(variants, drafts, resolver)
        return variants

    def _check_distinct(
        self, variants: list[Variant], drafts: list[_Draft], resolver: Resolver
    ) -> None:
        baseline = self.tree.get("baseline")
        first: dict[str, Variant] = {}
        ordered = sorted(zip(variants, drafts, strict=True), key=lambda pair: pair[0].name != baseline)
        for variant, draft in ordered:
            if draft.broken or draft.name in resolver.broken:
                continue
            same = first.setdefault(variant.canonical, variant)
            if same is variant:
                continue
            if same.name == baseline:
                text = f"'{variant.name}' equals the baseline '{same.name}' (line {same.line})"
            else:
                text = f"'{variant.name}' and '{same.name}' (line {same.line}) are one configuration"
            silent = sorted(draft.overrides.keys() & NOT_IN_IDENTITY)
            hint = f"; {', '.join(silent)} cannot change a result" if silent else ""
            self.mistakes.add(self.source, draft.path, f"{text}{hint}. Remove one or change it")

    def _check_drafts(self, header: dict[str, Any], drafts: list[_Draft]) -> None:
        names = [d.name for d in drafts]
        baseline = header.get("baseline")
        if baseline is not None and drafts and baseline not in names:
            text = f"'{baseline}' is not a variant. {did_you_mean(baseline, names)}"
            self.mistakes.add(self.source, ("baseline",), text)
        folders: dict[str, _Draft] = {}
        for draft in drafts:
            if not draft.name.strip() or len(draft.name) > 200 or not draft.name.isprintable():
                text = f"{draft.name!r} is no name: one line of 1 to 200 printable characters"
                self.mistakes.add(self.source, draft.path, text)
            other = folders.setdefault(slug(draft.name).casefold(), draft)
            if other is draft:
                continue
            line = self.source.document.line(other.path)
            if other.name == draft.name:
                text = f"variant '{draft.name}' is given twice (line {line})"
            else:
                text = f"'{draft.name}' and '{other.name}' (line {line}) would share a folder"
            self.mistakes.add(self.source, draft.path, text)
        count = len(drafts) * len(header["seeds"])
        if count > MOST_RUNS:
            self.mistakes.add(self.source, (), f"plans {count} runs; at most {MOST_RUNS} are allowed")

    def _check_components(self, tables: list[tuple[KeyPath, TableSpec]], drafts: list[_Draft]) -> None:
        by_name = {d.name: d for d in drafts}
        for path, table in tables:
            if table.kind != "components":
                continue
            rows = [by_name[n] for n in (table.rows or by_name) if n in by_name]
            wanted = {key: None for d in rows for key in d.about.components}
            if not wanted:
                self.mistakes.add(self.source, path, "kind components, but no variant has 'components'")
            for draft in rows:
                lacking = [key for key in wanted if key not in draft.about.components]
                if lacking:
                    text = f"table '{table.name}' needs its components {', '.join(lacking)} too"
                    self.mistakes.add(self.source, draft.path, text)


def _first(value: Any) -> str:
    return next(iter(value), "key") if isinstance(value, dict) else "key"


def select(study: Study, variants: list[str] | None, seeds: list[int] | None) -> Study:
    """`study` reduced to some variants and seeds.

    Raises:
        ManifestError: a name or seed that the study does not have.
    """
    unknown = [v for v in variants or [] if v not in study.variants]
    texts = [f"no variant '{v}' in {study.path}. {did_you_mean(v, study.variants)}" for v in unknown]
    texts += [
        f"no seed {s} in {study.path}. Allowed: {', '.join(map(str, study.seeds))}."
        for s in seeds or []
        if s not in study.seeds
    ]
    if texts:
        raise ManifestError("\n".join(texts))
    return dataclasses.replace(
        study,
        variants={k: v for k, v in study.variants.items() if variants is None or k in variants},
        seeds=tuple(s for s in study.seeds if seeds is None or s in seeds),
    )
