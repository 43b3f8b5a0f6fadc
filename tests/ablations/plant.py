"""Studies for dispatch's tests: their variants are named after how their runs end (see standin.py)."""

from __future__ import annotations

from pathlib import Path

from ablations.study.manifest import load_study
from ablations.study.model import Study


def study(
    folder: Path,
    variants: list[str],
    *,
    name: str = "endings",
    seeds: int = 1,
    resources: str = "{partition: gpu, gpus: 0, cpus: 1, mem_gb: 0.2, timeout_min: 5}",
    own: dict[str, str] | None = None,
) -> Study:
    """A checked study; each variant differs from the base by a number that nothing reads here.

    Args:
        own: variant to resources of its own.
    """
    lines = [
        f"study: {name}",
        "task: reid",
        f"seeds: {list(range(seeds))}",
        f"baseline: {variants[0]}",
        "varies: [optim.lr]",
        f"resources: {resources}",
        "metrics: {mAP: {direction: up}}",
        "variants:",
    ]
    for number, variant in enumerate(variants, start=1):
        extra = f", resources: {own[variant]}" if own and variant in own else ""
        lines.append(f"  {variant}: {{optim.lr: {number}e-6{extra}}}")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.yaml"
    path.write_text("\n".join(lines) + "\n")
    return load_study(path)
