"""A run on disk: the only place that knows file names inside runs/STUDY/VARIANT/seedK-HASH/.

Everything is readable without Python. One writer per file; readers tolerate a torn last line, and take
what is no regular file (a directory, a FIFO, a link round in a circle) as nothing.

    config.yaml     resolved configuration, written at submission     run.json     provenance
    metrics.jsonl   one object a line, append-only                    status.json  state and heartbeat
    checkpoint.pt   model, optimiser, counters, random states         result.json  written once, last
    train.log       what the trainer said                             submitit/    the scheduler's logs
    lock.json      who submitted it, written before the scheduler is asked
    best.safetensors, last.safetensors    weights of a completed run's selected and last epoch
    queries.safetensors    average precision, rank and identity of each query, of the last evaluation
    queries.json    the same as another program writes it (sdtps/run/queries.py)
    evaluations.jsonl    one object for each evaluation after training (`sdtps evaluate`)

Only the existence of result.json means completed. A completed run has no checkpoint.pt any more, and is
sealed: result.json holds the digests of config.yaml, metrics.jsonl and run.json as they were at the end
(`RunFolder.changed_since_end`). Of a run that diverged or failed status.json holds them, unless it was
killed. That finds accidents; whoever forges a file can forge its seal too.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml

from sdtps.system.errors import LockLost, RunError
from sdtps.system.files import digest, read_bytes, write_bytes, write_json, write_text

if TYPE_CHECKING:
    import numpy as np

    from sdtps.config import AnyConfig

# States that the run itself records in status.json. Others (queued, lost, node, cancelled by the
# scheduler ...) are told by ablations/store/states.py from the scheduler and the heartbeat's age.
RunState = Literal["running", "requeued", "completed", "diverged", "failed", "cancelled"]
HEARTBEAT_SECONDS = 15.0
Weights = Literal["best", "last"]
LOCK_VARIABLE = "SDTPS_LOCK"
_SEALED = ("config.yaml", "metrics.jsonl", "run.json")  # by result.json, which is written after them
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # libyaml's is ten times as fast


def now() -> str:
    """The time in UTC, ISO 8601 to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def folder_name(seed: int, identity: str) -> str:
    """seedK-HASH: the seed to read, the identity to be sure."""
    return f"seed{seed}-{identity}"


def finite(row: Mapping[str, Any]) -> dict[str, Any]:
    """`row` as strict JSON can hold it: non-finite numbers become null, named under `nonfinite`."""
    bad = {k: str(v) for k, v in row.items() if isinstance(v, float) and not math.isfinite(v)}
    return {**row, **dict.fromkeys(bad), **({"nonfinite": bad} if bad else {})}


def is_finite(value: Any) -> bool:
    """Whether `value` is a finite number."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # a whole number of hundreds of digits
        return False


def best_of(rows: Sequence[dict[str, Any]], select: str) -> dict[str, Any] | None:
    """The row that `select` ("mAP max") chooses, the earliest of equals; None where no row holds it."""
    name, way = select.split()
    usable = [row for row in rows if is_finite(row.get(name))]
    sign = -1.0 if way == "max" else 1.0
    return min(usable, key=lambda row: (sign * row[name], row.get("step", 0)), default=None)


def config_text(config: AnyConfig) -> str:
    """config.yaml: the resolved configuration."""
    from sdtps.config import resolved  # here: `sdtps.log` starts without it

    return yaml.dump(resolved(config), Dumper=_DUMPER, sort_keys=False, allow_unicode=True)


def _instant(stamp: Any) -> float | None:
    """Seconds since 1970 of an ISO time or a finite number; None for anything else."""
    if isinstance(stamp, (int, float)) and not isinstance(stamp, bool):
        return float(stamp) if math.isfinite(stamp) else None
    try:
        return datetime.fromisoformat(str(stamp).replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None


class _File:
    """A file of a run. Its path is made when asked for: ten thousand runs are looked at in a second."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, folder: RunFolder, _: type[RunFolder]) -> Path:
        return folder.path / self.name


class RunFolder:
    """One run's files. Creating the object touches nothing on disk."""

    def __init__(self, path: Path | str) -> None:
        self.path = path if isinstance(path, Path) else Path(path)

    config_file = _File("config.yaml")
    run_file = _File("run.json")
    metrics_file = _File("metrics.jsonl")
    status_file = _File("status.json")
    checkpoint_file = _File("checkpoint.pt")
    evaluations_file = _File("evaluations.jsonl")
    queries_file = _File("queries.safetensors")
    result_file = _File("result.json")
    log_file = _File("train.log")
    lock_file = _File("lock.json")
    submitit_folder = _File("submitit")

    def weights_file(self, which: Weights) -> Path:
        """Weights of the selected or of the last epoch."""
        return self.path / f"{which}.safetensors"

    def kept_weights_file(self, step: int) -> Path:
        """Weights of the best evaluation so far, while the run goes on."""
        return self.path / f"step{step}.safetensors"

    # -- written at submission ------------------------------------------------------------------

    def create(self, config: AnyConfig | str, run: Mapping[str, Any]) -> None:
        """Make the folder with its configuration (or its text, see `config_text`) and provenance.

        A folder that exists gets the configuration as it is now: where data lie, workers and so on are
        not part of the identity in its name. `run` holds at least study, variant, seed, identity; see
        `sdtps.run.provenance` for the rest.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        text = config if isinstance(config, str) else config_text(config)
        if read_bytes(self.config_file) != text.encode():
            write_text(self.config_file, text)
            if "seal" in (status := self.status() or {}):  # of an earlier end
                write_json(self.status_file, {k: v for k, v in status.items() if k != "seal"})
        if "seed" not in self.run():  # new, or torn: without its seed nothing can run it
            write_json(self.run_file, dict(run))

    # -- written by the run ---------------------------------------------------------------------

    def check_lock(self) -> None:
        """Refuse to write where another submission has taken the folder over.

        A job's environment names the submission that it belongs to (SDTPS_LOCK).

        Raises:
            LockLost: lock.json is gone or names another submission.
        """
        own = os.environ.get(LOCK_VARIABLE)
        if own and (_read_json(self.lock_file) or {}).get("submission") != own:
            raise LockLost(
                f"{self.lock_file}: names another submission than this job's ({own}); "
                "nothing is written any more"
            )

    def update_run(self, **fields: Any) -> None:
        """Merge `fields` into run.json."""
        self.check_lock()
        write_json(self.run_file, {**self.run(), **fields})

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """Add one line to metrics.jsonl.

        Every row has `attempt` (1, 2, ...), `kind` (train, eval, event), `epoch` (from 1; 0 = before
        training), `step` (optimiser steps done, from 1). Values are flat: `loss`, `loss/sdtps_id`,
        `lr`, `lr/backbone`, `grad_norm`, `grad_norm/score_mlp`, `amp_scale`, `images_per_s`,
        `memory_mib`, `mAP`, `rank1` (fractions in [0, 1]). A torn last line of a killed attempt is
        closed first.
        """
        self.check_lock()
        _append(self.metrics_file, _line(row))

    def replace_metrics(self, attempt: int, rows: list[dict[str, Any]]) -> None:
        """Put `rows` in the place of the attempt's rows: a program's log is read again and again."""
        self.check_lock()
        earlier = [row for row in self.metrics() if row.get("attempt") != attempt]
        rows = [*earlier, *({**row, "attempt": attempt} for row in rows)]
        write_text(self.metrics_file, "".join(f"{_line(row)}\n" for row in rows))

    def write_queries(self, values: Mapping[str, np.ndarray]) -> None:
        """Replace what is known of each query, by column (`sdtps.run.queries`)."""
        import numpy as np  # here: `status` and `plan` start without it
        from safetensors.numpy import save

        self.check_lock()
        small = {np.dtype(np.float64): np.float32, np.dtype(np.int64): np.int32}
        arrays = {n: np.ascontiguousarray(v, dtype=small.get(v.dtype)) for n, v in values.items()}
        write_bytes(self.queries_file, save(arrays))

    def queries(self) -> dict[str, np.ndarray]:
        """What `write_queries` wrote; empty where there is none, or none that can be read."""
        from safetensors import SafetensorError
        from safetensors.numpy import load

        try:
            return load(read_bytes(self.queries_file) or b"")
        except (OSError, ValueError, SafetensorError):
            return {}

    def append_evaluation(self, row: Mapping[str, Any]) -> None:
        """Add one line, which seals itself, to evaluations.jsonl; status.json tells how many it has."""
        _append(self.evaluations_file, sealed(finite(row), {"folder": self._name}))
        status = self.status() or {}
        write_json(self.status_file, {**status, "evaluations": len(self.evaluations())})

    def evaluations(self) -> list[dict[str, Any]]:
        """All rows of evaluations.jsonl; unreadable lines are left out."""
        return _rows(self.evaluations_file)

    def later_scores(self) -> dict[str, dict[str, tuple[Any, str | None]]]:
        """`best` and `last` to what was scored after training with these weights, the newest of each:
        metric to its value and to the digest of the code that scored it (None: not recorded).

        Conditions on the run's own data, and other data that were given a name (`mAP@on_NAME`).
        """
        of_weights: dict[str, dict[str, tuple[Any, str | None]]] = {"best": {}, "last": {}}
        for row in self.evaluations():
            data, metrics, code = row.get("data"), row.get("metrics"), row.get("code")
            scores = of_weights.get(str(row.get("weights")))
            if not isinstance(data, dict) or not isinstance(metrics, dict) or scores is None:
                continue
            if data.get("own") is True and row.get("condition"):
                scores |= {name: (value, code) for name, value in metrics.items()}
            elif data.get("own") is False and isinstance(data.get("as"), str):
                scores |= {f"{name}@on_{data['as']}": (value, code) for name, value in metrics.items()}
        return of_weights

    def machine_seconds(self) -> float:
        """For how long attempts held a machine; one without an end counts to the last heartbeat."""
        return machine_seconds(self.run().get("attempts") or [], self.status() or {})

    def end_attempt(self, outcome: str, peak_memory_mib: float) -> None:
        """Record how the last attempt ended, and its memory; seal what diverged or failed."""
        attempts = self.run().get("attempts", [])
        if attempts:
            attempts[-1] |= {
                "ended": now(),
                "ended_as": outcome,
                "peak_memory_mib": peak_memory_mib,
            }
            self.update_run(attempts=attempts)
        if outcome in ("diverged", "failed"):
            status = self.status() or {}
            write_text(self.status_file, sealed(status, self._seal(), indent=2) + "\n")

    def write_status(self, state: RunState, *, attempt: int, **fields: Any) -> None:
        """Replace status.json; `fields` may hold epoch, step, reason, progress (0 to 1), eta_s."""
        self.check_lock()
        row = {"state": state, "attempt": attempt, "time": now(), "heartbeat": time.time(), **fields}
        write_json(self.status_file, finite(row))

    def remove_checkpoint(self) -> None:
        """What only a resume needs; a completed run has its weights."""
        with contextlib.suppress(OSError):  # the run is completed all the same
            self.remove_kept_weights(None)
            self.checkpoint_file.unlink(missing_ok=True)

    def remove_kept_weights(self, step: int | None) -> None:
        """Weights of earlier best epochs; those of `step` stay."""
        for file in self.path.glob("step*.safetensors"):
            if step is None or file != self.kept_weights_file(step):
                file.unlink(missing_ok=True)

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Write result.json, once and last: it seals the run (key `seal`, see `changed_since_end`).

        `result`: attempt, best (the evaluation row selected), final (the last evaluation row),
        selected_on (split), train_seconds, peak_memory_mib, steps, images_per_s.

        Raises:
            RunError: the run has a result already. One that cannot be read is none, and is replaced.
        """
        self.check_lock()
        if self.result() is not None:
            raise RunError(f"{self.result_file}: exists already; a run completes once")
        write_text(self.result_file, sealed(result, self._seal(), indent=2) + "\n")

    @property
    def _name(self) -> str:
        return self.path.name or self.path.resolve().name

    def _seal(self) -> dict[str, Any]:
        run = self.run()
        seal = {key: run.get(key) for key in ("study", "variant", "seed")}
        return seal | {"folder": self._name, **{name: self._digest(name) for name in _SEALED}}

    def _digest(self, name: str) -> str | None:
        content = read_bytes(self.path / name)
        return None if content is None else digest(content)

    # -- read -----------------------------------------------------------------------------------

    def config(self) -> AnyConfig:
        """The resolved configuration. Raises ConfigError."""
        from sdtps.config import load_config  # here: `sdtps.log` starts without it

        return load_config(self.config_file)

    def run(self) -> dict[str, Any]:
        """run.json, or an empty dictionary where it is missing or torn."""
        row = _typed(_read_json(self.run_file) or {}, _IN_RUN)
        if "attempts" in row:
            row["attempts"] = [a for a in row["attempts"] or () if isinstance(a, dict)]
        return row

    def status(self) -> dict[str, Any] | None:
        """status.json, or None where it is missing or torn."""
        row = _read_json(self.status_file)
        return None if row is None else _typed(row, _IN_STATUS)

    def result(self) -> dict[str, Any] | None:
        """result.json, or None: not completed, or not what a run writes."""
        row = _read_json(self.result_file)
        if not row or not all(isinstance(row.get(key) or {}, dict) for key in ("best", "final")):
            return None
        return _typed(row, _IN_RESULT)

    def changed_since_end(self, *, only_newer: bool = False) -> list[str]:
        """What of a run that has ended has other contents than at its end; empty: intact.

        Nothing is said of a run without a seal: one that goes on, or that was killed.

        Args:
            only_newer: for thousands of runs, read no file that the file system has not seen changed or
                renamed since the seal was written.
        """
        try:
            last = self.result_file if self.result_file.exists() else self.status_file
            content = read_bytes(last) or b""
            row = row_of(content) or {}
            seal = row.get("seal")
            if not isinstance(seal, dict):
                return ["result.json has no seal"] if row and last == self.result_file else []
            changed = (
                [] if is_sealed(content, row) else [f"{last.name} was changed after it was written"]
            )
            written = last.stat().st_ctime_ns
            for name in _SEALED:
                path = self.path / name
                if only_newer and path.is_file() and path.stat().st_ctime_ns <= written:
                    continue
                if self._digest(name) != seal.get(name):
                    how = "was changed" if path.exists() else "was deleted"
                    changed.append(f"{name} {how} after the run had ended")
            if seal.get("folder") != self._name:
                whose = f"{seal.get('study')}/{seal.get('variant')} seed {seal.get('seed')}"
                changed.append(f"the folder holds the run {whose}, which was in {seal.get('folder')}")
            lines = (read_bytes(self.evaluations_file) or b"").split(b"\n")
        except OSError as error:
            return [f"{Path(error.filename or self.path).name} cannot be read: {error.strerror}"]
        for number, line in enumerate(lines, start=1):
            row = row_of(line) or {}
            if line.strip() and not is_sealed(line, row, folder=self._name):
                changed.append(f"evaluations.jsonl: line {number} was changed after it was written")
        there = sum(map(bool, map(bytes.strip, lines)))
        with contextlib.suppress(OSError):  # status.json, without which the run is complete
            if there < (count := (self.status() or {}).get("evaluations") or 0):
                changed.append(f"evaluations.jsonl: {count - there} of {count} lines are gone")
        return changed

    def metrics(self) -> list[dict[str, Any]]:
        """All rows of metrics.jsonl in file order; unreadable lines are left out."""
        return _rows(self.metrics_file)

    def resolved_metrics(self) -> list[dict[str, Any]]:
        """Rows in order of step, each (kind, step) once, as if nothing had interrupted the run.

        Where a later attempt resumed, what earlier attempts logged from there on is left out: the later
        attempt is the run's history, also while it has not yet come as far.
        """
        return resolve_attempts(self.metrics())


def sealed(row: Mapping[str, Any], seal: Mapping[str, Any], *, indent: int | None = None) -> str:
    """`row` as JSON that ends with `seal` and, in it, the digest of all the rest of the text."""
    whole = {**row, "seal": {**seal, "digest": ""}}
    text = json.dumps(whole, allow_nan=False, ensure_ascii=False, indent=indent)
    before, _, after = text.rpartition('""')
    return f'{before}"{digest(text.encode())}"{after}'


def is_sealed(text: bytes, row: Mapping[str, Any], folder: str | None = None) -> bool:
    """Whether `text`, which holds `row`, is as `sealed` wrote it (in the run folder of that name)."""
    seal = row.get("seal")
    if not isinstance(seal, dict) or folder not in (None, seal.get("folder")):
        return False
    before, _, after = text.strip().rpartition(f'"{seal.get("digest")}"'.encode())
    return digest(before + b'""' + after) == seal.get("digest")


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(finite(row), allow_nan=False, ensure_ascii=False)


def _append(path: Path, line: str) -> None:
    """Add a line; a torn last line of a killed process is closed first."""
    line += "\n"
    with path.open("ab+") as stream:
        if stream.tell() > 0:
            stream.seek(-1, os.SEEK_END)
            if stream.read(1) != b"\n":
                line = "\n" + line
        stream.write(line.encode())
        stream.flush()


def _rows(path: Path) -> list[dict[str, Any]]:
    text = (read_bytes(path) or b"").decode(errors="replace")
    return [row for line in text.split("\n") if (row := row_of(line)) is not None]


def row_of(line: str | bytes) -> dict[str, Any] | None:
    """The JSON object that a line, or a file, is; None where it is none, such as a torn line."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def resolve_attempts(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """`RunFolder.resolved_metrics` of rows in file order.

    Events do not say where an attempt began: one may be noted at the checkpoint's own step.
    """
    first: dict[int, tuple[int, bool]] = {}  # each attempt's earliest place
    for row in rows:
        if row.get("kind") != "event":
            attempt = row.get("attempt", 1)
            first[attempt] = min(_place(row), first.get(attempt, _place(row)))
    kept: dict[tuple[str, int], dict[str, Any]] = {}
    for row in rows:
        attempt = row.get("attempt", 1)
        if all(_place(row) < begun for later, begun in first.items() if later > attempt):
            place = row.get("kind", ""), row.get("step", 0)
            earlier = kept.get(place, {}) if place[0] == "eval" else {}
            # A program may log one evaluation in several rows.
            kept[place] = {**earlier, **row} if earlier.get("attempt", 1) == attempt else row
    return sorted(kept.values(), key=_place)


def _place(row: dict[str, Any]) -> tuple[int, bool]:
    """An evaluation follows the step it evaluates, and may be all that a later attempt had to redo."""
    return row.get("step", 0), row.get("kind", "") != "train"


# What readers count on. A file that somebody edited may hold anything: a value of another type is left
# out, as if it had not been written.
_NUMBER = (int, float)
_IN_STATUS: dict[str, Any] = {
    **dict.fromkeys(("epoch", "step", "attempt", "evaluations"), int),
    **dict.fromkeys(("progress", "eta_s", "heartbeat", "stepped"), _NUMBER),
    "state": str,
}
_IN_RESULT: dict[str, Any] = {"attempt": int, "select_metric": str, "train_seconds": _NUMBER}
_IN_RUN: dict[str, Any] = {
    "attempts": list,
    **dict.fromkeys(("code", "environment", "slurm", "data"), dict),
}


def _typed(row: dict[str, Any], types: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value
        for key, value in row.items()
        if key not in types
        or value is None
        or (isinstance(value, types[key]) and not isinstance(value, bool))
    }


def _read_json(path: Path) -> dict[str, Any] | None:
    return row_of(read_bytes(path) or b"")


def machine_seconds(attempts: Sequence[Mapping[str, Any]], status: Mapping[str, Any]) -> float:
    """`RunFolder.machine_seconds`, of run.json's attempts and status.json."""
    total = 0.0
    for attempt in attempts:
        start, end = _instant(attempt.get("started")), _instant(attempt.get("ended"))
        if end is None and attempt is attempts[-1]:
            end = _instant(status.get("heartbeat"))
        if start is not None and end is not None:
            total += max(0.0, end - start)
    return total
