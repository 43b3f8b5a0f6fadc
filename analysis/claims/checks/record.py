"""Claims about DeMo2's 152 training logs: what their table, paper/reported/demo2_runs.csv, counts.

What a log says of itself (commit, options, seed, score) and what was found out about it (arithmetic,
the schedule that acted, which log has the same curve) stand in columns of their own.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping

from analysis.claims.verdicts import Statement, check
from sdtps.run.locations import shipped

RUNS = shipped("paper/reported") / "demo2_runs.csv"


def logs() -> list[dict[str, str]]:
    """The rows of the table, one for each log."""
    with RUNS.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def fits(row: Mapping[str, str], patterns: Mapping[str, str]) -> bool:
    """Whether each of these columns matches its pattern as a whole."""
    return all(re.fullmatch(pattern, row[column]) for column, pattern in patterns.items())


@check
def logged_runs(
    says: str,
    expected: list[int],
    of: Mapping[str, str] | None = None,
    which: Mapping[str, str] | None = None,
) -> Iterator[Statement]:
    """How many of some logs fit; without `which`, how many different curves they are.

    Args:
        expected: the claimed count and the claimed number that it is out of.
        of, which: column -> pattern.
    """
    among = [row for row in logs() if fits(row, of or {})]
    if which is None:
        count = len({row["same_curve_as"] or row["name"] for row in among})
    else:
        count = sum(fits(row, which) for row in among)
    yield Statement(says, [count, len(among)] == list(expected), f"{says}: {count} of {len(among)}")
