"""Runs of other code, data or weights are no seeds of one variant, whatever their identity says."""

from __future__ import annotations

import json

import pytest
from planted import CODE, OTHER_CODE, PERCENT, plant, plant_all, planted_study, reseal

from analysis.runs.collect import collect
from analysis.runs.comparable import KINDS, refuse_to_average
from analysis.tables.study import tables
from analysis.verbs import tell_mixed
from sdtps.config import parse_config
from sdtps.system.errors import AggregationError


@pytest.fixture
def study():
    return planted_study("demo", ["topk", "gumbel"])


def rest_on(folder, **origin):
    """Write `origin` as a run does, over what it rests on by default."""
    usual = {"code": [CODE["digest"]], "data": "f00d", "weights": {}}
    reseal(folder, origin={**usual, **origin})


def folders(runs, study):
    return [plant(runs, study, v, seed) for v in study.variants for seed in study.seeds]


def marks(runs, study):
    return refuse_to_average(collect([study], runs), allow=KINDS)


def test_a_seed_on_other_data_is_refused_and_said_in_print_when_allowed(tmp_path, study):
    *others, last = folders(tmp_path, study)
    for folder in others:
        rest_on(folder)
    rest_on(last, data="beef")
    collected = collect([study], tmp_path)
    with pytest.raises(AggregationError, match="2 versions of the data are mixed") as caught:
        refuse_to_average(collected, allow=set(KINDS) - {"mixed_data"})
    text = str(caught.value)
    assert "gumbel seed 2" in text and "topk seed" not in text and "--allow-mixed-data" in text
    assert "sdtps submit ablations/demo.yaml --retry stale" in text
    (mark,) = refuse_to_average(collected, allow={"mixed_data"})
    assert mark.runs == {str(last.path): "beef"}
    assert any("f00d (5 runs); beef (1 run)" in s for s in tables(collected, study, [mark])[0].caption)


def test_a_program_that_was_edited_between_two_runs_is_refused(tmp_path, study, capsys):
    for variant in study.variants:
        for seed in study.seeds:
            edited = (variant, seed) == ("gumbel", 2)
            files = {"train.py": "b" * 32 if edited else "a" * 32, f"{variant}.py": variant}
            rest_on(plant(tmp_path, study, variant, seed, program=files))
    (mark,) = marks(tmp_path, study)
    assert mark.kind == "mixed_code" and "file train.py" in mark.text
    assert [folder.rsplit("/", 2)[1] for folder in mark.runs] == ["gumbel"]
    with pytest.raises(AggregationError, match=r"--retry stale .*or: --allow-mixed-code"):
        refuse_to_average(collect([study], tmp_path))
    assert tell_mixed(collect([study], tmp_path), allow=[]) == [mark]
    assert "file train.py are mixed" in capsys.readouterr().err


def configured(**sections):
    return {"config": parse_config({"task": "reid", **sections})}


CLIP, IMAGENET = (configured(backbone={"weights": f"/{name}.pt"}) for name in ("clip", "imagenet"))
AUTO = configured(train={"amp": "auto"})
OTHER_SET, OTHER_BATCH = (
    configured(data=data) for data in ({"dataset": "msvr310"}, {"batch_size": 8, "instances": 4})
)
ONE, TWO = ({"weights": {"backbone": digit * 64}} for digit in "12")


@pytest.mark.parametrize(
    ("a", "b", "first", "of_a", "of_b", "kind"),
    [
        ({}, OTHER_SET, {}, {}, {"data": "beef"}, None),
        ({}, OTHER_BATCH, {}, {}, {"data": "beef"}, "mixed_data"),  # it reads the same files
        (CLIP, IMAGENET, ONE, ONE, TWO, None),
        (CLIP, CLIP, TWO, ONE, ONE, "mixed_weights"),
        (AUTO, AUTO, {"amp": "fp16"}, {"amp": "bf16"}, {"amp": "bf16"}, "mixed_precision"),
    ],
    ids=["data sets", "batch sizes", "files", "one file", "amp auto"],
)
def test_what_settings_say_is_the_same_must_have_been_the_same(tmp_path, a, b, first, of_a, of_b, kind):
    """`first`: what the first run rests on; the other runs of a and b rest on `of_a` and `of_b`."""
    study = planted_study("demo", {"a": a, "b": b})
    for number, folder in enumerate(folders(tmp_path, study)):
        rest_on(folder, **(of_b if "/b/" in str(folder.path) else of_a if number else first))
    found = marks(tmp_path, study)
    assert [mark.kind for mark in found] == ([kind] if kind else [])
    if first:
        assert all(len(mark.runs) == 1 for mark in found)


def test_where_a_result_names_no_data_and_weights_its_run_does(tmp_path):
    study = planted_study("demo", {"a": CLIP, "b": CLIP})
    for number, folder in enumerate(folders(tmp_path, study)):
        data = {"name": "rgbnt201", "digest": "f00d" if number else "beef"}
        weights = {"backbone": {"file": "/clip.pt", "digest": ("1" if number else "2") * 64}}
        folder.update_run(data=data, weights=weights)
        reseal(folder)
    found = {mark.kind: list(mark.runs.values()) for mark in marks(tmp_path, study)}
    assert found == {"mixed_data": ["beef"], "mixed_weights": ["2" * 12]}


def test_a_run_that_went_on_with_other_code_is_mixed_by_itself(tmp_path):
    study = planted_study("demo", ["topk"], seeds=(0,))
    rest_on(plant(tmp_path, study, "topk", 0), code=[CODE["digest"], OTHER_CODE["digest"]])
    (mark,) = marks(tmp_path, study)
    begun, finished = CODE["digest"][:12], OTHER_CODE["digest"][:12]
    assert f"2 code versions are mixed: begun with {begun}, finished with {finished}" in mark.text


def test_a_run_that_records_no_code_is_not_taken_for_the_others_code(tmp_path, study):
    plant_all(tmp_path, study)
    folder = plant(tmp_path, planted_study("demo", ["topk"], seeds=(9,)), "topk", 9, code=None)
    text = json.loads(folder.run_file.read_text())
    assert not text["code"]
    (mark,) = marks(tmp_path, planted_study("demo", ["topk"], seeds=(0, 1, 9)))
    assert mark.text == "not every run records its code: c0dec0dec0de (2 runs); not recorded (1 run)"
    plant_all(tmp_path / "none", study, code=None)  # a version that none records is none in common
    assert [mark.kind for mark in marks(tmp_path / "none", study)] == ["mixed_code"]


def test_a_later_evaluation_by_other_code_is_told_where_its_metric_is_shown(tmp_path):
    metrics = {"mAP": PERCENT, "mAP@rerank": PERCENT}
    study = planted_study("demo", ["topk"], metrics=metrics)
    scores = {"mAP": [0.4, 0.6]}
    made = [plant(tmp_path, study, "topk", seed, scores=scores) for seed in study.seeds]

    def evaluate(folder, code):
        row = {"condition": "rerank", "data": {"own": True}, "metrics": {"mAP@rerank": 0.7}}
        for weights in ("best", "last"):
            folder.append_evaluation({**row, "weights": weights, "code": code})

    for folder in made:
        evaluate(folder, CODE["digest"])
    assert marks(tmp_path, study) == []
    evaluate(made[1], OTHER_CODE["digest"])
    (mark,) = marks(tmp_path, study)
    assert mark.kind == "mixed_code" and list(mark.runs) == [str(made[1].path)]
    trained, by = CODE["digest"][:12], OTHER_CODE["digest"][:12]
    assert f"trained with {trained}, evaluated with {by} (1 run)" in mark.text
    caption = " ".join(tables(collect([study], tmp_path), study, [mark])[0].caption)
    assert "Some runs were evaluated, after training, with other code than trained them" in caption
    with pytest.raises(AggregationError, match=r"topk seed 1.*evaluated with"):
        refuse_to_average(collect([study], tmp_path))
    unaffected = planted_study("demo", ["topk"], metrics={"mAP": PERCENT})
    assert marks(tmp_path, unaffected) == []


def test_types_of_gpu_and_versions_of_torch_are_a_note(tmp_path, study):
    made = folders(tmp_path, study)
    made[0].update_run(environment={"gpu": "NVIDIA A100", "packages": {"torch": "2.9"}})
    reseal(made[0])
    made_tables = tables(collect([study], tmp_path), study)
    caption = " ".join(text for table in made_tables for text in (*table.caption, *table.notes))
    assert "NVIDIA A100 (1 run)" in caption and marks(tmp_path, study) == []
