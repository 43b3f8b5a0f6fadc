"""Our runs for other people's tools: TensorBoard event files, or two CSV tables.

    sdtps export --format tensorboard -o exported/    then: tensorboard --logdir exported/
    sdtps export --format csv -o exported/            runs.csv and values.csv

Same runs, same bytes. Nothing is thinned, smoothed or averaged; non-finite values stay what they are.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path

import pandas as pd

from analysis import commands
from analysis.runs.collect import Collected
from analysis.runs.record import as_frame
from sdtps.system.errors import SdtpsError
from sdtps.system.files import write_bytes, write_text

# One file a run, named so that TensorBoard finds it; no time and host in it, so that it is repeatable.
EVENT_FILE = "events.out.tfevents.0000000001.sdtps"


FORMATS = ("csv", "tensorboard")


class ExportError(SdtpsError):
    """There is nothing to export, or no place for it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands.add_study_arguments(parser)
    parser.add_argument("--format", choices=FORMATS, required=True)
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder to write into")


def command(arguments: argparse.Namespace) -> int:
    from analysis.runs.collect import collect

    studies = commands.load(arguments)
    collected = collect(studies, arguments.runs_dir)
    for path in export(collected, arguments.format, arguments.output):
        print(path)
    return 0


def export(collected: Collected, format_name: str, output: Path) -> list[Path]:
    """Write all runs of `collected` below `output`; returns the files in the order written.

    Raises:
        ExportError: no run has logged anything.
    """
    if not any(run.rows.blocks for run in collected.runs):
        names = ", ".join(study.name for study in collected.studies) or "none"
        raise ExportError(
            f"nothing to export: no run of these studies has logged a value below "
            f"{collected.runs_dir} (studies: {names})"
        )
    write = {"csv": write_csv, "tensorboard": write_tensorboard}[format_name]
    return write(collected, Path(output))


def write_csv(collected: Collected, output: Path) -> list[Path]:
    """`runs.csv` (one row a run) and `values.csv` (one row a logged value)."""
    output.mkdir(parents=True, exist_ok=True)
    files, runs = [], as_frame(collected.runs)
    # A value that was logged and is not a number is the word nan; an empty cell of a run is absence.
    for name, frame, nan in (("runs.csv", runs, ""), ("values.csv", collected.values(), "nan")):
        text = io.StringIO()
        frame.to_csv(text, index=False, lineterminator="\n", na_rep=nan)
        write_text(output / name, text.getvalue())
        files.append(output / name)
    return files


def write_tensorboard(collected: Collected, output: Path) -> list[Path]:
    """An event file for each run at OUTPUT/STUDY/VARIANT/seedK/, tags `train/loss`, `eval/mAP` ...

    Wall time is the step in seconds: run folders keep no time for each value, and the "relative" axis
    then shows steps.
    """
    files = []
    for run in collected.runs:
        if run.rows.blocks:
            place = output / run.study / Path(run.folder).parent.name / f"seed{run.seed}"
            place.mkdir(parents=True, exist_ok=True)
            write_bytes(place / EVENT_FILE, _events(run.rows.frame()))
            files.append(place / EVENT_FILE)
    return files


def _events(rows: pd.DataFrame) -> bytes:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    stream = io.BytesIO()
    writer = RecordWriter(stream)
    writer.write(Event(wall_time=0.0, file_version="brain.Event:2").SerializeToString())
    ordered = rows.sort_values(["step", "kind", "metric"], kind="stable")
    for _, part in ordered.groupby("step", sort=True):
        values = [
            Summary.Value(tag=f"{row.kind}/{row.metric}", simple_value=row.value)
            for row in part.itertuples()
        ]
        epoch = Summary.Value(tag="epoch", simple_value=float(part["epoch"].iloc[0]))
        at = int(part["step"].iloc[0])
        event = Event(wall_time=float(at), step=at, summary=Summary(value=[*values, epoch]))
        writer.write(event.SerializeToString())
    return stream.getvalue()
