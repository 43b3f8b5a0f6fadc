"""Runs of other code, data or weights are no seeds of one variant, whatever their identity says."""

from __future__ import annotations

import json

import pytest
from planted import CODE, OTHER_CODE, PERCENT, plant, plant_all, planted_study, reseal

from analysis.runs.collect import collect
from analysis.runs.comparable import KINDS, refuse_to_average
from analysis.tables.study import tables
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
    (mark,) = refuse_to_average(collected, allow={"mixed_data"})
    assert mark.runs == {str(last.path): "beef"}
    assert any("f00d (5 runs); beef (1 run)" in s for s in tables(collected, study, [mark])[0].caption)


def test_where_a_result_names_no_data_its_run_does(tmp_path, study):
    folder = folders(tmp_path, study)[0]
    folder.update_run(data={"name": "rgbnt201", "digest": "beef"})
    reseal(folder)
    (mark,) = marks(tmp_path, study)
    assert mark.kind == "mixed_data"


def test_a_study_of_data_sets_compares_each_with_itself(tmp_path):
    other = parse_config({"task": "reid", "data": {"dataset": "msvr310"}})
    study = planted_study("demo", {"a": {}, "b": {"config": other}})
    for folder in folders(tmp_path, study):
        if "/b/" in str(folder.path):
            rest_on(folder, data="beef")
    assert marks(tmp_path, study) == []


def test_settings_that_read_the_same_files_must_have_read_the_same(tmp_path):
    """Another batch size reads no other data: digests must agree across it."""
    other = parse_config({"task": "reid", "data": {"batch_size": 8, "instances": 4}})
    study = planted_study("demo", {"a": {}, "b": {"config": other}})
    for folder in folders(tmp_path, study):
        if "/b/" in str(folder.path):
            rest_on(folder, data="beef")
    assert [mark.kind for mark in marks(tmp_path, study)] == ["mixed_data"]


def weighted(name):
    return {"config": parse_config({"task": "reid", "backbone": {"weights": f"/{name}.pt"}})}


@pytest.mark.parametrize("recorded", ["origin", "run"])
def test_files_of_one_name_must_be_one_file(tmp_path, recorded):
    study = planted_study("demo", {"a": weighted("clip"), "b": weighted("clip")})
    for number, folder in enumerate(folders(tmp_path, study)):
        digest = ("1" if number else "2") * 64
        if recorded == "origin":
            rest_on(folder, weights={"backbone": digest})
        else:
            folder.update_run(weights={"backbone": {"file": "/clip.pt", "digest": digest}})
            reseal(folder)
    (mark,) = marks(tmp_path, study)
    assert mark.kind == "mixed_weights" and list(mark.runs.values()) == ["2" * 12]


def test_what_auto_meant_must_be_one_precision(tmp_path):
    auto = {"config": parse_config({"task": "reid", "train": {"amp": "auto"}})}
    study = planted_study("demo", {"a": auto, "b": auto})
    for number, folder in enumerate(folders(tmp_path, study)):
        rest_on(folder, amp="bf16" if number else "fp16")
    (mark,) = marks(tmp_path, study)
    assert mark.kind == "mixed_precision" and list(mark.runs.values()) == ["fp16"]


def test_a_study_of_weights_compares_each_with_itself(tmp_path):
    study = planted_study("demo", {"a": weighted("clip"), "b": weighted("imagenet")})
    for folder in folders(tmp_path, study):
        rest_on(folder, weights={"backbone": ("1" if "/a/" in str(folder.path) else "2") * 64})
    assert marks(tmp_path, study) == []


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


def test_a_version_that_no_run_records_is_no_version_in_common(tmp_path, study):
    plant_all(tmp_path, study, code=None)
    assert [mark.kind for mark in marks(tmp_path, study)] == ["mixed_code"]


def test_types_of_gpu_and_versions_of_torch_are_a_note(tmp_path, study):
    made = folders(tmp_path, study)
    made[0].update_run(environment={"gpu": "NVIDIA A100", "packages": {"torch": "2.9"}})
    reseal(made[0])
    made_tables = tables(collect([study], tmp_path), study)
    caption = " ".join(text for table in made_tables for text in (*table.caption, *table.notes))
    assert "NVIDIA A100 (1 run)" in caption and marks(tmp_path, study) == []
