"""sdtps tables: a study's tables in the terminal, or as files of every form."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from analysis import commands


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands.add_study_arguments(parser)
    parser.add_argument("--table", action="append", default=[], metavar="NAME", help="these only")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write .tex .csv .md .html .json")
    parser.add_argument("--form", choices=("csv", "md", "html", "tex"), help="print in this form")
    parser.add_argument("--json", action="store_true", help="print the cells with the runs behind them")


def command(arguments: argparse.Namespace) -> int:
    """Show partial results too: what is missing is in the cells and below the table."""
    from analysis.runs.collect import collect
    from analysis.runs.comparable import KINDS, refuse_to_average
    from analysis.tables import forms
    from analysis.tables.model import as_json, file_name
    from analysis.tables.study import tables

    studies, _ = commands.load(arguments)
    collected = collect(studies, arguments.runs_dir)
    marks = refuse_to_average(collected, allow=KINDS)
    made = [table for study in studies for table in tables(collected, study, marks)]
    # A table is called as its file is, or as the manifest calls it.
    files = {t.name: t.name for t in made}
    files |= {spec.name: file_name(study, spec.name) for study in studies for spec in study.tables}
    asked = [name for name in arguments.table if name not in files]
    commands.choose(asked, list(files), "table")
    names = [files[name] for name in arguments.table] or list(files)
    chosen = [t for t in made if t.name in names]
    if arguments.json:
        print(json.dumps([as_json(t) for t in chosen], indent=1, ensure_ascii=False, allow_nan=False))
        return 0
    console = commands.console()
    for table in chosen:
        if arguments.out:
            for path in forms.write(table, arguments.out):
                console.print(str(path))
        elif arguments.form:
            print(forms.FORMS[arguments.form](table))
        else:
            console.print(forms.to_terminal(table))
    return 0
