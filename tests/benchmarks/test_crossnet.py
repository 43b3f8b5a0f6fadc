"""The benchmark measures what it says: the same work twice, compared, in JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Literal

import pytest
import torch

from benchmarks import coco, crossnet
from benchmarks.__main__ import rows


@pytest.mark.parametrize("form", ["released", "paper"])
def test_prints_seconds_memory_and_agreement(
    form: Literal["released", "paper"], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crossnet, "VIT", crossnet.Encoder(16, True, 0.5, 0.4))
    monkeypatch.setattr(crossnet, "SWIN", crossnet.Encoder(9, False, 0.8, 0.6))
    # The child processes that measure memory are slow to start; they are tested below.
    monkeypatch.setattr(crossnet, "peak_by_itself", lambda case, way: 1.0)
    result = crossnet.run("cpu", form=form, pairs=(2, 3), block=(3, 2), repeats=1)
    json.dumps(result)
    assert [(c["name"], c["encoder"]["patches"]) for c in result["cases"]] == [
        ("train", 16),
        ("train", 9),
        ("evaluate", 16),
        ("evaluate", 9),
    ]
    for case in result["cases"]:
        assert case["relative_difference"]["similarity"] < 1e-5
        assert case["speedup"] > 0 and case["seconds"].keys() == case["peak_mib"].keys() == {
            "ours",
            "reference",
        }
        if case["name"] == "train":
            assert case["relative_difference"]["gradients"] < 1e-5


def test_on_a_gpu_both_kernels_are_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: True)
    monkeypatch.setattr(crossnet, "machine", lambda device: {})
    monkeypatch.setattr(crossnet, "measure", lambda case, repeats: {**asdict(case), "seconds": 1.0})
    found = [row.case for row in rows(crossnet.run("cuda", form="laps"))]
    assert found[:2] == [
        "train, laps, images 64, captions 64, 196 patches",
        "train, laps, images 64, captions 64, 196 patches, fused",
    ]
    assert len(found) == 8


def test_a_difference_is_seen() -> None:
    ours, loop = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0])
    assert crossnet.relative_difference([ours], [loop]) == pytest.approx(0.5)


def test_peak_memory_counts_what_the_work_adds() -> None:
    encoder = crossnet.Encoder(49, False, 0.8, 0.6)
    case = crossnet.Case("evaluate", "laps", 32, 2, encoder, "cpu")
    assert 1 < crossnet.peak_by_itself(case, "loop") < 200


def test_the_evaluation_of_coco_is_projected_from_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coco, "SWIN", crossnet.Encoder(9, False, 0.8, 0.6))
    monkeypatch.setattr(coco, "IMAGES", 8)
    monkeypatch.setattr(coco, "BLOCK", 4)
    result = coco.run(torch.device("cpu"), images=3)
    json.dumps(result)
    assert result["slice_pairs"] == 45 and result["captions"] == 40
    whole = result["seconds_a_pair"] * 320 + result["ranking_s"]
    assert result["seconds"] == pytest.approx(whole, rel=0.1, abs=0.01)
    projected = result["projected_h100_s"]
    assert 0 <= projected["tf32"] <= projected["float32"]
