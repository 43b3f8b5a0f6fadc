"""Makes `planted` importable by every test below tests/, and plants the study of hard cases once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def hard(tmp_path_factory):
    """The study of hard names and cases, its runs, and its tables by name."""
    from planted import hard_study, plant_hard

    from analysis.runs.collect import collect
    from analysis.runs.comparable import refuse_to_average
    from analysis.tables.study import tables

    study, runs = hard_study(), tmp_path_factory.mktemp("hard")
    plant_hard(runs, study)
    collected = collect([study], runs)
    marks = refuse_to_average(collected, allow={"missing"})
    return study, collected, {t.name: t for t in tables(collected, study, marks)}
