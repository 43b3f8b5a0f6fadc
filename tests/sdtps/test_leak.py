"""The leak audit catches what it is for: pairing, neighbours, and text keyed by the target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sdtps.audit.leak import audit_leak, audit_scoring, leak_findings, worth
from sdtps.config import RetrievalConfig, parse_config
from sdtps.run.folder import RunFolder

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
    return audit_scoring(Toy(fault), IMAGES, PER_IMAGE, mode, seed=0)


def test_a_sound_scoring_has_nothing_to_say() -> None:
    assert leak_findings("v", leak("")) == []


def test_a_scoring_that_needs_the_pairing_is_named() -> None:
    (finding,) = leak_findings("v", leak("pairing"))
    assert finding.severity == "error" and "needs images and captions paired" in finding.text


def test_a_scoring_that_looks_at_the_neighbours_is_named() -> None:
    (finding,) = leak_findings("v", leak("neighbours"))
    assert finding.severity == "error" and "scored beside it" in finding.text


def test_text_keyed_by_the_target_is_a_leak_and_priced(tmp_path: Path) -> None:
    found = leak("target")
    assert found.target == pytest.approx(0.3, abs=1e-6)
    (finding,) = leak_findings("v", found)
    assert finding.severity == "warning" and "own target image (a leak)" in finding.text
    assert "not known" in finding.text
    runs = []
    for seed, (own, none) in enumerate([(5.0, 4.0), (4.8, 4.2)]):
        folder = RunFolder(tmp_path / f"seed{seed}")
        folder.path.mkdir()
        folder.write_result({"best": {"rsum@own": own, "rsum@none": none, "rsum@shuffled": 1.0}})
        runs.append(folder)
    (finding,) = leak_findings("v", found, worth([*runs, RunFolder(tmp_path / "unfinished")]))
    assert "+80.0 points of rsum (490.0 with it, 410.0 with dense text none; 2 runs)" in finding.text


def test_another_images_text_is_a_control_not_a_leak() -> None:
    (finding,) = leak_findings("v", leak("target", "shuffled"))
    assert finding.severity == "note" and "a control" in finding.text


def retrieval(**matching: Any) -> RetrievalConfig:
    tree: dict[str, Any] = {"task": "retrieval", "matching": matching}
    if matching.get("form") != "paper":
        tree["sdtps"] = {"score": "attention_sum", "aggregation": "single"}
    config = parse_config(tree)
    assert isinstance(config, RetrievalConfig)
    return config


@pytest.mark.parametrize("form", ["paper", "released"])
def test_our_evaluation_leaks_with_own_dense_text_and_in_no_other_way(form: str) -> None:
    found = audit_leak(retrieval(form=form))
    assert found.keyed_by_target and not found.depends_on_pairs
    sound = audit_leak(retrieval(form=form, eval_dense_text="none"))
    assert leak_findings("v", sound) == []


def test_laps_does_not_leak() -> None:
    assert (
        leak_findings(
            "v", audit_leak(retrieval(form="laps", dense_text="none", eval_dense_text="none"))
        )
        == []
    )
