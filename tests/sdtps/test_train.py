"""The training loop: what it records, how it resumes, how it ends."""

from __future__ import annotations

import errno
import itertools
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from sdtps.config import ReidConfig, identity
from sdtps.run.folder import RunFolder
from sdtps.run.provenance import Origin, source_digest
from sdtps.system.errors import LockLost, RunError, WeightsError
from sdtps.training import checkpoint
from sdtps.training.attempt import execute
from sdtps.training.device import for_machine, seed_everything
from sdtps.training.loop import score
from tests.sdtps.small import comparable, planted, reid
from tests.sdtps.toy_task import ToyTask, train


def config(**train: Any) -> ReidConfig:
    return reid(
        train={"epochs": 3, "log_every": 2, **train},
        optim={"lr": 1e-2, "backbone_lr": None, "backbone_lr_factor": 0.5, "weight_decay": 0.0},
    )


def trained(
    path: Path,
    settings: ReidConfig | None = None,
    task: Any = None,
    *,
    ends: str = "completed",
    seed: int = 3,
    attempt: int = 1,
    **options: Any,
) -> RunFolder:
    """One attempt at the toy's run in `path`."""
    settings = settings or config()
    run = RunFolder(path) if path.exists() else planted(path, settings, 3)
    task = task or ToyTask()
    if attempt == 1:
        seed_everything(3)
    assert train(task, run, settings, seed=seed, attempt=attempt, **options) == ends
    return run


def status_of(run: RunFolder) -> dict[str, Any]:
    status = run.status()
    assert status is not None
    return status


def result_of(run: RunFolder) -> dict[str, Any]:
    result = run.result()
    assert result is not None
    return result


def rows_of(run: RunFolder, kind: str = "train") -> list[dict[str, Any]]:
    return [row for row in run.metrics() if row["kind"] == kind]


def check_same_weights(one: RunFolder, two: RunFolder) -> None:
    for which in ("best", "last"):
        first, _ = checkpoint.load_weights(one.weights_file(which))  # type: ignore[arg-type]
        second, _ = checkpoint.load_weights(two.weights_file(which))  # type: ignore[arg-type]
        assert all(torch.equal(first[name], second[name]) for name in first)


def test_rows_hold_losses_rates_norms_and_the_epochs_last_step_is_always_logged(tmp_path: Path) -> None:
    rows = rows_of(trained(tmp_path / "r"))
    assert [r["step"] for r in rows] == [2, 4, 5, 6, 8, 10, 12, 14, 15]
    needed = {"loss", "loss/ce", "lr", "lr/backbone", "grad_norm", "grad_norm/trunk", "grad_norm/head"}
    assert needed <= rows[0].keys()
    assert [r["step"] for r in rows if "epoch_loss" in r] == [5, 10, 15]
    whole, parts = rows[0]["grad_norm"], (rows[0][f"grad_norm/{part}"] for part in ("trunk", "head"))
    assert whole == pytest.approx(math.hypot(*parts))


def test_loss_and_accuracy_are_means_over_the_epoch_so_far(tmp_path: Path) -> None:
    task = ToyTask()
    right: list[float] = []
    compute = task.loss

    def loss(*arguments: Any) -> Any:
        total, parts = compute(*arguments)
        right.append(parts["accuracy"].item())
        return total, parts

    task.loss = loss  # type: ignore[method-assign]
    rows = rows_of(trained(tmp_path / "r", config(log_every=1), task))
    for _, group in itertools.groupby(zip(rows, right, strict=True), key=lambda pair: pair[0]["epoch"]):
        of_epoch, accuracies = zip(*group, strict=True)
        for n, row in enumerate(of_epoch, start=1):
            mean = sum(r["loss"] for r in of_epoch[:n]) / n
            assert row["running_loss"] == pytest.approx(mean, rel=1e-6)
            assert row["accuracy"] == pytest.approx(sum(accuracies[:n]) / n)
            assert "loss/accuracy" not in row
        assert of_epoch[-1]["epoch_loss"] == of_epoch[-1]["running_loss"]


def test_the_result_has_the_best_and_the_final_epoch(tmp_path: Path) -> None:
    run = trained(tmp_path / "r")
    result, evaluations = result_of(run), rows_of(run, "eval")
    assert [e["epoch"] for e in evaluations] == [1, 2, 3]
    assert result["final"] == {k: v for k, v in evaluations[-1].items() if k != "time"}
    assert result["best"]["accuracy"] == max(e["accuracy"] for e in evaluations)
    assert result["selected_on"] == "test" and result["steps"] == 15
    assert status_of(run)["state"] == "completed"


@pytest.mark.parametrize(
    ("train", "cuts"),
    [
        *(({}, (cut,)) for cut in (3, 5, 7, 14, 15)),
        ({"accumulate": 3, "ema": 0.9}, (2, 6, 9)),  # within an update it goes on to the update's end
        ({}, (7, 12, 13)),
    ],
)
def test_an_interrupted_run_resumes_bit_for_bit(
    tmp_path: Path, train: dict[str, Any], cuts: tuple[int, ...]
) -> None:
    whole = trained(tmp_path / "whole", config(**train), selecting(ToyTask()))
    for attempt, cut in enumerate(cuts, start=1):
        task = selecting(ToyTask())
        options = {"ends": "requeued", "attempt": attempt, "stop_after": cut}
        parts = trained(tmp_path / "parts", config(**train), task, **options)
        assert status_of(parts)["state"] == "requeued" and parts.result() is None
        # A newer best of an attempt that got no further than this file.
        checkpoint.save_weights(parts.kept_weights_file(14), checkpoint.weights_of(task.model), {})
        torch.rand(17)  # whatever the next process does before it resumes
    task = selecting(ToyTask())
    trained(tmp_path / "parts", config(**train), task, attempt=len(cuts) + 1)
    assert comparable(parts) == comparable(whole)
    check_same_weights(parts, whole)
    if not train and cut < 15:
        assert task.seen[0] == (cut // 5 + 1, cut % 5)  # nothing is trained twice


def test_a_mid_epoch_checkpoint_survives_a_kill(tmp_path: Path) -> None:
    every_3 = config(checkpoint_every_steps=3)
    killed = planted(tmp_path / "killed", every_3, 3)

    class Killed(BaseException):
        pass

    def kill_at_eight() -> bool:
        rows = killed.metrics()
        if rows and rows[-1]["step"] >= 8:
            raise Killed
        return False

    with pytest.raises(Killed):
        trained(killed.path, every_3, stop=kill_at_eight)
    trained(killed.path, every_3, attempt=2)
    assert comparable(killed) == comparable(trained(tmp_path / "whole"))
    assert [r["step"] for r in killed.metrics() if r.get("event") == "resumed"] == [6]


def test_evaluating_more_often_does_not_change_training(tmp_path: Path) -> None:
    runs = [trained(tmp_path / str(every), config(eval_every=every)) for every in (1, 3)]
    losses = [[row["loss"] for row in rows_of(run)] for run in runs]
    assert losses[0] == losses[1]


def test_a_loss_that_is_no_number_ends_the_run_with_epoch_and_step(tmp_path: Path) -> None:
    run = trained(tmp_path / "r", task=ToyTask(blow_up_at=7), ends="diverged")
    assert run.result() is None
    status, last = status_of(run), rows_of(run)[-1]
    assert (status["state"], status["epoch"], status["step"]) == ("diverged", 2, 7)
    assert last["loss"] is None and last["nonfinite"]["loss"] in ("inf", "nan")


def test_fp16_skips_single_overflows_and_diverges_when_the_scale_collapses(tmp_path: Path) -> None:
    half = config(amp="fp16", epochs=10)
    run = trained(tmp_path / "r", half, ToyTask(blow_up_at=4), ends="diverged")
    rows, status = rows_of(run), status_of(run)
    assert rows[0]["amp_skipped"] == 0 and rows[1]["amp_skipped"] == 1
    assert rows[1]["amp_scale"] == rows[0]["amp_scale"] / 2
    assert "scale" in status["reason"]
    # 65536 falls below 1e-4 after 30 halvings, read at the next logged step.
    assert 33 <= status["step"] <= 35


def test_max_steps_completes_early_with_an_evaluation(tmp_path: Path) -> None:
    result = result_of(trained(tmp_path / "r", config(max_steps=7)))
    assert result["steps"] == 7 and result["final"]["step"] == 7


def test_clipping_limits_the_update_but_logs_the_norm_before_it(tmp_path: Path) -> None:
    task = ToyTask()
    run = trained(tmp_path / "r", config(clip_grad_norm=1e-3, log_every=1), task)
    assert run.metrics()[0]["grad_norm"] > 1e-2
    total = sum(float((p.grad**2).sum()) for p in task.model.parameters() if p.grad is not None) ** 0.5
    assert total == pytest.approx(1e-3, rel=1e-3)


def test_another_seeds_checkpoint_is_refused(tmp_path: Path) -> None:
    run = trained(tmp_path / "r", ends="requeued", stop_after=3)
    with pytest.raises(RunError, match="for another seed"):
        trained(run.path, seed=4, attempt=2)
    saved = checkpoint.load(run.checkpoint_file, torch.device("cpu"))
    assert saved is not None
    del saved["origin"]
    checkpoint.save(run.checkpoint_file, saved)
    with pytest.raises(RunError, match="recorded no origin"):
        trained(run.path, attempt=2)


def test_a_run_goes_on_only_with_the_data_and_weights_it_began_with(tmp_path: Path) -> None:
    def task(data: str, weights: str) -> ToyTask:
        made = ToyTask()
        files = {"backbone": {"file": "w.pt", "digest": weights}, "text": None}
        made.record = {"data": {"digest": data}, "weights": files}  # type: ignore[misc]
        return made

    run = trained(tmp_path / "r", task=task("d1", "w1"), ends="requeued", stop_after=3)
    written = run.run_file.read_bytes()
    with pytest.raises(RunError) as error:
        trained(run.path, task=task("d2", "w2"), attempt=2)
    for part in ("other data (digest d1)", "other weights of backbone (digest w1)"):
        assert part in str(error.value)
    assert run.run_file.read_bytes() == written  # still says what the checkpoint was trained on
    trained(run.path, task=task("d1", "w1"), attempt=2)
    origin = {"code": [source_digest()], "data": "d1", "weights": {"backbone": "w1"}}
    assert result_of(run)["origin"] == origin


def test_a_result_names_every_code_that_trained_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for attempt, code, steps in ((1, "one", 3), (2, "two", 6), (3, "two", None)):
        monkeypatch.setattr("sdtps.run.provenance.source_digest", lambda code=code: code)
        ends = "requeued" if steps else "completed"
        run = trained(tmp_path / "r", attempt=attempt, stop_after=steps, ends=ends)
    assert result_of(run)["origin"]["code"] == ["one", "two"]
    assert "on other code: one, two" in run.log_file.read_text()


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@pytest.mark.parametrize("place", ["exp_avg", "exp_avg_sq", "model", "average"])
def test_a_damaged_checkpoint_is_no_divergence(tmp_path: Path, place: str, value: float) -> None:
    averaged = config(ema=0.9)
    run = trained(tmp_path / "r", averaged, ends="requeued", stop_after=3)
    saved = torch.load(run.checkpoint_file, weights_only=True)
    tensors = {"model": saved["model"]["0.weight"], "average": saved["average"][0]}
    tensors.get(place, saved["optimizer"]["state"][0].get(place)).view(-1)[0] = value
    torch.save(saved, run.checkpoint_file)
    with pytest.raises(RunError, match=f"damaged.*{place}"):
        trained(run.path, averaged)
    assert status_of(run)["state"] == "requeued"


def test_what_training_itself_made_infinite_is_resumed(tmp_path: Path) -> None:
    """A run stopped on its way to divergence must end as one that was not stopped."""
    saved = {"optimizer": {"state": {0: {"exp_avg_sq": torch.tensor([torch.inf])}}}}
    checkpoint.save(tmp_path / "c.pt", saved)
    assert checkpoint.load(tmp_path / "c.pt") is not None


def test_a_torn_checkpoint_is_named(tmp_path: Path) -> None:
    run = planted(tmp_path / "r", config())
    run.checkpoint_file.write_bytes(b"half a file")
    with pytest.raises(RunError, match=r"checkpoint\.pt"):
        trained(run.path)


@pytest.mark.parametrize(
    ("native", "capability", "chosen", "warned"),
    [
        (True, (9, 0), ("bf16", True), False),
        (False, (7, 0), ("fp16", True), True),
        (False, (6, 1), ("fp16", False), True),
        (None, None, ("off", False), False),
    ],
    ids=["today's GPU", "emulates bf16", "too old to compile", "CPU"],
)
def test_auto_is_chosen_by_the_machine_and_goes_on_nowhere_else(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    native: Any,
    capability: Any,
    chosen: Any,
    warned: bool,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: native)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "V100")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: True)
    auto = config(amp="auto", compile="auto")
    chosen_here, notes = for_machine(auto, torch.device("cpu" if native is None else "cuda"))
    assert (chosen_here.train.amp, chosen_here.train.compile) == chosen and bool(notes) == warned
    assert identity(auto, 0) == identity(config(amp="bf16"), 0)
    began = Origin.of({"amp": "bf16"})
    resumed = Origin.of({"amp": chosen[0]})
    if chosen[0] == "bf16":
        assert resumed.resumed_from(began.as_dict(), tmp_path).amp == "bf16"
    else:
        with pytest.raises(RunError, match="trained with amp bf16, which on this machine is"):
            resumed.resumed_from(began.as_dict(), tmp_path)


@pytest.mark.parametrize("log_every", [1, 2])
def test_the_step_that_compiles_is_told_and_not_counted(tmp_path: Path, log_every: int) -> None:
    task = ToyTask()
    task.model.compile = lambda: None
    run = trained(tmp_path / "r", config(compile=True, log_every=log_every), task)
    result = result_of(run)
    assert "first step, with compilation" in run.log_file.read_text()
    counted = (result["steps"] - 1) * 12 / max(result["train_seconds"], 1e-9)
    assert result["images_per_s"] == pytest.approx(counted, rel=0.2)


# -- what a finished run leaves -------------------------------------------------------------------


def selecting(task: Any) -> Any:
    """The toy, its best epoch chosen by noise: the second of three."""
    task.select_metric = "noise"
    return task


def test_the_weights_of_the_best_and_the_last_epoch_are_kept_and_give_their_numbers_again(
    tmp_path: Path,
) -> None:
    run = trained(tmp_path / "r", task=selecting(ToyTask()))
    result = result_of(run)
    assert result["best"]["step"] < result["final"]["step"]
    for which, row in (("best", result["best"]), ("last", result["final"])):
        weights, about = checkpoint.load_weights(run.weights_file(which))  # type: ignore[arg-type]
        task = ToyTask(seed=9)
        task.model.load_state_dict(weights)
        assert (about["which"], about["seed"], about["step"]) == (which, 3, row["step"])
        scores = score(task, about["seed"], about["step"])
        assert scores == {name: row[name] for name in scores} == about["metrics"]
    assert not run.checkpoint_file.exists() and not list(run.path.glob("step*"))


def test_result_json_is_the_last_write(tmp_path: Path) -> None:
    written: list[str] = []

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("os.rename", "os.link") and str(tmp_path) in str(arguments[1]):
            written.append(Path(str(arguments[1])).name)

    sys.addaudithook(watch)
    trained(tmp_path / "r", config(epochs=1))
    assert written[-1] == "result.json" and {"last.safetensors", "best.safetensors"} <= set(written)


def test_the_conditions_are_scored_on_the_selected_and_the_last_weights(tmp_path: Path) -> None:
    plain = trained(tmp_path / "plain", task=selecting(ToyTask()))
    task = selecting(ToyTask())
    task.conditions = ("1", "2")
    run = trained(tmp_path / "more", task=task)
    result, before = result_of(run), result_of(plain)
    for key in ("best", "final"):
        row = result[key]
        assert {k: v for k, v in row.items() if "@" not in k} == before[key]
        assert {"accuracy@1", "accuracy@2", "noise@2"} <= row.keys()
        (kept,) = [
            r for r in run.resolved_metrics() if r["kind"] == "eval" and r["step"] == row["step"]
        ]
        assert kept["accuracy@1"] == row["accuracy@1"]
    check_same_weights(run, plain)


def test_an_evaluation_stops_at_the_next_block_and_is_done_again(tmp_path: Path) -> None:
    calls = itertools.count()
    # Of every epoch: its five steps, its end, then the blocks of its evaluation.
    parts = trained(tmp_path / "parts", ends="requeued", stop=lambda: next(calls) == 6)
    assert rows_of(parts, "eval") == []
    assert status_of(parts)["state"] == "requeued" and status_of(parts)["evaluated"] > 0
    trained(parts.path, attempt=2)
    assert comparable(parts) == comparable(trained(tmp_path / "whole"))


def test_a_job_whose_lock_was_taken_over_writes_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = planted(tmp_path / "r", config(), 3)
    monkeypatch.setenv("SDTPS_LOCK", "ours")
    run.lock_file.write_text('{"submission": "ours"}')
    run.append_metrics({"kind": "train", "epoch": 1, "step": 1})
    run.lock_file.write_text('{"submission": "theirs"}')
    writes = (
        lambda: run.append_metrics({"kind": "train", "epoch": 1, "step": 2}),
        lambda: run.write_status("running", attempt=1),
        lambda: run.update_run(seed=4),
        lambda: run.write_result({"attempt": 1}),
        lambda: trained(run.path),
    )
    before = {p.name: p.read_bytes() for p in run.path.iterdir()}
    for write in writes:
        with pytest.raises(LockLost, match=r"lock\.json"):
            write()
    assert {p.name: p.read_bytes() for p in run.path.iterdir()} == before


# -- other ways to take a step ---------------------------------------------------------------------


def test_accumulated_batches_move_the_weights_as_their_mean_gradient(tmp_path: Path) -> None:
    """Four batches in one update: one step of SGD along the mean of the four gradients."""
    plain = reid(
        train={"accumulate": 4, "log_every": 4},
        optim={"name": "sgd", "lr": 0.1, "weight_decay": 0.0, "schedule": "constant"}
        | {"backbone_lr": None, "bias_lr_factor": 1.0, "warmup_epochs": 0.0, "lr_noise": False},
    )
    task: Any = ToyTask(steps=-4)  # without dropout
    task.model.double()
    batches = [(points.double(), labels) for points, labels in task.train_batches(1, 0)]
    task.train_batches = lambda epoch, first: batches
    before = [p.detach().clone() for p in task.model.parameters()]
    losses = [task.loss(batch, 1, 1)[0] for batch in batches]
    mean = torch.autograd.grad(sum(losses) / 4, list(task.model.parameters()))
    task.evaluate = lambda *_: {"accuracy": 0.5}
    trained(tmp_path / "r", plain, task)
    for parameter, old, gradient in zip(task.model.parameters(), before, mean, strict=True):
        torch.testing.assert_close(parameter.detach(), old - 0.1 * gradient, rtol=1e-9, atol=1e-12)


def test_the_average_of_the_weights_is_what_is_evaluated_and_kept(tmp_path: Path) -> None:
    task, other = ToyTask(), ToyTask()
    run = trained(tmp_path / "r", config(ema=0.5), task)
    weights, about = checkpoint.load_weights(run.weights_file("last"))
    assert not torch.equal(weights["0.weight"], task.model.state_dict()["0.weight"])
    other.model.load_state_dict(weights)
    row = result_of(run)["final"]
    assert score(other, 3, row["step"])["accuracy"] == row["accuracy"] == about["metrics"]["accuracy"]


def test_a_frozen_trunk_stays_for_its_epochs_and_then_trains(tmp_path: Path) -> None:
    task: Any = ToyTask()
    first = task.model[0].weight.detach().clone()
    unchanged: list[bool] = []
    evaluate = task.evaluate

    def watched(*arguments: Any) -> dict[str, float]:
        unchanged.append(torch.equal(task.model[0].weight, first))
        return evaluate(*arguments)

    task.evaluate = watched
    trained(tmp_path / "r", config(freeze_epochs=2), task)
    assert unchanged == [True, True, False]


def test_a_run_starts_from_another_runs_best_weights(tmp_path: Path) -> None:
    source = trained(tmp_path / "source")
    task = ToyTask(seed=8)
    task.model[3] = torch.nn.Linear(16, 5)
    record = checkpoint.load_initial(task.model, str(source.path))
    weights, _ = checkpoint.load_weights(source.weights_file("best"))
    assert torch.equal(task.model[0].weight, weights["0.weight"])
    assert record["loaded"] == 2 and record["other_shape"] == ["3.bias", "3.weight"] == record["left"]
    assert "left as initialised: 3.bias" in checkpoint.initial_line(record)
    with pytest.raises(WeightsError, match="has not completed"):
        checkpoint.load_initial(task.model, str(tmp_path))
    with pytest.raises(WeightsError, match="another architecture"):
        checkpoint.load_initial(torch.nn.Linear(2, 2), str(source.path))
    weights["0.weight"][0] = float("nan")
    checkpoint.save_weights(tmp_path / "nan.safetensors", weights, {})
    with pytest.raises(WeightsError, match=r"0\.weight"):
        checkpoint.load_initial(task.model, str(tmp_path / "nan.safetensors"))
    assert identity(config(init=str(source.path)), 3) != identity(config(), 3)
    moved = config(init=f"/elsewhere/{source.path.name}")
    assert identity(moved, 3) == identity(config(init=str(source.path)), 3)


def test_a_run_whose_result_cannot_be_written_has_failed_and_completes_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sdtps.training.attempt.build_task", lambda _, seed, __: ToyTask(seed))
    once = config(epochs=1, checkpoint_every_s=0.0)
    run, whole = planted(tmp_path / "r", once, 3), planted(tmp_path / "whole", once, 3)

    def full(self: RunFolder, result: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(self.result_file))

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "write_result", full)
        with pytest.raises(OSError, match="No space"):
            execute(run.path)
    assert run.result() is None and status_of(run)["state"] == "failed"
    assert [a["ended_as"] for a in run.run()["attempts"]] == ["failed"]
    assert execute(run.path) == "completed" == execute(whole.path)
    assert comparable(run) == comparable(whole)
    assert result_of(run)["final"]["accuracy"] == result_of(whole)["final"]["accuracy"]
