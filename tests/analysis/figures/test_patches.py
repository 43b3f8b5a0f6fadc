"""Patch pictures show what the model does, and the same bytes every time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from analysis.figures import patches as command
from analysis.figures.patches import PatchMap, layer, patch_maps
from analysis.figures.sheet import DARK
from sdtps.config import identity, parse_config
from sdtps.run.folder import RunFolder
from sdtps.system.errors import RunError
from sdtps.trained.model import load

REID: dict[str, Any] = {
    "task": "reid",
    "data": {"generate": {"train_pids": 4, "test_pids": 3, "images_per_camera": 2}, "pad": 2}
    | {"height": 32, "width": 16, "batch_size": 4, "instances": 2, "workers": 0},
    "backbone": {"name": "tiny_vit", "weights": "random", "patch": 4, "width": 16, "depth": 1}
    | {"heads": 2, "embed": 16},
    "train": {"amp": "off", "epochs": 1, "device": "cpu"},
}
RETRIEVAL: dict[str, Any] = {
    "task": "retrieval",
    "data": {"generate": {"train_images": 8, "dev_images": 4, "test_images": 4}, "augment": False}
    | {"batch_size": 8, "test_batch_size": 4, "workers": 0},
    "image_encoder": {"name": "tiny_vit", "size": 32, "patch": 8, "width": 16, "depth": 1, "heads": 2},
    "text_encoder": {"name": "tiny_bert", "width": 16, "depth": 1, "heads": 2},
    "matching": {"embed": 16},
    "train": {"epochs": 1, "device": "cpu"},
}


def trained(place: Path, name: str, base: dict[str, Any] = REID, **sdtps: Any) -> RunFolder:
    """A run folder with random weights that differ from the initial ones."""
    import torch

    from sdtps.data.load import load_reid_data
    from sdtps.models.reid import ReidModel
    from sdtps.training import checkpoint
    from sdtps.training.retrieval import RetrievalTask

    data = {**base["data"], "root": str(place / base["task"])}
    config = parse_config({**base, "data": data, "sdtps": sdtps})
    folder = RunFolder(place / name / "seed3-x")
    folder.create(config, {"study": "s", "variant": name, "seed": 3, "identity": identity(config, 3)})
    torch.manual_seed(5)
    if base is REID:
        dataset = load_reid_data(config)
        model: Any = ReidModel(config, dataset.train_pids, dataset.cameras)
    else:
        model = RetrievalTask(config, 3, torch.device("cpu"), trains=False).model
    about = {"config": config.model_dump(mode="json"), "seed": 3, "step": 7, "variant": name}
    checkpoint.save_weights(folder.weights_file("last"), checkpoint.weights_of(model), about)
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("patches")


def maps_of(folder: RunFolder, count: int = 2, **how: Any) -> dict[str, list[PatchMap]]:
    return patch_maps(load(folder.path, "last"), names(folder, count), **how)


def names(folder: RunFolder, count: int = 2) -> list[str]:
    from sdtps.data.load import load_reid_data

    dataset = load_reid_data(folder.config())
    return [command.name_of(s, dataset) for s in command.choose(dataset, count)]


@pytest.mark.parametrize("aggregation", ["single", "dual"])
def test_maps_are_what_the_model_computes(place: Path, aggregation: str) -> None:
    """The maps alone reproduce the model's output tokens, so they cannot show anything else."""
    import torch

    from sdtps.data.images import BILINEAR
    from sdtps.data.load import load_reid_data
    from sdtps.data.reid_batches import TestBatches, decode
    from sdtps.models.reid import ReidModel
    from sdtps.training.checkpoint import load_weights

    options = {"aggregation": aggregation, "extra_token": "none", "keep_ratio": 0.5}
    folder = trained(place, f"exact_{aggregation}", **options)
    chosen = names(folder)
    maps = maps_of(folder)
    config = folder.config()
    dataset = load_reid_data(config)
    model = ReidModel(config, dataset.train_pids, dataset.cameras).eval()
    model.load_state_dict(load_weights(folder.weights_file("last"))[0])
    samples = [s for n in chosen for s in dataset.query if s.images[0].as_posix().endswith(n)]
    pixels = np.stack([decode(s, config.data, BILINEAR) for s in samples])
    (batch,) = TestBatches(samples, pixels, len(samples), torch.device("cpu"))
    with torch.inference_mode():
        _, patches = model.backbone(batch.images.flatten(0, 1), batch.camids.repeat(3))
        feature = model(batch.images, batch.camids)["sdtps"]
    patches = patches.unflatten(0, (3, len(samples)))
    branches = 2 if aggregation == "dual" else 1
    for i in range(len(samples)):
        parts = []
        for m, modality in enumerate(("rgb", "nir", "tir")):
            found = maps[modality][i]
            assert found.weight is not None
            assert found.weight.sum() == pytest.approx(1.0)
            assert np.all(found.kept[found.weight > 0])
            weight = torch.tensor(found.weight.ravel(), dtype=torch.float32)
            parts.append(branches * weight @ patches[m, i])
        torch.testing.assert_close(torch.cat(parts), feature[i], rtol=1e-4, atol=1e-5)


def test_the_kept_ratio_is_kept_shares_need_an_aggregation_and_training_changes_them(
    place: Path,
) -> None:
    folder = trained(place, "ratio", aggregation="single", keep_ratio=0.25)
    after, before = maps_of(folder), maps_of(folder, initial=True)
    assert {int(m.kept.sum()) for maps in after.values() for m in maps} == {8}  # of 8 x 4
    assert any(
        not np.allclose(a.weight, b.weight) for a, b in zip(after["rgb"], before["rgb"], strict=True)
    )
    plain = trained(place, "none", aggregation="none", mask="none")
    assert maps_of(plain)["rgb"][0].weight is None


def test_runs_side_by_side_are_the_same_bytes_twice(place: Path) -> None:
    folders = [trained(place, "one 尺", aggregation="single"), trained(place, "off", enabled=False)]
    contents = []
    for output in (place / "a.png", place / "b.png"):
        command.write([f.path for f in folders], output, count=2, initial=True)
        contents.append(output.read_bytes())
    assert contents[0] == contents[1]
    picture = Image.open(place / "a.png")
    assert picture.width > 4 * 3 * 96 and picture.height > 2 * 192
    caption = (place / "a.txt").read_text()
    assert "one 尺, seed 3, before training; one 尺, seed 3, step 7; off, seed 3" in caption


def test_opacity_follows_the_weight_and_dropped_patches_are_dark() -> None:
    kept = np.array([[True, True], [True, False]])
    weight = np.array([[0.6, 0.3], [0.1, 0.0]])
    colours = layer(PatchMap(kept, weight))
    assert colours[0, 0, 3] > colours[0, 1, 3] > colours[1, 0, 3] > 0
    assert colours[1, 1].tolist() == list(DARK)
    assert layer(PatchMap(kept, None))[..., 3].tolist() == [[0, 0], [0, DARK[3]]]


def test_what_cannot_be_drawn_is_named(place: Path) -> None:
    import torch

    from sdtps.training.checkpoint import load_weights, save_weights

    folder = trained(place, "broken", aggregation="single")
    with pytest.raises(RunError, match=r"FILE\.png"):
        command.write([folder.path], place / "x.jpg")
    with pytest.raises(RunError, match="no image"):
        patch_maps(load(folder.path, "last"), ["nobody.jpg"])
    file = folder.weights_file("last")
    weights, about = load_weights(file)
    name = next(name for name, value in weights.items() if value.is_floating_point())
    weights[name] = torch.full_like(weights[name], float("nan"))
    save_weights(file, weights, about)
    with pytest.raises(RunError, match="not finite"):
        maps_of(folder)
    file.unlink()
    with pytest.raises(RunError, match=r"no last\.safetensors"):
        command.write([folder.path], place / "x.png")
    with pytest.raises(RunError, match="nowhere"):
        command.write([place / "nowhere"], place / "x.png")


def test_modalities_that_the_data_lack_are_zeroed_and_not_drawn(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Own data without TIR: a sample holds another image in its place, which no model may see."""
    from dataclasses import replace

    from sdtps.data import load
    from sdtps.models.reid import ReidModel

    folder = trained(place, "two", aggregation="single")
    whole = load.load_reid_data(folder.config())
    lacking = replace(whole, absent="t")
    monkeypatch.setattr(load, "load_reid_data", lambda config: lacking)
    seen = []
    forward = ReidModel.forward

    def watched(self: Any, images: Any, *others: Any) -> Any:
        seen.append([bool(part.any()) for part in images])
        return forward(self, images, *others)

    monkeypatch.setattr(ReidModel, "forward", watched)
    maps_of(folder)
    assert seen == [[True, True, False]]
    pixels = command.load_pixels(folder.config(), lacking, command.choose(lacking, 2))
    assert [set(images) for images in pixels] == [{"rgb", "nir"}] * 2


def test_a_captions_selection_and_the_words_that_guide_it(place: Path) -> None:
    import torch

    from analysis.figures.caption_patches import _parts, guided_run
    from sdtps.evaluation.retrieval import similarities
    from sdtps.trained.model import task_of

    folder = trained(place, "guided", RETRIEVAL)
    run = load(folder.path, "last")
    pairs, guided = guided_run(run, 2, 2)
    assert [pair.number for pair in pairs] == [0, 1, 5, 6]
    first = guided[0]
    assert first.words[0] == "[CLS]" and first.words[-1] == "[SEP]"
    assert "".join(first.words[1:-1]) == pairs[0].caption.lower().replace(" ", "")
    assert first.kept.shape == (4, 4) and 8 <= first.kept.sum() <= 16  # rho = 0.5, of two branches
    best = np.argsort(-first.score.ravel())[:8]
    assert first.kept.ravel()[best].all()
    assert sum(first.led().values()) == pytest.approx(1.0)
    task = task_of(run, run.config, torch.device("cpu"))
    task.model.eval()
    with torch.no_grad():
        scored = similarities(task.model, task.test, task.config, ("own",), torch.device("cpu"))["own"]
    assert [g.similarity for g in guided] == pytest.approx(
        [scored[p.number // 5, p.number].item() for p in pairs], abs=1e-5
    )
    words, patches = torch.randn(5, 16), torch.randn(9, 16)
    expected = torch.cosine_similarity(patches, words.mean(0)[None], dim=1)
    assert _parts(words, patches).sum(0) == pytest.approx(expected.numpy(), abs=1e-6)


def test_the_picture_of_retrieval_runs_and_what_cannot_be_drawn(place: Path) -> None:
    runs = [trained(place, "pair", RETRIEVAL), trained(place, "pairs", RETRIEVAL, enabled=False)]
    contents = []
    for name in ("a.png", "b.png"):
        command.write([run.path for run in runs], place / name, count=2, initial=True)
        contents.append((place / name).read_bytes())
    assert contents[0] == contents[1]
    text = (place / "a.txt").read_text()
    assert (
        "2 test images with 1 caption each. pair, seed 3, before training; pair, seed 3, step 7" in text
    )
    other = trained(place, "reid")
    with pytest.raises(RunError, match=r"is a run of reid, .* one of retrieval: draw them apart"):
        command.write([runs[0].path, other.path], place / "c.png")
    with pytest.raises(RunError, match="--captions is for retrieval"):
        command.write([other.path], place / "c.png", captions=2)
