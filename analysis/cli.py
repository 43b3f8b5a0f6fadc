"""python -m analysis VERB: from runs to numbers, figures and the paper."""

from __future__ import annotations

import sys
from collections.abc import Sequence

VERBS = {
    "collect": (
        "analysis.tables.command:collect",
        "every run of a study and what became of it",
        "results",
    ),
    "tables": ("analysis.tables.command", "tables of a study, in the terminal or as files", "results"),
    "curves": ("analysis.figures.command", "figures of a study as PDF, SVG and PNG", "results"),
    "compare": (
        "analysis.tables.command:compare",
        "what the seeds can say about two variants",
        "results",
    ),
    "explain": ("analysis.paper.explain", "from a cell, number or figure to its runs", "results"),
    "patches": (
        "analysis.figures.patches",
        "pictures of the patches that runs kept, dropped and aggregated",
        "results",
    ),
    "import": ("analysis.importers.command", "other people's logs into run folders", "results"),
    "export": ("analysis.paper.export", "runs to TensorBoard or CSV", "results"),
    "audit-table": (
        "analysis.tables.command:audit",
        "a gradient audit that `sdtps audit --json` wrote, as a table",
        "results",
    ),
    "report": ("analysis.report.command", "one self-contained report.html", "paper"),
    "claims": ("analysis.claims.command", "the verdicts of the claims ledger", "paper"),
    "paper": ("analysis.paper.command", "tables, figures, numbers, and the PDF", "paper"),
    "check": (
        "analysis.paper.check",
        "fail when anything in the paper is stale, missing, mixed or edited",
        "paper",
    ),
}


def main(words: Sequence[str] | None = None) -> int:
    from sdtps import commandline

    return commandline.run("python -m analysis", VERBS, "From runs to a paper.", words)


if __name__ == "__main__":
    sys.exit(main())
