"""An audit as a table: powers of ten for the explosions, words for what gets no gradient."""

from __future__ import annotations

from typing import Any

from analysis.tables.forms import to_csv, to_latex
from analysis.tables.study import audit_table


def document() -> dict[str, Any]:
    def gradient(variant: str, part: str, ratio: float | None, state: str = "finite") -> dict[str, Any]:
        return {
            "variant": variant,
            "when": "initial",
            "part": part,
            "state": state,
            "norm": ratio,
            "ratio": ratio,
        }

    variant = {"loss": 1.0, "loss_after": 0.9, "without_gradient": 0.0, "patch_cosine": 1.0}
    scaler = {"scaler_skipped": 1, "scaler_scale": 32768.0}
    return {
        "study": "toy",
        "baseline": "topk",
        "steps": 10,
        "findings": [],
        "variants": [
            {"variant": "topk", "label": "Top-K", **variant, **scaler},
            {
                "variant": "no_grad & co",
                "label": "no_grad & co",
                **variant,
                **scaler,
                "without_gradient": 0.058,
            },
            {
                "variant": "gumbel_tau1",
                "label": "Gumbel τ = 1",
                **variant,
                "scaler_skipped": 10,
                "scaler_scale": 64.0,
            },
        ],
        "gradients": [
            gradient("topk", "score_mlp", 1.0),
            gradient("no_grad & co", "score_mlp", None, "none"),
            gradient("gumbel_tau1", "score_mlp", 5.4e9),
            gradient("gumbel_tau1", "aggregation", 1.0),
        ],
    }


def test_cells_say_factors_and_states() -> None:
    table = audit_table(document())
    assert table.cell("gumbel_tau1", "score_mlp").text == "5.4×10⁹"
    assert table.cell("no_grad & co", "score_mlp").text == "no path"
    assert table.cell("no_grad & co", "untrained").text == "5.8"
    assert table.cell("gumbel_tau1", "skipped").text == "10/10"
    assert table.cell("topk", "aggregation").kind == "empty"


def test_every_factor_has_two_figures_or_more_so_that_prose_can_quote_it() -> None:
    table = audit_table(document())
    assert table.cell("topk", "score_mlp").text == "1.0"  # "1.0 times", never "1 times"
    for value, shown in ((0.7, "0.70"), (1.06, "1.1"), (9.96, "10"), (36.4, "36"), (264.2, "264")):
        changed = document()
        changed["gradients"][0]["ratio"] = value
        assert audit_table(changed).cell("topk", "score_mlp").text == shown


def test_words_and_empty_cells_are_explained_where_there_are_any() -> None:
    caption = " ".join(audit_table(document()).caption)
    assert "no path: no gradient can reach the part" in caption and "empty: " in caption
    assert "zero:" not in caption and "not finite:" not in caption


def test_latex_is_escaped_and_csv_is_plain() -> None:
    table = audit_table(document())
    assert r"no\_grad \& co" in to_latex(table)
    assert "Gumbel τ = 1" in to_csv(table)
    assert "multiple of that of Top-K" in to_latex(table)
