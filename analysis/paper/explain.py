"""sdtps explain: from a cell, a number of the text or a figure to the runs behind it.

explain gumbel_main                               what the table has
explain gumbel_main:topk:best/mAP                 a cell: TABLE:ROW:COLUMN
explain 'quick/topk/mAP'  or  '\\res{quick}{topk}{mAP}'      a number of the text
explain gumbel_loss:topk                          a figure, or one variant of it
explain runs/quick/topk/seed0-1234567890          a run
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablations.study.arguments import known_studies
from ablations.study.model import Study, slug
from analysis import verbs
from analysis.runs import hints
from analysis.runs.record import Source, read, run_of
from sdtps.config import ProgramConfig
from sdtps.run.folder import RunFolder
from sdtps.system.commandline import add_runs_dir
from sdtps.system.errors import ConfigError, SdtpsError, did_you_mean


class ExplainError(SdtpsError):
    """What was asked about does not exist; the text names the nearest thing that does."""


@dataclass(frozen=True)
class Behind:
    """What a number is, and the runs behind it."""

    what: str
    text: str
    runs: tuple[str, ...]
    seeds: dict[str, float]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = __doc__
    parser.add_argument("what", help="TABLE:ROW:COLUMN, STUDY/VARIANT/KEY, FIGURE[:VARIANT], a run")
    parser.add_argument("--generated", type=Path, default=Path("paper/generated"), metavar="FOLDER")
    add_runs_dir(parser)
    parser.add_argument("--json", action="store_true")


def command(arguments: argparse.Namespace) -> int:
    found = of_runs(arguments) or find(arguments.what, arguments.generated, arguments.runs_dir)
    runs = [describe(where, arguments.runs_dir) for where in found.runs]
    manifests = {entry["name"]: Path(entry["path"]) for entry in _studies(arguments.generated)}
    again = hints.again(runs, arguments.runs_dir, manifests)
    if arguments.json:
        answer = {**vars(found), "runs": runs, "rerun": again}
        verbs.print_json(answer)
        return 0
    _show(found, runs, again)
    return 0


def of_runs(arguments: argparse.Namespace) -> Behind | None:
    """A table's cell made from the runs as they are, where no paper has been built with that table."""
    from analysis.runs.collect import collect
    from analysis.tables.model import as_json
    from analysis.tables.study import tables

    name, _, rest = str(arguments.what).partition(":")
    if (arguments.generated / "tables" / f"{name}.json").exists() or "/" in name:
        return None
    study = _tables_of_runs(arguments.runs_dir).get(name)
    if study is None:
        return None
    collected = collect([study], arguments.runs_dir, curves=False)
    made = {t.name: t for t in tables(collected, study)}
    return _cell(as_json(made[name]), rest) if name in made else None


def _tables_of_runs(runs_dir: Path) -> dict[str, Study]:
    """The tables of the studies known here that have runs, each with its study."""
    from ablations.study.manifest import load_study
    from analysis.tables.model import file_name
    from analysis.tables.study import declared_tables

    found: dict[str, Study] = {}
    for path in known_studies().values():
        with contextlib.suppress(SdtpsError):  # a manifest with mistakes is another one's matter
            study = load_study(path)
            names = ["variants", "compute", *(spec.name for spec in declared_tables(study))]
            names += [f"{slug(spec.good)}-{slug(spec.broken)}" for spec in study.attributions]
            if verbs.has_runs(runs_dir / study.name):
                found |= {file_name(study, name): study for name in names}
    return found


# -- what was asked about -----------------------------------------------------------------------


def find(what: str, generated: Path, runs_dir: Path | None = None) -> Behind:
    """Raises ExplainError with the nearest right name, also of tables that `of_runs` would make."""
    macro = re.fullmatch(r"\\?res\{([^{}]*)\}\{([^{}]*)\}\{([^{}]*)\}", what.strip())
    if macro is not None:
        return _number("/".join(macro.groups()), generated)
    if (Path(what) / "run.json").exists() or (Path(what) / "config.yaml").exists():
        return Behind("run", what, (str(Path(what).resolve()),), {})
    name, _, rest = what.partition(":")
    if (generated / "tables" / f"{name}.json").exists():
        return _cell(_read(generated / "tables" / f"{name}.json"), rest)
    if (generated / "figures" / f"{name}.json").exists():
        return _figure(name, rest, generated)
    if what.count("/") >= 2:
        return _number(what, generated)
    known = {p.stem for part in ("tables", "figures") for p in (generated / part).glob("*.json")}
    known |= _tables_of_runs(runs_dir).keys() if runs_dir else set()
    if not known:
        raise ExplainError(f"{generated}: nothing was built yet. Build it: sdtps paper")
    raise ExplainError(f"no table, figure or number '{what}'. {did_you_mean(name, known)}")


def _cell(table: dict[str, Any], rest: str) -> Behind:
    name = table["table"]
    rows = {row["key"]: row["cells"] for row in table["rows"] if row["cells"]}
    if not rest:
        runs = dict.fromkeys(r for cells in rows.values() for c in cells.values() for r in c["runs"])
        columns = [column["key"] for column in table["columns"]]
        text = f"rows: {', '.join(rows)}; columns: {', '.join(columns)}"
        return Behind(f"table {name}", text, tuple(runs), {})
    key, _, column = rest.rpartition(":")
    if key not in rows:  # only a row was named
        key, column = rest, ""
    if key not in rows:
        key = rest.rpartition(":")[0] or rest
        raise ExplainError(f"table {name} has no row '{key}'. {did_you_mean(key, rows)}")
    cells = rows[key]
    if not column:
        runs = dict.fromkeys(r for cell in cells.values() for r in cell["runs"])
        text = "; ".join(f"{c}: {cell['text']}" for c, cell in cells.items() if cell["text"])
        return Behind(f"row {key} of {name}", text, tuple(runs), {})
    if column not in cells:  # `mAP` is meant as `best/mAP`
        near = [c for c in cells if c.rpartition("/")[2] == column]
        if not near:
            raise ExplainError(f"table {name} has no column '{column}'. {did_you_mean(column, cells)}")
        column = near[0]
    cell = cells[column]
    what = f"{column} of {key} in table {name}"
    return Behind(what, cell["text"], tuple(cell["runs"]), cell["seeds"])


def _figure(name: str, variant: str, generated: Path) -> Behind:
    figure = _read(generated / "figures" / f"{name}.json")
    if variant and variant not in figure["runs"]:
        raise ExplainError(f"figure {name} has no variant. {did_you_mean(variant, figure['runs'])}")
    chosen = [variant] if variant else list(figure["runs"])
    runs = tuple(run for v in chosen for run in figure["runs"][v])
    return Behind(f"figure {name}" + (f", {variant}" if variant else ""), figure["caption"], runs, {})


def _number(name: str, generated: Path) -> Behind:
    from analysis.paper.macros import name_part

    path = generated / "numbers.json"
    if not path.exists():
        raise ExplainError(f"{path}: nothing was built yet. Build it: sdtps paper")
    study, _, rest = name.partition("/")
    slugs = {entry["name"]: entry.get("slugs", {}) for entry in _studies(generated)}.get(study, {})
    numbers = _read(path)
    for own, short in slugs.items():  # as people call the variant
        if rest.startswith(f"{own}/") and name not in numbers:
            name = f"{study}/{short}/{name_part(rest.removeprefix(f'{own}/'))}"
    if name not in numbers:
        raise ExplainError(f"no number '{name}'. {did_you_mean(name, numbers)}")
    entry = numbers[name]
    return Behind(f"number {name}", entry["text"], tuple(entry["runs"]), entry["seeds"])


def _studies(generated: Path) -> list[dict[str, Any]]:
    """What the last build's index says of its studies."""
    index = generated / "index.json"
    return _read(index)["studies"] if index.is_file() else []


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


# -- the runs -----------------------------------------------------------------------------------


def describe(where: str, runs_dir: Path) -> dict[str, Any]:
    """Everything that leads back to how a run was made; absent facts are null."""
    folder = RunFolder(runs_dir / where)
    run, _ = run_of(folder)
    source = Source("", "", 0, "", folder, planned=True)
    found = read(source, runs_dir, curves=False)
    result = (folder.result() if found.state == "completed" else None) or {}
    logs = [folder.log_file, *sorted(folder.submitit_folder.glob("**/*.log"))]
    diff = f"{folder.run_file} (key diff)" if run.get("diff") else "none in sdtps/"
    return {
        "folder": str(folder.path),
        **{key: run.get(key) for key in ("study", "variant", "seed", "identity", "data", "imported")},
        **{key: getattr(found, key) for key in ("state", "reason", "commit", "dirty", "code")},
        **{key: getattr(found, key) for key in ("program", "host", "gpu", "jobs")},
        "command": _command(folder),
        "notes": "; ".join(found.notes) or None,
        "diff": diff if found.dirty else None,
        "attempts": found.attempts or 0,
        **{key: result.get(key) for key in ("best", "final", "origin")},
        "config": str(folder.config_file),
        "logs": [str(path) for path in logs if path.is_file()],
    }


def _command(folder: RunFolder) -> str | None:
    """The command line of a run that is a program."""
    with contextlib.suppress(ConfigError):
        config = folder.config()
        if isinstance(config, ProgramConfig):
            return config.line(seed=folder.run().get("seed", 0), run=str(folder.path))
    return None


def _show(found: Behind, runs: Sequence[dict[str, Any]], again: Sequence[str]) -> None:
    """Paths and commands on lines of their own, so that they can be copied."""
    console = verbs.console()

    def say(text: str, style: str | None = None) -> None:
        console.print(text, style=style, markup=False)

    say(found.what, "bold")
    say(f"  {found.text}")
    for seed, value in found.seeds.items():
        say(f"  seed {seed}: {value:g}")
    for run in runs:
        say(f"\n{run['folder']}", "bold")
        say(f"  {_story(run)}")
        difference = run["diff"] and f"uncommitted difference: {run['diff']}"
        for line in filter(None, (run["command"], *run["logs"], run["notes"], difference)):
            say(f"  {line}")
    if again:
        say("\nRun exactly these again:")
        for line in again:
            say(f"  {line}")


def _story(run: dict[str, Any]) -> str:
    """A run's state and where it was made, in one line."""
    code = f"commit {str(run['commit'] or 'unknown')[:10]}{' with changes' * bool(run['dirty'])}"
    if run["command"]:
        code = ", ".join(f"{name} {digest[:12]}" for name, digest in run["program"].items())
    parts = [run["state"] + (f": {run['reason']}" if run["reason"] else "")]
    if run["state"] != "planned":
        parts += filter(None, (code, f"host {run['host'] or 'unknown'}", f"GPU {run['gpu'] or 'none'}"))
    if run["jobs"]:
        parts.append(f"{'job' if len(run['jobs']) == 1 else 'jobs'} {', '.join(map(str, run['jobs']))}")
    return "; ".join(parts)
