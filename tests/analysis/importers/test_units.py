"""Per cents or fractions: told from all logs of an import, never from a collapsed one alone."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from analysis.importers import command
from analysis.importers.record import LogError
from sdtps.run.folder import RunFolder

GOOD = "epoch,mAP,rank1\n1,40.5,50\n2,60.2,61.0\n"
COLLAPSED = "epoch,mAP,rank1\n1,0.6,0.9\n2,0.8,0.4\n"
LIGHTNING = "epoch,step,train_loss,val_mAP\n0,49,1.5,\n0,49,,0.8\n"
STATE = '{"global_step": 2, "max_steps": 2, "log_history": [{"step": 1, "epoch": 1, "eval_mAP": 0.8}]}'


def run(folder: Path, *words: str, **texts: str) -> dict[str, float]:
    """Best mAP by variant of logs that are imported together."""
    for name, text in texts.items():
        path = folder / name.replace("__", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    where = folder.parent / "runs"
    command.command(parser.parse_args([str(folder), "--study", "s", "--runs-dir", str(where), *words]))
    found = [RunFolder(p.parent) for p in sorted(where.glob("**/result.json"))]
    return {f.run()["variant"]: f.result()["best"]["mAP"] for f in found}


def test_a_collapsed_log_in_per_cent_is_no_good_one_in_fractions(tmp_path, capsys):
    best = run(tmp_path / "logs", topk__csv=GOOD, gumbel__csv=COLLAPSED)
    assert best == {"topk": 0.602, "gumbel": 0.008}
    out = capsys.readouterr().out
    assert "read as per cent: mAP, rank1, as topk.csv writes them (mAP 60.2)" in out


@pytest.mark.parametrize(
    "other", [{"metrics__csv": LIGHTNING}, {"trainer_state__json": STATE}], ids=["lightning", "hf"]
)
def test_so_it_is_in_every_format_that_does_not_say_its_unit(tmp_path, other):
    best = run(tmp_path / "logs", topk__csv=GOOD, **other)
    assert sorted(best.values()) == [0.008, 0.602]


def test_where_nothing_is_above_one_the_import_asks(tmp_path):
    with pytest.raises(LogError, match=r"mAP, rank1 of a.csv: no value is above 1.*--unit fraction"):
        run(tmp_path / "logs", a__csv=COLLAPSED)
    assert not (tmp_path / "runs").exists()
    assert run(tmp_path / "logs", "--unit", "percent") == {"a": 0.008}
    assert run(tmp_path / "logs", "--unit", "fraction") == {"a": 0.8}


def test_infinity_is_no_per_cent(tmp_path):
    with pytest.raises(LogError, match="no value is above 1"):
        run(tmp_path / "logs", a__csv="epoch,mAP\n1,0.5\n2,inf\n")


def test_fractions_cannot_be_above_one(tmp_path):
    with pytest.raises(LogError, match=r"topk.csv has mAP 60.2"):
        run(tmp_path / "logs", "--unit", "fraction", topk__csv=GOOD)


def test_accuracies_tell_nothing_of_ranks(tmp_path):
    with pytest.raises(LogError, match=r"s: mAP of a.csv"):
        run(tmp_path / "logs", a__csv="epoch,acc,mAP\n1,40,0.5\n")


def test_columns_and_formats_that_say_their_unit_are_not_asked_about(tmp_path):
    ours = '{"kind": "eval", "attempt": 1, "epoch": 1, "step": 2, "mAP": 0.5}\n'
    assert run(tmp_path / "logs", a__csv="epoch,mAP (%)\n1,0.8\n", ours__jsonl=ours) == {
        "a": 0.008,
        "ours": 0.5,
    }
