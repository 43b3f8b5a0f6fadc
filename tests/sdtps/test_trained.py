"""A trained run is a model: its numbers come out again from the saved weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from sdtps.cli import main
from sdtps.config import parse_config
from sdtps.config.load import merged
from sdtps.config.reid import GeneratedReidConfig
from sdtps.data.generated import generate_rgbnt201
from sdtps.data.load import load_reid_data
from sdtps.evaluation.retrieval import similarities
from sdtps.models.convert import LAYOUTS, convert
from sdtps.run.folder import RunFolder
from sdtps.system.errors import SdtpsError
from sdtps.trained.embed import read_pictures
from sdtps.trained.evaluate import MISSING, evaluate
from sdtps.trained.features import features_of, similarities_of
from sdtps.trained.model import load, task_of
from sdtps.training.attempt import execute
from sdtps.training.checkpoint import save_weights
from tests.sdtps import small

HERE = {"threads": 1, "device": "cpu"}
REID: dict[str, Any] = merged(
    small.REID,
    {
        "data": {"generate": {"train_pids": 8, "images_per_camera": 2}},
        "optim": {"lr": 1e-2, "backbone_lr": None, "warmup_epochs": 0.0, "lr_noise": False},
        "train": {"epochs": 3, **HERE},
    },
)
RETRIEVAL: dict[str, Any] = merged(
    small.RETRIEVAL, {"data": {"test_batch_size": 4, "augment": False}, "train": HERE}
)


def trained(path: Path, tree: dict[str, Any], **sections: Any) -> RunFolder:
    folder = small.planted(path, parse_config(merged(tree, sections)), seed=1)
    assert execute(path) == "completed"
    return folder


@pytest.fixture(scope="module")
def reid(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    gumbel = {"decision": "gumbel_ste", "mask": "log"}
    return trained(tmp_path_factory.mktemp("reid") / "run", REID, sdtps=gumbel)


@pytest.fixture(scope="module")
def retrieval(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return trained(tmp_path_factory.mktemp("retrieval") / "run", RETRIEVAL)


@pytest.mark.parametrize("task", ["reid", "retrieval"])
def test_the_numbers_of_result_json_come_out_again_bit_for_bit(
    task: str, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(task)
    result = folder.result()
    assert result is not None
    best, last = evaluate(folder.path)
    for row, recorded in ((best, result["best"]), (last, result["final"])):
        assert row["metrics"] == {name: recorded[name] for name in row["metrics"]}
        assert row["epoch"] == recorded["epoch"] and row["differs"] == [] and row["data"]["own"]
    assert set(best["metrics"]) == {k for k, v in result["best"].items() if isinstance(v, float)}
    written = [{k: v for k, v in row.items() if k != "seal"} for row in folder.evaluations()[-2:]]
    assert written == [best, last]


def test_a_run_keeps_what_is_known_of_each_query(reid: RunFolder, retrieval: RunFolder) -> None:
    people, captions = ((folder.queries(), folder.result() or {}) for folder in (reid, retrieval))
    known, final = people[0], people[1]["final"]
    assert known["AP"].mean() == pytest.approx(final["mAP"], abs=1e-6)
    assert (known["rank"] <= 5).mean() == pytest.approx(final["rank5"])
    assert known["identity"].shape == known["AP"].shape
    known, final = captions[0], captions[1]["final"]
    for way in ("i2t", "t2i"):
        assert (known[f"{way}_rank"] <= 5).mean() == pytest.approx(final[f"{way}_r5"])
    assert set(known["t2i_identity"]) == set(known["i2t_identity"])


def test_conditions_scored_in_training_and_afterwards_are_equal(tmp_path: Path) -> None:
    names = ("missing_rn", "n_to_t")
    folder = trained(tmp_path / "run", REID, eval={"also": names})
    result = folder.result()
    assert result is not None
    more = (*MISSING, "n_to_t", "rerank", "any_camera", "missing_r+rerank+any_camera")
    for row in evaluate(folder.path, conditions=more):
        assert all(name.endswith(f"@{row['condition']}") for name in row["metrics"])
        assert f"mAP@{row['condition']}" in row["metrics"] and row["differs"] == []
        if row["condition"] in names:
            recorded = result["best" if row["weights"] == "best" else "final"]
            assert row["metrics"] == {name: recorded[name] for name in row["metrics"]}
    found = folder.later_scores()["best"]
    assert {f"rank1@{name}" for name in more} <= found.keys() and "mAP" not in found


def test_dense_texts_are_conditions_of_retrieval(retrieval: RunFolder) -> None:
    rows = evaluate(retrieval.path, weights=("last",), conditions=("none", "shuffled"))
    assert all(f"rsum@{row['condition']}" in row["metrics"] for row in rows)


def test_a_weights_file_is_enough_away_from_its_run(reid: RunFolder, tmp_path: Path) -> None:
    copy = tmp_path / "model.safetensors"
    copy.write_bytes(reid.weights_file("best").read_bytes())
    (row,) = evaluate(copy)
    result = reid.result()
    assert result is not None and row["metrics"]["mAP"] == result["best"]["mAP"]
    bare = tmp_path / "bare.safetensors"
    save_weights(bare, load(copy).weights, {})
    with pytest.raises(SdtpsError, match="--config"):
        evaluate(bare)
    (again,) = evaluate(bare, config=reid.config_file)
    assert again["metrics"].keys() == row["metrics"].keys()


def test_other_data_are_scored_and_never_mixed_with_the_runs_own(
    reid: RunFolder, tmp_path: Path
) -> None:
    others = GeneratedReidConfig(train_pids=5, test_pids=6, images_per_camera=2, seed=9)
    tmp_path = generate_rgbnt201(others, 32, 16, tmp_path)
    before = reid.later_scores()["best"]
    other: dict[str, Any] = {"data_root": tmp_path, "dataset": "rgbnt201"}
    (row,) = evaluate(reid.path, weights=("best",), conditions=("missing_t",), **other)
    assert row["data"]["own"] is False and row["data"]["root"].startswith(str(tmp_path))
    assert reid.later_scores()["best"] == before
    words = ["evaluate", str(reid.path), "-w", "best", "--as", "others"]
    assert main([*words, "--data-root", str(tmp_path), "--dataset", "rgbnt201"]) == 0
    named = {k for k in reid.later_scores()["best"] if k not in before}
    assert "mAP@on_others" in named and all(name.endswith("@on_others") for name in named)
    assert main(words) == 2  # its own data


def table_of(reid: RunFolder, place: Path) -> Path:
    """The run's data as a table: training samples, then those of the test."""
    dataset = load_reid_data(reid.config())  # type: ignore[arg-type]
    rows = [["path", "pid", "camid", "modality", "split", "sample"]]
    for split, samples in (("train", dataset.train), ("test", dataset.query)):
        for number, sample in enumerate(samples):
            for path, modality in zip(sample.images, ("rgb", "nir", "tir"), strict=True):
                known = [str(sample.pid), str(sample.camid + 1), modality, split, str(number)]
                rows.append([str(path), *known])
    place.write_text("\n".join(";".join(row) for row in rows))
    return place


def test_a_run_is_evaluated_on_a_table_or_a_folder_of_any_name(
    reid: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D9, and a run named as for `logs`."""
    (expected,) = evaluate(reid.path, weights=("last",))
    table = table_of(reid, tmp_path / "people.csv")
    (found,) = evaluate(reid.path, weights=("last",), data_root=table)
    assert found["metrics"] == expected["metrics"] and found["data"]["name"] == "own"
    root = Path(reid.run()["data"]["root"])
    shutil.copytree(root, tmp_path / "any name")
    (found,) = evaluate(reid.path, weights=("last",), data_root=tmp_path / "any name")
    assert found["data"]["own"] and found["metrics"] == expected["metrics"]
    shutil.copytree(reid.path, tmp_path / "runs/study/topk/seed0-0123456789")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SDTPS_RUNS_DIR", raising=False)
    for name in ("study/topk/seed0", "runs/study/topk"):
        (found,) = evaluate(Path(name), weights=("last",))
        assert found["metrics"] == expected["metrics"]


def test_rank_and_embed_read_tables_as_training_does(
    reid: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """D9: a query does not find itself, nor training rows."""
    table = table_of(reid, tmp_path / "people.csv")
    out = tmp_path / "features.safetensors"
    assert main(["embed", str(reid.path), str(table), "--out", str(out)]) == 0
    features = load_file(out)["features"]
    rows = json.loads(out.with_suffix(".json").read_text())["rows"]
    assert len(features) == len(rows) == 48 and [row["name"] for row in rows[:3]] == ["0", "1", "2"]
    model = load(reid.path)
    task = task_of(model, model.config, torch.device("cpu"))
    task.model.eval()
    with torch.no_grad():
        ranked = torch.cat([task.test_features(batch) for batch in task.test_batches])
    expected = ranked[[task.place[sample] for sample in task.dataset.query]]
    torch.testing.assert_close(features[32:], expected, atol=1e-5, rtol=1e-5)
    words = ["rank", str(reid.path), str(table), "--query", str(table), "--top", "100"]
    page = tmp_path / "page.html"
    capsys.readouterr()
    assert main([*words, "--out", str(page)]) == 0
    said = capsys.readouterr().out
    # 16 test samples, 2 of each identity by each of 2 cameras: 14 others for each query.
    assert "16 queries" in said and "split test" in said and "32 times" in said
    assert page.read_text().count("<figure") == 16 * (1 + 14)
    assert page.read_text().count('class="right"') == 16 * 2
    assert "Pictures: RGB, NIR, TIR." in page.read_text()
    assert main([*words, "--text", "a dog"]) == 2
    assert main([*words, "--split", "train", "--out", str(page)]) == 0
    assert "32 queries" in capsys.readouterr().out
    table.write_text(table.read_text().replace(";1;rgb", ";9;rgb"))
    assert main(["embed", str(reid.path), str(table), "--out", str(out)]) == 2


def test_the_command_prints_a_table_or_json_and_names_mistakes(
    reid: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", str(reid.path), "-w", "last"]) == 0
    assert "as trained" in capsys.readouterr().out
    assert main(["evaluate", str(reid.path), "-w", "last", "-c", "rerank", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["metrics"].keys() >= {"mAP@rerank"}
    assert main(["evaluate", str(reid.path), "-c", "missing_x"]) == 2
    assert "missing_rt" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert main(["evaluate", str(tmp_path / "empty")]) == 2
    assert "has not completed" in capsys.readouterr().err


def test_weights_that_do_not_fit_are_named_and_a_changed_number_is_told(
    reid: RunFolder, tmp_path: Path
) -> None:
    model, file = load(reid.path), tmp_path / "w.safetensors"
    about: dict[str, Any] = {"config": model.config.model_dump(mode="json"), "seed": 1}
    broken = {n: v for n, v in model.weights.items() if not n.endswith("neck.weight")}
    save_weights(file, broken, about)
    with pytest.raises(SdtpsError, match=r"neck\.weight"):
        evaluate(file)
    about["metrics"] = {"mAP": 0.99, "rank1": model.metrics["rank1"]}
    save_weights(file, model.weights, {**about, "step": model.step})
    (row,) = evaluate(file)
    assert row["differs"] == ["mAP"]


def small_clip(patch: pytest.MonkeyPatch) -> None:
    """CLIP ViT-B/16's modules with a few channels."""
    # Loading the model puts another module in the place of transformers.
    from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection  # noqa: F401

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    small = {**sizes, "num_attention_heads": 2, "patch_size": 16, "image_size": 32}
    settings = CLIPVisionConfig(**small, projection_dim=16)
    patch.setattr("transformers.CLIPVisionConfig", lambda **_: settings)


@pytest.mark.parametrize("form", ["seps", "laps", "demo"])
def test_published_weights_give_the_numbers_of_the_same_weights_trained_in_place(
    form: str, retrieval: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they are published, and after `sdtps convert`."""
    folder = retrieval
    if form == "demo":
        small_clip(monkeypatch)
        folder = trained(
            tmp_path / "run",
            {**REID, "backbone": {"name": "clip_vit_b16", "weights": "random"}},
            data={"height": 64, "width": 32},
            sdtps={"enabled": False},
            fusion={"kind": "hdm_atmoe", "global_local": True},
            train={"epochs": 1},
        )
        assert folder.weights_file("best").stat().st_size < 2**24
    if form == "laps":
        none = {"dense_text": "none", "eval_dense_text": "none"}
        matching = {**RETRIEVAL["matching"], "form": "laps", "alignment": "mean", **none}
        folder = trained(
            tmp_path / "run",
            RETRIEVAL,
            matching=matching,
            sdtps={"score": "attention_sum", "normalise": "none", "aggregation": "single"},
            loss={"ratio": "released"},
        )
    published = tmp_path / "published.pth"
    layout = LAYOUTS["demo" if form == "demo" else "seps"]
    state = convert(load(folder.path).weights, layout, "published")
    torch.save({"model": {f"module.{name}": value for name, value in state.items()}}, published)
    converted = tmp_path / "converted.safetensors"
    assert main(["convert", str(published), str(converted)]) == 0
    result = folder.result()
    assert result is not None
    for file in (published, converted):
        (row,) = evaluate(file, config=folder.config_file)
        assert row["metrics"] == {name: result["best"][name] for name in row["metrics"]}
        assert row["metrics"]


# -- pictures never seen ----------------------------------------------------------------------------


def test_a_folder_of_pictures_and_one_with_a_folder_for_each_modality(
    reid: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    samples = load_reid_data(reid.config()).query[:3]  # type: ignore[arg-type]
    for number, sample in enumerate(samples):
        for path, modality in zip(sample.images, ("RGB", "NI", "TI"), strict=True):
            (tmp_path / "triples" / modality).mkdir(parents=True, exist_ok=True)
            shutil.copy(path, tmp_path / "triples" / modality / f"{number}.jpg")
        (tmp_path / "plain").mkdir(exist_ok=True)
        shutil.copy(sample.images[0], tmp_path / "plain" / f"{number}.jpg")
    triples, plain = (read_pictures(tmp_path / name) for name in ("triples", "plain"))
    assert [set(p.paths) for p in triples] == [{"r", "n", "t"}] * 3
    whole, rgb = (features_of(load(reid.path), pictures) for pictures in (triples, plain))
    assert whole.shape == rgb.shape and not torch.equal(whole, rgb)
    assert "without a camid" in capsys.readouterr().err
    for broken, says in (("path\n", "no rows"), ("file\nx.jpg\n", "no column 'path'")):
        (tmp_path / "broken.csv").write_text(broken)
        with pytest.raises(SdtpsError, match=says):
            read_pictures(tmp_path / "broken.csv")
    with pytest.raises(SdtpsError, match="holds no pictures"):
        read_pictures(reid.path)
    for folder in ("triples/NI", "plain"):
        (tmp_path / folder / "scan.gif").write_bytes(b"")
        with pytest.raises(SdtpsError, match="not read"):
            read_pictures(tmp_path / folder.partition("/")[0])


@pytest.mark.parametrize("frozen", [False, True])
def test_rank_and_embed_of_retrieval(
    frozen: bool, retrieval: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Frozen encoders are not among a run's weights: they come from where the run had them."""
    if frozen:
        parts = {part: {"frozen": True} for part in ("image_encoder", "text_encoder")}
        none = {"dense_text": "none", "eval_dense_text": "none"}
        short = {"data": {"word_noise": 0.0}, "matching": none, "train": {"epochs": 1}}
        retrieval = trained(tmp_path / "run", RETRIEVAL, **parts, **short)
    model = load(retrieval.path)
    task = task_of(model, model.config, torch.device("cpu"))
    task.model.eval()
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for image in task.test.split.images:
        shutil.copy(image, pictures / image.name)
    out = tmp_path / "tokens.safetensors"
    assert main(["embed", str(retrieval.path), str(pictures), "--out", str(out)]) == 0
    assert load_file(out)["features"].shape[0] == len(task.test.split.images)
    texts = task.test.split.captions[:2]
    words = [word for text in texts for word in ("--text", text)]
    page = tmp_path / "page.html"
    assert main(["rank", str(retrieval.path), str(pictures), *words, "--out", str(page)]) == 0
    assert page.read_text().count("<blockquote>") == 2
    found = similarities_of(model, read_pictures(pictures), texts)
    with torch.no_grad():
        modes = similarities(task.model, task.test, task.config, ("none",), torch.device("cpu"))
    names = [p.name for p in read_pictures(pictures)]
    order = [names.index(image.stem) for image in task.test.split.images]
    torch.testing.assert_close(
        found[:, order], modes["none"].T[:2], atol=1e-3 if frozen else 1e-5, rtol=1e-5
    )
    assert main(["rank", str(retrieval.path), str(pictures), "--query", str(pictures)]) == 2
    assert "--text CAPTION" in capsys.readouterr().err
