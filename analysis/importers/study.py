"""Imported runs as a study of their own, where no manifest plans them.

Offers what analysis asks of `ablations.study.model.Study`; nothing is planned: nothing can be missing,
and there is no configuration of ours, so nothing can be rerun.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from ablations.study.model import slug
from ablations.study.schema import FigureSpec, MetricSpec, TableSpec
from analysis.importers.metrics import Direction, is_share, known
from analysis.importers.run import LogError
from analysis.runs import IMPORTED
from sdtps.errors import did_you_mean
from sdtps.run.folder import RunFolder

_LABELS = {f"rank{k}": f"Rank-{k}" for k in (1, 5, 10, 20)}


@dataclass(frozen=True)
class ImportedVariant:
    """A variant that somebody else ran. `config` is what their log printed, flat and as text."""

    name: str
    slug: str
    label: str
    config: dict[str, str]
    overrides: dict[str, str]  # settings in which it differs from the baseline
    components: dict[str, bool] = field(default_factory=dict)
    source: str | None = None  # the file it was read from
    note: str = ""
    color: str | None = None


@dataclass(frozen=True)
class ImportedStudy:
    """Runs of other people under one name; see `ablations.study.manifest.Study` for the attributes."""

    name: str
    path: Path
    variants: dict[str, ImportedVariant]
    seeds: tuple[int, ...]
    baseline: str
    metrics: dict[str, MetricSpec]
    digest: str
    task: str = "reid"
    title: str = ""
    notes: str = ""
    tables: tuple[TableSpec, ...] = ()
    figures: tuple[FigureSpec, ...] = ()
    reported: tuple[Any, ...] = ()
    imported: bool = True

    def runs(self) -> list[Any]:
        """Nothing is planned."""
        return []

    @cached_property
    def _usual(self) -> dict[str, str]:
        return self.variants[self.baseline].config if self.variants else {}

    def differences(self, variant: str) -> dict[str, tuple[Any, Any]]:
        """Settings in which a variant differs from the baseline: (there, here)."""
        config = self.variants[variant].config
        keys = [*self._usual, *(k for k in config if k not in self._usual)]
        return {
            k: (self._usual.get(k), config.get(k)) for k in keys if self._usual.get(k) != config.get(k)
        }


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
    baseline = _baseline(by_variant)
    usual = by_variant[baseline].get("imported_config") or {}
    switches = _switches(by_variant)
    variants = {
        variant: _variant(variant, record, usual, switches) for variant, record in by_variant.items()
    }
    metrics = _metrics(records)
    seeds = sorted({int(record.get("seed", 0)) for record in records})
    dataset = {str(record["imported"]["facts"].get("dataset") or "") for record in records} - {""}
    return ImportedStudy(
        name=name,
        path=place,
        variants=variants,
        seeds=tuple(seeds),
        baseline=baseline,
        metrics=metrics,
        digest=hash_of(records),
        title=f"{name} ({', '.join(sorted(dataset))}, imported)" if dataset else f"{name} (imported)",
        tables=_tables(variants, metrics),
        figures=_figures(records, metrics),
        notes="Read from other people's logs; the seed and what selected the best epoch are theirs.",
    )


def _tables(
    variants: dict[str, ImportedVariant], metrics: dict[str, MetricSpec]
) -> tuple[TableSpec, ...]:
    """What every ablation is asked for: the scores, and which component was on where."""
    if not metrics:
        return ()
    tables = [TableSpec(name="main", title="Best and last epoch", epoch="both")]
    if any(v.components for v in variants.values()):
        tables.append(TableSpec(name="components", kind="components", title="Components"))
    return tuple(tables)


def _figures(
    records: Sequence[dict[str, Any]], metrics: dict[str, MetricSpec]
) -> tuple[FigureSpec, ...]:
    figures = []
    if any(record["imported"]["facts"].get("max_loss") is not None for record in records):
        figures.append(FigureSpec(name="loss", metric="loss", title="Training loss"))
    figures += [FigureSpec(name=name, metric=name) for name in list(metrics)[:1]]
    return tuple(figures)


def hash_of(records: Sequence[dict[str, Any]]) -> str:
    """Sixteen digits that change when any log behind the study changes."""
    text = "\0".join(sorted(str(record["imported"].get("sha256")) for record in records))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _variant(
    name: str, record: dict[str, Any], usual: dict[str, Any], switches: Sequence[str]
) -> ImportedVariant:
    config = {str(k): str(v) for k, v in (record.get("imported_config") or {}).items()}
    imported = record["imported"]
    label = str(record.get("label") or name)
    return ImportedVariant(
        name=name,
        slug=slug(name),
        label=label,
        config=config,
        overrides={k: v for k, v in config.items() if v != str(usual.get(k))},
        components={s: bool((imported.get("components") or {}).get(s)) for s in switches},
        source=f"{imported.get('source_folder')}/{imported.get('source')}",
        note="; ".join(imported.get("notes") or []),
    )


def _switches(records: dict[str, dict[str, Any]]) -> list[str]:
    """Components that are on in some variants and off in others."""
    found = [record["imported"].get("components") or {} for record in records.values()]
    names = dict.fromkeys(name for components in found for name in components)
    return [name for name in names if len({bool(c.get(name)) for c in found}) > 1]


def _baseline(records: dict[str, dict[str, Any]]) -> str:
    """The variant that is called so, by its label or by its name, or else the first."""
    labelled = [name for name, record in records.items() if record.get("label") == "baseline"]
    named = [name for name in records if "baseline" in name.lower()]
    return next(iter([*labelled, *named, *records]))


def _metrics(records: Sequence[dict[str, Any]]) -> dict[str, MetricSpec]:
    """Scores that any run was evaluated on; other heads than the main one are left to the curves."""
    names: dict[str, None] = {}
    printed: dict[str, list[float]] = {}
    for record in records:
        for name, value in (record["imported"].get("best") or {}).items():
            if isinstance(value, float) and "/" not in name:
                names.setdefault(name)
                printed.setdefault(name, []).append(value)
    return {
        name: MetricSpec(
            direction=_direction(name, records),
            digits=_digits(printed[name], 2 if is_share(name) else 0),
            unit="%" if is_share(name) else "",
            label=_LABELS.get(name),
        )
        for name in names
    }


def _direction(name: str, records: Sequence[dict[str, Any]]) -> Literal["up", "down"] | None:
    """What the import recorded; None where nobody declared one."""
    declared = [(record["imported"].get("metrics") or {}).get(name) or {} for record in records]
    said = {entry.get("direction") for entry in declared} - {None}
    found: Direction | None = next(iter(said)) if len(said) == 1 else known(name).direction
    return found if found in ("up", "down") else None


def _digits(values: Sequence[float], shift: int) -> int:
    """Decimals that the logs print, after `shift` digits go to the per cent: between 1 and 4."""
    exponents = [Decimal(repr(value)).scaleb(shift).normalize().as_tuple().exponent for value in values]
    return min(max([1, *(-e for e in exponents if isinstance(e, int))]), 4)
