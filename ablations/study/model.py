"""A study that has been read and checked: variants, seeds, and the runs that they make."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ablations.study.schema import (
    LONGEST_NAME,
    AttributionSpec,
    FigureSpec,
    MetricSpec,
    Reported,
    Resources,
    RoundsSpec,
    TableSpec,
    is_safe,
)
from sdtps.config import AnyConfig, Config, ProgramConfig, resolved
from sdtps.config.acting import effective
from sdtps.config.identity import NOT_IN_IDENTITY, canonical, flatten, identities
from sdtps.run.folder import folder_name, is_finite


def slug(name: str) -> str:
    """`name` where it is safe; else its readable part and six digits of its hash.

    A variant's folder depends on its own name alone, so adding a variant never moves another's runs.
    """
    if is_safe(name):
        return name
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    readable = re.sub(r"[^A-Za-z0-9.]+", "_", plain).strip("_.")[: LONGEST_NAME - 7].rstrip("_.")
    digits = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:6]
    return f"{readable or 'variant'}-{digits}"


@dataclass(frozen=True)
class Variant:
    """A named difference from the base.

    Attributes:
        name: free text, as the manifest writes it; `slug` is its folder.
        extends: the variant whose overrides, components and resources it starts from.
        overrides: dotted key to value, inherited ones included (grid variants: as expanded).
        config: the resolved configuration.
        line: where the manifest declares it.
    """

    name: str
    slug: str
    label: str
    overrides: dict[str, Any]
    config: AnyConfig
    resources: Resources
    extends: str | None = None
    source: str | None = None
    note: str = ""
    components: dict[str, bool | str] = field(default_factory=dict)
    color: str | None = None
    line: int = 0

    @cached_property
    def canonical(self) -> str:
        """What names the variant's runs: the configuration, without what cannot change a result."""
        return canonical(self.config)

    @cached_property
    def acting(self) -> str:
        """Equal for variants that train one network: settings that nothing reads do not count."""
        read = effective(self.config)
        return json.dumps({k: v for k, v in read.items() if k not in NOT_IN_IDENTITY}, sort_keys=True)


@dataclass(frozen=True)
class RunSpec:
    """One run: a variant and a seed. Equal identity means equal result."""

    study: str
    variant: str
    slug: str
    seed: int
    config: AnyConfig
    identity: str
    resources: Resources
    label: str = ""  # the variant's

    @cached_property
    def name(self) -> str:
        """STUDY/VARIANT-SLUG/seedK-HASH: its place below the runs folder, and its name for people."""
        return f"{self.study}/{self.slug}/{folder_name(self.seed, self.identity)}"

    def folder(self, runs_dir: Path | str) -> Path:
        root = runs_dir if isinstance(runs_dir, Path) else Path(runs_dir)
        return root / self.name


@dataclass(frozen=True)
class Study:
    """A checked manifest.

    Attributes:
        base: the configuration that variants differ from (base file and `overrides`).
        varies: dotted keys (or whole sections) that a variant may change.
        digest: changes with the manifest, its base file and its reported numbers.
        gpu_hours: the budget; None: no limit. parent: whose budget it is, where this is a part of a
            study, or the cells between two of its variants.
        seeds_of: in rounds, how many of `seeds` a variant has by now; the first look's where it is not
            listed. `analysis.results.rounds` decides them.
    """

    name: str
    path: Path
    task: str
    seeds: tuple[int, ...]
    baseline: str
    base: AnyConfig
    varies: tuple[str, ...]
    variants: dict[str, Variant]
    resources: Resources
    metrics: dict[str, MetricSpec]
    tables: tuple[TableSpec, ...]
    figures: tuple[FigureSpec, ...]
    reported: tuple[Reported, ...]
    title: str
    notes: str
    digest: str
    attributions: tuple[AttributionSpec, ...] = ()
    rounds: RoundsSpec | None = None
    gpu_hours: float | None = None
    parent: Study | None = field(default=None, repr=False)
    seeds_of: dict[str, int] = field(default_factory=dict)

    @cached_property
    def _runs(self) -> tuple[RunSpec, ...]:
        return tuple(
            RunSpec(self.name, v.name, v.slug, seed, v.config, digits, v.resources, v.label)
            for v in self.variants.values()
            for seed, digits in zip(
                self.seeds_for(v.name), identities(v.canonical, self.seeds_for(v.name)), strict=True
            )
        )

    def seeds_for(self, variant: str) -> tuple[int, ...]:
        """The seeds that a variant is trained with, as far as is decided."""
        if self.rounds is None:
            return self.seeds
        return self.seeds[: self.seeds_of.get(variant, self.rounds.looks[0])]

    def runs(self) -> list[RunSpec]:
        """Every planned run: variants in the manifest's order, seeds within each."""
        return list(self._runs)

    @cached_property
    def flat_base(self) -> dict[str, Any]:
        return flatten(resolved(self.base))

    def models(self) -> dict[str, Config]:
        """The configurations of the variants that are models of ours, and not other programs."""
        return {
            name: variant.config
            for name, variant in self.variants.items()
            if not isinstance(variant.config, ProgramConfig)
        }

    def no_runs(self, runs_dir: Path) -> str:
        """That there are none in `runs_dir`, and where they may be."""
        beside = (folder / "runs" for folder in self.path.absolute().parents[:2])
        there = next((str(runs) for runs in beside if (runs / self.name).is_dir()), "FOLDER")
        return f"No runs of {self.name} in {runs_dir}. If they are elsewhere: --runs-dir {there}"

    def not_fractions(self, variant: str, scores: Mapping[str, Any]) -> list[str]:
        """A sentence for each of a program's scores that % would print as above 100."""
        if variant not in self.variants or not isinstance(self.variants[variant].config, ProgramConfig):
            return []
        return [
            f"{name} is above 1, which % prints as above 100: if it is per cent, write "
            f'{name}: {{direction: {spec.direction}, unit: ""}} under metrics of {self.path.name}.'
            for name, spec in self.metrics.items()
            if spec.unit == "%" and is_finite(score := scores.get(name, 0)) and score > 1
        ]

    def differences(self, variant: str) -> dict[str, tuple[Any, Any]]:
        """Dotted key to (value in the base, value in the variant), defaults resolved."""
        config = self.variants[variant].config
        flat = flatten(resolved(config))
        if config.task != self.base.task:  # a program beside our own models
            return {k: (None, v) for k, v in flat.items() if v not in (None, {})}
        keys = [*self.flat_base, *(k for k in flat if k not in self.flat_base)]
        return {
            k: (self.flat_base.get(k), flat.get(k))
            for k in keys
            if self.flat_base.get(k) != flat.get(k)
        }

    def other_settings(self, entry: Reported) -> dict[str, tuple[Any, Any]]:
        """Dotted key to (value behind a reported number, value of its variant) where they differ."""
        variant = self.variants.get(entry.variant or "")
        if variant is None:  # a method, or not among the variants that were asked for
            return {}
        ours = flatten(resolved(variant.config))
        return {
            key: (theirs, ours.get(key))
            for key, theirs in entry.settings.items()
            if as_written(theirs) != as_written(ours.get(key))
        }


def as_written(item: Any, none: str = "null") -> str:
    """A configuration value as the manifest would write it."""
    if item is None:
        return none
    if isinstance(item, bool):
        return "true" if item else "false"  # `no` is text
    if isinstance(item, float):
        return f"{item:g}"
    if isinstance(item, dict):
        return "{" + ", ".join(f"{k}: {as_written(v)}" for k, v in item.items()) + "}"
    if isinstance(item, (list, tuple)):
        return "[" + ", ".join(as_written(v) for v in item) + "]"
    return str(item)
