"""python -m analysis VERB: from runs to numbers, figures and the paper."""

from __future__ import annotations

import sys
from collections.abc import Sequence

VERBS = {
    "collect": (
        "analysis.runs.collect",
        "list every run of a study with its state and results",
        "results",
    ),
    "tables": ("analysis.tables.verb", "print a study's tables, or write them as files", "results"),
    "curves": ("analysis.figures.verb", "draw a study's figures as PDF, SVG and PNG", "results"),
    "compare": (
        "analysis.questions.compare",
        "compare two variants: differences, intervals, tests",
        "results",
    ),
    "attribute": (
        "analysis.questions.attribute",
        "say which of the changes between two variants did it",
        "results",
    ),
    "seeds": (
        "analysis.questions.seeds",
        "say how many seeds settle each difference, and where seeds cannot help",
        "results",
    ),
    "reproduce": (
        "analysis.questions.reproduce",
        "set each reported number beside ours, with a verdict and what differs",
        "results",
    ),
    "rounds": (
        "analysis.questions.rounds",
        "show what is decided of a study in rounds, and which seeds come next",
        "results",
    ),
    "explain": ("analysis.paper.explain", "trace a cell, number or figure back to its runs", "results"),
    "patches": (
        "analysis.figures.patches",
        "draw the patches that runs kept, dropped and aggregated",
        "results",
    ),
    "import": ("analysis.importers.verb", "turn other people's logs into run folders", "results"),
    "report": ("analysis.report.verb", "write one self-contained report.html", "paper"),
    "claims": ("analysis.claims.verb", "compute the verdicts of the claims ledger", "paper"),
    "paper": ("analysis.paper.verb", "build tables, figures, numbers and the PDF", "paper"),
    "check": (
        "analysis.paper.check",
        "fail when anything in the paper is stale, missing, mixed or edited",
        "paper",
    ),
}


def main(words: Sequence[str] | None = None) -> int:
    from sdtps.system import commandline

    return commandline.run("python -m analysis", VERBS, "From runs to a paper.", words)


if __name__ == "__main__":
    sys.exit(main())
