"""Where runs, data, caches and shipped files lie when the configuration does not say."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sdtps.system.errors import DataError, RunError

_LISTED = 10  # candidates that a message names
CHECKOUT = Path(__file__).resolve().parents[2]  # or site-packages, of an installed copy


def runs_root() -> Path:
    """The folder of all runs: SDTPS_RUNS_DIR, else runs/ in the current folder."""
    return Path(os.environ.get("SDTPS_RUNS_DIR") or "runs").expanduser()


def run_folders(runs_dir: Path) -> list[Path]:
    """Every folder runs_dir/STUDY/VARIANT/seed*, by two levels of listing."""
    folders = []
    for study in _folders(runs_dir):
        for variant in _folders(study):
            folders += [run for run in _folders(variant) if run.name.startswith("seed")]
    return folders


def _folders(path: Path) -> list[Path]:
    try:
        with os.scandir(path) as entries:
            names = sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))
    except OSError:
        return []
    return [path / name for name in names]


def find_folder(text: str, runs_dir: Path) -> Path:
    """The run folder that `text` names.

    Raises:
        RunError: none, or more than one, does; the text lists candidates.
    """
    for path in (Path(text), runs_dir / text):
        if (path / "config.yaml").is_file() or (path / "run.json").is_file():
            return path
    names = {str(f.relative_to(runs_dir)): f for f in run_folders(runs_dir)}
    if Path(text).absolute().is_relative_to(runs_dir.absolute()):  # runs/STUDY/VARIANT
        text = str(Path(text).absolute().relative_to(runs_dir.absolute()))
    return names[the_one(text, names, f"below {runs_dir}")]


def the_one(text: str, names: Iterable[str], where: str) -> str:
    """The one of `names` that contains `text`. Raises RunError where none or several do, with them."""
    names = list(names)
    matches = [n for n in names if text.strip("/") in n]
    if len(matches) == 1:
        return matches[0]
    listed = matches or names
    more = f"\n  and {len(listed) - _LISTED} more" if len(listed) > _LISTED else ""
    what = f"'{text}' names {len(matches)} runs" if matches else f"'{text}' names no run"
    shown = "".join(f"\n  {n}" for n in listed[:_LISTED])
    raise RunError(f"{what} {where}.{' Runs:' if shown else ' There are no runs.'}{shown}{more}")


def shipped(name: str) -> Path:
    """A file or folder that comes with the program, such as paper/templates.

    In a checkout it lies beside the packages; `pip install` puts it into share/sdtps/ (pyproject.toml).
    Where none of these has it, the path in the checkout is returned.
    """
    places = [CHECKOUT, CHECKOUT / "share" / "sdtps"]
    places += [Path(sysconfig.get_path("data")) / "share" / "sdtps"]
    places += [Path(sysconfig.get_path("data", f"{os.name}_user")) / "share" / "sdtps"]
    return next((place / name for place in places if (place / name).exists()), CHECKOUT / name)


def data_root(configured: str | None) -> Path:
    """The folder of the benchmarks: `data.root`, or the environment's SDTPS_DATA_ROOT.

    Raises:
        DataError: neither is given.
    """
    root = configured or os.environ.get("SDTPS_DATA_ROOT")
    if not root:
        raise DataError(
            "no data root: set data.root, pass --data-root when submitting, or set SDTPS_DATA_ROOT to "
            "the folder that contains the data set's folder"
        )
    return Path(root).expanduser()


def data_file(configured: str | None, name: str) -> Path:
    """The file `data.file`: as given where it is absolute, else below `data_root`.

    Raises:
        DataError: as `data_root` does.
    """
    path = Path(name).expanduser()
    return path if path.is_absolute() else data_root(configured) / path


def cache_root() -> Path:
    """For what can be made again: SDTPS_CACHE, or sdtps/ in the user's cache folder."""
    if "SDTPS_CACHE" in os.environ:
        return Path(os.environ["SDTPS_CACHE"]).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "sdtps"


@contextmanager
def made_below(folder: Path) -> Iterator[None]:
    """For what a job makes in a cache or data folder: what the folder does not take names the folder.

    Raises:
        DataError: it is read-only, full, or no folder.
    """
    try:
        yield
    except OSError as error:
        place = error.filename
        if error.errno is None:  # an image that cannot be decoded
            raise
        if place is not None and not Path(os.fsdecode(place)).is_relative_to(folder):
            raise
        raise DataError(
            f"{folder}: cannot be written ({error.strerror or error}); make room or give permission, "
            "or name another folder: SDTPS_CACHE for caches, data.root for data"
        ) from error
