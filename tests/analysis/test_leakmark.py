"""Rows whose evaluation sees the query's own dense text are marked, and only those."""

from __future__ import annotations

from pathlib import Path

import pytest

from ablations.study.manifest import load_study
from analysis.runs.collect import collect
from analysis.tables.latex import latex_cell
from analysis.tables.study import tables

ABLATIONS = Path(__file__).parents[2] / "ablations"
SAID = "dense text of each query's own target image"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    study = load_study(ABLATIONS / "flickr30k.yaml")
    collected = collect([study], tmp_path_factory.mktemp("runs"))
    return {table.name: table for table in tables(collected, study)}


def names(table):
    return {row.key: row.cells[0].text for row in table.rows if row.cells}


def test_published_evaluation_is_marked(made):
    main = next(t for name, t in made.items() if name.endswith("main"))
    found = names(main)
    assert found["paper_vit224"].endswith("†") and found["released_swin384"].endswith("†")
    assert not found["laps_vit224"].endswith("†")
    assert any(SAID in note for note in main.notes)
    (cell,) = [row.cells[0] for row in main.rows if row.key == "paper_vit224"]
    assert latex_cell(cell).endswith(r"\ensuremath{\dagger}")


def test_rows_without_dense_text_and_metrics_that_name_theirs_need_no_mark(made):
    modules, leak = (next(t for n, t in made.items() if n.endswith(e)) for e in ("modules", "leak"))
    assert not names(modules)["only_sparse_text"].endswith("†")
    assert names(modules)["only_dense_text"].endswith("†")
    assert not any(name.endswith("†") for name in names(leak).values())
    assert not any(SAID in note for note in leak.notes)


def test_reported_numbers_carry_the_mark_of_their_variant(made):
    reported = next(t for name, t in made.items() if name.endswith("reported"))
    marked = [row for row in reported.rows if row.cells and row.cells[0].text.endswith("†")]
    assert marked and all(row.key.split("|")[0] != "laps_vit224" for row in marked)
