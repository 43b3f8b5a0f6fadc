"""The simulation of benchmarks/statistics.py: how often tables, verdicts and claims are wrong."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.statistics import (
    SEEDS,
    Rule,
    _normal,
    equal_variants,
    simulate,
    starred_tables,
    table_results,
)


@pytest.fixture(scope="module")
def rules():
    return {rule.name: rule for rule in simulate(100, seed=1)}


def test_no_rule_is_wrong_more_often_than_it_may(rules):
    assert SEEDS == (2, 3, 5) and len(rules) == 27
    for rule in rules.values():
        assert rule.holds, (rule.name, rule.rates, rule.low, rule.high)
    assert rules["tables of equal variants with a star"].trials == 1000


def test_a_variant_that_lost_its_worst_seeds_is_never_starred(rules):
    assert set(rules["the same, a variant having lost its two worst seeds"].hits) == {0}
    assert set(rules["the same, at the best epoch"].hits) == {0}


@pytest.mark.parametrize("n", SEEDS)
def test_tables_tested_as_arrays_have_the_stars_of_the_frame(n):
    scores = equal_variants(np.random.default_rng(n), n, 400, _normal)
    starred = starred_tables(scores)
    chosen = [*np.flatnonzero(starred)[:8], *np.flatnonzero(~starred)[:8]]
    assert starred[chosen].sum() == 8
    for table in chosen:
        assert any(row.starred for row in table_results(scores[table])) == starred[table]


@pytest.mark.parametrize(("hits", "holds"), [(500, True), (560, True), (580, False)])
def test_a_rate_is_beyond_its_limit_only_where_chance_does_not_explain_it(hits, holds):
    assert Rule("r", (hits,), 10_000).holds is holds
    assert Rule("r", (hits,), 10_000, high=None).holds
