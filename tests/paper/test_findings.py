"""What the tables show is said in words, whatever it is."""

from __future__ import annotations

from planted import plant, planted_study

from analysis.paper.findings import findings
from analysis.results.frames import results
from analysis.runs.collect import collect

SPREAD = {0: 0.0, 1: 0.006, 2: -0.005, 3: 0.002, 4: -0.003}


def said(tmp_path, levels, seeds=(0, 1, 2), other=()):
    """The findings of a study whose variants reach these levels of mAP; the first is the baseline."""
    study = planted_study("s", list(levels), seeds=seeds)
    for number, (name, level) in enumerate(levels.items()):
        for seed in seeds:
            if (name, seed) in dict(other):
                plant(tmp_path, study, name, seed, **dict(other)[name, seed])
                continue
            # Seeds move all variants alike, up to a small part of their own.
            own = 0.001 * ((seed * 7 + number * 3) % 5 - 2) if number else 0.0
            value = level + SPREAD[seed] + own
            plant(tmp_path, study, name, seed, scores={"mAP": [value], "rank1": [value]})
    return " ".join(findings(results(collect([study], tmp_path), study)))


def test_a_variant_above_the_baseline_is_named_as_the_best(tmp_path):
    text = said(tmp_path, {"topk": 0.7, "without": 0.8, "bad": 0.2})
    assert "By mAP at the last epoch, without is best with 80." in text
    assert "the baseline, topk, has 70." in text
    assert "above the baseline" in text and "without (+10." in text
    assert "below the baseline" in text and "bad (−50." in text


def test_the_baseline_is_named_where_it_is_the_best(tmp_path):
    text = said(tmp_path, {"topk": 0.9, "bad": 0.2})
    assert "the baseline, topk, is best with 90." in text


def test_what_cannot_be_told_from_the_baseline_is_said_with_the_reach_of_its_interval(tmp_path):
    text = said(tmp_path, {"topk": 0.7, "same": 0.7005, "bad": 0.2}, seeds=(0, 1))
    assert "same cannot be told from the baseline with 2 seeds" in text
    assert "The half width of their intervals is" in text


def test_a_seed_that_diverged_is_told_and_its_variant_is_not_best(tmp_path):
    broken = {("fragile", 1): {"state": "diverged", "stop": (1, 3)}}
    text = said(tmp_path, {"topk": 0.7, "fragile": 0.9}, other=broken)
    assert "topk, is best" in text
    assert "fragile is not whole: seed 1 diverged" in text
