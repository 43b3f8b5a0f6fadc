"""The variants of a manifest: declared ones and those of grids, each with its configuration."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import Field, field_validator

from ablations.study.grid import expand
from ablations.study.mistakes import Source
from ablations.study.model import Variant, slug
from ablations.study.resolve import Resolver, without
from ablations.study.schema import Resources, TableSpec
from sdtps.config.common import Frozen
from sdtps.config.identity import BY_FILE_NAME
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
        kept = without(other.overrides, self.overrides)
        about = self.about.model_copy(
            update={
                "components": {**other.about.components, **self.about.components},
                "resources": {**other.about.resources, **self.about.resources},
            }
        )
        return replace(
            self,
            about=about,
            overrides={**kept, **self.overrides},
            places={**{key: other.places[key] for key in kept}, **self.places},
            broken=self.broken or other.broken,
        )


class VariantReader:
    """Reads the variants of one manifest, noting mistakes and going on."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.baseline = source.document.data.get("baseline")

    def drafts(self) -> list[Draft]:
        """Every variant as it is written; `grid` comes after `variants`."""
        drafts: list[Draft] = []
        tree = self.source.document.data
        declared, grids = tree.get("variants"), tree.get("grid")
        if declared is not None and not isinstance(declared, dict):
            text = f"must map names to overrides; found {shown(declared)}"
            self.source.mistake(("variants",), text)
            declared = None
        for name, value in (declared or {}).items():
            path: KeyPath = ("variants", name)
            if value is not None and not isinstance(value, dict):
                text = f"must map dotted keys to values; found {shown(value)}"
                self.source.mistake(path, text)
                drafts.append(Draft(name, path, About(), {}, {}, broken=True))
                continue
            drafts.append(self._draft(name, path, value or {}))
        listed = grids if isinstance(grids, list) else [] if grids is None else [grids]
        for i, grid in enumerate(listed):
            path = ("grid", i) if isinstance(grids, list) else ("grid",)
            points, places = expand(self.source, path, grid)
            for name, (overrides, label) in points.items():
                drafts.append(Draft(name, path, About(label=label or None), overrides, places))
        if not drafts and not self.source.found:
            self.source.mistake((), "no variants: give 'variants', 'grid' or both")
        return self._extended(drafts)

    def _draft(self, name: str, path: KeyPath, value: dict[str, Any]) -> Draft:
        before = len(self.source.found)
        about = {k: v for k, v in value.items() if not _is_override(k)}
        for key in [k for k in about if any(k in task.model_fields for task in TASKS.values())]:
            text = f"write the whole key with its dots, such as '{key}.{_first(about[key])}: ...'"
            self.source.mistake((*path, key), text)
            del about[key]
        checked = self.source.check(path, About, about)
        overrides = {k: v for k, v in value.items() if _is_override(k)}
        places = {k: (*path, k) for k in overrides}
        broken = len(self.source.found) > before
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
                self.source.mistake(path, f"leads back to itself: {circle}")
                draft.broken = True
            elif wanted is not None:
                if self.source.expect(path, wanted, by_name, "is not a variant"):
                    whole = draft.on_top_of(extended(by_name[wanted], (*chain, wanted)))
                else:
                    draft.broken = True
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
                merged = {**shared.model_dump(exclude_unset=True), **draft.about.resources}
                place = (*draft.path, "resources")
                resources = self.source.check(place, Resources, merged) or shared
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
        self._check_distinct(variants, drafts, resolver)
        return variants

    def _check_distinct(self, variants: list[Variant], drafts: list[Draft], resolver: Resolver) -> None:
        first: dict[str, Variant] = {}
        acting: dict[str, Variant] = {}
        pairs = zip(variants, drafts, strict=True)
        for variant, draft in sorted(pairs, key=lambda pair: pair[0].name != self.baseline):
            if draft.broken or draft.name in resolver.broken:
                continue
            same = first.setdefault(variant.canonical, variant)
            if same is variant:
                same = acting.setdefault(variant.acting, variant)
            if same is variant:
                continue
            text = f"'{variant.name}' and '{same.name}' (line {same.line}) are one configuration"
            own = draft.overrides
            if idle := sorted(k for k in own if own[k] != same.overrides.get(k)):
                text += f": {', '.join(idle)} makes no difference here"
            if BY_FILE_NAME.intersection(idle):
                text += " (of a file only the name counts, not its folder)"
            self.source.mistake(draft.path, f"{text}. Remove one or change it")

    def check_names(self, drafts: list[Draft]) -> None:
        """The baseline is one of them, and each has a folder of its own."""
        if isinstance(self.baseline, str) and drafts:
            names = [draft.name for draft in drafts]
            self.source.expect(("baseline",), self.baseline, names, "is not a variant")
        folders: dict[str, Draft] = {}
        for draft in drafts:
            if not draft.name.strip() or len(draft.name) > 200 or not draft.name.isprintable():
                text = f"{draft.name!r} is not a name: one line of 1 to 200 printable characters"
                self.source.mistake(draft.path, text)
            other = folders.setdefault(slug(draft.name).casefold(), draft)
            if other is not draft:
                line = self.source.document.line(other.path)
                text = f"'{draft.name}' and '{other.name}' (line {line}) would share a folder"
                self.source.mistake(draft.path, text)

    def check_components(self, tables: list[tuple[KeyPath, TableSpec]], drafts: list[Draft]) -> None:
        """Rows of a table of components all say whether they have each of them."""
        for path, table in tables:
            if table.kind != "components":
                continue
            rows = [draft for draft in drafts if draft.name in table.rows or not table.rows]
            wanted = {key: None for draft in rows for key in draft.about.components}
            if not wanted:
                self.source.mistake(path, "kind components, but no variant has 'components'")
            for draft in rows:
                if lacking := [key for key in wanted if key not in draft.about.components]:
                    text = f"table '{table.name}' needs its components {', '.join(lacking)} too"
                    self.source.mistake(draft.path, text)


def _is_override(key: str) -> bool:
    """A dotted key of the configuration, or one of a program's that has no dot."""
    return "." in key or key in ("command", "directory", "select", "select_direction")


def _first(value: Any) -> str:
    return next(iter(value), "key") if isinstance(value, dict) else "key"
