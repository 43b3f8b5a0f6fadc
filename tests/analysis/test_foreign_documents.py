r"""Tables and figures compile in anyone's paper with booktabs and graphicx, and nothing of ours."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from planted import plant, planted_study

from ablations.study.labels import MATH, TEXT, unprintable
from ablations.study.schema import FigureSpec, MetricSpec, TableSpec
from analysis.figures.figure import draw, write
from analysis.runs.collect import collect
from analysis.tables import forms
from analysis.tables.latex import ROWS_ON_A_PAGE, escape
from analysis.tables.model import Column, Row, Table, text
from analysis.tables.reported import reported_tables
from analysis.tables.study import tables

pytestmark = pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex here")

TIMES = r"\usepackage{times}"
CVPR = (
    r"\textwidth=6.875in \textheight=8.875in \columnsep=0.3125in \parindent=1pc "
    r"\oddsidemargin=-0.1875in \topmargin=0pt \headheight=0pt \headsep=0pt"
)
# How papers begin. CVPR's style file is in no package: these are its geometry and fonts.
DOCUMENTS = {
    "article": r"\documentclass{article}",
    "T1 and Times": rf"\documentclass[12pt]{{report}}\usepackage[T1]{{fontenc}}{TIMES}",
    "CVPR": rf"\documentclass[10pt,twocolumn,letterpaper]{{article}}{TIMES}{CVPR}",
    "IEEEtran": r"\documentclass[conference]{IEEEtran}",
    "acmart": r"\documentclass[sigconf,nonacm]{acmart}",
    "beamer": r"\documentclass{beamer}",
}


def compiled(tmp_path, begin, bodies):
    """The log of a document with these tables and figures; it has to compile."""
    if "beamer" in begin:
        bodies = [rf"\begin{{frame}}[allowframebreaks]{body}\end{{frame}}" for body in bodies]
    head = r"\title{T}\author{A}\maketitle" if "acmart" in begin else "Text."
    packages = r"\usepackage{booktabs,graphicx}"
    source = "\n".join([begin, packages, r"\begin{document}", head, *bodies, r"\end{document}"])
    (tmp_path / "d.tex").write_text(source)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "d.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    return (tmp_path / "d.log").read_text(errors="replace")


@pytest.fixture(scope="module")
def figure(hard):
    study, collected, _ = hard
    return draw(collected, study, FigureSpec(name="f"), venue="cvpr", endings=("pdf",))


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_table_compiles_with_booktabs_and_every_figure_with_graphicx(
    tmp_path, hard, figure, name
):
    if name in ("IEEEtran", "acmart"):
        class_file = subprocess.run(["kpsewhich", f"{name}.cls"], capture_output=True, check=False)
        if class_file.returncode:
            pytest.skip(f"{name} is not installed (see .ci/packages)")
    more = reported_tables() if name == "article" else []
    bodies = [forms.to_latex(table) for table in (*hard[2].values(), *more)]
    write(figure, tmp_path / "generated" / "figures")
    log = compiled(tmp_path, DOCUMENTS[name], [*bodies, r"\input{generated/figures/hard-f}"])
    assert "Undefined control sequence" not in log and "Missing character" not in log
    if name != "T1 and Times":  # of larger type
        assert too_wide(log) < 1.0, log


def too_wide(log):
    """Points by which the widest line of a document leaves the text."""
    found = re.findall(r"Overfull \\hbox \(([\d.]+)pt too wide\)", log)
    return max(map(float, found), default=0.0)


def test_rows_that_begin_like_an_argument_keep_their_beginning(tmp_path):
    names = ["[0.5em] x", "*starred", "[CLS] only", "plain"]
    columns = (Column("a", "[head]", align="l"), Column("b", "n"))
    rows = tuple(Row(name, (text(name), text("1"))) for name in names)
    body = forms.to_latex(Table("t", "s", "T", columns, rows, caption=("C.",)))
    compiled(tmp_path, DOCUMENTS["article"], [body])
    read = subprocess.run(
        ["pdftotext", "-layout", "d.pdf", "-"], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    for name in (*names, "[head]"):
        assert name in read, (name, read)


def test_a_long_table_is_set_on_several_pages_and_a_wide_one_in_two_parts(tmp_path):
    study = planted_study(
        "s",
        [f"a variant with a long name, number {i}" for i in range(ROWS_ON_A_PAGE + 5)],
        seeds=(0,),
        metrics={f"metric {i}": MetricSpec(direction="up", digits=2) for i in range(5)},
        tables=(TableSpec(name="t"),),
    )
    for variant in study.variants:
        scores = {name: [0.5] for name in study.metrics}
        plant(tmp_path / "runs", study, variant, 0, scores=scores)
    table = tables(collect([study], tmp_path / "runs"), study)[0]
    body = forms.to_latex(table)
    assert body.count(r"\begin{table*}}[htbp]") >= 2 and body.count(r"\begin{tabular}") >= 4
    log = compiled(tmp_path, DOCUMENTS["article"], [body])
    assert too_wide(log) < 1.0, log


def test_heads_are_set_on_as_few_lines_as_make_the_table_fit():
    def heads(*labels, cell="90.2"):
        columns = (Column("a", "Variant", align="l"), *(Column(name, name) for name in labels))
        row = Row("r", (text("a name of twenty-two"), *(text(cell) for _ in labels)))
        body = forms.to_latex(Table("t", "s", "T", columns, (row,), caption=("C.",)))
        return re.findall(r"\\begin\{tabular\}\[b\]\{@\{\}c@\{\}\}(.*?)\\end\{tabular\}", body)

    assert heads("Time", "Per finished run") == []
    assert heads(*["Time for each finished run"] * 4) == [r"Time for each\\finished run"] * 4
    assert heads(*["Variants × seeds of it"] * 7)[0].startswith("Variants~$\\times$") is False
    assert "Variants~\\ensuremath{\\times}~seeds" in heads(*["Variants × seeds of it"] * 5)[0]


def test_a_table_fits_the_page_of_its_venue():
    """Eight columns of numbers stand side by side only where the page is wide."""
    columns = (
        Column("a", "Variant", align="l"),
        *(Column(f"m{i}", f"metric {i}", direction="up") for i in range(8)),
    )
    row = Row("r", (text("a name of twenty-two"), *(text("81.3 ± 0.5") for _ in range(8))))
    table = Table("t", "s", "T", columns, (row,), caption=("C.",))
    found = {name: forms.to_latex(table, name) for name in ("any", "iclr", "ieee")}
    counts = {name: body.count(r"\begin{tabular}{@{}l") for name, body in found.items()}
    assert counts == {"any": 2, "iclr": 2, "ieee": 1}
    spanning = [name for name, body in found.items() if r"\begin{table*}}[htbp]" in body]
    assert spanning == ["any", "ieee"]  # iclr has one column


def test_every_character_that_a_label_may_have_is_set(tmp_path):
    letters = "ÀÉÎõüçñåšžČŁøæßœ"
    every = "".join([*TEXT, *MATH, letters])
    assert unprintable(every) == []
    body = "\n\n".join(escape(char) for char in every)
    log = compiled(tmp_path, DOCUMENTS["article"], [body])
    assert "Missing character" not in log


def test_a_character_that_no_font_has_is_named():
    assert unprintable("基线 τ") == ["基 (U+57FA)", "线 (U+7EBF)"]
    assert unprintable("plain, τ ≥ 2 × é") == []
