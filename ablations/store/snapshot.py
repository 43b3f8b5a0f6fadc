"""The code as it is at submission, frozen in runs/_code/DIGEST/: what jobs import, whenever they start.

A job that waits for days in the queue must not run what was edited meanwhile. The snapshot is what
would run here and now: every file of the packages below that git tracks, with uncommitted edits, and
new files that git does not ignore. code.json beside them says which commit that was and how it differs.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
from pathlib import Path

from sdtps.run import provenance
from sdtps.system.files import sync_directory, write_json

# What a job imports. `analysis` reads the log of a program that is a variant.
PACKAGES = ("sdtps", "ablations", "analysis")
CODE = "_code"
ROOT = Path(__file__).resolve().parents[2]


def freeze(runs_dir: Path, root: Path | None = None) -> Path:
    """The snapshot of the code in `root` (this checkout), made if it is not there yet.

    Equal code shares one folder.
    """
    root = ROOT if root is None else root
    files = _files(root)
    contents = {name: (root / name).read_bytes() for name in files}
    digest = hashlib.sha256()
    for name, content in contents.items():
        digest.update(name.encode() + b"\0" + hashlib.sha256(content).digest())
    store = Path(runs_dir).resolve() / CODE
    target = store / digest.hexdigest()[:16]
    if target.is_dir():
        return target
    store.mkdir(parents=True, exist_ok=True)
    # Whole or absent: filled beside its place, then renamed. Whoever comes second drops its copy.
    temporary = Path(tempfile.mkdtemp(dir=store, prefix=".new-"))
    try:
        for name, content in contents.items():
            file = temporary / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        write_json(temporary / provenance.SNAPSHOT_RECORD, provenance.code_version(root))
        temporary.chmod(0o775 if store.stat().st_mode & stat.S_IWGRP else 0o755)
        sync_directory(temporary)
        os.rename(temporary, target)  # noqa: PTH104  Path.rename would do the same
    except OSError as error:
        if not target.is_dir():
            error.filename, error.filename2 = str(store), None  # a write names nothing
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def _files(root: Path) -> list[str]:
    """Relative paths of the packages' files, sorted."""
    listing = ("ls-files", "-z", "-co", "--exclude-standard", "--", *PACKAGES)
    names = (provenance.git(root, *listing) or "").split("\0")
    if not any(names):  # not a checkout: an unpacked archive, or a snapshot itself
        names = [
            file.relative_to(root).as_posix()
            for package in PACKAGES
            for file in (root / package).rglob("*")
            if "__pycache__" not in file.parts
        ]
    # Manifests are data; a run has its own resolved configuration.
    kept = {n for n in names if n and not n.endswith((".yaml", ".yml", ".md")) and (root / n).is_file()}
    return sorted(kept)
