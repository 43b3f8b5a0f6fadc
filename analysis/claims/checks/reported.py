"""Claims that the logs of the re-identification fork decide: one seed each, reported by others.

paper/reported/demo2_logs.csv holds best mAP and accuracy in per cent, as the logs print them.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator

from analysis.claims.verdicts import Statement, check
from sdtps.run.locations import shipped

LOGS = shipped("paper/reported") / "demo2_logs.csv"


def _settings(comparison: str) -> dict[tuple[str, str, str], dict[str, float]]:
    """(data set, recipe, version) -> setting -> value in per cent, in the order of the file."""
    found: dict[tuple[str, str, str], dict[str, float]] = {}
    with LOGS.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            if row["comparison"] == comparison:
                key = (row["dataset"], row["recipe"], row["version"])
                found.setdefault(key, {})[row["setting"]] = float(row["value"])
    return found


@check
def logged_difference(barely: float) -> Iterator[Statement]:
    """SDTPS minus baseline at one recipe, for each recipe that was logged for both.

    Args:
        barely: mAP difference (a fraction) up to which it does not matter.
    """
    for (dataset, recipe, version), values in _settings("sdtps_minus_baseline").items():
        difference = values["sdtps"] - values["baseline"]
        yield Statement(
            f"at most {barely * 100:g} mAP: {dataset}, {recipe}, {version}",
            abs(difference) <= barely * 100 + 1e-9,
            f"{difference:+.1f} mAP ({dataset}, {version})",
        )


@check
def logged_loss_weight(weight: float, baseline: float) -> Iterator[Statement]:
    """mAP by weight of the SDTPS branch's loss; `baseline` or the nearest logged weight below it."""
    for (dataset, recipe, _), values in _settings("loss_weight").items():
        by_weight = {float(w): v for w, v in values.items()}
        lower = [w for w in by_weight if w <= baseline] or [min(by_weight)]
        reference = max(lower)
        listed = ", ".join(f"{v} at weight {w:g}" for w, v in sorted(by_weight.items()))
        yield Statement(
            f"better at {weight:g} than at {reference:g}: {dataset}, {recipe}",
            by_weight[weight] > by_weight[reference],
            f"mAP {listed}",
        )


@check
def logged_accuracy(expected: list[list[float]]) -> Iterator[Statement]:
    """Training accuracy of the first epochs against the ranges expected for them."""
    for values in _settings("accuracy_by_epoch").values():
        for epoch, (low, high) in enumerate(expected, start=1):
            got = values[str(epoch)] / 100
            yield Statement(
                f"{low:.0%} to {high:.0%} in epoch {epoch}",
                low <= got <= high,
                f"accuracy {got:.0%} in epoch {epoch}",
            )


@check
def logged_losses(start: float) -> Iterator[Statement]:
    """First and last printed loss of the first epochs: `start` at first, and one less with each epoch.

    The expectation is a leading digit: 4.x in the first epoch falls to 3.x.
    """
    for (_, recipe, _), values in _settings("loss_by_epoch").items():
        for epoch in range(1, 1 + len(values) // 2):
            first, last = values[f"{epoch} first"], values[f"{epoch} last"]
            high = int(start) + 1 - epoch
            yield Statement(
                f"from {high}.x to {high - 1}.x in epoch {epoch}, {recipe}",
                (int(first), int(last)) == (high, high - 1),
                f"loss {first:.1f} to {last:.1f} in epoch {epoch} ({recipe})",
            )
