"""The clusters of the session: each is started once, when the first test asks for it."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ablations.store import snapshot
from tests.ablations import standin
from tests.slurm.cluster import PATIENCE_S, Cluster, missing


@contextlib.contextmanager
def running(**options: Any) -> Iterator[Cluster]:
    """A cluster of its own; `options` are those of Cluster."""
    if reason := missing(options.get("accounting", False)):
        pytest.skip(f"no SLURM here: {reason}")
    # Sockets lie in this folder, and their paths must stay below 108 characters.
    folder = Path(tempfile.mkdtemp(prefix="sdtps-slurm-"))
    cluster = Cluster(folder, **options)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def plain_cluster() -> Iterator[Cluster]:
    """Accounting off, which is normal."""
    with running() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def accounting_cluster() -> Iterator[Cluster]:
    """With slurmdbd and MariaDB."""
    with running(accounting=True) as cluster:
        yield cluster


@pytest.fixture
def slurm(plain_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """The plain cluster, as this process's own: sbatch and squeue go there."""
    yield from _use(plain_cluster, monkeypatch)


@pytest.fixture
def slurm_with_accounting(
    accounting_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cluster]:
    """The cluster with accounting, as this process's own."""
    yield from _use(accounting_cluster, monkeypatch)


@pytest.fixture(autouse=True)
def one_snapshot(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """One snapshot of the code for the stores of all tests: jobs compile what they import once."""
    code = tmp_path_factory.getbasetemp() / "code"
    code.mkdir(exist_ok=True)

    def freeze(runs_dir: Path, root: Path | None = None) -> Path:
        runs_dir.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            (runs_dir / snapshot.CODE).symlink_to(code)
        return plain(runs_dir, root)

    plain = snapshot.freeze
    monkeypatch.setattr(snapshot, "freeze", freeze)


def write_patience(cluster: Cluster, seconds: float) -> None:
    """The site file of this person: how long an answer of squeue is waited for."""
    file = cluster.folder / "config" / "sdtps" / "site.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"squeue_seconds: {seconds:.0f}\n")


def _use(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setenv("PYTHONPATH", standin.PATH)  # entries of tests that run no trainer
    for name in ("SLURM_CONF", "PATH"):
        monkeypatch.setenv(name, cluster.environment()[name])
    monkeypatch.setenv("XDG_CONFIG_HOME", str(cluster.folder / "config"))
    write_patience(cluster, PATIENCE_S)  # slow is not down
    yield cluster
    cluster.end_jobs()  # a test that fails would leave the next one without a free CPU
