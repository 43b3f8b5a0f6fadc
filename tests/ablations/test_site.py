"""A site file fills what a study leaves open; options win; a mistake in it is told with its line.

`site check` names what is broken; tests/slurm/test_clusters.py tries it on a real SLURM.
"""

from __future__ import annotations

import errno
import fcntl
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ablations.cli import main
from ablations.launch import site
from ablations.slurm import commands
from ablations.study.site import read_site
from sdtps.system import files
from sdtps.system.errors import ManifestError
from tests.ablations.fakes import Fakes

MANIFEST = """\
study: small
task: reid
seeds: [0]
baseline: a
varies: [optim.lr]
overrides: {data.generate: {seed: 1}}
metrics: {mAP: {direction: up}}
resources: {gpus: 1, setup: [own], exclude: bad1, environment: {B: "2"}}
variants:
  a: {}
  b: {optim.lr: 1, resources: {partition: mine, gpus: "v100:2"}}
"""
SITE = """\
partition: gpu
account: ab1234
gpu_type: a100
gres: true
python: apptainer exec --nv /i.sif python
srun: [--mpi=pmix]
setup: |
  module load cuda
  ulimit -c 0
exclude: [bad2, bad3]
environment: {A: "1", B: "1"}
mail: me@example.org
"""


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """The resources that a plan asks for, by the variant of their first run."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "small.yaml").write_text(MANIFEST)

    def plan(*words: str) -> dict[str, dict[str, object]]:
        assert main(["plan", str(tmp_path / "small.yaml"), "--json", *words]) == 0
        arrays = json.loads(capsys.readouterr().out)["arrays"]
        return {array["runs"][0].split("/")[1]: array["resources"] for array in arrays}

    return plan


def test_a_site_fills_what_the_study_leaves_open(asked, tmp_path: Path) -> None:
    file = tmp_path / "config" / "sdtps" / "site.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(SITE)
    found = asked()
    a, b = found["a"], found["b"]
    assert (a["partition"], a["account"], a["gpus"], a["gres"]) == ("gpu", "ab1234", "a100:1", True)
    assert a["setup"] == ["module load cuda", "ulimit -c 0", "own"]
    assert a["exclude"] == "bad2,bad3,bad1"
    assert a["environment"] == {"A": "1", "B": "2"}
    assert a["python"] == "apptainer exec --nv /i.sif python" and a["mail"] == "me@example.org"
    assert (b["partition"], b["gpus"]) == ("mine", "v100:2")
    assert asked("--site", "none")["a"]["partition"] is None


def test_options_win_over_study_and_site(asked, tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text("partition: slow\n")
    words = ("--site", str(tmp_path / "other.yaml"), "--account", "z", "--gpus", "h100:4")
    found = asked(*words, "--partition", "fast")
    [resources] = found.values()  # one class of resources is one array
    assert resources["partition"] == "fast" and resources["account"] == "z"
    assert resources["gpus"] == "h100:4"


def test_mistakes_in_a_site_file_are_told_with_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "site.yaml"
    file.write_text("partiton: gpu\nenvironment: {1A: x}\n")
    with pytest.raises(ManifestError) as caught:
        read_site(file)
    told = str(caught.value)
    assert (
        "site.yaml:1: partiton: unknown key 'partiton'" in told and "Did you mean 'partition'?" in told
    )
    assert "site.yaml:2: environment: '1A' is not the name of an environment variable" in told
    with pytest.raises(ManifestError, match=r"absent/site\.yaml"):
        read_site(tmp_path / "absent" / "site.yaml")


# -- site check: what is broken on a cluster is named -----------------------------------------------


ARRAY = {"SLURM_ARRAY_JOB_ID": "1", "SLURM_ARRAY_TASK_ID": "0"}


class Job:
    """Stands for the cluster: sbatch runs the check's job at once, in this process."""

    called = ""  # what the cluster calls the job, where it renames it

    def __init__(self, folder: Path, fakes: Fakes, monkeypatch: pytest.MonkeyPatch) -> None:
        self.runs, self.fakes, self.patch = folder / "runs", fakes, monkeypatch
        self.variables = ARRAY
        cuda = SimpleNamespace(device_count=lambda: 0)
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__="2", cuda=cuda))
        monkeypatch.setattr(site, "POLL_SECONDS", 0.01)
        monkeypatch.setattr(site, "LOCK_SECONDS", 0.1)
        monkeypatch.setattr(commands, "squeue", self.run)

    def run(self, jobs: list[str]) -> dict[str, commands.JobInfo]:
        """The first question finds the job ended; what it printed and wrote is in its folder."""
        self.before()
        with self.patch.context() as there:
            for name, value in self.variables.items():
                there.setenv(name, value)
            [folder] = (self.runs / site.FOLDER).glob("sdtps-site-*")
            (folder / "1_0.log").write_text("")
            self.write(folder)
        return {"1_0": commands.JobInfo("1_0", self.called or folder.name, state="COMPLETED")}

    def before(self) -> None:
        """What happens on the cluster before the job starts."""

    def write(self, folder: Path) -> None:
        files.write_json(folder / "probe.json", site.probe(folder))

    def check(self, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
        """What `sdtps site check` finds not to work, by name; its exit status agrees."""
        code = main(["site", "check", "--site", "none", "--runs-dir", str(self.runs), "--json"])
        rows = json.loads(capsys.readouterr().out)
        failed = {row["what"]: row["found"] for row in rows if not row["works"]}
        assert code == bool(failed)
        return failed


@pytest.fixture
def job(tmp_path: Path, fakes: Fakes, monkeypatch: pytest.MonkeyPatch) -> Job:
    return Job(tmp_path, fakes, monkeypatch)


def test_a_site_without_faults_passes(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    assert job.check(capsys) == {}
    assert [c["argv"] for c in job.fakes.calls("scontrol") if c["argv"][0] == "requeue"] == [
        ["requeue", "1_0"]
    ]


def test_locks_that_hold_on_one_machine_only_are_named(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    job.before = lambda: job.patch.setattr(fcntl, "flock", lambda *_: None)  # type: ignore[method-assign]
    failed = job.check(capsys)
    assert list(failed) == ["locks there"] and "localflock" in failed["locks there"]


def test_a_store_without_locks_is_named(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    job.patch.setattr(fcntl, "flock", refuse)
    failed = job.check(capsys)
    assert list(failed) == ["store"] and "No locks available" in failed["store"]
    assert job.fakes.calls("sbatch") == []


@pytest.mark.filterwarnings("ignore:flock not supported")
def test_a_store_without_flock_works_by_lock_files(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    job.patch.setattr(fcntl, "flock", refuse)
    assert job.check(capsys) == {}
    [(_, works, found)] = site._store(job.runs)
    assert works and "no flock" in found


def test_a_store_that_nodes_cannot_write_is_named(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", "probe")

    def write(folder: Path) -> None:
        with job.patch.context() as there:
            there.setattr(Path, "write_text", refuse)
            found = site.probe(folder)
        files.write_json(folder / "probe.json", found)

    job.write = write  # type: ignore[method-assign]
    failed = job.check(capsys)
    assert list(failed) == ["store there"] and "Read-only" in failed["store there"]


def test_a_store_that_nodes_do_not_see_is_named(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    job.write = lambda folder: (folder / "1_0.log").unlink()  # type: ignore[method-assign]
    failed = job.check(capsys)
    assert list(failed) == ["job"] and f"may not see or write {job.runs}" in failed["job"]


@pytest.mark.parametrize(
    ("variables", "called", "scontrol", "what", "says"),
    [
        ({}, "", None, "array", "SLURM_ARRAY_TASK_ID do not reach Python"),
        ({**ARRAY, "SLURM_ARRAY_TASK_ID": "7"}, "", None, "array", "element 7"),
        (ARRAY, "renamed", None, "name", "cannot be found"),
        (ARRAY, "", "Requested operation is disabled for job 1_0", "requeue", "is disabled"),
    ],
)
def test_what_a_cluster_does_otherwise_is_named(
    job: Job,
    capsys: pytest.CaptureFixture[str],
    variables: dict[str, str],
    called: str,
    scontrol: str | None,
    what: str,
    says: str,
) -> None:
    job.variables, job.called = variables, called
    if scontrol:
        refused = {"exit": 1, "stderr": scontrol}
        job.before = lambda: job.fakes.answer("scontrol", refused)  # type: ignore[method-assign]
    failed = job.check(capsys)
    assert list(failed) == [what] and says in failed[what]


@pytest.mark.parametrize(("seconds", "way"), [(3600, "ahead of"), (-3600, "behind")])
def test_a_clock_that_differs_is_named(
    job: Job, capsys: pytest.CaptureFixture[str], seconds: int, way: str
) -> None:
    def write(folder: Path) -> None:
        found = site.probe(folder)
        files.write_json(folder / "probe.json", {**found, "time": (True, found["time"][1] + seconds)})

    job.write = write  # type: ignore[method-assign]
    failed = job.check(capsys)
    assert list(failed) == ["heartbeat"] and way in failed["heartbeat"]
