"""DeMo's losses and its evaluation equal the published ones."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import torch

from sdtps.evaluation.reid import rank
from sdtps.models.losses import batch_hard_triplet, label_smooth_cross_entropy

if TYPE_CHECKING:
    from tests.golden.conftest import Golden

CASES = ("triplet_loss_*", "label_smooth_cross_entropy*", "reid_evaluation*")


def triplet_loss(golden: Golden) -> None:
    margin = re.search(r"_margin(\d+\.?\d*)", golden.name)
    loss = batch_hard_triplet(
        golden.input("features"), golden.constant("labels"), float(margin.group(1)) if margin else None
    )
    golden.check("loss", loss)
    golden.finish(loss)


def label_smooth(golden: Golden) -> None:
    loss = label_smooth_cross_entropy(
        golden.input("logits"), golden.constant("labels"), golden.number("epsilon")
    )
    golden.check("loss", loss)
    golden.finish(loss)


def reid_evaluation(golden: Golden) -> None:
    for rule, view in (("camera", "camids"), ("scene", "sceneids")):
        published = golden.constant(f"cmc_{rule}")
        ranking = rank(
            golden.constant("distmat"),
            golden.constant("query_pids"),
            golden.constant("gallery_pids"),
            golden.constant(f"query_{view}"),
            golden.constant(f"gallery_{view}"),
        )
        within = ranking["rank"][:, None] <= torch.arange(1, len(published) + 1)
        golden.check(f"cmc_{rule}", within.double().mean(0).to(published.dtype))
        assert abs(ranking["AP"].mean() - golden.number(f"map_{rule}")) <= 1e-12


def test_equals_the_published_loss_or_metric(golden: Golden) -> None:
    for prefix, check in (
        ("triplet_loss", triplet_loss),
        ("label_smooth_cross_entropy", label_smooth),
        ("reid_evaluation", reid_evaluation),
    ):
        if golden.name.startswith(prefix):
            check(golden)
            return
    raise AssertionError(f"{golden.name}: nothing reproduces this case")
