"""python -m ablations plan|submit|status|watch|logs|retry|cancel|clean|run|bench: steer a study.

`status` exits with 0 (all completed), 1 (some failed, diverged, cancelled or held), 3 (some active) or
4 (some never submitted or interrupted). Mistakes of yours exit with 2 and no traceback. `cancel` and
`clean` only show what they would do until --yes is given.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

from ablations.launch import submit as front
from ablations.launch.submit import add_study_arguments, add_submit_arguments
from ablations.store.clean import STATES as CLEANED
from ablations.view.counted import counted
from sdtps.commandline import Parser
from sdtps.errors import RunError, visible


def plan(arguments: argparse.Namespace) -> int:
    from ablations.view.plan import plan_json, plan_lines

    made = front.plan_study(front.read_study(arguments), arguments)
    print(json.dumps(plan_json(made), indent=2) if arguments.json else "\n".join(plan_lines(made)))
    return 0


def status(arguments: argparse.Namespace) -> int:
    from ablations.store.states import run_states
    from ablations.view import status as statusview

    study, runs_dir = front.read_study(arguments), arguments.runs_dir.resolve()
    statuses = run_states(study.runs(), runs_dir)
    if arguments.json:
        print(json.dumps(statusview.as_json(study, statuses, runs_dir), indent=2))
    else:
        print("\n".join(statusview.lines(study, statuses, runs_dir, front.again(arguments))))
    return statusview.exit_code(statuses)


def watch(arguments: argparse.Namespace) -> int:
    from ablations.view.watch import watch as show

    return show(front.read_study(arguments), arguments.runs_dir.resolve(), once=arguments.once)


def logs(arguments: argparse.Namespace) -> int:
    from ablations.study.runnames import find_folder
    from ablations.view import logs as log

    folder = find_folder(arguments.run, arguments.runs_dir.resolve())
    for line in log.follow(folder) if arguments.follow else log.read(folder):
        print(line, flush=True)
    return 0


def retry(arguments: argparse.Namespace) -> int:
    from ablations.study.runnames import find_run

    words = [w for w in front.RETRY_WORDS if getattr(arguments, w)]
    study = front.read_study(arguments)
    named = tuple(find_run(text, study).name for text in arguments.run)
    if not words and not named:
        raise RunError(
            "retry what? Name runs, or give --failed, --diverged, --cancelled, --stale or --held "
            f"(see: {front.again(arguments).control('status')})"
        )
    arguments.retry = words
    return front.submit(arguments, named, only_again=True)


def cancel(arguments: argparse.Namespace) -> int:
    from ablations.store import stop as control
    from ablations.store.states import run_states

    study, runs_dir = front.read_study(arguments), arguments.runs_dir.resolve()
    active = [s for s in run_states(study.runs(), runs_dir) if s.active]
    if arguments.held:
        active = [s for s in active if s.held]
    if not active:
        what = "held" if arguments.held else "queued or running"
        print(f"{study.name}: no run is {what}; nothing to cancel.")
        return 0
    for one in active:
        verb = "cancel" if arguments.yes else "would cancel"
        print(f"{verb}  {one.run.name}  {one.state}  {one.job_id or ''}".rstrip())
    if not arguments.yes:
        print(f"{counted(len(active), 'run')}. Give --yes to cancel.")
        return 0
    cancelled = control.cancel(active, runs_dir)
    print(f"Cancelled {counted(len(cancelled), 'run')}.")
    left = [s for s in active if s not in cancelled]
    for one in left:
        where = f"on {one.node}" if one.node else "by hand"
        print(f"not cancelled: {one.run.name} runs {where}: end its process there", file=sys.stderr)
    return 1 if left else 0


def clean(arguments: argparse.Namespace) -> int:
    from ablations.store import clean as cleaning
    from ablations.store.states import run_states

    study, runs_dir = front.read_study(arguments), arguments.runs_dir.resolve()
    doomed = cleaning.select(
        study,
        runs_dir,
        run_states(study.runs(), runs_dir),
        states=arguments.state or cleaning.CLEANED_BY_DEFAULT,
        unplanned=arguments.unplanned,
    )
    if not doomed:
        print(f"{study.name}: no such run folder; nothing to delete.")
        return 0
    for entry in doomed:
        verb = "delete" if arguments.yes else "would delete"
        name = visible(str(entry.folder.relative_to(runs_dir)))
        print(f"{verb}  {name}  {entry.why}  {entry.size / 1e6:.1f} MB")
    total = sum(entry.size for entry in doomed) / 1e6
    if not arguments.yes:
        print(f"{counted(len(doomed), 'folder')}, {total:.1f} MB. Give --yes to delete.")
        return 0
    cleaning.delete(doomed, runs_dir)
    print(f"Deleted {counted(len(doomed), 'folder')}, {total:.1f} MB.")
    return 0


def run(arguments: argparse.Namespace) -> int:
    """Try one run here, in a folder of its own; or, without --local, submit just this one."""
    from ablations.launch.trial import try_here
    from ablations.study.runnames import find_run

    study = front.read_study(arguments)
    one = find_run(arguments.run, study)
    if arguments.local:
        return try_here(one, arguments.runs_dir.resolve(), arguments.max_steps)
    if arguments.max_steps is not None:
        raise RunError("--max-steps is for trying a run here: give --local as well")
    arguments.variant, arguments.seed = [one.variant], [one.seed]
    return front.submit(arguments)


def bench(arguments: argparse.Namespace) -> int:
    from benchmarks.dispatch import bench as measure
    from benchmarks.packing import packing

    if arguments.packing is not None:
        results = [packing(arguments.packing)]
    else:
        results = list(measure(arguments.folders, arguments.compared, arguments.runs))
    from benchmarks.machine import machine, pick_device  # only now: it loads torch

    device = pick_device(None if arguments.packing is not None else "cpu")
    for result in results:
        print(json.dumps({**result, **machine(device)}), flush=True)
    return 0


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = Parser(
        prog="python -m ablations",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(handler: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        block = commands.add_parser(handler.__name__, help=text, description=text)
        block.set_defaults(handler=handler)
        return block

    block = command(plan, "what submit would do, and why")
    add_study_arguments(block)
    block.add_argument("--retry", nargs="+", choices=front.RETRY_WORDS, default=[])
    block.add_argument("--data-root", type=Path)

    block = command(front.submit, "submit what is missing (as submit.py)")
    add_study_arguments(block)
    add_submit_arguments(block)

    block = command(status, "the state of every run; the exit code says it too")
    add_study_arguments(block)

    block = command(watch, "a live table: state, epoch, loss, metric, time left")
    add_study_arguments(block)
    block.add_argument("--once", action="store_true", help="print it once, with every run")

    block = command(logs, "the logs of one run")
    block.add_argument("run", help="its folder, or enough of its name")
    block.add_argument("-f", "--follow", action="store_true", help="go on until the run ends")
    block.add_argument("--runs-dir", type=Path, default=front.RUNS)

    block = command(
        retry, "submit again what failed, diverged, was cancelled or is stale; release held"
    )
    add_study_arguments(block)
    block.add_argument("run", nargs="*", help="VARIANT/seedK, or enough of the name")
    for word in front.RETRY_WORDS:
        block.add_argument(f"--{word}", action="store_true", help=f"runs that are {word}")
    add_submit_arguments(block, retry=False)

    block = command(cancel, "cancel what is queued or running")
    add_study_arguments(block)
    block.add_argument("--held", action="store_true", help="only what the scheduler holds")
    block.add_argument("--yes", action="store_true", help="do it")

    block = command(clean, "delete run folders")
    add_study_arguments(block)
    block.add_argument("--state", nargs="+", choices=CLEANED, metavar="STATE", help=", ".join(CLEANED))
    block.add_argument("--unplanned", action="store_true", help="also those that no variant plans")
    block.add_argument("--yes", action="store_true", help="do it")

    block = command(run, "one run: submit it, or try it here with --local")
    add_study_arguments(block)
    block.add_argument("run", help="VARIANT/seedK, or enough of the name")
    block.add_argument("--local", action="store_true", help="here and now, apart from the run store")
    block.add_argument(
        "--max-steps", type=front.positive, help="stop after this many steps (with --local)"
    )
    add_submit_arguments(block)

    block = command(bench, "time status, plan and reading a manifest beside a plain way, as JSON")
    block.add_argument("--folders", type=front.positive, default=10_000, help="run folders [10000]")
    block.add_argument("--compared", type=front.positive, default=200, help="for both ways [200]")
    block.add_argument("--runs", type=front.positive, default=1_000, help="of the manifest [1000]")
    block.add_argument(
        "--packing",
        type=front.positive,
        metavar="K",
        help="instead: K runs of the quick study one by one and all at once, on a GPU if there is one",
    )
    return top


def main(words: list[str] | None = None) -> int:
    top = parser()
    arguments, rest = top.parse_known_args(words)
    if rest:  # argparse leaves out runs that are named after an option
        if not isinstance(getattr(arguments, "run", None), list) or any(w[0] == "-" for w in rest):
            top.error(f"unrecognized arguments: {' '.join(rest)}")
        arguments.run += rest
    return front.guarded(arguments.handler, arguments)


if __name__ == "__main__":
    sys.exit(main())
