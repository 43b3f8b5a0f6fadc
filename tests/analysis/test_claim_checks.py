"""The checks look at the code: break a rule of it, and the verdict that rests on it turns."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from analysis.claims.checks import published
from analysis.claims.ledger import load
from analysis.claims.verdicts import CHECKS, verdict
from sdtps import aggregation, selection
from sdtps import crossnet as crossmodal
from sdtps.config import axes
from sdtps.config.axes import Mask

LEDGER = {c.id: c for c in load(Path(__file__).parents[2] / "paper" / "claims.yaml")}


@pytest.fixture(autouse=True)
def fresh_passes() -> Iterator[None]:
    """Passes are cached by configuration; a broken rule must not see or leave any."""
    published.run.cache_clear()
    yield
    published.run.cache_clear()


def word(claim: int) -> str:
    test = LEDGER[claim].check
    assert test is not None
    return verdict(list(CHECKS[test.name](**test.arguments))).word


def rounded(patches: int, aggregation_ratio: float, keep_ratio: float) -> int:
    return round(patches * aggregation_ratio * keep_ratio)


def reordered(hard: Tensor, soft: Tensor) -> Tensor:
    return (hard + soft) - soft.detach()


def without_gradient(hard: Tensor, soft: Tensor) -> Tensor:
    return hard


def floored(patches: int, keep_ratio: float) -> int:
    return math.floor(patches * keep_ratio)


def harmless(mask: Mask, logits: Tensor, decision: Any, score: Any) -> Tensor:
    return logits


def logistic(uniform: Tensor, clamp: float | None = None) -> Tensor:
    noise = torch.logit(uniform.clamp(1e-6, 1 - 1e-6))
    return noise if clamp is None else noise.clamp(-clamp, clamp)


def wide(score: Tensor) -> Tensor:
    return 20 * (score - 0.5)


BROKEN = [
    # claim, module, name, replacement, verdict before, verdict after
    (3, aggregation, "aggregated_count", rounded, "supported", "partly"),
    (4, aggregation, "aggregated_count", rounded, "refuted", "supported"),
    (2, selection, "kept_count", floored, "supported", "partly"),
    (9, axes, "straight_through", reordered, "supported", "partly"),
    (16, Mask, "masked", harmless, "refuted", "supported"),
    (26, axes, "straight_through", without_gradient, "partly", "supported"),
]


@pytest.mark.parametrize(("claim", "module", "name", "broken", "before", "after"), BROKEN)
def test_a_broken_rule_turns_the_verdict(
    monkeypatch: pytest.MonkeyPatch,
    claim: int,
    module: Any,
    name: str,
    broken: Any,
    before: str,
    after: str,
) -> None:
    assert word(claim) == before
    published.run.cache_clear()
    monkeypatch.setattr(module, name, broken)
    assert word(claim) == after


def test_another_normalisation_turns_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    assert word(13) == "refuted"
    published.run.cache_clear()
    monkeypatch.setitem(vars(axes.find("normalise", "minmax")), "apply", wide)
    assert word(13) == "supported"


def test_a_symmetric_noise_would_change_what_is_said_of_the_noise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from analysis.claims.checks import noise

    monkeypatch.setattr(noise, "gumbel_noise", logistic)
    assert word(11) == "supported"  # a two-sided noise makes the clamp two-sided


def test_a_cross_net_with_gradients_everywhere_turns_what_is_said_of_the_released_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert (word(20), word(21)) == ("refuted", "supported")
    monkeypatch.setitem(published._RELEASED, "no_grad", "none")
    assert (word(20), word(21)) == ("supported", "refuted")


def test_a_dense_text_that_is_ignored_leaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = crossmodal.CrossNet.forward

    def without_dense(
        self: crossmodal.CrossNet, images: Tensor, words: Tensor, lengths: Tensor, *_: Any
    ) -> crossmodal.Matches:
        return whole(self, images, words, lengths)

    assert word(57) == "refuted"
    monkeypatch.setattr(crossmodal.CrossNet, "forward", without_dense)
    assert word(57) == "supported"


def test_every_check_that_the_ledger_names_exists_and_none_is_left_over() -> None:
    named = {c.check.name for c in LEDGER.values() if c.check}
    assert named == set(CHECKS)
