"""A run folder never loses, doubles or half-writes anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from sdtps.config import ReidConfig, identity
from sdtps.run.folder import RunFolder
from sdtps.system.errors import RunError


def row(attempt: int, step: int, kind: str = "train", **values: float) -> dict:
    return {"attempt": attempt, "kind": kind, "epoch": 1, "step": step, **values}


def test_a_later_attempt_replaces_what_was_logged_after_its_checkpoint(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for step in range(1, 51):
        run.append_metrics(row(1, step, loss=1.0))
    run.append_metrics(row(2, 40, "event"))  # at the checkpoint's own step: hides nothing
    for step in range(41, 46):  # has come to 45
        run.append_metrics(row(2, step, loss=2.0))
    rows = [r for r in run.resolved_metrics() if r["kind"] == "train"]
    assert [r["step"] for r in rows] == list(range(1, 46))
    assert [r["loss"] for r in rows] == [1.0] * 40 + [2.0] * 5


def test_a_run_completes_once(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.status_file.write_text('{"state": "runn')
    run.write_result({"attempt": 1})
    with pytest.raises(RunError, match="completes once"):
        run.write_result({"attempt": 2})
    assert (run.result() or {})["attempt"] == 1 and run.status() is None  # that one is torn


def test_configuration_survives_the_disk(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "study" / "v" / "seed0-abc")
    config = ReidConfig()
    run.create(config, {"seed": 0})
    assert run.config() == config
    assert identity(run.config(), 0) == identity(config, 0)


def completed(folder: Path, variant: str = "topk", seed: int = 0, end: str = "completed") -> RunFolder:
    run = RunFolder(folder / variant / f"seed{seed}-{variant}{seed}")
    run.create(ReidConfig(), {"study": "demo", "variant": variant, "seed": seed, "started": "12:00:10"})
    run.append_metrics(row(1, 1, loss=21.3 + seed + len(variant)))
    if end != "completed":
        run.write_status(end, attempt=1, reason="loss is nan at step 1")  # type: ignore[arg-type]
        run.end_attempt(end, 5.0)
        return run
    run.write_result({"attempt": 1, "best": {"mAP": 0.51}})
    run.append_evaluation({"weights": "best", "metrics": {"mAP@night": 0.25}})
    run.append_evaluation({"weights": "last", "metrics": {"mAP@night": 0.25}})
    assert run.changed_since_end() == []
    return run


FILES = ("config.yaml", "run.json", "metrics.jsonl", "result.json", "evaluations.jsonl")


@pytest.mark.parametrize("end", ["completed", "diverged", "failed"])
def test_any_changed_digit_of_a_run_that_ended_is_named(tmp_path: Path, end: str) -> None:
    run = completed(tmp_path, end=end)
    for name in FILES if end == "completed" else (*FILES[:3], "status.json"):
        assert run.changed_since_end() == []
        file = run.path / name
        content = file.read_bytes()
        for place in (n for n, byte in enumerate(content) if byte in b"0123456789"):
            other = b"%d" % ((content[place] - ord("0") + 1) % 10)
            file.write_bytes(content[:place] + other + content[place + 1 :])
            assert name in " ".join(run.changed_since_end()), (place, content[place - 9 : place + 9])
        file.unlink()
        assert bool(run.changed_since_end()) == (name not in ("result.json", "status.json"))
        file.write_bytes(content)


def test_a_run_that_is_submitted_again_has_no_seal_of_its_earlier_end(tmp_path: Path) -> None:
    run = completed(tmp_path, end="failed")
    run.create(ReidConfig().model_copy(update={"select": "mAP"}), {"seed": 0})
    assert run.changed_since_end() == []


@pytest.mark.parametrize("other", [("topk", 1), ("gumbel", 0)])
def test_swapped_files_and_folders_are_named(tmp_path: Path, other: tuple[str, int]) -> None:
    runs = completed(tmp_path), completed(tmp_path, *other)

    def swap(a: Path, b: Path) -> None:
        aside = tmp_path / "aside"
        a.rename(aside), b.rename(a), aside.rename(b)

    for name in ("metrics.jsonl", "evaluations.jsonl"):
        swap(runs[0].path / name, runs[1].path / name)
        assert all(name in " ".join(run.changed_since_end()) for run in runs)
        swap(runs[0].path / name, runs[1].path / name)
    swap(runs[0].path, runs[1].path)
    for run, (variant, seed) in zip(runs, (other, ("topk", 0)), strict=True):
        assert f"the run demo/{variant} seed {seed}" in " ".join(run.changed_since_end())


def test_a_result_without_a_seal_and_a_file_that_is_gone_are_damage(tmp_path: Path) -> None:
    run = completed(tmp_path)
    run.evaluations_file.write_bytes(run.evaluations_file.read_bytes().splitlines(keepends=True)[0])
    assert run.changed_since_end() == ["evaluations.jsonl: 1 of 2 lines are gone"]
    run.evaluations_file.unlink()
    run.metrics_file.unlink()
    gone = "metrics.jsonl was deleted after the run had ended"
    assert run.changed_since_end() == [gone, "evaluations.jsonl: 2 of 2 lines are gone"]
    run.result_file.write_text('{"attempt": 1}')
    assert run.changed_since_end() == ["result.json has no seal"]
