"""From a manifest to a checked paper on the command line, with names that YAML mangles."""

from __future__ import annotations

import json
import shutil

import pytest
from planted import WEIRD, plant, sketched

from ablations.study.manifest import load_study
from analysis.cli import main
from sdtps.system.errors import SdtpsError

MANIFEST = r"""
study: hard
task: reid
base: base.yml
seeds: [0, 1, 2]
baseline: none
varies: [sdtps.keep_ratio]
variants:
  none: {}
  NA: {sdtps.keep_ratio: 0.4}
  off: {sdtps.keep_ratio: 0.3}
  1: {sdtps.keep_ratio: 0.2}
  'w/o_msa & 5% #1 {x}~^\': {sdtps.keep_ratio: 0.1}
metrics:
  mAP: {direction: up, digits: 1}
  rank5: {direction: down, digits: 2, unit: ""}
tables:
  - {name: main, epoch: both}
figures:
  - {name: loss}
"""


@pytest.fixture
def words(tmp_path, paper_sources, monkeypatch):
    """Arguments that every command takes here; the study and its runs are planted."""
    monkeypatch.chdir(tmp_path)
    manifest = tmp_path / "ablations" / "hard.yaml"
    monkeypatch.setattr(
        "analysis.verbs.known_studies", lambda: {f.stem: f for f in manifest.parent.glob("*.yaml")}
    )
    (tmp_path / "ablations").mkdir()
    (tmp_path / "ablations" / "base.yml").write_text("task: reid\n")
    manifest.write_text(MANIFEST)
    study = load_study(manifest)
    for number, variant in enumerate(study.variants):
        for seed in study.seeds:
            scores = {"mAP": [0.5 + 0.01 * number, 0.6], "rank5": [2.0 - 0.1 * number, 1.0]}
            plant(tmp_path / "runs", study, variant, seed, scores=scores)
    with sketched():
        yield paper_sources(tmp_path / "paper"), study


QUICKLY = ["paper", "--no-pdf", "--no-evidence", "--no-report"]


def test_names_survive_yaml_manifest_runs_and_tables(words, capsys):
    _, study = words
    assert list(study.variants) == ["none", "NA", "off", "1", WEIRD]
    assert main(["collect", "--json"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert [r["variant"] for r in records[::3]] == list(study.variants)
    assert {r["state"] for r in records} == {"completed"}
    assert main(["tables", "--table", "hard-main", "--form", "csv"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in study.variants)


def files(folder):
    return {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.rglob("*") if p.is_file()}


def test_a_paper_is_built_checked_and_found_wanting(words, capsys, tmp_path):
    _, study = words
    assert main([*QUICKLY, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["studies"] == ["hard"] and set(said["figures"]) >= {"hard-differences", "hard-loss"}
    assert main(["check", "--no-pdf"]) == 0
    before = files(tmp_path / "paper" / "generated")
    assert main(QUICKLY) == 0 and files(tmp_path / "paper" / "generated") == before
    shutil.rmtree(study.runs()[4].folder(tmp_path / "runs"))
    capsys.readouterr()
    assert main(["check", "--no-pdf", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert "sdtps submit ablations/hard.yaml --variant NA --seed 1" in [f["repair"] for f in found]
    assert main(QUICKLY) == 2
    assert "NA seed 1: not run" in capsys.readouterr().err
    assert main([*QUICKLY, "--allow-missing"]) == 0
    assert "(2/3)" in (tmp_path / "paper/generated/tables/hard-main.md").read_text()
    assert main(["check", "--no-pdf", "--allow-missing"]) == 0
    (tmp_path / "ablations" / "broken.yaml").write_text("study: broken\nsedes: [0]\n")
    capsys.readouterr()
    assert main([*QUICKLY, "hard", "--allow-missing"]) == 0
    err = capsys.readouterr().err
    assert "left out as unreadable:\n" in err and "broken.yaml:2: sedes" in err
    studies = (tmp_path / "paper/generated/tables/studies.md").read_text()
    assert "| broken |  | unreadable | not in this paper |" in studies
    assert main(["check", "--no-pdf", "--allow-missing"]) == 0


def test_a_figure_that_cannot_be_drawn_stops_nothing_else_and_is_told(words, capsys, monkeypatch):
    from analysis.figures import figure

    def broken(*_, **__):
        raise SdtpsError("no pen")

    monkeypatch.setattr(figure, "draw", broken)
    assert main([*QUICKLY, "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    named = [f"figure hard-{name}: no pen" for name in ("differences", "loss")]
    assert said["faults"] == named and "hard-main" in said["tables"]


def test_a_foreign_document_gets_only_what_it_uses(words, capsys, tmp_path):
    other = tmp_path / "mine" / "thesis.tex"
    other.parent.mkdir()
    other.write_text(r"\input{generated/sdtps} \res{hard}{off}{mAP} \input{generated/tables/hard-main}")
    assert main(["paper", "--no-pdf", "--no-evidence", "--main", str(other), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["tables"], said["figures"], said["numbers"]) == (["hard-main"], [], 1)
    macros = (other.parent / "generated" / "sdtps.tex").read_text()
    assert r"\resdef{hard}{off}{mAP}" in macros
    assert main(["check", "--no-pdf", "--main", str(other)]) == 0
