"""Runs of a second under everything at once, with a ledger in which each writes its starts and ends.

Two clusters with one store, two users who submit equal runs under two names in the same second,
submitters that are killed, a controller that is away, jobs that are killed, a node's daemon that is
started again, a colleague who cancels and cleans what is not theirs, variants that are renamed twice.
No run lives twice, none is lost, each completes once.

`make slurm-large` does it with 1,000 runs, which takes a quarter of an hour on two cores.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from ablations.store.equal import shown_states
from ablations.study.manifest import load_study
from ablations.study.model import Study
from tests.ablations import plant, standin
from tests.slurm.cluster import NODE, Cluster
from tests.slurm.conftest import running

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(7200)]
ROOT = Path(__file__).resolve().parents[2]
COUNT = int(os.environ.get("SDTPS_LEDGER_RUNS", "20"))
VARIANTS = 10
LARGE = COUNT >= 1000
KILLED_SUBMITTERS = 20 if LARGE else 6
KILLED_BY_S = 8 if LARGE else 4  # a small submission has ended by then
AWAY_SECONDS = 120.0 if LARGE else 15.0
AGAIN_SECONDS = 20 if LARGE else 4
ANOTHER = 65_534  # nobody: a user that every system has, with a group of that number
USERS = (0, ANOTHER)
PACKAGES = [path for path in sys.path if path.endswith("-packages")]
COLLEAGUE = """
import contextlib, os, sys
from pathlib import Path
from ablations.store import cancel, clean, locks, states
from ablations.slurm.scheduler import Scheduler
from ablations.study.manifest import load_study
from sdtps.system.errors import SdtpsError
study, runs = load_study(Path(sys.argv[1])), Path(sys.argv[2])
study.runs()
os.setgroups([]), os.setgid(int(sys.argv[3])), os.setuid(int(sys.argv[3]))
found = states.run_states(study.runs(), runs)
others = [one for one in found if (lock := locks.read(one.folder)) and not lock.mine]
with contextlib.suppress(SdtpsError, OSError):
    cancel.cancel(others, runs)
chosen = clean.select_folders(study, runs, found, in_states=["interrupted"], unplanned=False)
print(len(clean.delete_folders(chosen, runs)))
"""


def _python() -> str:
    """A Python of this version that both users may start: this one may lie in somebody's home."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for program in (sys.executable, f"/usr/bin/{name}", f"/usr/local/bin/{name}"):
        with contextlib.suppress(OSError):
            if not subprocess.run([program, "-c", ""], user=ANOTHER, group=ANOTHER).returncode:
                return program
    pytest.skip(f"no {name} that another user may start")


@pytest.fixture
def clusters() -> Iterator[list[Cluster]]:
    with running(name="c0", min_job_age_s=60) as one, running(name="c1", min_job_age_s=60) as other:
        yield [one, other]


class World:
    """The store, the study as it is called by now, and what is done to them."""

    def __init__(self, folder: Path, clusters: list[Cluster]) -> None:
        self.folder, self.clusters, self.python = folder, clusters, _python()
        self.runs, self.ledger = folder / "runs", folder / "ledger.txt"
        self.runs.mkdir()
        os.chown(self.runs, 0, ANOTHER)
        self.runs.chmod(0o2775)
        self.ledger.touch()
        self.ledger.chmod(0o666)
        self.random = random.Random(0)
        self.name(0)
        self.twin = self._study("twin", [f"ledger-t{k}" for k in range(VARIANTS)])

    def name(self, times: int) -> Study:
        """The manifest, with its variants renamed so often."""
        self.study = self._study("large", [f"ledger-{times}{k}" for k in range(VARIANTS)])
        return self.study

    def _study(self, name: str, variants: list[str]) -> Study:
        resources = "{cpus: 1, mem_gb: 0.2, timeout_min: 30}"
        seeds = COUNT // VARIANTS
        return plant.study(self.folder, variants, name=name, seeds=seeds, resources=resources)

    def submitter(
        self, cluster: Cluster, *words: str, study: Study | None = None, user: int = 0
    ) -> subprocess.Popen[bytes]:
        env = {**cluster.environment(), "SDTPS_JOB_ENTRY": standin.ENTRY, "HOME": "/nonexistent"}
        env["PYTHONPATH"] = os.pathsep.join((standin.PATH, str(ROOT), *PACKAGES))
        path = (study or self.study).path
        return subprocess.Popen(
            [
                *(self.python, "-m", "ablations", "submit", str(path), "--no-audit"),
                *("--executor", "slurm", "--runs-dir", str(self.runs), *words),
            ],
            env=env,
            user=user,
            group=user,
            extra_groups=[],
            stdout=(self.folder / "submitters.txt").open("ab"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def completed(self) -> int:
        return sum(line.startswith("end") for line in self.ledger.read_text().splitlines())

    def met(self) -> int:
        """How often two submitters met at one run."""
        return (self.folder / "submitters.txt").read_text().count("another submission")

    # -- what goes wrong --------------------------------------------------------------------------

    def kill_a_submitter(self) -> None:
        """Two users submit equal runs on two clusters in the same second; one of them is killed."""
        limit = ("--limit", str(max(1, COUNT // KILLED_SUBMITTERS)))
        clusters = self.random.sample(self.clusters, 2)
        users = self.random.sample(USERS, 2)
        pairs = zip(clusters, (self.study, self.twin), users, strict=True)
        both = [self.submitter(c, *limit, study=study, user=user) for c, study, user in pairs]
        killed = self.random.choice(both)
        time.sleep(self.random.uniform(0.5, KILLED_BY_S))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(killed.pid, signal.SIGKILL)
        for process in both:
            process.wait()

    def kill_a_job(self) -> bool:
        """Kill the Python of a run that has begun and not ended."""

        def pids(what: str) -> list[int]:
            rows = [line.split() for line in self.ledger.read_text().splitlines()]
            return [int(row[2]) for row in rows if row[0] == what]

        for pid in reversed(pids("start")):
            with contextlib.suppress(OSError):
                if b"ablations.launch.worker" not in Path(f"/proc/{pid}/cmdline").read_bytes():
                    continue  # another process by now
                os.kill(pid, signal.SIGSTOP)
                over = pid in pids("end")  # looked up while it cannot write any more
                os.kill(pid, signal.SIGCONT if over else signal.SIGKILL)
                if not over:
                    return True
        return False

    def stop_the_controller(self) -> None:
        controller = int((self.clusters[0].folder / "slurmctld.pid").read_text())
        os.kill(controller, signal.SIGSTOP)
        time.sleep(AWAY_SECONDS)
        os.kill(controller, signal.SIGCONT)

    def restart_the_node(self) -> None:
        cluster = self.clusters[1]
        file = cluster.folder / f"slurmd.{NODE}.pid"
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(file.read_text()), signal.SIGTERM)
        time.sleep(3)
        cluster._daemon("slurmd", "-N", NODE)

    def colleague(self) -> int:
        """Somebody else cancels and cleans; returns how many folders went."""
        done = subprocess.run(
            [sys.executable, "-c", COLLEAGUE, str(self.study.path), str(self.runs), str(ANOTHER)],
            env={**self.clusters[0].environment(), "PYTHONPATH": str(ROOT), "HOME": "/nonexistent"},
            capture_output=True,
            text=True,
        )
        return int(done.stdout or 0)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be two users")
def test_no_run_lives_twice_none_is_lost_each_completes_once(clusters: list[Cluster]) -> None:
    folder = Path(tempfile.mkdtemp(prefix="sdtps-large-", dir="/tmp"))
    folder.chmod(0o2777)
    world = World(folder, clusters)
    begun = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - begun:6.0f} s  {world.completed():5} ended  {text}", flush=True)

    try:
        killed = deleted = 0
        events = ("rename", "controller", "node", "rename")
        at = dict(zip((5, 8, 11, 14) if LARGE else (1, 2, 3, 4), events, strict=True))
        renamed = 0
        for number in range(KILLED_SUBMITTERS):
            world.kill_a_submitter()
            killed += killed < max(1, COUNT // 100) and world.kill_a_job()
            event = at.get(number, "")
            if event == "rename":
                renamed += 1
                world.name(renamed)
            elif event == "controller":
                world.stop_the_controller()
            elif event == "node":
                world.restart_the_node()
            if number % 5 == 4:
                deleted += world.colleague()
            say(f"submitter {number + 1} killed{f', {event}' if event else ''}")
        deadline = time.monotonic() + 5400
        while world.completed() < COUNT and time.monotonic() < deadline:
            for cluster in clusters:
                cluster.run("scontrol", "update", f"NodeName={NODE}", "State=RESUME")
                world.submitter(cluster, user=world.random.choice(USERS)).wait()
            killed += killed < max(1, COUNT // 100) and world.kill_a_job()
            say(f"submitted again; {killed} jobs killed so far")
            time.sleep(AGAIN_SECONDS)
        time.sleep(5)
        world.submitter(clusters[0]).wait()  # takes over what completed under earlier names
        study = load_study(world.study.path)
        ended = Counter(s.state for s in shown_states(study.runs(), world.runs))
        rows = Counter(tuple(line.split()[:2]) for line in world.ledger.read_text().splitlines())
        twice = sum(n for (what, _), n in rows.items() if what == "twice")
        starts = Counter(n for (what, _), n in rows.items() if what == "start")
        ends = Counter(n for (what, _), n in rows.items() if what == "end")
        lost = {run.folder(world.runs).name for run in study.runs()} - {
            run for what, run in rows if what == "end"
        }
        print(
            f"LEDGER of {COUNT} runs: starts of a run {dict(starts)}, ends of a run {dict(ends)}, "
            f"lived twice {twice}, lost {len(lost)}; {killed} jobs and {KILLED_SUBMITTERS} submitters "
            f"killed, {world.met()} runs refused to the second of two submitters; {renamed} renamings, "
            f"controller away {AWAY_SECONDS:.0f} s; states {dict(ended)}",
            flush=True,
        )
        assert (twice, len(lost), deleted) == (0, 0, 0)
        assert ends == {1: COUNT}
        assert ended == {"completed": COUNT}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
