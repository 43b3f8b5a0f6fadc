r"""Other people's documents get what they use, and archives compile in an empty folder."""

from __future__ import annotations

import shutil
import subprocess
import zipfile

import pytest
from planted import plant_all, planted_study

from analysis.paper.build import Options, build
from analysis.paper.pdf import PaperError, bundle, compile_pdf, used

NEEDS_LATEX = pytest.mark.skipif(shutil.which("latexmk") is None, reason="latexmk is not installed")
OTHER = r"""
\documentclass{article}
\usepackage{booktabs,graphicx}
\input{generated/sdtps}
\begin{document}
Ours has \res{s}{b}{mAP}\,\% (Table~\ref{tab:s-main}, Figure~\ref{fig:s-loss}).
% \input{generated/tables/no}
\input{text/more}
\input{generated/tables/s-main}
\input{generated/figures/s-loss}
\end{document}
"""


@pytest.fixture
def other(tmp_path):
    """Somebody's document that uses one number, one table and one figure of ours."""
    study = planted_study("s", ["a", "b"])
    plant_all(tmp_path / "runs", study)
    main = tmp_path / "mine" / "thesis.tex"
    (main.parent / "text").mkdir(parents=True)
    main.write_text(OTHER)
    (main.parent / "text" / "more.tex").write_text(r"The first: \res{s}{a}{rank1.best}.")
    options = Options(evidence=False, only=used(main))
    build([study], [], tmp_path / "runs", main.parent / "generated", options)
    return main


def test_our_own_paper_uses_everything(paper_sources, tmp_path):
    assert used(paper_sources(tmp_path / "paper")) is None


def test_a_document_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(PaperError, match="there is no such document"):
        used(tmp_path / "no.tex")


@NEEDS_LATEX
@pytest.mark.latex
def test_an_archive_compiles_in_an_empty_folder_and_names_no_place_of_this_machine(other, tmp_path):
    compile_pdf(other)
    names = bundle(other, tmp_path / "out.zip")
    assert {"thesis.tex", "text/more.tex", "generated/figures/s-loss.pdf"} <= set(names)
    assert {"generated/tables/s-main.json", "generated/index.json"} <= set(names)
    empty = tmp_path / "empty"
    with zipfile.ZipFile(tmp_path / "out.zip") as archive:
        archive.extractall(empty)
        written = {name: archive.read(name) for name in archive.namelist()}
    assert not [n for n, content in written.items() if str(tmp_path).encode() in content]
    (empty / "thesis.pdf").unlink()
    for _ in range(2):
        command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "thesis.tex"]
        done = subprocess.run(command, cwd=empty, capture_output=True, text=True, errors="replace")
        assert done.returncode == 0, done.stdout[-2000:]
    assert "undefined" not in done.stdout
    bundle(other, tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == (tmp_path / "out.zip").read_bytes()


@NEEDS_LATEX
@pytest.mark.latex
def test_a_file_that_names_a_place_of_this_machine_stops_the_archive(other, tmp_path):
    more = other.parent / "text" / "more.tex"
    more.write_text(more.read_text() + f"% {other.parent}")
    compile_pdf(other)
    with pytest.raises(PaperError, match=r"text/more\.tex: names"):
        bundle(other, tmp_path / "out.zip")
    assert not (tmp_path / "out.zip").exists()
