"""DeMo logs: every rule on logs of our own, whatever happened to the file on the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.importers import store
from analysis.importers.demo import DemoLog
from analysis.importers.run import ImportedRun
from tests.analysis.importers import logs

HEADS = {"ori": "60.1", "moe": "61.5", "[moe,ori]": "63.2"}


def read(text: str | bytes, name: str = "run.log") -> ImportedRun:
    content = text.encode() if isinstance(text, str) else text
    (run,) = DemoLog.read(Path(name), content)
    return run


def whole(**options: object) -> str:
    return logs.demo_header(**options) + "".join(
        logs.demo_epoch(e, {"ori": f"6{e}.1", "moe": f"6{4 - e}.5", "[moe,ori]": f"6{e}.2"})
        for e in (1, 2, 3)
    )


def test_all_heads_of_an_epoch_are_kept_apart() -> None:
    run = read(whole())
    row = next(r for r in run.rows if r["kind"] == "eval" and r["epoch"] == 2)
    assert (row["mAP"], row["mAP/ori"], row["mAP/moe"]) == (0.622, 0.621, 0.625)
    assert run.best and (run.best["mAP"], run.best["epoch"]) == (0.632, 3)
    assert run.facts["parameters_million"] == 88.623444


def test_a_log_without_heads_is_read_too() -> None:
    text = logs.demo_header(epochs=1) + logs.demo_epoch(1, {"x": "63.2"})
    run = read(text.replace("Current is the x feature testing!", "Validating"))
    assert run.best and run.best["mAP"] == 0.632


@pytest.mark.parametrize(
    "damage",
    [
        lambda t: t.replace("\n", "\r\n").encode(),
        lambda t: "".join(f"\x1b[32m{line}\x1b[0m\n" for line in t.split("\n")).encode(),
        lambda t: b"\xef\xbb\xbf" + t.encode(),
        lambda t: t.encode("utf-16"),
        lambda t: t.replace("~~~~~", "尺寸").encode() + "Gerät ähnlich\n".encode("latin-1"),
        lambda t: t.replace("The test feature", "\r 10%|#  |\r100%|###|\rThe test feature").encode(),
    ],
    ids=["crlf", "colours", "bom", "utf16", "mixed encodings", "progress bars"],
)
def test_what_happens_to_files_on_the_way_changes_no_value(damage) -> None:
    plain, damaged = read(whole()), read(damage(whole()))
    assert damaged.rows == plain.rows
    assert damaged.config == plain.config
    assert not damaged.unread


def test_a_torn_line_is_reported_with_its_number_and_the_rest_is_read() -> None:
    text = whole().split("\n")
    index = next(i for i, line in enumerate(text) if "Epoch[2] Iteration[20/25]" in line)
    text[index] = text[index][: text[index].index("Loss: ") + 8]
    run = read("\n".join(text))
    assert [unread.line for unread in run.unread] == [index + 1]
    assert len([r for r in run.rows if r["kind"] == "train"]) == 5
    assert run.state == "completed"


KILLED = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2025-12-06T15:35:00 DUE TO TIME LIMIT ***"
FIRST, SECOND = (logs.demo_epoch(epoch, HEADS) for epoch in (1, 2))
NAN, INF = (logs.demo_epoch(e, HEADS, losses=x) for e, x in ((2, ("nan",) * 2), (1, ("inf", "2.0"))))


@pytest.mark.parametrize(
    ("text", "state", "reason", "failure"),
    [
        (FIRST + SECOND, "incomplete", "the log ends at epoch 2 of 3", ""),
        (
            FIRST + logs.TRACEBACK,
            "failed",
            "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB",
            "oom",
        ),
        (FIRST + KILLED, "failed", KILLED, "timeout"),
        (FIRST + NAN, "diverged", "the loss is not finite from epoch 2, step 35 on", ""),
    ],
    ids=["ends early", "exception", "killed", "not finite to the end"],
)
def test_how_a_log_ends_is_how_its_run_ended(text: str, state: str, reason: str, failure: str) -> None:
    run = read(logs.demo_header() + text)
    assert (run.state, run.reason, run.failure) == (state, reason, failure)
    assert run.facts["nonfinite_losses"] == 2 * (state == "diverged")


def test_a_single_infinite_loss_that_recovers_is_noted() -> None:
    run = read(logs.demo_header(epochs=2) + INF + SECOND)
    assert run.state == "completed" and run.facts["max_loss"] == 2.5
    assert any("not finite" in note for note in run.notes)


def test_a_restart_supersedes_what_it_repeats() -> None:
    first = logs.demo_header(epochs=3) + logs.demo_epoch(1, HEADS) + logs.demo_epoch(2, HEADS)
    again = logs.demo_header(epochs=3) + logs.demo_epoch(2, HEADS, losses=("1.100", "1.000"))
    run = read(first + logs.TRACEBACK + again + logs.demo_epoch(3, HEADS))
    losses = {(r["attempt"], r["epoch"]): r["loss"] for r in run.rows if r["kind"] == "train"}
    assert losses == {(1, 1): 1.5, (2, 2): 1.0, (2, 3): 1.5}
    assert run.state == "completed" and not run.reason
    assert run.facts["attempts"] == 2
    assert sum(r["kind"] == "eval" for r in run.rows) == 3


def test_a_restart_from_the_start_leaves_nothing_of_the_try_before() -> None:
    longer = "".join(logs.demo_epoch(e, {"[moe,ori]": "99.0"}) for e in (1, 2, 3))
    run = read(
        logs.demo_header() + longer + logs.demo_header() + logs.demo_epoch(1, {"[moe,ori]": "50.0"})
    )
    assert run.best and run.best["mAP"] == 0.5
    assert run.state == "incomplete"


def test_ties_at_the_printed_best_are_settled_by_the_logs_best_lines() -> None:
    text = logs.demo_header() + logs.demo_epoch(1, {"[moe,ori]": "70.0"}, rank1="71.0")
    text += logs.demo_epoch(2, {"[moe,ori]": "70.0"}, rank1="72.5") + logs.demo_epoch(
        3, {"[moe,ori]": "60.0"}
    )
    run = read(text + logs.demo_best("70.0", "72.5"))
    assert run.best and (run.best["epoch"], run.best["rank1"]) == (2, 0.725)
    assert any("tie" in note for note in run.notes)


def test_best_lines_that_contradict_the_evaluations_are_noted() -> None:
    run = read(whole() + logs.demo_best("99.9", "70.0"))
    assert run.best and run.best["mAP"] == 0.632
    assert any("99.9" in note for note in run.notes)


def test_steps_count_over_epochs_of_different_length() -> None:
    text = (
        logs.demo_header(epochs=2)
        + logs.demo_epoch(1, HEADS, total=25)
        + logs.demo_epoch(2, HEADS, total=24)
    )
    assert [r["step"] for r in read(text).rows] == [10, 20, 25, 35, 45, 49]


def test_variants_of_one_arrangement_have_their_names_in_their_labels() -> None:
    runs = [read(whole(), name) for name in ("a.log", "b.log")]
    runs[0].variant, runs[1].variant = "a", "b"
    store.label_runs(runs[:1])
    assert runs[0].label == "SDTPS"
    store.label_runs(runs)
    assert [run.label for run in runs] == ["SDTPS, a", "SDTPS, b"]
