"""A study's budget: what its runs have taken, what fits, and what has to wait.

Hours are those for which attempts held a machine, failed ones included, times their GPUs (a run without
a GPU counts as one). Runs that left the manifest, files of runs that were started over and the cells
between the study's variants count too; runs in flight count at their estimate. The study's own runs
come first, then the cells, each seed by seed, so that whole rows of seeds are complete when the budget
ends. The budget is exceeded by no more than what the runs in flight take beyond their estimates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ablations.launch.plan import BEYOND, Plan, Spending, expectation
from ablations.slurm.scheduler import Scheduler
from ablations.store.states import of_folders
from ablations.store.submissions import ASIDE
from ablations.study.attribution import cells_name
from ablations.study.model import Study
from sdtps.run.folder import RunFolder
from sdtps.system.errors import counted


def within_budget(plan: Plan, ahead: Sequence[Plan] = ()) -> Plan:
    """`plan` with the runs that do not fit skipped, and how the budget stands.

    Args:
        ahead: plans that come first. What those of the same manifest submit is taken off; where one has
            runs that wait, nothing fits here.
    """
    study = plan.study
    if study.gpu_hours is None:
        return plan
    whole = study.parent or study
    known = {v.slug: v.resources for one in (study, whole) for v in one.variants.values()}
    places = [p for p in plan.runs_dir.glob("*") if _spends(p, whole)]
    places += [plan.runs_dir / ASIDE / p.name for p in places]
    folders = [f for p in places for kind in ("seed", "aside") for f in p.glob(f"*/{kind}*")]
    expected = expectation(folders)

    def cost(folder: Path) -> tuple[float, float]:
        """GPU-hours that a run has taken, and will have in the end."""
        resources = known.get(folder.parent.name, study.resources)
        taken = RunFolder(folder).machine_seconds() / 3600
        gpus = resources.gpus_of_run
        return gpus * taken, gpus * expected(folder, resources)[0]

    ahead = [one for one in ahead if one.study.path == study.path]
    before = {a.folder: cost(a.folder)[1] for one in ahead for a in one.submitted}
    starting = {*before, *(action.folder for action in plan.submitted)}
    spent = in_flight = 0.0
    planned = sum(before.values())
    for one in of_folders([f for f in folders if not f.is_symlink()], Scheduler(plan.runs_dir)):
        taken, whole_cost = cost(one.folder)
        spent += taken
        in_flight += max(0.0, whole_cost - taken) * (one.may_run and one.folder not in starting)
    full = any(one.waiting for one in ahead)
    equal = {folder.name for folder in before}  # linked when those have ended
    waits: dict[Path, str] = {}
    order = {seed: place for place, seed in enumerate(study.seeds)}
    for action in sorted(plan.submitted, key=lambda a: order.get(a.run.seed, 0)):
        hours = 0.0 if action.folder.name in equal else cost(action.folder)[1]
        if full := full or spent + in_flight + planned + hours > study.gpu_hours:
            waits[action.folder] = f"{BEYOND}: takes about {hours:.2f} GPU-hours"
        else:
            planned += hours
    spending = Spending(study.gpu_hours, spent, in_flight, planned)
    made = replace(plan.skipping(lambda a: waits.get(a.folder, "")), spending=spending)
    text = f"{counted(len(waits), 'run')} {BEYOND} of {study.gpu_hours:g} GPU-hours"
    warnings = [f"{text}; raise budget.gpu_hours"] if waits else []
    return replace(made, warnings=(*plan.warnings, *warnings))


def _spends(place: Path, study: Study) -> bool:
    """Whether a folder holds the runs of the study, or of the cells between two of its variants."""
    there = {folder.name for folder in place.glob("*")}
    ends = [variant.name for variant in study.variants.values() if variant.slug in there]
    pairs = [pair for end in ends for other in study.variants for pair in ((end, other), (other, end))]
    return place.name in {study.name, *(cells_name(study.name, *pair) for pair in pairs)}
