"""A configuration says what it is, once, and refuses what it does not know."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdtps.config import ReidConfig, RetrievalConfig, config_keys, identity, parse_config, resolved
from sdtps.config.identity import NOT_IN_IDENTITY
from sdtps.errors import ConfigError


def test_all_mistakes_are_told_at_once_with_the_nearest_key() -> None:
    with pytest.raises(ConfigError) as told:
        parse_config({"sdtps": {"temprature": 1.0, "beta": "x", "mask": "subtract"}, "dta": {}})
    text = str(told.value)
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
    value = {"root": "/x", "device": "cpu", "compile": True, "tf32": True}.get(name, 3)
    assert identity(parse_config({section: {name: value}}), 0) == identity(ReidConfig(), 0)


def test_a_section_given_in_part_keeps_the_recipe_of_its_task() -> None:
    config = parse_config({"task": "reid", "optim": {"lr": 1e-4}, "train": {"epochs": 3}})
    assert config.optim.backbone_lr == 5e-6 and config.optim.lr_noise
    assert config.train.amp == "fp16"


def test_everything_else_is() -> None:
    base = identity(ReidConfig(), 0)
    assert identity(ReidConfig(), 1) != base
    assert identity(parse_config({"optim": {"lr": 1e-4}}), 0) != base
    assert identity(parse_config({"train": {"amp": "bf16"}}), 0) != base


def test_every_excluded_key_exists() -> None:
    known = config_keys("reid").keys() | config_keys("retrieval").keys()
    assert known >= NOT_IN_IDENTITY


def test_weights_count_by_their_file_not_their_folder() -> None:
    here, there = ({"backbone": {"weights": f"/{d}/ViT-B-16.pt"}} for d in "ab")
    assert identity(parse_config(here), 0) == identity(parse_config(there), 0)
    assert identity(parse_config({"backbone": {"weights": "random"}}), 0) != identity(
        parse_config(here), 0
    )


def test_parts_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match="aggregation is none"):
        parse_config({"sdtps": {"aggregation": "none", "mask": "log"}})
    with pytest.raises(ConfigError, match="exclude each other"):
        parse_config({"fusion": {"kind": "hdm"}})
