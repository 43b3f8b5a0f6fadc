"""Published alignment and retrieval losses, outputs and gradients."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from sdtps.alignment import Alignment
from sdtps.contrastive import contrastive_loss, ratio_loss

VECTORS = Path(os.environ.get("SDTPS_GOLDEN", Path(__file__).parent / "vectors"))


def load(name: str) -> dict[str, torch.Tensor]:
    with np.load(VECTORS / f"{name}.npz") as arrays:
        return {key: torch.from_numpy(np.array(arrays[key])) for key in arrays.files}


def same(ours: torch.Tensor, published: torch.Tensor) -> None:
    torch.testing.assert_close(ours, published, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("name", ["hrpa_opensource", "hrpa_paper"])
def test_alignment_equals_the_published_module(name: str) -> None:
    case = load(name)
    kind = "mean" if name == "hrpa_opensource" else "mean_topk"
    module = Alignment(kind, int(case["top_k"])).double()
    module.load_state_dict({k[6:]: v for k, v in case.items() if k.startswith("param.")})
    tokens = case["patches"].requires_grad_()
    words = case["words"].requires_grad_()
    similarity = module(tokens, words)
    same(similarity, case["similarity"].squeeze(1))
    similarity.sum().backward()
    same(tokens.grad, case["grad_patches"])
    same(words.grad, case["grad_words"])
    for key, parameter in module.named_parameters():
        same(parameter.grad, case[f"grad.{key}"])


@pytest.mark.parametrize("name", ["sum", "hard"])
def test_contrastive_loss_equals_the_published_one(name: str) -> None:
    case = load(f"contrastive_loss_{name}")
    scores = case["scores"].requires_grad_()
    loss = contrastive_loss(
        scores, margin=float(case["margin"]), hardest=name == "hard", image_ids=case["image_ids"]
    )
    same(loss, case["loss"])
    loss.backward()
    same(scores.grad, case["grad_scores"])


def test_separate_ratio_loss_equals_the_published_one() -> None:
    case = load("ratio_loss")
    loss = ratio_loss(
        case["mask_sparse"],
        case["mask_dense"],
        form="separate",
        keep_ratio=float(case["target_ratio"]),
    )
    # Published in float32.
    torch.testing.assert_close(loss, case["loss"].double(), rtol=1e-5, atol=0)
