"""One frame holds every result: means, differences, families of tests and their stars."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from planted import PERCENT, plant, plant_all, planted_study
from scipy import stats as scipy_stats

from ablations.study.schema import MetricSpec, TableSpec
from analysis.results.frames import results
from analysis.runs.collect import collect
from analysis.tables import forms
from analysis.tables.study import table

NOISE = np.random.default_rng(3).normal(0.0, 0.002, (4, 5))


def planted(tmp_path, levels, *, seeds=5, lost=(), **fields):
    """A study whose variants reach these levels of mAP; `lost` are (variant, seed) that diverged."""
    study = planted_study("s", list(levels), seeds=range(seeds), metrics={"mAP": PERCENT}, **fields)
    for number, (name, level) in enumerate(levels.items()):
        for seed in range(seeds):
            state = "diverged" if (name, seed) in lost else "completed"
            value = level + float(NOISE[number % 4, seed])
            plant(tmp_path, study, name, seed, state=state, scores={"mAP": [value + 0.02, value]})
    return results(collect([study], tmp_path), study)


def test_a_row_holds_what_scipy_computes(tmp_path):
    found = planted(tmp_path, {"a": 0.7, "b": 0.75})
    row, base = found.get("b", "mAP"), found.get("a", "mAP")
    ours, theirs = list(row.values.values()), list(base.values.values())
    assert (row.n, row.planned, row.whole) == (5, 5, True)
    assert row.mean == pytest.approx(np.mean(ours)) and row.sd == pytest.approx(np.std(ours, ddof=1))
    test = scipy_stats.ttest_rel(ours, theirs)
    low, high = test.confidence_interval()
    assert (row.difference_low, row.difference_high) == pytest.approx((low, high))
    assert row.p == pytest.approx(test.pvalue) == row.adjusted_p and row.starred
    assert math.isnan(base.difference) and not base.starred


def test_the_best_epoch_has_no_star(tmp_path):
    found = planted(tmp_path, {"a": 0.7, "b": 0.75})
    best = found.get("b", "mAP", "best")
    assert best.p < 1e-3 and not best.starred and math.isnan(best.adjusted_p)


def test_a_difference_without_all_seeds_has_a_count_and_no_star(tmp_path):
    found = planted(tmp_path, {"a": 0.7, "b": 0.75, "c": 0.8}, lost={("b", 4)})
    lost, whole = found.get("b", "mAP"), found.get("c", "mAP")
    assert lost.p < 0.01 and not lost.starred and math.isnan(lost.adjusted_p)
    assert (lost.difference_n, lost.difference_planned) == (4, 5)
    assert whole.starred and whole.family_size == 2  # the lost one counts in Holm's family
    assert whole.adjusted_p == pytest.approx(2 * whole.p)


def test_seeds_of_the_baseline_that_are_lost_take_every_star(tmp_path):
    found = planted(tmp_path, {"a": 0.7, "b": 0.75, "c": 0.8}, lost={("a", 0)})
    assert not any(row.starred for row in found)


def test_tables_that_share_a_difference_are_one_family(tmp_path):
    tables = (
        TableSpec(name="first", baseline="a", rows=("a", "b", "c")),
        TableSpec(name="second", baseline="a", rows=("a", "c", "d")),
        TableSpec(name="alone", baseline="b", rows=("b", "d")),
    )
    found = planted(tmp_path, {"a": 0.7, "b": 0.71, "c": 0.72, "d": 0.73, "e": 0.74}, tables=tables)
    families = {v: found.get(v, "mAP").family for v in "bcde"}
    assert families == {**dict.fromkeys("bcd", "first and second"), "e": "study"}
    assert [found.get(v, "mAP").family_size for v in "bcde"] == [3, 3, 3, 1]


def test_imported_seeds_are_never_paired_with_ours(tmp_path):
    study = planted_study("s", ["a", "b"], metrics={"mAP": PERCENT})
    for seed in study.seeds:
        plant(tmp_path, study, "a", seed, scores={"mAP": [0.5 + 0.01 * seed]})
        plant(tmp_path, study, "b", seed, scores={"mAP": [0.6 + 0.01 * seed]}, imported=True)
    collected = collect([study], tmp_path)
    collected.runs = tuple(replace(run, planned=run.variant != "b") for run in collected.runs)
    found = results(collected, study)
    row = next(r for r in found if r.imported and r.n)
    assert not row.paired and not row.differences
    a, b = ([level + 0.01 * s for s in range(3)] for level in (0.5, 0.6))
    assert row.p == pytest.approx(scipy_stats.ttest_ind(b, a, equal_var=False).pvalue)


def test_a_metric_without_a_direction_has_no_arrow_and_no_best(tmp_path):
    study = planted_study("s", ["a", "b"], metrics={"x": MetricSpec(direction=None, unit="")})
    plant_all(tmp_path, study)
    made = table(collect([study], tmp_path), study, TableSpec(name="t"))
    text = forms.to_html(made) + forms.to_latex(made) + forms.to_markdown(made)
    assert not any(mark in text for mark in ("↑", "↓", "arrow", "<b>", r"\textbf", "**0"))
    assert "Bold" not in " ".join(made.caption)


def test_two_data_sets_never_share_a_table_without_saying_so(tmp_path):
    study = planted_study("s", ["a", "b"], metrics={"mAP": PERCENT})
    plant(tmp_path, study, "a", 0, data={"name": "rgbnt201"})
    plant(tmp_path, study, "b", 0, data={"name": "msvr310"})
    made = table(collect([study], tmp_path), study, TableSpec(name="t"))
    assert [made.cell(v, "dataset").plain for v in "ab"] == ["rgbnt201", "msvr310"]
