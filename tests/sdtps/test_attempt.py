"""A run from its folder to its end: provenance, kills, signals, failures, workers, seeds."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sdtps.config.load import merged
from sdtps.run import provenance
from sdtps.run.folder import RunFolder
from sdtps.system.errors import DataError, RunError
from sdtps.training.attempt import execute
from tests.sdtps.small import comparable, planted, reid, spawn, train_in_two_processes


def make(path: Path, seed: int = 0, **sections: dict[str, Any]) -> RunFolder:
    tree: dict[str, Any] = {
        "optim": {"lr": 1e-3, "backbone_lr": None, "warmup_epochs": 0.0},
        "sdtps": {"decision": "gumbel_ste", "mask": "log", "aggregation": "single"},
        "train": {"epochs": 2, "log_every": 1, "checkpoint_every_steps": 2},
    }
    return planted(path, reid(**merged(tree, sections)), seed)


def completed(folder: RunFolder) -> list[dict[str, Any]]:
    """What the whole run logs."""
    assert execute(folder.path) == "completed"
    return comparable(folder)


def wait_for_step(folder: RunFolder, step: int, job: BaseProcess) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and job.is_alive():
        if any(r.get("step", 0) >= step for r in folder.metrics()):
            return
        time.sleep(0.005)
    raise AssertionError(f"step {step} was not reached: exit {job.exitcode}")


def test_a_run_completes_with_its_provenance(tmp_path: Path) -> None:
    folder = make(tmp_path / "r")
    completed(folder)
    run, result = folder.run(), folder.result()
    assert result is not None and 0 <= result["final"]["rank1"] <= 1
    assert run["code"]["digest"] == provenance.source_digest()
    assert run["environment"]["packages"]["torch"]
    assert run["data"]["generated"]["train_pids"] == 6 and len(run["data"]["digest"]) == 32
    assert run["parameters"] > 1000
    completed(folder)  # again: nothing happens
    (attempt,) = folder.run()["attempts"]
    assert attempt["ended_as"] == "completed"
    assert attempt["peak_memory_mib"] >= result["peak_memory_mib"] > 50
    weights = {f"{name}.safetensors" for name in ("best", "last", "queries")}
    records = {"config.yaml", "run.json", "metrics.jsonl", "status.json", "result.json", "train.log"}
    assert {p.name for p in folder.path.iterdir()} == records | weights


def test_the_same_run_twice_gives_the_same_metrics_and_another_seed_others(tmp_path: Path) -> None:
    places = (("a", 0), ("b", 0), ("c", 1))
    first, second, other = (completed(make(tmp_path / name, seed)) for name, seed in places)
    assert first == second
    assert [r.get("loss") for r in first] != [r.get("loss") for r in other]


def test_seeds_begin_with_their_own_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sums = []

    def loop(task: Any, *_: Any, **__: Any) -> Any:
        sums.append(sum(p.sum().item() for p in task.model.parameters()))
        return SimpleNamespace(run=lambda: "requeued")

    monkeypatch.setattr("sdtps.training.loop.Loop", loop)
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        execute(make(tmp_path / name, seed).path)
    assert sums[0] == sums[1] != sums[2]


@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker")
def test_workers_do_not_change_a_run(tmp_path: Path) -> None:
    none, four = (completed(make(tmp_path / str(w), data={"workers": w})) for w in (0, 4))
    assert none == four


def test_a_run_killed_mid_epoch_resumes_to_the_same_metrics(tmp_path: Path) -> None:
    killed = make(tmp_path / "killed")
    job = spawn(killed)
    wait_for_step(killed, 3, job)
    job.kill()
    job.join()
    assert job.exitcode == -signal.SIGKILL
    status = killed.status()
    assert killed.result() is None
    assert status is not None and status["state"] == "running"  # nobody could say otherwise
    assert completed(killed) == completed(make(tmp_path / "whole"))
    assert [a["ended_as"] for a in killed.run()["attempts"]] == [None, "completed"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_a_signal_ends_the_attempt_with_a_checkpoint(tmp_path: Path, number: signal.Signals) -> None:
    folder = make(tmp_path / "r", train={"epochs": 500, "eval_every": 500})
    before = signal.getsignal(number)

    def send() -> None:
        while not folder.metrics():
            time.sleep(0.005)
        os.kill(os.getpid(), number)

    sender = threading.Thread(target=send)
    sender.start()
    assert execute(folder.path) == "requeued"
    sender.join()
    status = folder.status()
    assert status is not None and status["state"] == "requeued"
    assert folder.checkpoint_file.exists() and folder.result() is None
    assert folder.run()["attempts"][0]["ended_as"] == "requeued"
    assert signal.getsignal(number) is before


def test_max_steps_interrupts_and_the_next_attempt_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = make(tmp_path / "parts")
    assert execute(parts.path, max_steps=5) == "requeued"
    shown = []
    write = RunFolder.write_status
    monkeypatch.setattr(
        RunFolder, "write_status", lambda *a, **k: (shown.append(k.get("step")), write(*a, **k))
    )
    assert completed(parts) == completed(make(tmp_path / "whole"))
    assert shown[:2] == [5, 5]  # while it loads its data, and once it has read its checkpoint


def test_two_processes_train_like_one(tmp_path: Path) -> None:
    """Same losses, gradient norms and metrics within rounding: gloo on two processes.

    The triplet's hardest samples and the BNNeck's statistics span both processes' parts of a batch.
    """
    plain = {"decision": "topk", "mask": "none"}  # noise is drawn by each process for itself,
    still = {"flip": 0.0, "pad": 0, "erase": 0.0}  # and so is augmentation
    alone, together = (
        make(tmp_path / name, sdtps=plain, data=still, train={"epochs": 1})
        for name in ("alone", "together")
    )
    train_in_two_processes(together)
    assert len(together.run()["attempts"]) == 1
    for one, two in zip(completed(alone), comparable(together), strict=True):
        assert one.keys() == two.keys()
        for key, value in one.items():
            close = value if isinstance(value, str) else pytest.approx(value, rel=1e-3, abs=1e-5)
            assert two[key] == close, (key, one["step"])


def test_a_failure_is_recorded_before_it_is_raised(tmp_path: Path) -> None:
    folder = make(tmp_path / "r", data={"generate": None, "root": str(tmp_path / "nowhere")})
    with pytest.raises(DataError, match="folder is missing"):
        execute(folder.path)
    status = folder.status()
    assert status is not None
    assert (status["state"], status["kind"]) == ("failed", "error")
    assert "folder is missing" in status["reason"]
    assert "Traceback" in folder.log_file.read_text()
    (attempt,) = folder.run()["attempts"]
    assert attempt["ended_as"] == "failed" and attempt["peak_memory_mib"] > 50


def test_a_folder_without_a_seed_or_a_configuration_is_refused(tmp_path: Path) -> None:
    folder = make(tmp_path / "r")
    folder.run_file.unlink()
    with pytest.raises(RunError, match="no seed"):
        execute(folder.path)
    with pytest.raises(RunError, match="no run folder"):
        execute(tmp_path)


def test_the_digest_follows_the_sources_where_there_is_no_commit(tmp_path: Path) -> None:
    (tmp_path / "sdtps").mkdir()
    digests = set()
    for name, text in (("a.py", "x = 1\n"), ("notes.txt", "no code"), ("a.py", "x = 2\n")):
        (tmp_path / "sdtps" / name).write_text(text)
        version = provenance.code_version(tmp_path)
        digests.add(version["digest"])
        assert version["commit"] is None and version["dirty"] is False
    assert len(digests) == 2


PACKAGE_FILES = {
    "__init__.py": '"""Doc."""',
    "training/__init__.py": "",
    "training/attempt.py": "def run():\n    from sdtps.models import model\n    return model.f(1)\n",
    "models/__init__.py": "",
    "models/model.py": '"""Doc."""\n\ndef f(x: int) -> int:\n    """Doc."""\n    return x + 1  # a\n',
    "audit/__init__.py": "",
    "audit/audit.py": "from sdtps.training import attempt\n",
    "cli.py": "x = 1\n",
}


@pytest.mark.parametrize(
    ("name", "content", "same"),
    [
        ("models/model.py", "def f(x: int) -> int:\n    return (x\n            + 1)\n", True),
        ("models/model.py", "def f(x: int) -> int:\n    return x + 2\n", False),
        ("audit/audit.py", "y = 2\n", True),
        ("cli.py", "y = 2\n", True),
        ("models/__init__.py", "y = 2\n", False),
        ("models/model.py", "def f(x:\n", False),
    ],
)
def test_the_digest_covers_what_a_run_executes_without_comments_and_formatting(
    tmp_path: Path, name: str, content: str, same: bool
) -> None:
    package = tmp_path / "sdtps"
    for file, text in PACKAGE_FILES.items():
        (package / file).parent.mkdir(parents=True, exist_ok=True)
        (package / file).write_text(text)
    before = provenance.source_digest(package)
    (package / name).write_text(content)
    assert (provenance.source_digest(package) == before) is same


def imported() -> set[Path]:
    """The package's modules of a process that trains."""
    for name in ("loop", "reid", "retrieval"):
        import_module(f"sdtps.training.{name}")
    return {Path(str(m.__file__)) for n, m in sys.modules.items() if n.partition(".")[0] == "sdtps"}


def test_the_digest_reaches_every_module_that_training_imports() -> None:
    with ProcessPoolExecutor(1, get_context("forkserver")) as fresh:
        loaded = fresh.submit(imported).result()
    assert loaded <= provenance.modules(provenance.PACKAGE) and len(loaded) > 20
    assert not {p for p in provenance.modules(provenance.PACKAGE) if "audit" in p.parts}
