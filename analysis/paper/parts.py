"""Parts of the paper that need the model itself: the claims' verdicts and the gradient audits.

They take longer than reading runs, so each is kept while nothing that it depends on has changed: the
sources of sdtps, the ledger and its checks, manifests, results. evidence.json holds that key and the
digests of the files, which is what `analysis.paper.check` compares.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.runs.record import fingerprint
from analysis.tables.forms import write, write_if_changed

if TYPE_CHECKING:
    from ablations.study.model import Study

RECORD = "evidence.json"
LEDGER = Path("paper/claims.yaml")
HERE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Part:
    """One part: what it depends on, and how it is written (returns its files); `study` of an audit."""

    name: str
    key: str
    make: Callable[[Path], list[Path]]
    study: Study | None = None


def parts(
    studies: Sequence[Study],
    runs_dir: Path,
    *,
    ledger: Path = LEDGER,
    studies_dir: Path = Path("ablations"),
) -> list[Part]:
    """The claims (where there is a ledger), and the audit of each study that has a configuration."""
    from sdtps.run.provenance import package_digest

    code = package_digest()
    found = []
    for study in studies:
        if getattr(study, "imported", False):
            continue
        key = _digest(code, study.digest, _sources("tables/audit.py"))
        make = partial(_audit, study)
        found.append(Part(f"audit {study.name}", key, make, study))
    if ledger.exists():
        results = [fingerprint(runs_dir / path.stem) for path in sorted(studies_dir.glob("*.yaml"))]
        manifests = [path.read_text(encoding="utf-8") for path in sorted(studies_dir.glob("**/*.yaml"))]
        checks = _sources("claims/**/*.py")
        key = _digest(code, ledger.read_text(encoding="utf-8"), *results, *manifests, checks)
        found.append(Part("claims", key, lambda folder: _claims(folder, ledger, studies_dir, runs_dir)))
    return found


def update(folder: Path, wanted: Sequence[Part], say: Callable[[str], None]) -> list[Path]:
    """Make the parts that are not current below `folder`; returns all files of all parts."""
    record = read(folder)
    files: list[Path] = []
    for part in wanted:
        if not _current(folder, record.get(part.name), part.key):
            say(part.name)
            made = part.make(folder)
            record[part.name] = {
                "key": part.key,
                "files": {str(p.relative_to(folder)): _sha256(p) for p in made},
            }
        files += [folder / name for name in record[part.name]["files"]]
    record = {part.name: record[part.name] for part in wanted}
    write_if_changed(folder / RECORD, (json.dumps(record, indent=1) + "\n").encode())
    _numbers(folder, wanted)
    return files


def read(folder: Path) -> dict[str, Any]:
    path = folder / RECORD
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def kept(folder: Path) -> set[Path]:
    """Files that a build of tables and figures must leave alone."""
    return {folder / name for entry in read(folder).values() for name in entry["files"]}


def faults(folder: Path, wanted: Sequence[Part]) -> list[tuple[str, str, str]]:
    """(kind, file or part, what is wrong) for parts that are stale, edited or gone."""
    record = read(folder)
    found = []
    for part in wanted:
        entry = record.get(part.name)
        if entry is None:
            found.append(("missing file", part.name, "it was not made"))
            continue
        if entry["key"] != part.key:
            found.append(("stale", part.name, "the code, a manifest, the ledger or results changed"))
        for name, digest in entry["files"].items():
            path = folder / name
            if not path.exists():
                found.append(("missing file", str(path), "it was made and is gone"))
            elif _sha256(path) != digest:
                found.append(("edited", str(path), "edited by hand: it is not what was made"))
    return found


def _current(folder: Path, entry: dict[str, Any] | None, key: str) -> bool:
    return (
        entry is not None
        and entry["key"] == key
        and all(
            (folder / name).exists() and _sha256(folder / name) == digest
            for name, digest in entry["files"].items()
        )
    )


# -- making -------------------------------------------------------------------------------------


def _claims(folder: Path, ledger: Path, studies_dir: Path, runs_dir: Path) -> list[Path]:
    from analysis.claims.command import runs_behind
    from analysis.claims.ledger import evaluate, load
    from analysis.claims.report import write as write_claims

    claims = load(ledger)
    collected = runs_behind(claims, [], studies_dir=studies_dir, runs_dir=runs_dir)
    return write_claims(evaluate(claims, collected), folder)


def _audit(study: Study, folder: Path) -> list[Path]:
    from analysis.tables.audit import audit_table
    from sdtps.audit.audit import audit
    from sdtps.audit.audit import write as write_audit

    audited = audit(
        study.models(),
        study.baseline,
        study=study.name,
        labels={name: variant.label for name, variant in study.variants.items()},
    )
    path = folder / "audits" / f"{study.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_audit(audited, path)
    document = json.loads(path.read_text(encoding="utf-8"))
    return [path, *write(audit_table(document), folder / "tables")]


def _numbers(folder: Path, wanted: Sequence[Part]) -> None:
    r"""audit-numbers.tex: \res{study}{variant}{audit.PART}, as the audit's table prints it."""
    from analysis.paper.macros import definition
    from analysis.tables.audit import PARTS, audit_table
    from analysis.tables.latex import latex_cell

    lines = ["% made by sdtps paper; do not edit"]
    for part in wanted:
        if part.study is None:
            continue
        path = folder / "audits" / f"{part.study.name}.json"
        if not path.exists():
            continue
        table = audit_table(json.loads(path.read_text(encoding="utf-8")))
        for row in table.rows:
            for column, cell in zip(table.columns, row.cells, strict=True):
                if cell.text and (column.key in PARTS or column.key in ("cosine", "untrained")):
                    slug = part.study.variants[row.key].slug
                    key = f"audit.{column.key}"
                    lines.append(definition(table.study, slug, key, latex_cell(cell)))
    write_if_changed(folder / "audit-numbers.tex", ("\n".join(lines) + "\n").encode())


# -- keys ---------------------------------------------------------------------------------------


def _sources(*patterns: str) -> str:
    files = sorted({path for pattern in patterns for path in HERE.glob(pattern)})
    return _digest(*(path.read_text(encoding="utf-8") for path in files))


def _digest(*texts: str) -> str:
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()[:16]


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
