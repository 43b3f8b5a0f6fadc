from __future__ import annotations

from pathlib import Path

import pytest

from ablations.launch.plan import Plan, make_plan
from ablations.store.states import FolderStatus
from ablations.study.manifest import load_study
from ablations.study.model import RunSpec, Study
from sdtps.run.folder import RunFolder
from tests.ablations import plant

MANIFEST = """\
study: small
task: reid
seeds: [0, 1]
baseline: topk
varies: [sdtps.decision, sdtps.keep_ratio]
resources: {gpus: 2, timeout_min: 120}
variants:
  topk: {}
  soft: {sdtps.decision: soft, resources: {gpus: 0}}
"""


@pytest.fixture
def study(tmp_path: Path) -> Study:
    path = tmp_path / "small.yaml"
    path.write_text(MANIFEST)
    return load_study(path)


def create(run: RunSpec, runs_dir: Path, code: str = "new", seconds: float | None = None) -> RunFolder:
    folder = RunFolder(run.folder(runs_dir))
    folder.create(run.config, {"study": run.study, "seed": run.seed, "code": {"digest": code}})
    if seconds is not None:
        folder.write_result({"attempt": 1, "train_seconds": seconds})
    return folder


def plan_of(study: Study, runs_dir: Path, state: str, **options: object) -> Plan:
    state, _, kind = state.partition(":")
    found = FolderStatus(state=state, detail="why", kind=kind or None)
    return make_plan(study, runs_dir, [found] * 4, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("state", "retry", "action", "start"),
    [
        ("planned", [], "submit", "resume"),
        ("planned", ["failed"], "submit", "resume"),
        ("interrupted", [], "submit", "resume"),
        ("interrupted", ["failed"], "submit", "resume"),
        ("failed:result", [], "skip", None),
        ("failed:result", ["failed"], "submit", "over"),
        ("queued", ["failed", "diverged", "cancelled", "stale"], "skip", None),
        ("running", ["failed", "diverged", "cancelled", "stale"], "skip", None),
        ("requeued", ["failed", "diverged", "cancelled", "stale"], "skip", None),
        ("completed", ["failed", "diverged", "cancelled"], "skip", None),
        ("failed", [], "skip", None),
        ("failed", ["diverged"], "skip", None),
        ("failed", ["failed"], "submit", "resume"),
        ("failed:oom", [], "skip", None),
        ("failed:oom", ["failed"], "skip", None),
        ("failed:oom", ["oom"], "submit", "resume"),
        ("failed:crash", [], "skip", None),
        ("failed:exit", [], "skip", None),
        ("failed:preempted", [], "submit", "resume"),
        ("failed:killed", [], "submit", "resume"),
        ("unknown", ["failed", "cancelled", "diverged", "oom", "stale"], "skip", None),
        ("unknown", ["unknown"], "submit", "resume"),
        ("failed:lost", [], "submit", "resume"),
        ("failed:node", [], "submit", "resume"),
        ("diverged", ["failed"], "skip", None),
        ("diverged", ["diverged"], "submit", "over"),
        ("cancelled", ["failed"], "skip", None),
        ("cancelled", ["cancelled"], "submit", "resume"),
    ],
)
def test_the_decision_table(
    study: Study, tmp_path: Path, state: str, retry: list[str], action: str, start: str | None
) -> None:
    plan = plan_of(study, tmp_path, state, retry=retry)
    assert {a.action for a in plan.actions} == {action}
    if start is not None:
        assert {a.start for a in plan.submitted} == {start}


def test_completed_runs_of_other_code_are_told_and_kept_unless_asked(
    study: Study, tmp_path: Path
) -> None:
    for i, run in enumerate(study.runs()):
        create(run, tmp_path, code="old" if i == 1 else "new", seconds=60)
    plan = plan_of(study, tmp_path, "completed", code="new")
    assert plan.submitted == []
    assert plan.actions[1].reason == "completed by other code (old)"
    assert "1 completed run by other code than is here now" in plan.warnings[0]
    again = plan_of(study, tmp_path, "completed", code="new", retry=["stale"])
    assert [(a.run.seed, a.start) for a in again.submitted] == [(1, "over")]
    assert again.warnings == ()
    assert plan_of(study, tmp_path, "completed", code=None, retry=["stale"]).submitted == []


def test_cost_comes_from_the_same_variant_then_others_then_the_limit(
    study: Study, tmp_path: Path
) -> None:
    bound = plan_of(study, tmp_path, "planned").estimate
    assert (bound.run_hours, bound.gpu_hours, bound.basis) == (8.0, 8.0, {"time limit": 4})
    create(study.runs()[0], tmp_path, seconds=1800)
    states = [FolderStatus(state=word) for word in ("completed", "planned", "planned", "running")]
    estimate = make_plan(study, tmp_path, states).estimate
    assert estimate.basis == {"same variant": 1, "other variants": 1}
    assert (estimate.run_hours, estimate.gpu_hours) == (1.0, 1.0)
    assert "time limit" not in estimate.basis


def test_runs_that_share_a_gpu_cost_it_once_and_a_job_that_is_not_full_costs_it_whole(
    tmp_path: Path,
) -> None:
    resources = "{gpus: 1, runs_per_gpu: 4, timeout_min: 120}"
    study = plant.study(tmp_path, ["a", "b"], seeds=3, resources=resources)
    bound = make_plan(study, tmp_path, [FolderStatus(state="planned")] * 6).estimate
    assert (bound.run_hours, bound.gpu_hours) == (12.0, 4.0)  # two jobs, of 4 and 2 runs
    create(study.runs()[0], tmp_path, seconds=3600)
    create(study.runs()[3], tmp_path, seconds=7200)
    states = [FolderStatus(state="completed" if k in (0, 3) else "planned") for k in range(6)]
    estimate = make_plan(study, tmp_path, states).estimate
    assert (estimate.run_hours, estimate.gpu_hours) == (6.0, 2.0)  # as long as its longest run
