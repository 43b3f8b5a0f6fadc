"""check fails when the paper no longer says what the runs say, names what, and how to repair it."""

from __future__ import annotations

import json
import shutil

import pytest
from planted import OTHER_CODE, plant, plant_all, planted_study

from analysis.paper import parts as evidence
from analysis.paper.build import build
from analysis.paper.check import check
from sdtps.errors import AggregationError


@pytest.fixture(scope="module")
def original(tmp_path_factory, paper_sources):
    root = tmp_path_factory.mktemp("checked")
    study = planted_study("s", ["a", "b"])
    plant_all(root / "runs", study)
    main = paper_sources(root / "paper")
    build([study], [], root / "runs", main.parent / "generated")
    return root, study


@pytest.fixture
def paper(original, tmp_path):
    """A copy that a test may spoil: (main.tex, runs, study)."""
    root, study = original
    shutil.copytree(root, tmp_path, dirs_exist_ok=True)
    return tmp_path / "paper" / "main.tex", tmp_path / "runs", study


def findings(paper, **options):
    main, runs, study = paper
    return check(main, runs, studies=[study], others=[], pdf=False, computed=False, **options)


def test_a_fresh_paper_has_no_findings(paper):
    assert findings(paper) == []


def test_a_killed_seed_is_named_with_the_command_that_gets_it(paper):
    main, runs, study = paper
    shutil.rmtree(study.runs()[1].folder(runs))
    found = findings(paper)
    missing = [f for f in found if f.kind == "missing run"]
    assert [f.where for f in missing] == ["s/a seed 1"]
    assert missing[0].repair == f"sdtps submit ablations/s.yaml --variant a --seed 1 --runs-dir {runs}"
    assert {f.kind for f in found} == {"missing run", "stale"}
    with pytest.raises(AggregationError, match="a seed 1: missing"):
        build([study], [], runs, main.parent / "generated")


def test_a_new_result_makes_files_stale(paper):
    _, runs, study = paper
    shutil.rmtree(study.runs()[0].folder(runs))
    plant(runs, study, "a", 0, scores={"mAP": [0.9], "rank1": [0.9]})
    stale = {f.where.rpartition("/")[2] for f in findings(paper) if f.kind == "stale"}
    assert {"s-main.tex", "s-main.json", "numbers.tex", "s-loss.pdf"} <= stale
    assert "s-variants.csv" not in stale


def test_an_edited_number_is_noticed_and_called_edited(paper):
    table = paper[0].parent / "generated" / "tables" / "s-main.tex"
    text = table.read_text()
    assert "51.0" in text
    table.write_text(text.replace("51.0", "91.0"))
    (only,) = findings(paper)
    assert only.kind == "edited" and only.where == str(table) and "sdtps paper" in only.repair


def test_a_deleted_file_is_noticed(paper):
    (paper[0].parent / "generated" / "figures" / "s-loss.pdf").unlink()
    assert {f.kind for f in findings(paper)} == {"missing file"}


def test_mixed_code_is_noticed(paper):
    _, runs, study = paper
    shutil.rmtree(study.runs()[0].folder(runs))
    plant(runs, study, "a", 0, scores={"mAP": [0.4, 0.5], "rank1": [0.4, 0.5]}, code=OTHER_CODE)
    mixed = [f for f in findings(paper) if f.kind == "mixed code"]
    assert [f.where for f in mixed] == ["s/a seed 0"]
    assert not [f for f in findings(paper, allow={"mixed_code"}) if f.kind == "mixed code"]


def test_a_number_that_is_none_is_found(paper):
    path = paper[0].parent / "generated" / "numbers.json"
    data = json.loads(path.read_text())
    data["s/a/mAP"]["seeds"]["0"] = float("nan")
    path.write_text(json.dumps(data, indent=1))
    assert "not finite" in {f.kind for f in findings(paper)}


def test_a_changed_manifest_is_noticed(paper):
    main, runs, _ = paper
    changed = planted_study("s", ["a", "b"], title="another title", digest="f" * 16)
    kinds = {f.kind for f in check(main, runs, studies=[changed], others=[], pdf=False, computed=False)}
    assert kinds == {"stale"}


def test_a_paper_that_was_never_built_says_so(tmp_path, paper_sources):
    main = paper_sources(tmp_path / "paper")
    (only,) = check(main, tmp_path / "runs", studies=[], others=[])
    assert only.kind == "missing file" and "never built" in only.text


def test_evidence_is_made_once_and_noticed_when_stale_or_edited(tmp_path):
    made = []

    def make(folder):
        made.append("claims")
        (folder / "claims.tex").write_text("verdicts")
        return [folder / "claims.tex"]

    part = evidence.Part("claims", "key1", make)
    evidence.update(tmp_path, [part], lambda _: None)
    evidence.update(tmp_path, [part], lambda _: None)
    assert made == ["claims"] and evidence.faults(tmp_path, [part]) == []
    assert evidence.kept(tmp_path) == {tmp_path / "claims.tex"}
    changed = evidence.Part("claims", "key2", make)
    assert [f[0] for f in evidence.faults(tmp_path, [changed])] == ["stale"]
    (tmp_path / "claims.tex").write_text("better verdicts")
    assert [f[0] for f in evidence.faults(tmp_path, [part])] == ["edited"]
    evidence.update(tmp_path, [part], lambda _: None)
    assert made == ["claims", "claims"]
    (tmp_path / "claims.tex").unlink()
    assert [f[0] for f in evidence.faults(tmp_path, [part])] == ["missing file"]


def test_what_evidence_depends_on_changes_its_key(tmp_path):
    study = planted_study("s", ["a"], seeds=(0,))
    ledger = tmp_path / "claims.yaml"
    ledger.write_text("claims: []")
    (tmp_path / "ablations").mkdir()
    (tmp_path / "ablations" / "s.yaml").write_text("study: s")

    def keys():
        options = {"ledger": ledger, "studies_dir": tmp_path / "ablations"}
        return {p.name: p.key for p in evidence.parts([study], tmp_path / "runs", **options)}

    before = keys()
    assert set(before) == {"audit s", "claims"} and keys() == before
    plant(tmp_path / "runs", study, "a", 0)
    after = keys()
    assert after["claims"] != before["claims"] and after["audit s"] == before["audit s"]
