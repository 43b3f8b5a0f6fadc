"""The one training loop, for both tasks. It knows no images and no texts, only a `Task`.

A run ends in one of four ways: it completes (result.json), it diverges (the loss is NaN or infinite),
it is interrupted (a checkpoint, then it is requeued), or it fails with an exception. Resumed runs
continue bit for bit on a CPU, from inside an epoch and from inside an evaluation too.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Literal

import torch
from torch import Tensor

from sdtps.config import Config, resolved
from sdtps.evaluation import Progress, no_progress
from sdtps.run.folder import RunFolder, Weights
from sdtps.run.provenance import Origin
from sdtps.system import distributed
from sdtps.system.errors import RunError
from sdtps.training import checkpoint
from sdtps.training.device import (
    peak_memory_mib,
    process_peak_mib,
    random_states,
    resume_random_states,
    seed_everything,
    set_random_states,
)
from sdtps.training.loggers import Loggers
from sdtps.training.optim import Schedule
from sdtps.training.progress import Reporter
from sdtps.training.step import Counters, Task, TrainingStep

Outcome = Literal["completed", "diverged", "requeued"]

# Under fp16 the scaler skips single steps that overflow. A run has diverged beyond these limits.
SCALE_COLLAPSED = 1e-4
SKIPPED_IN_A_ROW = 50


class Loop:
    """One attempt at a run in `folder`; resumes from its checkpoint if there is one.

    Args:
        stop: called after every step (after every logged step with several processes); True ends the
            attempt with a checkpoint.
        stop_after: end the attempt with a checkpoint after this many steps in all.
    """

    def __init__(
        self,
        task: Task,
        folder: RunFolder,
        config: Config,
        *,
        seed: int,
        attempt: int = 1,
        stop: Callable[[], bool] = lambda: False,
        stop_after: int | None = None,
    ) -> None:
        self.task = task
        self.folder = folder
        self.config = config
        self.settings = config.train
        self.seed = seed
        self.attempt = attempt
        self.stop = stop
        self.stop_after = stop_after
        self.device = task.device
        self.writes = distributed.rank() == 0
        self.training_step = TrainingStep(task, config)

        self.total_steps = self.settings.epochs * task.steps_per_epoch
        if self.settings.max_steps is not None:
            self.total_steps = min(self.total_steps, self.settings.max_steps)
        self.origin = Origin.of(task.record)
        self.schedule = Schedule(config.optim, self.settings.epochs, task.steps_per_epoch)
        self._first_bad_step = 0  # as last read from the device
        self._skipped_in_a_row = 0
        # Weights of the best epoch since the last checkpoint; before that they are in a file.
        self._best_weights: dict[str, Tensor] | None = None
        self._compiled_s: float | None = None  # the first step's, where it compiles
        self._saved = time.monotonic()  # when the last checkpoint was written, or the attempt began
        self.reporter = Reporter(folder, attempt, total=self.total_steps, writes=self.writes)
        names = self.settings.loggers if self.writes else ()
        self.loggers = Loggers(names, folder, self.reporter.line)

    @property
    def counters(self) -> Counters:
        return self.training_step.counters

    # -- the run ----------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Train, evaluate and record.

        Raises:
            RunError: the checkpoint cannot be read, or belongs to another seed, data set or weights.
        """
        self.resume()
        if self.writes:
            self.folder.update_run(**self.task.record)
            self.log_data()
        step = self.counters.step
        self.reporter.resumed(-(-step // self.task.steps_per_epoch), step)
        with self.reporter:
            self.task.model.train()
            if "init" in self.task.record:
                self.reporter.line(checkpoint.initial_line(self.task.record["init"]))
            try:
                # The attempt before may have ended before its evaluation.
                self.evaluate_if_due()
                while self.counters.step < self.total_steps:
                    outcome = self.train_epoch()
                    if outcome is not None:
                        return outcome
                    if self.must_stop(boundary=True):
                        return self.interrupt()
                    self.evaluate_if_due()
                    if self.checkpoint_due():
                        self.save_checkpoint()
                with self.training_step.averaged():
                    self.score_conditions()
            except _Stopped:
                return self.interrupt()
            except FloatingPointError:  # which the loss may not have shown yet
                return self.end_diverged(self.counters.epoch, "features are not finite")
            finally:
                self.loggers.close()
            return self.complete()

    def train_epoch(self) -> Outcome | None:
        """The rest of the current epoch; None when it went through."""
        task, step, counters = self.task, self.training_step, self.counters
        epoch = counters.epoch + 1
        first = counters.step - counters.epoch * task.steps_per_epoch
        if first == 0:
            counters.epoch_sum.zero_()
            counters.accuracy_sum.zero_()
        step.freeze_trunk(epoch <= self.settings.freeze_epochs)
        window = _Window()
        for in_epoch, batch in enumerate(task.train_batches(epoch, first), start=first + 1):
            rates = self.schedule.apply(step.optimizer, epoch, in_epoch)
            ends_epoch = in_epoch == task.steps_per_epoch or counters.step + 1 == self.total_steps
            logs = ends_epoch or (counters.step + 1) % self.settings.log_every == 0
            begun, together = self._update_of(in_epoch)
            updates = in_epoch == begun + together or ends_epoch

            loss, parts = step.forward_backward(
                batch, epoch, share=1 / together, adds=in_epoch > begun + 1
            )
            norms = step.update(measure=logs) if updates else {}
            counters.step += 1
            window.samples += task.batch_size(batch) * distributed.world_size()
            if self.settings.compile is True and self._compiled_s is None:
                loss.item()  # once, to wait for the device
                self._compiled_s = window.seconds()
                self.reporter.line(
                    f"first step, with compilation: {self._compiled_s:.1f} s, not counted in images/s"
                )
                window = _Window()

            if logs:
                row = self.read_row(loss, parts, norms, rates, epoch, in_epoch)
                if ends_epoch:
                    row["epoch_loss"] = row["running_loss"]
                row["images_per_s"] = window.add_to(counters)
                window = _Window()
                self.record(row)
                reason = self.diverged(row)
                if reason is not None:
                    return self.end_diverged(epoch, reason)
            self.reporter.stepped(epoch, counters.step)
            if ends_epoch:
                break
            if updates and self.must_stop(boundary=logs):
                window.add_to(counters)
                return self.interrupt()
            every = self.settings.checkpoint_every_steps
            if updates and every is not None and counters.step % every == 0:
                self.save_checkpoint()
        else:
            raise RunError(
                f"{self.folder.path}: epoch {epoch} ended early: the data gave fewer than "
                f"{task.steps_per_epoch} batches"
            )
        counters.epoch = epoch
        return None

    def _update_of(self, in_epoch: int) -> tuple[int, int]:
        """Batches of the epoch before the update that takes batch `in_epoch`, and batches in it."""
        size = self.settings.accumulate
        begun = (in_epoch - 1) // size * size
        of_run = self.total_steps - self.counters.epoch * self.task.steps_per_epoch
        return begun, min(size, min(self.task.steps_per_epoch, of_run) - begun)

    # -- what is recorded -------------------------------------------------------------------------

    def log_data(self) -> None:
        """What the run trains on, and what a reader of its results should know, into train.log."""
        data = self.task.record.get("data") or {}
        for split, counts in (data.get("counts") or {}).items():
            if isinstance(counts, dict):
                counts = ", ".join(f"{number} {what}" for what, number in counts.items())
            self.reporter.line(f"data: {split.replace('_', ' ')}: {counts}")
        for warning in (*(data.get("warnings") or ()), *(self.task.record.get("notes") or ())):
            self.reporter.line(f"warning: {warning}")
        for part, file in (self.task.record.get("weights") or {}).items():
            if isinstance(file, dict) and file.get("interpolated"):
                self.reporter.line(f"weights of {part}: {'; '.join(file['interpolated'])}")

    def read_row(
        self,
        loss: Tensor,
        parts: dict[str, Tensor],
        norms: dict[str, Tensor],
        rates: dict[str, float],
        epoch: int,
        in_epoch: int,
    ) -> dict[str, Any]:
        """A row of metrics.jsonl; the only place of a step where the host waits for the device.

        `running_loss` and `accuracy` are means over the epoch's first `in_epoch` steps, as DeMo's logs
        print `Loss` and `Acc`.
        """
        counters = self.counters
        on_device = {"loss": loss, **{f"loss/{k}": v for k, v in parts.items()}, **norms}
        on_device |= {name: v for name, v in vars(counters).items() if isinstance(v, Tensor)}
        stacked = torch.stack([v.to(torch.float64).reshape(()) for v in on_device.values()])
        read = dict(zip(on_device, stacked.tolist(), strict=True))
        read["running_loss"] = read.pop("epoch_sum") / in_epoch
        accuracy = read.pop("accuracy_sum") / in_epoch
        if read.pop("loss/accuracy", None) is not None:
            read["accuracy"] = accuracy
        self._first_bad_step = int(read.pop("first_bad_step"))
        self._skipped_in_a_row = int(read.pop("skipped_in_a_row"))
        skipped = int(read.pop("skipped"))
        row: dict[str, Any] = {
            "kind": "train",
            "attempt": self.attempt,
            "epoch": epoch,
            "step": counters.step,
            **read,
            "lr": rates.get("head", max(rates.values())),
            **{f"lr/{name}": rate for name, rate in rates.items() if name != "head"},
            "memory_mib": peak_memory_mib(self.device),
            "time": round(time.time(), 2),
        }
        if self.training_step.scaler.is_enabled():
            row["amp_scale"] = self.training_step.scaler.get_scale()
            row["amp_skipped"] = skipped
        return row

    def diverged(self, row: dict[str, Any]) -> str | None:
        """Why the run has diverged, or None. A loss that is large but finite trains on."""
        if not self.training_step.scaler.is_enabled():
            return "loss is not finite" if self._first_bad_step else None
        if row["amp_scale"] < SCALE_COLLAPSED:
            return f"AMP scale collapsed to {row['amp_scale']:.3g}"
        if self._skipped_in_a_row >= SKIPPED_IN_A_ROW:
            return f"{self._skipped_in_a_row} steps in a row skipped by the AMP scaler"
        return None

    def record(self, row: dict[str, Any]) -> None:
        if not self.writes:
            return
        self.folder.append_metrics(row)
        self.loggers.check()
        if row["kind"] == "eval":
            shown = " ".join(
                f"{k} {v:.4f}" for k, v in row.items() if isinstance(v, float) and k != "time"
            )
            self.reporter.line(f"epoch {row['epoch']} evaluated: {shown}")
        elif "epoch_loss" in row or row["step"] % (10 * self.settings.log_every) == 0:
            norm = row.get("grad_norm", math.nan)
            mean = f" (epoch mean {row['epoch_loss']:.4f})" if "epoch_loss" in row else ""
            self.reporter.line(
                f"epoch {row['epoch']}/{self.settings.epochs} step {row['step']}/{self.total_steps} "
                f"loss {row['loss']:.4f}{mean} lr {row['lr']:.3g} grad norm {norm:.3g} "
                f"{row['images_per_s']:.0f} images/s"
            )

    def evaluate_if_due(self) -> None:
        """Evaluate the finished epoch when its turn has come (always the last) and once only.

        Raises:
            _Stopped: the attempt is to end here. FloatingPointError: the features are not finite.
        """
        counters = self.counters
        last = counters.step >= self.total_steps
        if counters.evaluated == counters.epoch or (
            not last and counters.epoch % self.settings.eval_every
        ):
            return
        row = {"kind": "eval", "attempt": self.attempt, "epoch": counters.epoch, "step": counters.step}
        with self.training_step.averaged():
            row |= self.scored(("",), counters.step) | {"time": round(time.time(), 2)}
            metric = self.task.select_metric
            better = counters.best is None or row[metric] > counters.best[metric]
            if better and self.writes:
                self._best_weights = checkpoint.weights_of(self.task.model)
        self.record(row)
        if self.writes and self.task.queries:
            self.folder.write_queries({k: values.numpy() for k, values in self.task.queries.items()})
        counters.evaluated = counters.epoch
        counters.final = row
        if better:
            counters.best = row

    def scored(self, conditions: Sequence[str], step: int) -> dict[str, float]:
        """The task's metrics of the model as it is, in eval mode.

        Noise depends on the seed and `step` alone, and neither depends on training's nor changes it.

        Raises:
            _Stopped: the attempt is to end here. FloatingPointError: the features are not finite.
        """
        states = random_states()
        try:
            return score(self.task, self.seed, step, conditions, self.report_evaluation)
        finally:
            set_random_states(states)
            self.task.model.train()

    def report_evaluation(self, done: int, total: int) -> None:
        """Called after each block of an evaluation.

        Several processes do not stop here: they would have to agree after every block.
        """
        self.reporter.evaluating(done, total)
        if distributed.world_size() == 1 and self.stop():
            raise _Stopped

    def score_conditions(self) -> None:
        """Score the selected and the last weights under the task's other conditions.

        Raises:
            _Stopped: the attempt is to end here. FloatingPointError: the features are not finite.
        """
        counters, conditions = self.counters, self.task.conditions
        best, final = counters.best, counters.final
        if not conditions or best is None or final is None:
            return
        same = best["step"] == final["step"]
        final = {**final, **self.scored(conditions, final["step"])}
        if same:
            best = final
        else:
            last = {name: value.clone() for name, value in self.task.model.state_dict().items()}
            if self.writes:
                self.keep_best_weights()
            distributed.barrier()
            weights, _ = checkpoint.load_weights(self.folder.kept_weights_file(best["step"]))
            self.task.model.load_state_dict(weights)
            try:
                best = {**best, **self.scored(conditions, best["step"])}
            finally:
                self.task.model.load_state_dict(last)
        counters.best, counters.final = best, final
        for row in (final,) if same else (best, final):
            self.record(row)  # replaces the row of this step: a row counts by kind and step

    # -- how it ends ------------------------------------------------------------------------------

    def must_stop(self, *, boundary: bool) -> bool:
        """Whether this attempt ends here. Several processes agree, at logged steps only."""
        stops = self.stop() or (self.stop_after is not None and self.counters.step >= self.stop_after)
        if distributed.world_size() == 1:
            return stops
        return boundary and distributed.any_process(stops, self.device)

    def interrupt(self) -> Outcome:
        self.save_checkpoint()
        self.reporter.line(f"interrupted after step {self.counters.step}; checkpoint written")
        self.reporter.finish("requeued", step=self.counters.step)
        return "requeued"

    def end_diverged(self, epoch: int, reason: str) -> Outcome:
        step = self.counters.step if self.training_step.scaler.is_enabled() else self._first_bad_step
        step = step or self.counters.step
        event = {"kind": "event", "event": "diverged", "reason": reason, "attempt": self.attempt}
        if self.writes:
            self.folder.append_metrics({**event, "epoch": epoch, "step": step})
        self.reporter.line(f"diverged in epoch {epoch} at step {step}: {reason}")
        self.reporter.finish("diverged", epoch=epoch, step=step, reason=reason)
        return "diverged"

    def complete(self) -> Outcome:
        """Weights, status and run.json first; result.json is the very last write."""
        counters = self.counters
        result = {
            "attempt": self.attempt,
            "best": _without_time(counters.best),
            "final": _without_time(counters.final),
            "select_metric": self.task.select_metric,
            "selected_on": self.task.selected_on,
            "steps": counters.step,
            "train_seconds": round(counters.seconds, 3),
            "images_per_s": round(counters.samples / max(counters.seconds, 1e-9), 2),
            "peak_memory_mib": peak_memory_mib(self.device),
            "origin": self.origin.as_dict(),
        }
        if self.writes:
            self.save_weights()
        self.reporter.line(
            f"completed after {counters.step} steps, {counters.seconds:.1f} s of training"
        )
        self.reporter.finish("completed", progress=1.0)
        if self.writes:
            self.folder.end_attempt("completed", process_peak_mib())
            self.folder.write_result(result)
            self.folder.remove_checkpoint()
        distributed.barrier()
        return "completed"

    def save_weights(self) -> None:
        """The weights of the selected and of the last epoch, which may be one."""
        counters = self.counters
        assert counters.best is not None and counters.final is not None
        best, last = self.folder.weights_file("best"), self.folder.weights_file("last")
        with self.training_step.averaged():
            weights = checkpoint.weights_of(self.task.model)
        checkpoint.save_weights(last, weights, self.about("last", counters.final))
        if counters.best["step"] == counters.final["step"]:
            checkpoint.link_weights(last, best)
        else:
            self.keep_best_weights()
            checkpoint.link_weights(self.folder.kept_weights_file(counters.best["step"]), best)

    def keep_best_weights(self) -> None:
        """Write the best epoch's weights to a file of their own, if they are in memory only."""
        if self._best_weights is None:
            return
        best = self.counters.best
        assert best is not None
        path = self.folder.kept_weights_file(best["step"])
        self.folder.check_lock()
        checkpoint.save_weights(path, self._best_weights, self.about("best", best))
        self._best_weights = None

    def about(self, which: Weights, row: dict[str, Any]) -> dict[str, Any]:
        """What a weights file says about itself: enough to evaluate it away from its run."""
        run = self.folder.run()
        return {
            **{key: run.get(key) for key in ("study", "variant", "identity")},
            "which": which,
            "seed": self.seed,
            "epoch": row["epoch"],
            "step": row["step"],
            "metrics": {k: v for k, v in row.items() if isinstance(v, float) and k != "time"},
            "config": resolved(self.config),
            "origin": self.origin.as_dict(),
        }

    # -- checkpoints ------------------------------------------------------------------------------

    def checkpoint_due(self) -> bool:
        """At an epoch's end. Processes have clocks of their own and must agree."""
        due = time.monotonic() - self._saved >= self.settings.checkpoint_every_s
        return distributed.any_process(due, self.device)

    def save_checkpoint(self) -> None:
        states = distributed.gather_objects(random_states())
        if self.writes:
            self.keep_best_weights()  # before the checkpoint that counts on them
            self.folder.check_lock()
            about = {"seed": self.seed, "step": self.counters.step, "origin": self.origin.as_dict()}
            state = {**about, **self.training_step.state(), "random_states": states}
            checkpoint.save(self.folder.checkpoint_file, state)
            best = self.counters.best
            self.folder.remove_kept_weights(None if best is None else best["step"])
        self._saved = time.monotonic()
        distributed.barrier()

    def resume(self) -> None:
        saved = checkpoint.load(self.folder.checkpoint_file, self.device)
        if saved is None:
            return
        if saved["seed"] != self.seed or not {"counters", "origin"} <= saved.keys():
            raise RunError(
                f"{self.folder.checkpoint_file}: written by a finished run, by code that recorded no "
                f"origin, or for another seed ({saved['seed']}, this run has {self.seed}). "
                "Delete it to start anew."
            )
        self.origin = self.origin.resumed_from(saved["origin"], self.folder.checkpoint_file)
        self.training_step.load(saved)
        best = self.counters.best
        if best is not None and not self.folder.kept_weights_file(best["step"]).is_file():
            raise RunError(
                f"{self.folder.path}: the weights of the best epoch so far ({best['epoch']}) are gone; "
                "delete checkpoint.pt to start anew"
            )
        resume_random_states(saved["random_states"], distributed.rank(), self.seed)
        if self.writes:
            event = {"kind": "event", "event": "resumed", "attempt": self.attempt}
            place = {"epoch": self.counters.epoch, "step": self.counters.step}
            self.folder.append_metrics({**event, **place})
            codes = self.origin.code
            other = f", on other code: {', '.join(codes)}" if len(codes) > 1 else ""
            line = f"attempt {self.attempt} resumes after step {self.counters.step}{other}"
            self.reporter.line(line)


class _Stopped(Exception):
    """Ends an evaluation, because the attempt is to stop."""


def score(
    task: Task,
    seed: int,
    step: int,
    conditions: Sequence[str] = ("",),
    progress: Progress = no_progress,
) -> dict[str, float]:
    """Metrics of a task's model, as in training after `step` steps: same noise, same precision.

    Leaves the model in eval mode and the random states changed.
    """
    task.model.eval()
    seed_everything(seed + 7919 * step)
    # Not compiled: other batch sizes and modes would each cost a compilation.
    compiles = "torch._dynamo" in sys.modules  # else this would import it, which takes a second
    stance = torch.compiler.set_stance("force_eager") if compiles else nullcontext()
    with torch.no_grad(), stance:
        return task.evaluate(conditions, progress)


def _without_time(row: dict[str, Any] | None) -> dict[str, Any] | None:
    """A row as result.json holds it: the same for the same training, whenever it ran."""
    return row and {key: value for key, value in row.items() if key != "time"}


class _Window:
    """Samples and seconds since the last logged step."""

    def __init__(self) -> None:
        self.begun = time.perf_counter()
        self.samples = 0

    def seconds(self) -> float:
        return time.perf_counter() - self.begun

    def add_to(self, counters: Counters) -> float:
        """Count what the window saw; returns samples per second."""
        seconds = self.seconds()
        counters.seconds += seconds
        counters.samples += self.samples
        return round(self.samples / max(seconds, 1e-9), 2)
