"""Commands that analysis tells people to run, with the folders that they themselves have named."""

from __future__ import annotations

import glob
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ablations.study.arguments import known_studies
from analysis.runs.record import mapping
from analysis.verbs import MAIN
from sdtps.config.yaml12 import Loader
from sdtps.run.folder import RunFolder
from sdtps.run.locations import runs_root
from sdtps.system.files import read_bytes


def command(*words: str | Path, runs_dir: Path) -> str:
    """A command line that can be copied, with `--runs-dir` where runs are not in the usual place."""
    place = [] if Path(runs_dir) == runs_root() else ["--runs-dir", str(runs_dir)]
    return shlex.join([*map(str, words), *place])


def submit(manifest: Path, runs_dir: Path, *words: str) -> str:
    """The command that runs what is missing of a study."""
    return command("sdtps", "submit", manifest, *words, runs_dir=runs_dir)


def build(runs_dir: Path, main: Path = MAIN, studies: Sequence[Mapping[str, str]] = ()) -> str:
    """The command that builds the paper again.

    Args:
        studies: name and path of those of the last build. They are named where the current folder does
            not know one of their manifests; without names, all known studies with runs are built.
    """
    known = {path.resolve() for path in known_studies().values()}
    # That of an imported study is its folder.
    words = {e["path"]: Path(e["path"]).suffix in (".yaml", ".yml") for e in studies}
    if all(Path(path).resolve() in known for path, manifest in words.items() if manifest):
        named = []
    else:
        named = [e["path"] if words[e["path"]] else e["name"] for e in studies]
    other = [] if main == MAIN else ["--main", str(main)]
    return command("sdtps", "paper", *named, *other, runs_dir=runs_dir)


def again(
    runs: Sequence[Mapping[str, Any]], runs_dir: Path, manifests: Mapping[str, Path] | None = None
) -> list[str]:
    """Commands that run exactly these again, from the sources that they were started from.

    They run into a folder beside `runs_dir`: a submission skips what is there.

    Args:
        runs: rows with study, variant, seed, commit, imported and folder.
        manifests: where a study's manifest is; default: ablations/STUDY.yaml.
    """
    fresh = Path(runs_dir).with_name(f"{Path(runs_dir).resolve().name}-again")
    lines: list[str] = []
    seeds: dict[tuple[str | None, str, str | None], dict[str, list[str]]] = {}
    for run in runs:
        if run["study"] and not run["imported"]:
            config = config_of(RunFolder(run["folder"]))
            own = config.get("task") == "command"  # a program is not in this project's repository
            key = (None if own else run["commit"], run["study"], data_root(config))
            seeds.setdefault(key, {}).setdefault(run["variant"], []).append(str(run["seed"]))
    there, known = None, known_studies()
    for (commit, study, root), variants in sorted(seeds.items(), key=lambda item: item[0][0] or ""):
        if commit and commit != there:
            lines.append(f"git checkout {commit}")
            there = commit
        usual = known.get(study, Path(f"ablations/{study}.yaml"))
        manifest = (manifests or {}).get(study, usual)
        for chosen in dict.fromkeys(tuple(of) for of in variants.values()):
            names = [glob.escape(name) for name, of in variants.items() if tuple(of) == chosen]
            words = [word for name in names for word in ("--variant", name)]
            words += [word for seed in chosen for word in ("--seed", seed)]
            words += ["--data-root", root] if root else []
            lines.append(submit(manifest, fresh, *words))
    return lines


def config_of(folder: RunFolder) -> dict[str, Any]:
    """What config.yaml holds; empty where it cannot be read."""
    try:
        return mapping(yaml.load(read_bytes(folder.config_file) or b"", Loader=Loader))
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return {}


def data_root(config: Mapping[str, Any]) -> str | None:
    """The folder that a run's data were read from; None where it generated them, or does not say."""
    data = mapping(config.get("data"))
    return data["root"] if isinstance(data.get("root"), str) and data.get("generate") is None else None
