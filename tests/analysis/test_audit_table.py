"""An audit as a table: powers of ten for the explosions, words for what gets no gradient."""

from __future__ import annotations

from typing import Any

import pytest

from analysis.tables.study import audit_table

VARIANT = {"loss": 1.0, "loss_after": 0.9, "without_gradient": 0.0, "patch_cosine": 1.0}


def document(ratio: float = 1.0) -> dict[str, Any]:
    """An audit in which the score MLP of the baseline has this ratio."""
    names = {"topk": "Top-K", "no_grad & co": "no_grad & co", "gumbel_tau1": "Gumbel τ = 1"}
    skipped = {"scaler_scale": 64.0, "scaler_skipped": 10}
    gradients = [
        ("topk", "score_mlp", ratio, "finite"),
        ("no_grad & co", "score_mlp", None, "none"),
        ("gumbel_tau1", "score_mlp", 5.4e9, "finite"),
        ("gumbel_tau1", "aggregation", 1.0, "finite"),
    ]
    return {
        **{"study": "toy", "baseline": "topk", "steps": 10, "findings": []},
        "variants": [
            {"variant": n, "label": label, **VARIANT, **skipped} for n, label in names.items()
        ],
        "gradients": [
            {"variant": v, "when": "initial", "part": part, "state": state, "norm": r, "ratio": r}
            for v, part, r, state in gradients
        ],
    }


def test_cells_say_factors_and_states_and_the_caption_what_words_mean() -> None:
    table = audit_table(document())
    assert table.cell("gumbel_tau1", "score_mlp").text == "5.4×10⁹"
    assert table.cell("no_grad & co", "score_mlp").text == "no path"
    assert table.cell("gumbel_tau1", "skipped").text == "10/10"
    assert table.cell("topk", "aggregation").kind == "empty"
    caption = " ".join(table.caption)
    assert "no path: no gradient can reach the part" in caption and "empty: " in caption
    assert "zero:" not in caption and "not finite:" not in caption


@pytest.mark.parametrize(
    ("ratio", "shown"),
    [(1.0, "1.0"), (0.7, "0.70"), (1.06, "1.1"), (9.96, "10"), (36.4, "36"), (264.2, "264")],
)
def test_every_factor_has_two_figures_or_more_so_that_prose_can_quote_it(ratio, shown) -> None:
    assert audit_table(document(ratio)).cell("topk", "score_mlp").text == shown
