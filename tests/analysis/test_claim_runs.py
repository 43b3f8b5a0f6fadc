"""Statements over runs: decided by intervals or seed by seed, and they say which runs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from planted import plant, planted_study, reseal

from analysis.claims.runs import Comparison, statement
from analysis.claims.verdicts import Statement, verdict
from analysis.runs.collect import collect
from sdtps.run.folder import RunFolder

ABOVE, BELOW, APART = ({"relation": word} for word in ("above", "below", "apart"))


def compare(value: str = "rank1", of: str = "a", than: str = "b", **keys: Any) -> Comparison:
    return Comparison(says="says", value=value, of=of, than=than, **keys)


@pytest.mark.parametrize(
    ("keys", "a", "b", "holds"),
    [
        (ABOVE, [0.9, 0.91, 0.92], [0.5, 0.52, 0.51], True),
        (BELOW, [0.9, 0.91, 0.92], [0.5, 0.52, 0.51], False),
        (ABOVE, [0.9, 0.5, 0.7], [0.6, 0.7, 0.65], None),
        ({**ABOVE, "times": 2}, [0.9, 0.91], [0.4, 0.41], True),
        ({**BELOW, "plus": -0.3}, [0.5, 0.51], [0.7, 0.72], False),
        # equivalence: shown, excluded, open
        ({**APART, "plus": 0.05}, [0.9, 0.91], [0.5, 0.52], True),
        ({**APART, "plus": 0.05}, [0.9, 0.91], [0.901, 0.908], False),
        ({**APART, "times": 1.1}, [0.9, 0.91], [0.901, 0.908], False),
        ({**APART, "plus": 0.05}, [0.9, 0.8], [0.85, 0.86], None),
        # a diverged run is the worst; one of two says nothing
        (ABOVE, [0.9, 0.8], [-math.inf, -math.inf], True),
        (ABOVE, [-math.inf, 0.8], [0.7, 0.6], None),
    ],
)
def test_means_are_decided_by_intervals_or_left_open(
    keys: dict[str, Any], a: list[float], b: list[float], holds: bool | None
) -> None:
    decision = compare(**keys).decided(a, b)
    assert decision.holds is holds
    assert (decision.why != "") is (holds is None)


def test_two_variants_of_equal_truth_and_wide_seeds_are_rarely_said_to_differ() -> None:
    rng = np.random.default_rng(0)
    claimed = compare(**APART, plus=0.05)
    answers = []
    for _ in range(400):
        a, b = 0.6 + 0.08 * rng.standard_normal((2, 2))  # two seeds, sd of 8 points
        answers.append(claimed.decided(list(a), list(b)).holds)
    assert answers.count(True) <= 0.05 * len(answers)  # comparing means says so in 53 %
    assert answers.count(None) > 0.5 * len(answers)


# -- statements over runs -----------------------------------------------------------------------


STUDY = planted_study("gumbel", ["topk", "gumbel_tau1", "log"], seeds=(0, 1, 2))
TAU1: dict[str, Any] = {"of": "gumbel_tau1", "than": "topk"}
EXPLODES = compare("peak_loss", **TAU1, relation="above", times=2, over="each_seed")


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


def ask(runs: Path, claimed: Comparison = EXPLODES) -> Statement:
    return statement(collect([STUDY], runs), STUDY, claimed)


def test_a_statement_holds_in_every_seed_and_names_the_runs_behind_it(tmp_path: Path) -> None:
    plant_study(tmp_path)
    answer = ask(tmp_path)
    assert answer.holds is True
    assert len(answer.runs) == 6
    assert all((tmp_path / run / "result.json").exists() for run in answer.runs)
    # epochs are steps 1 to 5 and 6 to 10: means of 2 + step
    assert answer.numbers["peak_loss of gumbel_tau1, seed 1"] == pytest.approx(10.0)
    assert "peak loss of gumbel_tau1: 10.00 / 10.00 / 10.00" in answer.measured


def test_an_epoch_s_own_mean_is_read_where_the_trainer_wrote_it(tmp_path: Path) -> None:
    plant_study(tmp_path)
    folder = next(r for r in STUDY.runs() if (r.variant, r.seed) == ("gumbel_tau1", 0)).folder(tmp_path)
    row = {"attempt": 1, "kind": "train", "epoch": 2, "step": 10, "loss": 12.0, "epoch_loss": 77.0}
    RunFolder(folder).append_metrics(row)
    reseal(RunFolder(folder))
    answer = ask(tmp_path)
    assert answer.numbers["peak_loss of gumbel_tau1, seed 0"] == 77.0


def test_a_diverged_run_counts_as_an_explosion_and_as_the_worst_score(tmp_path: Path) -> None:
    plant_study(tmp_path, gumbel={2: {"state": "diverged", "stop": (1, 3)}})
    assert ask(tmp_path).holds is True
    worse = ask(tmp_path, compare(**TAU1, relation="below", plus=-0.3, over="each_seed"))
    assert worse.holds is True
    assert worse.numbers["rank1 of gumbel_tau1, seed 2"] == "diverged"
    assert "final Rank-1 (%) of gumbel_tau1: 10.0 / 10.0 / diverged" in worse.measured
    assert "of topk: 70.0 / 71.0 / 72.0" in worse.measured


def test_seeds_that_disagree_leave_the_claim_inconclusive(tmp_path: Path) -> None:
    calm = {"loss": lambda step: 1.0}
    plant_study(tmp_path, gumbel={0: calm})
    answer = ask(tmp_path)
    assert answer.holds is None
    assert "2 of 3 seeds" in answer.why
    assert verdict([answer]).word == "inconclusive"


def test_a_missing_seed_leaves_it_inconclusive_and_gives_the_command(tmp_path: Path) -> None:
    plant_study(tmp_path, gumbel={1: {"state": "missing"}})
    answer = ask(tmp_path)
    assert answer.holds is None
    assert "[1]" in answer.why
    assert "sdtps submit" in answer.why


def test_without_any_run_it_is_not_tested(tmp_path: Path) -> None:
    answer = ask(tmp_path)
    assert verdict([answer]).word == "not tested"
    assert "sdtps submit" in answer.why


@pytest.mark.parametrize("wrong", [{"of": "gumble"}, {"value": "rank2"}])
def test_what_the_study_lacks_is_named(tmp_path: Path, wrong: dict[str, str]) -> None:
    plant_study(tmp_path)
    answer = ask(tmp_path, compare(**{**TAU1, "relation": "above", **wrong}))
    assert answer.needs and set(wrong.values()) <= set(answer.why.split())


def test_a_mean_is_decided_by_its_interval_and_single_seeds_one_by_one(tmp_path: Path) -> None:
    plant_study(tmp_path)
    calm = {"of": "topk", "than": "gumbel_tau1", "relation": "above"}  # 0.70, 0.71, 0.72; 0.1
    assert ask(tmp_path, compare(**calm, plus=0.57)).holds is True  # interval 0.585 to 0.635
    near = ask(tmp_path, compare(**calm, plus=0.605))
    assert near.holds is None and "3 seeds cannot tell" in near.why
    single = ask(tmp_path, compare(**calm, plus=0.605, over="each_seed"))
    assert single.holds is None and "true in 2 of 3 seeds" in single.why


def test_two_diverged_sides_are_not_compared(tmp_path: Path) -> None:
    plant_study(tmp_path, gumbel={s: {"state": "diverged", "stop": (1, 3)} for s in STUDY.seeds})
    answer = ask(tmp_path, EXPLODES.model_copy(update={"than": "gumbel_tau1"}))
    assert answer.holds is None
    assert "diverged" in answer.why


def test_the_loss_of_an_epoch_that_was_not_reached_is_not_logged(tmp_path: Path) -> None:
    plant_study(tmp_path)
    first = EXPLODES.model_copy(update={"value": "loss_of_epoch_1"})
    assert ask(tmp_path, first).numbers["loss_of_epoch_1 of gumbel_tau1, seed 1"] == 5.0
    third = ask(tmp_path, EXPLODES.model_copy(update={"value": "loss_of_epoch_3"}))
    assert third.holds is None and "logged no loss_of_epoch_3" in third.why
