"""Run folders with known contents, written through `sdtps.run.folder`: no trainer needed.

study = planted_study("demo", ["topk", "gumbel"], seeds=(0, 1, 2))
plant(runs_dir, study, "topk", 0, scores={"mAP": [0.5, 0.7, 0.6]})
plant(runs_dir, study, "gumbel", 1, state="diverged", stop=(3, 12))
collected = collect([study], runs_dir)
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ablations.store.locks import Lock
from ablations.study.model import Study, Variant
from ablations.study.schema import FigureSpec, MetricSpec, Resources, TableSpec
from sdtps.config import ReidConfig, parse_config
from sdtps.run.folder import RunFolder

CODE = {"commit": "a" * 40, "dirty": False, "digest": "c0de" * 16}
PERCENT = MetricSpec(direction="up", digits=1)
PERCENT_RANK1 = MetricSpec(direction="up", digits=1, label="Rank-1")
OTHER_CODE = {"commit": "b" * 40, "dirty": False, "digest": "beef" * 16}


def planted_study(
    name: str,
    variants: Sequence[str] | Mapping[str, Mapping[str, Any]],
    *,
    seeds: Iterable[int] = (0, 1, 2),
    metrics: Mapping[str, MetricSpec] | None = None,
    **fields: Any,
) -> Study:
    """A study without a manifest, whose variants differ in keep_ratio only.

    Args:
        variants: names, or a mapping from name to fields of `Variant` (label, components, color ...).
        fields: fields of `Study`; the baseline is the first variant unless given.
    """
    given = variants if isinstance(variants, Mapping) else {name: {} for name in variants}
    made = {}
    for number, (variant, more) in enumerate(given.items()):
        overrides = {"sdtps.keep_ratio": round(0.05 + 0.9 * number / max(20, len(given)), 6)}
        config = parse_config({"task": "reid", "sdtps": {"keep_ratio": overrides["sdtps.keep_ratio"]}})
        slug = re.sub("[^a-z0-9]+", "-", variant.lower()).strip("-") or "variant"
        made[variant] = Variant(
            **{
                "name": variant,
                "slug": slug if slug not in {v.slug for v in made.values()} else f"{slug}-{number}",
                "label": variant,
                "config": config,
                "overrides": overrides,
                "resources": Resources(),
                **more,
            }
        )
    study = {
        "name": name,
        "path": Path(f"ablations/{name}.yaml"),
        "task": "reid",
        "seeds": tuple(seeds),
        "baseline": next(iter(made)),
        "base": ReidConfig(),
        "varies": ("sdtps.keep_ratio",),
        "variants": made,
        "resources": Resources(),
        "metrics": dict(metrics or {"mAP": PERCENT, "rank1": PERCENT_RANK1}),
        "tables": (TableSpec(name="main"),),
        "figures": (FigureSpec(name="loss"),),
        "reported": (),
        "title": name,
        "notes": "",
        "digest": "d1" * 8,
    }
    return Study(**{**study, **fields})


def falling(step: int) -> float:
    return 2.0 * math.exp(-step / 10) + 0.5


def plant(
    runs_dir: Path,
    study: Any,
    variant: str,
    seed: int,
    *,
    state: str = "completed",
    scores: Mapping[str, Sequence[float]] | None = None,
    loss: Callable[[int], float] | None = None,
    logged: Mapping[str, Callable[[int], float]] = {},
    steps_per_epoch: int = 5,
    stop: tuple[int, int] | None = None,
    reason: str | None = None,
    code: Mapping[str, Any] | None = CODE,
    selected_on: str = "test",
    silent_seconds: float = 1.0,
    imported: bool = False,
    train_seconds: float = 60.0,
    **run_fields: Any,
) -> RunFolder:
    """Write one run folder of `study`.

    Args:
        state: completed, diverged, failed, cancelled, running, requeued or queued.
        scores: for each metric its value after each epoch, in [0, 1]; the first decides the best.
        loss: training loss at a step (from 1); None: falling, a little different for each seed.
        logged: what else each training step logs, as `loss`.
        stop: (epoch, step) of the last row; a diverged run's loss there is NaN.
    """
    spec = next(r for r in study.runs() if r.variant == variant and r.seed == seed)
    folder = RunFolder(spec.folder(runs_dir))
    loss = loss or (lambda step: falling(step) * (1 + 0.01 * seed))
    scores = scores or {"mAP": [0.4, 0.6], "rank1": [0.5, 0.7]}
    epochs = len(next(iter(scores.values())))
    folder.create(
        spec.config,
        {
            "study": study.name,
            "variant": variant,
            "seed": seed,
            "identity": spec.identity,
            "code": dict(code or {}),
            "environment": {"host": "node01", "gpu": "NVIDIA H100", "python": "3.11"},
            "parameters": 1000,
            "data": {"name": "rgbnt201", "root": "data", "digest": "f00d", "generated": True},
            "attempts": [
                {
                    "attempt": 1,
                    "started": "2026-01-01T00:00:00Z",
                    "ended": "2026-01-01T00:02:00Z",
                    "host": "node01",
                    "job_id": f"77_{seed}",
                    "ended_as": state,
                }
            ],
            **({"imported": True} if imported else {}),
            **run_fields,
        },
    )
    if state == "queued":
        own = Lock.new("s", "local")
        folder.lock_file.write_text(json.dumps(own.json()))
        return folder
    last_epoch, last_step = stop or (epochs, epochs * steps_per_epoch)

    def row(kind: str, epoch: int, step: int, **values: float) -> dict[str, Any]:
        return {"attempt": 1, "kind": kind, "epoch": epoch, "step": step, **values}

    evaluations: list[dict[str, Any]] = []
    for step in range(1, last_step + 1):
        epoch = (step - 1) // steps_per_epoch + 1
        value = math.nan if state == "diverged" and step == last_step else loss(step)
        train = {"loss": value, "lr": 1e-3, "grad_norm": 1.0 + seed}
        train |= {name: line(step) for name, line in logged.items()}
        folder.append_metrics(row("train", epoch, step, **train))
        if step % steps_per_epoch == 0 and epoch <= epochs and not math.isnan(value):
            reached = {name: values[epoch - 1] for name, values in scores.items()}
            evaluations.append(row("eval", epoch, step, **reached))
            folder.append_metrics(evaluations[-1])
    told = {"attempt": 1, "epoch": last_epoch, "step": last_step}
    told |= {"heartbeat": time.time() - silent_seconds, **({"reason": reason} if reason else {})}
    told |= {"kind": "oom"} if "out of memory" in (reason or "") else {}
    if state == "completed":
        first = next(iter(scores))
        best = max(evaluations, key=lambda row: (row[first], -row["epoch"]))
        folder.write_result(
            {
                "attempt": 1,
                "best": best,
                "final": evaluations[-1],
                "selected_on": selected_on,
                "train_seconds": train_seconds,
                "peak_memory_mib": 512.0,
                "steps": last_step,
                "images_per_s": 100.0,
            }
        )
    folder.write_status(state, **told)
    return folder


@contextmanager
def sketched() -> Iterator[None]:
    """A figure's files hold its lines' points as text: for who builds often and reads no picture."""
    from matplotlib.figure import Figure

    from analysis.figures.published_logs import record_figure

    def sketch(picture: Figure, stream: Any, format: str, **_: Any) -> None:
        lines = [line.get_xydata().tolist() for axes in picture.axes for line in axes.lines]
        stream.write(f"{len(lines)} lines as {format}: {lines}\n".encode())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", sketch)
        record_figure.cache_clear()  # kept by a process
        yield
        record_figure.cache_clear()


def reseal(folder: RunFolder, **fields: Any) -> None:
    """As if the run had completed with its files as they are now, and with `fields` in its result."""
    result = {**(folder.result() or {}), **fields}
    result.pop("seal", None)
    folder.result_file.unlink()
    folder.write_result(result)


def plant_all(runs_dir: Path, study: Any, **fields: Any) -> None:
    """Every planned run of `study`, completed; seeds differ by 0.01 in every score."""
    for number, variant in enumerate(study.variants):
        for seed in study.seeds:
            base = 0.5 + 0.03 * number + 0.01 * seed
            scores = {name: [base - 0.1, base] for name in study.metrics}
            plant(runs_dir, study, variant, seed, **{"scores": scores, **fields})


WEIRD = "w/o_msa & 5% #1 {x}~^\\"


def hard_study(name: str = "hard") -> Study:
    """Variants called as YAML and pandas like least, and a metric where lower is better."""
    return planted_study(
        name,
        {
            "none": {"components": {"SDTPS": False}},
            "NA": {"components": {"SDTPS": True}},
            "off": {"components": {"SDTPS": True}, "color": "#cc3311"},
            "1": {"components": {"SDTPS": True}},
            WEIRD: {"components": {"SDTPS": "half"}},
            "all_diverged": {},
            "failed": {},
            "absent": {},
            "tex": {"label": "w/o L₁, τ ≥ 2"},
        },
        metrics={
            "mAP": PERCENT,
            "rank1": PERCENT_RANK1,
            "nar": MetricSpec(direction="down", digits=2, unit="", label="NAR"),
        },
        tables=(
            TableSpec(name="main", epoch="both", caption="What each name does to the table."),
            TableSpec(name="parts", kind="components"),
            TableSpec(name="loo", kind="leave_one_out", metrics=("mAP",)),
            TableSpec(name="sweep", kind="sweep", axis="sdtps.keep_ratio", metrics=("mAP", "nar")),
        ),
        title="Hard names & cases",
    )


def plant_hard(runs_dir: Path, study: Study) -> None:
    """`none` and `NA` tie at printed precision; `off` lacks a seed, `1` lost one to divergence at epoch
    2, WEIRD one to an error and has one left (n = 1); three variants have no finished seed."""

    def scores(m_ap: float, nar: float) -> dict[str, list[float]]:
        return {"mAP": [m_ap - 0.1, m_ap, m_ap - 0.05], "rank1": [m_ap] * 3, "nar": [nar] * 3}

    for seed in (0, 1, 2):
        plant(runs_dir, study, "none", seed, scores=scores(0.812 + 0.002 * seed, 2.0), loss=falling)
        plant(runs_dir, study, "NA", seed, scores=scores(0.8122 + 0.002 * seed, 1.5))
        plant(runs_dir, study, "tex", seed, scores=scores(0.7 + 0.01 * seed, 1.25 + seed / 100))
        plant(
            runs_dir, study, "all_diverged", seed, state="diverged", stop=(1 + seed, 5 + 5 * seed - 2)
        )
        plant(runs_dir, study, "failed", seed, state="failed", stop=(1, 2), reason="CUDA out of memory")
    for seed in (0, 2):
        plant(runs_dir, study, "off", seed, scores=scores(0.9, 1.0))
    for seed in (0, 1):
        plant(runs_dir, study, "1", seed, scores=scores(0.85 + 0.01 * seed, 1.7))
    plant(runs_dir, study, "1", 2, state="diverged", stop=(2, 8), reason="loss is nan")
    plant(runs_dir, study, WEIRD, 0, scores=scores(0.95, 0.5))
    plant(runs_dir, study, WEIRD, 1, state="failed", stop=(1, 3), reason="KeyError: 'x_1 & y'")
