"""What a run's numbers rest on: code, machine, data and weights. No torch is imported here."""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

from sdtps.system.errors import RunError
from sdtps.system.files import read_bytes

PACKAGE = Path(__file__).resolve().parents[1]
PACKAGES = ("torch", "transformers", "numpy", "pillow", "safetensors", "pydantic", "submitit")
RUN_ENTRY = "training/attempt.py"  # where a run begins
SLURM_VARIABLES = {
    "job_id": "SLURM_JOB_ID",
    "array_job_id": "SLURM_ARRAY_JOB_ID",
    "array_task_id": "SLURM_ARRAY_TASK_ID",
    "restart_count": "SLURM_RESTART_COUNT",
    "partition": "SLURM_JOB_PARTITION",
    "nodes": "SLURM_JOB_NODELIST",
}
SNAPSHOT_RECORD = "code.json"  # beside frozen code: `code_version` of the checkout it came from
DIFF_LIMIT = 200_000  # characters; a longer diff is cut, its size is told


def source_digest(package: Path = PACKAGE) -> str:
    """Twelve hexadecimal digits of the code that a run executes (`modules`).

    Comments, docstrings and formatting do not count. It tells whether two runs were made by the same
    code where a commit cannot: with uncommitted work, or after a commit that touched only documents.
    """
    digest = hashlib.sha256()
    for file in sorted(modules(package)):
        digest.update(file.relative_to(package).as_posix().encode() + b"\0")
        digest.update(_parsed(file.read_bytes())[0].encode() + b"\0")
    return digest.hexdigest()[:12]


def modules(package: Path = PACKAGE) -> set[Path]:
    """The modules that training a run imports, directly or through others: no audit, no command line.

    Every module of a package that has no `training/attempt.py`.
    """
    todo, reached, names = [package / RUN_ENTRY], set[Path](), set[str]()
    if not todo[0].is_file():
        return set(package.rglob("*.py"))
    while todo:
        file = todo.pop()
        if file in reached or not file.is_file():
            continue
        reached.add(file)
        found = (name for name in _parsed(file.read_bytes())[1] if name.split(".")[0] == package.name)
        new = {above for name in found for above in accumulate(name.split("."), "{}.{}".format)} - names
        names |= new
        for name in new:
            place = package.parent.joinpath(*name.split("."))
            todo += [place.with_suffix(".py"), place / "__init__.py"]
    return reached


@cache
def _parsed(source: bytes) -> tuple[str, set[str]]:
    """A module's syntax tree as text, and what it imports, also inside functions."""
    imported: set[str] = set()
    try:
        return _text(ast.parse(source), imported), imported
    except (SyntaxError, ValueError):  # half-edited; a run will say so itself
        return source.hex(), imported


def _text(node: Any, imported: set[str]) -> str:
    """The tree below `node`, in one walk, which every run waits for. Adds to `imported`."""
    if isinstance(node, list):
        return ",".join([_text(item, imported) for item in node])
    if not isinstance(node, ast.AST):
        return repr(node)
    if isinstance(node, ast.Import):
        imported.update(alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        imported.update((node.module, *(f"{node.module}.{alias.name}" for alias in node.names)))
    elif isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
        node.body = node.body[1:]
    # Versions of Python differ in the empty and implied fields that they write.
    shown = [
        f"{name}=[{_text(value, imported)}]"
        for name, value in ast.iter_fields(node)
        if value is not None and value != [] and name not in ("ctx", "type_comment", "kind")
    ]
    return f"{type(node).__name__}({','.join(shown)})"


_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def code_version(root: Path | None = None) -> dict[str, Any]:
    """commit, dirty, digest and diff of the checkout at `root` (default: where this package lies).

    Of frozen code (runs/_code) the first, second and last are those of the checkout it was taken from.
    Elsewhere outside a git checkout the commit is null and only the digest speaks.
    """
    root = PACKAGE.parent if root is None else Path(root)
    package = root / "sdtps"
    if (frozen := read_bytes(root / SNAPSHOT_RECORD)) is not None:
        return {**json.loads(frozen), "digest": source_digest(package)}
    commit = git(root, "rev-parse", "HEAD")
    diff = git(root, "diff", "HEAD", "--", "sdtps") or ""
    changed = git(root, "status", "--porcelain", "--", "sdtps") or ""
    if len(diff) > DIFF_LIMIT:
        diff = f"{diff[:DIFF_LIMIT]}\n... cut: {len(diff)} characters in all\n"
    return {
        "commit": commit.strip() if commit else None,
        "dirty": bool(changed.strip()),
        "digest": source_digest(package if package.is_dir() else PACKAGE),
        "diff": diff,
    }


def git(root: Path, *arguments: str) -> str | None:
    """What git says of `root`; None where there is no git or no checkout, or it takes half a minute."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


_version = cache(importlib.metadata.version)


def environment() -> dict[str, Any]:
    """Python, packages, host, processor count and GPU (named only where torch is loaded already)."""
    torch = sys.modules.get("torch")
    versions: dict[str, str] = {}
    for name in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = _version(name)
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": versions,
        "host": platform.node(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "gpu": torch.cuda.get_device_name(0) if torch and torch.cuda.is_available() else None,
    }


def slurm() -> dict[str, str]:
    """The scheduler's ids of this process; empty outside SLURM."""
    return {key: os.environ[name] for key, name in SLURM_VARIABLES.items() if name in os.environ}


@dataclass(frozen=True)
class Origin:
    """Digests of sources, data and weights, kept in checkpoints and in result.json.

    A run's identity names data and weights as the configuration does; the files behind these names can
    change. A run resumes only with the data and the weights it began with. It may resume with changed
    sources; its result then names both.
    """

    code: list[str]  # `source_digest` of every attempt that trained it, in order
    data: str | None  # digest of what the data set holds
    weights: dict[str, str]  # digest of each file of weights, by the part that it was loaded into
    amp: str | None = None  # precision of the products: off, fp16 or bf16

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Origin:
        """Of a run that begins here, from `Task.record`."""
        data, weights = record.get("data") or {}, record.get("weights") or {}
        files = {**weights, "init": record.get("init")}
        digests = {part: file["digest"] for part, file in files.items() if file is not None}
        return cls([source_digest()], data.get("digest"), digests, record.get("amp"))

    def resumed_from(self, saved: Mapping[str, Any], checkpoint: Path) -> Origin:
        """Of a run that resumes here from `checkpoint`, which holds `saved`.

        Raises:
            RunError: the checkpoint was trained on other data, or from other weights.
        """
        mistakes = []
        if saved["data"] != self.data:
            mistakes.append(f"trained on other data (digest {saved['data']}) than here ({self.data})")
        for part in sorted({*saved["weights"], *self.weights}):
            theirs, ours = (of.get(part, "none") for of in (saved["weights"], self.weights))
            if theirs != ours:
                mistakes.append(
                    f"trained from other weights of {part} (digest {theirs}) than here ({ours})"
                )
        if saved.get("amp") not in (None, self.amp):
            mistakes.append(
                f"trained with amp {saved['amp']}, which on this machine is {self.amp} (train.amp)"
            )
        if mistakes:
            raise RunError(
                f"{checkpoint}: {'; '.join(mistakes)}. Resume with what the run "
                "began with (run.json), or delete the checkpoint to start anew."
            )
        earlier = [code for code in saved["code"] if code not in self.code]
        return Origin([*earlier, *self.code], self.data, self.weights, self.amp)

    def as_dict(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key != "amp" or value}
