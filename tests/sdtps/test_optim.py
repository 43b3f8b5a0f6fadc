"""Rates and groups equal DeMo's published recipe."""

from __future__ import annotations

import math

import pytest
from torch import nn

from sdtps.config import RetrievalConfig
from sdtps.config.common import OptimConfig
from sdtps.training.optim import (
    Schedule,
    build_optimizer,
    layer_depths,
    noise_multiplier,
    parameter_groups,
)

DEMO = OptimConfig(lr=3.5e-4, backbone_lr=5e-6, bias_lr_factor=2.0, warmup_epochs=10.0, lr_noise=True)
QUIET = DEMO.model_copy(update={"lr_noise": False})


def model() -> nn.ModuleDict:
    return nn.ModuleDict({"trunk": nn.Linear(2, 2), "head": nn.Linear(2, 2)})


def test_rate_noise_of_epochs_1_to_10_is_demos() -> None:
    published = [0.352, 1.059, 1.031, 0.868, 1.576, 1.519, 1.058, 1.462, 1.311, 0.854]
    assert [noise_multiplier(e) for e in range(1, 11)] == pytest.approx(published, abs=6e-4)


def test_the_last_epoch_has_no_noise() -> None:
    noisy, quiet = Schedule(DEMO, 50, 62), Schedule(QUIET, 50, 62)
    assert noisy.rate(3.5e-4, 1) == pytest.approx(quiet.rate(3.5e-4, 1) * noise_multiplier(1))
    assert noisy.rate(3.5e-4, 50) == quiet.rate(3.5e-4, 50) == pytest.approx(3.5e-7)


def published(schedule: str, peak: float, epoch: int, epochs: int) -> float:
    """DeMo2's solver/lr_scheduler.py, STEPS (30, 40), warm-up 10 from 0.01."""
    if schedule == "linear":
        return peak * (1 - (epoch - 1) / (epochs - 1))
    start, end = 0.01 * 3.5e-4, 1e-3 * 3.5e-4
    if epoch < 10:
        share = epoch / 10
        if schedule == "multistep":
            return peak * (0.01 * (1 - share) + share)
        return start + (peak - start) * share
    if schedule == "multistep":
        return peak * 0.1 ** sum(step <= epoch for step in (30, 40))
    return end + (peak - end) * (1 + math.cos(math.pi * epoch / epochs)) / 2


@pytest.mark.parametrize("schedule", ["cosine", "multistep", "linear"])
def test_every_group_has_the_published_rate_in_every_epoch(schedule: str) -> None:
    settings = {"warmup_epochs": 0.0 if schedule == "linear" else 10.0, "warmup_factor": 0.01}
    settings["lr_min_factor"] = 0.0 if schedule == "linear" else 1e-3
    steps = {"milestones": (30, 40), "gamma": 0.1} if schedule == "multistep" else {}
    config = QUIET.model_copy(update={"schedule": schedule, **settings, **steps})
    groups = parameter_groups(model(), model()["trunk"].parameters(), config)
    ours = Schedule(config, 50, 62)
    for group in groups:
        for epoch in range(1, 51):
            rate = published(schedule, group["peak_lr"], epoch, 50)
            assert ours.rate(group["peak_lr"], epoch) == pytest.approx(rate, rel=1e-12, abs=1e-20)


def test_constant_and_the_released_steps() -> None:
    assert Schedule(OptimConfig(lr=1.0, schedule="constant"), 4, 10).rate(0.3, 3) == 0.3
    released = Schedule(RetrievalConfig().optim, 30, 10)
    rates = [released.rate(2e-4, e) / 2e-4 for e in (1, 9, 10, 15, 16)]
    assert rates == pytest.approx([1, 1, 0.3, 0.3, 0.09])


def test_a_warm_up_shorter_than_an_epoch_rises_with_every_step() -> None:
    config = OptimConfig(lr=1.0, schedule="constant", warmup_epochs=0.5, warmup_factor=0.0)
    schedule = Schedule(config, 4, 10)
    rates = [schedule.rate(1.0, 1, step) for step in range(1, 8)]
    assert rates == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0, 1.0])


def test_groups_follow_demo_and_the_released_recipe() -> None:
    m = model()
    m["head"].weight.requires_grad_(False)
    groups = parameter_groups(m, m["trunk"].parameters(), DEMO)
    assert {g["name"]: g["lr"] for g in groups} == pytest.approx({"bias": 7e-4, "backbone": 5e-6})
    ids = [id(p) for g in groups for p in g["params"]]
    assert sorted(ids) == sorted(id(p) for p in m.parameters() if p.requires_grad)
    released = OptimConfig(name="adamw", lr=2e-4, backbone_lr_factor=0.1)
    m = model()
    seps = {g["name"]: g["lr"] for g in parameter_groups(m, m["trunk"].parameters(), released)}
    assert seps == pytest.approx({"head": 2e-4, "backbone": 2e-5})


def test_apply_sets_the_optimisers_rates() -> None:
    m = model()
    optimizer = build_optimizer(parameter_groups(m, m["trunk"].parameters(), DEMO), DEMO)
    rates = Schedule(DEMO, 50, 62).apply(optimizer, 1, 1)
    assert {g["name"]: g["lr"] for g in optimizer.param_groups} == rates
    assert rates["backbone"] == pytest.approx(3.2e-5 * noise_multiplier(1))


def test_layer_decay_gives_each_layer_of_the_trunk_a_rate_of_its_own() -> None:
    names = [
        *("backbone.patch_embedding.weight", "backbone.blocks.0.qkv.weight"),
        *("backbone.blocks.1.qkv.bias", "backbone.norm.weight"),
        *("text.encoder.layer.0.query.weight", "text.embeddings.word_embeddings.weight"),
    ]
    assert list(layer_depths(names).values()) == [3, 2, 1, 0, 1, 2]
    m = model()
    m["trunk"] = nn.ModuleDict({"blocks": nn.ModuleList(nn.Linear(2, 2) for _ in range(2))})
    rates = {1.0: {"backbone": 1.0}, 0.5: {"backbone_below1": 0.5, "backbone_below2": 0.25}}
    for decay, expected in rates.items():
        config = OptimConfig(lr=1.0, layer_decay=decay)
        groups = parameter_groups(m, m["trunk"].parameters(), config)
        assert {g["name"]: g["peak_lr"] for g in groups} == {"head": 1.0, **expected}
