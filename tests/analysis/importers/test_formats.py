"""The other formats, each on a sample of our own, and telling them apart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from analysis.importers import command, store, table
from analysis.importers.run import ImportedRun, LogError, fraction, percent
from sdtps.run.folder import RunFolder
from tests.analysis.importers import logs


def read(path: Path, text: str | bytes, options: table.Options | None = None) -> ImportedRun:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    runs, complaints = command.read([path], options)
    assert not complaints, complaints
    (run,) = runs
    return run


FRACTIONS = table.Options(unit="fraction")


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


def test_seps_one_line_form(tmp_path: Path) -> None:
    text = logs.SEPS.split("2025-11-27 10:03:00")[0]
    text += "Val: r1=60.1, r5=85.2, r10=91.3, medr=1.0, meanr=2.0, "
    text += "r1i=50.1, r5i=75.2, r10i=81.3, rsum=443.2, step=9\n"
    run = read(tmp_path / "a.log", text)
    assert rows(run, "eval", "i2t_r5", "t2i_r1", "rsum") == [(0.852, 0.501, 4.432)]


def test_a_torn_line_of_seps_is_reported(tmp_path: Path) -> None:
    text = logs.SEPS.replace(
        "Image to text (R@1, R@5, R@10): 62.1, 86.2, 92.3", "Image to text (R@1, R@"
    )
    torn = text.split("\n")
    with_bare = "\n".join(line.split(",001 ", 1)[-1] for line in torn)
    run = read(tmp_path / "a.log", with_bare)
    assert [u.line for u in run.unread] == [9]


def test_lightning(tmp_path: Path) -> None:
    place = tmp_path / "my_run" / "version_0"
    place.mkdir(parents=True)
    (place / "hparams.yaml").write_text("lr: 1e-3\nseed: 4\nmax_epochs: 2\n")
    text = "epoch,step,train_loss,val_loss,val_mAP\n0,49,1.5,,\n0,49,,1.4,0.40\n"
    text += "1,99,1.0,,\n1,99,,1.2,0.55\n"
    run = read(place / "metrics.csv", text, FRACTIONS)
    assert (run.format, run.variant, run.seed, run.state) == ("lightning", "my_run", 4, "completed")
    assert rows(run, "train", "epoch", "step", "loss") == [(1, 50, 1.5), (2, 100, 1.0)]
    assert rows(run, "eval", "epoch", "mAP", "val_loss") == [(1, 0.4, 1.4), (2, 0.55, 1.2)]


def test_hugging_face(tmp_path: Path) -> None:
    history = [
        {"epoch": 0.5, "loss": 2.0, "learning_rate": 1e-4, "grad_norm": 3.0, "step": 50},
        {"epoch": 1.0, "eval_loss": 1.5, "eval_accuracy": 0.8, "eval_runtime": 3.0, "step": 100},
        {"epoch": 1.5, "loss": 1.0, "learning_rate": 5e-5, "grad_norm": 2.0, "step": 150},
        {"epoch": 2.0, "eval_loss": 1.6, "eval_accuracy": 0.7, "eval_runtime": 3.0, "step": 200},
        {"epoch": 2.0, "train_runtime": 60.5, "train_loss": 1.5, "step": 200},
    ]
    state = {"log_history": history, "global_step": 200, "max_steps": 200, "num_train_epochs": 2}
    state["best_model_checkpoint"] = "out/checkpoint-100"
    place = tmp_path / "tuned" / "checkpoint-200" / "trainer_state.json"
    run = read(place, json.dumps(state), FRACTIONS)
    assert (run.format, run.variant, run.state) == ("huggingface", "tuned", "completed")
    assert rows(run, "train", "epoch", "step", "loss", "lr") == [
        (1, 50, 2.0, 1e-4),
        (2, 150, 1.0, 5e-5),
    ]
    assert run.best and (run.best["step"], run.best["accuracy"]) == (100, 0.8)
    assert run.facts["train_seconds"] == 60.5
    state["global_step"], state["log_history"] = 150, history[:3]
    assert read(place, json.dumps(state), FRACTIONS).state == "incomplete"


def test_a_torn_trainer_state_is_an_error_that_says_where(tmp_path: Path) -> None:
    path = tmp_path / "trainer_state.json"
    path.write_text('{"log_history": [\n{"step": 1}')
    runs, complaints = command.read([path])
    assert not runs and "line 2" in complaints[0]


def test_tensorboard_and_a_restart_in_a_second_file(tmp_path: Path) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    place = tmp_path / "tb_run"
    for part, (start, offset) in enumerate(((0, 0.0), (3, 100.0))):
        writer = EventFileWriter(str(place), filename_suffix=f".{part}")
        for step in range(start, start + 5):
            for tag, value in (("train/loss", 0.1 * step + offset), ("val/mAP", 0.1 * step)):
                summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
                writer.add_event(
                    Event(wall_time=1000.0 * (part + 1) + step, step=step, summary=summary)
                )
        writer.close()
    runs, complaints = command.read([place], FRACTIONS)
    assert not complaints
    (run,) = runs
    assert (run.format, run.variant) == ("tensorboard", "tb_run")
    assert rows(run, "train", "step", "loss")[:4] == [(0, 0.0), (1, 0.1), (2, 0.2), (3, 100.3)]
    assert run.best and (run.best["step"], run.best["mAP"]) == (7, 0.7)
    torn = next(place.glob("*.1"))
    torn.write_bytes(torn.read_bytes()[:-7])
    assert command.read([place], FRACTIONS)[0][0].best["step"] == 6


def test_csv_with_several_runs_and_per_cents(tmp_path: Path) -> None:
    text = "\ufeffvariant;seed;epoch;loss;val_mAP (%)\r\nfull;0;1;2.5;70.1\r\n"
    text += "full;0;2;1.5;71.3\r\nfull;1;1;2.4;69.9\r\n"
    path = tmp_path / "grid.csv"
    path.write_bytes(text.encode() + b"full;1;2\r\n")
    runs, complaints = command.read([path])
    assert not complaints
    assert [(r.variant, r.seed, r.best["mAP"]) for r in runs if r.best] == [
        ("full", 0, 0.713),
        ("full", 1, 0.699),
    ]
    assert [u.line for u in runs[0].unread] == [5]


def test_numbers_with_a_decimal_comma_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("epoch;mAP;note\n1;0,5;a\n2;0,6;b\n")
    runs, complaints = command.read([path])
    assert not runs and "line 2: column 'mAP' holds '0,5'" in complaints[0]


def test_json_lines_with_nested_keys_and_a_torn_line(tmp_path: Path) -> None:
    text = '{"step": 1, "train": {"loss": 2.0}}\n{"step": 2, "train": {"loss": NaN}}\n{"step": 3, "tra'
    run = read(tmp_path / "seed5.jsonl", text)
    assert rows(run, "train", "step", "loss")[0] == (1, 2.0)
    assert [u.line for u in run.unread] == [3]
    assert (run.state, run.seed) == ("diverged", 5)


def test_our_own_metrics_read_back(tmp_path: Path) -> None:
    own = RunFolder(tmp_path / "ours")
    own.path.mkdir()
    for step in (1, 2):
        own.append_metrics(
            {"kind": "train", "attempt": 1, "epoch": 1, "step": step, "loss": 1.0 / step}
        )
    own.append_metrics({"kind": "eval", "attempt": 1, "epoch": 1, "step": 2, "mAP": 0.5})
    runs, _ = command.read([own.metrics_file])
    assert runs[0].rows == own.metrics()


@pytest.mark.parametrize("content", [b"", b"hello\nworld\n", bytes(range(256)) * 4, b"a,b\nc,d\n"])
def test_what_nobody_recognises_is_refused_with_the_known_formats(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(content)
    runs, complaints = command.read([path])
    assert not runs
    assert "fastreid" in complaints[0] and str(path) in complaints[0]


def test_an_unknown_format_name_gets_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="Did you mean 'fastreid'"):
        command.read([tmp_path], format_name="fastried")


# -- written as run folders ----------------------------------------------------------------------


def arguments(*words: str):
    import argparse

    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(list(words))


def test_import_writes_run_folders_that_analysis_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs_dir = tmp_path / "grid"
    read(
        logs_dir / "w_o msa & 5%.log",
        logs.demo_header(epochs=1) + logs.demo_epoch(1, {"[moe,ori]": "63.2"}),
    )
    read(logs_dir / "crashed.log", logs.demo_header() + logs.TRACEBACK)
    assert command.command(arguments(str(logs_dir), "--runs-dir", str(tmp_path / "runs"))) == 0
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


def test_importing_again_replaces_and_never_touches_our_runs(tmp_path: Path) -> None:
    path = tmp_path / "grid" / "a.log"
    text = logs.demo_header(epochs=2) + logs.demo_epoch(1, {"[moe,ori]": "63.2"})
    read(path, text)
    words = (str(path), "--runs-dir", str(tmp_path / "runs"))
    command.command(arguments(*words))
    read(path, text + logs.demo_epoch(2, {"[moe,ori]": "64.2"}))
    command.command(arguments(*words))
    (file,) = tmp_path.glob("runs/**/run.json")
    assert RunFolder(file.parent).result()["best"]["mAP"] == 0.642
    file.write_text("{}")
    with pytest.raises(LogError, match="no imported run"):
        command.command(arguments(*words))


def test_strict_writes_nothing_when_a_line_cannot_be_read(tmp_path: Path) -> None:
    read(tmp_path / "grid" / "a.log", logs.demo_header() + logs.demo_epoch(1, {"[moe,ori]": "6?.2"}))
    with pytest.raises(LogError, match="nothing was written"):
        command.command(
            arguments(str(tmp_path / "grid"), "--strict", "--runs-dir", str(tmp_path / "runs"))
        )
    assert not (tmp_path / "runs").exists()


def test_copies_are_imported_once_and_namesakes_get_their_folder(tmp_path: Path) -> None:
    text = logs.demo_header(epochs=1) + logs.demo_epoch(1, {"[moe,ori]": "63.2"})
    for place, content in (("x", text), ("y", text), ("z", text.replace("63.2", "64.2"))):
        read(tmp_path / place / "a.log", content)
    runs, _ = command.read([tmp_path])
    kept = store.settle(runs)
    assert [run.variant for run in kept] == ["x", "z"]
    assert any("byte-identical" in note for note in kept[0].notes)


def test_unknown_seeds_are_numbered_and_said_so(tmp_path: Path) -> None:
    read(tmp_path / "a.csv", "epoch,loss\n1,2.0\n")
    runs, _ = command.read([tmp_path / "a.csv"])
    (run,) = store.settle(runs)
    assert run.seed == 0 and any("nothing tells its seed" in note for note in run.notes)
