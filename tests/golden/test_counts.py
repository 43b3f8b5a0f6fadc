"""Token counts that the publications and their logs state."""

from __future__ import annotations

import pytest

from sdtps.aggregation import aggregated_count
from sdtps.selection import kept_count


@pytest.mark.parametrize(
    ("patches", "keep_ratio", "aggregation_ratio", "kept", "aggregated"),
    [
        (196, 0.5, 0.4, 98, 39),  # ViT-224
        (576, 0.5, 0.4, 288, 115),  # ViT-384
        (49, 0.8, 0.6, 40, 23),  # Swin-224
        (144, 0.8, 0.6, 116, 69),  # Swin-384
        (128, 0.5, 0.4, 64, 25),  # re-identification; documents that say 26 round or count the extra
        (128, 0.6, 0.4, 77, 30),
        (128, 0.7, 0.5, 90, 44),
    ],
)
def test_counts_are_ceil_and_int(
    patches: int, keep_ratio: float, aggregation_ratio: float, kept: int, aggregated: int
) -> None:
    assert kept_count(patches, keep_ratio) == kept
    assert aggregated_count(patches, aggregation_ratio, keep_ratio) == aggregated


def test_kept_count_follows_floating_point_like_the_published_code() -> None:
    assert 100 * 0.55 > 55
    assert kept_count(100, 0.55) == 56


def test_one_token_is_always_kept() -> None:
    assert kept_count(16, 1e-9) == 1
