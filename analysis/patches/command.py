"""`sdtps patches RUN... -o FILE.png`: runs side by side on the same images."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from sdtps.commandline import at_least
from sdtps.errors import RunError
from sdtps.files import write_bytes, write_text
from sdtps.run.folder import RunFolder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `patches`."""
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folders, left to right")
    parser.add_argument(
        "-o", "--output", type=Path, required=True, help="a .png; FILE.txt gets its caption"
    )
    parser.add_argument(
        "--images", type=at_least(1), default=4, help="test identities to show (default 4)"
    )
    parser.add_argument("--initial", action="store_true", help="show the first run before training too")


def command(arguments: argparse.Namespace) -> int:
    """Draw; prints the file. Raises RunError."""
    write(arguments.runs, arguments.output, count=arguments.images, initial=arguments.initial)
    print(arguments.output)
    return 0


def write(paths: Sequence[Path], output: Path, *, count: int = 4, initial: bool = False) -> None:
    """Write the picture and beside it its caption, which the report shows with it.

    Raises:
        RunError: a run that cannot be drawn (named), or a count below 1.
    """
    from analysis.patches.maps import choose, load_images, name_of, reid_config, run_maps
    from analysis.patches.picture import draw
    from sdtps.data.reid_folders import load_reid_data

    if count < 1:
        raise RunError(f"--images {count}: at least 1")
    if output.suffix.lower() != ".png":
        raise RunError(f"{output}: patch pictures are PNG; name the file FILE.png")
    config = reid_config(RunFolder(paths[0]))
    dataset, _ = load_reid_data(config)
    samples = choose(dataset, count)
    names = [name_of(sample, dataset) for sample in samples]
    images = load_images(config, dataset, samples)
    runs = [run_maps(paths[0], names, initial=True)] if initial else []
    runs += [run_maps(path, names) for path in paths]
    output.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(output, draw(images, runs))
    shown = "; ".join(r.label for r in runs)
    text = (
        f"Patches of {len(names)} test images of {dataset.name} in their three modalities. {shown}. "
        "Dark: dropped; plain: kept; orange: share in the aggregated tokens, faint where it is that of "
        "every kept patch, strongest from three times that."
    )
    write_text(output.with_suffix(".txt"), text + "\n")
