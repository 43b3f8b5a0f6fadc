"""The verb `tables`: a study's tables in the terminal, or as files."""

from __future__ import annotations

import argparse
from pathlib import Path

from analysis import verbs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs.add_study_arguments(parser)
    parser.add_argument(
        "--table", action="append", default=[], metavar="NAME", help="this table only; may be repeated"
    )
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write .tex .csv .md .html .json")
    verbs.add_venue(parser, "whose page the LaTeX form fits", "any")
    parser.add_argument("--form", choices=("csv", "md", "html", "tex"), help="print in this format")
    parser.add_argument("--json", action="store_true", help="print the cells with the runs behind them")
    verbs.add_allowances(parser, *verbs.CONTENTS)


def command(arguments: argparse.Namespace) -> int:
    """Show partial results too: what is missing is in the cells and below the table.

    Returns 1 where finished runs did not log a metric.

    Raises AggregationError where runs of other data or weights would be averaged.
    """
    from analysis.runs.collect import collect
    from analysis.tables import forms
    from analysis.tables.model import as_json, file_name
    from analysis.tables.study import tables

    studies = verbs.load(arguments)
    collected = collect(studies, arguments.runs_dir)
    marks = verbs.tell_mixed(collected, arguments.allow)
    made = [table for study in studies for table in tables(collected, study, marks)]
    # A table is called as its file is, or as the manifest calls it.
    files = {t.name: t.name for t in made}
    files |= {spec.name: file_name(study, spec.name) for study in studies for spec in study.tables}
    asked = [name for name in arguments.table if name not in files]
    verbs.choose(asked, list(files), "table")
    names = [files[name] for name in arguments.table] or list(files)
    chosen = [t for t in made if t.name in names]
    code = verbs.tell_unlogged(collected)
    if arguments.json:
        verbs.print_json([as_json(t) for t in chosen])
        return code
    console = verbs.console()
    for table in chosen:
        if arguments.out:
            for path in forms.write(table, arguments.out, arguments.venue):
                console.print(str(path))
        elif arguments.form:
            print(forms.FORMS[arguments.form](table))
        else:
            console.print(forms.to_terminal(table))
    return code
