"""The variants of a manifest: declared ones and those of grids, each with its configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, field_validator

from ablations.study.grid import LABEL_IS_ENOUGH, expand
from ablations.study.mistakes import Mistakes, Source
from ablations.study.model import Variant, slug
from ablations.study.resolve import Resolver, inside
from ablations.study.schema import Resources, TableSpec
from sdtps.config.common import Frozen
from sdtps.config.identity import BY_FILE_NAME, NOT_IN_IDENTITY
from sdtps.config.load import TASKS
from sdtps.config.wording import shown
from sdtps.config.yaml12 import KeyPath
from sdtps.system.errors import did_you_mean

Text = Annotated[str, Field(min_length=1)]
Color = Annotated[
    str,
    Field(
        pattern=r"^(#[0-9a-fA-F]{6}|C[0-9]|[a-z]+)$",
        description="a colour such as '#0072B2' (in quotes), C0 to C9, or a name such as red",
    ),
]
MOST_RUNS = 50_000


class About(Frozen):
    """The keys of a variant that are not overrides: they have no dot."""

    label: Text | None = None
    extends: Text | None = None  # start from this variant's overrides, components and resources
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
                raise ValueError(f"'{value}' is not a colour. {did_you_mean(value, CSS4_COLORS)}")
        return value


@dataclass
class Draft:
    """A variant while it is being read."""

    name: str
    path: KeyPath
    about: About
    overrides: dict[str, Any]
    places: dict[str, KeyPath]  # where each override is written
    broken: bool = False  # has mistakes already; no more are looked for in what is left of it

    def on_top_of(self, other: Draft) -> Draft:
        """This variant, with what it does not say itself taken from `other`."""
        kept = {
            key: value
            for key, value in other.overrides.items()
            if not any(inside(key, own) or inside(own, key) for own in self.overrides)
        }
        about = self.about.model_copy(
            update={
                "components": {**other.about.components, **self.about.components},
                "resources": {**other.about.resources, **self.about.resources},
            }
        )
        return Draft(
            self.name,
            self.path,
            about,
            {**kept, **self.overrides},
            {**{key: other.places[key] for key in kept}, **self.places},
            self.broken or other.broken,
        )


class VariantReader:
    """Reads the variants of one manifest, noting mistakes and going on."""

    def __init__(self, mistakes: Mistakes, source: Source, tree: dict[str, Any]) -> None:
        self.mistakes, self.source, self.tree = mistakes, source, tree

    def drafts(self) -> list[Draft]:
        """Every variant as it is written; `grid` comes after `variants`."""
        drafts: list[Draft] = []
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
                drafts.append(Draft(name, path, About(), {}, {}, broken=True))
                continue
            drafts.append(self._draft(name, path, value or {}))
        grids = self.tree.get("grid")
        listed = grids if isinstance(grids, list) else [] if grids is None else [grids]
        for i, grid in enumerate(listed):
            path = ("grid", i) if isinstance(grids, list) else ("grid",)
            points, places = expand(self.mistakes, self.source, path, grid)
            for point in points:
                about = About(label=point.label or None)
                drafts.append(Draft(point.name, path, about, point.overrides, places))
        if not drafts and "variants" not in self.tree and grids is None:
            self.mistakes.add(self.source, (), "no variants: give 'variants', 'grid' or both")
        elif not drafts and not self.mistakes.found:
            self.mistakes.add(self.source, ("variants",), "holds no variant")
        return self._extended(drafts)

    def _draft(self, name: str, path: KeyPath, value: dict[str, Any]) -> Draft:
        before = self.mistakes.noted
        about = {k: v for k, v in value.items() if not _is_override(k)}
        for key in [k for k in about if any(k in task.model_fields for task in TASKS.values())]:
            text = f"write the whole key with its dots, such as '{key}.{_first(about[key])}: ...'"
            self.mistakes.add(self.source, (*path, key), text)
            del about[key]
        if about.pop("label_tex", None) is not None:
            self.mistakes.add(self.source, (*path, "label_tex"), LABEL_IS_ENOUGH)
        checked = self.mistakes.check(self.source, path, About, about)
        overrides = {k: v for k, v in value.items() if _is_override(k)}
        places = {k: (*path, k) for k in overrides}
        broken = self.mistakes.noted > before
        return Draft(name, path, checked or About(), overrides, places, broken)

    def _extended(self, drafts: list[Draft]) -> list[Draft]:
        """The same with what each variant takes over by `extends`; its own keys win."""
        by_name: dict[str, Draft] = {}
        for draft in drafts:  # a name that is given twice is told elsewhere
            by_name.setdefault(draft.name, draft)
        done: dict[int, Draft] = {}

        def extended(draft: Draft, chain: tuple[str, ...]) -> Draft:
            if id(draft) in done:
                return done[id(draft)]
            wanted, path = draft.about.extends, (*draft.path, "extends")
            whole = draft
            if wanted in chain:
                circle = " extends ".join([*chain[chain.index(wanted) :], wanted])
                self.mistakes.add(self.source, path, f"leads back to itself: {circle}")
                draft.broken = True
            elif wanted is not None and wanted not in by_name:
                text = f"'{wanted}' is not a variant. {did_you_mean(wanted, by_name)}"
                self.mistakes.add(self.source, path, text)
                draft.broken = True
            elif wanted is not None:
                whole = draft.on_top_of(extended(by_name[wanted], (*chain, wanted)))
            done[id(draft)] = whole
            return whole

        return [extended(draft, (draft.name,)) for draft in drafts]

    def variants(self, drafts: list[Draft], resolver: Resolver, shared: Resources) -> list[Variant]:
        """The same with resolved configurations; two that are one configuration are a mistake."""
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
                    extends=about.extends,
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

    def _check_distinct(self, variants: list[Variant], drafts: list[Draft], resolver: Resolver) -> None:
        baseline = self.tree.get("baseline")
        first: dict[str, Variant] = {}
        acting: dict[str, Variant] = {}
        ordered = sorted(zip(variants, drafts, strict=True), key=lambda pair: pair[0].name != baseline)
        for variant, draft in ordered:
            if draft.broken or draft.name in resolver.broken:
                continue
            same = first.setdefault(variant.canonical, variant)
            if same is variant:
                same = acting.setdefault(variant.acting, variant)
            if same is variant:
                continue
            if same.name == baseline:
                text = f"'{variant.name}' equals the baseline '{same.name}' (line {same.line})"
            else:
                text = f"'{variant.name}' and '{same.name}' (line {same.line}) are one configuration"
            silent = sorted(draft.overrides.keys() & NOT_IN_IDENTITY)
            if same.canonical != variant.canonical:
                silent = sorted(
                    k for k in draft.overrides if draft.overrides[k] != same.overrides.get(k)
                )
            hint = f"; {', '.join(silent)} cannot change a result" if silent else ""
            files = sorted(draft.overrides.keys() & BY_FILE_NAME)
            if moved := [k for k in files if draft.overrides[k] != same.overrides.get(k)]:
                hint += f"; of {', '.join(moved)} only the file's name counts, not its folder"
            self.mistakes.add(self.source, draft.path, f"{text}{hint}. Remove one or change it")

    def check_names(self, header: dict[str, Any], drafts: list[Draft]) -> None:
        """The baseline is one of them, and each has a folder of its own."""
        names = [d.name for d in drafts]
        baseline = header.get("baseline")
        if baseline is not None and drafts and baseline not in names:
            text = f"'{baseline}' is not a variant. {did_you_mean(baseline, names)}"
            self.mistakes.add(self.source, ("baseline",), text)
        folders: dict[str, Draft] = {}
        for draft in drafts:
            if not draft.name.strip() or len(draft.name) > 200 or not draft.name.isprintable():
                text = f"{draft.name!r} is not a name: one line of 1 to 200 printable characters"
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

    def check_components(self, tables: list[tuple[KeyPath, TableSpec]], drafts: list[Draft]) -> None:
        """Rows of a table of components all say whether they have each of them."""
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


def _is_override(key: str) -> bool:
    """A dotted key of the configuration, or one of a program's that has no dot."""
    return "." in key or key in ("command", "directory", "select", "select_direction")


def _first(value: Any) -> str:
    return next(iter(value), "key") if isinstance(value, dict) else "key"
