"""A batch in pieces gives the gradients of the whole, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sdtps.audit.toys import build_toy
from sdtps.config import parse_config

REID = {
    "data": {"height": 64, "width": 32},
    "backbone": {"name": "tiny_vit", "patch": 8, "weights": "random"},
}
RETRIEVAL = {"task": "retrieval", "image_encoder": {"name": "tiny_vit", "size": 56, "patch": 8}}


def gradients(tree: dict[str, Any], pieces: int | None) -> tuple[float, list[torch.Tensor | None]]:
    config = parse_config({**tree, "train": {"amp": "off", "micro_batch": pieces}})
    toy = build_toy(config, 0, None)
    toy.model.double().train()
    for module in toy.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        config_of = getattr(module, "config", None)
        for key in ("attention_probs_dropout_prob", "hidden_dropout_prob"):
            if config_of is not None and hasattr(config_of, key):
                setattr(config_of, key, 0.0)
    batch = toy.batch(0)
    batch = batch._replace(images=batch.images.double())
    loss, _ = toy.loss(batch, toy.epoch, 1)
    loss.backward()
    return loss.item(), [p.grad for p in toy.model.parameters()]


@pytest.mark.parametrize("tree", [REID, RETRIEVAL], ids=["reid", "retrieval"])
@pytest.mark.parametrize("pieces", [1, 3])
def test_pieces_agree_with_the_whole_batch(tree: dict[str, Any], pieces: int) -> None:
    whole, expected = gradients(tree, None)
    loss, found = gradients(tree, pieces)
    assert loss == pytest.approx(whole, rel=1e-9)
    assert any(g is not None and g.abs().max() > 0 for g in expected)
    for one, two in zip(expected, found, strict=True):
        assert (one is None) == (two is None)
        if one is not None and two is not None:
            torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-10)
