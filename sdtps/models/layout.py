"""Layouts: which published tensor is which of ours, in both directions, losing nothing.

A layout is a list of rules. A rule pairs name templates: `{modality}` and the like stand for one of the
words in FIELDS, `{n}` for a number, `{rest}` for the rest of a name. Most rules only rename; the others
also turn the tensor (`TRANSPOSED`, `THIRDS`, ...), invertibly. A name that no rule matches is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from sdtps.errors import WeightsError

FIELDS = {
    "modality": "rgb|nir|tir",
    "set": "rnt|rn|rt|nt|r|n|t",
    "kind": "weight|bias",
    "n": r"\d+",
    "m": r"\d+",
    "rest": ".+",
}
_FIELD = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Form:
    """How one published tensor becomes our tensor or tensors, and back."""

    to_ours: Callable[[Tensor], tuple[Tensor, ...]] = lambda tensor: (tensor,)
    to_published: Callable[..., Tensor] = lambda tensor: tensor


SAME = Form()
TRANSPOSED = Form(lambda t: (t.T,), lambda t: t.T)
# One published tensor that holds query, key and value one after the other.
THIRDS = Form(lambda t: tuple(t.chunk(3)), lambda *parts: torch.cat(parts))
# [n, 1, C] against [n, C].
SQUEEZED = Form(lambda t: (t.squeeze(1),), lambda t: t.unsqueeze(1))


@dataclass(frozen=True)
class Rule:
    published: str
    ours: tuple[str, ...]
    form: Form = SAME


@dataclass(frozen=True)
class Layout:
    """One published module or model.

    Args:
        name: as given to `convert --layout`.
        source: whose module it is.
        rules: the first that matches a name counts.
    """

    name: str
    source: str
    rules: tuple[Rule, ...]

    def under(self, published: str, ours: str) -> tuple[Rule, ...]:
        """The rules with a prefix on each side, to build larger layouts from smaller ones."""
        return tuple(
            replace(rule, published=published + rule.published, ours=tuple(ours + o for o in rule.ours))
            for rule in self.rules
        )

    def names(self, published: Iterable[str]) -> dict[str, str]:
        """Published name -> our name, where each tensor is one of ours.

        Raises:
            WeightsError: names that do not belong to this layout, all of them.
        """
        return {name: ours[0] for name, (_, ours) in self._match(published).items()}

    def to_ours(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A published state dict under our names.

        Raises:
            WeightsError: names that do not belong to this layout, or tensors of a shape that a rule
                cannot turn; all of them.
        """
        result: dict[str, Tensor] = {}
        for name, (rule, ours) in self._match(state).items():
            parts = rule.form.to_ours(state[name])
            if len(parts) != len(ours):
                raise WeightsError(
                    f"{name}: shape {tuple(state[name].shape)} cannot become {', '.join(ours)}"
                )
            result.update(zip(ours, parts, strict=True))
        return result

    def to_published(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Our state dict under the published names; raises as `to_ours` does, and for missing parts."""
        result: dict[str, Tensor] = {}
        refused: list[str] = []
        done: set[str] = set()
        for name in state:
            if name in done:
                continue
            found = self._reverse(name)
            if found is None:
                refused.append(f"{name}: has no counterpart in {self.name} ({self.source})")
                continue
            rule, published, ours = found
            missing = [other for other in ours if other not in state]
            if missing:
                refused += [f"{other}: missing beside {name}" for other in missing]
            else:
                result[published] = rule.form.to_published(*(state[other] for other in ours))
            done.update(ours)
        if refused:
            raise WeightsError("\n".join(refused))
        return result

    def refused(self, names: Iterable[str], to: Literal["ours", "published"] = "ours") -> list[str]:
        """Names that no rule matches, on the published side or on ours."""
        find = self._forward if to == "ours" else self._reverse
        return [name for name in names if find(name) is None]

    def _match(self, published: Iterable[str]) -> dict[str, tuple[Rule, tuple[str, ...]]]:
        matched: dict[str, tuple[Rule, tuple[str, ...]]] = {}
        taken: dict[str, str] = {}
        refused: list[str] = []
        for name in published:
            found = self._forward(name)
            if found is None:
                refused.append(f"{name}: not a tensor of {self.name} ({self.source})")
                continue
            for ours in found[1]:
                if ours in taken:
                    refused.append(f"{name}: would share our name {ours} with {taken[ours]}")
                taken[ours] = name
            matched[name] = found
        if refused:
            raise WeightsError("\n".join(refused))
        return matched

    def _forward(self, name: str) -> tuple[Rule, tuple[str, ...]] | None:
        for rule in self.rules:
            match = _pattern(rule.published).fullmatch(name)
            if match:
                return rule, tuple(ours.format(**match.groupdict()) for ours in rule.ours)
        return None

    def _reverse(self, name: str) -> tuple[Rule, str, tuple[str, ...]] | None:
        for rule in self.rules:
            for template in rule.ours:
                match = _pattern(template).fullmatch(name)
                if match:
                    words = match.groupdict()
                    ours = tuple(other.format(**words) for other in rule.ours)
                    return rule, rule.published.format(**words), ours
        return None


def same(*pairs: tuple[str, str]) -> tuple[Rule, ...]:
    """Rules that only rename: (published, ours) templates."""
    return tuple(Rule(published, (ours,)) for published, ours in pairs)


@cache
def _pattern(template: str) -> re.Pattern[str]:
    parts = _FIELD.split(template)  # text, field, text, field, ..., text
    return re.compile(
        "".join(
            f"(?P<{part}>{FIELDS[part]})" if i % 2 else re.escape(part) for i, part in enumerate(parts)
        )
    )
