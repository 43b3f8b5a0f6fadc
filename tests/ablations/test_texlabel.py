"""A label that LaTeX would stumble over is told when the manifest is read, not when it is printed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from ablations.texlabel import faults

GOOD = (
    r"Gumbel $\tau = 1$",
    r"Top-K, no\_grad none",
    r"\textbf{ours} (50\,\%)",
    r"$C = 10^{10}$, \{x\}",
    r"$\frac{a_1}{b}$~\& \emph{more}",
    r"$\text{A}_i$ – Müller's \$5",
    r"a \textbackslash{} b",
    r"\ensuremath{\tau_1}",
)
BAD = (
    (r"Gumbel {x", "'{' is never closed"),
    (r"Gumbel x}", "'}' closes nothing"),
    (r"$\tau = 1", "'$' without its partner"),
    (r"{$a}$", "'$' and braces overlap"),
    (r"no_grad", r"write \_, or put it between $ and $"),
    (r"10^10", "outside of mathematics"),
    (r"a & b", r"write \&"),
    (r"$a & b$", r"write \&"),
    (r"50 %", r"write \%"),
    (r"#1", r"write \#"),
    (r"\tau = 1", r"put it between $ and $"),
    (r"\frac{1}{2}", r"put it between $ and $"),
    (r"a \\ b", "cannot stand in a cell"),
    (r"\input{/etc/passwd}", "cannot stand in a cell"),
    (r"\begin{tabular}{c}", "cannot stand in a cell"),
    ("a\n\nb", "one line"),
    ("τ = 1", r"write a command, such as $\tau$"),
    ("a \\", "single backslash"),
    (r"\(x\)", "between $ and $"),
)


@pytest.mark.parametrize("text", GOOD)
def test_what_latex_can_typeset_has_no_fault(text: str) -> None:
    assert faults(text) == []


@pytest.mark.parametrize(("text", "says"), BAD)
def test_what_latex_would_stumble_over_is_told(text: str, says: str) -> None:
    assert any(says in fault for fault in faults(text)), faults(text)


@pytest.mark.latex
def test_latex_itself_takes_every_label_without_a_fault(tmp_path: Path) -> None:
    if shutil.which("pdflatex") is None:
        pytest.skip("no pdflatex here")
    rows = "".join(f"{text} & 1 \\\\\n" for text in GOOD)
    document = (
        "\\documentclass{article}\\usepackage[T1]{fontenc}\\usepackage{amsmath,amssymb}"
        f"\\begin{{document}}\\begin{{tabular}}{{ll}}\n{rows}\\end{{tabular}}\\end{{document}}"
    )
    (tmp_path / "x.tex").write_text(document)
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "x.tex"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-1500:]
