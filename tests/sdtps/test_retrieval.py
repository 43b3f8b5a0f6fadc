"""Retrieval from a folder to its result, the same whatever the workers; what evaluation means."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sdtps.crossnet import CrossNet
from sdtps.data.caption_batches import dense_owner
from sdtps.data.load import load_splits
from sdtps.evaluation import retrieval
from sdtps.evaluation.retrieval import similarities
from sdtps.system import distributed
from sdtps.system.errors import DataError
from sdtps.training.attempt import execute
from sdtps.training.retrieval import RetrievalTask
from tests.sdtps.small import LAPS, RELEASED, comparable, planted, train_in_two_processes
from tests.sdtps.small import retrieval as small

CPU = torch.device("cpu")
FROZEN = {
    "data": {"augment": False, "word_noise": 0.0},
    "image_encoder": {"frozen": True},
    "text_encoder": {"frozen": True},
}


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"sdtps": {"aggregation": "single"}, "loss": {"ratio": "eq7"}},
        LAPS,
        RELEASED,
        FROZEN,
        {"sdtps": {"enabled": False}, "matching": {"alignment": "mean"}},
        {"eval": {"select_on": "test"}, "matching": {"dense_text": "shuffled"}},
        {"matching": {"dense_text": "none", "eval_dense_text": "none"}, "train": {"amp": "bf16"}},
        {"image_encoder": {"patch": 8}, "sdtps": {"decision": "soft", "aggregation_ratio": 0.9}},
    ],
    ids=["paper", "single", "laps", "released", "frozen", "off", "test", "bf16", "soft"],
)
def test_every_arrangement_runs_to_its_result(tmp_path: Path, sections: dict[str, Any]) -> None:
    chosen = small(**{"train": {"epochs": 1}, **sections})
    folder = planted(tmp_path / "run", chosen)
    assert execute(folder.path) == "completed"
    result = folder.result()
    assert result is not None
    assert result["selected_on"] == chosen.eval.select_on
    assert 0 <= result["final"]["rsum"] <= 6
    assert all(0 <= result["final"][f"{d}_r{k}"] <= 1 for d in ("i2t", "t2i") for k in (1, 5, 10))
    data = folder.run()["data"]
    assert data["generated"] == chosen.data.generate.model_dump() and data["digest"]


def test_result_does_not_depend_on_workers_or_interruption(tmp_path: Path) -> None:
    plain = planted(tmp_path / "plain", small())
    workers = planted(tmp_path / "workers", small(data={"workers": 2}))
    assert execute(workers.path, max_steps=3) == "requeued"
    assert execute(plain.path) == execute(workers.path) == "completed"
    assert comparable(plain) == comparable(workers)


def test_two_processes_train_like_one(tmp_path: Path) -> None:
    """Negatives span both processes' parts of a batch; gloo, within rounding."""
    alone, together = (
        planted(tmp_path / name, small(train={"epochs": 1})) for name in ("alone", "together")
    )
    execute(alone.path)
    train_in_two_processes(together)
    rows = zip(comparable(alone), comparable(together), strict=True)
    for one, two in ((a, b) for a, b in rows if a["kind"] == "train"):
        for name in ("loss", "loss/alignment", "grad_norm", "grad_norm/text_encoder"):
            assert two[name] == pytest.approx(one[name], rel=1e-3, abs=1e-5), (name, one["step"])


def test_processes_share_the_captions_and_score_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    task = RetrievalTask(small(), 0, CPU)
    alone = similarities(task.model, task.test, task.config, ("own", "none"), CPU)
    parts: dict[int, list[Any]] = {0: [], 1: []}
    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    for rank in parts:
        monkeypatch.setattr(distributed, "rank", lambda rank=rank: rank)
        monkeypatch.setattr(
            distributed, "gather_parts", lambda own, device, rank=rank: parts[rank].append(own) or [own]
        )
        similarities(task.model, task.test, task.config, ("own", "none"), CPU)
    for whole, first, second in zip(alone.values(), parts[0], parts[1], strict=True):
        assert first.shape == second.shape == (6, 15)
        assert torch.allclose(torch.cat([first, second], dim=1), whole, atol=1e-5)


def test_training_learns_the_generated_pictures(tmp_path: Path) -> None:
    """Sum of hinges throughout, no selection: the plumbing from pixels and words to ranks works."""
    chosen = small(
        data={"word_noise": 0.0, "augment": False},
        loss={"warmup_epochs": 100, "ramp_first_epoch": False, "ratio": "none"},
        sdtps={"enabled": False},
        matching={"alignment": "mean", "embed": 32},
        optim={"lr": 3e-3, "backbone_lr_factor": 1.0, "milestones": [100]},
        train={"epochs": 8, "eval_every": 8},
    )
    folder = planted(tmp_path / "run", chosen)
    execute(folder.path)
    losses = [row["epoch_loss"] for row in comparable(folder) if "epoch_loss" in row]
    assert losses[-1] < 0.5 * losses[0]


def test_modes_of_dense_text_are_scored_on_the_same_model() -> None:
    task = RetrievalTask(small(), 0, CPU)
    metrics = task.evaluate()
    assert metrics["rsum"] == metrics["rsum@own"]
    scored = similarities(task.model, task.test, task.config, ("own", "shuffled", "none"), CPU)
    assert not torch.allclose(scored["own"], scored["shuffled"])
    assert not torch.allclose(scored["own"], scored["none"])
    laps = RetrievalTask(small(**LAPS), 0, CPU).evaluate()
    assert laps["rsum@own"] == laps["rsum@shuffled"] == laps["rsum@none"] == laps["rsum"]


def test_modes_scored_together_equal_each_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The released form scores a caption once for all modes and a dense text once for its captions."""
    modes: tuple[Any, ...] = ("own", "shuffled", "none")
    task = RetrievalTask(small(**RELEASED), 0, CPU)
    task.model.double()
    tokens = task.model.tokens
    monkeypatch.setattr(task.model, "tokens", lambda images: tokens(images.double()))
    together = similarities(task.model, task.test, task.config, modes, CPU)
    monkeypatch.setattr(CrossNet, "scores_apart", False)
    for mode in modes:
        alone = similarities(task.model, task.test, task.config, (mode,), CPU)[mode]
        assert torch.equal(together[mode], alone)  # rounded to float32


def test_an_evaluation_reports_from_the_first_images_on_and_ends_when_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retrieval, "IMAGES_BETWEEN_REPORTS", 4)
    chosen = small(data={"test_batch_size": 5})
    task = RetrievalTask(chosen, 0, CPU)
    seen: list[tuple[int, int]] = []
    similarities(
        task.model, task.test, chosen, ("own",), CPU, lambda done, total: seen.append((done, total))
    )
    # 6 images encoded 5 at a time, then 30 captions 5 at a time, each with 4 and with 2 images.
    counts = [done for done, _ in seen]
    assert counts == sorted(counts) and counts[:2] == [5, 6] and len(counts) == 2 + 6 * 2
    assert counts[-1] == 36 and {total for _, total in seen} == {36}

    def stop(done: int, total: int) -> None:
        if done > 20:
            raise InterruptedError(done)

    with pytest.raises(InterruptedError, match=r"2[1-9]"):
        similarities(task.model, task.test, chosen, ("own",), CPU, stop)


def test_block_sizes_do_not_change_a_score() -> None:
    matrices = []
    for size, chunk in ((12, None), (5, 1), (100, 7)):
        torch.manual_seed(0)
        chosen = small(data={"test_batch_size": size}, matching={"chunk": chunk})
        task = RetrievalTask(chosen, 0, CPU)
        matrices.append(similarities(task.model, task.test, chosen, ("own",), CPU)["own"])
    for other in matrices[1:]:
        torch.testing.assert_close(other, matrices[0], rtol=1e-5, atol=1e-6)


def test_frozen_encoders_are_not_trained_and_give_what_they_would_in_the_model() -> None:
    torch.manual_seed(0)
    frozen = RetrievalTask(small(**FROZEN), 0, CPU)
    assert frozen.trunk() == []
    assert set(frozen.module_groups()) == {"projections", "score_mlp", "aggregation", "alignment"}
    torch.manual_seed(0)
    live = RetrievalTask(small(data=FROZEN["data"]), 0, CPU)
    modules = ("image_projection", "text_projection", "crossnet")
    for name in modules:
        getattr(live.model, name).load_state_dict(getattr(frozen.model, name).state_dict())
    a, b = (similarities(t.model, t.test, t.config, ("own",), CPU)["own"] for t in (frozen, live))
    torch.testing.assert_close(a, b, rtol=5e-2, atol=5e-3)  # features are kept in float16


def test_another_picture_in_place_of_one_of_the_same_size_is_encoded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SDTPS_CACHE", str(tmp_path))
    first, second = RetrievalTask(small(**FROZEN), 0, CPU).test.split.images[:2]
    padded = 2 * max(first.stat().st_size, second.stat().st_size)
    first.write_bytes(first.read_bytes().ljust(padded, b"\0"))
    torch.manual_seed(0)  # the same random encoder in both
    before = RetrievalTask(small(**FROZEN), 0, CPU).test.image_features
    first.write_bytes(second.read_bytes().ljust(padded, b"\0"))
    torch.manual_seed(0)
    after = RetrievalTask(small(**FROZEN), 0, CPU).test.image_features
    assert before is not None and after is not None
    assert (before[0] != after[0]).any()
    assert (after[0] == after[1]).all()


@pytest.mark.parametrize("images", [2, 7, 100])
def test_shuffled_dense_texts_are_always_another_images(images: int) -> None:
    owner = dense_owner(images, "shuffled")
    assert sorted(owner) == list(range(images))
    assert all(owner[i] != i for i in range(images))
    assert list(dense_owner(images, "own")) == list(range(images))


def test_a_batch_larger_than_the_split_is_refused() -> None:
    with pytest.raises(DataError, match=r"data\.batch_size 64 is more than"):
        RetrievalTask(small(data={"batch_size": 64}), 0, CPU)


def test_both_protocols_come_from_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = small(eval={"protocol": "both", "test_split": "testall", "also_dense_text": []})
    with pytest.raises(DataError, match=r"needs folds of 1000 images, but testall has 6"):
        RetrievalTask(chosen, 0, CPU)
    monkeypatch.setattr("sdtps.evaluation.retrieval.FOLD_IMAGES", 3)
    metrics = RetrievalTask(chosen, 0, CPU).evaluate()
    assert metrics["i2t_r5@1k"] >= metrics["i2t_r5"]  # ranks among 3 images, not among 6
    assert metrics["rsum@1k"] > metrics["rsum"]


def test_dense_texts_are_read_only_where_a_mode_wants_them() -> None:
    chosen = small(
        matching={"dense_text": "own", "eval_dense_text": "none"}, eval={"also_dense_text": []}
    )
    splits, _ = load_splits(chosen, ["train", "dev", "test"])
    assert splits["train"].dense is not None
    assert splits["dev"].dense is None and splits["test"].dense is None
