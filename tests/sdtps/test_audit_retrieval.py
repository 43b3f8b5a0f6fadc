"""The audit in retrieval: what the released arrangement trains with and without a class token."""

from __future__ import annotations

from typing import Any

import pytest

from sdtps.audit.audit import Audit, audit
from sdtps.config import Config, parse_config
from tests.sdtps.small import LAPS, RELEASED

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "paper": ("tiny_vit", {}),
    "released": ("tiny_vit", RELEASED),
    "released_swin": ("swin_b", RELEASED),
    "laps_swin": ("swin_b", LAPS),
    "no_sdtps": ("tiny_vit", {"sdtps": {"enabled": False}}),
}


def config(encoder: str, parts: dict[str, Any]) -> Config:
    """49 patches in both: Swin's 7 x 7."""
    size = {} if encoder == "swin_b" else {"size": 56, "patch": 8}
    return parse_config({"task": "retrieval", "image_encoder": {"name": encoder, **size}, **parts})


@pytest.fixture(scope="module")
def audited() -> Audit:
    return audit({n: config(*v) for n, v in VARIANTS.items()}, "paper", steps=1)


def texts(audited: Audit, variant: str) -> str:
    return " ".join(f.text for f in audited.findings if f.variant == variant)


def test_released_without_class_token_trains_no_image_encoder(audited: Audit) -> None:
    (finding,) = [f for f in audited.findings if f.kind == "no_gradient"]
    assert (finding.variant, finding.severity) == ("released_swin", "error")
    assert "the image encoder receives no gradient" in finding.text
    look = audited.examinations["released_swin"].initial
    assert look.parts["selected_patches"].state == "none"
    assert look.parts["text_encoder"].learns
    assert 0.2 < look.without_gradient < 0.5


def test_released_with_class_token_trains_it_through_that_token_alone(audited: Audit) -> None:
    parts = audited.examinations["released"].initial.parts
    assert parts["selected_patches"].state == "zero"
    assert parts["class_token"].learns
    assert parts["encoder"].learns


def test_laps_trains_the_image_encoder_without_class_token(audited: Audit) -> None:
    parts = audited.examinations["laps_swin"].initial.parts
    assert parts["selected_patches"].learns
    assert parts["encoder"].learns


def test_dense_words_only_guide_in_the_paper_form(audited: Audit) -> None:
    paper, released = (audited.examinations[n].initial.parts for n in ("paper", "released"))
    assert paper["dense_words"].state == "none"
    assert released["dense_words"].learns
    assert "no gradient reaches the dense words" in texts(audited, "paper")


def test_the_ratio_loss_is_found_constant(audited: Audit) -> None:
    assert "the ratio loss trains nothing: it is a constant" in texts(audited, "released")
    assert "ratio" not in texts(audited, "no_sdtps")
