"""Any program is a variant: checked with the manifest, run, stopped, resumed, and its end told."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ablations.cli import main
from ablations.launch import submit
from ablations.launch.plan import make_plan
from ablations.store.states import FolderStatus, run_states
from ablations.study.manifest import load_study
from sdtps.config import ProgramConfig, identity, load_config
from sdtps.config.program import LogConfig
from sdtps.run.folder import RunFolder
from sdtps.system.errors import ManifestError, RunError
from sdtps.system.files import digest
from sdtps.trained.model import load
from sdtps.training import program
from sdtps.training.attempt import EXIT_CODES, execute
from tests.ablations.copies import TRAINING, ends, fork, fork_modules

ROOT = Path(__file__).resolve().parents[2]
HEAD = """\
study: small
task: command
seeds: [0, 1]
baseline: a
varies: [settings, command]
metrics: {accuracy: {direction: up}}
tables: [{name: s, kind: sweep, axis: settings.lr}]
overrides:
  command: "{python} p.py --lr {settings.lr} --name {settings.name} {seed} ${HOME}"
  settings: {lr: 0.1, name: plain}
"""
VARIANTS = 'variants:\n  a: {}\n  b: {settings.name: "it\'s $x"}\n'
PROGRAM = """\
import sys, time
from sdtps.log import log
seed = int(sys.argv[-1])
print("seed", seed, flush=True)
for epoch in (1, 2):
    log(epoch=epoch, step=epoch, loss=1.0 / epoch)
    log("eval", epoch=epoch, step=epoch, accuracy=0.5 * epoch - 0.1 * (epoch == 2) - 0.2 * seed)
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "small.yaml"
    path.write_text(text)
    return path


def make(tmp_path: Path, text: str, line: str = "p.py {seed}", **fields: object) -> RunFolder:
    """A run of the Python program `text`."""
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "p.py").write_text(text)
    command = f"PYTHONPATH={ROOT} {sys.executable} {line}"
    config = ProgramConfig(command=command, directory=str(tmp_path), **fields)  # type: ignore[arg-type]
    folder = RunFolder(tmp_path / "runs" / "s" / "v" / "seed0-x")
    folder.create(config, {"study": "s", "variant": "v", "seed": 0})
    return folder


def test_the_command_line_is_filled_in_one_word_for_each_field(tmp_path: Path) -> None:
    study = load_study(write(tmp_path, HEAD + VARIANTS))
    config = study.variants["b"].config
    assert isinstance(config, ProgramConfig)
    line = config.line(seed=3, run="/r")
    assert line == f"{sys.executable} p.py --lr 0.1 --name 'it'\"'\"'s $x' 3 ${{HOME}}"
    assert config.directory == str(tmp_path)
    assert study.differences("b") == {"settings.name": ("plain", "it's $x")}
    moved = config.model_copy(update={"directory": "/elsewhere"})
    assert identity(moved, 0) == identity(config, 0) != identity(study.base, 0)
    assert len({run.identity for run in study.runs()}) == 4
    below = load_study(write(tmp_path, HEAD + "  directory: checkout\n" + VARIANTS))
    folders = {variant.config.directory for variant in below.variants.values()}  # type: ignore[union-attr]
    assert folders == {str(tmp_path / "checkout")}


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("{settings.lr}", "{settings.lrr}", "names {settings.lrr}. Did you mean 'settings.lr'?"),
        ("{settings.lr}", "0.1", "does not name settings.lr: write {settings.lr} where it belongs"),
        (" {seed}", "", "does not name {seed}, so all seeds would be one run"),
        (" {seed}", " {sed}", "names {sed}. Did you mean 'seed'?"),
        ("b: {settings.name", "b: {settings.nam", "'settings.nam' is no setting of the base. Did"),
        ("varies: [settings, command]", "varies: [command]", "'settings.name' may not change here"),
        ('  command: "{python} p.py', '  comand: "{python} p.py', "unknown key 'comand'. Did you mean"),
    ],
)
def test_mistakes_are_told_before_anything_runs(tmp_path: Path, old: str, new: str, says: str) -> None:
    text = HEAD + VARIANTS
    assert old in text
    with pytest.raises(ManifestError) as caught:
        load_study(write(tmp_path, text.replace(old, new)))
    assert says in str(caught.value) and "small.yaml: 1 mistake; nothing" in str(caught.value)


def test_a_script_that_is_not_there_is_told_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "q.py").touch()
    words = [str(write(tmp_path, HEAD + VARIANTS)), "--runs-dir", str(tmp_path / "runs")]
    told = f"the command's p.py is not in {tmp_path}. Did you mean 'q.py'?"
    for verb in (["plan"], ["submit", "--executor", "local"]):
        assert main([*verb, *words]) == 2
        assert told in capsys.readouterr().err and not (tmp_path / "runs" / "small").exists()
    monkeypatch.setattr(submit.slurm, "configured", lambda: True)
    monkeypatch.setattr(submit.slurm, "max_array_size", lambda: 9)
    assert main(["plan", *words]) == 0
    printed = capsys.readouterr().out
    assert f"Warning: {told}" in printed and "; the cluster's nodes may have it" in printed
    for line in ("cd x && p.py", "/other/p.py", "${HOME}/p.py", "q.py > p.py; p.py", "q.py p.py"):
        assert not ProgramConfig(command=f"{line} {{seed}}", directory=str(tmp_path)).absent()


def test_an_edited_program_is_other_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = write(tmp_path, HEAD + "figures: [{name: f, metric: acuracy}]\n" + VARIANTS)
    (tmp_path / "p.py").write_text(PROGRAM)
    study, runs = load_study(manifest), tmp_path / "runs"
    for run in study.runs():
        files = {"p.py": "0" * 32 if run.seed else digest(PROGRAM.encode())}
        folder = RunFolder(run.folder(runs))
        folder.create(run.config, {"seed": run.seed, "code": {"digest": "c"}, "program": files})
        folder.write_result({"attempt": 1, "final": {"accuracy": 50.0}})
    assert main(["status", str(manifest), "--runs-dir", str(runs)]) == 0
    assert capsys.readouterr().out.count('is per cent, write accuracy: {direction: up, unit: ""}') == 1
    for verb in ("status", "tables"):
        main([verb, str(manifest), "--runs-dir", str(tmp_path / "other")])
        assert f"If they are elsewhere: --runs-dir {runs}\n" in "".join(capsys.readouterr())
    with pytest.raises(RunError, match="the run belongs to a program"):
        load(folder.path)
    done = [FolderStatus(state="completed")] * 4
    plan = make_plan(study, runs, done, code="c")
    reasons = ["completed", "completed by another version of p.py (000000000000)"] * 2
    assert [a.reason for a in plan.actions] == reasons and "2 completed runs by" in plan.warnings[0]
    assert "draws 'acuracy'" in plan.warnings[1] and "nearest is 'accuracy'" in plan.warnings[1]
    again = make_plan(study, runs, done, code="c", retry=["stale"]).submitted
    assert [(a.run.seed, a.start) for a in again] == [(1, "over")] * 2
    other = replace(study, name="other")  # equal runs of another study are not taken over, either
    planned = make_plan(other, runs, run_states(other.runs(), runs), code="c")
    assert [a.action for a in planned.actions] == ["link", "submit"] * 2


LOG = '  log: {file: "{run}/x.csv"%s}\n'


@pytest.mark.parametrize(
    ("log", "says"),
    [
        (LOG % "", ["small.yaml:11: overrides.log", "`format`", "`mapping`"]),
        (LOG % ", format: csv", ["small.yaml:11: overrides.log", "no format 'csv'"]),
        (LOG % ", format: demo, mapping: m.yaml", ["small.yaml:11: overrides.log"]),
        (LOG % ", mapping: nope.yaml", ["nope.yaml: no such file"]),
        (LOG % ", mapping: m.yaml", ["m.yaml:3: metrics.acc.unit: still a question mark"]),
    ],
)
def test_how_a_log_is_read_is_checked_before_anything_runs(
    tmp_path: Path, log: str, says: list[str]
) -> None:
    (tmp_path / "m.yaml").write_text("epoch: epoch\nmetrics:\n  acc: {split: val, unit: '?'}\n")
    with pytest.raises(ManifestError) as caught:
        load_study(write(tmp_path, HEAD + log + VARIANTS))
    assert all(word in str(caught.value) for word in says)
    good = LOG.replace("{run}/x.csv", "{run}/out") % ", format: demo"
    assert load_study(write(tmp_path, HEAD + good + VARIANTS)).variants["a"].config


def test_a_pipe_fails_with_its_program(tmp_path: Path) -> None:
    folder = make(tmp_path, PROGRAM + "sys.exit('CUDA error')\n", "p.py {seed} | cat")
    with pytest.raises(RunError, match="exit code 1"):
        execute(folder.path)


def test_a_run_is_started_logged_and_completed(tmp_path: Path) -> None:
    more = '    log("eval", epoch=epoch, step=epoch, f1=0.5)\n'  # in a row of its own
    folder = make(tmp_path, PROGRAM + more, select="accuracy")
    assert execute(folder.path) == "completed"
    final = {"epoch": 2, "step": 2, "accuracy": 0.9, "f1": 0.5}
    assert (folder.result() or {})["final"] == final
    assert [row["attempt"] for row in folder.metrics()] == [1] * 6
    assert "seed 0" in folder.log_file.read_text()
    assert list(folder.run()["program"]) == ["p.py"]
    assert (folder.status() or {})["state"] == "completed"
    assert load_config(folder.config_file).task == "command"


def test_the_selected_epoch_is_the_best_in_its_direction(tmp_path: Path) -> None:
    text = PROGRAM.replace("accuracy=0.5 * epoch - 0.1", "error=0.5 * epoch - 0.1")
    folder = make(tmp_path, text, select="error", select_direction="down")
    execute(folder.path)
    assert (folder.result() or {})["best"]["epoch"] == 1
    with pytest.raises(RunError, match=r"'eror'\. Did you mean 'error'"):
        execute(make(tmp_path / "b", text, select="eror").path)


QUERIES = """\
import os
from sdtps.log import log
log("eval", epoch=1, step=1, accuracy=0.5)
open(os.environ["SDTPS_RUN"] + "/queries.json", "w").write('{"identity": [7, "b"]%s')
"""


def test_a_program_tells_what_is_known_of_each_query(tmp_path: Path) -> None:
    folder = make(tmp_path, QUERIES % ', "accuracy": [1, 0]}')
    assert execute(folder.path) == "completed"
    known = folder.queries()
    assert known["accuracy"].tolist() == [1, 0] and known["identity"][0] == 7


@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [
        (QUERIES % ', "accu', "error", "queries.json: torn"),
        (QUERIES % ', "accuracy": [1]}', "error", "accuracy: of no metric of the last"),
        (QUERIES % ', "accuracy": [1, null]}', "error", "accuracy: gives accuracy nan, the eval"),
        (QUERIES % ', "accuracy": [1, 1]}', "error", "gives accuracy 1, the evaluation 0.5"),
        (QUERIES % ', "acuracy": [1, 0]}', "error", "Did you mean 'accuracy'"),
        ("print('one'); raise SystemExit(7)", "error", "exit code 7"),
        ("raise ValueError('no such file')", "error", "ValueError: no such file"),
        ("import os; os.kill(os.getpid(), 9)", "error", "ended by SIGKILL"),
        ("print('done')", "error", "without an evaluation row"),
        ("import sys; sys.exit(127)", "error", "was not found"),
    ],
)
def test_a_program_that_fails_says_how(tmp_path: Path, text: str, kind: str, says: str) -> None:
    folder = make(tmp_path, text)
    with pytest.raises(RunError):
        execute(folder.path)
    status = folder.status() or {}
    assert (status["state"], status["kind"]) == ("failed", kind) and says in status["reason"]
    assert folder.result() is None


@pytest.mark.parametrize(
    "text",
    [
        "raise SystemExit(3)",
        "from sdtps.log import log\nlog(epoch=1, step=1, loss=float('nan'))\nraise SystemExit(1)",
    ],
)
def test_divergence_is_told_by_an_exit_code_or_a_loss(tmp_path: Path, text: str) -> None:
    assert execute(make(tmp_path, text).path) == "diverged"


POLITE = """\
import pathlib, signal, sys, time
from sdtps.log import log
state = pathlib.Path("state")
def save(*_):
    with state.open("a") as stream:
        stream.write("TERM ")
    time.sleep(0.5)
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
first = 2 if state.exists() else 1
log(epoch=1, step=first, loss=1.0)
if first == 1:
    pathlib.Path("ready").touch()
    time.sleep(60)
log("eval", epoch=1, step=2, accuracy=1.0)
"""
RUDE = POLITE.replace("signal.signal(signal.SIGTERM, save)", "").replace("first = 2 if", "first = 1 if")
PARENT = f"""\
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {POLITE!r}])
import signal
signal.signal(signal.SIGTERM, lambda *_: None)
sys.exit(child.wait())
"""


def start(folder: RunFolder) -> int:
    """The process id of a fork that does the run, and ends as `sdtps run` does."""
    return fork(lambda: EXIT_CODES[execute(folder.path)])


def processes_of(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            words = file.read_text().rpartition(")")[2].split()
            if int(words[1]) == pid:
                found += processes_of(int(file.parent.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
@pytest.mark.parametrize(
    ("text", "line", "saved", "number", "who"),  # SLURM signals all processes with cgroups
    [
        (POLITE, "p.py {seed}", "TERM ", signal.SIGTERM, "all"),
        (POLITE, "p.py {seed}", "TERM ", signal.SIGTERM, "job"),
        (POLITE, "p.py {seed}", "TERM ", signal.SIGUSR2, "all"),
        (POLITE, "p.py {seed} | cat; touch after", "TERM ", signal.SIGTERM, "all"),
        (POLITE, "p.py {seed} | cat; touch after", "TERM ", signal.SIGUSR2, "all"),
        (PARENT, "p.py {seed}", "TERM ", signal.SIGTERM, "all"),
        (PARENT, "p.py {seed}", "TERM ", signal.SIGUSR2, "job"),
        (RUDE, "p.py {seed}", "", signal.SIGTERM, "all"),
        (RUDE, "p.py {seed}", "", signal.SIGUSR2, "all"),
    ],
)
def test_a_stop_reaches_a_program_once_and_the_run_goes_on(
    tmp_path: Path, text: str, line: str, saved: str, number: signal.Signals, who: str
) -> None:
    folder = make(tmp_path, text, line)
    job = start(folder)
    while not (tmp_path / "ready").exists():
        time.sleep(0.05)
    for pid in processes_of(job) if who == "all" else [job]:
        os.kill(pid, number)
    assert ends(job) == [EXIT_CODES["requeued"]]
    status = folder.status() or {}
    assert status["state"] == "requeued"
    assert saved or "SIGTERM" in status["reason"]
    assert saved == ((tmp_path / "state").read_text() if saved else "")
    assert not (tmp_path / "after").exists()
    (tmp_path / "state").touch()
    if text == RUDE:
        (tmp_path / "p.py").write_text(text.replace("if first == 1", "if False"))
    assert execute(folder.path) == "completed"
    again = "attempt 2 started again from the beginning" in folder.log_file.read_text()
    assert again == (not saved)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_program_does_not_outlive_a_job_that_is_killed(tmp_path: Path) -> None:
    folder = make(tmp_path, POLITE, "p.py {seed} | cat")
    job = start(folder)
    while not (tmp_path / "ready").exists():
        time.sleep(0.05)
    below = processes_of(job)[1:]
    assert len(below) >= 3
    os.kill(job, signal.SIGKILL)
    os.waitpid(job, 0)
    late = time.monotonic() + 30
    while any(Path(f"/proc/{pid}/cmdline").exists() for pid in below) and time.monotonic() < late:
        time.sleep(0.05)
    assert time.monotonic() < late


@pytest.mark.parametrize(
    ("code", "outcome"), [("log('eval', epoch=1, step=2, a=1.0)", "completed"), ("", "requeued")]
)
def test_exit_code_0_after_a_stop_is_an_end_only_with_an_evaluation(
    tmp_path: Path, code: str, outcome: str
) -> None:
    text = f"""\
import pathlib, signal, sys, time
from sdtps.log import log
def stop(*_):
    {code or "pass"}
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
log("eval", epoch=1, step=1, a=0.5)
pathlib.Path("ready").touch()
time.sleep(60)
"""
    folder = make(tmp_path, text)
    config = folder.config()
    assert isinstance(config, ProgramConfig)
    assert program.run(folder, config, 0, 1, (tmp_path / "ready").exists) == outcome


def test_a_canary_of_a_program_ends_after_a_few_steps(tmp_path: Path) -> None:
    text = """\
import time
from sdtps.log import log
for step in range(1, 10_000):
    log(epoch=1, step=step, loss=1.0)
    time.sleep(0.2)
"""
    folder = make(tmp_path, text)
    assert execute(folder.path, max_steps=3) == "requeued"  # to the worker of a canary: exit code 0
    assert 3 <= len(folder.metrics()) < 9_999 and folder.result() is None


CSV_PROGRAM = """\
import pathlib, sys, time
out = open(sys.argv[1] + "/scores.csv", "w")
print("epoch,loss,val_acc", file=out, flush=True)
for epoch in (0, 1, 2):
    print(f"{epoch},{1 / (epoch + 1)},{50 + 10 * epoch}", file=out, flush=True)
    while epoch == 1 and not pathlib.Path("seen").exists():
        time.sleep(0.05)
"""
MAPPING = """\
epoch: epoch
epoch_from: 0
step: row
metrics:
  loss: {split: train}
  val_acc: {as: accuracy, split: val, direction: up, unit: percent}
"""


def test_a_program_s_own_log_is_imported_while_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork_modules(monkeypatch)
    monkeypatch.setattr(program, "IMPORT_SECONDS", 0.0)
    monkeypatch.setattr(program, "HEARTBEAT_SECONDS", 0.0)
    (tmp_path / "mapping.yaml").write_text(MAPPING)
    log = LogConfig(file="{run}/scores.csv", mapping="mapping.yaml")
    folder = make(tmp_path, CSV_PROGRAM, log=log, select="accuracy")
    config = folder.config()
    assert isinstance(config, ProgramConfig)
    config = config.model_copy(update={"command": config.command.replace("{seed}", "{run} {seed}")})

    def stop() -> bool:  # looked at all the time
        if any(row.get("accuracy") == 0.6 for row in folder.metrics()):
            (tmp_path / "seen").touch()
        return False

    assert program.run(folder, config, 0, 1, stop) == "completed"
    rows = folder.metrics()
    assert [(r["kind"], r["epoch"], r["attempt"]) for r in rows if r["kind"] == "eval"] == [
        ("eval", epoch, 1) for epoch in (1, 2, 3)
    ]
    assert [r["loss"] for r in rows if r["kind"] == "train"] == [1.0, 0.5, pytest.approx(1 / 3)]
    assert (folder.result() or {})["best"]["accuracy"] == 0.7
    without = ProgramConfig(**{**config.model_dump(), "log": None})
    assert identity(config, 0) != identity(without, 0)


def test_a_log_that_cannot_be_imported_is_told(tmp_path: Path) -> None:
    folder = make(tmp_path, "print('done')", log=LogConfig(file="none.txt", format="demo"))
    with pytest.raises(RunError, match=r"log cannot be imported: .*none\.txt: no such file"):
        execute(folder.path)
    missing = make(tmp_path / "b", "", log=LogConfig(file="x", mapping="nope.yaml"))
    with pytest.raises(RunError, match=r"nope\.yaml: no such file(.|\n)*nothing was started"):
        execute(missing.path)


def test_no_torch_is_imported_to_run_a_program(tmp_path: Path) -> None:
    folder = make(tmp_path, PROGRAM + "assert 'pydantic' not in sys.modules\n")  # it logs in no time
    code = (
        "import sys; from sdtps.training.attempt import execute\n"
        f"print(execute({str(folder.path)!r}), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == ["completed", "False"], done.stderr


def test_a_program_and_a_model_of_ours_stand_in_one_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fork_modules(monkeypatch, *TRAINING)
    (tmp_path / "p.py").write_text(PROGRAM.replace("accuracy=", "mAP="))
    manifest = write(
        tmp_path,
        f"study: small\ntask: reid\nbase: {ROOT}/ablations/base/quick.yaml\nseeds: [0]\n"
        "baseline: ours\nvaries: [command, settings]\nmetrics: {mAP: {direction: up}}\n"
        "overrides: {train.epochs: 1}\n"
        "variants:\n  ours: {}\n"
        f"  theirs: {{command: 'PYTHONPATH={ROOT} {{python}} p.py --x {{settings.x}} {{seed}}', "
        "settings.x: 1}\n",
    )
    study = load_study(manifest)
    assert list(study.models()) == ["ours"]
    assert study.variants["theirs"].config.task == "command"
    runs = str(tmp_path / "runs")
    words = ["submit", str(manifest), "--runs-dir", runs, "--executor", "local", "--no-audit"]
    assert main([*words, "--canary", "--variant", "theirs"]) == 0
    assert main(words) == 0
    assert main(["status", str(manifest), "--runs-dir", runs]) == 0
    assert main(["tables", str(manifest), "--runs-dir", runs, "--form", "csv"]) == 0
    assert "theirs" in capsys.readouterr().out
