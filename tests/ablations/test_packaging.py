"""What the program reads beside its sources is declared, so that `pip install .` brings it along."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

import pytest

from sdtps.run import locations

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
# Read by people, and found beside the sources only.
NOT_SHIPPED = {"paper/generated/.gitignore"}


def tracked(*folders: str) -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [name for name in listed.stdout.splitlines() if (ROOT / name).exists()]


def test_every_file_in_a_package_is_shipped() -> None:
    data = SETTINGS["tool"]["setuptools"]["package-data"]
    shipped = {
        path.relative_to(ROOT).as_posix()
        for package, patterns in data.items()
        for pattern in patterns
        for path in (ROOT / package).glob(pattern)
    }
    files = tracked("ablations", "analysis", "sdtps")
    programs = "ablations/examples/"  # data, although it is Python: no package
    wanted = {name for name in files if not name.endswith(".py") or name.startswith(programs)}
    assert wanted <= shipped


def test_every_file_of_the_paper_is_shipped() -> None:
    shipped = {
        path.relative_to(ROOT).as_posix()
        for patterns in SETTINGS["tool"]["setuptools"]["data-files"].values()
        for pattern in patterns
        for path in ROOT.glob(pattern)
    }
    assert set(tracked("paper")) - NOT_SHIPPED <= shipped


def test_shipped_files_are_found_in_an_installed_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`pip install --target` and a virtual environment put them into share/sdtps."""
    monkeypatch.setattr(locations, "CHECKOUT", tmp_path / "site-packages")
    monkeypatch.setattr(locations.sysconfig, "get_path", lambda *_: str(tmp_path / "prefix"))
    there = tmp_path / "prefix" / "share" / "sdtps" / "paper" / "templates"
    there.mkdir(parents=True)
    assert locations.shipped("paper/templates") == there


def test_runs_lie_in_the_current_folder_unless_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SDTPS_RUNS_DIR", raising=False)
    assert locations.runs_root() == Path("runs")
    monkeypatch.setenv("SDTPS_RUNS_DIR", str(tmp_path))
    assert locations.runs_root() == tmp_path


def test_submit_py_of_another_folder_uses_the_current_folders_runs(tmp_path: Path) -> None:
    import sys

    done = subprocess.run(
        [sys.executable, str(ROOT / "submit.py"), "nograd", "--dry-run", "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert f'"runs_dir": "{tmp_path / "runs"}"' in done.stdout
    assert list(tmp_path.iterdir()) == []
