"""Which of the changes did it: planted studies with a known cause, and the search by explosions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import t

from ablations.study.attribution import both_ends
from analysis.results.effects import Changes, Effects, effects, majority, search

SETTINGS = ["a", "b", "c", "d"]


def planted(truth: Callable[[Changes], float], n: int = 5, settings: list[str] = SETTINGS) -> Effects:
    """Five seeds a cell; broken cells spread four times as much."""
    rng = np.random.default_rng(3)
    cells = {}
    for chosen in both_ends(settings):
        level = truth(chosen)
        values = 100 - 60 * level + rng.normal(0, 1 + 3 * level, n)
        cells[chosen] = dict(enumerate(map(float, values)))
    return effects(settings, cells, n)


@pytest.mark.parametrize(
    ("truth", "patterns"),
    [
        (lambda s: float("a" in s), {"a": "alone"}),
        (lambda s: 0.6 * ("a" in s) + 0.4 * ("b" in s), {"a": "alone", "b": "alone"}),
        (lambda s: float({"a", "b"} <= s), {"a": "with another", "b": "with another"}),
        (lambda s: float("a" in s or "b" in s), {"a": "either", "b": "either"}),
    ],
    ids=["one change", "two that add up", "both needed", "either suffices"],
)
def test_planted_causes_are_named_with_their_pattern(
    truth: Callable[[Changes], float], patterns: dict[str, str]
) -> None:
    found = planted(truth)
    assert {c: found.pattern(c) for c in SETTINGS} == {**dict.fromkeys(SETTINGS, "none"), **patterns}


def test_the_parts_of_a_change_add_up_and_an_interaction_is_seen() -> None:
    share = planted(lambda s: float({"a", "b"} <= s)).shares["a"]
    whole, interaction = share.whole.mean, share.interaction
    assert share.alone.mean + share.others.mean + interaction.mean == pytest.approx(whole)
    assert whole == pytest.approx(-60, abs=5) and interaction.high < 0


def test_an_interval_is_welch_s_with_variances_moderated_by_cells_of_the_same_state() -> None:
    rng = np.random.default_rng(1)
    drawn = {s: rng.normal(50 * ("a" in s), 1 + 2 * ("a" in s), 4) for s in both_ends(["a", "b", "c"])}
    good = {s: values.var(ddof=1) for s, values in drawn.items() if "a" not in s}
    ends = (frozenset("b"), frozenset[str]())
    parts = [(3 * good[s] + 2 * np.mean([v for o, v in good.items() if o != s])) / 5 / 4 for s in ends]
    half = t.ppf(0.975, 5 * sum(parts) ** 2 / sum(p**2 for p in parts)) * sum(parts) ** 0.5
    cells = {s: dict(enumerate(map(float, values))) for s, values in drawn.items()}
    found = effects(["a", "b", "c"], cells, 4).of("b")["good"]
    difference = drawn[ends[0]].mean() - drawn[ends[1]].mean()
    assert (found.low, found.high) == pytest.approx((difference - half, difference + half))


def test_a_setting_that_does_nothing_by_construction_is_shown_as_equal() -> None:
    cells = {s: {0: 1.0, 1: 1.1, 2: 0.9} for s in both_ends(["a", "b"])}
    found = effects(["a", "b"], cells, 3, equal=lambda one, other: one ^ other == {"a"})
    assert {e.untested for e in found.of("a").values()} == {"equal by construction"}
    assert found.pattern("a") == "none"


def test_a_cell_with_a_lost_seed_has_no_test_and_the_setting_stays_open() -> None:
    rng = np.random.default_rng(0)
    cells = {s: dict(enumerate(map(float, rng.normal(0, 1, 5)))) for s in both_ends(SETTINGS)}
    del cells[frozenset("a")][4]
    found = effects(SETTINGS, cells, 5)
    assert found.of("a")["good"].untested == "a seed has no result"
    assert found.pattern("a") == "open"


@pytest.mark.parametrize(
    ("explodes", "named"),
    [
        (lambda s: "c" in s, [{"c"}]),
        (lambda s: {"a", "d"} <= s, [{"a", "d"}]),
        (lambda s: "a" in s or "d" in s, [{"a"}, {"d"}]),
        (lambda s: {"a", "b", "c"} <= s, [{"a", "b", "c"}]),
        (lambda s: {"a", "b"} <= s or {"c", "d"} <= s, [{"a", "b"}, {"c", "d"}]),
    ],
)
def test_the_search_finds_every_minimal_set_and_needs_few_cells(
    explodes: Callable[[Changes], bool], named: list[set[str]]
) -> None:
    known: dict[Changes, bool] = {}
    while needed := search(SETTINGS, known.get).needed:
        assert not known.keys() & set(needed)
        known |= {cell: explodes(cell) for cell in needed}
    found = search(SETTINGS, known.get)
    assert [set(s) for s in found.named] == named
    assert len(known) <= 2 ** len(SETTINGS)


@pytest.mark.parametrize(
    ("answer", "text"), [(True, "good variant explodes"), (False, "does not explode")]
)
def test_ends_that_are_not_as_they_should_be_end_the_search(answer: bool, text: str) -> None:
    assert text in search(SETTINGS, lambda _: answer).refusal


@pytest.mark.parametrize(
    ("outcomes", "answer"),
    [([], None), ([True], None), ([True, True], True), ([False, False], False), ([True, False], None)],
)
def test_two_of_three_seeds_decide_a_cell(outcomes: list[bool], answer: bool | None) -> None:
    assert majority(outcomes) is answer
