"""The training loop: what it records, how it resumes, how it ends."""

from __future__ import annotations

import errno
import itertools
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from sdtps.config import ReidConfig, identity, parse_config
from sdtps.run.folder import RunFolder
from sdtps.run.provenance import Origin, source_digest
from sdtps.system.errors import LockLost, RunError, WeightsError
from sdtps.training import checkpoint, job
from sdtps.training.device import for_machine, seed_everything
from sdtps.training.loop import score
from tests.sdtps.toy_task import ToyTask, train

TIMED = {"images_per_s", "memory_mib", "attempt", "time"}


def config(**train: Any) -> ReidConfig:
    tree = {
        "train": {"epochs": 3, "log_every": 2, "amp": "off", **train},
        "optim": {"lr": 1e-2, "backbone_lr": None, "backbone_lr_factor": 0.5, "weight_decay": 0.0},
        "backbone": {"weights": "random"},
    }
    parsed = parse_config(tree)
    assert isinstance(parsed, ReidConfig)
    return parsed


def folder(path: Path, run_config: ReidConfig) -> RunFolder:
    made = RunFolder(path)
    made.create(run_config, {"study": "toy", "variant": "toy", "seed": 3, "identity": "0"})
    return made


def start(task: Any, run: RunFolder, run_config: ReidConfig, **options: Any) -> str:
    seed_everything(3)
    return train(task, run, run_config, seed=3, **options)


def comparable(run: RunFolder) -> list[dict[str, Any]]:
    rows = [r for r in run.resolved_metrics() if r["kind"] != "event"]
    return [{k: v for k, v in row.items() if k not in TIMED} for row in rows]


def test_rows_hold_losses_rates_norms_and_the_epochs_last_step_is_always_logged(tmp_path: Path) -> None:
    run = folder(tmp_path / "r", config())
    assert start(ToyTask(), run, config()) == "completed"
    rows = [r for r in run.metrics() if r["kind"] == "train"]
    assert [r["step"] for r in rows] == [2, 4, 5, 6, 8, 10, 12, 14, 15]
    needed = {"loss", "loss/ce", "lr", "lr/backbone", "grad_norm", "grad_norm/trunk", "grad_norm/head"}
    assert needed <= rows[0].keys()
    assert [r["step"] for r in rows if "epoch_loss" in r] == [5, 10, 15]
    total = rows[0]["grad_norm"]
    assert total == pytest.approx(
        (rows[0]["grad_norm/trunk"] ** 2 + rows[0]["grad_norm/head"] ** 2) ** 0.5
    )


def test_loss_and_accuracy_are_means_over_the_epoch_so_far(tmp_path: Path) -> None:
    every = config(log_every=1)
    run = folder(tmp_path / "r", every)
    task = ToyTask()
    right: list[float] = []
    compute = task.loss

    def loss(*arguments: Any) -> Any:
        total, parts = compute(*arguments)
        right.append(parts["accuracy"].item())
        return total, parts

    task.loss = loss  # type: ignore[method-assign]
    start(task, run, every)
    rows = [r for r in run.metrics() if r["kind"] == "train"]
    for _, group in itertools.groupby(zip(rows, right, strict=True), key=lambda pair: pair[0]["epoch"]):
        of_epoch, accuracies = zip(*group, strict=True)
        for n, row in enumerate(of_epoch, start=1):
            mean = sum(r["loss"] for r in of_epoch[:n]) / n
            assert row["running_loss"] == pytest.approx(mean, rel=1e-6)
            assert row["accuracy"] == pytest.approx(sum(accuracies[:n]) / n)
            assert "loss/accuracy" not in row
        assert of_epoch[-1]["epoch_loss"] == of_epoch[-1]["running_loss"]


def test_the_result_has_the_best_and_the_final_epoch(tmp_path: Path) -> None:
    run = folder(tmp_path / "r", config())
    start(ToyTask(), run, config())
    result = run.result()
    assert result is not None
    evaluations = [r for r in run.metrics() if r["kind"] == "eval"]
    assert [e["epoch"] for e in evaluations] == [1, 2, 3]
    assert result["final"] == {k: v for k, v in evaluations[-1].items() if k != "time"}
    assert result["best"]["accuracy"] == max(e["accuracy"] for e in evaluations)
    assert result["selected_on"] == "test" and result["steps"] == 15
    status = run.status()
    assert status is not None and status["state"] == "completed"


@pytest.mark.parametrize("cut", [3, 5, 7, 14, 15])
def test_an_interrupted_run_resumes_bit_for_bit(tmp_path: Path, cut: int) -> None:
    whole = folder(tmp_path / "whole", config())
    start(ToyTask(), whole, config())
    parts = folder(tmp_path / "parts", config())
    assert start(ToyTask(), parts, config(), stop_after=cut) == "requeued"
    status = parts.status()
    assert status is not None and status["state"] == "requeued" and parts.result() is None
    torch.rand(17)  # whatever the next process does before it resumes
    task = ToyTask()
    assert train(task, parts, config(), seed=3, attempt=2) == "completed"
    assert comparable(parts) == comparable(whole)
    if cut < 15:
        assert task.seen[0] == (cut // 5 + 1, cut % 5)  # nothing is trained twice


def test_a_mid_epoch_checkpoint_survives_a_kill(tmp_path: Path) -> None:
    whole = folder(tmp_path / "whole", config())
    start(ToyTask(), whole, config())
    often = config(checkpoint_every_steps=3)
    killed = folder(tmp_path / "killed", often)

    class Killed(BaseException):
        pass

    def kill_at_eight() -> bool:
        rows = killed.metrics()
        if rows and rows[-1]["step"] >= 8:
            raise Killed
        return False

    with pytest.raises(Killed):
        start(ToyTask(), killed, often, stop=kill_at_eight)
    assert train(ToyTask(), killed, often, seed=3, attempt=2) == "completed"
    assert comparable(killed) == comparable(whole)
    resumed = [r for r in killed.metrics() if r.get("event") == "resumed"]
    assert [r["step"] for r in resumed] == [6]


def test_evaluating_more_often_does_not_change_training(tmp_path: Path) -> None:
    losses = []
    for every in (1, 3):
        run_config = config(eval_every=every)
        run = folder(tmp_path / str(every), run_config)
        start(ToyTask(), run, run_config)
        losses.append([r["loss"] for r in run.metrics() if r["kind"] == "train"])
    assert losses[0] == losses[1]


def test_a_loss_that_is_no_number_ends_the_run_with_epoch_and_step(tmp_path: Path) -> None:
    run = folder(tmp_path / "r", config())
    assert start(ToyTask(blow_up_at=7), run, config()) == "diverged"
    assert run.result() is None
    status = run.status()
    assert status is not None
    assert (status["state"], status["epoch"], status["step"]) == ("diverged", 2, 7)
    last = [r for r in run.metrics() if r["kind"] == "train"][-1]
    assert last["loss"] is None and last["nonfinite"]["loss"] in ("inf", "nan")


def test_fp16_skips_single_overflows_and_diverges_when_the_scale_collapses(tmp_path: Path) -> None:
    half = config(amp="fp16", epochs=10)
    run = folder(tmp_path / "r", half)
    assert start(ToyTask(blow_up_at=4), run, half) == "diverged"
    rows = [r for r in run.metrics() if r["kind"] == "train"]
    assert rows[0]["amp_skipped"] == 0 and rows[1]["amp_skipped"] == 1
    assert rows[1]["amp_scale"] == rows[0]["amp_scale"] / 2
    status = run.status()
    assert status is not None and "scale" in status["reason"]
    # 65536 falls below 1e-4 after 30 halvings, read at the next logged step.
    assert 33 <= status["step"] <= 35


def test_max_steps_completes_early_with_an_evaluation(tmp_path: Path) -> None:
    short = config(max_steps=7)
    run = folder(tmp_path / "r", short)
    assert start(ToyTask(), run, short) == "completed"
    result = run.result()
    assert result is not None and result["steps"] == 7 and result["final"]["step"] == 7


def test_clipping_limits_the_update_but_logs_the_norm_before_it(tmp_path: Path) -> None:
    clipped = config(clip_grad_norm=1e-3, log_every=1)
    run = folder(tmp_path / "r", clipped)
    task = ToyTask()
    start(task, run, clipped)
    assert run.metrics()[0]["grad_norm"] > 1e-2
    total = sum(float((p.grad**2).sum()) for p in task.model.parameters() if p.grad is not None) ** 0.5
    assert total == pytest.approx(1e-3, rel=1e-3)


def test_another_seeds_checkpoint_is_refused(tmp_path: Path) -> None:
    run = folder(tmp_path / "r", config())
    start(ToyTask(), run, config(), stop_after=3)
    with pytest.raises(RunError, match="for another seed"):
        train(ToyTask(), run, config(), seed=4, attempt=2)
    saved = checkpoint.load(run.checkpoint_file, torch.device("cpu"))
    assert saved is not None
    del saved["origin"]
    checkpoint.save(run.checkpoint_file, saved)
    with pytest.raises(RunError, match="recorded no origin"):
        train(ToyTask(), run, config(), seed=3, attempt=2)


def test_a_run_goes_on_only_with_the_data_and_weights_it_began_with(tmp_path: Path) -> None:
    def task(data: str, weights: str) -> ToyTask:
        made = ToyTask()
        files = {"backbone": {"file": "w.pt", "digest": weights}, "text": None}
        made.record = {"data": {"digest": data}, "weights": files}  # type: ignore[misc]
        return made

    run = folder(tmp_path / "r", config())
    start(task("d1", "w1"), run, config(), stop_after=3)
    written = run.run_file.read_bytes()
    with pytest.raises(RunError) as error:
        train(task("d2", "w2"), run, config(), seed=3, attempt=2)
    for part in ("other data (digest d1)", "other weights of backbone (digest w1)"):
        assert part in str(error.value)
    assert run.run_file.read_bytes() == written  # still says what the checkpoint was trained on
    assert train(task("d1", "w1"), run, config(), seed=3, attempt=2) == "completed"
    result = run.result() or {}
    assert result["origin"] == {"code": [source_digest()], "data": "d1", "weights": {"backbone": "w1"}}


def test_a_result_names_every_code_that_trained_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = folder(tmp_path / "r", config())
    for attempt, code, steps in ((1, "one", 3), (2, "two", 6), (3, "two", None)):
        monkeypatch.setattr("sdtps.run.provenance.source_digest", lambda code=code: code)
        train(ToyTask(), run, config(), seed=3, attempt=attempt, stop_after=steps)
    assert (run.result() or {})["origin"]["code"] == ["one", "two"]
    assert "on other code: one, two" in run.log_file.read_text()


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@pytest.mark.parametrize("place", ["exp_avg", "exp_avg_sq", "model", "average"])
def test_a_damaged_checkpoint_is_no_divergence(tmp_path: Path, place: str, value: float) -> None:
    averaged = config(ema=0.9)
    run = folder(tmp_path / "r", averaged)
    start(ToyTask(), run, averaged, stop_after=3)
    saved = torch.load(run.checkpoint_file, weights_only=True)
    tensors = {"model": saved["model"]["0.weight"], "average": saved["average"][0]}
    tensors.get(place, saved["optimizer"]["state"][0].get(place)).view(-1)[0] = value
    torch.save(saved, run.checkpoint_file)
    with pytest.raises(RunError, match=f"damaged.*{place}"):
        start(ToyTask(), run, averaged)
    assert run.status()["state"] == "requeued"  # type: ignore[index]


def test_what_training_itself_made_infinite_is_resumed(tmp_path: Path) -> None:
    """A run stopped on its way to divergence must end as one that was not stopped."""
    saved = {"optimizer": {"state": {0: {"exp_avg_sq": torch.tensor([torch.inf])}}}}
    checkpoint.save(tmp_path / "c.pt", saved)
    assert checkpoint.load(tmp_path / "c.pt") is not None


def test_a_torn_checkpoint_is_named(tmp_path: Path) -> None:
    run = folder(tmp_path / "r", config())
    run.checkpoint_file.write_bytes(b"half a file")
    with pytest.raises(RunError, match=r"checkpoint\.pt"):
        train(ToyTask(), run, config(), seed=3)


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
    asked = config(amp="auto", compile="auto")
    found, notes = for_machine(asked, torch.device("cpu" if native is None else "cuda"))
    assert (found.train.amp, found.train.compile) == chosen and bool(notes) == warned
    assert identity(asked, 0) == identity(config(amp="bf16"), 0)
    began = Origin.of({"amp": "bf16"})
    again = Origin.of({"amp": chosen[0]})
    if chosen[0] == "bf16":
        assert again.resumed_from(began.as_dict(), tmp_path).amp == "bf16"
    else:
        with pytest.raises(RunError, match="trained with amp bf16, which on this machine is"):
            again.resumed_from(began.as_dict(), tmp_path)


@pytest.mark.parametrize("log_every", [1, 2])
def test_the_step_that_compiles_is_told_and_not_counted(tmp_path: Path, log_every: int) -> None:
    compiled = config(compile=True, log_every=log_every)
    run, task = folder(tmp_path / "r", compiled), ToyTask()
    task.model.compile = lambda: None
    assert start(task, run, compiled) == "completed"
    result = run.result() or {}
    assert "first step, with compilation" in run.log_file.read_text()
    batch = task.batch_size(next(iter(task.train_batches(1, 0))))
    counted = (result["steps"] - 1) * batch / max(result["train_seconds"], 1e-9)
    assert result["images_per_s"] == pytest.approx(counted, rel=0.2)
    assert result["first_step_s"] >= 0


def test_identity_ignores_how_often_is_logged() -> None:
    assert identity(config(log_every=1), 0) == identity(config(log_every=9), 0)


# -- what a finished run leaves -------------------------------------------------------------------


def selecting(task: Any) -> Any:
    """The toy, its best epoch chosen by noise: the second of three."""
    task.select_metric = "noise"
    return task


def test_the_weights_of_the_best_and_the_last_epoch_are_kept_and_give_their_numbers_again(
    tmp_path: Path,
) -> None:
    run = folder(tmp_path / "r", config())
    start(selecting(ToyTask()), run, config())
    result = run.result()
    assert result is not None and result["best"]["step"] < result["final"]["step"]
    for which, row in (("best", result["best"]), ("last", result["final"])):
        weights, about = checkpoint.load_weights(run.weights_file(which))  # type: ignore[arg-type]
        task = ToyTask(seed=9)
        task.model.load_state_dict(weights)
        assert (about["which"], about["seed"], about["step"]) == (which, 3, row["step"])
        again = score(task, about["seed"], about["step"])
        assert again == {name: row[name] for name in again} == about["metrics"]
    assert not run.checkpoint_file.exists() and not list(run.path.glob("step*"))


def test_the_best_epochs_weights_survive_an_interruption_and_an_attempt_that_is_lost(
    tmp_path: Path,
) -> None:
    whole, parts = (folder(tmp_path / name, config()) for name in ("whole", "parts"))
    start(selecting(ToyTask()), whole, config())
    for attempt, cut in enumerate((7, 12, 13), start=1):
        task = selecting(ToyTask())
        seed_everything(3)
        options = {"seed": 3, "attempt": attempt, "stop_after": cut}
        assert train(task, parts, config(), **options) == "requeued"
        # A newer best of an attempt that got no further than this file.
        checkpoint.save_weights(parts.kept_weights_file(14), checkpoint.weights_of(task.model), {})
    assert train(selecting(ToyTask()), parts, config(), seed=3, attempt=4) == "completed"
    for which in ("best", "last"):
        first, _ = checkpoint.load_weights(whole.weights_file(which))  # type: ignore[arg-type]
        second, _ = checkpoint.load_weights(parts.weights_file(which))  # type: ignore[arg-type]
        assert all(torch.equal(first[name], second[name]) for name in first)


def test_result_json_is_the_last_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = folder(tmp_path / "r", config(epochs=1))
    written: list[str] = []

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("os.rename", "os.link") and str(run.path) in str(arguments[1]):
            written.append(Path(str(arguments[1])).name)

    sys.addaudithook(watch)
    start(ToyTask(), run, config(epochs=1))
    assert written[-1] == "result.json" and {"last.safetensors", "best.safetensors"} <= set(written)


def test_a_disk_that_is_full_at_the_last_write_leaves_no_completed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = folder(tmp_path / "r", config(epochs=1))

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_weights", full)
        with pytest.raises(OSError, match="No space"):
            start(ToyTask(), run, config(epochs=1))
    assert run.result() is None


def test_the_conditions_are_scored_on_the_selected_and_the_last_weights(tmp_path: Path) -> None:
    plain, run = (folder(tmp_path / name, config()) for name in ("plain", "more"))
    start(selecting(ToyTask()), plain, config())
    task = selecting(ToyTask())
    task.conditions = ("1", "2")
    start(task, run, config())
    result, before = run.result(), plain.result()
    assert result is not None and before is not None
    for key in ("best", "final"):
        row = result[key]
        assert {k: v for k, v in row.items() if "@" not in k} == before[key]
        assert {"accuracy@1", "accuracy@2", "noise@2"} <= row.keys()
        (kept,) = [
            r for r in run.resolved_metrics() if r["kind"] == "eval" and r["step"] == row["step"]
        ]
        assert kept["accuracy@1"] == row["accuracy@1"]
    for which in ("best", "last"):
        mine, _ = checkpoint.load_weights(run.weights_file(which))  # type: ignore[arg-type]
        theirs, _ = checkpoint.load_weights(plain.weights_file(which))  # type: ignore[arg-type]
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_an_evaluation_stops_at_the_next_block_and_is_done_again(tmp_path: Path) -> None:
    whole, parts = (folder(tmp_path / name, config()) for name in ("whole", "parts"))
    start(ToyTask(), whole, config())
    asked = itertools.count()
    # Of every epoch: its five steps, its end, then the blocks of its evaluation.
    assert start(ToyTask(), parts, config(), stop=lambda: next(asked) == 6) == "requeued"
    assert [r for r in parts.metrics() if r["kind"] == "eval"] == []
    status = parts.status()
    assert status is not None and status["state"] == "requeued" and status["evaluated"] > 0
    assert train(ToyTask(), parts, config(), seed=3, attempt=2) == "completed"
    assert comparable(parts) == comparable(whole)


def test_a_job_whose_lock_was_taken_over_writes_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = folder(tmp_path / "r", config())
    monkeypatch.setenv("SDTPS_LOCK", "ours")
    run.lock_file.write_text('{"submission": "ours"}')
    run.append_metrics({"kind": "train", "epoch": 1, "step": 1})
    run.lock_file.write_text('{"submission": "theirs"}')
    writes = (
        lambda: run.append_metrics({"kind": "train", "epoch": 1, "step": 2}),
        lambda: run.write_status("running", attempt=1),
        lambda: run.update_run(seed=4),
        lambda: run.write_result({"attempt": 1}),
        lambda: start(ToyTask(), run, config()),
    )
    before = {p.name: p.read_bytes() for p in run.path.iterdir()}
    for write in writes:
        with pytest.raises(LockLost, match=r"lock\.json"):
            write()
    assert {p.name: p.read_bytes() for p in run.path.iterdir()} == before


# -- other ways to take a step ---------------------------------------------------------------------


def doubled(run_config: ReidConfig) -> Any:
    """A toy without dropout in float64."""
    task = ToyTask(steps=-4)
    task.model.double()
    batches = task.train_batches

    def train_batches(epoch: int, first: int) -> Any:
        return ((points.double(), labels) for points, labels in batches(epoch, first))

    task.train_batches = train_batches
    return task


def test_accumulated_batches_move_the_weights_as_their_mean_gradient(tmp_path: Path) -> None:
    """Four batches in one update: one step of SGD along the mean of the four gradients."""
    plain = parse_config(
        {
            "train": {"epochs": 1, "amp": "off", "accumulate": 4, "log_every": 4},
            "optim": {"name": "sgd", "lr": 0.1, "weight_decay": 0.0, "schedule": "constant"}
            | {"backbone_lr": None, "bias_lr_factor": 1.0, "warmup_epochs": 0.0, "lr_noise": False},
            "backbone": {"weights": "random"},
        }
    )
    assert isinstance(plain, ReidConfig)
    task = doubled(plain)
    before = [p.detach().clone() for p in task.model.parameters()]
    losses = [task.loss(batch, 1, 1)[0] for batch in task.train_batches(1, 0)]
    mean = torch.autograd.grad(sum(losses) / 4, list(task.model.parameters()))
    run = folder(tmp_path / "r", plain)
    task.evaluate = lambda *_: {"accuracy": 0.5}
    assert start(task, run, plain) == "completed"
    for parameter, old, gradient in zip(task.model.parameters(), before, mean, strict=True):
        torch.testing.assert_close(parameter.detach(), old - 0.1 * gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("cut", [2, 6, 9])
def test_accumulation_resumes_at_the_boundary_of_an_update(tmp_path: Path, cut: int) -> None:
    three = config(accumulate=3, ema=0.9)
    whole, parts = (folder(tmp_path / name, three) for name in ("whole", "parts"))
    start(ToyTask(), whole, three)
    assert start(ToyTask(), parts, three, stop_after=cut) == "requeued"
    assert train(ToyTask(), parts, three, seed=3, attempt=2) == "completed"
    assert comparable(parts) == comparable(whole)
    last = [checkpoint.load_weights(run.weights_file("last"))[0] for run in (whole, parts)]
    assert all(torch.equal(last[0][name], last[1][name]) for name in last[0])


def test_the_average_of_the_weights_is_what_is_evaluated_and_kept(tmp_path: Path) -> None:
    averaged = config(ema=0.5)
    run = folder(tmp_path / "r", averaged)
    task = ToyTask()
    start(task, run, averaged)
    weights, about = checkpoint.load_weights(run.weights_file("last"))
    trained = task.model.state_dict()
    assert not torch.equal(weights["0.weight"], trained["0.weight"])
    again = ToyTask()
    again.model.load_state_dict(weights)
    row = (run.result() or {})["final"]
    assert score(again, 3, row["step"])["accuracy"] == row["accuracy"]
    assert about["metrics"]["accuracy"] == row["accuracy"]


def test_a_frozen_trunk_stays_for_its_epochs_and_then_trains(tmp_path: Path) -> None:
    run_config = config(freeze_epochs=2)
    run = folder(tmp_path / "r", run_config)
    task = ToyTask()
    first = task.model[0].weight.detach().clone()
    seen: list[bool] = []
    evaluate = task.evaluate

    def watched(*arguments: Any) -> dict[str, float]:
        seen.append(torch.equal(task.model[0].weight, first))
        return evaluate(*arguments)

    task.evaluate = watched
    start(task, run, run_config)
    assert seen == [True, True, False]


def test_a_run_starts_from_another_runs_best_weights(tmp_path: Path) -> None:
    source = folder(tmp_path / "source", config())
    start(ToyTask(), source, config())
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
    monkeypatch.setattr(job, "build_task", lambda _, seed, __: ToyTask(seed))
    once = config(epochs=1, checkpoint_every_s=0.0)
    run, whole = folder(tmp_path / "r", once), folder(tmp_path / "whole", once)

    def full(self: RunFolder, result: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(self.result_file))

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "write_result", full)
        with pytest.raises(OSError, match="No space"):
            job.execute(run.path)
    status = run.status()
    assert run.result() is None and status is not None and status["state"] == "failed"
    assert [a["ended_as"] for a in run.run()["attempts"]] == ["failed"]
    assert job.execute(run.path) == "completed" == job.execute(whole.path)
    assert comparable(run) == comparable(whole)
    assert (run.result() or {})["final"]["accuracy"] == (whole.result() or {})["final"]["accuracy"]
