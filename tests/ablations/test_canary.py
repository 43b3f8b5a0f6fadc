from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from ablations.launch import canary
from ablations.launch.plan import Action
from ablations.store.runstatus import RunStatus
from ablations.study.manifest import load_study
from sdtps.errors import SubmissionError
from sdtps.run.folder import RunFolder

MANIFEST = """\
study: small
seeds: [0, 1]
baseline: topk
varies: [sdtps, optim.lr]
variants:
  topk: {}
  lr: {optim.lr: 1e-3}
  c10: {sdtps.mask: subtract_10}
  c1e10: {sdtps.mask: subtract_1e10}
  clamp: {sdtps.decision: gumbel_ste, sdtps.noise_clamp: 5.0}
  soft: {sdtps.decision: soft}
"""


@pytest.fixture
def actions(tmp_path: Path) -> list[Action]:
    path = tmp_path / "small.yaml"
    path.write_text(MANIFEST)
    return [
        Action(run, "submit", "no run yet", run.folder(tmp_path), "planned")
        for run in load_study(path).runs()
    ]


def test_one_run_of_each_code_path_is_picked(actions: list[Action]) -> None:
    picked = [(a.run.variant, a.run.seed) for a in canary.pick(actions)]
    assert picked == [("topk", 0), ("c10", 0), ("clamp", 0), ("soft", 0)]


@dataclass
class Cluster:
    """Moves every canary one state on at each look."""

    actions: list[Action]
    story: list[list[str]]

    def states(self) -> list[RunStatus]:
        states = self.story.pop(0)
        found = []
        for action, state in zip(self.actions, states, strict=True):
            if state == "stepping":
                folder = RunFolder(action.folder)
                folder.path.mkdir(parents=True, exist_ok=True)
                folder.write_status("running", attempt=1, epoch=1, step=1)
            found.append(
                RunStatus(action.run, "running" if state == "stepping" else state, detail="why")
            )
        return found


def test_the_rest_is_released_after_all_have_stepped(actions: list[Action]) -> None:
    cluster = Cluster(
        actions[:2], [["queued", "queued"], ["running", "stepping"], ["completed", "running"]]
    )
    said: list[str] = []
    canary.wait(actions[:2], cluster.states, sleep=lambda _: None, say=said.append)
    assert cluster.story == []
    assert [s.split()[-3] for s in said] == ["0", "1", "2"]


@pytest.mark.parametrize("end", ["failed", "diverged", "cancelled", "planned"])
def test_a_canary_that_dies_stops_the_rest_and_says_why(actions: list[Action], end: str) -> None:
    cluster = Cluster(actions[:2], [["queued", "running"], ["stepping", end]])
    with pytest.raises(SubmissionError, match=rf"(?s)1 of the canaries failed.*{end}: why"):
        canary.wait(actions[:2], cluster.states, sleep=lambda _: None, say=lambda _: None)
