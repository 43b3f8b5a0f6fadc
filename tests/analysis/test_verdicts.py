"""The one rule from statements to verdicts."""

from __future__ import annotations

import pytest

from analysis.claims.verdicts import Statement, missing, verdict


def said(holds: bool | None, why: str = "") -> Statement:
    return Statement("x", holds, "measured", why=why)


@pytest.mark.parametrize(
    ("holds", "word"),
    [
        ([True, True], "supported"),
        ([False, False], "refuted"),
        ([True, False], "partly"),
        ([True, None], "inconclusive"),
        ([False, None], "inconclusive"),
    ],
)
def test_the_verdict_follows_from_the_statements(holds: list[bool | None], word: str) -> None:
    assert verdict([said(h) for h in holds]).word == word


def test_only_missing_data_makes_a_claim_not_tested_and_says_what_it_needs() -> None:
    found = verdict([missing("RGBNT201"), missing("RGBNT201")])
    assert (found.word, found.why) == ("not tested", "RGBNT201")
    assert verdict([missing("RGBNT201"), said(True)]).word == "inconclusive"
    assert verdict([said(None, "2 of 3 seeds")]).why == "2 of 3 seeds"


def test_a_test_that_says_nothing_is_a_fault() -> None:
    with pytest.raises(ValueError):
        verdict([])
