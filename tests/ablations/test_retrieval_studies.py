"""The retrieval studies hold every number that the paper reports, and train at the size of a toy."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from ablations.study.manifest import load_study
from ablations.study.model import Study
from sdtps.config import AnyConfig, RetrievalConfig, parse_config, resolved
from sdtps.config.load import merged
from sdtps.training.attempt import execute
from tests.sdtps.small import RETRIEVAL, planted

ROOT = Path(__file__).parents[2]
DATASETS = {"flickr30k": ["flickr30k_1k"], "coco": ["coco_1k", "coco_5k"]}


@pytest.fixture(scope="module")
def studies() -> dict[str, Study]:
    return {name: load_study(ROOT / "ablations" / f"{name}.yaml") for name in DATASETS}


def rows() -> list[dict[str, str]]:
    with (ROOT / "paper/reported/seps_reported.csv").open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def test_every_reported_row_stands_in_a_study(studies: dict[str, Study]) -> None:
    assert len(rows()) == 183
    for name, datasets in DATASETS.items():
        found = {
            (entry.source, entry.dataset, tuple(entry.values.values()))
            for entry in studies[name].reported
        }
        metrics = ["i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10", "rsum"]
        for row in rows():
            if row["dataset"] in datasets:
                values = tuple(row[m] for m in metrics if row[m])
                assert (row["source"], row["dataset"], values) in found, row


def test_our_method_is_compared_in_every_table_of_the_paper(studies: dict[str, Study]) -> None:
    compared = {entry.variant for entry in studies["flickr30k"].reported if entry.variant}
    wanted = {f"{form}_{encoder}" for form in ("laps", "released", "paper") for encoder in
              ("vit224", "vit384", "swin224", "swin384")}  # fmt: skip
    wanted |= {"only_sparse_text", "only_dense_text", "without_aggregation", "hrpa_only_topk"}
    wanted |= {"hrpa_only_mean", "introduce_dense_text", "introduce_hrpa"}
    assert wanted <= compared
    assert len([v for v in compared if v.startswith("rho")]) == 32
    assert len([v for v in compared if v.startswith("lambda")]) == 11


def toy(config: AnyConfig) -> AnyConfig:
    """ViT, Swin and BERT as the variant has them, built from configuration at the size of a toy."""
    assert isinstance(config, RetrievalConfig)
    swin = config.image_encoder.name == "swin_b"
    name, patch = ("tiny_swin", 2) if swin else ("tiny_vit", 4)  # 64 patches
    small = {key: RETRIEVAL[key] for key in ("data", "image_encoder", "text_encoder", "matching")}
    changes = {
        "image_encoder": {"name": name, "weights": "random", "size": 32, "patch": patch},
        "text_encoder": {"weights": "random"},
        "train": {"epochs": 1, "max_steps": 2, "device": "cpu"},
        "eval": {"protocol": "full"},
    }
    return parse_config(merged(merged(resolved(config), small), changes), idle=True)


VARIANTS = [
    *(("flickr30k", v) for v in ("laps_vit224", "released_swin224", "paper_vit384", "paper_swin384")),
    *(("flickr30k", v) for v in ("paper_recipe_vit224", "only_dense_text", "without_aggregation")),
    *(("flickr30k", v) for v in ("introduce_hrpa", "rho0.1_vit224")),
    ("coco", "paper_swin224"),
]


@pytest.mark.parametrize(("study", "variant"), VARIANTS)
def test_the_same_manifest_trains_at_the_size_of_a_toy(
    study: str, variant: str, studies: dict[str, Study], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SDTPS_CACHE", str(tmp_path))
    folder = planted(tmp_path / "run", toy(studies[study].variants[variant].config))
    assert execute(folder.path) == "completed"
    result = folder.result()
    assert result is not None and "rsum@none" in result["final"]
