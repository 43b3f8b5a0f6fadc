"""What the program reads beside its sources is declared, so that `pip install .` brings it along."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from ablations.cli import main
from ablations.study.arguments import is_shipped, known_studies
from analysis import verbs
from analysis.verbs import load, others
from sdtps.run import locations
from sdtps.system.errors import ManifestError

ROOT = Path(__file__).resolve().parents[2]
# Read by people, and found beside the sources only.
NOT_SHIPPED = {"paper/generated/.gitignore"}


def tracked(*folders: str) -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [name for name in listed.stdout.splitlines() if (ROOT / name).exists()]


def test_shipped_files_are_found_in_an_installed_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`pip install --target` and a virtual environment put them into share/sdtps."""
    monkeypatch.setattr(locations, "CHECKOUT", tmp_path / "site-packages")
    monkeypatch.setattr(locations.sysconfig, "get_path", lambda *_: str(tmp_path / "prefix"))
    there = tmp_path / "prefix" / "share" / "sdtps" / "paper" / "templates"
    there.mkdir(parents=True)
    assert locations.shipped("paper/templates") == there


# -- an installed copy, used from a folder that is no checkout -------------------------------------

STUDY = """\
study: mine
title: A study of one's own
task: reid
seeds: [0]
baseline: topk
varies: [sdtps]
variants:
  topk: {}
  no_sdtps: {sdtps.enabled: false}
metrics: {mAP: {direction: up}}
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `pip install --target` lays down, from a copy of the tracked files."""
    source = tmp_path_factory.mktemp("source")
    for name in tracked(
        "ablations", "analysis", "sdtps", "paper", "pyproject.toml", "README.md", "LICENSE"
    ):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, source / name)
    prefix = tmp_path_factory.mktemp("prefix")
    words = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir"]
    done = subprocess.run(
        [sys.executable, *words, prefix, source], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = prefix.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(prefix / "lib")
    (data,) = (prefix / "lib").glob("*.data")
    shutil.move(data / "data" / "share", prefix / "lib" / "share")  # where --target lays it
    return prefix / "lib"


Commands = Callable[..., list[tuple[int, str, str]]]
INSTALLED = """\
import contextlib, io, json, os, shutil, sys
from ablations.cli import main
answers = []
for line in sys.argv[1:]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        if line.startswith("copy "):
            print(os.listdir())
            code = int(not shutil.copy(line[5:], "."))
        else:
            code = main(line.split())
    answers.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(answers))
"""


@pytest.fixture
def sdtps(installed: Path, tmp_path: Path) -> Commands:
    """Runs commands of the installed `sdtps` in an empty folder; nothing of the checkout is imported.

    Those of one call share a process. Each gives its exit code, standard output and standard error;
    `copy FILE` tells what lay in the folder, and copies a file into it.
    """

    def call(*lines: str) -> list[tuple[int, str, str]]:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SDTPS_")}
        environment |= {"PYTHONPATH": str(installed), "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "200"}
        done = subprocess.run(
            [sys.executable, "-c", INSTALLED, *lines],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
        return [(code, out, err) for code, out, err in json.loads(done.stdout)]

    return call


def test_every_tracked_file_is_in_the_wheel(installed: Path) -> None:
    for name in tracked("ablations", "analysis", "sdtps"):
        assert (installed / name).is_file(), name
    for name in set(tracked("paper")) - NOT_SHIPPED:
        assert (installed / "share" / "sdtps" / name).is_file(), name


def test_an_installed_copy_works_in_an_empty_folder(
    sdtps: Commands, installed: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    before = sorted(installed.rglob("*"))
    mine = tmp_path_factory.mktemp("mine") / "mine.yaml"
    mine.write_text(STUDY, encoding="utf-8")
    plan, dry, nothing, empty, status, studies, tables, report, claims, paper = sdtps(
        "plan quick --json",
        "submit quick --dry-run",
        "tables",
        f"copy {mine}",
        "status mine",
        "completion studies",
        "tables mine --form tex",
        "report mine",
        "claims --only 1",
        "paper mine --allow-missing --no-evidence --no-pdf",
    )
    assert json.loads(plan[1])["runs_dir"] == str(tmp_path / "runs")
    assert dry[0] == 0
    assert nothing[0] == 2 and f"has runs in {tmp_path / 'runs'}" in nothing[2]
    assert empty[1].strip() == "[]"
    assert f"Runs in {tmp_path / 'runs'}" in status[1]
    assert "mine" in studies[1].split()
    assert "\\toprule" in tables[1]
    assert report[0] == 0
    assert "<style" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "supported" in claims[1]
    assert paper[0] == 0
    assert (tmp_path / "paper" / "main.tex").is_file()
    assert (tmp_path / "paper" / "generated" / "results.tex").is_file()
    assert sorted(installed.rglob("*")) == before


def test_without_runs_every_verb_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(verbs, "_known", lambda _: [])  # not eighteen manifests for each verb
    for verb in ("tables", "curves", "report", "collect", "paper"):
        assert main([verb]) == 2
        assert f"has runs in {tmp_path / 'runs'}" in capsys.readouterr().err, verb
    assert list(tmp_path.iterdir()) == []


def test_a_base_that_is_shipped_and_not_here_is_offered_as_a_copy(
    sdtps: Commands, installed: Path, tmp_path: Path
) -> None:
    text = STUDY.replace("seeds:", "base: base/quick.yaml\nseeds:")
    (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
    ((code, _, err),) = sdtps("plan mine")
    assert code == 2
    command = f"mkdir -p base && cp {installed / 'ablations' / 'base' / 'quick.yaml'} base/quick.yaml"
    assert err.strip().endswith(command)
    subprocess.run(command, shell=True, cwd=tmp_path, check=True)
    ((code, _, _),) = sdtps("plan mine")
    assert code in (0, 1)


def test_manifests_of_the_current_folder_are_known_and_other_yaml_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ablations").mkdir()
    (tmp_path / "mine.yaml").write_text(STUDY, encoding="utf-8")
    (tmp_path / "both.yaml").write_text(STUDY, encoding="utf-8")
    (tmp_path / "ablations" / "both.yaml").write_text(STUDY, encoding="utf-8")
    (tmp_path / "site.yaml").write_text("partition: gpu\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    known = known_studies()
    assert known["mine"] == Path("mine.yaml") and known["both"] == Path("ablations/both.yaml")
    assert "site" not in known and is_shipped(known["quick"]) and not is_shipped(known["mine"])


def test_runs_of_a_shipped_studys_name_are_read_by_ones_own_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other.yaml").write_text(STUDY.replace("study: mine", "study: quick"), encoding="utf-8")
    run = tmp_path / "runs" / "quick" / "topk" / "seed0-0123456789"
    run.mkdir(parents=True)
    (run / "run.json").write_text("{}", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    (study,) = load(argparse.Namespace(studies=[], runs_dir=Path("runs")))
    assert study.path == Path("other.yaml") and "quick" not in {other.name for other in others([study])}


def test_to_read_one_study_no_other_manifest_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.yaml").write_text(STUDY, encoding="utf-8")
    (tmp_path / "broken.yaml").write_text("study: broken\nsedes: [0]\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    (study,) = load(argparse.Namespace(studies=["mine"], runs_dir=Path("runs")))
    assert study.name == "mine"


def test_runs_that_no_manifest_plans_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "runs" / "other" / "topk" / "seed0-0123456789"
    run.mkdir(parents=True)
    (run / "run.json").write_text("{}", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ManifestError):
        load(argparse.Namespace(studies=[], runs_dir=Path("runs")))
    assert "runs/other: left out: no manifest here plans these runs" in capsys.readouterr().err
