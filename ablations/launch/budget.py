"""A study's budget: what its runs have taken, what fits, and what has to wait.

Hours are those for which attempts held a machine, failed ones included, times their GPUs (a run without
a GPU counts as one). Runs in flight count at their estimate. The runs that fit are sent seed by seed,
so that whole rows of seeds are complete when the budget ends. The budget is exceeded by no more than
what the runs in flight take beyond their estimates.
"""

from __future__ import annotations

from dataclasses import replace

from ablations.launch.plan import BEYOND, Action, Plan, Spending, hours_of
from ablations.slurm import options
from ablations.study.schema import Resources
from sdtps.run.folder import RunFolder
from sdtps.system.errors import counted


def share_of(resources: Resources) -> float:
    """GPUs that one run holds; 1 for a run without."""
    gpus = options.gpus_of_node(resources) * resources.nodes / resources.runs_per_gpu
    return gpus or 1.0


def within_budget(plan: Plan) -> Plan:
    """`plan` with the runs that do not fit skipped, and how the budget stands."""
    budget = plan.study.gpu_hours
    if budget is None:
        return plan
    estimates = {name: hours for name, (hours, _) in hours_of(plan.actions).items()}
    spent = in_flight = planned = 0.0
    for action in plan.actions:
        if action.folder.is_symlink() or action.state == "planned":
            continue
        share = share_of(action.run.resources)
        taken = share * RunFolder(action.folder).machine_seconds() / 3600
        spent += taken
        if action.action == "skip" and action.state in ("queued", "running", "requeued", "unknown"):
            in_flight += max(0.0, share * estimates[action.run.name] - taken)
    order = {seed: place for place, seed in enumerate(plan.study.seeds)}
    fits: set[str] = set()
    for action in sorted(plan.submitted, key=lambda a: order.get(a.run.seed, 0)):
        cost = share_of(action.run.resources) * estimates[action.run.name]
        if spent + in_flight + planned + cost > budget:
            break
        planned += cost
        fits.add(action.run.name)

    def beyond(action: Action) -> str:
        hours = share_of(action.run.resources) * estimates[action.run.name]
        return "" if action.run.name in fits else f"{BEYOND}: takes about {hours:.2f} GPU-hours"

    spending = Spending(budget, spent, in_flight, planned)
    planned_now = plan.skipping(beyond)
    if not (waiting := planned_now.waiting):
        return replace(plan, spending=spending)
    warning = f"{counted(len(waiting), 'run')} {BEYOND} of {budget:g} GPU-hours; raise budget.gpu_hours"
    warnings = (*plan.warnings, warning)
    return replace(planned_now, spending=spending, warnings=warnings)
