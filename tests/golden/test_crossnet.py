"""The batched cross-net equals the published loops: similarity, decisions, every gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sdtps.config import SdtpsConfig
from sdtps.config.retrieval import MatchingConfig
from sdtps.crossnet import CrossNet
from sdtps.models.convert import CROSSNET
from tests.golden.test_modules import load

if TYPE_CHECKING:
    from tests.golden.conftest import Golden

CASES = ("crossnet_*",)


def crossnet(golden: Golden, chunk: int) -> CrossNet:
    ratios = {
        "keep_ratio": golden.number("sparse_ratio"),
        "aggregation_ratio": golden.number("aggr_ratio"),
    }
    if "paper" in golden.name:
        sdtps = SdtpsConfig(
            beta=golden.number("beta"),
            aggregation="dual" if "dual" in golden.name else "single",
            **ratios,
        )
        matching = MatchingConfig(top_k=int(golden.number("top_k")), chunk=chunk)
    else:
        laps = "laps" in golden.name
        sdtps = SdtpsConfig(
            score="attention_sum",
            normalise="none",
            no_grad="attention" if laps else "selection",
            aggregation="single",
            **ratios,
        )
        dense = "none" if laps else "own"
        matching = MatchingConfig(
            form="laps" if laps else "released",
            alignment="mean",
            dense_text=dense,
            eval_dense_text=dense,
            chunk=chunk,
        )
    _, tokens, width = golden.constant("images").shape
    class_token = not golden.name.endswith("nocls")
    return CrossNet(
        sdtps, matching, width=width, patches=tokens - class_token, class_token=class_token
    ).double()


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("chunk", [1, 7, 10**6])
def test_equals_the_published_crossnet(golden: Golden, chunk: int, training: bool) -> None:
    net = crossnet(golden, chunk).train(training)
    names = load(net, golden, CROSSNET)
    dense = ()
    if "dense_captions" in golden:
        dense = (golden.input("dense_captions"), golden.constant("dense_lengths"))
    matches = net(
        golden.input("images"), golden.input("captions"), golden.constant("caption_lengths"), *dense
    )
    golden.check("similarity", matches.similarity)
    if "score_mask" in golden:
        mask = matches.sparse_decision
        if matches.dense_decision is not None:
            mask = mask + matches.dense_decision
        golden.check("score_mask", mask.transpose(0, 1))
    golden.finish((matches.similarity * golden.constant("cotangent")).sum(), net, names)
