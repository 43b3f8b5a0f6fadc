"""From what is printed to the runs behind it, and to the command that repeats exactly those."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from planted import CODE, WEIRD, hard_study, plant, plant_hard, planted_study, sketched

from ablations.study.manifest import load_study
from analysis.cli import main
from analysis.paper.build import Options, build
from analysis.paper.explain import ExplainError, describe, find
from analysis.runs import hints
from sdtps.config import ProgramConfig, parse_config
from sdtps.run.locations import shipped


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    root = tmp_path_factory.mktemp("explained")
    study = hard_study()
    plant_hard(root / "runs", study)
    options = Options(allow=("missing",), evidence=False, report=False)
    with sketched():
        build([study], [], root / "runs", root / "generated", options)
    return root


@pytest.mark.parametrize(
    ("name", "text", "runs"),
    [
        ("hard-main:off:best/mAP", "90.0 ± 0.0 (2/3)", 3),
        ("hard-main:off:mAP", "85.0 ± 0.0 (2/3)", 3),  # the last epoch
        ("hard/off/mAP.best", "90.0 ± 0.0 (2/3)", 3),
        (r"\res{hard}{off}{mAP.best}", "90.0 ± 0.0 (2/3)", 3),
        (f"hard/{WEIRD}/mAP.best", "95.0 (1/3)", 3),  # the name that people gave the variant
        ("hard-loss", None, 27),
        ("hard-loss:NA", None, 3),
    ],
)
def test_cells_numbers_of_the_text_and_figures_lead_to_their_runs(built, name, text, runs):
    found = find(name, built / "generated")
    assert len(found.runs) == runs and text in (None, found.text)
    if text and ":" in name:
        assert found.runs[0].startswith("hard/off/seed0-") and set(found.seeds) == {"0", "2"}


def test_a_run_is_described_down_to_its_log(built):
    where = find("hard-main:1:mAP", built / "generated").runs[2]
    (built / "runs" / where / "train.log").write_text("step 8: loss is nan")
    run = describe(where, built / "runs")
    assert (run["state"], run["seed"], run["reason"]) == ("diverged", 2, "loss is nan")
    assert (run["commit"], run["host"], run["gpu"]) == (CODE["commit"], "node01", "NVIDIA H100")
    assert run["jobs"] == ("77_2",) and run["logs"] == [str(built / "runs" / where / "train.log")]


def test_a_run_that_was_changed_after_it_completed_is_described_as_damaged(tmp_path):
    study = planted_study("s", ["a"], seeds=(0,))
    folder = plant(tmp_path, study, "a", 0)
    folder.run_file.write_text(folder.run_file.read_text().replace("00:02:00", "00:03:00"))
    run = describe(str(folder.path), tmp_path)
    assert run["state"] == "damaged" and "run.json" in run["reason"] and run["final"] is None


def test_rerunning_names_each_run_once_and_where_its_data_are(tmp_path):
    """Seeds that variants share go into one command; names are no patterns."""
    config = parse_config({"task": "reid", "data": {"root": "/data/of it"}})
    program = {"config": ProgramConfig(command="python p.py {seed}")}
    study = planted_study("s", {"a[1]": {}, "b": {}, "c": {}, "d": {"config": config}, "p": program})
    for variant, seed in (("a[1]", 0), ("a[1]", 1), ("b", 0), ("b", 1), ("c", 1), ("d", 1), ("p", 1)):
        plant(tmp_path / "runs", study, variant, seed, program={"p.py": "f00d"})
    where = [r.folder(tmp_path / "runs") for r in study.runs() if r.folder(tmp_path / "runs").exists()]
    runs = [describe(str(folder), tmp_path / "runs") for folder in where]
    submit, again = "sdtps submit ablations/s.yaml", f"--runs-dir {tmp_path / 'runs-again'}"
    assert hints.again(runs, tmp_path / "runs") == [
        f"{submit} --variant p --seed 1 {again}",  # whose files no commit of this project holds
        f"git checkout {CODE['commit']}",
        f"{submit} --variant 'a[[]1]' --variant b --seed 0 --seed 1 {again}",
        f"{submit} --variant c --seed 1 {again}",
        f"{submit} --variant d --seed 1 --data-root '/data/of it' {again}",
    ]
    assert (runs[-1]["command"], runs[-1]["program"]) == ("python p.py 1", {"p.py": "f00d"})
    theirs = hints.again(runs, Path("/b"), {"s": Path("/a/s.yaml")})[3]
    assert theirs == "sdtps submit /a/s.yaml --variant c --seed 1 --runs-dir /b-again"


def test_paths_and_commands_stay_on_one_line_that_can_be_copied(built, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    place = ["--generated", str(built / "generated"), "--runs-dir", str(built / "runs")]
    assert main(["explain", "hard-main:NA:mAP", *place]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    runs = find("hard-main:NA:mAP", built / "generated").runs
    assert len(runs) == 3 and {str(built / "runs" / run) for run in runs} < set(lines)
    submit = "sdtps submit ablations/hard.yaml --variant NA --seed 0 --seed 1 --seed 2"
    assert f"{submit} --runs-dir {built / 'runs'}-again" in lines


@pytest.mark.parametrize(
    ("what", "hint"),
    [
        ("hard-mian", "Did you mean 'hard-main'"),
        ("hard-main:of:mAP", "Did you mean 'off'"),
        ("hard-main:off:mAPP", "no column 'mAPP'"),
        ("hard/off/mAPP", "Did you mean 'hard/off/mAP'"),
        ("hard-loss:nona", "Did you mean 'none'"),
    ],
)
def test_a_wrong_name_gets_the_nearest_right_one(built, what, hint):
    with pytest.raises(ExplainError, match=hint):
        find(what, built / "generated")


def test_an_uncommitted_difference_is_pointed_at(tmp_path):
    study = hard_study()
    dirty = {**CODE, "dirty": True}
    plant(tmp_path, study, "none", 0, code=dirty, diff="- a\n+ b")
    plant(tmp_path, study, "none", 1, code=dirty)
    first, second = (describe(str(r.folder(tmp_path)), tmp_path) for r in study.runs()[:2])
    assert first["diff"].endswith("run.json (key diff)") and second["diff"] == "none in sdtps/"


def test_a_terminal_is_shown_what_a_log_or_a_name_holds_and_obeys_none_of_it(
    tmp_path, capsys, monkeypatch
):
    study = planted_study("esc", {"a": {"label": "red\x1b[31m"}, "b": {}}, seeds=(0,))
    plant(tmp_path, study, "a", 0, state="failed", stop=(1, 2), reason="no\x1b[2Jthing")
    plant(tmp_path, study, "b", 0)
    monkeypatch.setattr("analysis.verbs.load", lambda _: [study])
    place = ["--runs-dir", str(tmp_path)]
    assert main(["collect", *place]) == 0 and main(["tables", *place]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown and r"no\x1b[2Jthing" in shown and r"red\x1b[31m" in shown


def test_a_cell_is_explained_without_a_paper(tmp_path, monkeypatch, capsys):
    """The table is made from the runs where none was built."""
    study = load_study(shipped("ablations/nograd.yaml"))
    monkeypatch.setattr("analysis.paper.explain.known_studies", lambda: {"nograd": study.path})
    for variant in study.variants:
        for seed in study.seeds:
            plant(tmp_path / "runs", study, variant, seed, scores={"mAP": [0.6], "rank1": [0.7]})
    words = ["--runs-dir", str(tmp_path / "runs"), "--generated", str(tmp_path / "none"), "--json"]
    assert main(["explain", "nograd_main:none:mAP", *words]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["text"].startswith("60.0") and len(answer["runs"]) == 3
    assert main(["explain", "nograd_main:nono:mAP", *words]) == 2
    assert "none" in capsys.readouterr().err
    assert main(["explain", "nograd_mian:none:mAP", *words]) == 2
    assert "Did you mean 'nograd_main'?" in capsys.readouterr().err
