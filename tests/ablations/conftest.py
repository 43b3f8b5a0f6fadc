"""Fixtures of the dispatch tests."""

from __future__ import annotations

import pytest

from ablations import slurm
from tests.ablations.fakes import fakes

__all__ = ["fakes"]


@pytest.fixture(autouse=True)
def _short_lookups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking for a job by its name repeatedly need not take a test's time."""
    monkeypatch.setattr(slurm, "LOOKUP_PAUSES", (0, 0, 0))
