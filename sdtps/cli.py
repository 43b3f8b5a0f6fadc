"""python -m sdtps: one run, images to run on, published weights. Each command imports what it needs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from sdtps.commandline import Parser, at_least
from sdtps.errors import SdtpsError

EXIT_CODES = {"completed": 0, "diverged": 3, "requeued": 75}  # 75: temporary failure, try again


def run(arguments: argparse.Namespace) -> int:
    from sdtps.training.job import execute

    outcome = execute(arguments.folder, max_steps=arguments.max_steps)
    print(f"{arguments.folder}: {outcome}")
    return EXIT_CODES[outcome]


def generate(arguments: argparse.Namespace) -> int:
    from sdtps.config.reid import GeneratedReidConfig
    from sdtps.data.generated import generate_rgbnt201

    config = GeneratedReidConfig(
        train_pids=arguments.train_pids,
        test_pids=arguments.test_pids,
        cameras=arguments.cameras,
        images_per_camera=arguments.images_per_camera,
        seed=arguments.seed,
    )
    root = generate_rgbnt201(config, arguments.height, arguments.width, arguments.root)
    print(root)
    return 0


def convert(arguments: argparse.Namespace) -> int:
    from sdtps.models.convert import convert_file

    layout, count = convert_file(
        arguments.source, arguments.target, layout=arguments.layout, to=arguments.to
    )
    print(f"{arguments.target}: {count} tensors of {layout.name} under {arguments.to} names")
    return 0


def audit(arguments: argparse.Namespace) -> int:
    # The only place where this package reads a study: the command takes a manifest.
    from rich.console import Console

    from ablations.study.manifest import load_study
    from sdtps.audit.audit import audit as examine
    from sdtps.audit.audit import show, write
    from sdtps.config import RetrievalConfig
    from sdtps.run.folder import find_runs

    study = load_study(arguments.study)
    audited = examine(
        {name: variant.config for name, variant in study.variants.items()},
        study.baseline,
        study=study.name,
        labels={name: variant.label for name, variant in study.variants.items()},
        only=arguments.variant,
        steps=arguments.steps,
    )
    for name in audited.examinations:
        config = study.variants[name].config
        if isinstance(config, RetrievalConfig):
            from sdtps.audit.leak import audit_leak, leak_findings, worth

            runs = find_runs(arguments.runs / study.name)
            value = worth(run for run in runs if run.run().get("variant") == name)
            audited.findings.extend(leak_findings(name, audit_leak(config), value))
    show(audited, Console())
    if arguments.json is not None:
        write(audited, arguments.json)
    return 1 if arguments.strict and audited.warnings() else 0


def bench(arguments: argparse.Namespace) -> int:
    """One measurement; without a name all that need no GPU, one JSON object a line."""
    import json

    import torch

    from benchmarks import crossnet, data, evaluation, frozen, gpu, rows, step
    from benchmarks.machine import pick_device

    device = pick_device(arguments.device)
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    if arguments.bench == "gpu":
        for result in gpu.run(device):
            print(json.dumps(result), flush=True)
        return 0
    benches = {
        "step": lambda: step.run(device),
        "data": lambda: data.run(device),
        "eval": lambda: evaluation.run(device),
        "frozen": lambda: frozen.run(device),
        "logging": lambda: rows.run(device),
        "crossnet": lambda: crossnet.run(device.type),
    }
    if arguments.bench is not None:
        print(json.dumps(benches[arguments.bench](), indent=2))
        return 0
    for measure in benches.values():
        print(json.dumps(measure()), flush=True)
    return 0


def bench_crossnet(arguments: argparse.Namespace) -> int:
    import json

    import torch

    from benchmarks import crossnet

    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    result = crossnet.run(
        arguments.device or ("cuda" if torch.cuda.is_available() else "cpu"),
        form=arguments.form,
        pairs=arguments.pairs and tuple(arguments.pairs),
        block=arguments.block and tuple(arguments.block),
        repeats=arguments.repeats,
        chunk=arguments.chunk,
    )
    print(json.dumps(result, indent=2))
    return 0


def parser() -> argparse.ArgumentParser:
    """The whole command line; every block adds one command."""
    top = Parser(prog="python -m sdtps", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True)

    block = commands.add_parser("run", help="run, or go on with, the run in a folder")
    block.add_argument("folder", type=Path, help="runs/STUDY/VARIANT/seedK-HASH")
    block.add_argument(
        "--max-steps", type=at_least(1), help="stop with a checkpoint after this many steps"
    )
    block.set_defaults(handler=run)

    block = commands.add_parser("generate", help="write three-modality images in RGBNT201's layout")
    block.add_argument("root", type=Path, help="folder that will hold the generated RGBNT201/")
    block.add_argument("--train-pids", type=at_least(2), default=24)
    block.add_argument("--test-pids", type=at_least(1), default=16)
    block.add_argument("--cameras", type=at_least(2), default=2)
    block.add_argument("--images-per-camera", type=at_least(1), default=4)
    block.add_argument("--height", type=at_least(1), default=64)
    block.add_argument("--width", type=at_least(1), default=32)
    block.add_argument("--seed", type=at_least(0), default=0)
    block.set_defaults(handler=generate)

    block = commands.add_parser("audit", help="which parts of a study's variants learn, on toy sizes")
    block.add_argument("study", type=Path, help="ablations/STUDY.yaml")
    block.add_argument("--variant", nargs="+", action="extend", help="only these, and the baseline")
    block.add_argument(
        "--steps", type=at_least(1), default=10, help="training steps before the second look"
    )
    block.add_argument("--json", type=Path, help="write the figures here")
    block.add_argument("--strict", action="store_true", help="exit with 1 if there is a warning")
    block.add_argument(
        "--runs", type=Path, default=Path("runs"), help="what a leak is worth (retrieval)"
    )
    block.set_defaults(handler=audit)

    block = commands.add_parser("convert", help="published weights to ours, or back")
    block.add_argument("source", type=Path, help=".safetensors, .pt or .pth, read without running code")
    block.add_argument("target", type=Path, help=".safetensors, .pt or .pth")
    block.add_argument("--to", choices=["ours", "published"], default="ours")
    block.add_argument("--layout", help="whose names they are; found by itself where only one fits")
    block.set_defaults(handler=convert)

    block = commands.add_parser("bench", help="time what was made fast beside the plain form")
    common = Parser(add_help=False)
    common.add_argument("--device", choices=["cpu", "cuda"], help="default: a GPU if there is one")
    common.add_argument("--threads", type=at_least(1), help="CPU threads; default: torch's")
    block.set_defaults(handler=bench, bench=None, device=None, threads=None)
    benches = block.add_subparsers(dest="bench", required=False)
    for name, text in (
        ("step", "a training step and DeMo's three encoder calls"),
        ("data", "cached images and JPEG files"),
        ("eval", "ranking 836 x 836 and a loop over queries"),
        ("frozen", "a step on cached outputs of a frozen backbone and one that calls it"),
        ("logging", "a logged row and the steps between two rows"),
        ("gpu", "all of these at full size on a GPU, and a whole run"),
    ):
        benches.add_parser(name, help=text, parents=[common])
    block = benches.add_parser(
        "crossnet", help="the batched cross-net and the loop over captions", parents=[common]
    )
    block.add_argument("--form", choices=["laps", "released", "paper"], default="released")
    size: dict[str, Any] = {"type": int, "nargs": 2, "metavar": ("IMAGES", "CAPTIONS")}
    block.add_argument("--pairs", **size, help="in training; default 8 8 on a CPU, 64 64 on a GPU")
    block.add_argument("--block", **size, help="in evaluation; default 32 16, or 500 500 on a GPU")
    block.add_argument("--repeats", type=at_least(1), default=5, help="medians count")
    block.add_argument("--chunk", type=at_least(1), help="pairs at once, as matching.chunk")
    block.set_defaults(handler=bench_crossnet)
    return top


def main(words: list[str] | None = None) -> int:
    arguments = parser().parse_args(words)
    try:
        return int(arguments.handler(arguments))
    except SdtpsError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
