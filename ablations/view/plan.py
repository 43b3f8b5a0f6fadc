"""A plan, made in `ablations.launch.plan`, as people read it, and as scripts do."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ablations.study.model import Study, as_written
from sdtps.system.errors import counted, visible

if TYPE_CHECKING:
    from ablations.launch.plan import Action, Chunk, Plan


def differences(study: Study, variant: str) -> str:
    """`sdtps.mask none → log, ...`, or that nothing is changed."""
    changed = study.differences(variant)
    if not changed:
        return "no change to the base"
    pairs = ((key, *map(as_written, change)) for key, change in changed.items())
    return ", ".join(f"{key} {old} → {new}" for key, old, new in pairs)


def plan_text(plan: Plan) -> str:
    """The plan, variant by variant and run by run. Values and reasons are users' texts."""
    return "\n".join(map(visible, _lines(plan)))


def _lines(plan: Plan) -> Iterator[str]:
    study, runs = plan.study, plan.actions
    more = [(len(plan.of("release")), "to release"), (len(plan.of("link")), "to take over")]
    yield (
        f"{study.name}: {counted(len(study.variants), 'variant')} x {counted(len(study.seeds), 'seed')}"
        f" = {counted(len(runs), 'run')}; {len(plan.submitted)} to submit, "
        f"{len(plan.of('skip'))} skipped{''.join(f', {n} {what}' for n, what in more if n)}"
    )
    by_variant: dict[str, list[Action]] = {}
    for action in runs:
        by_variant.setdefault(action.run.variant, []).append(action)
    width = max((len(a.run.name) for a in runs), default=0)
    for name, actions in by_variant.items():
        extends = study.variants[name].extends
        mark = f" (extends {extends}; differences are to the base)" if extends else ""
        mark = " (baseline)" if name == study.baseline else mark
        yield ""
        yield f"{name}{mark}: {differences(study, name)}"
        for action in actions:
            yield f"  {action.action}  {action.run.name:<{width}}  {action.reason}"
    yield ""
    yield from _cost_lines(plan)


def _cost_lines(plan: Plan) -> Iterator[str]:
    if not (plan.submitted or plan.of("release") or plan.of("link")):
        yield "Nothing to submit."
    classes: dict[str, list[Chunk]] = {}
    for array in plan.arrays:
        classes.setdefault(array.resources.key(), []).append(array)
    for parts in classes.values():
        resources = parts[0].resources
        limit = resources.max_parallel
        throttle = f", at most {limit} at once" if limit else ""
        runs = counted(sum(len(part.runs) for part in parts), "run")
        where = "on local slots" if plan.local else f"in {counted(len(parts), 'array')}{throttle}"
        yield f"{runs} {where}: {resources.summary(local=plan.local)}"
    estimate = plan.estimate
    if plan.submitted:
        hours = [f"{estimate.run_hours:.1f} run-hours"]
        if estimate.gpu_hours:
            hours.append(f"{estimate.gpu_hours:.1f} GPU-hours")
        basis = estimate.basis.items()
        sources = "; ".join(
            f"{counted(n, 'run')},{' each' * (n > 1)} "
            + ("at its time limit" if word == "time limit" else f"as finished runs of the {word}")
            for word, n in basis
        )
        bound = "at most " if "time limit" in estimate.basis else "about "
        yield f"Cost: {bound}{', '.join(hours)} ({sources})"
    if spending := plan.spending:
        yield (
            f"Budget: {spending.budget:g} GPU-hours; {spending.spent:.2f} spent, "
            f"{spending.in_flight:.2f} in flight, {spending.planned:.2f} planned, "
            f"{spending.left:.2f} left"
        )
    for warning in plan.warnings:
        yield f"Warning: {warning}."


def plan_json(plan: Plan) -> dict[str, Any]:
    """The plan for scripts: one object a run, arrays, estimate."""
    return {
        "study": plan.study.name,
        "manifest": str(plan.study.path),
        "digest": plan.study.digest,
        "runs_dir": str(plan.runs_dir),
        "submit": len(plan.submitted),
        "skip": len(plan.of("skip")),
        "release": len(plan.of("release")),
        "take_over": len(plan.of("link")),
        "runs": [
            {
                "run": a.run.name,
                **{key: getattr(a.run, key) for key in ("variant", "seed", "identity")},
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
        "estimate": dataclasses.asdict(plan.estimate),
        "budget": plan.spending and {**dataclasses.asdict(plan.spending), "left": plan.spending.left},
        "warnings": list(plan.warnings),
    }
