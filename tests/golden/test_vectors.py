"""Every golden file is reproduced by some test; none lies unread."""

from __future__ import annotations

import ast
from fnmatch import fnmatch
from pathlib import Path

from tests.golden.conftest import FOLDERS

HERE = Path(__file__).parent
# Versions of DGAF that are in no log.
NOT_BUILT = {"dgaf_class1_concat", "dgaf_v2", "dgaf_v3multi6", "dgaf_v4"}


def patterns() -> set[str]:
    """All strings of the golden tests; in f-strings a value counts as any text."""
    found: set[str] = set()
    for path in HERE.glob("test_*.py"):
        if path.name == Path(__file__).name:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
            if isinstance(node, ast.JoinedStr):
                parts = (p.value if isinstance(p, ast.Constant) else "*" for p in node.values)
                found.add("".join(str(part) for part in parts))
    return {pattern for pattern in found if pattern.strip("*")}


def test_every_vector_is_claimed_by_a_test() -> None:
    stems = [path.stem for folder in FOLDERS for path in folder.glob("*.npz")]
    assert all(any(folder.glob("*.npz")) for folder in FOLDERS)
    claimed = patterns() | NOT_BUILT
    assert [stem for stem in stems if not any(fnmatch(stem, p) for p in claimed)] == []


def test_all_published_cases_are_here() -> None:
    assert len(list((HERE / "vectors").glob("*.npz"))) == 32
