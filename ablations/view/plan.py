"""A plan as people read it, and as scripts do."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from typing import Any

from ablations.launch.plan import Action, Chunk, Plan
from ablations.study.arguments import add_data_root, add_site, add_steering, read_study
from ablations.study.model import Study
from sdtps.errors import counted, visible

_MOST_LINES = 2_000  # runs that are listed one by one; beyond it a variant is one line


def value(item: Any) -> str:
    """A configuration value as the manifest would write it."""
    if item is None:
        return "null"
    if isinstance(item, bool):
        return "true" if item else "false"
    if isinstance(item, float):
        return f"{item:g}"
    if isinstance(item, dict):
        return "{" + ", ".join(f"{k}: {value(v)}" for k, v in item.items()) + "}"
    if isinstance(item, (list, tuple)):
        return "[" + ", ".join(value(v) for v in item) + "]"
    return str(item)


def differences(study: Study, variant: str) -> str:
    """`sdtps.mask none → log, ...`, or that it is the base."""
    changed = study.differences(variant)
    if not changed:
        return "the base"
    return ", ".join(f"{key} {value(old)} → {value(new)}" for key, (old, new) in changed.items())


def plan_lines(plan: Plan) -> Iterator[str]:
    """The plan, variant by variant and run by run. Values and reasons are users' texts."""
    return map(visible, _lines(plan))


def _lines(plan: Plan) -> Iterator[str]:
    study, runs = plan.study, plan.actions
    yield (
        f"{study.name}: {counted(len(study.variants), 'variant')} x {counted(len(study.seeds), 'seed')}"
        f" = {counted(len(runs), 'run')}; {len(plan.submitted)} to submit, {len(plan.skipped)} skipped"
        f"{f', {len(plan.released)} to release' if plan.released else ''}"
        f"{f', {len(plan.linked)} to take over' if plan.linked else ''}"
    )
    by_variant: dict[str, list[Action]] = {}
    for action in runs:
        by_variant.setdefault(action.run.variant, []).append(action)
    width = max((len(a.run.name) for a in runs), default=0)
    for name, actions in by_variant.items():
        extends = study.variants[name].extends
        mark = " (baseline)" if name == study.baseline else f" (extends {extends})" if extends else ""
        yield ""
        yield f"{name}{mark}: {differences(study, name)}"
        if len(runs) > _MOST_LINES:
            yield f"  {_counted(actions)}"
            continue
        for action in actions:
            yield f"  {action.action}  {action.run.name:<{width}}  {action.reason}"
    yield ""
    yield from _cost_lines(plan)


def _cost_lines(plan: Plan) -> Iterator[str]:
    if not (plan.submitted or plan.released or plan.linked):
        yield "Nothing to submit."
    classes: dict[str, list[Chunk]] = {}
    for array in plan.arrays:
        classes.setdefault(array.resources.key(), []).append(array)
    for parts in classes.values():
        resources = parts[0].resources
        limit = resources.max_parallel
        throttle = f", at most {limit} at once" if limit else ""
        runs = counted(sum(len(part.runs) for part in parts), "run")
        yield f"{runs} in {counted(len(parts), 'array')}{throttle}: {resources.summary()}"
    estimate = plan.estimate
    if plan.submitted:
        hours = [f"{estimate.run_hours:.1f} run-hours"]
        if estimate.gpu_hours:
            hours.append(f"{estimate.gpu_hours:.1f} GPU-hours")
        sources = ", ".join(f"{n} from {word}" for word, n in estimate.basis.items())
        bound = "at most " if estimate.is_bound else "about "
        yield f"Cost: {bound}{', '.join(hours)} ({sources})"
    for warning in plan.warnings:
        yield f"Warning: {warning}."


def _counted(actions: Iterable[Action]) -> str:
    """`8 submit (no run yet), 2 skip (completed)`."""
    numbers: dict[str, int] = {}
    for action in actions:
        key = f"{action.action} ({action.reason})"
        numbers[key] = numbers.get(key, 0) + 1
    return ", ".join(f"{n} {key}" for key, n in numbers.items())


def plan_json(plan: Plan) -> dict[str, Any]:
    """The plan for scripts: one object a run, arrays, estimate."""
    return {
        "study": plan.study.name,
        "manifest": str(plan.study.path),
        "digest": plan.study.digest,
        "runs_dir": str(plan.runs_dir),
        "submit": len(plan.submitted),
        "skip": len(plan.skipped),
        "release": len(plan.released),
        "take_over": len(plan.linked),
        "runs": [
            {
                "run": a.run.name,
                "variant": a.run.variant,
                "seed": a.run.seed,
                "identity": a.run.identity,
                "folder": str(a.folder),
                "state": a.state,
                "action": a.action,
                "start": a.start if a.action == "submit" else None,
                "reason": a.reason,
            }
            for a in plan.actions
        ],
        "extends": {v.name: v.extends for v in plan.study.variants.values() if v.extends},
        "differences": {
            name: {
                k: {"base": old, "variant": new}
                for k, (old, new) in plan.study.differences(name).items()
            }
            for name in plan.study.variants
        },
        "arrays": [
            {
                "resources": array.resources.model_dump(mode="json"),
                "runs": [run.name for run in array.runs],
                "throttle": array.throttle,
            }
            for array in plan.arrays
        ],
        "estimate": {
            "run_hours": plan.estimate.run_hours,
            "gpu_hours": plan.estimate.gpu_hours,
            "basis": plan.estimate.basis,
        },
        "warnings": list(plan.warnings),
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from ablations.launch.submit import add_retry_states

    add_steering(parser, more=True)
    add_retry_states(parser)
    add_data_root(parser)
    add_site(parser)


def command(arguments: argparse.Namespace) -> int:
    from ablations.launch.submit import plan_study

    plans = []
    for study in arguments.study:
        one = argparse.Namespace(**{**vars(arguments), "study": study})
        plans.append(plan_study(read_study(one), one))
    if arguments.json:
        made = [plan_json(plan) for plan in plans]
        print(json.dumps(made[0] if len(made) == 1 else made, indent=2))
    else:
        print("\n\n".join("\n".join(plan_lines(plan)) for plan in plans))
    return 0
