"""check fails when the paper no longer says what the runs say, names what, and how to repair it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
from planted import OTHER_CODE, plant, planted_study, sketched

from analysis.paper import pdf
from analysis.paper.build import Options, build
from analysis.paper.check import check
from sdtps.run.folder import RunFolder
from sdtps.system.errors import AggregationError

OPTIONS = Options(evidence=False)
RECORDS = ("config.yaml", "run.json", "metrics.jsonl", "result.json")
LEDGER = """
claims:
  - id: 1
    claim: b ends above a.
    source: nobody
    kind: training
    runs: [{study: s, statements: [{says: above, value: mAP, of: b, relation: above, than: a}]}]
"""


@pytest.fixture(scope="module")
def original(tmp_path_factory, paper_sources):
    root = tmp_path_factory.mktemp("checked")
    study = planted_study("s", ["a", "b"])
    for seed in study.seeds:
        for number, name in enumerate(study.variants):
            # Seeds spread a little more in b, so that an interval can decide.
            level = 0.5 + 0.03 * number + 0.01 * seed * (1 + 0.1 * number)
            scores = {"mAP": [level - 0.1, level], "rank1": [level - 0.1, level]}
            plant(root / "runs", study, name, seed, scores=scores)
    main = paper_sources(root / "paper")
    (root / "paper" / "claims.yaml").write_text(LEDGER)
    with sketched():
        build([study], [], root / "runs", main.parent / "generated", OPTIONS)
        yield root, study


@pytest.fixture
def paper(original, tmp_path):
    """A copy that a test may spoil: (main.tex, runs, study)."""
    root, study = original
    shutil.copytree(root, tmp_path, dirs_exist_ok=True)
    return tmp_path / "paper" / "main.tex", tmp_path / "runs", study


def findings(paper, **options):
    main, runs, study = paper
    return check(main, runs, studies=[study], others=[], pdf=False, **options)


def test_a_killed_seed_is_named_with_the_command_that_gets_it(paper):
    main, runs, study = paper
    shutil.rmtree(study.runs()[1].folder(runs))
    found = findings(paper)
    missing = [f for f in found if f.kind == "missing run"]
    assert [f.where for f in missing] == ["s/a seed 1"]
    assert missing[0].repair == f"sdtps submit ablations/s.yaml --variant a --seed 1 --runs-dir {runs}"
    assert {f.kind for f in found} == {"missing run", "stale"}
    with pytest.raises(AggregationError, match="a seed 1: not run"):
        build([study], [], runs, main.parent / "generated")


def test_the_command_that_builds_again_names_manifests_that_the_folder_does_not_know(
    paper, tmp_path, monkeypatch
):
    main, _, study = paper
    (main.parent / "generated" / "numbers.tex").unlink()
    monkeypatch.chdir(tmp_path)
    (gone,) = (f for f in findings(paper) if f.kind == "missing file")
    assert gone.repair.startswith(f"sdtps paper {study.path} --main")
    (tmp_path / "ablations").mkdir()
    (tmp_path / study.path).write_text("study: s")
    (gone,) = (f for f in findings(paper) if f.kind == "missing file")
    assert gone.repair.startswith("sdtps paper --main")


def test_a_new_result_makes_files_stale(paper):
    _, runs, study = paper
    shutil.rmtree(study.runs()[0].folder(runs))
    plant(runs, study, "a", 0, scores={"mAP": [0.9], "rank1": [0.9]})
    (only,) = findings(paper)
    stale = {name.rpartition("/")[2] for name in only.files}
    assert {"s-main.tex", "s-main.json", "numbers.tex", "s-loss.pdf"} <= stale
    assert "s-variants.csv" not in stale
    assert only.kind == "stale" and f"{len(only.files)} files" in only.text


def change_digit(path):
    """The last digit of a file, and no other byte."""
    content = bytearray(path.read_bytes())
    place = max(n for n, byte in enumerate(content) if byte in b"0123456789")
    content[place] = ord("0") + (content[place] - ord("0") + 1) % 10
    path.write_bytes(content)


def test_a_digit_changed_in_any_generated_file_is_named(paper):
    folder = paper[0].parent / "generated"
    files = {str(p.relative_to(folder)): p for p in folder.rglob("*.*") if p.name != "index.json"}
    assert len(files) > 15 and {"report.html", "numbers.tex", "figures/s-loss.pdf"} <= set(files)
    for path in files.values():
        change_digit(path)
    edited = [f for f in findings(paper) if f.kind == "edited"]
    assert {name for f in edited for name in f.files} == set(files)
    change_digit(folder / "index.json")
    (only,) = findings(paper)
    assert (only.kind, only.files) == ("edited", ("index.json",)) and "sdtps paper" in only.repair


def test_mixed_code_is_noticed(paper):
    _, runs, study = paper
    shutil.rmtree(study.runs()[0].folder(runs))
    plant(runs, study, "a", 0, scores={"mAP": [0.4, 0.5], "rank1": [0.4, 0.5]}, code=OTHER_CODE)
    mixed = [f for f in findings(paper) if f.kind == "mixed code"]
    assert [f.where for f in mixed] == ["s/a seed 0"]
    assert not [f for f in findings(paper, allow={"mixed_code"}) if f.kind == "mixed code"]


@pytest.mark.parametrize("name", ["s", "t"])
def test_a_changed_manifest_is_noticed_also_of_a_study_that_was_not_run(paper, name):
    main, runs, study = paper
    both = [study, planted_study("t", ["a"])]
    build([study], both[1:], runs, main.parent / "generated", OPTIONS)
    one = {"digest": "f" * 16, **({"title": "another title"} if name == "s" else {})}
    both = [planted_study(s.name, list(s.variants), **one) if s.name == name else s for s in both]
    found = check(main, runs, studies=both[:1], others=both[1:], pdf=False)
    assert {f.kind for f in found} == {"stale"} and (name == "s" or str(both[1].path) == found[0].where)


def test_a_digit_changed_in_the_record_of_the_pdf_is_named(paper, monkeypatch):
    main, runs, study = paper

    def compiled(document):
        pdf.record(document).write_text('{"latex": "pdfTeX 3.14", "pdf": "0123"}')
        document.with_suffix(".pdf").write_bytes(b"%PDF-1.5")
        return document.with_suffix(".pdf")

    monkeypatch.setattr(pdf, "compile_pdf", compiled)
    compiled(main)
    assert check(main, runs, studies=[study], others=[]) == []
    change_digit(pdf.record(main))
    (only,) = check(main, runs, studies=[study], others=[])
    assert (only.kind, only.where) == ("edited", str(pdf.record(main)))
    main.with_suffix(".pdf").write_bytes(b"%PDF-1.4")
    pdf.record(main).write_text("{")
    (only,) = check(main, runs, studies=[study], others=[])
    assert only.kind == "pdf" and "made with None (here pdfTeX 3.14)" in only.text


def test_a_paper_that_was_never_built_says_so(tmp_path, paper_sources):
    main = paper_sources(tmp_path / "paper")
    (only,) = check(main, tmp_path / "runs", studies=[], others=[])
    assert only.kind == "missing file" and "never built" in only.text


# -- somebody edits something -------------------------------------------------------------------


@pytest.mark.parametrize("names", [RECORDS[:3], [*RECORDS[3:], "evaluations.jsonl", "status.json"]])
def test_a_digit_changed_in_a_run_that_ended_is_named_also_after_a_rebuild(paper, names):
    main, runs, study = paper
    folders = dict(zip(names, (run.folder(runs) for run in study.runs()[1:4]), strict=True))
    if "status.json" in folders:  # of a run that diverged
        RunFolder(folders["evaluations.jsonl"]).append_evaluation({"condition": "night"})
        shutil.rmtree(folders["status.json"])
        plant(runs, study, "b", 0, state="diverged", stop=(1, 4)).end_attempt("diverged", 512.0)
        build([study], [], runs, main.parent / "generated", OPTIONS)
    for name, folder in folders.items():
        change_digit(folder / name)
    named = [f for f in findings(paper) if f.kind == "damaged run"]
    assert [f.where for f in named] == ["s/a seed 1", "s/a seed 2", "s/b seed 0"]
    for found, (name, folder) in zip(named, folders.items(), strict=True):
        assert name in found.text and str(folder) in found.repair
    build([study], [], runs, main.parent / "generated", replace(OPTIONS, allow=("damaged",)))
    assert [f.kind for f in findings(paper)] == ["damaged run"] * 3
    assert findings(paper, allow={"damaged"}) == []
    assert "(1/3)" in (main.parent / "generated" / "tables" / "s-main.md").read_text()


def test_other_libraries_are_named_beside_what_differs(paper, monkeypatch):
    from analysis.figures import figure
    from analysis.paper import build as building

    main, runs, study = paper
    draw, here = figure.try_to_draw, building.made_with()

    def drawn_otherwise(*arguments):
        drawn = draw(*arguments)
        return replace(drawn, files={**drawn.files, "pdf": drawn.files["pdf"] + b"\n"})

    with monkeypatch.context() as then:
        then.setattr(figure, "try_to_draw", drawn_otherwise)
        then.setattr(building, "made_with", lambda: {**here, "matplotlib": "3.0"})
        build([study], [], runs, main.parent / "generated", OPTIONS)
    (only,) = findings(paper)
    assert only.kind == "stale" and f"made with matplotlib 3.0 (here {here['matplotlib']})" in only.text
    assert only.files == ("figures/s-differences.pdf", "figures/s-loss.pdf")


def test_a_flipped_verdict_is_told_with_the_claims_number(tmp_path, original, paper_sources):
    root, study = original
    shutil.copytree(root / "runs", tmp_path / "runs")
    main = paper_sources(tmp_path / "paper")
    (main.parent / "claims.yaml").write_text(LEDGER)
    # Without the audit, which needs the model.
    options = Options(only=("nothing",))
    build([study], [], tmp_path / "runs", main.parent / "generated", options)
    claims = json.loads((main.parent / "generated" / "claims.json").read_text())
    assert claims["claims"][0]["verdict"] == "supported"
    for seed in study.seeds:
        spec = next(r for r in study.runs() if (r.variant, r.seed) == ("b", seed))
        shutil.rmtree(spec.folder(tmp_path / "runs"))
        plant(tmp_path / "runs", study, "b", seed, scores={"mAP": [0.1 + seed / 90], "rank1": [0.1]})
    found = findings((main, tmp_path / "runs", study))
    flipped = [f for f in found if f.kind == "verdict"]
    assert [f.where for f in flipped] == ["claim 1"]
    assert "the paper says supported, the test now says refuted" in flipped[0].text
