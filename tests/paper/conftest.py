"""A paper built from planted runs: the real main.tex and sections, in a folder of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "analysis"))


def copy_sources(folder: Path) -> Path:
    """The project's paper below `folder`; returns main.tex."""
    from analysis.paper.verb import copy_sources

    copy_sources(folder)
    return folder / "main.tex"


@pytest.fixture(scope="session")
def paper_sources():
    """`copy_sources`, for tests that build a paper of their own."""
    return copy_sources


@pytest.fixture(scope="session")
def hard_paper(tmp_path_factory):
    """(main.tex, study, runs folder) of the study with hard names, built but not compiled."""
    from planted import hard_study, plant_hard

    from analysis.paper.build import Options, build

    root = tmp_path_factory.mktemp("paper")
    study = hard_study()
    plant_hard(root / "runs", study)
    main = copy_sources(root / "paper")
    options = Options(allow=("missing",), evidence=False, report=False)
    build([study], [], root / "runs", main.parent / "generated", options)
    return main, study, root / "runs"
