"""Seeds in rounds: shares of the error, stopping, waiting and lost seeds."""

from __future__ import annotations

import pytest

from analysis.results.rounds import Rounds, Values, decide, share

LOOKS = (5, 8, 12)
SEEDS = tuple(range(12))
BASE = {seed: 0.5 + 0.01 * (seed % 3) for seed in SEEDS}


def drawn(offset: float, spread: float, n: int = 12) -> dict[str, dict[int, float]]:
    """A variant's mAP: the baseline's plus an offset and a spread over seeds."""
    return {"mAP": {s: BASE[s] + offset + spread * (-1) ** s * (1 + s % 4) for s in SEEDS[:n]}}


def judged(values: Values, lost: dict[str, set[int]] | None = None) -> Rounds:
    full = {"base": {"mAP": BASE}, **values}
    return decide(full, "base", ["mAP"], SEEDS, LOOKS, {"mAP": 0.01}, lost)


def test_the_shares_of_all_looks_add_up_to_five_per_cent() -> None:
    total = sum(share(n, b, 20) for n, b in zip((5, 8, 12, 20), (0, 5, 8, 12), strict=True))
    assert total == pytest.approx(0.05)


def test_variants_stop_when_starred_or_equivalent_and_open_ones_go_on() -> None:
    found = judged({"far": drawn(0.3, 0.001), "same": drawn(0.0, 0.0005), "open": drawn(0.02, 0.02)})
    states = {name: found.verdicts[name, "mAP"].state for name in ("far", "same", "open")}
    assert states == {"far": "starred", "same": "equivalent", "open": "open"}
    assert found.seeds_of == {"far": 5, "same": 5, "open": 12, "base": 12}
    assert "open at 12 seeds" in found.why("open")


def test_a_look_waits_for_runs_that_are_not_finished() -> None:
    found = judged({"far": drawn(0.3, 0.001), "slow": drawn(0.02, 0.02, n=4)})
    assert found.verdicts["far", "mAP"].look == 0  # the family of the look is not complete yet
    assert "1 of 5 seeds not finished" in found.why("slow")
    assert set(found.seeds_of.values()) == {5}


def test_a_lost_seed_keeps_its_variant_open_and_holds_up_nobody() -> None:
    short = drawn(0.02, 0.02)
    del short["mAP"][2]
    found = judged({"far": drawn(0.3, 0.001), "dead": short}, lost={"dead": {2}})
    assert found.verdicts["far", "mAP"].state == "starred"
    assert found.verdicts["dead", "mAP"].state == "open"
    assert "seed 2 ended without a result" in found.why("dead")
    assert found.seeds_of["dead"] == 5


def test_a_lost_seed_of_the_baseline_ends_the_rounds() -> None:
    found = judged({"far": drawn(0.3, 0.001)}, lost={"base": {1}})
    assert found.verdicts["far", "mAP"].state == "open"
    assert "seed 1" in found.why("far")


def test_the_printed_p_is_read_at_five_per_cent_and_names_its_family() -> None:
    found = judged({"far": drawn(0.3, 0.001), "open": drawn(0.02, 0.02)}).verdicts["far", "mAP"]
    assert found.adjusted_p is not None and found.adjusted_p < 0.05
    assert (found.look, found.family) == (5, 2)
