"""Published alignment and retrieval losses, outputs and gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from sdtps.alignment import Alignment
from sdtps.config.axes import ratio_of_each
from sdtps.models.losses import contrastive_loss

if TYPE_CHECKING:
    from tests.golden.conftest import Golden

CASES = ("hrpa_*", "contrastive_loss_*", "ratio_loss*")


def hrpa(golden: Golden) -> None:
    kind = "mean_topk" if "paper" in golden.name else "mean"
    module = Alignment(kind, int(golden.number("top_k"))).double()
    module.load_state_dict(golden.parameters())
    similarity = module(golden.input("patches"), golden.input("words"))
    golden.check("similarity", similarity.unsqueeze(1))
    golden.finish(similarity.sum(), module, {name: name for name in golden.parameters()})


def contrastive(golden: Golden) -> None:
    loss = contrastive_loss(
        golden.input("scores"),
        margin=golden.number("margin"),
        hardest="hard" in golden.name,
        image_ids=golden.constant("image_ids"),
    )
    golden.check("loss", loss)
    golden.finish(loss)


def ratio(golden: Golden) -> None:
    loss = ratio_of_each(
        golden.constant("mask_sparse"),
        golden.constant("mask_dense"),
        golden.number("target_ratio"),
        1.0,
        1.0,
    )
    # Published in float32.
    torch.testing.assert_close(loss, golden.constant("loss").double(), rtol=1e-5, atol=0)


def test_equals_the_published_module_or_loss(golden: Golden) -> None:
    for prefix, check in (("hrpa", hrpa), ("contrastive_loss", contrastive), ("ratio_loss", ratio)):
        if golden.name.startswith(prefix):
            check(golden)
            return
    raise AssertionError(f"{golden.name}: nothing reproduces this case")
