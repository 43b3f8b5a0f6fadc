"""The code that a job runs is the code that was there when it was submitted."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from pathlib import Path

import pytest

from ablations.store import snapshot
from sdtps.run import provenance
from sdtps.system.commandline import guarded


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A small repository with the packages that are frozen."""
    root = tmp_path / "checkout"
    for name, text in {
        "sdtps/__init__.py": "x = 1\n",
        "sdtps/notes.md": "not code\n",
        "ablations/__init__.py": "",
        "ablations/study.yaml": "study: s\n",
        "analysis/__init__.py": "",
        ".gitignore": "*.pyc\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    _git(root, "init", "-q")
    _git(root, "add", ".")
    _git(root, "commit", "-q", "-m", "first")
    return root


def _git(root: Path, *words: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    return subprocess.run(
        ["git", "-C", str(root), *identity, *words], check=True, capture_output=True, text=True
    ).stdout


def test_uncommitted_edits_and_new_files_are_frozen_and_the_difference_is_recorded(
    checkout: Path, tmp_path: Path
) -> None:
    (checkout / "sdtps" / "__init__.py").write_text("x = 2\n")
    (checkout / "sdtps" / "new.py").write_text("y = 3\n")
    (checkout / "sdtps" / "old.pyc").write_text("ignored")
    frozen = snapshot.freeze(tmp_path / "runs", checkout)
    files = {str(p.relative_to(frozen)) for p in frozen.rglob("*") if p.is_file()}
    packages = {f"{package}/__init__.py" for package in snapshot.PACKAGES}
    assert files == {*packages, "sdtps/new.py", "code.json"}
    assert (frozen / "sdtps" / "__init__.py").read_text() == "x = 2\n"
    code = json.loads((frozen / "code.json").read_text())
    assert code["commit"] == _git(checkout, "rev-parse", "HEAD").strip()
    assert code["dirty"] is True
    assert "+x = 2" in code["diff"]
    assert provenance.code_version(frozen) == code | {
        "digest": provenance.source_digest(frozen / "sdtps")
    }


def test_equal_code_shares_a_folder_and_edited_code_gets_its_own(
    checkout: Path, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    first = snapshot.freeze(runs, checkout)
    assert snapshot.freeze(runs, checkout) == first
    (checkout / "sdtps" / "__init__.py").write_text("x = 2\n")
    second = snapshot.freeze(runs, checkout)
    assert second != first
    assert (first / "sdtps" / "__init__.py").read_text() == "x = 1\n"
    (checkout / "ablations" / "study.yaml").write_text("study: other\n")
    assert snapshot.freeze(runs, checkout) == second, "a manifest is no code"


def test_a_folder_that_is_no_checkout_is_frozen_too(checkout: Path, tmp_path: Path) -> None:
    frozen = snapshot.freeze(tmp_path / "runs", checkout)
    again = snapshot.freeze(tmp_path / "other", frozen)
    assert again.name == frozen.name


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_folder_that_takes_no_more_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    def full(*_: object) -> None:
        raise OSError(number, os.strerror(number))  # a write names no file

    monkeypatch.setattr(snapshot.Path, "write_bytes", full)
    assert guarded(lambda: bool(snapshot.freeze(tmp_path / "runs"))) == 2
    said = capsys.readouterr().err
    assert str(tmp_path / "runs") in said and "another folder" in said and os.strerror(number) in said
    assert not list((tmp_path / "runs" / "_code").iterdir())
