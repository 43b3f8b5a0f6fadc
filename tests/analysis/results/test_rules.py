"""The simulation of benchmarks/statistics.py: how often tables, verdicts and claims are wrong."""

from __future__ import annotations

import pytest

from benchmarks.statistics import SEEDS, simulate


@pytest.fixture(scope="module")
def rules():
    return {rule.name: rule for rule in simulate(120, seed=1)}


def test_no_rule_is_wrong_more_often_than_it_may(rules):
    assert SEEDS == (2, 3, 5) and len(rules) == 12
    for rule in rules.values():
        assert rule.holds, (rule.name, rule.rates, rule.limit)


def test_a_variant_that_lost_its_worst_seeds_is_never_starred(rules):
    assert set(rules["the same, a variant having lost its two worst seeds"].rates) == {0.0}
    assert set(rules["the same, at the best epoch"].rates) == {0.0}
