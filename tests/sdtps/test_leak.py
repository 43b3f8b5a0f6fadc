"""The leak audit catches what it is for: pairing, neighbours, and text keyed by the target."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sdtps.audit.leak import audit_leak, audit_scoring, leak_findings
from sdtps.config import RetrievalConfig, parse_config

IMAGES, PER_IMAGE = 6, 2


class Toy:
    """A scoring with one fault, or none."""

    def __init__(self, fault: str = "") -> None:
        self.fault = fault
        generator = torch.Generator().manual_seed(0)
        self.table = torch.randn(IMAGES, IMAGES * PER_IMAGE, generator=generator)

    def score(
        self,
        images: np.ndarray,
        captions: np.ndarray,
        modes: tuple[Any, ...],
        targets: np.ndarray | None = None,
    ) -> dict[Any, Tensor]:
        if self.fault == "pairing" and len(captions) != PER_IMAGE * len(images):
            raise RuntimeError("shapes do not match")
        targets = captions // PER_IMAGE if targets is None else targets
        scores = self.table[images.tolist()][:, captions.tolist()]
        if self.fault == "neighbours":
            scores = scores - scores.mean(0, keepdim=True)
        if self.fault == "target":
            scores = scores + 0.3 * torch.from_numpy(images[:, None] == targets[None, :])
        return dict.fromkeys(modes, scores)


def leak(fault: str, mode: Any = "own") -> Any:
    return audit_scoring(Toy(fault).score, IMAGES, PER_IMAGE, mode, seed=0)


@pytest.mark.parametrize(
    ("fault", "mode", "severity", "says"),
    [
        ("pairing", "own", "error", "needs images and captions paired"),
        ("neighbours", "own", "error", "scored beside it"),
        ("target", "own", "warning", "by up to 0.3 .*own target image .a leak."),
        ("target", "shuffled", "note", "a control"),
    ],
)
def test_a_fault_is_named(fault: str, mode: str, severity: str, says: str) -> None:
    (finding,) = leak_findings("v", leak(fault, mode))
    assert finding.severity == severity and re.search(says, finding.text)
    assert leak_findings("v", leak("")) == []


def retrieval(**matching: Any) -> RetrievalConfig:
    tree: dict[str, Any] = {"task": "retrieval", "matching": matching}
    # Neither the files nor the folds of the study are needed.
    tree |= {"data": {"dataset": "own", "file": "absent.json"}, "eval": {"protocol": "both"}}
    if matching.get("form") != "paper":
        tree["sdtps"] = {"score": "attention_sum", "aggregation": "single"}
    config = parse_config(tree)
    assert isinstance(config, RetrievalConfig)
    return config


@pytest.mark.parametrize("form", ["paper", "released", "laps"])
def test_our_evaluation_leaks_with_own_dense_text_and_in_no_other_way(form: str) -> None:
    if form != "laps":
        found = audit_leak(retrieval(form=form))
        assert found.keyed_by_target and not found.depends_on_pairs
    dense = {"eval_dense_text": "none", **({"dense_text": "none"} if form == "laps" else {})}
    assert leak_findings("v", audit_leak(retrieval(form=form, **dense))) == []
