"""The formats that need no mapping, and what an import writes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from analysis.cli import main
from analysis.importers import store, verb
from analysis.importers.mapped import Options
from analysis.importers.run import ImportedRun, LogError, fraction, percent
from sdtps.config.mapping import MappingError
from sdtps.run.folder import RunFolder
from tests.analysis.importers import logs


def read(path: Path, text: str | bytes, as_: str | None = None) -> ImportedRun:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    runs, complaints = verb.read([path], verb.how(as_, Options(unit="fraction")))
    assert not complaints, complaints
    (run,) = runs
    return run


def rows(run: ImportedRun, kind: str, *names: str) -> list[tuple]:
    return [tuple(r.get(n) for n in names) for r in run.rows if r["kind"] == kind]


def test_per_cents_and_fractions_are_exact_inverses() -> None:
    for tenths in range(1001):
        text = f"{tenths / 10:.1f}"
        assert percent(fraction(text)) == text


def test_fastreid(tmp_path: Path) -> None:
    run = read(tmp_path / "market" / "log.txt", logs.FASTREID)
    assert (run.format, run.variant, run.seed, run.state) == ("fastreid", "market", 7, "completed")
    assert rows(run, "train", "epoch", "step", "loss", "loss/cls", "lr") == [
        (1, 200, 9.1, 6.5, 3.5e-06),
        (2, 400, 3.1, 2.5, 3.5e-04),
    ]
    assert rows(run, "eval", "epoch", "rank1", "mAP", "mAP/DukeMTMC") == [
        (1, 0.9445, 0.873, 0.25),
        (2, 0.9545, 0.883, 0.26),
    ]
    assert run.config["MODEL.BACKBONE.NAME"] == "build_vit_backbone"
    assert run.best and run.best["epoch"] == 2


def test_early_fastreid_with_one_task_a_line(tmp_path: Path) -> None:
    prefix = "[06/09 20:28:08] fastreid.evaluation.testing INFO:"
    text = (
        "[06/09 20:28:00] fastreid.utils.events INFO: eta: 1:14:17  iter: 7999  "
        "total_loss: 51.4  lr: 3.50e-04\n"
        f"{prefix} Task: Rank-1\n{prefix} 82.5%\n{prefix} Task: mAP\n{prefix} 68.4%\n"
    )
    run = read(tmp_path / "old.log", text)
    assert rows(run, "eval", "step", "rank1", "mAP") == [(8000, 0.825, 0.684)]


def test_seps(tmp_path: Path) -> None:
    run = read(tmp_path / "vit_224" / "train.log", logs.SEPS)
    assert (run.format, run.variant, run.seed, run.state) == ("seps", "vit_224", 3, "completed")
    assert rows(run, "train", "epoch", "step", "loss") == [
        (1, 1, 105.3162),
        (1, 201, 50.5),
        (2, 908, 20.5),
    ]
    assert rows(run, "eval", "epoch", "i2t_r1", "t2i_r10", "rsum") == [
        (1, 0.601, 0.813, 4.432),
        (2, 0.621, 0.823, 4.512),
    ]
    assert run.best and run.best["epoch"] == 2
    assert (run.config["dataset"], run.config["num_epochs"]) == ("f30k", "2")
    (run,) = store.settle([read(tmp_path / "b.log", logs.SEPS.replace("seed=3, ", ""))])
    assert run.seed == 0 and any("seed 0" in note for note in run.notes)


def test_seps_one_line_form(tmp_path: Path) -> None:
    text = logs.SEPS.split("2025-11-27 10:03:00")[0]
    text += "Val: r1=60.1, r5=85.2, r10=91.3, medr=1.0, meanr=2.0, "
    text += "r1i=50.1, r5i=75.2, r10i=81.3, rsum=443.2, step=9\n"
    run = read(tmp_path / "a.log", text)
    assert rows(run, "eval", "i2t_r5", "t2i_r1", "rsum") == [(0.852, 0.501, 4.432)]


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        *((content, "fastreid") for content in (b"", b"hello\nworld\n", b"a,b\nc,d\n")),
        (bytes(range(256)) * 4, "--propose"),
        (LFS, "Git LFS"),
    ],
)
def test_what_nobody_recognises_is_refused_and_why(tmp_path: Path, content: bytes, told: str) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(content)
    runs, complaints = verb.read([path])
    assert not runs
    assert told in complaints[0] and str(path) in complaints[0]


def test_an_unknown_format_name_gets_the_nearest() -> None:
    with pytest.raises(MappingError, match="Did you mean 'huggingface'"):
        verb.how("hugingface", Options())


def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch) -> None:
    read(tmp_path / "a.log", logs.FASTREID)
    (tmp_path / "closed").mkdir()
    real = os.scandir

    def scandir(path):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    runs, complaints = verb.read([tmp_path])
    assert len(runs) == 1 and str(tmp_path / "closed") in complaints[0]


# -- written as run folders ----------------------------------------------------------------------


def test_import_writes_run_folders_that_analysis_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs_dir = tmp_path / "grid"
    read(
        logs_dir / "w_o msa & 5%.log",
        logs.demo_header(epochs=1) + logs.demo_epoch(1, {"[moe,ori]": "63.2"}),
    )
    read(logs_dir / "crashed.log", logs.demo_header() + logs.TRACEBACK)
    assert main(["import", str(logs_dir), "--runs-dir", str(tmp_path / "runs")]) == 0
    found = {
        RunFolder(p.parent).run()["variant"]: RunFolder(p.parent)
        for p in tmp_path.glob("runs/**/run.json")
    }
    assert set(found) == {"w_o msa & 5%", "crashed"}
    done, failed = found["w_o msa & 5%"], found["crashed"]
    assert done.path.parent.parent == tmp_path / "runs" / "_imported" / "grid"
    assert (result := done.result()) and result["best"]["mAP"] == 0.632
    assert done.run()["imported"]["sha256"] and done.run()["imported_config"]["SOLVER.SEED"] == "1111"
    assert failed.result() is None and failed.status()["state"] == "failed"
    assert "2 runs" in capsys.readouterr().out


def test_importing_again_replaces_and_never_touches_our_runs(tmp_path: Path, capsys) -> None:
    path = tmp_path / "grid" / "a.log"
    text = logs.demo_header(epochs=2) + logs.demo_epoch(1, {"[moe,ori]": "63.2"})
    read(path, text)
    words = ("import", str(path), "--runs-dir", str(tmp_path / "runs"))
    main(words)
    read(path, text + logs.demo_epoch(2, {"[moe,ori]": "64.2"}))
    main(words)
    (file,) = tmp_path.glob("runs/**/run.json")
    assert RunFolder(file.parent).result()["best"]["mAP"] == 0.642
    file.write_text("{}")
    assert main(words) == 2 and "no imported run" in capsys.readouterr().err


def test_copies_are_imported_once_and_namesakes_get_their_folder(tmp_path: Path) -> None:
    text = logs.demo_header(epochs=1) + logs.demo_epoch(1, {"[moe,ori]": "63.2"})
    for place, content in (("x", text), ("y", text), ("z", text.replace("63.2", "64.2"))):
        read(tmp_path / place / "a.log", content)
    runs, _ = verb.read([tmp_path])
    kept = store.settle(runs)
    assert [run.variant for run in kept] == ["x", "z"]
    assert any("byte-identical" in note for note in kept[0].notes)
    runs[2].variant = "x"  # nothing is averaged
    with pytest.raises(LogError, match="two logs for one variant and seed"):
        store.settle(runs)
