"""sdtps data STUDY: what data and weights its runs would read, counted, and what is wrong with them.

Exit code 1 where a run would fail.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ablations.study.arguments import add_data_root, add_study, filtered, print_json, read_studies
from sdtps.system.commandline import add_json, add_variants

if TYPE_CHECKING:
    from sdtps.data.inputs import Look


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_study(parser)
    add_variants(parser)
    add_data_root(parser)
    add_json(parser)


def command(arguments: argparse.Namespace) -> int:
    """Look at each distinct input of the study's variants: names, images to their end, weights."""
    from sdtps.data.inputs import look_at

    study = filtered(read_studies(arguments)[0], arguments.variant, [])
    looks = look_at([variant.config for variant in study.variants.values()], images=True)
    if arguments.json:
        print_json([[asdict(look) for look in looks]])
    elif looks:
        print("\n\n".join("\n".join(lines(look)) for look in looks))
    else:
        print("Every variant is a program of its own, and what it needs is here.")
    return 1 if any(look.unseen or look.mistakes for look in looks) else 0


def lines(look: Look) -> list[str]:
    """A look as text."""
    told = []
    if look.data is not None:
        place = look.data["root"] or f"generated: {_counted(look.data['generated'])}"
        told.append(f"{look.data['name']}: {place}")
        for split, counts in look.data.get("counts", {}).items():
            told.append(f"  {split.replace('_', ' ')}: {_counted(counts)}")
    told += [f"{part}: {file}" for part, file in look.weights.items()]
    told += [f"warning: {text}" for text in look.warnings]
    told += [f"not here: {text}" for text in look.unseen]
    told += [f"mistake: {text}" for text in look.mistakes]
    return told


def _counted(counts: Any) -> str:
    if not isinstance(counts, dict):
        return str(counts)
    return ", ".join(f"{value} {name.replace('_', ' ')}" for name, value in counts.items())
