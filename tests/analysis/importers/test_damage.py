"""Whatever happened to a file, an importer reads what is left or says what is wrong."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from analysis.importers import store, verb
from analysis.importers.mapped import Options
from sdtps.run.folder import RunFolder
from tests.analysis.importers import logs

HEADS = {"ori": "60.1", "moe": "61.5", "[moe,ori]": "63.2"}
SAMPLES = {
    "demo": (
        "a.log",
        logs.demo_header(epochs=2) + logs.demo_epoch(1, HEADS) + logs.demo_epoch(2, HEADS),
    ),
    "fastreid": ("log.txt", logs.FASTREID),
    "seps": ("train.log", logs.SEPS),
    "lightning-csv": (
        "metrics.csv",
        "epoch,step,train_loss,val_mAP\n0,49,1.5,\n0,49,,40.4\n1,99,1.0,\n",
    ),
    "huggingface": (
        "trainer_state.json",
        json.dumps(
            {"log_history": [{"epoch": 1, "loss": 2.0, "step": 5}], "max_steps": 5, "global_step": 5}
        ),
    ),
    "csv": (
        "a.csv",
        "variant,seed,epoch,loss,val_mAP\na,0,1,2.5,70.1\na,0,2,1.5,71.3\nb,1,1,2.4,69.9\n",
    ),
    "lines": ("a.txt", "epoch 1 loss 2.5 acc 70.1\nepoch 2 loss 1.5 acc 71.3\nepoch 3 loss 1.1\n"),
    "jsonl": ("a.jsonl", '{"step": 1, "loss": 2.0}\n{"step": 2, "loss": 1.0, "val_mAP": 50.5}\n'),
}
METRICS = "metrics:\n  loss: {split: train}\n  val_mAP: {as: mAP, split: val}\n"
MAPPINGS = {
    "csv": "variant: variant\nseed: seed\nepoch: epoch\n" + METRICS,
    "jsonl": "step: step\n" + METRICS,
    "lines": "pattern: 'epoch (?P<epoch>\\S+) loss (?P<loss>\\S+)( acc (?P<val_mAP>\\S+))?'\n"
    "epoch: epoch\n" + METRICS,
}
JUNK = (
    b"\x00",
    b"\xff\xfe",
    b"\n",
    b"\r",
    b"nan",
    b"-1",
    b"99999999999999999999",
    b"\x1b[31m",
    b",",
    b'"',
    b": ",
)


def damaged(content: bytes, rng: random.Random) -> bytes:
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(content) + 1)
        action = rng.randrange(4)
        if action == 0:
            content = content[:at] + rng.choice(JUNK) + content[at:]
        elif action == 1:
            content = content[:at] + content[at + rng.randint(1, 40) :]
        elif action == 2:
            content = content[:at]
        else:
            end = rng.randrange(len(content) + 1)
            content = content[: max(at, end)] + content[min(at, end) :]
        content = content or b"x"
    return content


@pytest.mark.parametrize("format_name", SAMPLES)
def test_damaged_files_are_read_or_refused(tmp_path: Path, format_name: str) -> None:
    name, text = SAMPLES[format_name]
    path = tmp_path / name
    (tmp_path / "mapping.yaml").write_text(MAPPINGS.get(format_name, ""))
    rng = random.Random(format_name)
    read = 0
    for _ in range(250):
        path.write_bytes(damaged(text.encode(), rng))
        as_ = str(tmp_path / "mapping.yaml") if format_name in MAPPINGS else format_name
        runs, complaints = verb.read([path], verb.how(as_, Options(unit="percent")))
        assert runs or complaints
        read += bool(runs)
        for run in runs:
            assert all(row["step"] < 2**31 and row.get("epoch", 0) < 2**31 for row in run.rows)
        for run in store.settle(runs) if read < 20 else ():
            written = store.write(run, "s", tmp_path / "runs")
            assert RunFolder(written.path).run()["imported"]["sha256"] == run.sha256
            assert len(written.metrics()) == len(run.rows)
    assert read > 20 or format_name == "huggingface"  # JSON has no readable half
