"""`auto` submits to a cluster where there is one, and never starts a cluster's runs on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from ablations.launch import submit as front

NO_CONFIGURATION = "scontrol: fatal: Could not establish a configuration source"


def programs(folder: Path, monkeypatch: pytest.MonkeyPatch, ping: str) -> None:
    for name, body in {"sbatch": "exit 0", "scontrol": ping}.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


@pytest.mark.parametrize(
    ("ping", "executor"),
    [
        ("echo 'Slurmctld(primary) at head is UP'", "slurm"),
        ("echo 'Slurmctld(primary) at head is DOWN'; exit 1", "slurm"),
        (f"echo '{NO_CONFIGURATION}' >&2; exit 1", "local"),
    ],
)
def test_auto_follows_the_cluster_not_the_client_programs(
    ping: str, executor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs(tmp_path, monkeypatch, ping)
    assert front.choose_executor("auto") == executor


def test_auto_is_local_without_an_sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert front.choose_executor("auto") == "local"


@pytest.mark.parametrize("word", ["slurm", "local"])
def test_a_named_executor_is_taken_at_its_word(word: str) -> None:
    assert front.choose_executor(word) == word
