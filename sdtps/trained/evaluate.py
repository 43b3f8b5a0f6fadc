"""sdtps evaluate RUN|FILE: score a trained model again, under other conditions or on other data.

On the run's own data the numbers of result.json come out again from the saved weights. Rows go to
evaluations.jsonl beside the run; tables read the conditions' metrics (mAP@missing_r) from there as if
the run had scored them itself, and with `--as NAME` those of other data (mAP@on_NAME).
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdtps.system.commandline import add_json
from sdtps.system.errors import RunError, SdtpsError
from sdtps.trained.embed import add_target

if TYPE_CHECKING:
    from sdtps.evaluation import Progress
    from sdtps.trained.model import Trained

MISSING = ("missing_r", "missing_n", "missing_t", "missing_rn", "missing_rt", "missing_nt")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    parser.add_argument(
        "-w",
        "--weights",
        action="append",
        choices=("best", "last"),
        default=[],
        help="weights of the selected (best) or the last epoch; may be repeated [both]",
    )
    parser.add_argument(
        "-c",
        "--condition",
        action="append",
        default=[],
        metavar="NAME",
        help="missing_r, missing_nt, r_to_n (RGB queries, NIR gallery), rerank, missing_r+rerank, ...; "
        "retrieval: own, shuffled, none; may be repeated [the run's own evaluation]",
    )
    parser.add_argument(
        "--missing", action="store_true", help="all six missing-modality conditions of DeMo"
    )
    parser.add_argument(
        "--data-root",
        type=Path,
        metavar="FOLDER|FILE",
        help="other data: the folder of a data set or of several, or a CSV file as for data.file",
    )
    parser.add_argument("--dataset", metavar="NAME", help="other data: name of the benchmark")
    parser.add_argument(
        "--as",
        dest="name",
        metavar="NAME",
        help="other data: their name in tables, as in mAP@on_NAME",
    )
    add_json(parser)


def command(arguments: argparse.Namespace) -> int:
    """The verb `evaluate`. Exit code 1: the run's own numbers did not come out again."""
    import json

    conditions = [*arguments.condition, *(MISSING if arguments.missing else ())]
    rows = evaluate(
        arguments.target,
        weights=tuple(dict.fromkeys(arguments.weights)) or ("best", "last"),
        conditions=tuple(dict.fromkeys(conditions)) or ("",),
        data_root=arguments.data_root,
        dataset=arguments.dataset,
        name=arguments.name,
        config=arguments.config,
        device=arguments.device,
    )
    if arguments.json:
        print(json.dumps(rows, indent=2))
    else:
        _print(rows)
    return 1 if any(row["differs"] for row in rows) else 0


def evaluate(
    target: Path,
    *,
    weights: tuple[Any, ...] = ("best", "last"),
    conditions: tuple[str, ...] = ("",),
    data_root: Path | None = None,
    dataset: str | None = None,
    name: str | None = None,
    config: Path | None = None,
    device: str | None = None,
) -> list[dict[str, Any]]:
    """One row for each of the weights and conditions, also written beside the run.

    Row: time, weights, epoch, step, condition, data (name, root, digest, own, as), metrics
    (fractions), code, and `differs`: metrics that training measured otherwise on the same data.

    Args:
        name: of other data, for tables; refused for the run's own.

    Raises:
        SdtpsError: no finished run, an unknown condition, data that cannot be read, weights that do
            not fit the configuration.
    """
    from sdtps.run.provenance import source_digest
    from sdtps.trained.model import find_target, load, task_of, with_data
    from sdtps.training.device import prepare_torch
    from sdtps.training.loop import score

    target = find_target(target)
    if name is not None and not re.fullmatch(r"[a-z0-9_]+", name):
        raise SdtpsError(f"--as {name}: becomes part of names; use small letters, digits and _")
    rows = []
    for which in weights if target.is_dir() else weights[:1]:
        trained = load(target, which, config, device)
        settings = with_data(trained.config, data_root, dataset)
        task = task_of(trained, settings, prepare_torch(settings))
        data = task.record["data"]
        run = trained.folder.run() if trained.folder is not None else {}
        own = data["digest"] == (run.get("data") or data)["digest"]
        if own and name is not None:
            raise SdtpsError(
                f"--as {name} is for other data, and {data['root']} is {trained.name}'s own: "
                "name others with --data-root, --dataset"
            )
        for condition in conditions:
            try:
                metrics = score(task, trained.seed, trained.step, (condition,), _progress(trained))
            except FloatingPointError as error:
                raise RunError(f"{trained.file}: {error}") from None
            before = {k: v for k, v in trained.metrics.items() if own and k in metrics}
            row = {
                "time": round(time.time(), 2),
                "weights": trained.which or trained.file.name,
                "epoch": trained.epoch,
                "step": trained.step,
                "condition": condition,
                "data": {k: data[k] for k in ("name", "root", "digest")} | {"own": own, "as": name},
                "metrics": metrics,
                "code": source_digest(),
                "differs": [k for k, v in before.items() if metrics[k] != v],
            }
            rows.append(row)
            if trained.folder is not None:
                trained.folder.append_evaluation(row)
    return rows


def _progress(trained: Trained) -> Progress:
    """Says on standard error how far an evaluation is, every ten seconds."""
    told = time.monotonic()

    def progress(done: int, total: int) -> None:
        nonlocal told
        if time.monotonic() - told > 10:
            told = time.monotonic()
            which = f", {trained.which} weights" if trained.which else ""
            print(f"{trained.name}{which}: {100 * done / total:.0f} %", file=sys.stderr, flush=True)

    return progress


def _print(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    shown = list(dict.fromkeys(name.partition("@")[0] for row in rows for name in row["metrics"]))
    table = Table("weights", "epoch", "condition", "data", box=None, padding=(0, 2, 0, 0))
    for heading in shown:
        table.add_column(f"{heading} %", justify="right", no_wrap=True)
    for row in rows:
        suffix = f"@{row['condition']}" if row["condition"] else ""
        scores = [row["metrics"].get(f"{name}{suffix}") for name in shown]
        table.add_row(
            row["weights"],
            str(row["epoch"]),
            row["condition"] or "as trained",
            row["data"]["name"] + " (other data)" * (not row["data"]["own"]),
            *("" if score is None else f"{100 * score:.2f}" for score in scores),
        )
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    console.print(table)
    for row in rows:
        if row["differs"]:
            console.print(
                f"{row['weights']}: training measured other values of {', '.join(row['differs'])} "
                "(another device, other code, or changed data)"
            )
