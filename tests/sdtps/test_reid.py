"""The re-identification task: heads, losses and fusion as DeMo has them, missing modalities."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from sdtps.config import identity
from sdtps.data.reid_batches import ReidBatch
from sdtps.models.losses import batch_hard_triplet, label_smooth_cross_entropy
from sdtps.models.reid import Fusion, Pife, ReidModel
from sdtps.multimodal import MODALITIES
from sdtps.system import distributed
from sdtps.system.errors import ConfigError
from sdtps.training.reid import ReidTask
from tests.sdtps.small import reid

CPU = torch.device("cpu")
METRICS = ("mAP", "rank1", "rank5", "rank10")


def images(batch: int = 4) -> torch.Tensor:
    return torch.randn(3, batch, 3, 32, 16, generator=torch.Generator().manual_seed(0))


def model(**sections: dict[str, Any]) -> ReidModel:
    torch.manual_seed(0)
    return ReidModel(reid(**sections), pids=6, cameras=2)


CAMIDS = torch.tensor([0, 1, 0, 1])


@pytest.mark.parametrize(
    ("sections", "widths"),
    [
        ({}, {"sdtps": 48, "global": 48}),
        ({"sdtps": {"enabled": False}}, {"global": 48}),
        ({"loss": {"global_branch": False}}, {"sdtps": 48}),
        ({"fusion": {"direct": False}}, {"sdtps": 48, "rgb": 16, "nir": 16, "tir": 16}),
        ({"sdtps": {"enabled": False}, "fusion": {"kind": "hdm_atmoe", "global_local": True}},
         {"fusion": 112, "global": 48}),
    ],
)  # fmt: skip
def test_each_branch_has_its_own_head(sections: dict[str, Any], widths: dict[str, int]) -> None:
    made = model(**sections)
    assert {n: h.classifier.in_features for n, h in made.heads.items()} == widths
    features = made(images(), CAMIDS)
    for name, width in widths.items():
        assert features[name].shape == (4, width)


def test_the_neck_has_no_bias_to_learn_and_the_classifier_none_at_all() -> None:
    head = model().heads["sdtps"]
    assert not head.neck.bias.requires_grad and head.classifier.bias is None
    assert head.classifier.weight.std().item() == pytest.approx(0.001, rel=0.2)


def test_one_encoder_call_equals_three() -> None:
    made = model().eval()
    calls = []
    made.backbone.register_forward_hook(lambda m, i, o: calls.append(o))
    joint = made(images(), CAMIDS)
    assert len(calls) == 1 and calls[0][0].shape[0] == 12
    for number, name in enumerate(("rgb", "nir", "tir")):
        alone = made.backbone(images()[number], CAMIDS)[0]
        assert torch.allclose(joint[name], alone, atol=1e-6)


def test_the_loss_is_demos_sum_over_branches() -> None:
    settings = reid(sdtps={"loss_weight": 2.0})
    task = ReidTask(settings, 0, CPU)
    batch = next(task.train_batches(1, 0))
    total, parts = task.loss(batch, 1, 1)
    features = task.model(batch.images, batch.camids)
    expected = torch.zeros(())
    for name, weight in (("sdtps", 2.0), ("global", 1.0)):
        logits = task.model.heads[name](features[name])
        identity = label_smooth_cross_entropy(logits, batch.labels, 0.1)
        triplet = batch_hard_triplet(features[name], batch.labels)
        expected = expected + weight * (0.25 * identity + triplet)
        assert parts[f"{name}_triplet"] == pytest.approx(triplet.item(), rel=1e-4)
    assert total.item() == pytest.approx(expected.item(), rel=1e-4)


@pytest.mark.parametrize("kind", ["none", "hdm", "hdm_atmoe"])
def test_a_batch_of_one_is_encoded_like_any_other(kind: str) -> None:
    made = model(sdtps={"enabled": kind == "none"}, fusion={"kind": kind}).eval()
    together, alone = made(images(), CAMIDS), made(images()[:, :1], CAMIDS[:1])
    for name, feature in alone.items():
        torch.testing.assert_close(feature, together[name][:1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("feature", "sections", "width"),
    [
        ("concat", {}, 96),
        ("global", {}, 48),
        ("sdtps", {}, 48),
        ("concat", {"loss": {"global_branch": False}}, 48),
        ("sdtps", {"sdtps": {"enabled": False}}, 48),
    ],
)
def test_the_ranked_feature_is_the_configured_one(
    feature: str, sections: dict[str, Any], width: int
) -> None:
    task = ReidTask(reid(eval={"feature": feature}, **sections), 0, CPU)
    task.model.eval()
    features = task.test_features(next(iter(task.test_batches)))
    assert features.shape == (5, width)
    assert torch.allclose(features.norm(dim=1), torch.ones(5), atol=1e-5)


def test_missing_modalities_are_zero_at_test_only() -> None:
    task = ReidTask(reid(), 0, CPU)
    task.model.eval()
    batch = next(iter(task.test_batches))
    kept = batch.images.clone()
    blind = task.test_features(batch, "n")
    assert torch.equal(batch.images, kept)
    kept[0] = kept[2] = 0
    whole = ReidTask(reid(), 0, CPU)
    whole.model.load_state_dict(task.model.state_dict())
    whole.model.eval()
    assert torch.allclose(blind, whole.test_features(ReidBatch(kept, batch.labels, batch.camids)))


@pytest.mark.parametrize("frozen", [False, True])
def test_one_model_is_scored_under_every_condition(frozen: bool) -> None:
    still = {"flip": 0, "pad": 0, "erase": 0} if frozen else {}
    task = ReidTask(reid(backbone={"frozen": frozen}, data=still), 0, CPU)
    task.model.eval()
    names = ("", "missing_rt", "n_to_n", "n_to_t", "t_to_n", "rerank", "missing_rt+rerank")
    with torch.no_grad():
        found = task.evaluate(names)
        assert found == {**task.evaluate(), **task.evaluate(names[1:])}
    assert set(found) == {f"{m}{'@' * bool(n)}{n}" for n in names for m in METRICS}
    shared = {name: found[f"mAP@{name}"] for name in names[1:]}
    assert shared["missing_rt"] == shared["n_to_n"]
    assert len({found["mAP"], *(shared[name] for name in ("missing_rt", "n_to_t", "t_to_n"))}) == 4


def test_unknown_and_repeated_conditions_are_refused_and_conditions_make_no_other_run() -> None:
    for wrong, says in ((("missing_x",), "missing_rt"), (("rerank", "rerank"), "twice")):
        with pytest.raises(ConfigError, match=says):
            reid(eval={"also": wrong})
    assert identity(reid(eval={"also": ("missing_r", "r_to_n")}), 0) == identity(reid(), 0)


def test_evaluation_ranks_queries_against_the_other_camera() -> None:
    """Features replaced by the identity itself rank perfectly; by the camera, as badly as possible."""
    task = ReidTask(reid(), 0, CPU)
    samples = list(task.place)
    task.model.eval()
    for key, perfect in (("pid", True), ("camid", False)):
        codes = torch.tensor([getattr(s, key) for s in samples])
        parts = iter(F.one_hot(codes).float().split(5))
        task.test_features = lambda *_, parts=parts: next(parts)  # type: ignore[method-assign]
        assert (task.evaluate()["rank1"] == 1.0) is perfect


def test_the_trunk_is_the_encoder_without_its_camera_table_and_each_parameter_in_one_group() -> None:
    task = ReidTask(reid(), 0, CPU)
    trunk, camera = {id(p) for p in task.trunk()}, task.model.backbone.camera
    assert camera is not None and id(camera) not in trunk
    assert len(trunk) == len(list(task.model.backbone.parameters())) - 1
    groups = task.module_groups()
    grouped = [id(p) for group in groups.values() for p in group]
    assert sorted(grouped) == sorted(id(p) for p in task.model.parameters())
    assert groups.keys() == {"backbone", "score_mlp", "aggregation", "head_sdtps", "head_global"}


def test_the_record_names_data_and_weights(tmp_path: Path) -> None:
    first = ReidTask(reid(), 0, CPU)
    assert first.record["data"]["name"] == "rgbnt201"
    assert first.record["data"]["generated"]["train_pids"] == 6
    assert first.record["weights"] is None
    torch.save(first.model.backbone.state_dict(), tmp_path / "tiny.pt")
    second = ReidTask(reid(backbone={"weights": str(tmp_path / "tiny.pt")}), 1, CPU)
    assert len(second.record["weights"]["backbone"]["digest"]) == 32
    for one, two in zip(
        first.model.backbone.parameters(), second.model.backbone.parameters(), strict=True
    ):
        assert torch.equal(one, two)


def test_processes_share_the_test_images_and_rank_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = reid()
    alone = ReidTask(chosen, 0, CPU)
    alone.model.eval()
    expected = alone.evaluate()
    monkeypatch.setattr(distributed, "world_size", lambda: 4)
    tasks = []
    for rank in range(4):
        monkeypatch.setattr(distributed, "rank", lambda rank=rank: rank)
        task = ReidTask(chosen, 0, CPU)
        task.model.load_state_dict(alone.model.state_dict())
        task.model.eval()
        tasks.append(task)
    parts = [torch.cat([t.test_features(b) for b in t.test_batches]) for t in tasks]
    assert [len(p) for p in parts] == [6, 6, 6, 6]  # 4 identities x 2 cameras x 3 images
    monkeypatch.setattr(distributed, "gather_parts", lambda own, device: parts)
    for task in tasks:
        assert task.evaluate() == expected
        mine, whole = torch.cat(parts), torch.cat([alone.test_features(b) for b in alone.test_batches])
        for sample, row in task.place.items():
            assert torch.allclose(mine[row], whole[alone.place[sample]], atol=1e-5)


def inputs(batch: int, width: int = 64, patches: int = 9) -> tuple[dict, dict]:
    torch.manual_seed(0)
    return (
        {m: torch.randn(batch, patches, width) for m in MODALITIES},
        {m: torch.randn(batch, width) for m in MODALITIES},
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_stays_finite_in_training(dtype: torch.dtype) -> None:
    patches, globals_ = inputs(4)
    fusion = Fusion("hdm_atmoe", 64, 4)
    with torch.autocast("cpu", dtype=dtype):
        output = fusion(patches, Pife(64)(patches, globals_))
        output.float().square().sum().backward()
    assert torch.isfinite(output).all()
    assert all(p.grad is not None for p in fusion.parameters())
