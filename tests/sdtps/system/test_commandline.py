"""A mistyped command, choice or option is answered with the nearest right one, and exit code 2."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import ablations.cli
import analysis.cli
import sdtps.cli
from ablations.cli import all_verbs, main
from sdtps.system.commandline import GROUPS, at_least, verb_parser

ROOT = Path(__file__).resolve().parents[3]
STARTED = {
    "ablations": ablations.cli.main,
    "analysis": analysis.cli.main,
    "sdtps": sdtps.cli.main,
    "submit.py": lambda words: main(["submit", *words]),
}


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["ablations", "statsu", "x"], "status"),
        (["ablations", "retry", "quick", "--faild"], "--failed"),
        (["ablations", "plan", "quick", "--retry", "faild"], "failed"),
        (["submit.py", "quick", "--dryrun"], "--dry-run"),
        (["submit.py", "quick", "--executer=local"], "--executor"),
        (["submit.py", "quick", "--executor", "slrum"], "slurm"),
        (["analysis", "tabels"], "tables"),
        (["analysis", "paper", "--no-pfd"], "--no-pdf"),
        (["sdtps", "convrt"], "convert"),
        (["submit.py", "quik"], "quick"),
        (["submit.py", "ablations/quik.yaml"], "quick"),
    ],
)
def test_the_nearest_word_is_named(
    typed: list[str], meant: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert STARTED[typed[0]](typed[1:]) == 2
    printed = capsys.readouterr().err
    assert f"Did you mean '{meant}'?" in printed and "Traceback" not in printed


def test_a_verb_of_another_package_is_looked_for_among_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert STARTED["sdtps"](["tables"]) == 2
    assert "What each does: python -m sdtps --help; all verbs: sdtps --help" in capsys.readouterr().err


@pytest.mark.parametrize("typed", ["-1", "0", "1.5", "x", "\N{SUPERSCRIPT TWO}"])
def test_numbers_that_cannot_be_are_refused(typed: str) -> None:
    with pytest.raises(
        argparse.ArgumentTypeError, match=f"'{typed}' is not a whole number of at least 1"
    ):
        at_least(1)(typed)
    assert at_least(1)("12") == 12


def run(code: str, *words: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        **options,  # type: ignore[call-overload]
    )


INTERRUPTED_AT_IMPORT = """\
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

import ablations.cli
import analysis.cli
import sdtps.cli
from ablations.cli import all_verbs, main
sys.meta_path.insert(0, Finder())
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("module", "started"),
    [
        ("argparse", False),
        ("sdtps.system.commandline", False),
        ("ablations.view.status", False),
        ("pydantic", False),
        ("ablations.study.manifest", True),
        ("sdtps.config.yaml12", False),
    ],
)
def test_an_interrupt_leaves_no_traceback_wherever_an_import_is(module: str, started: bool) -> None:
    def interruptible() -> None:  # also where the tests run in the background, which ignores SIGINT
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    code = INTERRUPTED_AT_IMPORT.format(module=module)
    done = run(code, "status", "quick", preexec_fn=interruptible)
    assert "Traceback" not in done.stderr
    if done.returncode == 130:
        assert done.stderr.startswith("Interrupted.")
    else:
        assert done.returncode == -signal.SIGINT and done.stderr == "" and not started


def test_a_reader_of_a_pipe_that_leaves_is_no_error() -> None:
    code = "import sys; from ablations.cli import main; sys.exit(main())"
    with subprocess.Popen(
        [sys.executable, "-c", code, "plan", "rgbnt201"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_one_sentence() -> None:
    code = "import sys; from ablations.cli import main; sys.exit(main())"
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code, "--help"], cwd=ROOT, stdout=full, stderr=subprocess.PIPE
        )
    assert (done.returncode, done.stderr) == (2, b"standard output: No space left on device\n")


def test_options_and_positionals_may_be_mixed_and_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "--seed", "0", "-v", "topk", "quick", "-v", "released", "--json", "--seed", "1"]
    assert main(words) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    chosen = {(run["variant"], run["seed"]) for run in runs}
    assert chosen == {(v, seed) for v in ("topk", "released") for seed in (0, 1)}


def test_verbs_are_in_one_table_and_each_in_a_group() -> None:
    tables = (ablations.cli.VERBS, analysis.cli.VERBS, sdtps.cli.VERBS)
    assert sum(map(len, tables)) == len(all_verbs()), "two tables have a verb of one name"
    assert {group for _, _, group in all_verbs().values()} <= set(GROUPS)


def test_every_verb_has_help_and_no_option_swallows_what_follows() -> None:
    """Options that take several values repeat: `--seed 0 STUDY` must not take STUDY as a seed."""
    verbs = all_verbs()
    parsers = {verb: verb_parser("sdtps", verb, verbs) for verb in verbs}
    assert all(f"usage: sdtps {verb}" in parser.format_help() for verb, parser in parsers.items())
    greedy = {
        f"{verb} {action.option_strings[0]}"
        for verb, parser in parsers.items()
        for action in parser._actions
        if action.option_strings and action.nargs in ("+", "*", "...")
    }
    assert not greedy


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_bash_completes_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    completion = capsys.readouterr().out
    program = tmp_path / "sdtps"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from ablations.cli import main\nsys.exit(main())\n"
    )
    program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}

    chosen = ("status", "rgbnt201", "--variant", "nograd"), ("compare", "rgbnt201", "nograd")
    lines = (("stat",), ("status", "rgb"), *chosen)
    script = f"{completion}\nCOMP_TYPE=9\n" + "".join(
        f"COMP_WORDS=(sdtps {' '.join(words)}); COMP_CWORD={len(words)}\n"
        "_shtab_sdtps\necho ${COMPREPLY[@]}\n"
        for words in lines
    )
    done = subprocess.run(
        ["bash", "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    verbs, studies, *variants = (line.split() for line in done.stdout.splitlines())
    assert verbs == ["status"]
    assert "rgbnt201" in studies
    assert ["nograd_cross" in names for names in variants] == [True, True]


def test_a_start_is_light() -> None:
    """What `--help`, `status` and `submit --dry-run` load on a login node."""
    heavy = "{'torch', 'pandas', 'matplotlib', 'scipy', 'transformers', 'seaborn', 'rich'}"
    code = (
        "import sys; from ablations.cli import main\n"
        "for line in ('--help', 'curves --help', 'status quick', 'submit quick --dry-run'):\n"
        "    main(line.split())\n"
        f"    print('HEAVY', line, sorted({heavy} & set(sys.modules)))"
    )
    lines = [line for line in run(code).stdout.splitlines() if line.startswith("HEAVY")]
    assert len(lines) == 4 and all(line.endswith(" []") for line in lines), lines
