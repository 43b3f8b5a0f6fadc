"""Expressions, and training claims that runs decide, seed by seed, and that say which runs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from planted import plant, planted_study, reseal

from analysis.claims.runs import Call, Expression, ExpressionError, StudyRuns, statement
from analysis.claims.verdicts import Statement, verdict
from analysis.runs.collect import collect
from sdtps.run.folder import RunFolder

VALUES = {"a": 4.0, "b": 1.5, "lost": math.inf}


def read(call: Call) -> float:
    return VALUES[call.variant]


@pytest.mark.parametrize(
    ("text", "truth"),
    [
        ("peak_loss('a') >= 2 * peak_loss('b')", True),
        ("final('a', 'rank1') <= final('b', 'rank1') + 2.4", False),
        ("abs(final_loss('b') - final_loss('a')) / 2 < 1.3", True),
        ("1 < best('b', 'mAP') and not peak_loss('a') < 4", True),
        ("-final_loss('a') > 0 or max(final_loss('a'), final_loss('b')) == 4", None),
        ("peak_loss('lost') > 1e300", True),
    ],
)
def test_expressions_mean_what_python_would(text: str, truth: bool | None) -> None:
    if truth is None:  # == is left out: two measured numbers are never equal on purpose
        with pytest.raises(ExpressionError):
            Expression(text)
    else:
        assert Expression(text).value(read) is truth


def test_calls_are_listed_once_in_order() -> None:
    expression = Expression("final('b', 'mAP') < final('a', 'mAP') and final('b', 'mAP') > 0")
    assert [str(c) for c in expression.calls] == ["final(b, mAP)", "final(a, mAP)"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("peak_loss('a') >", "invalid syntax"),
        ("__import__('os').system('true') < 1", "unknown function"),
        ("open('/etc/passwd') < 1", "allowed: peak_loss, final_loss, final, best, abs, min, max"),
        ("peak_loss(a) < 1", "peak_loss('VARIANT')"),
        ("final('a') < 1", "final('VARIANT', 'METRIC')"),
        ("peak_loss('a').real < 1", "not allowed"),
        ("[peak_loss('a')] < 1", "not allowed"),
        ("peak_loss('a') < True", "not allowed"),
        ("peak_loss('a') + 1", "must be true or false"),
        ("1 < 2", "reads no run"),
        ("peak_loss('a') ** 2 < 1", "not allowed"),
        ("1 < peak_loss('a') < 2", "write a < b < c as a < b and b < c"),
    ],
)
def test_what_is_outside_the_language_is_refused_by_name(text: str, says: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        Expression(text)
    assert says in str(caught.value)


A, B = Call("final", ("a", "rank1")), Call("final", ("b", "rank1"))


@pytest.mark.parametrize(
    ("text", "a", "b", "holds"),
    [
        ("final('a', 'rank1') > final('b', 'rank1')", [0.9, 0.91, 0.92], [0.5, 0.52, 0.51], True),
        ("final('a', 'rank1') <= final('b', 'rank1')", [0.9, 0.91, 0.92], [0.5, 0.52, 0.51], False),
        ("final('a', 'rank1') > final('b', 'rank1')", [0.9, 0.5, 0.7], [0.6, 0.7, 0.65], None),
        # equivalence: shown, excluded, open
        ("abs(final('a', 'rank1') - final('b', 'rank1')) < 0.05", [0.9, 0.91], [0.901, 0.908], True),
        ("abs(final('a', 'rank1') - final('b', 'rank1')) > 0.05", [0.9, 0.91], [0.5, 0.52], True),
        ("abs(final('a', 'rank1') - final('b', 'rank1')) > 0.05", [0.9, 0.91], [0.901, 0.908], False),
        ("abs(final('a', 'rank1') - final('b', 'rank1')) > 0.05", [0.9, 0.8], [0.85, 0.86], None),
        # a diverged run is the worst; one of two says nothing
        ("final('a', 'rank1') > final('b', 'rank1')", [0.9, 0.8], [-math.inf, -math.inf], True),
        ("final('a', 'rank1') > final('b', 'rank1')", [-math.inf, 0.8], [0.7, 0.6], None),
        # one part that is false settles `and`, whatever the other
        (
            "final('a', 'rank1') < final('b', 'rank1') and final('a', 'rank1') > 0.8",
            [0.9, 0.8],
            [0.5, 0.41],
            False,
        ),
        ("not final('a', 'rank1') > final('b', 'rank1')", [0.9, 0.91], [0.5, 0.52], False),
    ],
)
def test_means_are_decided_by_intervals_or_left_open(
    text: str, a: list[float], b: list[float], holds: bool | None
) -> None:
    decision = Expression(text).decided({A: a, B: b})
    assert decision.holds is holds
    assert (decision.why != "") is (holds is None)


def test_two_variants_of_equal_truth_and_wide_seeds_are_rarely_said_to_differ() -> None:
    import numpy as np

    rng = np.random.default_rng(0)
    expression = Expression("abs(final('a', 'rank1') - final('b', 'rank1')) > 0.05")
    answers = []
    for _ in range(400):
        a, b = 0.6 + 0.08 * rng.standard_normal((2, 2))  # two seeds, sd of 8 points
        answers.append(expression.decided({A: list(a), B: list(b)}).holds)
    assert answers.count(True) <= 0.05 * len(answers)  # comparing means says so in 53 %
    assert answers.count(None) > 0.5 * len(answers)


# -- statements over runs -----------------------------------------------------------------------


STUDY = planted_study("gumbel", ["topk", "gumbel_tau1", "log"], seeds=(0, 1, 2))
EXPLODES = "peak_loss('gumbel_tau1') >= 2 * peak_loss('topk')"


def exploding(step: int) -> float:
    return 2.0 + step


def plant_study(runs: Path, *, gumbel: dict[int, dict[str, Any]] | None = None) -> None:
    """Top-K and the log mask train; Gumbel explodes, unless `gumbel` says otherwise for a seed."""
    for seed in STUDY.seeds:
        for variant in ("topk", "log"):
            scores = {"mAP": [0.3, 0.6], "rank1": [0.4, 0.7 + 0.01 * seed]}
            plant(runs, STUDY, variant, seed, scores=scores)
        fields = {"loss": exploding, "scores": {"mAP": [0.1, 0.1], "rank1": [0.1, 0.1]}}
        changed = (gumbel or {}).get(seed, {})
        if changed.get("state") != "missing":
            plant(runs, STUDY, "gumbel_tau1", seed, **{**fields, **changed})


def ask(runs: Path, text: str, over: str = "each_seed") -> Statement:
    study_runs = StudyRuns(collect([STUDY], runs), "gumbel")
    return statement(study_runs, "says", Expression(text), over)


def test_a_statement_holds_in_every_seed_and_names_the_runs_behind_it(tmp_path: Path) -> None:
    plant_study(tmp_path)
    answer = ask(tmp_path, EXPLODES)
    assert answer.holds is True
    assert len(answer.runs) == 6
    assert all((tmp_path / run / "result.json").exists() for run in answer.runs)
    # epochs are steps 1 to 5 and 6 to 10: means of 2 + step
    assert answer.numbers["peak_loss(gumbel_tau1), seed 1"] == pytest.approx(10.0)
    assert "peak loss of gumbel_tau1: 10.00 / 10.00 / 10.00" in answer.measured


def test_an_epoch_s_own_mean_is_read_where_the_trainer_wrote_it(tmp_path: Path) -> None:
    plant_study(tmp_path)
    folder = next(r for r in STUDY.runs() if (r.variant, r.seed) == ("gumbel_tau1", 0)).folder(tmp_path)
    row = {"attempt": 1, "kind": "train", "epoch": 2, "step": 10, "loss": 12.0, "epoch_loss": 77.0}
    RunFolder(folder).append_metrics(row)
    reseal(RunFolder(folder))
    answer = ask(tmp_path, EXPLODES)
    assert answer.numbers["peak_loss(gumbel_tau1), seed 0"] == 77.0


def test_a_diverged_run_counts_as_an_explosion_and_as_the_worst_score(tmp_path: Path) -> None:
    plant_study(tmp_path, gumbel={2: {"state": "diverged", "stop": (1, 3)}})
    assert ask(tmp_path, EXPLODES).holds is True
    worse = ask(tmp_path, "final('gumbel_tau1', 'rank1') <= final('topk', 'rank1') - 0.3")
    assert worse.holds is True
    assert worse.numbers["final(gumbel_tau1, rank1), seed 2"] == "diverged"
    assert "final Rank-1 (%) of gumbel_tau1: 10.0 / 10.0 / diverged" in worse.measured
    assert "of topk: 70.0 / 71.0 / 72.0" in worse.measured


def test_seeds_that_disagree_leave_the_claim_inconclusive(tmp_path: Path) -> None:
    calm = {"loss": lambda step: 1.0}
    plant_study(tmp_path, gumbel={0: calm})
    answer = ask(tmp_path, EXPLODES)
    assert answer.holds is None
    assert "2 of 3 seeds" in answer.why
    assert verdict([answer]).word == "inconclusive"


def test_a_missing_seed_leaves_it_inconclusive_and_gives_the_command(tmp_path: Path) -> None:
    plant_study(tmp_path, gumbel={1: {"state": "missing"}})
    answer = ask(tmp_path, EXPLODES)
    assert answer.holds is None
    assert "[1]" in answer.why
    assert "sdtps submit" in answer.why


def test_without_any_run_it_is_not_tested(tmp_path: Path) -> None:
    answer = ask(tmp_path, EXPLODES)
    assert verdict([answer]).word == "not tested"
    assert "sdtps submit" in answer.why


@pytest.mark.parametrize(
    "text",
    ["peak_loss('gumble') > 1", "final('topk', 'rank2') > 0.1"],
)
def test_what_the_study_lacks_is_named(tmp_path: Path, text: str) -> None:
    plant_study(tmp_path)
    answer = ask(tmp_path, text)
    assert answer.needs
    assert "gumble" in answer.why or "rank2" in answer.why


def test_a_mean_is_decided_by_its_interval_and_single_seeds_one_by_one(tmp_path: Path) -> None:
    plant_study(tmp_path)
    text = "final('topk', 'rank1') >= 0.705 - 0.03"  # 0.70, 0.71, 0.72: interval 0.685 to 0.735
    assert ask(tmp_path, text, over="mean").holds is True
    near = ask(tmp_path, "final('topk', 'rank1') >= 0.705", over="mean")
    assert near.holds is None and "3 seeds cannot tell" in near.why
    assert ask(tmp_path, "final('topk', 'rank1') >= 0.705").holds is None


def test_two_diverged_sides_are_not_compared(tmp_path: Path) -> None:
    plant_study(tmp_path, gumbel={s: {"state": "diverged", "stop": (1, 3)} for s in STUDY.seeds})
    plant_twice = "peak_loss('gumbel_tau1') >= 2 * final_loss('gumbel_tau1')"
    answer = ask(tmp_path, plant_twice)
    assert answer.holds is None
    assert "diverged" in answer.why
