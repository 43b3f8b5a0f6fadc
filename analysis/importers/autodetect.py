"""Which importer reads a file: told from its content, and from its name where that decides."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from analysis.importers import demo, fastreid, huggingface, lightning, seps, table, tensorboard
from analysis.importers.record import ImportedRun, LogError
from analysis.importers.text import clean, decode, read_bytes
from sdtps.errors import did_you_mean


@dataclass(frozen=True)
class Format:
    """A kind of file: how it is recognised, and how it is read."""

    name: str
    looks_for: str
    recognises: Callable[[str, str], bool]
    read: Callable[[Path, bytes], list[ImportedRun]]


# In order of how special they are: the first that recognises a file reads it.
FORMATS = (
    Format(tensorboard.NAME, tensorboard.LOOKS_FOR, tensorboard.recognises, tensorboard.read),
    Format(huggingface.NAME, huggingface.LOOKS_FOR, huggingface.recognises, huggingface.read),
    Format(demo.NAME, demo.LOOKS_FOR, demo.recognises, demo.DemoLog.read),
    Format(fastreid.NAME, fastreid.LOOKS_FOR, fastreid.recognises, fastreid.FastreidLog.read),
    Format(seps.NAME, seps.LOOKS_FOR, seps.recognises, seps.SepsLog.read),
    Format(lightning.NAME, lightning.LOOKS_FOR, lightning.recognises, lightning.read),
    Format(table.JSON_NAME, table.JSON_LOOKS_FOR, table.recognises_json_lines, table.read_json_lines),
    Format(table.CSV_NAME, table.CSV_LOOKS_FOR, table.recognises_csv, table.read_csv),
)
# What a folder is searched for; other files in it (images, checkpoints) are none of our business.
_SEARCHED = ("*.log", "*.txt", "*.out", "*.csv", "*.tsv", "*.jsonl", "trainer_state.json", "*tfevents*")


def detect(path: Path, content: bytes) -> Format | None:
    """The format of a file, or None where no importer recognises it."""
    text = clean(decode(content))
    return next((f for f in FORMATS if f.recognises(path.name, text)), None)


def read(paths: Iterable[Path], format_name: str | None = None) -> tuple[list[ImportedRun], list[str]]:
    """All runs of some files and folders.

    Args:
        format_name: read everything as this format instead of telling it from the content.

    Returns:
        The runs, and one complaint for each file that could not be read.

    Raises:
        LogError: a path that does not exist, or an unknown format name.
    """
    chosen = None
    if format_name is not None:
        chosen = next((f for f in FORMATS if f.name == format_name), None)
        if chosen is None:
            hint = did_you_mean(format_name, [f.name for f in FORMATS])
            raise LogError(f"--as {format_name}: unknown format. {hint}")
    runs: list[ImportedRun] = []
    complaints: list[str] = []
    event_folders: dict[Path, list[Path]] = {}
    for path, searched in _files(paths):
        try:
            content = read_bytes(path)
            found = chosen or detect(path, content)
            if found is None:
                if not searched:
                    complaints.append(_unknown(path, content))
            elif found.name == tensorboard.NAME:
                event_folders.setdefault(path.parent, []).append(path)
            else:
                runs += found.read(path, content)
        except LogError as error:
            complaints.append(str(error))
        except OSError as error:
            complaints.append(f"{path}: {error.strerror or error}")
    for files in event_folders.values():
        try:
            runs += tensorboard.read_folder(files)
        except LogError as error:
            complaints.append(str(error))
    return runs, complaints


def _files(paths: Iterable[Path]) -> list[tuple[Path, bool]]:
    """Files to read, and whether each was found in a folder rather than named."""
    files: dict[Path, bool] = {}
    for path in map(Path, paths):
        if path.is_dir():
            found = sorted({p for pattern in _SEARCHED for p in path.rglob(pattern) if p.is_file()})
            if not found:
                raise LogError(f"{path}: no log below it. Looked for: {', '.join(_SEARCHED)}")
            files.update({p: files.get(p, True) for p in found})
        elif path.exists():
            files[path] = False
        else:
            raise LogError(f"{path}: no such file or folder")
    return list(files.items())


def _unknown(path: Path, content: bytes) -> str:
    what = "empty" if not content.strip() else "in no format that an importer recognises"
    known = "\n".join(f"    {f.name}: {f.looks_for}" for f in FORMATS)
    return f"{path}: {what}. Known formats (force one with --as NAME):\n{known}"
