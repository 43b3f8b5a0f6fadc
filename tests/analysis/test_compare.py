"""Two variants compared: every statistic, or why so few seeds cannot give it."""

from __future__ import annotations

import pytest
from planted import plant, planted_study

from analysis.cli import main
from analysis.results.frames import results
from analysis.runs.collect import collect
from analysis.tables.command import compare


def answers(tmp_path, values, margin=None):
    study = planted_study("s", ["a", "b"], seeds=range(max(map(len, values.values()))))
    for variant, scores in values.items():
        for seed, score in enumerate(scores):
            plant(tmp_path, study, variant, seed, scores={"mAP": [score]})
    found = results(collect([study], tmp_path), study, "b")
    return compare(found, "a", "mAP", "last", margin)


def test_three_seeds_give_an_interval_and_no_sign_flip_test(tmp_path):
    answer = answers(tmp_path, {"a": [0.71, 0.73, 0.70], "b": [0.69, 0.70, 0.70]}, margin=10.0)
    assert answer["a"] == "71.3 ± 1.5 (n = 3, interquartile mean 71.3)"
    assert answer["difference"] == "+1.7 [-2.1, +5.5] (95 % t interval, 3 of 3 seeds, paired)"
    assert (
        answer["t test"]
        == "p = 0.1994 (of this comparison alone; differences taken to be normally distributed)"
    )
    assert answer["sign-flip test"].startswith("with 3 paired seeds the smallest possible p is 0.25")
    assert (
        answer["probability that a run of the first is better"] == "0.89 (3 of 3 against 3 of 3 runs)"
    )
    assert answer["equivalent within 10"] == "yes (p = 0.0055)"


def test_seven_seeds_reach_the_sign_flip_test(tmp_path):
    a = [0.70 + 0.01 * s for s in range(7)]
    answer = answers(tmp_path, {"a": a, "b": [v - 0.02 - 0.001 * i for i, v in enumerate(a)]})
    assert answer["sign-flip test"] == "p = 0.0156"


def test_an_unfinished_variant_is_said_to_be(tmp_path):
    answer = answers(tmp_path, {"a": [0.7, 0.8], "b": []})
    assert answer["b"] == "seeds 0, 1 not run"
    assert answer["difference"] == "no seed is finished in both variants"


def test_one_seed_gives_a_difference_and_nothing_more(tmp_path):
    answer = answers(tmp_path, {"a": [0.7], "b": [0.6]})
    assert answer["difference"] == "+10.0 (1 of 1 seeds, paired)"
    assert answer["t test"] == "an interval needs at least 2 paired seeds"


@pytest.mark.parametrize("margin", ["-1", "0", "nan", "inf", "x"])
def test_a_margin_that_cannot_be_is_refused(margin, capsys):
    assert main(["compare", "s.yaml", "a", "--margin", margin]) == 2
    assert "is no number above 0" in capsys.readouterr().err


def test_missing_seeds_are_counted_and_warned_of(tmp_path):
    answer = answers(tmp_path, {"a": [0.9], "b": [0.6, 0.7, 0.5, 0.6]})
    assert answer["a"] == "90.0 (n = 1 of 4, interquartile mean 90.0); seeds 1, 2, 3 not run"
    assert answer["difference"] == "+30.0 (1 of 4 seeds, paired)"
    assert "may be the better ones" in answer["missing seeds"]
    better = answer["probability that a run of the first is better"]
    assert better == "1.00 (1 of 4 against 4 of 4 runs)"
