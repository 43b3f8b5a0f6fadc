"""A scheduler that misbehaves: nothing is submitted twice or lost, and its own words are shown."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from ablations import cli
from ablations.launch import dispatch
from ablations.launch.plan import Action, make_plan
from ablations.slurm import commands as slurm
from ablations.slurm.arrays import chunks
from ablations.store import attempts as records
from ablations.store.states import run_states
from ablations.study.model import Study
from sdtps.run.folder import RunFolder
from sdtps.system.errors import SubmissionError
from tests.ablations import plant
from tests.ablations.copies import ends, fork
from tests.ablations.fakes import Fakes


def _tree(folder: Path) -> set[str]:
    """Every file and folder but the shared ones of the store: frozen code and the queue's cache."""
    return {
        str(p.relative_to(folder))
        for p in folder.rglob("*")
        if "_code" not in p.parts and not p.name.startswith((".squeue", ".lock"))
    }


def _submit(study: Study, runs: Path) -> dispatch.SubmitReport:
    return dispatch.submit(study.runs(), runs)


def _states(study: Study, runs: Path) -> list[str]:
    (runs / f".squeue-{os.getuid()}.json").unlink(missing_ok=True)
    return [s.state for s in run_states(study.runs(), runs)]


def test_runs_of_one_resource_class_are_one_array_and_are_sent_once(
    tmp_path: Path, fakes: Fakes
) -> None:
    study = plant.study(
        tmp_path, ["ok", "raise", "exit3"], seeds=2, own={"exit3": "{partition: other}"}
    )
    report = _submit(study, tmp_path / "runs")
    assert [a["count"] for a in fakes.arrays()] == [4, 2]
    assert report.jobs == ["1", "2"]
    assert _states(study, tmp_path / "runs") == ["queued"] * 6
    again = _submit(study, tmp_path / "runs")
    assert (again.submitted, again.jobs, len(again.skipped)) == ([], [], 6)
    assert len(fakes.calls("sbatch")) == 2


def test_deleting_one_run_folder_submits_exactly_that_run(tmp_path: Path, fakes: Fakes) -> None:
    study = plant.study(tmp_path, ["ok", "raise", "exit3"])
    _submit(study, tmp_path / "runs")
    gone = study.runs()[1].folder(tmp_path / "runs")
    shutil.rmtree(gone)
    assert _submit(study, tmp_path / "runs").submitted == [gone]
    assert fakes.submitted_runs().count(str(gone)) == 2


def test_a_refusal_shows_sbatch_s_words_and_the_key_and_leaves_nothing(
    tmp_path: Path, fakes: Fakes
) -> None:
    study = plant.study(tmp_path, ["ok", "raise"])
    runs = tmp_path / "runs"
    runs.mkdir()
    words = (
        "sbatch: error: invalid partition specified: nope\nsbatch: error: Batch job submission failed"
    )
    fakes.answer("sbatch", {"exit": 1, "stderr": words})
    with pytest.raises(SubmissionError) as error:
        _submit(study, runs)
    assert "invalid partition specified: nope" in str(error.value)
    assert "resources.partition" in str(error.value)
    assert _tree(runs) <= {"endings", "endings/_jobs"}
    assert _states(study, runs) == ["planned", "planned"]
    assert len(_submit(study, runs).submitted) == 2


def test_a_banner_with_a_job_number_is_not_the_job(tmp_path: Path, fakes: Fakes) -> None:
    study = plant.study(tmp_path, ["ok"])
    banner = "*** Welcome! Last week job 12 was the longest. ***\n"
    fakes.answer("sbatch", {"act": True, "stdout": f"{banner}1;cluster\n"})
    assert _submit(study, tmp_path / "runs").jobs == ["1"]
    (receipt,) = (tmp_path / "runs").rglob("receipt.json")
    assert json.loads(receipt.read_text())["cluster"] == "cluster"


def test_an_unclear_answer_is_looked_up_by_name_before_anything_is_sent_again(
    tmp_path: Path, fakes: Fakes
) -> None:
    study = plant.study(tmp_path, ["ok", "raise"])
    timed_out = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
    fakes.answer("sbatch", {"act": True, "stdout": "", "stderr": timed_out, "exit": 1})
    fakes.answer("squeue", {"stdout": ""}, None)  # the first answer is empty
    report = _submit(study, tmp_path / "runs")
    assert report.jobs == ["1"]
    assert len(fakes.calls("sbatch")) == 1
    assert _states(study, tmp_path / "runs") == ["queued", "queued"]


def test_an_unclear_answer_without_a_job_gives_the_runs_back(tmp_path: Path, fakes: Fakes) -> None:
    study = plant.study(tmp_path, ["ok"])
    fakes.answer("sbatch", {"stdout": "submitted, thank you\n"})
    with pytest.raises(SubmissionError, match="squeue knows no job"):
        _submit(study, tmp_path / "runs")
    assert _states(study, tmp_path / "runs") == ["planned"]
    assert len(_submit(study, tmp_path / "runs").submitted) == 1


def test_without_any_answer_runs_stay_locked_until_the_scheduler_speaks(
    tmp_path: Path, fakes: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = plant.study(tmp_path, ["ok", "raise"])
    runs = tmp_path / "runs"
    lost = {"act": True, "stdout": "", "stderr": "sbatch: error: Socket timed out", "exit": 1}
    down = {"exit": 1, "stderr": "slurm_load_jobs error: Unable to contact slurm controller"}
    fakes.answer("sbatch", lost)
    fakes.answer("squeue", *[down] * 3)
    with pytest.raises(SubmissionError, match="It is unclear"):
        _submit(study, runs)
    # Another process later, while the controller still is away, then when it is back.
    monkeypatch.setattr("ablations.store.locks.Process.alive", lambda _: False)
    fakes.answer("squeue", *[down] * 5)
    assert _submit(study, runs).submitted == []
    assert _states(study, runs) == ["unknown", "unknown"]
    (fakes.folder / "squeue.script").unlink()
    assert _submit(study, runs).submitted == []
    assert len(fakes.calls("sbatch")) == 1
    assert _states(study, runs) == ["queued", "queued"]


def test_more_runs_than_indices_are_cut_and_share_the_throttle(tmp_path: Path, fakes: Fakes) -> None:
    study = plant.study(tmp_path, ["ok"], seeds=1002, resources="{max_parallel: 7}")
    texts = dispatch.render(
        make_plan(study, tmp_path / "runs", run_states(study.runs(), tmp_path / "runs"))
    )
    arrays = [re.search(r"--array=0-(\d+)%(\d+)", text) for text in texts]
    found = [(int(m[1]) + 1, int(m[2])) for m in arrays if m]
    assert sum(count for count, _ in found) == 1002
    assert all(count <= 1000 for count, _ in found)
    assert sum(throttle for _, throttle in found) == 7


def test_a_throttle_below_the_number_of_arrays_makes_them_wait_for_each_other(tmp_path: Path) -> None:
    study = plant.study(tmp_path, ["ok"], seeds=25, resources="{max_parallel: 2}")
    parts = chunks(study.runs(), 10)
    assert [len(part.runs) for part in parts] == [8, 8, 9]
    assert [part.throttle for part in parts] == [2, 2, 2]
    assert [part.after_previous for part in parts] == [False, True, True]


LIMIT = "sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission failed: Job"


def test_a_submit_limit_is_met_with_smaller_arrays(tmp_path: Path, fakes: Fakes) -> None:
    study = plant.study(tmp_path, ["ok"], seeds=100, resources="{max_parallel: 4}")
    fakes.answer("sbatch", {"exit": 1, "stderr": LIMIT}, None, {"exit": 1, "stderr": LIMIT}, None, None)
    report = _submit(study, tmp_path / "runs")
    assert [a["count"] for a in fakes.arrays()] == [50, 25, 25]
    assert len(report.submitted) == 100
    throttles = [re.search(r"--array=\S+%(\d+)", call["text"]) for call in fakes.calls("sbatch")]
    accepted = [int(throttles[k][1]) for k in (1, 3, 4)]  # type: ignore[index]
    assert accepted == [2, 1, 1]


def test_runs_beyond_the_submit_limit_stay_planned_and_go_next_time(
    tmp_path: Path, fakes: Fakes, capsys: pytest.CaptureFixture[str]
) -> None:
    study, runs = plant.study(tmp_path, ["ok"], seeds=4), tmp_path / "runs"
    refused = {"exit": 1, "stderr": LIMIT}
    fakes.answer("sbatch", refused, None, refused, refused)
    words = ["submit", str(study.path), "--runs-dir", str(runs), "--no-audit"]
    assert cli.main(words) == 5
    told = capsys.readouterr()
    assert "Submitted 2 of 4 runs" in told.out and told.out.count("the cluster's limit on jobs") == 2
    assert "QOSMaxSubmitJobPerUserLimit" in told.err
    assert _states(study, runs) == ["queued", "queued", "planned", "planned"]
    for _ in range(2):
        assert cli.main([*words, "--limit", "1"]) == 0
        assert "Submitted 1 of 1 run" in capsys.readouterr().out
    assert len(set(fakes.submitted_runs())) == 4


def test_halved_arrays_keep_a_limit_of_one(tmp_path: Path, fakes: Fakes) -> None:
    study = plant.study(tmp_path, ["ok"], seeds=8, resources="{max_parallel: 1}")
    refused = {"exit": 1, "stderr": LIMIT}
    fakes.answer("sbatch", refused, None, refused, None, None)
    assert len(_submit(study, tmp_path / "runs").submitted) == 8
    texts = [call["text"] for call in fakes.calls("sbatch")]
    accepted = [texts[k] for k in (1, 3, 4)]
    assert all("%1\n" in text for text in accepted)
    waits = [re.search(r"--dependency=(\S+)", text) for text in accepted]
    assert [m and m[1] for m in waits] == [None, "afterany:1", "afterany:2"]


GENERAL = (
    "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy "
    "(job submit limit, user's size and/or time limits)"
)


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (f"sbatch: error: QOSMaxWallDurationPerJobLimit\n{GENERAL}", "resources.timeout_min"),
        (f"sbatch: error: QOSMaxCpuPerUserLimit\n{GENERAL}", "resources.cpus"),
        (f"sbatch: error: QOSMaxMemoryPerUser\n{GENERAL}", "resources.mem_gb"),
        ("Invalid account or account/partition combination specified", "resources.account"),
        ("Invalid qos specification", "resources.qos"),
        ("Requested time limit is invalid (missing or exceeds some limit)", "resources.timeout_min"),
        ("Memory specification can not be satisfied", "resources.mem_gb"),
        ("Invalid generic resource (gres) specification", "resources.gpus"),
        ("Invalid feature specification", "resources.constraint"),
    ],
)
def test_what_fewer_jobs_would_not_help_is_refused_at_once(
    tmp_path: Path, fakes: Fakes, words: str, key: str
) -> None:
    study = plant.study(tmp_path, ["ok"], seeds=100)
    fakes.answer("sbatch", *[{"exit": 1, "stderr": words}] * 9)
    with pytest.raises(
        SubmissionError, match=re.escape(f"Change {key}") + ".* in the study or in the site file"
    ):
        _submit(study, tmp_path / "runs")
    assert len(fakes.calls("sbatch")) == 1


def test_an_array_is_cut_as_this_cluster_wants_it_also_in_a_dry_run(
    tmp_path: Path, fakes: Fakes, capsys: pytest.CaptureFixture[str]
) -> None:
    study = plant.study(tmp_path, ["ok"], seeds=8)
    fakes.answer("scontrol", None, {"stdout": "ClusterName = f\nMaxArraySize = 5\n"})
    words = ["submit", str(study.path), "--runs-dir", str(tmp_path / "runs"), "--dry-run"]
    assert cli.main(words) == 0
    assert "sbatch file 2 of 2" in capsys.readouterr().out


def _completed(study: Study, runs: Path, *, code: str | None = None) -> Path:
    """The study's first run, trained."""
    run = study.runs()[0]
    folder = RunFolder(run.folder(runs))
    record = {"study": run.study, "variant": run.variant, "seed": run.seed}
    folder.create(run.config, {**record, "code": {"digest": code}})
    folder.write_result({"attempt": 1, "best": {"mAP": 0.5}, "select_metric": "mAP"})
    return folder.path


def test_an_equal_run_of_another_study_or_name_is_taken_over(tmp_path: Path, fakes: Fakes) -> None:
    runs = tmp_path / "runs"
    old = plant.study(tmp_path, ["before"], name="first")
    made = _completed(old, runs, code="c1")
    for study in (plant.study(tmp_path, ["after"], name="first"), plant.study(tmp_path, ["x"])):
        (action,) = make_plan(study, runs, run_states(study.runs(), runs), code="c1").actions
        assert action.action == "link" and "first/before" in action.reason
        (link,) = dispatch.take_over([action])
        assert link.resolve() == made
        assert not link.readlink().is_absolute()
        assert _states(study, runs) == ["completed"]
        assert make_plan(study, runs, run_states(study.runs(), runs), code="c1").submitted == []
    assert fakes.calls("sbatch") == []


def test_an_equal_run_that_was_deleted_is_trained_and_one_that_stays_is_not_written_to(
    tmp_path: Path, fakes: Fakes, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs"
    made = _completed(plant.study(tmp_path, ["before"], name="first"), runs, code="c1")
    study = plant.study(tmp_path, ["after"], name="second")
    (link,) = dispatch.take_over(
        make_plan(study, runs, run_states(study.runs(), runs), code="c1").of("link")
    )
    again = make_plan(study, runs, run_states(study.runs(), runs), retry=["stale"], code="c2")
    assert [a.start for a in again.submitted] == ["over"]
    before = sorted(p.name for p in made.iterdir())
    assert dispatch.submit(study.runs(), runs, over=[link]).submitted == [link]
    assert not link.is_symlink() and (link / "lock.json").is_file()
    assert sorted(p.name for p in made.iterdir()) == before
    third = plant.study(tmp_path, ["x"], name="third")
    (link,) = dispatch.take_over(
        make_plan(third, runs, run_states(third.runs(), runs), code="c1").of("link")
    )
    words = ["clean", str(tmp_path / "first.yaml"), "--runs-dir", str(runs), "--state", "completed"]
    capsys.readouterr()
    assert cli.main([*words, "--yes"]) == 0
    told = capsys.readouterr().out
    assert "it stands for third/x/" in told and "Deleted 0 folders" in told and made.is_dir()
    assert cli.main([*words, "--yes", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["deleted"] == [] and list(answer["left"]) == [str(made.relative_to(runs))]
    words[1] = str(tmp_path / "third.yaml")
    assert cli.main([*words, "--yes"]) == 0 and not link.is_symlink() and made.is_dir()
    link.symlink_to(Path("../..") / made.relative_to(runs), target_is_directory=True)
    shutil.rmtree(made)
    assert _states(third, runs) == ["planned"]
    assert _submit(third, runs).submitted == [link]


def test_an_equal_run_of_other_code_is_not_taken_over_and_one_on_its_way_is_waited_for(
    tmp_path: Path, fakes: Fakes
) -> None:
    runs = tmp_path / "runs"
    first, second = (plant.study(tmp_path, [name], name=name) for name in ("before", "after"))

    def planned(code: str | None) -> Action:
        return make_plan(second, runs, run_states(second.runs(), runs), code=code).actions[0]

    made = _completed(first, runs, code="c1")
    assert planned("c2").action == "submit" and "other code" in planned("c2").reason
    shutil.rmtree(made)
    _submit(first, runs)
    records.write_start(made, fakes.arrays()[0]["name"], "1_0", 0)
    RunFolder(made).write_status("running", attempt=1)
    assert planned(None).action == "skip" and "which is running" in planned(None).reason


def test_out_of_memory_is_tried_again_with_more_of_it_and_only_when_asked(
    tmp_path: Path, fakes: Fakes
) -> None:
    runs = tmp_path / "runs"
    study = plant.study(tmp_path, ["ok"])  # mem_gb: 0.2
    _submit(study, runs)
    fakes.set("1_0", state="OUT_OF_MEMORY")
    folder = RunFolder(study.runs()[0].folder(runs))
    folder.update_run(attempts=[{"attempt": 1, "peak_memory_mib": 230.0}])
    _states(study, runs)
    found = run_states(study.runs(), runs)
    assert found[0].kind == "oom"
    for retry in ([], ["failed"]):
        (action,) = make_plan(study, runs, found, retry=retry).actions
        assert action.action == "skip" and "it used 0.2 GB" in action.reason
    (action,) = make_plan(study, runs, found, retry=["oom"]).actions
    assert action.action == "submit" and action.run.resources.mem_gb == 0.4
    more = plant.study(tmp_path, ["ok"], resources="{mem_gb: 0.3}")
    (action,) = make_plan(more, runs, found, retry=["failed"]).actions
    assert action.action == "submit" and "0.3 GB instead of 0.2" in action.reason


def test_a_retried_run_starts_over_only_where_asked_and_keeps_what_it_had(
    tmp_path: Path, fakes: Fakes
) -> None:
    study = plant.study(tmp_path, ["ok", "raise"])
    runs = tmp_path / "runs"
    _submit(study, runs)
    folders = [run.folder(runs) for run in study.runs()]
    for index, folder in enumerate(folders):
        (folder / "checkpoint.pt").write_text("weights")
        fakes.set(f"1_{index}", state="FAILED", status=256)
    assert _states(study, runs) == ["failed", "failed"]
    report = dispatch.submit(study.runs(), runs, resume=folders[:1], over=folders[1:])
    assert sorted(report.submitted) == sorted(folders)
    assert (folders[0] / "checkpoint.pt").exists()
    assert not (folders[1] / "checkpoint.pt").exists()
    assert len(list((runs / "_aside").rglob("checkpoint.pt"))) == 1
    assert _states(study, runs) == ["queued", "queued"]


def _race(study: Study, runs: Path, start: float) -> None:
    time.sleep(max(0.0, start - time.time()))
    dispatch.submit(study.runs(), runs)


def test_four_processes_that_submit_200_runs_at_once_queue_200_jobs(
    tmp_path: Path, fakes: Fakes
) -> None:
    study = plant.study(tmp_path, ["ok"], seeds=200)
    start = time.time() + 0.5
    racers = [fork(lambda: _race(study, tmp_path / "runs", start)) for _ in range(4)]
    assert ends(*racers) == [0] * 4
    (frozen,) = (tmp_path / "runs/_code").iterdir()
    assert (frozen / "code.json").is_file()
    counted = Counter(fakes.submitted_runs())
    assert len(counted) == 200
    assert set(counted.values()) == {1}


def test_an_sbatch_that_outlives_its_submitter_is_found(
    tmp_path: Path, fakes: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = plant.study(tmp_path, ["ok", "raise"])
    fakes.answer("sbatch", {"sleep": 1.0, "act": True})
    racer = fork(lambda: _race(study, tmp_path / "runs", 0.0))
    while not fakes.calls("sbatch"):
        time.sleep(0.05)
    os.kill(racer, signal.SIGKILL)
    ends(racer)
    monkeypatch.setattr(slurm, "LOOKUP_PAUSES", (0, 0.5, 1, 2, 4, 8, 16, 32))
    assert _submit(study, tmp_path / "runs").submitted == []
    assert len(fakes.arrays()) == 1
    assert _states(study, tmp_path / "runs") == ["queued", "queued"]
