"""Published checkpoints to ours and back, as files.

    token_sparse, token_aggregation, multimodal_sdtps, fusion, crossnet, clip_visual    single modules
    demo    DeMo and DeMo2, whole models
    seps    SEPS and LAPS, whole models

`sdtps convert IN OUT` finds the layout by itself; `--to published` goes back.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import save as save_safetensors
from torch import Tensor

from sdtps.errors import WeightsError, did_you_mean
from sdtps.files import write_bytes
from sdtps.models.published import LAYOUTS, Layout
from sdtps.models.weights import read_tensors

Direction = Literal["ours", "published"]


def layout_named(name: str) -> Layout:
    """The layout of that name.

    Raises:
        WeightsError: there is none; names the nearest.
    """
    if name not in LAYOUTS:
        raise WeightsError(f"unknown layout '{name}'. {did_you_mean(name, LAYOUTS)}")
    return LAYOUTS[name]


def find_layout(names: list[str], to: Direction) -> Layout:
    """The only layout that has a place for every name.

    Raises:
        WeightsError: none has, or several have; names what the nearest one refuses.
    """
    refused = {name: layout.refused(names, to) for name, layout in LAYOUTS.items()}
    fitting = [name for name, left in refused.items() if not left]
    if len(fitting) == 1:
        return LAYOUTS[fitting[0]]
    if fitting:
        raise WeightsError(f"these tensors fit several layouts, name one: {', '.join(fitting)}")
    nearest = min(refused, key=lambda name: len(refused[name]))
    raise WeightsError(
        f"no layout fits. The nearest, {nearest}, has no place for "
        + "\n  ".join([f"{len(refused[nearest])} of {len(names)} tensors:", *refused[nearest]])
    )


def convert(state: Mapping[str, Tensor], layout: Layout, to: Direction) -> dict[str, Tensor]:
    """`state` under the other names, checked to come back as it was.

    Raises:
        WeightsError: tensors without a place, by name.
    """
    there, back = layout.to_ours, layout.to_published
    if to == "published":
        there, back = back, there
    converted = there(state)
    returned = back(converted)
    lost = [
        name
        for name, value in state.items()
        if name not in returned or not _equal(returned[name], value)
    ]
    if lost or len(returned) != len(state):
        raise WeightsError("\n".join(f"{name}: would not survive the way back" for name in lost))
    return converted


def _equal(first: Tensor, second: Tensor) -> bool:
    return first.dtype == second.dtype and torch.equal(first.nan_to_num(), second.nan_to_num())


def convert_file(
    source: Path, target: Path, *, layout: str | None = None, to: Direction = "ours"
) -> tuple[Layout, int]:
    """Convert a safetensors or PyTorch file into another, by the target's suffix.

    PyTorch files are read with `weights_only`; what stands beside the state dict in a training
    checkpoint (options, epoch) is left out. A `module.` in front of every name is DataParallel's.

    Returns:
        the layout and the number of tensors written.

    Raises:
        WeightsError: an unreadable file, or tensors without a place, by name.
    """
    if target.suffix not in (".safetensors", ".pt", ".pth"):
        raise WeightsError(f"{target}: writes .safetensors, .pt or .pth")
    with torch.serialization.safe_globals([argparse.Namespace]):  # the options that SEPS and LAPS save
        state = read_tensors(source)
    if all(name.startswith("module.") for name in state):
        state = {name.removeprefix("module."): value for name, value in state.items()}
    chosen = find_layout(list(state), to) if layout is None else layout_named(layout)
    converted = {name: value.contiguous() for name, value in convert(state, chosen, to).items()}
    write_tensors(target, converted, {"layout": chosen.name, "names": to})
    return chosen, len(converted)


def write_tensors(path: Path, state: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """A state dict as safetensors or PyTorch file, whole or not at all."""
    if path.suffix == ".safetensors":
        # Its own storage for each: safetensors refuses tensors that share one.
        content = save_safetensors({name: value.clone() for name, value in state.items()}, metadata)
    else:
        stream = io.BytesIO()
        torch.save(state, stream)
        content = stream.getvalue()
    write_bytes(path, content)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", type=Path, help=".safetensors, .pt or .pth; no code in it is run")
    parser.add_argument("target", type=Path, help=".safetensors, .pt or .pth")
    parser.add_argument("--to", choices=["ours", "published"], default="ours")
    parser.add_argument("--layout", help="whose names they are; found by itself where only one fits")


def command(arguments: argparse.Namespace) -> int:
    """The verb `convert`."""
    layout, count = convert_file(
        arguments.source, arguments.target, layout=arguments.layout, to=arguments.to
    )
    print(f"{arguments.target}: {count} tensors of {layout.name} under {arguments.to} names")
    return 0
