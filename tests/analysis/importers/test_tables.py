"""Tables of other programs: what names tell, what is asked for, and what a mapping says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.importers import command, mapping, store
from analysis.importers.metrics import known
from analysis.importers.run import ImportedRun, LogError
from analysis.importers.table import Options

Runs = dict[tuple[str, int | None], ImportedRun]


def read(folder: Path, files: dict[str, str], **said: object) -> Runs:
    """Runs by variant and seed of files written below `folder`; raises what an import would print."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    runs, complaints = command.read([folder], Options(**said))  # type: ignore[arg-type]
    if complaints:
        raise LogError("\n".join(complaints))
    return {(run.variant, run.seed): run for run in store.settle(runs)}


def only(runs: Runs) -> ImportedRun:
    (run,) = runs.values()
    return run


def rows(run: ImportedRun, kind: str, *names: str) -> list[tuple]:
    return [tuple(r.get(n) for n in names) for r in run.rows if r["kind"] == kind]


# -- variants and seeds ---------------------------------------------------------------------------


def test_seeds_in_folder_names_are_seeds_and_methods_stay_apart(tmp_path):
    files = {
        f"{method}/seed{seed}/log.csv": f"epoch,loss,val_mAP\n1,2.0,{score + seed}\n"
        for method, score in (("ours", 60), ("plain", 50))
        for seed in (1, 2, 3)
    }
    runs = read(tmp_path, files)
    assert {key: run.best["mAP"] for key, run in runs.items() if run.best} == {
        **{("ours", s): (60 + s) / 100 for s in (1, 2, 3)},
        **{("plain", s): (50 + s) / 100 for s in (1, 2, 3)},
    }


def test_a_folder_that_all_logs_share_names_no_variant(tmp_path):
    files = {f"{m}/ToySet/train_log.txt": TRANSREID.format(score=s) for m, s in (("a", 50), ("b", 60))}
    runs = read(tmp_path, files)
    assert [(k[0], r.best["mAP"]) for k, r in runs.items() if r.best] == [("a", 0.5), ("b", 0.6)]
    assert {run.label for run in runs.values()} == {""}  # nothing in the logs names an arrangement


TRANSREID = (
    "2026-01-02 10:00:00,000 transreid.train INFO: start training\n"
    "2026-01-02 10:01:10,000 transreid.train INFO: Epoch[1] Iteration[50/100] Loss: 8.000, Acc: 0.100, "
    "Base Lr: 8.00e-04\n"
    "2026-01-02 10:01:20,000 transreid.train INFO: Validation Results - Epoch: 1\n"
    "2026-01-02 10:01:20,000 transreid.train INFO: mAP: {score}.0%\n"
)


def test_two_logs_for_one_place_are_refused_not_averaged(tmp_path):
    with pytest.raises(LogError, match="two logs for one variant and seed"):
        read(
            tmp_path,
            {"a/seed1/log.csv": "epoch,loss\n1,2\n", "a/seed1/metrics.csv": "epoch,loss\n1,3\n"},
        )


def test_a_study_never_mixes_data_sets(tmp_path):
    header = "2026-01-02 09:59:00,000 DeMo INFO: Running with config:\nDATASETS:\n  NAMES: {}\n"
    files = {f"{d}/run.log": header.format(d) + TRANSREID.format(score=50) for d in ("ToyA", "ToyB")}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    runs, _ = command.read([tmp_path])
    assert sorted(store.by_study(runs)) == ["ToyA", "ToyB"]
    runs, _ = command.read([tmp_path], study="both")
    with pytest.raises(LogError, match="logs of 2 data sets"):
        store.by_study(runs)


# -- states ---------------------------------------------------------------------------------------


def test_completed_needs_a_planned_length(tmp_path):
    assert only(read(tmp_path / "a", {"log.csv": "epoch,loss\n1,2\n"})).state == "ended"
    told = mapping.Mapping(epoch="epoch", epochs_planned=2, metrics={"loss": {"split": "train"}})
    run = only(read(tmp_path / "b", {"log.csv": "epoch,loss\n1,2\n"}, mapping=told))
    assert (run.state, run.reason) == ("incomplete", "the log ends at epoch 1 of 2")
    assert (
        only(read(tmp_path / "c", {"log.csv": "epoch,loss\n1,2\n2,1\n"}, mapping=told)).state
        == "completed"
    )


def test_a_crash_before_training_is_a_failed_run(tmp_path):
    crash = "Traceback (most recent call last):\n  File \"train.py\", line 3\nKeyError: 'MODEL.TOY'\n"
    runs = read(tmp_path, {"ok.csv": "epoch,loss\n1,2\n", "broken.log": crash})
    failed = runs["broken", 0]
    assert (failed.state, failed.failure, failed.reason) == ("failed", "error", "KeyError: 'MODEL.TOY'")


def test_pointers_of_git_lfs_are_named(tmp_path):
    with pytest.raises(LogError, match="Git LFS pointer"):
        read(tmp_path, {"a.log": "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"})


def test_the_prompts_of_clip_reid_are_a_stage_of_their_own(tmp_path):
    stage1 = "".join(
        f"2026-01-02 10:00:1{e},000 transreid.train INFO: Epoch[{e}] Iteration[50/100] "
        f"Loss: {9 - e}.1, Base Lr: 3.50e-04\n"
        for e in (1, 2)
    )
    config = (
        "2026-01-02 09:59:00,000 transreid INFO: Running with config:\nSOLVER:\n  SEED: 7\n  STAGE1:\n"
        "    MAX_EPOCHS: 2\n  STAGE2:\n    MAX_EPOCHS: 60\n"
    )
    start = "2026-01-02 10:00:00,000 transreid.train INFO: start training\n"
    run = only(read(tmp_path, {"train_log.txt": config + start + stage1 + TRANSREID.format(score=50)}))
    assert (run.state, run.seed, run.unread) == ("incomplete", 7, [])
    assert run.reason == "the log ends at epoch 1 of 60"
    assert rows(run, "stage1", "epoch", "step", "loss") == [(1, 50, 8.1), (2, 150, 7.1)]
    assert rows(run, "train", "epoch", "step", "loss") == [(1, 50, 8.0)]


# -- steps and restarts ---------------------------------------------------------------------------


def test_iterations_that_start_again_in_each_epoch_are_no_restart(tmp_path):
    text = (
        "epoch,iter,loss,val_mAP\n1,50,2.0,\n1,100,1.8,\n1,100,,60.0\n"
        "2,50,1.5,\n2,100,1.4,\n2,100,,55.0\n"
    )
    run = only(read(tmp_path, {"log.csv": text}))
    assert rows(run, "train", "step", "loss") == [(50, 2.0), (100, 1.8), (150, 1.5), (200, 1.4)]
    assert run.best and (run.best["epoch"], run.best["mAP"]) == (1, 0.6)
    assert run.facts["attempts"] == 1


def test_a_step_that_goes_back_is_asked_about(tmp_path):
    text = "step,loss\n1,3.0\n2,2.0\n1,9.0\n2,1.0\n"
    with pytest.raises(LogError, match=r"line 4: step 1 follows step 2.*--restarts"):
        read(tmp_path, {"log.csv": text})
    run = only(read(tmp_path, {"log.csv": text}, restarts=True))
    assert rows(run, "train", "attempt", "step", "loss") == [(2, 1, 9.0), (2, 2, 1.0)]
    assert any("2 rows of the earlier attempt dropped" in note for note in run.notes)
    again = "step,loss\n1,3.0\n2,2.0\nstep,loss\n2,1.5\n"  # the header again is a sign
    assert rows(only(read(tmp_path, {"log.csv": again})), "train", "step", "loss") == [
        (1, 3.0),
        (2, 1.5),
    ]


def test_epochs_that_are_trained_from_number_0_count_from_0(tmp_path):
    assert rows(only(read(tmp_path / "a", {"l.csv": "epoch,loss\n0,2\n1,1\n"})), "train", "epoch") == [
        (1,),
        (2,),
    ]
    before = "epoch,loss,val_loss\n0,,9\n1,2,3\n"  # evaluated before training
    run = only(read(tmp_path / "b", {"l.csv": before}))
    assert rows(run, "train", "epoch") == [(1,)] and rows(run, "eval", "epoch") == [(0,), (1,)]


def test_one_cell_that_holds_no_number_does_not_drop_its_column(tmp_path):
    text = "epoch,loss,val_mAP,note\n1,2,40.5,a\n2,1,err,b\n3,1,50.5,3\n"
    run = only(read(tmp_path, {"l.csv": text}))
    assert rows(run, "eval", "epoch", "mAP") == [(1, 0.405), (3, 0.505)]
    assert [(u.line, u.text) for u in run.unread] == [(3, "err")]
    assert "column 'note' is mostly text and was not read" in run.notes


def test_a_table_without_steps_is_asked_about(tmp_path):
    with pytest.raises(LogError, match="which column counts epochs or steps"):
        read(tmp_path, {"l.csv": "loss,val_loss\n2,3\n"})


# -- splits, directions, units --------------------------------------------------------------------


def test_validation_and_test_columns_stay_apart(tmp_path):
    text = (
        "epoch,train_loss,val_loss,val_acc,test_loss,test_acc\n1,2.0,1.8,50.0,1.9,47.0\n"
        "2,1.2,1.3,66.0,1.7,55.0\n3,1.0,1.5,64.0,1.5,61.0\n"
    )
    run = only(read(tmp_path, {"log.csv": text}))
    assert run.best is not None
    assert {k: run.best[k] for k in ("epoch", "val_loss", "val_acc", "test_loss", "test_acc")} == {
        "epoch": 2, "val_loss": 1.3, "val_acc": 0.66, "test_loss": 1.7, "test_acc": 0.55,
    }  # fmt: skip
    assert (run.select, run.selected_on) == ("val_acc max", "val")


def test_a_score_beside_its_validation_is_the_trainings(tmp_path):
    text = (
        "epoch,loss,val_loss,val_accuracy,accuracy\n1,0.9,0.8,70.0,75.0\n"
        "2,0.5,0.6,80.0,90.0\n3,0.2,0.7,78.0,99.0\n"
    )
    run = only(read(tmp_path, {"history.csv": text}))
    assert run.best and (run.best["epoch"], run.best["accuracy"]) == (2, 0.8)
    assert rows(run, "train", "accuracy") == [(0.75,), (0.9,), (0.99,)]


def test_scores_without_a_split_are_asked_about(tmp_path):
    text = "epoch,mAP\n1,40.5\n"
    with pytest.raises(LogError, match="column 'mAP': split"):
        read(tmp_path, {"log.csv": text})
    run = only(read(tmp_path, {"log.csv": text}, split="test"))
    assert run.metrics["mAP"].split == "test" and run.selected_on == "test"


def test_a_column_that_says_the_split_of_each_row(tmp_path):
    text = "epoch,phase,loss,acc\n1,train,2.0,40\n1,valid,1.8,50.5\n1,test,1.9,49.5\n"
    run = only(read(tmp_path, {"log.csv": text}))
    assert rows(run, "train", "loss") == [(2.0,)]
    (row,) = [r for r in run.rows if r["kind"] == "eval"]
    assert (row["loss"], row["acc"], row["test_loss"], row["test_acc"]) == (1.8, 0.505, 1.9, 0.495)
    with pytest.raises(LogError, match="what 'warmup' is"):
        read(tmp_path, {"log.csv": text + "2,warmup,1,1\n"})


def test_fractions_or_per_cents_are_never_guessed_from_small_values(tmp_path):
    files = {"keras.csv": "epoch,val_accuracy\n1,0.815\n", "torch.csv": "epoch,val_accuracy\n1,83.2\n"}
    with pytest.raises(LogError, match=r"keras\.csv: cannot be told:\n  column 'val_accuracy': unit"):
        read(tmp_path, files)
    files["keras.csv"] = "epoch,val_accuracy (%)\n1,0.815\n"
    assert {k[0]: r.best["accuracy"] for k, r in read(tmp_path, files).items() if r.best} == {
        "keras": 0.00815,
        "torch": 0.832,
    }


def test_scores_printed_as_they_stand_must_agree_between_logs(tmp_path):
    files = {"a.csv": "epoch,val_f1\n1,0.8\n", "b.csv": "epoch,val_f1\n1,83.2\n"}
    with pytest.raises(LogError, match=r"val_f1: b.csv prints per cents, a.csv no value above 1"):
        read(tmp_path, files)


@pytest.mark.parametrize(
    ("name", "direction"),
    [
        (n, "down")
        for n in ("wer", "ppl", "rmse", "mse", "mae", "nme", "eer", "bpc", "mean_rank", "loss")
    ]
    + [(n, "up") for n in ("confidence", "mAP", "rank1", "acc", "f1", "mIoU", "PSNR", "AP", "auroc")]
    + [("zeta", None)],
)
def test_well_known_directions(name, direction):
    assert known(f"val_{name}").direction == direction


def test_an_unknown_metric_is_asked_about_and_a_mapping_answers(tmp_path):
    text = "epoch,loss,val_zeta\n1,2.0,0.4\n2,1.0,0.3\n"
    with pytest.raises(LogError, match="column 'val_zeta': direction and unit"):
        read(tmp_path, {"log.csv": text})
    file = tmp_path / "mapping.yaml"
    file.write_text(command.propose([tmp_path / "log.csv"]))
    assert "val_zeta: {as: val_zeta, split: val, direction: '?', unit: '?'}" in file.read_text()
    with pytest.raises(LogError, match=r"mapping.yaml:\d+: direction: still a question mark"):
        mapping.load(file)
    file.write_text(file.read_text().replace("direction: '?', unit: '?'", "direction: down, unit: raw"))
    run = only(read(tmp_path, {"log.csv": text}, mapping=mapping.load(file)))
    assert (run.select, run.best and run.best["epoch"]) == ("val_zeta min", 2)


def test_a_mapping_names_all_its_mistakes_with_lines(tmp_path):
    file = tmp_path / "m.yaml"
    file.write_text("epoch: epoch\nstepp: it\nmetrics:\n  loss: {split: training}\n")
    with pytest.raises(LogError, match=r"m.yaml:2: stepp(.|\n)*m.yaml:4: metrics.loss.split"):
        mapping.load(file)
    file.write_text("epoch: epoc\nmetrics:\n  val_x: {split: val, direction: up}\n")
    with pytest.raises(
        LogError, match=r"no column 'epoc'. Did you mean 'epoch'(.|\n)*metrics.val_x: needs unit"
    ):
        read(tmp_path, {"l.csv": "epoch,val_x\n1,2\n"}, mapping=mapping.load(file))


def test_variant_and_seed_from_the_path_by_a_mapping(tmp_path):
    told = mapping.Mapping(
        epoch="epoch",
        variant=mapping.FromPath(path=2),
        seed=mapping.FromPath(path=1),
        metrics={"loss": {"split": "train"}},
    )
    texts = {f"try{s}/{m}/x.csv": f"epoch,loss\n1,{s}.{ord(m)}\n" for s in (3, 4) for m in "ab"}
    assert set(read(tmp_path, texts, mapping=told)) == {("a", 3), ("a", 4), ("b", 3), ("b", 4)}


def test_nothing_selects_where_no_metric_is_known_to(tmp_path):
    told = mapping.Mapping(
        epoch="epoch",
        metrics={n: {"split": "val", "direction": "up", "unit": "raw"} for n in ("zeta", "eta2")},
    )
    run = only(read(tmp_path, {"l.csv": "epoch,zeta,eta2\n1,9,1\n2,1,9\n"}, mapping=told))
    assert run.select == "" and run.best and run.best["epoch"] == 2
    assert any("no metric selects" in note for note in run.notes)


COLUMN = st.sampled_from(
    [
        "acc",
        "mAP",
        "score",
        "val_score",
        "val_acc",
        "test_f1",
        "metric1",
        "eval_rank1",
        "top1",
        "zeta",
        "r1",
    ]
)


@settings(max_examples=150, deadline=None)
@given(
    columns=st.lists(COLUMN, min_size=1, max_size=4, unique=True),
    values=st.lists(st.floats(0, 120, allow_nan=False), min_size=4, max_size=4),
    as_json=st.booleans(),
)
def test_no_metric_is_imported_whose_split_direction_or_unit_nothing_states(
    tmp_path_factory, columns, values, as_json
):
    folder = tmp_path_factory.mktemp("t")
    if as_json:
        lines = [json.dumps({"epoch": e, **dict(zip(columns, values, strict=False))}) for e in (1, 2)]
        files = {"l.jsonl": "\n".join(lines)}
    else:
        cells = ",".join(repr(v) for v in values[: len(columns)])
        files = {"l.csv": f"epoch,{','.join(columns)}\n1,{cells}\n2,{cells}\n"}
    try:
        run = only(read(folder, files))
    except LogError:
        return
    for row in run.rows:
        for name in set(row) - {"kind", "attempt", "epoch", "step"}:
            if row["kind"] == "eval":
                metric = run.metrics[name]
                assert metric.split in ("val", "test", "eval") and metric.direction in ("up", "down")
                assert metric.unit in ("percent", "raw")
                assert metric.unit == "raw" or max(values) > 1


# -- programs that are recognised -----------------------------------------------------------------


def test_mmengine_evaluations_count_epochs(tmp_path):
    text = (
        '{"lr": 0.02, "loss": 2.4, "epoch": 1, "iter": 1, "step": 1}\n'
        '{"lr": 0.02, "loss": 2.3, "epoch": 1, "iter": 2, "step": 2}\n'
        '{"accuracy/top1": 43.1, "step": 1}\n'
        '{"lr": 0.02, "loss": 1.9, "epoch": 2, "iter": 3, "step": 3}\n'
        '{"lr": 0.02, "loss": 1.8, "epoch": 2, "iter": 4, "step": 4}\n'
        '{"accuracy/top1": 76.5, "step": 2}\n'
        '{"lr": 0.02, "loss": 1.4, "epoch": 3, "iter": 5, "step": 5}\n'
        '{"accuracy/top1": 71.2, "step": 3}\n'
    )
    run = only(read(tmp_path, {"vis_data/scalars.json": text}))
    assert rows(run, "train", "epoch", "step", "loss") == [
        (1, 1, 2.4), (1, 2, 2.3), (2, 3, 1.9), (2, 4, 1.8), (3, 5, 1.4),
    ]  # fmt: skip
    assert rows(run, "eval", "epoch", "step", "accuracy_top1") == [
        (1, 2, 0.431),
        (2, 4, 0.765),
        (3, 5, 0.712),
    ]
    assert run.best and run.best["epoch"] == 2


def test_mmcv_iterations_count_within_an_epoch(tmp_path):
    text = (
        '{"env_info": "x", "seed": 3}\n'
        '{"mode": "train", "epoch": 1, "iter": 50, "lr": 0.1, "loss": 2.0}\n'
        '{"mode": "val", "epoch": 1, "iter": 7, "lr": 0.1, "bbox_mAP": 30.5}\n'
        '{"mode": "train", "epoch": 2, "iter": 50, "lr": 0.1, "loss": 1.0}\n'
        '{"mode": "val", "epoch": 2, "iter": 7, "lr": 0.1, "bbox_mAP": 33.5}\n'
    )
    run = only(read(tmp_path, {"20260102_100000.log.json": text}))
    assert rows(run, "train", "epoch", "step", "loss") == [(1, 50, 2.0), (2, 100, 1.0)]
    assert rows(run, "eval", "epoch", "bbox_mAP") == [(1, 30.5), (2, 33.5)]


def test_detectron2(tmp_path):
    text = (
        '{"iteration": 19, "total_loss": 2.0, "lr": 0.1, "time": 0.4}\n'
        '{"iteration": 39, "total_loss": 1.0, "lr": 0.1, "bbox/AP": 33.5}\n'
    )
    run = only(read(tmp_path, {"metrics.json": text}))
    assert rows(run, "train", "step", "loss") == [(20, 2.0), (40, 1.0)]
    assert rows(run, "eval", "step", "bbox_AP") == [(40, 33.5)]


def test_openclip_results(tmp_path):
    text = "".join(
        json.dumps({"imagenet-zeroshot-val-top1": s, "clip_val_loss": 1.0, "epoch": e}) + "\n"
        for e, s in ((1, 0.3), (2, 0.4))
    )
    run = only(read(tmp_path, {"results.jsonl": text}))
    assert rows(run, "eval", "epoch", "imagenet-zeroshot-val-top1") == [(1, 0.3), (2, 0.4)]


def test_ultralytics_epochs_from_0_and_from_1(tmp_path):
    head = "epoch,train/box_loss,metrics/precision(B),metrics/mAP50(B),metrics/mAP50-95(B),"
    head += "val/box_loss,lr/pg0\n"
    for first in (0, 1):
        lines = [f"{first + i},1.{i},0.8,0.{8 - i},0.{s},1.5,0.01" for i, s in enumerate((2, 46, 44))]
        run = only(read(tmp_path / str(first), {"toy/results.csv": head + "\n".join(lines) + "\n"}))
        assert run.facts["epochs"] == 3
        assert run.best and (run.best["epoch"], run.best["mAP50-95"]) == (2, 0.46)
        assert run.metrics["precision"].split == "val"


def test_llama_factory(tmp_path):
    text = (
        '{"current_steps": 10, "total_steps": 30, "loss": 2.31, "lr": 5e-05, "epoch": 0.33}\n'
        '{"current_steps": 20, "total_steps": 30, "loss": 1.91, "lr": 3e-05, "epoch": 0.66}\n'
        '{"current_steps": 20, "total_steps": 30, "eval_loss": 1.85, "epoch": 0.66}\n'
        '{"current_steps": 30, "total_steps": 30, "loss": 1.71, "lr": 1e-05, "epoch": 1.0}\n'
    )
    run = only(read(tmp_path, {"trainer_log.jsonl": text}))
    assert rows(run, "train", "step", "loss") == [(10, 2.31), (20, 1.91), (30, 1.71)]
    assert rows(run, "eval", "step", "eval_loss") == [(20, 1.85)]
    assert run.state == "completed"
    cut = text.rsplit("\n", 2)[0] + "\n"
    assert only(read(tmp_path, {"trainer_log.jsonl": cut})).state == "incomplete"


def test_wandb_history(tmp_path):
    text = ",train/loss,train/epoch,train/global_step,eval/loss,_step\n0,2.31,0.5,50,,0\n"
    text += "1,1.91,1.0,100,,1\n2,,1.0,100,1.71,2\n"
    run = only(read(tmp_path, {"history.csv": text}))
    assert rows(run, "train", "epoch", "step", "loss") == [(1, 50, 2.31), (1, 100, 1.91)]
    assert rows(run, "eval", "epoch", "step", "eval_loss") == [(1, 100, 1.71)]


def test_a_wandb_chart_holds_a_run_a_column(tmp_path):
    text = (
        '"Step","amber-3 - val/mAP","amber-3 - val/mAP__MIN","amber-3 - val/mAP__MAX",'
        '"calm-7 - val/mAP"\n'
        '"100","41.0","41.0","41.0","50.0"\n"200","52.0","52.0","52.0","61.0"\n'
    )
    runs = read(tmp_path, {"chart.csv": text})
    assert {k[0]: (r.best["step"], r.best["mAP"]) for k, r in runs.items() if r.best} == {
        "amber-3": (200, 0.52),
        "calm-7": (200, 0.61),
    }


def test_a_wandb_table_of_runs(tmp_path):
    text = "Name,State,seed,lr,val/mAP\nok,finished,1,0.1,61.5\nbad,crashed,2,0.1,\n"
    runs = read(tmp_path, {"runs.csv": text})
    assert (runs["ok", 1].state, runs["ok", 1].config["lr"]) == ("completed", "0.1")
    assert runs["ok", 1].final and runs["ok", 1].final["mAP"] == 0.615
    assert (runs["bad", 2].state, runs["bad", 2].reason) == ("failed", "Weights & Biases says crashed")


def test_vse_logs_and_their_rate(tmp_path):
    text = (
        "2026-01-02 10:00:00,000 Epoch: [0][9/20]\tEit 10  lr 0.0002  Le 90.5000 (95.0)\t"
        "Time 0.9 (1.0)\t\n"
        "2026-01-02 10:00:30,000 Image to text: 60.1, 85.2, 91.3, 1.0, 4.2\n"
        "2026-01-02 10:00:31,000 Text to image: 50.1, 75.2, 81.3, 2.0, 11.7\n"
    )
    run = only(read(tmp_path, {"train.log": text}))
    assert rows(run, "train", "epoch", "loss", "lr") == [(1, 90.5, 0.0002)]
    assert run.best and run.best["rsum"] == pytest.approx(4.432) and run.selected_on == "val"


def test_event_files_with_a_tag_called_time(tmp_path):
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(tmp_path / "toy"))
    for step, loss in ((19, 2.0), (39, 1.5)):
        for tag, value in (("total_loss", loss), ("time", 0.4)):
            summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
            writer.add_event(Event(wall_time=1000.0 + step, step=step, summary=summary))
    writer.close()
    assert rows(only(read(tmp_path, {})), "train", "step", "loss") == [(19, 2.0), (39, 1.5)]


def test_our_own_export_comes_back(tmp_path):
    lines = ["study,variant,seed,kind,attempt,epoch,step,metric,value"]
    lines += [
        f"s,{v},0,eval,1,{e},{e * 9},{m},{x}"
        for v, x in (("a", 0.6), ("b", 0.5))
        for e in (1, 2)
        for m in ("mAP", "rank1")
    ]
    runs = read(tmp_path, {"values.csv": "\n".join(lines) + "\n"})
    assert {k: (r.best["mAP"], r.best["rank1"]) for k, r in runs.items() if r.best} == {
        ("a", 0): (0.6, 0.6),
        ("b", 0): (0.5, 0.5),
    }
