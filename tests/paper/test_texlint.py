"""The LaTeX lint finds planted faults and nothing in what is built."""

from __future__ import annotations

import pytest

from analysis.paper.texlint import lint, lint_text

GOOD = r"""
Text with 5\,\% and $x_i^2$ and \res{a}{b_c}{mAP} \ref{tab:x_y}. % a comment with & _ # {
\begin{tabular}{l>{\raggedright\arraybackslash}p{0.2\linewidth}r}
\toprule
a\_b & \multicolumn{2}{c}{x \& y} \\
\cmidrule(lr){2-3}
a & b & c \\
\bottomrule
\end{tabular}
"""


def test_clean_text_has_no_faults():
    assert lint_text(GOOD.replace("% a comment with & _ # {", ""), "x.tex") == []


@pytest.mark.parametrize(
    ("wrong", "right", "fault"),
    [
        ("a & b & c", "a & b", "2 cells in a row of 3 columns"),
        ("a & b & c", "a & b & c & d", "4 cells in a row of 3 columns"),
        (r"a\_b", "a_b", "bare '_'"),
        (r"x \& y", "x & y", "cells in a row"),
        ("Text with", "Text & with", "bare '&' outside of a table"),
        ("Text with", "Text #1 with", "bare '#'"),
        (r"\bottomrule", r"\bottomrule}", "closes nothing"),
        (r"\bottomrule", r"{\bottomrule", "never closed"),
        (r"\end{tabular}", r"\end{tabularx}", "does not match"),
        ("a & b & c", "a & nan & c", "'nan' is printed"),
        ("a & b & c", "a & -inf & c", "is printed"),
        ("a & b & c", "a & None & c", "'None' is printed"),
        ("Text with", "Table ?? with", "'??' is printed"),
        ("$x_i^2$", "$x_i^2", "'$' without its partner"),
    ],
)
def test_each_fault_is_found(wrong, right, fault):
    text = GOOD.replace("% a comment with & _ # {", "").replace(wrong, right)
    found = [str(f) for f in lint_text(text, "x.tex")]
    assert any(fault in f for f in found), found


def test_the_built_paper_has_no_faults(hard_paper):
    assert [str(f) for f in lint(hard_paper[0])] == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (r"\input{sections/nowhere}", "which does not exist"),
        (r"\includegraphics{\generated/figures/nowhere.pdf}", "which does not exist"),
        (r"See \ref{tab:nowhere}.", "no label 'tab:nowhere'"),
        (r"\section{Twice}\label{sec:method}", "too"),
        (r"\begin{subequations}x", "never ended"),
    ],
)
def test_faults_between_files_are_found(hard_paper, tmp_path, text, fault):
    import shutil

    shutil.copytree(hard_paper[0].parent, tmp_path / "paper")
    main = tmp_path / "paper" / "main.tex"
    section = main.parent / "sections" / "results.tex"
    section.write_text(section.read_text() + text)
    found = [str(f) for f in lint(main)]
    assert any(fault in f for f in found), found


def test_a_guarded_input_may_be_absent(tmp_path):
    main = tmp_path / "main.tex"
    main.write_text(r"\begin{document}\IfFileExists{x.tex}{\input{x}}{nothing}\end{document}")
    assert lint(main) == []


def test_packages_must_be_loaded(tmp_path):
    main = tmp_path / "main.tex"
    main.write_text(r"\begin{document}\begin{tabular}{l}\toprule a \\ \end{tabular}\end{document}")
    assert [f.text for f in lint(main)] == [r"\toprule needs booktabs"]
