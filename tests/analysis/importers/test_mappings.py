"""Mappings: each that is shipped on an example, what they say, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.importers import names, verb
from analysis.importers.mapped import Options
from analysis.importers.run import ImportedRun, LogError
from sdtps.config.mapping import MappingError, load, shipped
from tests.analysis.importers.test_cases import EXPECTED


def read(folder: Path, text: str, as_: str, name: str = "log.csv", **said: object) -> list[ImportedRun]:
    """The runs of a file with this text, read by the mapping with this name or text."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    if "\n" in as_:
        (folder / "mapping.yaml").write_text(as_)
        as_ = str(folder / "mapping.yaml")
    runs, complaints = verb.read([path], verb.how(as_, Options(**said)))  # type: ignore[arg-type]
    if complaints:
        raise LogError("\n".join(complaints))
    return runs


def rows(run: ImportedRun, kind: str, *columns: str) -> list[tuple]:
    return [tuple(r.get(n) for n in columns) for r in run.rows if r["kind"] == kind]


LOSS = "epoch: epoch\nmetrics:\n  loss: {split: train}\n"

# -- shipped ---------------------------------------------------------------------------------------

EXAMPLES = {
    "detectron2": (
        '{"iteration": 19, "total_loss": 2.0, "lr": 0.1, "time": 0.4}\n'
        '{"iteration": 39, "total_loss": 1.0, "lr": 0.1, "bbox/AP": 33.5}\n',
        [(20, 2.0), (40, 1.0)],
        ("bbox_AP", [(40, 0.335)]),
    ),
    "openclip": (
        '{"imagenet-zeroshot-val-top1": 0.3, "clip_val_loss": 1.0, "epoch": 1}\n'
        '{"imagenet-zeroshot-val-top1": 0.4, "clip_val_loss": 1.1, "epoch": 2}\n',
        [],
        ("imagenet-zeroshot-val-top1", [(1, 0.3), (2, 0.4)]),
    ),
    "keras": (
        "epoch,accuracy,loss,val_accuracy,val_loss\n0,0.5,1.5,0.4,1.6\n1,0.7,1.0,0.6,1.2\n",
        [(1, 1.5), (2, 1.0)],
        ("accuracy", [(1, 0.4), (2, 0.6)]),
    ),
    "lightning-csv": (
        "epoch,step,train_loss,val_loss,val_mAP\n0,49,1.5,,\n0,49,,1.4,0.40\n1,99,1.0,,\n",
        [(50, 1.5), (100, 1.0)],
        ("mAP", [(50, 0.4)]),
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_shipped_mapping_reads_its_example(tmp_path, name):
    text, losses, (metric, scores) = EXAMPLES[name]
    (run,) = read(tmp_path, text, name, unit="fraction")
    assert [row for row in rows(run, "train", "step", "loss") if row[1] is not None] == losses
    assert [row for row in rows(run, "eval", "step", metric) if row[1] is not None] == scores


def test_every_shipped_mapping_has_an_example_and_names_its_source():
    tested = {case.get("as") for case in EXPECTED["right"]} | EXAMPLES.keys() | {"wandb-runs"}
    assert set(shipped()) <= tested | {"ultralytics"}
    for name in shipped():
        assert "# Source: " in verb.propose([], name)


def test_lightnings_settings_say_seed_and_planned_length(tmp_path):
    (tmp_path / "hparams.yaml").write_text("lr: 1e-3\nseed: 4\nmax_epochs: 2\n")
    text = EXAMPLES["lightning-csv"][0]
    (run,) = read(tmp_path, text, "lightning-csv", unit="fraction")
    assert (run.seed, run.state, run.config["max_epochs"]) == (4, "completed", "2")


def test_a_trainers_state_is_completed_at_its_planned_steps(tmp_path):
    history = [
        {"epoch": 1.0, "loss": 2.0, "step": 50},
        {"epoch": 1.0, "eval_accuracy": 0.8, "step": 50},
    ]
    for planned, state in ((50, "completed"), (200, "incomplete")):
        text = json.dumps({"log_history": history, "max_steps": planned})
        assert read(tmp_path, text, "huggingface", "s.json", unit="fraction")[0].state == state
    with pytest.raises(LogError, match="line 2"):
        read(tmp_path, '{"log_history": [\n{"step": 1}', "huggingface", "s.json")


def test_a_wandb_table_of_runs(tmp_path):
    text = "Name,State,seed,lr,val/mAP\nok,finished,1,0.1,61.5\nbad,crashed,2,0.1,\n"
    runs = {run.variant: run for run in read(tmp_path, text, "wandb-runs", unit="percent")}
    assert (runs["ok"].state, runs["ok"].config["lr"], runs["ok"].seed) == ("completed", "0.1", 1)
    assert runs["ok"].final and runs["ok"].final["mAP"] == 0.615
    assert (runs["bad"].state, runs["bad"].failure, runs["bad"].seed) == ("failed", "error", 2)


# -- lines of text ---------------------------------------------------------------------------------

LINES = (
    "start\nepoch 1 loss 0.52 acc 71.2\nsaved\nepoch 2 loss 0.41 acc 73.5 %\n"
    "Traceback (most recent call last):\nValueError: x\n"
)


def test_lines_are_read_by_a_pattern_with_named_groups(tmp_path):
    mapping = (
        "pattern: 'epoch (?P<epoch>\\d+) loss (?P<loss>\\S+) acc (?P<acc>\\S+)'\nepoch: epoch\n"
        "metrics:\n  loss: {split: train}\n  acc: {split: test, unit: percent}\n"
    )
    (run,) = read(tmp_path, LINES, mapping, "log.txt")
    assert rows(run, "eval", "epoch", "acc") == [(1, 0.712), (2, 0.735)]
    assert rows(run, "train", "loss") == [(0.52,), (0.41,)]
    assert (run.state, run.metrics["acc"].split) == ("failed", "test")
    assert "2 of 6 lines match a pattern" in run.notes
    with pytest.raises(MappingError, match="no group 'epcoh'"):
        read(tmp_path, LINES, mapping.replace("epoch: epoch", "epoch: epcoh"), "log.txt")
    with pytest.raises(MappingError, match="no regular expression"):
        read(tmp_path, LINES, mapping.replace("acc (", "acc (("), "log.txt")
    with pytest.raises(LogError, match="no line matches"):
        read(tmp_path, "nothing\n", mapping, "log.txt")


def test_a_later_line_takes_the_epoch_of_an_earlier_one(tmp_path):
    mapping = (
        "pattern: ['Epoch (?P<epoch>\\d+)/', 'mAP: (?P<mAP>\\S+)%']\ncarry: epoch\nepoch: epoch\n"
        "metrics:\n  mAP: {split: test, unit: percent}\n"
    )
    (run,) = read(tmp_path, "Epoch 1/2\nmAP: 40.5%\nEpoch 2/2\nmAP: 41.5%\n", mapping, "log.txt")
    assert rows(run, "eval", "epoch", "mAP") == [(1, 0.405), (2, 0.415)]


# -- what a mapping says ---------------------------------------------------------------------------


def test_several_runs_per_cents_and_a_short_row(tmp_path):
    text = "\ufeffvariant;seed;epoch;val_mAP (%)\r\nfull;0;1;70.1\r\nfull;0;2;71.3\r\nfull;1;1;69.9\r\n"
    text += "full;1;2\r\n"
    mapping = "variant: variant\nseed: seed\nepoch: epoch\n"
    mapping += "metrics:\n  val_mAP (%): {as: mAP, split: val, unit: percent}\n"
    runs = read(tmp_path, text, mapping)
    assert [(r.variant, r.seed, r.final and r.final["mAP"]) for r in runs] == [
        ("full", 0, 0.713),
        ("full", 1, 0.699),
    ]
    assert [u.line for u in runs[0].unread] == [5]


def test_json_lines_with_nested_keys_and_a_torn_line(tmp_path):
    text = '{"step": 1, "train": {"loss": 2.0}}\n{"step": 2, "train": {"loss": NaN}}\n{"step": 3, "tra'
    mapping = "step: step\nmetrics:\n  train/loss: {as: loss, split: train}\n"
    (run,) = read(tmp_path, text, mapping, "log.jsonl")
    assert rows(run, "train", "step", "loss")[0] == (1, 2.0)
    assert [u.line for u in run.unread] == [3] and run.state == "diverged"
    text = '[{"epoch": 1, "loss": 2.0}, {"epoch": 2, "loss": 1.0}]'  # an array is a list of rows
    assert rows(read(tmp_path, text, LOSS, "l.json")[0], "train", "loss") == [(2.0,), (1.0,)]


def test_completed_needs_a_planned_length(tmp_path):
    text, more = "epoch,loss\n1,2\n", "epoch,loss\n1,2\n2,1\n"
    planned = "epochs_planned: 2\n" + LOSS
    assert read(tmp_path, text, LOSS)[0].state == "ended"
    assert read(tmp_path, text, planned)[0].reason == "the log ends at epoch 1 of 2"
    assert read(tmp_path, more, planned)[0].state == "completed"


def test_a_step_that_goes_back_is_refused_or_a_restart(tmp_path):
    text, mapping = (
        "step,loss\n1,3.0\n2,2.0\n1,9.0\n2,1.0\n",
        LOSS.replace("epoch: epoch", "step: step"),
    )
    with pytest.raises(LogError, match=r"line 4: step 1 follows step 2.*--restarts"):
        read(tmp_path, text, mapping)
    for said, as_ in (({"restarts": True}, mapping), ({}, "restarts: true\n" + mapping)):
        (run,) = read(tmp_path, text, as_, **said)
        assert rows(run, "train", "attempt", "step", "loss") == [(2, 1, 9.0), (2, 2, 1.0)]
        assert any("2 rows of the earlier attempt dropped" in note for note in run.notes)
    repeated = "step,loss\n1,3.0\n2,2.0\nstep,loss\n2,1.5\n"  # the header again is a sign
    assert rows(read(tmp_path, repeated, mapping)[0], "train", "step", "loss") == [(1, 3.0), (2, 1.5)]


def test_epochs_count_from_where_the_mapping_says(tmp_path):
    text = "epoch,loss\n0,2\n1,1\n"
    assert rows(read(tmp_path, text, "epoch_from: 0\n" + LOSS)[0], "train", "epoch") == [(1,), (2,)]
    with pytest.raises(LogError, match="epoch_from: 0"):
        read(tmp_path, text, LOSS)
    before = "epoch,loss,val_loss\n0,,9\n1,2,3\n"  # evaluated before training
    (run,) = read(tmp_path, before, LOSS + "  val_loss: {as: loss, split: val}\n")
    assert rows(run, "train", "epoch") == [(1,)] and rows(run, "eval", "epoch") == [(0,), (1,)]


def test_cells_and_columns_that_hold_no_number(tmp_path):
    mapping = LOSS + "  val_mAP: {as: mAP, split: val, unit: percent}\nignore: note\n"
    (run,) = read(tmp_path, "epoch,loss,val_mAP,note\n1,2,40.5,a\n2,1,err,b\n3,1,50.5,3\n", mapping)
    assert rows(run, "eval", "epoch", "mAP") == [(1, 0.405), (3, 0.505)]
    assert [(u.line, u.text) for u in run.unread] == [(3, "err")]
    with pytest.raises(LogError, match="line 2: column 'loss' holds no number: '0,5'"):
        read(tmp_path, "epoch;loss;val_mAP\n1;0,5;1\n", mapping)


def test_a_column_that_says_the_split_of_each_row(tmp_path):
    text = "epoch,phase,loss,acc\n1,train,2.0,40\n1,valid,1.8,50.5\n1,test,1.9,49.5\n"
    mapping = "epoch: epoch\nsplit: phase\nmetrics:\n  loss: {}\n  acc: {unit: percent}\n"
    (run,) = read(tmp_path, text, mapping)
    assert rows(run, "train", "loss") == [(2.0,)]
    assert rows(run, "eval", "val_loss", "val_acc", "test_loss", "test_acc") == [
        (1.8, 0.505, 1.9, 0.495)
    ]
    with pytest.raises(LogError, match="'warmup' is no split"):
        read(tmp_path, text + "2,warmup,1,1\n", mapping)


def test_split_and_unit_may_be_said_on_the_command_line(tmp_path):
    mapping, text = "epoch: epoch\nmetrics:\n  mAP: {}\n", "epoch,mAP\n1,40.5\n"
    with pytest.raises(LogError, match=r"column 'mAP': say its split .*unit"):
        read(tmp_path, text, mapping)
    (run,) = read(tmp_path, text, mapping, split="test", unit="percent")
    assert (run.metrics["mAP"].split, run.final and run.final["mAP"]) == ("test", 0.405)


def test_a_fraction_above_1_is_refused_and_the_option_holds_for_names_that_nobody_knows(tmp_path):
    mapping = "epoch: epoch\nmetrics:\n  zeta: {split: val, direction: up}\n"
    with pytest.raises(LogError, match=r"line 2: column 'zeta' holds 71.2.*unit: percent"):
        read(tmp_path, "epoch,zeta\n1,71.2\n", mapping, unit="fraction")
    (run,) = read(tmp_path, "epoch,zeta\n1,71.2\n", mapping, unit="percent")
    assert run.final and run.final["zeta"] == 0.712


def test_two_columns_of_one_name_are_refused(tmp_path):
    entries = "".join(f"  {c}: {{as: f1, split: val, unit: raw}}\n" for c in "ab")
    mapping = f"epoch: epoch\nmetrics:\n{entries}"
    with pytest.raises(LogError, match="'a' and 'b' are both called f1"):
        read(tmp_path, "epoch,a,b\n1,2,3\n", mapping)
    with pytest.raises(LogError, match="no metric can be called step"):
        read(tmp_path, "epoch,step,loss\n0,5,2\n", "keras")


def test_nothing_is_selected_without_select(tmp_path):
    mapping = "epoch: epoch\nmetrics:\n  zeta: {split: val, direction: down, unit: raw}\n"
    for select, best, on in (("", None, None), ("select: zeta min\n", 1, "val")):
        (run,) = read(tmp_path, "epoch,zeta\n1,3\n2,9\n", select + mapping)
        assert (run.best and run.best["epoch"], run.selected_on) == (best, on)
        assert run.final and run.final["zeta"] == 9


def test_variant_and_seed_from_the_path(tmp_path):
    mapping = tmp_path / "m.yaml"
    mapping.write_text("variant: {path: 2}\nseed: {path: 1}\n" + LOSS)
    for seed in (3, 4):
        for method in "ab":
            (tmp_path / "logs" / f"try{seed}" / method).mkdir(parents=True)
            (tmp_path / "logs" / f"try{seed}" / method / "x.csv").write_text("epoch,loss\n1,2\n")
    runs, _ = verb.read([tmp_path / "logs"], verb.how(str(mapping), Options()))
    assert {(run.variant, run.seed) for run in runs} == {("a", 3), ("a", 4), ("b", 3), ("b", 4)}


# -- mistakes and proposals ------------------------------------------------------------------------


def test_a_mapping_names_all_its_mistakes_with_lines(tmp_path):
    file = tmp_path / "m.yaml"
    file.write_text(
        "epoch: epoch\nstepp: it\nselect: mAP\nmetrics:\n  loss: {split: training}\n  a: {unit: '?'}\n"
    )
    with pytest.raises(MappingError) as raised:
        load(file)
    for word in ("m.yaml:2: stepp", "m.yaml:5: metrics.loss.split", "m.yaml:6: metrics.a.unit"):
        assert word in str(raised.value)
    with pytest.raises(LogError, match=r"no column 'epoc'\. Did you mean 'epoch'"):
        read(tmp_path, "epoch,val_x\n1,2\n", "epoch: epoc\nmetrics:\n  val_x: {split: train}\n")


NAMES = ["loss", "acc", "val_mAP", "val_loss", "test_f1", "zeta", "Rank-1", "note", "train/x@y", "a:b"]
ANSWERS = {"split": "val", "direction": "up", "unit": "raw", "step": "row"}


@settings(max_examples=60, deadline=None)
@given(
    columns=st.lists(st.sampled_from(NAMES), min_size=2, max_size=6, unique=True),
    places=st.sampled_from([["epoch"], ["step"], [], ["epoch", "step"]]),
    is_csv=st.booleans(),
)
def test_what_propose_writes_is_accepted_once_its_questions_are_answered(
    tmp_path_factory, columns, places, is_csv
):
    folder = tmp_path_factory.mktemp("p")
    every = [*places, *columns]
    lines = [
        [*[str(i)] * len(places), *("x" if c == "note" else f"0.{i}" for c in columns)] for i in (1, 2)
    ]
    text = "\n".join(json.dumps(dict(zip(every, cells, strict=True))) for cells in lines)
    text = "\n".join(map(",".join, [every, *lines])) + "\n" if is_csv else text
    path = folder / "log.csv"
    path.write_text(text)
    proposed = verb.propose([path], None)
    for question, answer in ANSWERS.items():
        proposed = proposed.replace(f"{question}: '?'", f"{question}: {answer}")
    (run,) = read(folder, text, proposed)
    assert run.rows and len(run.rows[0]) > 3


def test_the_table_of_known_names_stands_in_the_documentation():
    docs = Path(__file__).parents[3] / "docs" / "importing.md"
    assert verb.describe_mappings() in docs.read_text(encoding="utf-8")
    assert {names.direction_of(n) for n in ("val_mAP", "rank1/market", "PSNR")} == {"up"}
    assert (names.direction_of("wer"), names.direction_of("zeta")) == ("down", None)
