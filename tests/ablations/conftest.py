"""Fixtures of the dispatch tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ablations.slurm import commands as slurm
from tests.ablations.fakes import Fakes, fakes
from tests.ablations.plant import Queued

__all__ = ["fakes"]


@pytest.fixture
def queued(tmp_path: Path, fakes: Fakes) -> Queued:
    """One run, queued."""
    return Queued(tmp_path, fakes)


@pytest.fixture(autouse=True)
def _short_lookups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking for a job by its name repeatedly need not take a test's time."""
    monkeypatch.setattr(slurm, "LOOKUP_PAUSES", (0, 0, 0))


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests kill processes, not the machine: what is written need not be on the disk yet."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
