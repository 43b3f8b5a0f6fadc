"""`sdtps seeds`: what is decided, how many seeds settle the rest, and where seeds cannot help."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from planted import PERCENT, plant, planted_study
from scipy import stats as scipy_stats

from analysis.cli import main
from analysis.results import power, stats
from analysis.results.queries import Queries
from sdtps.run.queries import values_of

QUERIES = 24


def planted(tmp_path, monkeypatch, gaps, *, seeds=4, queries=False):
    study = planted_study("s", list(gaps), seeds=range(seeds), metrics={"mAP": PERCENT})
    rng = np.random.default_rng(1)
    for name, gap in gaps.items():
        for seed in study.seeds:
            ap = np.clip(0.6 + gap + rng.normal(0, 0.02) + rng.normal(0, 0.2, QUERIES), 0, 1)
            folder = plant(tmp_path, study, name, seed, scores={"mAP": [float(ap.mean())]})
            if queries:
                folder.write_queries(
                    {"AP": ap, "rank": np.ones(QUERIES), "identity": np.arange(QUERIES)}
                )
    monkeypatch.setattr("analysis.verbs.load", lambda _: [study])
    return study


def asked(tmp_path, capsys, *words):
    assert main(["seeds", "s", *words, "--runs-dir", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    return {row["variant"]: row for row in found["plans"]}, " ".join(found["advice"])


def test_open_differences_need_seeds_and_decided_ones_none(tmp_path, monkeypatch, capsys):
    planted(tmp_path, monkeypatch, {"base": 0.0, "far": 0.4, "near": 0.005})
    plans, advice = asked(tmp_path, capsys, "--difference", "5")
    assert plans["far"]["now"] == "starred" and plans["far"]["seeds"] is None
    assert plans["near"]["now"] == "open" and plans["near"]["seeds"] > 4
    more = plans["near"]["seeds"] - 4
    assert plans["near"]["hours"] == pytest.approx(more * 2 * 120 / 3600)
    assert f"seeds: [{', '.join(map(str, range(4 + more)))}]" in advice
    fewer, _ = asked(tmp_path, capsys, "--difference", "10")
    assert fewer["near"]["seeds"] < plans["near"]["seeds"]


@pytest.mark.parametrize("goal", ["--half-width", "--equivalent"])
def test_intervals_and_margins_can_be_asked_for(tmp_path, monkeypatch, capsys, goal):
    planted(tmp_path, monkeypatch, {"base": 0.0, "a": 0.0})
    wide, _ = asked(tmp_path, capsys, goal, "50")
    assert wide["a"]["now"] in ("narrow enough", "equivalent")
    tight, _ = asked(tmp_path, capsys, goal, "1")
    assert tight["a"]["seeds"] > 4


def test_a_small_test_set_is_named_where_seeds_cannot_help(tmp_path, monkeypatch, capsys):
    study = planted(tmp_path, monkeypatch, {"base": 0.0, "a": 0.0}, queries=True)
    plans, advice = asked(tmp_path, capsys, "--difference", "2")
    assert plans["a"]["too_few_queries"] and plans["a"]["queries"] > 2 / 2.8
    assert "seeds cannot help" in advice and "seeds: [" not in advice
    wide, _ = asked(tmp_path, capsys, "--difference", "40")
    assert not wide["a"]["too_few_queries"]
    assert main(["seeds", "s", "--difference", "2", "--runs-dir", str(tmp_path)]) == 0
    assert "test set is too small" in " ".join(capsys.readouterr().out.split())
    folder = next(run for run in study.runs()).folder(tmp_path)
    (folder / "queries.safetensors").write_bytes(b"torn")
    assert not asked(tmp_path, capsys, "--difference", "2")[0]["a"]["too_few_queries"]


def test_imported_runs_have_queries_from_a_file_beside_their_log(tmp_path, capsys):
    rng = np.random.default_rng(2)
    for variant, gap in (("baseline", 0.0), ("a", 0.02)):
        for seed in range(3):
            file = tmp_path / "logs" / variant / f"seed{seed}.jsonl"
            file.parent.mkdir(parents=True, exist_ok=True)
            ap = 0.6 + gap + rng.normal(0, 0.05, QUERIES)
            row = {"kind": "eval", "attempt": 1, "epoch": 1, "step": 1, "mAP": ap.mean()}
            file.write_text(json.dumps(row))
            lists = {"identity": [f"person {k}" for k in range(QUERIES)], "AP": list(ap)}
            file.with_suffix(".queries.json").write_text(json.dumps(lists))
    runs = ("--runs-dir", str(tmp_path / "runs"))
    words = ["import", str(tmp_path / "logs"), "--study", "s", *runs]
    assert main(words) == 0 and "6 runs" in capsys.readouterr().out
    plans, advice = asked(tmp_path / "runs", capsys, "--difference", "2")
    assert plans["a"]["too_few_queries"] and "seeds cannot help" in advice
    assert main(["compare", "s", "a", *runs, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["metrics"]["mAP"]
    assert found["queries"]["low"] < found["difference"]["low"]
    (tmp_path / "logs" / "a" / "seed0.queries.json").write_text('{"AP": [0.1')
    assert main(words) == 1 and "seed0.queries.json: torn" in capsys.readouterr().err
    assert not asked(tmp_path / "runs", capsys, "--difference", "2")[0]["a"]["too_few_queries"]


def test_values_of_queries_have_the_metrics_as_their_means(tmp_path):
    study = planted_study("s", ["a"], seeds=(0,))
    folder = plant(tmp_path, study, "a", 0)
    ranks = np.array([1, 2, 6, 1])
    folder.write_queries({"AP": np.full(4, 0.5), "rank": ranks, "identity": np.arange(4)})
    known = folder.queries()
    assert values_of(known, "mAP")[0].mean() == 0.5
    assert [values_of(known, f"rank{k}")[0].mean() for k in (1, 5, 10)] == [0.5, 0.75, 1.0]
    assert values_of(known, "rsum") is None


@pytest.mark.parametrize("n", [3, 6])
def test_power_is_that_of_the_t_test(n):
    sd = np.array([1.0, 2.0])
    t = scipy_stats.t.ppf(1 - 0.05 / 8, n - 1)
    expected = scipy_stats.nct.sf(t, n - 1, 3.0 * math.sqrt(n) / sd)
    assert power.starred(3.0, 4)(n, sd) == pytest.approx(expected)
    half = scipy_stats.t.ppf(0.975, n - 1) / math.sqrt(n)
    chance = scipy_stats.chi2.cdf((2.0 / half / sd) ** 2 * (n - 1), n - 1)
    assert power.narrow(2.0)(n, sd) == pytest.approx(chance)
    seen = np.sqrt(scipy_stats.chi2.ppf(np.linspace(0, 1, 2001)[1::2], n - 1) / (n - 1))[:, None]
    inside = scipy_stats.norm.cdf(4.0 * math.sqrt(n) / sd - scipy_stats.t.ppf(0.95, n - 1) * seen)
    chance = np.maximum(2 * inside - 1, 0).mean(axis=0)
    assert power.equivalent(4.0)(n, sd) == pytest.approx(chance, abs=0.01)


def test_spreads_are_moderated_by_other_variants():
    scores = np.array([[0.0, 1.0, 2.0], [0.0, 1.0, 2.1], [5.0, 6.0, 7.0]])
    known = power.spread([0.0, 0.0, 0.1], scores)
    assert (known.freedom, known.variance) == (4, pytest.approx(1 / 360))  # own 1 / 300, pooled 1 / 450
    assert power.spread([0.0, 0.2], scores[:2, :2]).freedom == 1  # nothing to borrow from


def test_the_error_of_queries_counts_identities_and_widens_the_interval():
    own = stats.summary([0.9, 1.0, 1.1])
    queries = Queries(np.repeat([0.0, 1.0, 2.0], 4), np.repeat([3, 7, 9], 4), own)
    assert queries.error == pytest.approx(1 / math.sqrt(3))
    low, high = queries.interval
    assert low < own.low and high > own.high
    few = Queries(np.full(4, 1.0), np.arange(4), own).interval
    assert few == pytest.approx((own.low, own.high))


def test_compare_says_which_side_is_higher_on_how_many_queries(tmp_path, monkeypatch, capsys):
    planted(tmp_path, monkeypatch, {"base": 0.0, "a": 0.1}, queries=True)
    words = ["compare", "s", "a", "base", "--runs-dir", str(tmp_path)]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["metrics"]["mAP"]
    assert found["queries"]["n"] == QUERIES and found["queries"]["higher"] > found["queries"]["lower"]
    assert found["queries"]["low"] <= found["difference"]["low"]
    assert main(words) == 0 and f"of {QUERIES} queries" in capsys.readouterr().out
