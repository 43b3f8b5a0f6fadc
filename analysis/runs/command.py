"""sdtps collect: every run of a study and what became of it."""

from __future__ import annotations

import argparse
import json

from analysis import commands


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands.add_study_arguments(parser)
    parser.add_argument("--json", action="store_true", help="all columns, one JSON object a run")
    parser.add_argument("--csv", metavar="FILE", help="write all columns as CSV")


def command(arguments: argparse.Namespace) -> int:
    """Print the runs; what must not be averaged is printed below, and nothing fails because of it."""
    from rich.table import Table

    from analysis.runs.collect import collect, runs_as_json
    from analysis.runs.comparable import KINDS, refuse_to_average
    from sdtps.errors import counted

    studies, _ = commands.load(arguments)
    collected = collect(studies, arguments.runs_dir)
    if arguments.csv:
        collected.runs.to_csv(arguments.csv, index=False)
    if arguments.json:
        for record in runs_as_json(collected):
            print(json.dumps(record, ensure_ascii=False))
        return 0
    console = commands.console()
    for study in studies:
        runs = collected.runs_of(study.name)
        metrics = [f"{epoch}/{name}" for name in study.metrics for epoch in ("best", "final")]
        metrics = [name for name in metrics if name in runs.columns]
        shown = Table(title=f"{study.name}: {counted(len(runs), 'run')}")
        for head in ("variant", "seed", "state", "epoch", *metrics, "code", "notes"):
            shown.add_column(head, overflow="fold")
        for run in runs.to_dict("records"):
            numbers = ["" if run[m] != run[m] else f"{run[m]:.4f}" for m in metrics]
            code = str(run["code"] or "")[:8] + ("+" if run["dirty"] else "")
            words = [str(run["variant"]), str(run["seed"]), run["state"], _text(run["epoch"])]
            notes = "; ".join(filter(None, (run["reason"], run["notes"])))
            cells = [*words, *numbers, code, notes]
            shown.add_row(*(c.replace("[", r"\[") for c in cells))
        console.print(shown)
    for mark in refuse_to_average(collected, allow=KINDS):
        console.print(f"[yellow]{mark.study}: {mark.text}[/]")
    for path in collected.unplanned:
        console.print(f"[yellow]nothing plans {path}[/]")
    return 0


def _text(value: object) -> str:
    return "" if str(value) in ("<NA>", "nan", "None") else str(value)
