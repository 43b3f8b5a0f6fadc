"""The verb `site`: `sdtps site check` submits a short job and says what works on this cluster.

The job runs as a study's would: same options, set-up lines, interpreter and frozen code, as an array of
one element. It writes down what it finds; nothing of a study is touched.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import Timeout

from ablations.slurm import commands as slurm
from ablations.store.locks import file_lock
from ablations.study.arguments import add_site, site_of
from sdtps.system import files
from sdtps.system.commandline import add_json, add_runs_dir, at_least
from sdtps.system.errors import SubmissionError

FOLDER = "_site"  # below the run store
MINUTES = 2
POLL_SECONDS = 2.0
LOCK_SECONDS = 10

Found = tuple[str, bool, str]  # what was looked at, whether it works, what was found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=("check",))
    add_site(parser)
    add_runs_dir(parser)
    add_json(parser)
    parser.add_argument(
        "--wait",
        type=at_least(1),
        default=600,
        metavar="SECONDS",
        help="how long to wait for the job [600]",
    )


def command(arguments: argparse.Namespace) -> int:
    """Returns 1 where something does not work."""
    store = arguments.runs_dir.resolve()
    found = [*_here(store)]
    if all(well for _, well, _ in found):
        found += _there(store, arguments)
    if arguments.json:
        rows = [{"what": what, "works": well, "found": text} for what, well, text in found]
        print(json.dumps(rows, indent=2))
    else:
        for what, well, text in found:
            print(f"{'works' if well else 'FAILS'}  {what:<12} {text}")
    return 0 if all(well for _, well, _ in found) else 1


def _here(store: Path) -> Iterator[Found]:
    """What this machine can tell."""
    if not slurm.configured():
        yield "slurm", False, "no sbatch here, or no cluster that it knows of"
        return
    name = slurm.cluster_name()
    try:
        slurm.ask(["scontrol", "ping"])
        size = slurm.max_array_size()
        yield "controller", True, f"cluster {name or '(unnamed)'}, MaxArraySize {size}"
    except slurm.NoAnswer as answer:
        yield "controller", False, str(answer)
    yield from _store(store)


def _store(store: Path) -> Iterator[Found]:
    """Whether runs can be written and locked in `store` from this machine."""
    from ablations.slurm.script import check_path

    folder = store / FOLDER
    try:
        check_path(store)
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"probe-{os.getpid()}"
        file.write_text("x")
        try:
            os.link(file, file.with_suffix(".link"))
            file.with_suffix(".link").unlink()
            lacks = ""
        except OSError:
            lacks = ", without hard links"
        with warnings.catch_warnings(record=True) as without_flock:
            warnings.simplefilter("always")
            with file_lock(folder, nested=False).acquire(timeout=LOCK_SECONDS):
                pass
        lacks += ", by lock files (no flock)" if without_flock else ""
        file.unlink()
        yield "store", True, f"{store} can be written and locked{lacks}"
    except (OSError, SubmissionError) as error:
        yield "store", False, f"{store}: {error}"


def _there(store: Path, arguments: argparse.Namespace) -> Iterator[Found]:
    """What a job finds."""
    from ablations.slurm import endings, script
    from ablations.store import snapshot
    from ablations.study.schema import Resources

    site = site_of(arguments)
    given = {key: getattr(arguments, key) for key in ("partition", "account", "gpus")}
    given = {key: value for key, value in given.items() if value is not None}
    given.setdefault("gpus", 1 if site.gpu_type else 0)
    resources = site.over(Resources.model_validate({"timeout_min": MINUTES, "cpus": 1, **given}))
    folder = store / FOLDER / f"sdtps-site-{time.time_ns()}"
    folder.mkdir(parents=True)
    text = script.probe_script(folder, resources, snapshot.freeze(store), __name__)
    files.write_text(folder / "submission.sh", text)
    files.write_text(folder / "setup.sh", script.setup_text(resources))
    submitted = time.time()
    try:
        job, _ = slurm.sbatch(folder / "submission.sh", resources)
    except (SubmissionError, slurm.NoAnswer) as error:
        yield "sbatch", False, " ".join(str(error).split())
        return
    element = f"{job}_0"
    yield "sbatch", True, f"job {element}: {resources.summary()}"
    probe, log = folder / "probe.json", folder / f"{element}.log"
    try:
        with file_lock(folder, nested=False):  # seen by the job where locks hold between machines
            state, name = _wait(probe, element, arguments.wait)
    finally:
        slurm.cancel([element])
    if name not in ("", folder.name):
        text = f"the cluster calls the job {name}, not {folder.name}: it cannot be found"
        yield "name", False, text
    if not probe.exists():
        tail = " ".join(endings.tail(log, 3).split())
        if not tail:
            started = not state.startswith(("not started", "PENDING"))
            tail = "its log is empty" if log.exists() else "it wrote no log"
            tail += f": compute nodes may not see or write {store}" if started else ""
        yield "job", False, f"{state}; {tail}; see {log}"
        return
    found = json.loads(probe.read_text())
    _, written = found.pop("time")
    yield from ((what, works, text) for what, (works, text) in found.items())
    yield "heartbeat", *_compare_clocks(float(written), submitted)


def _compare_clocks(written: float, submitted: float) -> tuple[bool, str]:
    """Whether the job, `submitted` by our clock, has `written` by a clock that agrees."""
    from sdtps.run.folder import HEARTBEAT_SECONDS

    for seconds, way in ((written - time.time(), "ahead of"), (submitted - written, "behind")):
        if seconds > HEARTBEAT_SECONDS:
            return False, f"the node's clock is at least {seconds:.0f} s {way} this machine's"
    return True, "clocks agree"


def _wait(probe: Path, element: str, seconds: int) -> tuple[str, str]:
    """Until the job has written its probe or ended; returns its last state and its name."""
    state, name = "not started", ""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not probe.exists():
        with contextlib.suppress(slurm.NoAnswer):
            job = slurm.squeue([element.partition("_")[0]]).get(element)
            if job is not None:
                now = f"{job.state} {job.reason}".strip()
                if now != state:
                    print(f"job {element}: {now}", file=sys.stderr)
                state, name = now, job.name
                if job.ended:
                    deadline = 0.0
        time.sleep(POLL_SECONDS)  # also after the end: a network file system shows its files later
    return state, name


# -- inside the job --------------------------------------------------------------------------------


def probe(folder: Path) -> dict[str, tuple[bool, Any]]:
    """What a job finds, by what was looked at."""
    found: dict[str, tuple[bool, Any]] = {"time": (True, time.time())}
    found["python"] = True, f"{sys.version.split()[0]} {sys.executable}"
    wanted = int(os.environ.get("SDTPS_SITE_GPUS", "0"))
    try:
        import torch

        found["torch"] = True, torch.__version__
        seen = torch.cuda.device_count()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        names = ", ".join(torch.cuda.get_device_name(k) for k in range(seen)) or "none"
        found["gpu"] = seen >= wanted, f"asked for {wanted}, torch sees {seen} ({names}; {visible})"
    except ImportError as error:
        found["torch"] = False, str(error)
    for what, well, text in _store(folder.parent.parent):
        found[f"{what} there"] = well, text
    found["locks there"] = _held(folder)
    found["environment"] = "PATH" in os.environ, f"host {os.uname().nodename}, cwd {Path.cwd()}"
    job, task = (os.environ.get(f"SLURM_ARRAY_{name}_ID") for name in ("JOB", "TASK"))
    if not (job and task):  # a container or a set-up line that clears the environment
        found["array"] = False, "SLURM_ARRAY_JOB_ID and SLURM_ARRAY_TASK_ID do not reach Python"
        return found
    found["array"] = task == "0", f"element {task} of job {job}"
    if os.environ.get("SLURM_RESTART_COUNT", "0") == "0":
        refused = slurm.requeue(f"{job}_{task}")
        found["requeue"] = refused is None, refused or "the job may requeue itself"
    else:  # it was ended before it could write what it had found
        found["requeue"] = True, "the job requeued itself and started again"
    return found


def _held(folder: Path) -> tuple[bool, str]:
    """Whether the lock that the submitting machine holds is seen here."""
    try:
        with file_lock(folder, nested=False).acquire(timeout=0):
            return False, (
                "a lock held by the submitting machine is free here: each machine locks by itself "
                "(Lustre needs the mount option flock, not localflock; NFS local_lock=none)"
            )
    except Timeout:
        return True, "locks of the submitting machine are seen"
    except OSError as error:
        return False, str(error)


def main() -> int:
    folder = Path(sys.argv[1])
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a requeue ends the job; the probe is written first
    files.write_json(folder / "probe.json", probe(folder))
    print(shlex.join(sys.argv))
    return 0


if __name__ == "__main__":
    sys.exit(main())
