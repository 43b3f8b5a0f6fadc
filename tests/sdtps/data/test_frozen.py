"""A frozen backbone's cached outputs train as the frozen backbone itself would, without calling it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sdtps.audit.audit import audit
from sdtps.config import ReidConfig
from sdtps.config.load import merged
from sdtps.data import cache as array_cache
from sdtps.models.backbones import TinyVit
from sdtps.run.folder import RunFolder
from sdtps.system.errors import ConfigError, DataError
from sdtps.training.reid import ReidTask
from tests.sdtps import small
from tests.sdtps.toy_task import train

CPU = torch.device("cpu")
FROZEN: dict[str, dict[str, Any]] = {
    "data": {"flip": 0.0, "pad": 0, "erase": 0.0},
    "backbone": {"frozen": True},
    "train": {"epochs": 2, "log_every": 1, "device": "cpu"},
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SDTPS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def config(**sections: dict[str, Any]) -> ReidConfig:
    return small.reid(**merged(FROZEN, sections))


def task(chosen: ReidConfig, seed: int = 0) -> ReidTask:
    torch.manual_seed(seed)
    return ReidTask(chosen, seed, CPU)


def evaluated_each_step(**sections: dict[str, Any]) -> ReidTask:
    """The same run with the backbone in the model, frozen by hand."""
    backbone = {**sections.pop("backbone", {}), "frozen": False}
    made = task(config(backbone=backbone, **sections))
    assert made.model.backbone is not None
    made.model.backbone.requires_grad_(False)
    return made


def history(made: ReidTask, folder: Path) -> list[dict[str, Any]]:
    torch.manual_seed(1)
    run = RunFolder(folder)
    folder.mkdir()
    assert train(made, run, made.config, seed=0) == "completed"
    return run.metrics()


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"fusion": {"global_local": True}, "sdtps": {"decision": "gumbel_ste", "mask": "log"}},
        {"sdtps": {"enabled": False}, "fusion": {"kind": "hdm", "global_local": True, "direct": False}},
        {"eval": {"also": ("missing_rt",)}},
        {"train": {"amp": "bf16"}},
    ],
    ids=["sdtps", "gumbel", "hdm", "missing", "bf16"],
)
def test_cached_outputs_train_as_the_frozen_backbone_does(
    tmp_path: Path, sections: dict[str, dict[str, Any]]
) -> None:
    cached = history(task(config(**sections)), tmp_path / "cached")
    each_step = history(evaluated_each_step(**sections), tmp_path / "each")
    assert len(cached) == len(each_step) > 8
    losses = [row["loss"] for row in cached if "loss" in row]
    assert losses[0] != losses[-1]
    tolerance = 1e-2 if sections.get("train") else 1e-6  # a rounding of bf16 grows from step to step
    for one, two in zip(cached, each_step, strict=True):
        for name in one.keys() & {"loss", "epoch_loss", "grad_norm", "mAP", "rank1", "mAP@missing_rt"}:
            assert one[name] == pytest.approx(two[name], rel=tolerance, abs=tolerance), (name, one)


def test_the_backbone_is_called_once_for_all_runs(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task(config())
    calls = []
    whole = TinyVit.forward
    monkeypatch.setattr(TinyVit, "forward", lambda *x: calls.append(1) or whole(*x))
    files = sorted(cache.glob("tokens-*.npy"))
    second = task(config(sdtps={"aggregation": "single"}))
    history(second, tmp_path / "run")
    assert not calls and sorted(cache.glob("tokens-*.npy")) == files and len(files) == 2
    names = [name for name, _ in second.model.named_parameters()]
    assert not any(name.startswith("backbone") for name in names)
    assert second.record["frozen_parameters"] > 0
    assert not any(p.name.startswith(".tokens") and p.suffix != ".lock" for p in cache.iterdir())


def test_what_decides_the_outputs_makes_a_cache_of_its_own(tmp_path: Path, cache: Path) -> None:
    def made(chosen: ReidConfig, seed: int = 0) -> int:
        before = len(list(cache.glob("tokens-*.npy")))
        task(chosen, seed)
        return len(list(cache.glob("tokens-*.npy"))) - before

    assert made(config()) == 2  # training and test
    assert made(config(), seed=1) == 2  # other random weights
    assert made(config(train={"amp": "bf16"})) == 2
    assert made(config(eval={"also": ("missing_n",)})) == 0  # computed when it is asked for
    assert made(config(backbone={"camera_coefficient": 0.5})) == 2
    weights = {"camera_embedding": False, "weights": str(tmp_path / "tiny.pt")}
    encoder = task(config(backbone={"frozen": False, "camera_embedding": False})).model.backbone
    assert encoder is not None
    torch.save(encoder.state_dict(), tmp_path / "tiny.pt")
    assert made(config(backbone=weights)) == 2
    assert made(config(backbone=weights), seed=1) == 0  # the file's weights, whatever the seed


def test_a_cache_that_cannot_be_written_is_named_and_one_with_its_files_may_be_read_only(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task(config())

    def locked(*_: object) -> None:
        raise AssertionError("nothing is to be made")

    with monkeypatch.context() as patched:
        patched.setattr(array_cache, "_make", locked)
        task(config())
    for file in cache.glob("tokens-*.npy"):
        file.unlink()
        (cache / f".{file.name}.lock").unlink()
        (cache / f".{file.name}.lock").mkdir()  # stands for whatever the folder does not take
    with pytest.raises(DataError, match=r"cannot be written \(Is a directory\).*SDTPS_CACHE"):
        task(config())


def test_augmentation_and_cached_outputs_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match=r"frozen backbone.*set data\.flip, data\.erase to 0"):
        config(data={"flip": 0.5, "pad": 0, "erase": 0.5})


def test_the_audit_says_that_the_encoder_is_frozen_and_warns_of_nothing() -> None:
    trained = config(backbone={"frozen": False}, sdtps={"no_grad": "none"})
    frozen = config(sdtps={"no_grad": "none"})
    released = config(sdtps={"no_grad": "selection", "score": "attention_sum"})
    found = audit(
        {"trained": trained, "frozen": frozen, "released": released}, "trained", steps=1
    ).findings
    about = [f for f in found if f.variant == "frozen"]
    assert [f.severity for f in about] == ["note"] and "it is frozen" in about[0].text
    assert not any("encoder" in f.text for f in found if f.variant == "trained")
    assert {f.severity for f in found if f.variant == "released"} == {"note"}
