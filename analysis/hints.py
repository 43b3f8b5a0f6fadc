"""Commands that analysis tells people to run, with the folders that they themselves have named."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

RUNS, MAIN = Path("runs"), Path("paper/main.tex")  # what commands use unless told otherwise


def command(*words: str | Path, runs_dir: Path) -> str:
    """A command line that can be copied, with `--runs-dir` where runs are not in the usual place."""
    place = [] if Path(runs_dir) == RUNS else ["--runs-dir", str(runs_dir)]
    return shlex.join([*map(str, words), *place])


def submit(manifest: Path, runs_dir: Path, *words: str) -> str:
    """The command that runs what is missing of a study."""
    return command("python", "submit.py", manifest, *words, runs_dir=runs_dir)


def build(runs_dir: Path, main: Path = MAIN) -> str:
    """The command that builds the paper."""
    other = [] if main == MAIN else ["--main", str(main)]
    return command("python", "-m", "analysis", "paper", *other, runs_dir=runs_dir)


def again(
    runs: Sequence[Mapping[str, Any]], runs_dir: Path, manifests: Mapping[str, Path] | None = None
) -> list[str]:
    """Commands that run exactly these again, one for each study and commit.

    Args:
        runs: rows with study, variant, seed, commit and imported.
        manifests: where a study's manifest is; default: ablations/STUDY.yaml.
    """
    lines: list[str] = []
    groups: dict[tuple[str, str | None], list[Mapping[str, Any]]] = {}
    for run in runs:
        if run["study"] and not run["imported"]:
            groups.setdefault((run["study"], run["commit"]), []).append(run)
    for (study, commit), members in groups.items():
        if commit:
            lines.append(f"git checkout {commit}")
        manifest = (manifests or {}).get(study, Path(f"ablations/{study}.yaml"))
        names = [f"{run['variant']}/seed{run['seed']}" for run in members]
        lines.append(command("python", "-m", "ablations", "retry", manifest, *names, runs_dir=runs_dir))
    return lines
