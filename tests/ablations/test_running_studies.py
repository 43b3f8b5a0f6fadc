"""Studies that change while their runs wait or run: none is started twice, refused for ever or lost."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from ablations import cli
from ablations.launch import dispatch
from ablations.launch.plan import make_plan
from ablations.slurm import commands as slurm
from ablations.slurm.scheduler import Scheduler
from ablations.store import attempts as records
from ablations.store import cancel, locks
from ablations.store.states import run_states
from ablations.store.submissions import Submission
from ablations.study.model import Study
from sdtps.run.folder import RunFolder
from sdtps.run.provenance import source_digest
from sdtps.system.errors import SubmissionError
from tests.ablations import plant
from tests.ablations.fakes import Fakes

DOWN = {"exit": 1, "stderr": "slurm_load_jobs error: Unable to contact slurm controller"}


class Store:
    """A run store, and the command line on it."""

    def __init__(self, folder: Path, fakes: Fakes, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.fakes, self.capsys = folder, fakes, capsys
        self.runs = folder / "runs"

    def study(
        self, variants: list[str], *, name: str = "endings", seeds: int = 1, **more: str
    ) -> Study:
        return plant.study(self.folder, variants, name=name, seeds=seeds, **more)

    def call(self, verb: str, study: Study, *words: str) -> int:
        Scheduler(self.runs).expire()
        return cli.main([verb, str(study.path), "--runs-dir", str(self.runs), *words])

    def submit(self, study: Study, *words: str) -> int:
        return self.call("submit", study, "--no-audit", *words)

    def sent(self, variants: list[str], **more: Any) -> Study:
        """A study, submitted."""
        made = self.study(variants, **more)
        self.submit(made)
        return made

    def forget_answers(self) -> None:
        (self.runs / f".squeue-{os.getuid()}.json").unlink(missing_ok=True)

    def json(self, verb: str, study: Study, *words: str) -> dict:
        self.capsys.readouterr()
        self.call(verb, study, "--json", *words)
        answer: dict = json.loads(self.capsys.readouterr().out)
        return answer

    def states(self, study: Study) -> list[str]:
        return [s.state for s in run_states(study.runs(), self.runs, Scheduler(self.runs, 0))]


@pytest.fixture
def store(tmp_path: Path, fakes: Fakes, capsys: pytest.CaptureFixture[str]) -> Store:
    return Store(tmp_path, fakes, capsys)


# -- renamed, copied, removed -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "variant"), [("endings", "fine"), ("second", "ok")], ids=["renamed", "in another study"]
)
@pytest.mark.parametrize("state", ["PENDING", "RUNNING", None])
def test_a_run_that_waits_or_runs_under_another_name_is_shown_and_not_sent_again(
    store: Store, name: str, variant: str, state: str | None
) -> None:
    first = store.study(["ok"])
    store.submit(first)
    if state is None:  # nobody knows
        store.fakes.answer("squeue", *[DOWN] * 20)
        store.forget_answers()
    else:
        store.fakes.set("1_0", state=state)
    second = store.study([variant], name=name)
    store.submit(second)
    assert len(store.fakes.arrays()) == 1
    (row,) = store.json("status", second)["runs"]
    assert row["state"] == {"PENDING": "queued", "RUNNING": "running", None: "unknown"}[state]
    assert first.runs()[0].name in row["detail"]


def test_two_who_submit_equal_runs_in_the_same_second_start_them_once(store: Store) -> None:
    plans = []
    for name in ("first", "second"):
        study = store.study(["ok"], name=name, seeds=2)
        plans.append(make_plan(study, store.runs, run_states(study.runs(), store.runs)))
    reports = [
        dispatch.submit([a.run for a in plan.submitted], store.runs, seen=plan.seen) for plan in plans
    ]
    assert [len(report.submitted) for report in reports] == [2, 0]
    assert all("another submission began" in why for why in reports[1].skipped.values())


def test_a_killed_run_does_not_go_on_beside_an_equal_one_and_is_taken_over_when_that_completes(
    store: Store,
) -> None:
    first = store.sent(["ok"], name="first")
    (folder,) = (run.folder(store.runs) for run in first.runs())
    records.write_start(folder, store.fakes.arrays()[0]["name"], "1_0", 0)
    store.fakes.set("1_0", state="FAILED", status=9)
    second = store.sent(["ok"], name="second")
    store.submit(first)
    assert len(store.fakes.arrays()) == 2
    assert "which is queued" in store.json("plan", first)["runs"][0]["reason"]
    other = RunFolder(second.runs()[0].folder(store.runs))
    other.update_run(code={"digest": source_digest()})
    other.write_result({"attempt": 1})
    store.submit(first)
    assert folder.resolve() == other.path and store.states(first) == ["completed"]
    assert len(store.fakes.arrays()) == 2 and list(store.runs.glob("_aside/first/ok/*/lock.json"))


def test_an_equal_run_that_has_failed_stands_in_nobody_s_way(store: Store) -> None:
    store.submit(store.study(["ok"]))
    store.fakes.set("1_0", state="FAILED", status=256)
    store.submit(store.study(["fine"]))
    assert len(store.fakes.arrays()) == 2


def test_runs_whose_variant_left_the_manifest_are_shown_and_reached(store: Store) -> None:
    old = store.study(["ok", "raise"], seeds=2)
    store.submit(old)
    study = store.study(["ok"], seeds=2)
    gone = [run.name for run in old.runs() if run.variant == "raise"]
    assert [row["run"] for row in store.json("status", study)["unplanned"]] == gone
    kept = store.json("clean", study, "--unplanned")
    assert kept["would_delete"] == [] and list(kept["left"]) == gone
    store.capsys.readouterr()
    assert cli.main(["logs", gone[0], "--runs-dir", str(store.runs)]) == 0
    assert store.json("cancel", study, "--unplanned", "-v", "ra*", "-s", "1", "--yes")["cancelled"] == [
        gone[1]
    ]
    assert store.json("cancel", study, "-v", "ok", "--yes")["cancelled"] == [
        run.name for run in old.runs() if run.variant == "ok"
    ]
    assert store.json("cancel", study, "--yes")["cancelled"] == [gone[0]]
    assert len(store.json("clean", study, "--unplanned", "--yes")["deleted"]) == 4


# -- cancel -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "refusal",
    [
        "scancel: error: Kill job error on job id 1_0: Access/permission denied",
        "scancel: error: Unable to contact slurm controller",
    ],
)
def test_a_refused_cancel_leaves_no_mark(store: Store, refusal: str) -> None:
    study = store.sent(["ok"])
    folder = study.runs()[0].folder(store.runs)
    before = locks.read(folder)
    store.fakes.answer("scancel", {"exit": 1, "stderr": refusal})
    assert store.call("cancel", study, "--yes") == 2
    assert locks.read(folder) == before
    assert locks.holds(folder, before.submission if before else "")
    assert store.states(study) == ["queued"]


def test_only_the_jobs_that_scancel_names_go_on(store: Store) -> None:
    study = store.sent(["ok"], seeds=3)
    words = "scancel: error: Kill job error on job id 1_1: Access/permission denied"
    store.fakes.answer("scancel", {"exit": 1, "stderr": words})
    with pytest.raises(SubmissionError, match="1 run of 3"):
        cancel.cancel(run_states(study.runs(), store.runs), store.runs)
    marked = [locks.read(run.folder(store.runs)) for run in study.runs()]
    assert [lock.cancelled for lock in marked if lock] == [True, False, True]


def test_a_cancelled_run_whose_job_came_all_the_same_is_cancelled(store: Store) -> None:
    """Its job finds the mark and does nothing; it is not lost, and not resumed by itself."""
    from ablations.slurm import endings

    study = store.sent(["ok"])
    folder = study.runs()[0].folder(store.runs)
    cancel.cancel(run_states(study.runs(), store.runs), store.runs)
    store.fakes.set("1_0", state="FAILED", status=endings.NOT_OURS << 8)
    name = store.fakes.arrays()[0]["name"]
    records.write_start(folder, name, "1_0", 0)
    records.write_end(folder, name, "1_0", 0, endings.NOT_OURS, terminated=False)
    assert store.states(study) == ["cancelled"]


def test_unknown_runs_are_never_called_nothing(store: Store) -> None:
    study = store.sent(["ok"], seeds=4)
    store.fakes.answer("squeue", *[DOWN] * 40)
    store.forget_answers()
    assert len(store.json("cancel", study, "--yes")["unknown"]) == 4
    for verb, *words in (("cancel", "--yes"), ("retry", "--held")):
        store.capsys.readouterr()
        assert store.call(verb, study, *words) == 1
        err = store.capsys.readouterr().err
        assert "4 runs may be running" in err and "Unable to contact" in err
    assert not store.fakes.calls("scancel")


def test_squeue_s_patience_is_a_setting_of_the_site(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = store.sent(["ok"])
    site = store.folder / "config/sdtps/site.yaml"
    site.parent.mkdir(parents=True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(site.parent.parent))
    for seconds, state in ((1, "unknown"), (30, "queued")):
        site.write_text(f"squeue_seconds: {seconds}\n")
        store.forget_answers()
        store.fakes.answer("squeue", {"sleep": 1.5, "act": True})
        assert store.states(study) == [state]


def test_an_array_that_is_cancelled_before_it_starts_is_cancelled_at_once(store: Store) -> None:
    study = store.sent(["ok"], seeds=3)
    name = store.fakes.arrays()[0]["name"]
    assert store.states(study) == ["queued"] * 3
    assert store.call("cancel", study, "--yes") == 0
    for element in range(3):
        store.fakes.set(f"1_{element}", gone=True)
    store.fakes.set("1", name=name, state="CANCELLED")  # as squeue lists it then
    Scheduler(store.runs).expire()
    assert [s.state for s in run_states(study.runs(), store.runs)] == ["cancelled"] * 3
    assert len(store.json("retry", study, "--cancelled", "--no-audit")["submitted"]) == 3


def _killed_after_its_locks(store: Store, folders: list[Path]) -> None:
    """A submission whose submitter is dead has taken the runs over."""
    killed = Submission(store.runs / "endings/_jobs/sdtps-endings-killed")
    killed.begin(locks.Lock(killed.name, "slurm", locks.Process("here", 0), 1.0))
    for folder in folders:
        assert locks.take(folder, killed.lock_file, locks.read(folder))


def test_a_retry_that_was_killed_after_its_locks_goes_on(store: Store) -> None:
    study = store.sent(["ok"], seeds=3)
    runs = [run.folder(store.runs) for run in study.runs()]
    cancel.cancel(run_states(study.runs(), store.runs), store.runs)
    _killed_after_its_locks(store, runs[:2])
    answer = store.json("retry", study, "--cancelled", "--no-audit")
    assert len(answer["submitted"]) == 3


def test_a_diverged_run_whose_retry_was_killed_still_starts_from_nothing(store: Store) -> None:
    study = store.sent(["diverge"])
    (folder,) = (run.folder(store.runs) for run in study.runs())
    RunFolder(folder).write_status("diverged", attempt=1, epoch=2, reason="loss is inf")
    _killed_after_its_locks(store, [folder])
    assert store.states(study) == ["diverged"]
    plan = store.json("plan", study, "--retry", "diverged")
    assert plan["runs"][0]["start"] == "over"


# -- submit -------------------------------------------------------------------------------------------


def test_a_dry_run_with_a_limit_shows_what_would_be_sent(store: Store) -> None:
    study = store.study(["ok"], seeds=5)
    plan = store.json("submit", study, "--no-audit", "--dry-run", "--limit", "2", "--executor", "slurm")
    assert (plan["submit"], len(plan["arrays"][0]["runs"])) == (2, 2)
    assert "--array=0-1%" in plan["sbatch"][0]
    assert store.submit(study, "--limit", "2", "--executor", "slurm") == 0
    assert [array["count"] for array in store.fakes.arrays()] == [2]


def test_then_follows_the_runs_or_runs_now_or_says_why_not(store: Store) -> None:
    study = store.study(["ok"], resources="{partition: gpu, gpus: 1}")
    mark = store.folder / "my mark"
    then = ("--then", f"touch '{mark}'")
    for number in (1, 2):  # with the runs; then nothing is sent, and it waits for the run on its way
        assert store.submit(study, *then) == 0
        text = store.fakes.calls("sbatch")[number]["text"]
        assert "--dependency=afterany:1\n" in text and str(mark) in text
        assert "--gpus" not in text and "#SBATCH --partition=gpu" in text
    store.fakes.answer("squeue", *[DOWN] * 9)
    store.forget_answers()
    store.capsys.readouterr()
    assert store.submit(study, *then) == 1
    assert str(mark) in store.capsys.readouterr().err and not mark.exists()
    (store.fakes.folder / "squeue.script").unlink()
    RunFolder(study.runs()[0].folder(store.runs)).write_result({"attempt": 1})
    assert store.submit(study, *then) == 0
    assert mark.exists()


def test_submit_status_and_watch_take_several_studies(store: Store) -> None:
    first = store.study(["ok"], name="first")
    second = store.study(["raise"], name="second", seeds=2)  # its seed 0 is the first's run
    more = str(second.path)
    assert len(store.json("submit", first, more, "--no-audit")) == 2
    assert len(store.fakes.arrays()) == 2
    assert [d["study"] for d in store.json("status", first, more)] == ["first", "second"]
    assert store.call("watch", first, more, "--once") == 0


# -- the store ----------------------------------------------------------------------------------------


def test_every_folder_of_a_shared_store_is_the_group_s_too(store: Store) -> None:
    store.runs.mkdir()
    store.runs.chmod(0o2775)
    before = os.umask(0o022)
    try:
        study = store.study(["ok"])
        store.submit(study, "--canary")
        RunFolder(study.runs()[0].folder(store.runs)).write_status("failed", attempt=1)
        store.call("clean", study, "--state", "failed")
        cli.main(["site", "check", "--runs-dir", str(store.runs), "--wait", "1"])
        cli.main(["try", str(study.path), "ok", "--runs-dir", str(store.runs), "--max-steps", "1"])
    finally:
        os.umask(before)
    folders = [p for p in store.runs.rglob("*") if p.is_dir()]
    names = {p.relative_to(store.runs).parts[0] for p in folders}
    assert {"_canaries", "_trials", "_site", "_code", "endings"} <= names
    private = [str(p) for p in folders if not p.stat().st_mode & 0o020]
    assert not private


def test_a_store_that_may_not_be_read_is_one_mistake(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = store.sent(["ok"])
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may read everything
    assert store.call("status", study) == 2


def test_a_job_that_the_cluster_renames_is_not_called_cancelled(store: Store) -> None:
    study = store.sent(["ok"])
    file = store.runs / "endings/_jobs" / store.fakes.arrays()[0]["name"] / "receipt.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "time": 1.0}))
    store.fakes.set("1_0", name="renamed-by-a-plugin")
    for _ in range(3):
        (state,) = run_states(study.runs(), store.runs, Scheduler(store.runs, 0))
    assert state.state == "unknown" and "renamed-by-a-plugin" in state.detail


def test_a_deleted_folder_is_not_seen_as_unplanned(store: Store) -> None:
    study = store.sent(["ok"])
    shutil.rmtree(study.runs()[0].folder(store.runs))
    assert store.json("status", study)["unplanned"] == []


# -- words --------------------------------------------------------------------------------------------


def test_a_slow_scheduler_is_waited_for_with_a_word(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = store.sent(["ok"])
    monkeypatch.setattr(slurm, "SLOW_SECONDS", 0.1)
    store.fakes.answer("squeue", {"sleep": 0.6, "act": True})
    store.capsys.readouterr()
    store.call("status", study)
    assert "Waiting for squeue" in store.capsys.readouterr().err
