"""Canaries: which runs go first, and what waits for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ablations.launch import dispatch, trial
from ablations.launch.plan import Action, make_plan
from ablations.store.states import CANARIES, run_states
from ablations.store.submissions import Submission
from ablations.study.manifest import load_study
from sdtps.system.errors import SubmissionError
from tests.ablations import plant, standin
from tests.ablations.copies import fork_modules
from tests.ablations.fakes import Fakes

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
    picked = [(a.run.variant, a.run.seed) for a in trial.pick(actions)]
    assert picked == [("topk", 0), ("c10", 0), ("clamp", 0), ("soft", 0)]


def test_the_rest_waits_for_a_short_array_and_the_terminal_does_not(
    tmp_path: Path, fakes: Fakes
) -> None:
    study = plant.study(tmp_path, ["ok", "raise"], seeds=2)
    runs = tmp_path / "runs"
    actions = make_plan(study, runs, run_states(study.runs(), runs)).submitted
    after = trial.canaries(study, actions, runs, executor="slurm")
    assert after == "afterok:1"
    assert [a["count"] for a in fakes.arrays()] == [1]  # the two differ by a number only
    assert "#SBATCH --time=5" in fakes.calls("sbatch")[0]["text"]
    work = Submission(Path(fakes.arrays()[0]["folder"]))
    assert work.intent["max_steps"] == trial.STEPS
    assert CANARIES in work.folder.parts
    dispatch.submit(study.runs(), runs, after=after)
    text = fakes.calls("sbatch")[1]["text"]
    assert "#SBATCH --dependency=afterok:1" in text
    assert "#SBATCH --kill-on-invalid-dep=yes" in text


def test_a_local_canary_that_fails_keeps_the_rest_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    fork_modules(monkeypatch)
    monkeypatch.setenv("PYTHONPATH", standin.PATH)
    monkeypatch.setenv(dispatch.ENTRY_VARIABLE, standin.ENTRY)
    runs = tmp_path / "runs"
    for variant, well in (("ok", True), ("raise", False)):
        study = plant.study(tmp_path, [variant], name=variant)
        actions = make_plan(study, runs, run_states(study.runs(), runs)).submitted
        if well:
            assert trial.canaries(study, actions, runs, executor="local") is None
        else:
            with pytest.raises(SubmissionError, match=r"(?s)1 of the canaries.*wrong place"):
                trial.canaries(study, actions, runs, executor="local")
        assert (
            f"canary of {variant} seed 0: {'completed' if well else 'failed'}" in capfd.readouterr().err
        )
        assert run_states(study.runs(), runs)[0].state == "planned"
