"""Live loggers, each with its real package, offline: the same numbers, soon, at no risk to the run."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sdtps.config import ProgramConfig, identity
from sdtps.run.folder import RunFolder
from sdtps.training import loggers, program
from sdtps.training.loggers import Loggers

Curves = dict[str, list[tuple[int, float]]]
ROWS = [
    {"kind": "train", "epoch": 1, "step": 1, "loss": 0.1 + 0.2, "lr": 1e-3, "time": 1.0},
    {"kind": "train", "epoch": 1, "step": 2, "loss": float("nan"), "lr": 1e-3, "time": 2.0},
    {"kind": "event", "event": "resumed", "step": 2},
    {"kind": "eval", "epoch": 1, "step": 2, "mAP": 1 / 3, "rank-1": 0.5, "time": 3.0},
]
MORE = {"kind": "train", "epoch": 2, "step": 3, "loss": 0.25, "lr": 1e-4, "time": 4.0}
EXPECTED: Curves = {
    "train/loss": [(1, 0.1 + 0.2), (3, 0.25)],
    "train/lr": [(1, 1e-3), (2, 1e-3), (3, 1e-4)],
    "eval/mAP": [(2, 1 / 3)],
    "eval/rank-1": [(2, 0.5)],
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    for name in ("MLFLOW_TRACKING_URI", "WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    folder = RunFolder(tmp_path / "runs" / "study" / "variant" / "seed0-abc")
    config = ProgramConfig(command="true {seed}")
    folder.create(config, {"study": "study", "variant": "variant", "seed": 0})
    return folder


def _tensorboard(folder: RunFolder) -> Curves:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder.path / "tensorboard"))
    events.Reload()
    return {k: [(e.step, e.value) for e in events.Scalars(k)] for k in events.Tags()["scalars"]}


def _mlflow(folder: RunFolder) -> Curves:
    """From its file store, whose lines are time, value and step: importing MLflow takes seconds."""
    (told,) = (folder.path.parents[1] / "_mlflow").glob("*/*/meta.yaml")
    assert "run_name: variant/seed0\n" in told.read_text()
    assert "name: study\n" in (told.parents[1] / "meta.yaml").read_text()
    metrics = told.parent / "metrics"
    found = defaultdict(list)
    for file in (path for path in metrics.rglob("*") if path.is_file()):
        for _, value, step in map(str.split, file.read_text().splitlines()):
            found[file.relative_to(metrics).as_posix()].append((int(step), float(value)))
    return dict(found)


def _wandb(folder: RunFolder) -> Curves:
    from wandb.proto import wandb_internal_pb2 as records

    (file,) = folder.path.glob("wandb/offline-run-*/run-*.wandb")
    found = defaultdict(list)
    for data in _wandb_records(file.read_bytes()):
        record = records.Record()
        record.ParseFromString(data)
        items = {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in record.history.item}
        for name, value in items.items():
            if not name.startswith("_"):
                found[name].append((items["_step"], value))
    return dict(found)


def _wandb_records(content: bytes) -> Iterator[bytes]:
    """The records of a .wandb file: 7 bytes, then LevelDB's log of blocks of 32 KiB."""
    at, parts = 7, b""
    while at + 7 <= len(content):
        if 32_768 - at % 32_768 < 7:  # no room for a head: the block is filled up
            at += 32_768 - at % 32_768
            continue
        size, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        parts += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


READ: dict[str, Callable[[RunFolder], Curves]] = {
    "tensorboard": _tensorboard,
    "mlflow": _mlflow,
    "wandb": _wandb,
}


def _until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 240
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def _found(name: str, folder: RunFolder) -> Curves:
    """What the tool shows now; empty while it has written nothing that can be read."""
    try:
        return READ[name](folder)
    except Exception:
        return {}


@pytest.mark.loggers
@pytest.mark.parametrize("name", sorted(loggers.LOGGERS))
def test_a_tool_shows_the_rows_of_metrics_jsonl(run: RunFolder, name: str) -> None:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    lines: list[str] = []
    run.append_metrics({"kind": "train", "step": 0, "loss": 9.0})  # of an attempt before
    tool = Loggers([name], run, lines.append)
    for row in ROWS:
        run.append_metrics(row)
    if name != "wandb":  # it holds rows back
        _until(lambda: _found(name, run).get("eval/mAP", []) != [])
    run.append_metrics(MORE)
    tool.close(240)
    assert lines == []
    shown, rel = READ[name](run), 1e-6 if name == "tensorboard" else 0
    assert shown.keys() == EXPECTED.keys()
    for key, values in EXPECTED.items():
        assert [tuple(point) for point in shown[key]] == [pytest.approx(v, rel=rel) for v in values]


FAULTS = {
    "import": ("raise ImportError('no such package')", "ImportError: no such package"),
    "disk": ("raise OSError(28, 'No space left on device')", "OSError: [Errno 28] No space left"),
    "crash": ("import os; os.abort()", "it was killed"),
    "hang": ("import time; time.sleep(600)", "hangs; what it had not written is lost"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_logger_that_fails_or_hangs_does_not_touch_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: RunFolder, fault: str
) -> None:
    text, reason = FAULTS[fault]
    (tmp_path / "stubs" / "wandb").mkdir(parents=True)
    (tmp_path / "stubs" / "wandb" / "__init__.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "stubs"))
    if fault == "hang":
        monkeypatch.setattr(Loggers.close, "__defaults__", (0.05,))
    lines: list[str] = []
    tool = Loggers(["wandb"], run, lines.append)
    if fault != "hang":
        tool._running["wandb"][0].wait(240)
        tool.check()
        assert len(lines) == 1
    tool.close()
    assert len(lines) == 1 and lines[0].startswith("logger wandb: ") and reason in lines[0]


STUB = """\
import pathlib, types
def Settings(**_): pass
def init(id, resume, dir, **_):
    with (pathlib.Path(dir) / "ids.txt").open("a") as stream:
        stream.write(f"{id} {resume}\\n")
    return types.SimpleNamespace(log=lambda *_, **__: None, finish=lambda: None)
"""


def test_all_attempts_are_one_wandb_run_and_a_new_start_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: RunFolder
) -> None:
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb" / "__init__.py").write_text(STUB)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    starts = [{"started": "2026-01-01T00:00:00Z"}], [{"started": "2026-01-02T00:00:00Z"}]
    for attempts in (starts[0], [*starts[0], *starts[1]], starts[1]):
        run.update_run(attempts=attempts)
        Loggers(["wandb"], run, lambda _: None).close(240)
    first, resumed, over = (run.path / "ids.txt").read_text().splitlines()
    assert first == resumed != over and first.endswith(" allow")


def test_a_program_s_rows_go_to_loggers_and_its_result_is_the_same(run: RunFolder) -> None:
    root = Path(__file__).resolve().parents[2]
    code = "from sdtps.log import log; log('eval', epoch=1, step=1, accuracy=0.75)"
    fields: dict[str, Any] = {"command": f'PYTHONPATH={root} {sys.executable} -c "{code}" {{seed}}'}
    plain, logged = ProgramConfig(**fields), ProgramConfig(**fields, loggers=("tensorboard",))
    assert identity(plain, 0) == identity(logged, 0)
    assert program.run(run, logged, 0, 1, lambda: False) == "completed"
    assert _tensorboard(run) == {"eval/accuracy": [(1, 0.75)]}
