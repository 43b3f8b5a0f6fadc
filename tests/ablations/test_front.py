"""The front door and the control commands, as people call them. Runs are stand-ins of a few lines."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ablations.cli as control
from ablations.launch import submit as front
from ablations.study.manifest import load_study
from ablations.study.model import RunSpec
from sdtps.run.folder import RunFolder
from tests.ablations.copies import fork_modules

ROOT = Path(__file__).resolve().parents[2]
MANIFEST = """\
study: small
task: reid
seeds: [0, 1]
baseline: topk
varies: [sdtps, optim.lr]
overrides: {data.generate: {seed: 1}, backbone.weights: random}
metrics: {mAP: {direction: up}}
resources: {cpus: 1}
variants:
  topk: {}
  soft: {sdtps.decision: soft}
  bad: {optim.lr: 1}
"""
# What a run does here: learns nothing, and fails where the learning rate is 1.
STAND_IN = """\
from sdtps.run.folder import RunFolder

def execute(path, max_steps=None):
    folder = RunFolder(path)
    if folder.config().optim.lr == 1:
        reason = "ValueError: no such learning rate"
        folder.write_status("failed", attempt=1, kind="error", reason=reason)
        raise ValueError(reason)
    folder.write_result({"attempt": 1, "train_seconds": 36.0})
    return "completed"
"""


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(MANIFEST)
    return path


def create(run: RunSpec, runs: Path) -> RunFolder:
    folder = RunFolder(run.folder(runs))
    folder.create(run.config, {"study": run.study, "variant": run.variant, "seed": run.seed})
    return folder


def complete(run: RunSpec, runs: Path) -> None:
    create(run, runs).write_result({"attempt": 1, "train_seconds": 36.0})


def fail(run: RunSpec, runs: Path, state: str = "failed") -> None:
    create(run, runs).write_status(state, attempt=1, kind="error", reason="ValueError: x")  # type: ignore[arg-type]


def call(*words: object) -> int:
    return control.main([str(w) for w in words])


def script(name: str, *words: object, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, name, *map(str, words)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, **env},
    )


# -- submit.py ----------------------------------------------------------------------------------


def test_dry_run_of_the_main_study_prints_every_run_without_torch(
    tmp_path: Path,
) -> None:
    code = (
        "import sys; sys.argv = ['submit.py', 'submit', *sys.argv[1:]]\n"
        "import submit; rc = submit.main()\n"
        "heavy = [m for m in ('torch', 'pandas', 'transformers', 'scipy') if m in sys.modules]\n"
        "print('HEAVY', heavy, 'END'); sys.exit(rc)"
    )
    study = ROOT / "ablations" / "rgbnt201.yaml"
    done = subprocess.run(
        [sys.executable, "-c", code, str(study), "--dry-run", "--runs-dir", str(tmp_path / "runs")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = load_study(study)
    for run in loaded.runs():
        assert run.name in done.stdout
    assert "sdtps.decision topk → gumbel_ste, sdtps.mask subtract_1e10 → log" in done.stdout
    assert f"#SBATCH --array=0-{len(loaded.runs()) - 1}%8" in done.stdout
    assert "(baseline): no change to the base" in done.stdout
    assert f"({len(loaded.runs())} runs, each at its time limit)" in done.stdout
    assert "sbatch file 1 of 1; submission fills in NAME and DIGEST" in done.stdout
    assert "HEAVY [] " in done.stdout
    assert not (tmp_path / "runs").exists()


def test_help_loads_no_verb_and_names_every_one(capsys: pytest.CaptureFixture[str]) -> None:
    code = (
        "import sys, ablations.cli as m; m.main(['--help'])\n"
        "modules = [verb[0].partition(':')[0] for verb in m.all_verbs().values()]\n"
        "print('LOADED', [name for name in modules if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert "LOADED []" in done.stdout
    for name in control.all_verbs():
        assert f"  {name} " in done.stdout


def test_a_study_runs_on_local_slots_then_only_what_is_missing(
    manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "standin.py").write_text(STAND_IN)
    env = {"PYTHONPATH": str(tmp_path), "SDTPS_JOB_ENTRY": "standin:execute"}
    runs = tmp_path / "runs"
    options = (manifest, "--runs-dir", runs, "--executor", "local", "--slots", "2", "--no-audit")
    done = script("submit.py", *options, **env)
    assert done.returncode == 1, done.stderr + done.stdout
    assert "6 to submit, 0 skipped" in done.stdout and "6 runs on local slots: 1 CPU" in done.stdout
    assert call("submit", *options) == 0
    again = capsys.readouterr().out
    assert "0 to submit, 6 skipped" in again
    assert "failed (error): ValueError: no such learning rate" in again
    shutil.rmtree(load_study(manifest).runs()[2].folder(runs))
    assert call("submit", *options, "--dry-run", "--json") == 0
    missing = json.loads(capsys.readouterr().out)
    assert [r["run"] for r in missing["runs"] if r["action"] == "submit"] == [
        load_study(manifest).runs()[2].name
    ]
    assert call("status", manifest, "--runs-dir", runs, "--json") == 1
    counts = json.loads(capsys.readouterr().out)["counts"]
    assert counts == {"completed": 3, "planned": 1, "failed": 2}


def test_each_variant_is_audited_before_its_first_submission(
    manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    audited: list[list[str]] = []
    monkeypatch.setattr(front, "audit", lambda study, names: audited.append(names))
    monkeypatch.setattr(front, "dispatch", lambda *_: 0)
    words = ("submit", manifest, "--runs-dir", tmp_path, "--executor", "local")
    assert call(*words) == 0
    complete(load_study(manifest).runs()[0], tmp_path)
    assert call(*words) == 0
    assert call(*words, "--variant", "topk") == 0
    assert call(*words, "--no-audit") == 0
    assert audited == [["topk", "soft", "bad"], ["soft", "bad"]]


def test_a_finding_of_the_audit_is_told_before_the_runs_are_sent(
    manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sent: list[int] = []
    monkeypatch.setattr(front, "dispatch", lambda plan, *_: sent.append(len(plan.submitted)) or 0)
    manifest.write_text(
        MANIFEST.replace(
            "  bad: {optim.lr: 1}", "  bad: {sdtps.decision: gumbel_ste, sdtps.mask: subtract_1e10}"
        ).replace("overrides: {", "overrides: {sdtps.aggregation: single, sdtps.no_grad: none, ")
    )
    words = ("submit", manifest, "--runs-dir", tmp_path, "--variant", "bad", "--seed", 0)
    assert call(*words) == 0
    assert "Audit: bad: " in capsys.readouterr().err and sent == [1]


@pytest.mark.parametrize("study", ["omniglot", "flickr30k", "coco"])
def test_a_data_root_that_holds_something_else_starts_no_run_here_and_is_a_warning_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], study: str
) -> None:
    sent: list[str] = []
    monkeypatch.setattr(front, "dispatch", lambda plan, asked, executor, *_: sent.append(executor))
    root = tmp_path / "empty"
    root.mkdir()
    words = ("submit", study, "--runs-dir", tmp_path, "--data-root", root)
    assert call(*words, "--no-audit", "--executor", "local") == 2
    said = capsys.readouterr().err
    assert len(set(said.splitlines())) == len(said.splitlines())  # each folder is read once
    assert ("folder is missing" if study == "omniglot" else "no such file") in said
    assert "nothing was started" in said and not sent
    assert call(*words, "--no-audit", "--executor", "slurm") == 0
    assert f"Warning: {'rgbnt201 at ' if study == 'omniglot' else ''}{root}" in capsys.readouterr().err
    assert sent == ["slurm"]
    assert call(*words, "--dry-run", "--executor", "slurm", "--json") == 0
    assert str(root) in json.loads(capsys.readouterr().out)["warnings"][-1]


# -- status, retry, cancel, clean, watch, logs ---------------------------------------------------


def test_status_says_what_failed_and_its_exit_code_says_the_rest(
    manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = load_study(manifest).runs()
    words = ("status", manifest, "--runs-dir", tmp_path)
    assert call(*words) == 4
    for run in runs[:5]:
        complete(run, tmp_path)
    assert call(*words) == 4
    fail(runs[5], tmp_path)
    log = runs[5].folder(tmp_path) / "submitit" / "job.log"
    log.parent.mkdir()
    log.write_text("starting\nValueError: x\n")
    capsys.readouterr()
    assert call(*words) == 1
    out = capsys.readouterr().out
    assert "5 completed, 1 failed" in out
    assert "bad" in out and "    starting\n" in out and out.count("ValueError: x") == 1
    assert f"sdtps submit {manifest} --retry failed --runs-dir {tmp_path}\n" in out
    shutil.rmtree(runs[5].folder(tmp_path))
    complete(runs[5], tmp_path)
    assert call(*words) == 0
    running = create(runs[5], tmp_path)
    running.result_file.unlink()
    running.write_status("running", attempt=1, epoch=2, progress=0.4)
    assert call(*words) == 3


def test_retry_submits_what_failed_and_nothing_new(
    manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = load_study(manifest).runs()
    fail(runs[0], tmp_path)
    fail(runs[1], tmp_path, "diverged")
    sent: list[list[str]] = []
    monkeypatch.setattr(
        front, "dispatch", lambda p, *_: sent.append([a.run.name for a in p.submitted]) or 0
    )
    words = ("retry", manifest, "--runs-dir", tmp_path)
    assert call(*words, "--failed") == 0
    assert call(*words, "topk/seed1") == 0
    assert call(*words, "--failed", "--diverged") == 0
    assert sent == [[runs[0].name], [runs[1].name], [runs[0].name, runs[1].name]]
    assert call(*words) == 2
    assert "retry what?" in capsys.readouterr().err
    assert call(*words, "topk") == 0  # a variant alone is its first seed
    assert call(*words, "--cancelled") == 0
    assert sent[3:] == [[runs[0].name]]


def test_cancel_and_clean_show_first_and_do_nothing_for_an_empty_selection(
    manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = load_study(manifest).runs()
    complete(runs[0], tmp_path)
    assert call("cancel", manifest, "--runs-dir", tmp_path, "--yes") == 0
    assert "nothing to cancel" in capsys.readouterr().out
    assert call("clean", manifest, "--runs-dir", tmp_path, "--yes") == 0
    assert "no run is failed or cancelled; nothing to delete" in capsys.readouterr().out
    fail(runs[1], tmp_path)
    running = create(runs[2], tmp_path)
    running.write_status("running", attempt=1, epoch=1)
    (tmp_path / "small" / "gone" / "seed0-0123456789").mkdir(parents=True)
    assert call("clean", manifest, "--runs-dir", tmp_path) == 0
    out = capsys.readouterr().out
    assert "would delete" in out and runs[1].name in out and runs[0].name not in out
    assert runs[1].folder(tmp_path).is_dir()
    words = ("clean", manifest, "--runs-dir", tmp_path, "--json")
    name = str(runs[1].folder(tmp_path).relative_to(tmp_path))
    assert call(*words) == 0
    told = json.loads(capsys.readouterr().out)
    assert [row["folder"] for row in told["would_delete"]] == [name] and told["left"] == {}
    assert runs[1].folder(tmp_path).is_dir()
    assert call(*words, "--unplanned", "--yes") == 0
    told = json.loads(capsys.readouterr().out)
    assert [row["folder"] for row in told["deleted"]] == [name, "small/gone/seed0-0123456789"]
    assert not runs[1].folder(tmp_path).exists()
    assert not (tmp_path / "small" / "gone" / "seed0-0123456789").exists()
    assert running.path.is_dir() and runs[0].folder(tmp_path).is_dir()
    assert call("clean", manifest, "--runs-dir", tmp_path, "--state", "completed", "--yes") == 0
    assert not runs[0].folder(tmp_path).exists()
    assert running.path.is_dir()


def test_what_cancel_cannot_end_is_not_called_cancelled(
    manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = load_study(manifest).runs()[0]
    create(run, tmp_path).write_status("running", attempt=1, epoch=1)
    assert call("cancel", manifest, "--runs-dir", tmp_path, "--yes") == 1
    told = capsys.readouterr()
    assert "Cancelled 0 runs." in told.out
    assert f"not cancelled: {run.name} runs by hand" in told.err
    words = ("cancel", manifest, "--runs-dir", tmp_path, "--json")
    for more, code, answer in (
        ((), 0, {"would_cancel": [run.name], "left": [], "unknown": []}),
        (("--yes",), 1, {"cancelled": [], "left": [run.name], "unknown": []}),
    ):
        assert call(*words, *more) == code
        assert json.loads(capsys.readouterr().out) == answer


def test_with_canaries_a_script_gets_one_document_also_where_they_fail(
    manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fork_modules(monkeypatch)
    (tmp_path / "standin.py").write_text(STAND_IN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("SDTPS_JOB_ENTRY", "standin:execute")
    options = ("--executor", "local", "--no-audit", "--json", "--canary", "--runs-dir", tmp_path)
    for variant, code, submitted in (("topk", 0, 2), ("bad", 2, 0)):
        assert call("submit", manifest, *options, "--variant", variant) == code
        told = capsys.readouterr()
        assert len(json.loads(told.out)["submitted"]) == submitted
        assert ("canaries failed" in told.err) == (code == 2)


def test_every_command_that_is_named_works_on_the_same_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SDTPS_DATA_ROOT", raising=False)
    manifest, runs, data = tmp_path / "my study.yaml", tmp_path / "my runs", tmp_path / "data"
    manifest.write_text(MANIFEST.replace("overrides: {data.generate: {seed: 1}}\n", ""))
    data.mkdir()
    for run in load_study(manifest, data_root=data).runs():
        fail(run, runs, "diverged" if run.variant == "soft" else "failed")
    words = (manifest, "--runs-dir", runs)
    assert call("status", *words, "-v", "so*", "-v", "topk", "--seed", 1) == 1
    [hint] = re.findall("again: sdtps (.*)", capsys.readouterr().out)
    sent: list[list[str]] = []
    monkeypatch.setattr(
        front, "dispatch", lambda p, *_: sent.append([a.run.name for a in p.submitted]) or 0
    )
    assert call(*[*shlex.split(hint), "--executor", "slurm", "--no-audit"]) == 0
    assert [[name.split("-")[0] for name in names] for names in sent] == [
        ["small/topk/seed1", "small/soft/seed1"]
    ]
    assert call("retry", *words, "--seed", 0) == 2
    [hint] = re.findall(r"see: sdtps (.*)\)", capsys.readouterr().err)
    assert shlex.split(hint) == ["status", *map(str, words), "--seed", "0"]
    assert call(*shlex.split(hint)) == 1


def test_a_run_is_tried_here_apart_from_the_store(
    manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import sdtps.training.attempt

    tried: list[tuple[Path, int | None]] = []

    def execute(path: Path, *, max_steps: int | None = None) -> str:
        tried.append((Path(path), max_steps))
        return "requeued"

    monkeypatch.setattr(sdtps.training.attempt, "execute", execute)
    assert call("try", manifest, "soft/seed1", "--max-steps", 3, "--runs-dir", tmp_path) == 0
    [(folder, steps)] = tried
    assert steps == 3
    assert folder.is_relative_to(tmp_path / "_trials" / "small" / "soft")
    assert RunFolder(folder).config().sdtps.decision == "soft"
    assert not (tmp_path / "small").exists()
    assert "stopped as asked after 3 steps" in capsys.readouterr().out


def test_what_a_terminal_would_obey_is_shown_in_plan_and_status_not_sent_to_it(
    manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest.write_text(MANIFEST.replace("{generate:", '{root: "/\\e[31mred", generate:'))
    text = manifest.read_text().replace("varies: [", "varies: [data.root, ")
    manifest.write_text(text.replace("soft: {", 'soft: {data.root: "/\\e[2Jgone", '))
    assert call("plan", manifest, "--runs-dir", tmp_path) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out and r"\x1b[2Jgone" in out
    run = load_study(manifest).runs()[0]
    create(run, tmp_path).write_status("failed", attempt=1, kind="error", reason="no \x1b[1mdata")
    RunFolder(run.folder(tmp_path)).log_file.write_text("\x1b[32mepoch 1\x1b[0m\n")
    assert call("status", manifest, "--runs-dir", tmp_path) == 1
    out = capsys.readouterr().out
    assert "\x1b" not in out and r"no \x1b[1mdata" in out


def test_status_names_a_run_that_was_changed_after_it_completed(
    manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = load_study(manifest).runs()
    for run in runs:
        complete(run, tmp_path)
    words = ("status", manifest, "--runs-dir", tmp_path)
    assert call(*words) == 0
    config = RunFolder(runs[0].folder(tmp_path)).config_file
    config.write_text(config.read_text().replace("0", "1", 1))
    capsys.readouterr()
    assert call(*words) == 1
    printed = capsys.readouterr().out
    assert f"{runs[0].name}: completed (damaged): config.yaml" in printed
    assert not any(run.name in printed for run in runs[1:])
    assert call("plan", *words[1:]) == 0
    assert capsys.readouterr().out.count("completed (damaged): config.yaml") == 1
