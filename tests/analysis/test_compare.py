"""Two variants compared: every statistic, or why so few seeds cannot give it."""

from __future__ import annotations

import json
import math

import pytest
from planted import plant, planted_study

from ablations.study.schema import MetricSpec
from analysis.cli import main
from analysis.questions.compare import compare, in_words
from analysis.results.frames import results
from analysis.runs.collect import collect
from analysis.verbs import print_json

METRIC = MetricSpec(direction="up", digits=1)


def answers(tmp_path, values, margin=None):
    study = planted_study("s", ["a", "b"], seeds=range(max(map(len, values.values()))))
    for variant, scores in values.items():
        for seed, score in enumerate(scores):
            plant(tmp_path, study, variant, seed, scores={"mAP": [score]})
    found = results(collect([study], tmp_path), study, "b")
    return compare(found, "a", "mAP", "last", margin)


def test_three_seeds_give_an_interval_and_no_sign_flip_test(tmp_path):
    answer = answers(tmp_path, {"a": [0.71, 0.73, 0.70], "b": [0.69, 0.70, 0.70]}, margin=10.0)
    assert (answer["a"]["mean"], answer["a"]["n"]) == (pytest.approx(0.71333, abs=1e-4), 3)
    difference = answer["difference"]
    ends = [difference[key] for key in ("mean", "low", "high")]
    assert ends == pytest.approx([0.01667, -0.02128, 0.05461], abs=1e-4) and difference["paired"]
    assert answer["t_test"]["p"] == pytest.approx(0.1994, abs=1e-4)
    assert answer["sign_flip_test"]["p"] is None and "0.25" in answer["sign_flip_test"]["why"]
    assert answer["equivalence"]["equivalent"] and answer["equivalence"]["margin"] == 0.1
    text = "\n".join(in_words(answer, METRIC))
    for part in ("71.3 ± 1.5 (n = 3", "+1.7 [-2.1, +5.5]", "p = 0.1994", "within 10.0: yes"):
        assert part in text


@pytest.mark.parametrize(
    ("a", "b", "mean", "n", "why"),
    [
        ([0.7, 0.8], [], math.nan, 0, "no seed has a value in both"),
        ([0.7], [0.6], 0.1, 1, "at least 2 seeds"),
        ([0.9], [0.6, 0.7, 0.5, 0.6], 0.3, 1, "at least 2 seeds"),
    ],
)
def test_what_few_seeds_cannot_give_is_null_and_says_why(tmp_path, capsys, a, b, mean, n, why):
    answer = answers(tmp_path, {"a": a, "b": b})
    difference = answer["difference"]
    assert difference["mean"] == pytest.approx(mean, nan_ok=True)
    assert difference["n"] == n and math.isnan(difference["low"]) and why in difference["why"]
    lost = [side["label"] for side in (answer["a"], answer["b"]) if "not run" in side["why"]]
    assert lost == [name for name, values in (("a", a), ("b", b)) if len(values) < max(len(a), len(b))]
    assert all(in_words(answer, METRIC))
    print_json(answer)
    assert json.loads(capsys.readouterr().out)["difference"]["low"] is None


@pytest.mark.parametrize("margin", ["-1", "0", "nan", "inf", "x"])
def test_a_margin_that_cannot_be_is_refused(margin, capsys):
    assert main(["compare", "s.yaml", "a", "--margin", margin]) == 2
    assert "is no number above 0" in capsys.readouterr().err


def test_a_variant_is_not_compared_with_itself(tmp_path, capsys):
    assert main(["compare", "quick", "topk", "topk", "--runs-dir", str(tmp_path)]) == 2
    assert "topk is compared with itself. Name two variants" in capsys.readouterr().err
