"""The compiled paper prints every name and number right, and the same bytes each time."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path

import pytest
from planted import WEIRD, sketched
from pypdf import PdfReader

from analysis.cli import main as analysis
from analysis.paper.pdf import PaperError, compile_pdf, complaints, is_current

pytestmark = pytest.mark.latex
STUDY = Path(__file__).resolve().parents[2] / "ablations" / "nograd.yaml"
if shutil.which("latexmk") is None or shutil.which("pdflatex") is None:
    pytest.skip("latexmk or pdflatex is not installed", allow_module_level=True)


@pytest.fixture(scope="module")
def compiled(hard_paper):
    main, study, runs = hard_paper
    return compile_pdf(main), main, study, runs


@pytest.fixture(scope="module")
def text(compiled):
    pages = [page.extract_text() for page in PdfReader(compiled[0]).pages]
    return re.sub(r"\s+", "", "".join(pages))


def test_latex_complains_about_nothing(compiled):
    assert complaints(compiled[1].with_suffix(".log")) == []


def test_every_work_that_is_named_is_cited():
    paper = STUDY.parents[1] / "paper"
    source = "".join(file.read_text() for file in sorted((paper / "sections").glob("*.tex")))
    entries = re.findall(r"^@\w+\{(\w+),", (paper / "references.bib").read_text(), re.MULTILINE)
    assert sorted(entries) == sorted(set(re.findall(r"\\cite\{(\w+)\}", source)))
    with (paper / "reported" / "third_party.csv").open() as rows:
        named = {row["method"] for row in csv.DictReader(rows)}
    assert [name for name in named if rf"{name}~\cite{{" not in source] == []


def test_the_worst_name_reads_back(text):
    # Text extraction gives TeX's tilde and circumflex accents as other characters of the same look.
    pattern = re.escape("w/o_msa&5%#1{x}") + "." + "." + re.escape("\\")
    assert re.search(pattern, text), WEIRD


def test_names_cells_captions_and_gaps_are_printed_in_words(text):
    plain = text.replace("\u00ad", "").replace("-", "")
    expected = (
        *("none", "NA", "off", "all_diverged", "w/oL"),
        *("81.4±0.2", "90.0±0.0(2/3)", "95.0(1/3)", "div.(ep.1–3)", "OOM", "−10.4±2.0", "1.26±0.01"),
        "Mean ± sample standard deviation (ddof 1) over the finished ones of 3 seeds",
        "22 of 27 planned runs have ended.",
        "1: seed 2 diverged at epoch 2 (step 8).",
        "The study flickr_mini was not run.",
    )
    assert [said for said in expected if re.sub(r"[\s-]", "", said) not in plain] == []
    assert "??" not in text and not re.search(r"(?<![a-zA-Z])(nan|inf)(?![a-zA-Z])", text)


def test_numbers_of_the_text_are_those_of_the_json(compiled, text):
    numbers = json.loads((compiled[1].parent / "generated" / "numbers.json").read_text())
    said = numbers["hard/*/completed"]["text"], numbers["hard/*/diverged"]["text"]
    assert f"{said[0]}completed,{said[1]}diverged" in text


def test_no_font_is_a_bitmap(compiled):
    assert b"/Type3" not in compiled[0].read_bytes()


def test_an_old_pdf_is_noticed(compiled, tmp_path):
    shutil.copytree(compiled[1].parent, tmp_path / "paper")
    main = tmp_path / "paper" / "main.tex"
    assert is_current(main)
    section = main.parent / "sections" / "leak.tex"
    section.write_text(section.read_text() + "% more\n")
    assert not is_current(main)


def test_what_was_not_there_before_is_printed_in_the_same_bytes_as_at_once(compiled, tmp_path):
    shutil.copytree(compiled[1].parent, tmp_path / "paper", ignore=shutil.ignore_patterns("main.[!t]*"))
    main, generated = tmp_path / "paper" / "main.tex", tmp_path / "paper" / "generated"
    generated.rename(tmp_path / "kept")
    generated.mkdir()
    few = len(PdfReader(compile_pdf(main)).pages)
    shutil.rmtree(generated)
    (tmp_path / "kept").rename(generated)
    assert len(PdfReader(compile_pdf(main)).pages) > few
    assert is_current(main) and main.with_suffix(".pdf").read_bytes() == compiled[0].read_bytes()


def test_an_error_is_quoted_with_its_place(compiled, tmp_path):
    shutil.copytree(compiled[1].parent, tmp_path / "paper")
    section = tmp_path / "paper" / "sections" / "leak.tex"
    section.write_text(section.read_text() + "\\res{hard}{none}{nothing}\n")
    with pytest.raises(PaperError, match="No number hard/none/nothing"):
        compile_pdf(tmp_path / "paper" / "main.tex")


def test_a_build_elsewhere_says_that_it_makes_no_pdf(compiled, tmp_path, capsys):
    pdf, main, _, _ = compiled
    written = pdf.read_bytes()
    shown = ["paper", str(STUDY), "--runs-dir", str(tmp_path / "runs"), "--main", str(main)]
    allowed = ["--allow-missing", "--no-evidence", "--no-report"]
    with sketched():
        assert analysis([*shown, *allowed, "--out", str(tmp_path / "out")]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert f"no PDF: {main} reads {main.parent / 'generated'}, not {tmp_path / 'out'}" in printed
    assert (tmp_path / "out" / "numbers.tex").exists()
    assert pdf.read_bytes() == written


def test_tables_and_figures_stand_on_the_page_of_their_text_or_the_next(compiled):
    pages = [" ".join(page.extract_text().split()) for page in PdfReader(compiled[0]).pages]
    checked = 0
    for word in ("Table", "Figure"):
        for page, text in enumerate(pages):
            for number in map(int, re.findall(rf"{word} (\d+):", text)):
                mention = rf"{word}s? (?:\d+(?:, | and ))*{number}(?! ?:)(?:\D|$)"
                first = next(p for p, other in enumerate(pages) if re.search(mention, other))
                assert page - first in (0, 1), f"{word} {number}: text on {first + 1}, it on {page + 1}"
                checked += 1
    assert checked >= 8
