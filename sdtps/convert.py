"""Published parameter names and ours: a table each way, losing nothing.

A layout is a list of (published, ours) name templates; `{modality}` and the like stand for one of
the listed words, `{n}` for a number, `{rest}` for the rest of the name. A name that no template
matches is refused, by name, in both directions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from sdtps.errors import WeightsError, did_you_mean

Value = TypeVar("Value")

FIELDS = {
    "modality": "rgb|nir|tir",
    "set": "rnt|rn|rt|nt|r|n|t",
    "n": r"\d+",
    "m": r"\d+",
    "rest": ".+",
}
_FIELD = re.compile(r"\{(\w+)\}")


def _pattern(template: str) -> re.Pattern[str]:
    parts = _FIELD.split(template)  # text, field, text, field, ..., text
    return re.compile(
        "".join(
            f"(?P<{part}>{FIELDS[part]})" if i % 2 else re.escape(part) for i, part in enumerate(parts)
        )
    )


@dataclass(frozen=True)
class Layout:
    """One published module or model and the names that ours has for its tensors."""

    name: str
    source: str
    templates: tuple[tuple[str, str], ...]

    def under(self, theirs: str, ours: str) -> tuple[tuple[str, str], ...]:
        """The templates with a prefix on each side, to build larger layouts from smaller ones."""
        return tuple((theirs + a, ours + b) for a, b in self.templates)

    def names(self, published: Iterable[str]) -> dict[str, str]:
        """Published name -> our name.

        Raises:
            WeightsError: names that do not belong to this layout, all of them.
        """
        return self._map(published, 0, f"not a tensor of {self.name} ({self.source})")

    def published_names(self, ours: Iterable[str]) -> dict[str, str]:
        """Our name -> published name; raises as `names` does."""
        return self._map(ours, 1, f"has no counterpart in {self.name} ({self.source})")

    def to_ours(self, state: Mapping[str, Value]) -> dict[str, Value]:
        """A published state dict under our names; raises as `names` does."""
        return {ours: state[theirs] for theirs, ours in self.names(state).items()}

    def to_published(self, state: Mapping[str, Value]) -> dict[str, Value]:
        """Our state dict under the published names; raises as `names` does."""
        return {theirs: state[ours] for ours, theirs in self.published_names(state).items()}

    def _map(self, names: Iterable[str], side: int, complaint: str) -> dict[str, str]:
        rules = [(_pattern(pair[side]), pair[1 - side]) for pair in self.templates]
        mapped: dict[str, str] = {}
        refused: list[str] = []
        for name in names:
            match = next(((m, to) for p, to in rules if (m := p.fullmatch(name))), None)
            if match is None:
                refused.append(f"{name}: {complaint}")
            else:
                mapped[name] = match[1].format(**match[0].groupdict())
        targets = list(mapped.values())
        refused += [
            f"{n}: two tensors would share the name {t}"
            for n, t in mapped.items()
            if targets.count(t) > 1
        ]
        if refused:
            raise WeightsError("\n".join(refused))
        return mapped


TOKEN_SPARSE = Layout(
    "token_sparse",
    "TokenSparse of the paper-version module",
    (("score_predictor.{rest}", "score_mlp.{rest}"),),
)
TOKEN_AGGREGATION = Layout(
    "token_aggregation",
    "TokenAggregation and DualTokenAggregation",
    (
        ("scale", "scale"),
        ("weight.{rest}", "weight.{rest}"),
        ("weight_sparse.{rest}", "weight_sparse.{rest}"),
        ("weight_dense.{rest}", "weight_dense.{rest}"),
    ),
)
MULTIMODAL_SDTPS = Layout(
    "multimodal_sdtps",
    "MultiModalSDTPS of DeMo2, v0 to v3",
    (
        *TOKEN_SPARSE.under("{modality}_sparse.", "modalities.{modality}.selection."),
        *TOKEN_AGGREGATION.under("{modality}_aggr.", "modalities.{modality}.aggregation."),
    ),
)
FUSION = Layout(
    "fusion",
    "GeneralFusion of DeMo",
    (
        ("{set}_token", "hdm.tokens.{set}"),
        ("{set}.{rest}", "hdm.attention.{set}.{rest}"),
        ("moe.experts.{n}.expertHead.{m}.mlp.{rest}", "moe.experts.{n}.{m}.{rest}"),
        ("moe.gating_network.gate.linear_re.{rest}", "moe.gate.bottleneck.{rest}"),
        ("moe.gating_network.gate.q_.{rest}", "moe.gate.query.{rest}"),
        ("moe.gating_network.gate.k_.{rest}", "moe.gate.key.{rest}"),
    ),
)
CROSSNET = Layout(
    "crossnet",
    "CrossSparseAggrNet of the released code, of LAPS and of the paper-version module",
    (
        *TOKEN_SPARSE.under("sparse_net_cap.", "sparse_selection."),
        *TOKEN_SPARSE.under("sparse_net_long.", "dense_selection."),
        *TOKEN_AGGREGATION.under("aggr_net.", "aggregation."),
        ("hrpa.{rest}", "alignment.{rest}"),
    ),
)
LAYOUTS = {
    layout.name: layout
    for layout in (TOKEN_SPARSE, TOKEN_AGGREGATION, MULTIMODAL_SDTPS, FUSION, CROSSNET)
}


def layout_named(name: str) -> Layout:
    """The layout of that name; raises WeightsError with the nearest one."""
    if name not in LAYOUTS:
        raise WeightsError(f"unknown layout '{name}'. {did_you_mean(name, LAYOUTS)}")
    return LAYOUTS[name]
