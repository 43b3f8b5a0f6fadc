"""PK batches and augmentation: functions of seed and epoch, with DeMo's distributions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from sdtps.config.reid import ReidDataConfig
from sdtps.data.augment import (
    ERASE_AREA,
    ERASE_ASPECT,
    ERASE_TRIES,
    BatchAugmentation,
    Draws,
    augment_by_gather,
    augment_by_slices,
    normal_noise,
)
from sdtps.data.reid_batches import PkSampler

LABELS = [0] * 9 + [1] * 4 + [2] * 2 + [3] * 8 + [4] * 5


def config(flip: float, pad: int, erase: float = 0.0) -> ReidDataConfig:
    return ReidDataConfig(height=64, width=32, flip=flip, pad=pad, erase=erase)


DEMO = config(0.5, 10, 0.5)


def test_a_batch_has_p_identities_with_k_images_each_and_repeats_none_it_need_not() -> None:
    sampler = PkSampler(LABELS, batch_size=8, instances=4, seed=0)
    for epoch in range(1, 4):
        order = sampler.epoch(epoch)
        assert order.shape == (sampler.batches, 8)
        for group in order.reshape(-1, 4):
            (label,) = set(np.asarray(LABELS)[group])
            assert len(set(group)) == 4 or label == 2  # of which there are two
        assert all(LABELS[batch[0]] != LABELS[batch[4]] for batch in order)


def test_order_is_a_function_of_seed_and_epoch() -> None:
    one, two = (PkSampler(LABELS, 8, 4, seed=3) for _ in range(2))
    assert (one.epoch(2) == two.epoch(2)).all()
    assert (one.epoch(1) != one.epoch(2)).any()
    assert (PkSampler(LABELS, 8, 4, seed=4).epoch(2) != two.epoch(2)).any()


def draw_box(height: int, width: int, rng: np.random.Generator) -> tuple[int, int, int, int] | None:
    """Top, left, height and width of a box to erase; None when ten tries did not fit."""
    for _ in range(ERASE_TRIES):
        area = rng.uniform(*ERASE_AREA) * height * width
        aspect = math.exp(rng.uniform(math.log(ERASE_ASPECT[0]), math.log(ERASE_ASPECT[1])))
        h, w = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if h < height and w < width:
            top = int(rng.integers(0, height - h + 1))
            left = int(rng.integers(0, width - w + 1))
            return top, left, h, w
    return None


def test_boxes_have_the_references_distribution() -> None:
    """Mean and spread agree within four standard errors."""
    count = 2000
    draws = BatchAugmentation(DEMO, torch.device("cpu")).draw(20 * count, np.random.default_rng(0))
    boxes = [draw_box(64, 32, np.random.default_rng([s, 9])) for s in range(count)]
    found = np.array([b for b in boxes if b is not None], dtype=float)
    drawn = draws.boxes[draws.boxes[:, 2] > 0].astype(float)
    pairs = [(found[:, k], drawn[:, k]) for k in range(4)]
    pairs.append((found[:, 2] * found[:, 3], drawn[:, 2] * drawn[:, 3]))
    pairs.append((np.array([b is not None for b in boxes]) * 0.5, (draws.boxes[:, 2] > 0) * 1.0))
    for number, (one, two) in enumerate(pairs):
        error = np.sqrt(one.var() / len(one) + two.var() / len(two))
        assert abs(one.mean() - two.mean()) < 4 * error, number
        if number < 5:
            assert one.std() == pytest.approx(two.std(), rel=0.08), number


def test_shifts_are_uniform_over_the_padding_and_half_are_flipped() -> None:
    draws = BatchAugmentation(DEMO, torch.device("cpu")).draw(21_000, np.random.default_rng(1))
    for shift in (draws.down, draws.right):
        values, counts = np.unique(shift, return_counts=True)
        assert list(values) == list(range(-10, 11))
        assert (abs(counts - 1000) < 5 * 1000**0.5).all()
    assert abs(draws.flips.mean() - 0.5) < 4 * 0.5 / 21_000**0.5


def fixed(n: int, *, flips: list[int], down: list[int], right: list[int]) -> Draws:
    boxes = np.zeros((n, 4), dtype=np.int64)
    return Draws(np.array(flips), np.array(down), np.array(right), boxes, 0)


def test_moving_by_slices_equals_the_reference_arithmetic() -> None:
    pixels = torch.arange(2 * 3 * 4 * 5, dtype=torch.uint8).view(2, 3, 4, 5)
    draws = fixed(2, flips=[0, 1], down=[1, -2], right=[-1, 2])
    moved = augment_by_slices(list(pixels.numpy()), draws)
    for i, (flip, down, right) in enumerate(((False, 1, -1), (True, -2, 2))):
        image = pixels[i].numpy()[:, :, ::-1] if flip else pixels[i].numpy()
        padded = np.pad(image, ((0, 0), (3, 3), (3, 3)))
        crop = padded[:, 3 + down : 7 + down, 3 + right : 8 + right].astype(np.float32)
        assert np.allclose(moved[i].numpy(), crop / 255 / 0.5 - 1, atol=1e-6)


def test_gather_and_slices_give_the_same_pixels() -> None:
    rng = np.random.default_rng(2)
    pixels = torch.from_numpy(rng.integers(0, 256, size=(40, 3, 64, 32), dtype=np.uint8))
    draws = BatchAugmentation(DEMO, torch.device("cpu")).draw(40, rng)
    one = augment_by_slices(list(pixels.numpy()), draws)
    two = augment_by_gather(pixels, draws, torch.Generator().manual_seed(1))
    outside = torch.ones(40, 1, 64, 32, dtype=torch.bool)
    for i, (top, left, tall, wide) in enumerate(draws.boxes.tolist()):
        outside[i, :, top : top + tall, left : left + wide] = False
    assert torch.equal(one.where(outside, 0.0), two.where(outside, 0.0))
    for images in (one, two):
        inside = images.masked_select(~outside.expand_as(images))
        assert inside.mean().abs() < 0.05 and inside.std().item() == pytest.approx(1, abs=0.05)


def test_noise_is_normal_and_no_value_knows_another() -> None:
    noise = normal_noise(400_001, seed=5)
    assert noise.dtype == np.float32 and len(noise) == 400_001
    from scipy.stats import kstest  # takes a second

    assert kstest(noise[::10], "norm").pvalue > 0.01
    assert abs(noise.mean()) < 4 / 400_001**0.5
    for moment, expected, spread in ((2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((noise.astype(float) ** moment).mean() - expected) < 4 * (spread / 400_001) ** 0.5
    for lag in (1, 2, 3, 4, 5, 8, 128, 98_304):
        assert abs(np.corrcoef(noise[lag:], noise[:-lag])[0, 1]) < 4 / (400_001 - lag) ** 0.5, lag
    assert (normal_noise(1000, 5) == noise[:1000]).all() and (normal_noise(9, 6) != noise[:9]).any()
    assert np.unique(noise).size > 0.99 * 65_536  # every level is drawn
    assert len(normal_noise(0, 1)) == 0


def test_the_modality_axis_comes_first_and_each_modality_moves_on_its_own() -> None:
    pixels = torch.randint(1, 256, (4, 1, 3, 64, 32), dtype=torch.uint8).expand(4, 3, 3, 64, 32)
    moving = config(0.5, 10)
    out = BatchAugmentation(moving, torch.device("cpu"))(pixels, np.random.default_rng(0))
    assert out.shape == (3, 4, 3, 64, 32)
    assert not torch.equal(out[0], out[1]) and not torch.equal(out[1], out[2])
