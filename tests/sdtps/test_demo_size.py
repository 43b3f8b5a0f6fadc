"""DeMo's ablation at full size has the parameter counts that it reports (millions, within 0.1 %)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ablations.study.manifest import load_study
from sdtps.config import ReidConfig, parse_config, resolved
from sdtps.models.reid import ReidModel

DEMO = Path(__file__).parents[2] / "ablations" / "demo.yaml"


@pytest.mark.parametrize(
    ("variant", "millions"), [("A", 86.41), ("B", 87.99), ("C", 95.96), ("E", 98.79)]
)
def test_full_size_counts_are_the_reported_ones(variant: str, millions: float) -> None:
    tree = resolved(load_study(DEMO).variants[variant].config)
    tree["backbone"]["weights"] = "random"
    config = parse_config(tree)
    assert isinstance(config, ReidConfig)
    with torch.device("meta"):  # RGBNT201: 171 identities, 4 cameras
        model = ReidModel(config, pids=171, cameras=4)
    count = sum(p.numel() for p in model.parameters()) / 1e6
    assert count == pytest.approx(millions, rel=1e-3)
