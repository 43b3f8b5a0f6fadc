"""A configuration says what it is, once, and refuses what it does not know."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdtps.config import ReidConfig, RetrievalConfig, config_keys, identity, parse_config, resolved
from sdtps.config.acting import RULES, effective, idle_settings
from sdtps.config.identity import NOT_IN_IDENTITY
from sdtps.config.load import TASKS
from sdtps.system.errors import ConfigError


def test_all_mistakes_are_told_at_once_with_the_nearest_key() -> None:
    with pytest.raises(ConfigError) as error:
        parse_config({"sdtps": {"temprature": 1.0, "beta": "x", "mask": "subtract"}, "dta": {}})
    text = str(error.value)
    assert "sdtps.temprature: unknown key 'temprature'. Did you mean 'temperature'?" in text
    assert "Did you mean 'data'?" in text
    assert "sdtps.beta" in text
    assert "subtract_1e10" in text


@pytest.mark.parametrize("config", [ReidConfig(), RetrievalConfig()])
def test_resolved_configuration_reads_back_as_itself(config) -> None:
    assert parse_config(resolved(config)) == config


def test_one_mask_has_one_identity_however_it_is_written() -> None:
    written = ["subtract_1e10", "subtract_10000000000", "subtract_1.0e+10"]
    ids = {identity(parse_config({"sdtps": {"mask": mask}}), 0) for mask in written}
    assert len(ids) == 1


@given(st.sampled_from(sorted(NOT_IN_IDENTITY & config_keys("reid").keys())))
def test_what_cannot_change_a_result_is_not_in_the_identity(key: str) -> None:
    section, name = key.split(".")
    values = {"root": "/x", "device": "cpu", "compile": True, "tf32": True, "also": ["missing_r"]}
    value = {**values, "loggers": ["tensorboard"]}.get(name, 3)
    assert identity(parse_config({section: {name: value}}), 0) == identity(ReidConfig(), 0)


def test_a_section_given_in_part_keeps_the_recipe_of_its_task() -> None:
    config = parse_config({"optim": {"lr": 1e-4}, "train": {"epochs": 3}})
    assert config.optim.backbone_lr == 5e-6 and config.optim.lr_noise and config.train.amp == "fp16"
    made = [(ReidConfig(), 0), (ReidConfig(), 1), (config, 0)]
    assert len({identity(*run) for run in made}) == 3


def test_every_excluded_key_exists() -> None:
    known = {key for task in TASKS for key in config_keys(task)}
    assert known >= NOT_IN_IDENTITY


def test_weights_count_by_their_file_not_their_folder() -> None:
    here, there = ({"backbone": {"weights": f"/{d}/ViT-B-16.pt"}} for d in "ab")
    assert identity(parse_config(here), 0) == identity(parse_config(there), 0)
    assert identity(parse_config({"backbone": {"weights": "random"}}), 0) != identity(
        parse_config(here), 0
    )


NO_DENSE = {"dense_text": "none", "eval_dense_text": "none"}
IDLE = [
    ({"sdtps": {"temperature": 5.0}}, "sdtps.temperature", "sdtps.decision gumbel_ste or soft"),
    ({"sdtps": {"score": "attention_sum", "beta": 0.5}}, "sdtps.beta", "sdtps.score eq3"),
    ({"optim": {"milestones": [3]}}, "optim.milestones", "optim.schedule multistep"),
    (
        {"optim": {"warmup_epochs": 0.0, "warmup_factor": 0.5}},
        "optim.warmup_factor",
        "optim.warmup_epochs above 0",
    ),
    ({"optim": {"backbone_lr_factor": 0.1}}, "optim.backbone_lr_factor", "optim.backbone_lr null"),
    ({"task": "retrieval", "sdtps": {"loss_weight": 2.0}}, "sdtps.loss_weight", "task reid"),
    (
        {"task": "retrieval", "matching": {"alignment": "mean", "top_k": 3}},
        "matching.top_k",
        "matching.alignment mean_topk or topk",
    ),
    (
        {"task": "retrieval", "matching": NO_DENSE, "data": {"max_dense_words": 50}},
        "data.max_dense_words",
        "a dense text in",
    ),
]


@pytest.mark.parametrize(("tree", "key", "needs"), IDLE, ids=lambda v: v if isinstance(v, str) else "")
def test_a_setting_that_nothing_reads_is_refused_with_what_makes_it_act(tree, key, needs) -> None:
    with pytest.raises(ConfigError) as error:
        parse_config(tree)
    (line,) = [line for line in str(error.value).splitlines() if f" {key}: " in line]
    assert "does nothing here" in line
    assert f"it acts with {needs}" in line


def test_every_rule_names_keys_that_exist_and_holds_for_the_defaults() -> None:
    for task, rules in RULES.items():
        assert {key for rule in rules for key in rule.keys} <= config_keys(task).keys()
        assert idle_settings(TASKS[task]()) == []


def test_a_part_that_is_switched_off_keeps_what_its_base_says_and_counts_as_one() -> None:
    plain = parse_config({"sdtps": {"enabled": False}})
    inherited = parse_config({"sdtps": {"enabled": False, "mask": "log", "keep_ratio": 0.7}})
    assert identity(plain, 0) != identity(inherited, 0)
    assert effective(plain) == effective(inherited)
    assert effective(plain) != effective(ReidConfig())


@pytest.mark.parametrize(
    ("tree", "text"),
    [
        ({"sdtps": {"aggregation": "none", "mask": "log"}}, "needs aggregation single or dual"),
        ({"fusion": {"kind": "hdm"}}, "exclude each other"),
        ({"loss": {"global_branch": False}, "eval": {"feature": "global"}}, "untrained branch"),
        ({"task": "retrieval", "image_encoder": {"frozen": True}}, "set data.augment to false"),
        ({"task": "retrieval", "text_encoder": {"frozen": True}}, "set data.word_noise to 0"),
        ({"task": "retrieval", "matching": {"form": "released"}}, "sdtps.aggregation to single"),
    ],
)
def test_parts_that_contradict_each_other_are_refused(tree, text) -> None:
    with pytest.raises(ConfigError, match=text):
        parse_config(tree)
