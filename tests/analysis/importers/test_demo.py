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


def test_a_log_without_heads_is_read_too() -> None:
    text = logs.demo_header(epochs=1) + logs.demo_epoch(1, {"x": "63.2"})
    run = read(text.replace("Current is the x feature testing!", "Validating"))
    assert run.best and run.best["mAP"] == 0.632


def test_per_cents_are_exact_decimal_fractions() -> None:
    row = read(logs.demo_header(epochs=1) + logs.demo_epoch(1, {"[moe,ori]": "22.9"})).best
    assert row and row["mAP"] == 0.229 and repr(row["mAP"]) == "0.229"


def test_the_resolved_configuration_counts_not_the_yaml_source() -> None:
    run = read(whole(switches=("USE_SDTPS", "USE_DGAF")))
    assert run.config["MODEL.USE_SDTPS"] == "True"
    assert run.config["SOLVER.MAX_EPOCHS"] == "3" and run.config["OUTPUT_DIR"] == ".."
    assert (run.seed, run.label) == (1111, "SDTPS+DGAF-v3")
    assert run.components["SDTPS"] and not run.components["LIF"]
    assert run.facts["parameters_million"] == 88.623444


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


def test_an_unreadable_number_is_reported_not_guessed() -> None:
    run = read(whole().replace("mAP: 62.2%", "mAP: 6?.2%"))
    assert len(run.unread) == 1 and "6?.2" in run.unread[0].text


def test_a_log_that_ends_early_is_incomplete() -> None:
    run = read(logs.demo_header(epochs=50) + logs.demo_epoch(1, HEADS) + logs.demo_epoch(2, HEADS))
    assert (run.state, run.reason) == ("incomplete", "the log ends at epoch 2 of 50")


def test_a_traceback_makes_a_failed_run_with_its_kind() -> None:
    run = read(logs.demo_header() + logs.demo_epoch(1, HEADS) + logs.TRACEBACK)
    assert (run.state, run.failure) == ("failed", "oom")
    assert run.reason == "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB"
    killed = (
        "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2025-12-06T15:35:00 DUE TO TIME LIMIT ***\n"
    )
    assert read(logs.demo_header() + logs.demo_epoch(1, HEADS) + killed).failure == "timeout"


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


def test_non_finite_losses_to_the_end_are_a_divergence_at_their_first_epoch() -> None:
    run = read(
        logs.demo_header()
        + logs.demo_epoch(1, HEADS)
        + logs.demo_epoch(2, HEADS, losses=("nan", "nan"))
    )
    assert (run.state, run.reason) == ("diverged", "the loss is not finite from epoch 2, step 35 on")
    assert run.facts["nonfinite_losses"] == 2


def test_a_single_infinite_loss_that_recovers_is_noted() -> None:
    run = read(
        logs.demo_header(epochs=2)
        + logs.demo_epoch(1, HEADS, losses=("inf", "2.0"))
        + logs.demo_epoch(2, HEADS)
    )
    assert run.state == "completed"
    assert any("not finite" in note for note in run.notes)
    assert run.facts["max_loss"] == 2.5


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


def test_labels_name_the_settings_in_which_likes_differ() -> None:
    runs = [
        read(whole(extra=f"  LIF_BETA: {beta}\n"), f"lif_{beta}.log") for beta in ("0.4", "0.4", "0.2")
    ]
    runs[1].variant = "again"
    store.label_runs(runs)
    assert [run.label for run in runs] == ["SDTPS", "SDTPS", "SDTPS, LIF_BETA=0.2"]
