"""The audit sees what explodes, what learns nothing and why, and disturbs nobody."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import cycle
from typing import Any

import pytest
import torch
from rich.console import Console

from sdtps.audit.audit import Audit, audit, show
from sdtps.audit.examination import Examination, examine, gradient_of
from sdtps.audit.findings import NAMES, OF_SDTPS, TRAINED, Finding, findings, grouped, number
from sdtps.audit.toys import tiny
from sdtps.config import Config, parse_config
from tests.sdtps.test_axes import combinations, in_retrieval

V2 = {"no_grad": "none", "aggregation": "single", "mask": "subtract_1e10"}
VARIANTS: dict[str, dict[str, Any]] = {
    "topk": {"sdtps": V2},
    "gumbel_tau1": {"sdtps": {**V2, "decision": "gumbel_ste"}},
    "constant_10": {"sdtps": {**V2, "decision": "gumbel_ste", "mask": "subtract_10"}},
    "log_mask": {"sdtps": {**V2, "decision": "gumbel_ste", "mask": "log"}},
    "not_passed": {"sdtps": {**V2, "decision": "gumbel_ste", "mask": "none"}},
    "no_extra": {"sdtps": {**V2, "extra_token": "none"}},
    "attention": {"sdtps": {**V2, "no_grad": "attention"}},
    "selection": {"sdtps": {**V2, "no_grad": "selection"}},
    "only_selection": {
        "sdtps": {**V2, "no_grad": "selection"},
        "loss": {"global_branch": False},
    },
    "no_sdtps": {"sdtps": {"enabled": False}},
}


def config(parts: dict[str, Any], amp: str = "off") -> Config:
    """32 patches; the encoder is made tiny by the audit."""
    return parse_config(
        {
            "data": {"height": 64, "width": 32},
            "backbone": {"name": "tiny_vit", "patch": 8, "weights": "random"},
            "train": {"amp": amp},
            **parts,
        }
    )


@pytest.fixture(scope="module")
def audited() -> Audit:
    return audit({n: config(p) for n, p in VARIANTS.items()}, "topk", study="toy", steps=2)


def said(audited: Audit, variant: str) -> list[Finding]:
    return [f for f in audited.findings if f.variant == variant]


def test_the_baseline_and_the_repairs_have_nothing_against_them(audited: Audit) -> None:
    for variant in ("topk", "constant_10", "log_mask", "no_sdtps"):
        assert said(audited, variant) == []


def test_gumbel_with_1e10_is_found_with_its_factor_and_its_cause(audited: Audit) -> None:
    (finding,) = said(audited, "gumbel_tau1")
    assert finding.severity == "error"
    assert finding.factor is not None
    assert 1e6 < finding.factor < 1e10
    assert "the factor is the mask constant 1e10" in finding.text
    assert audited.findings[0] is finding  # worst first


def test_the_cause_is_not_named_without_proof(audited: Audit) -> None:
    """Were the factor still there with the log mask, the constant would not be blamed."""
    examined = audited.examinations["gumbel_tau1"]
    same = {name: examined.initial for name in examined.counterfactuals}
    blamed = {**audited.examinations, "gumbel_tau1": replace(examined, counterfactuals=same)}
    (finding,) = [f for f in findings(blamed, "topk", 2) if f.kind == "exploded"]
    assert "the mask alone does not explain it" in finding.text


def test_parts_that_learn_nothing_are_named(audited: Audit) -> None:
    texts = {name: " ".join(f.text for f in said(audited, name)) for name in VARIANTS}
    assert "the score MLP learns nothing" in texts["no_extra"]
    assert "the score MLP learns nothing" in texts["selection"]
    assert "no gradient reaches the patches through SDTPS" in texts["selection"]
    assert "image encoder" not in texts["selection"]  # it learns through the global branch
    assert "the image encoder receives no gradient" in texts["only_selection"]
    assert "no gradient reaches the attention guides" in texts["attention"]
    assert "changes neither the loss nor any gradient" in texts["not_passed"]


IN_PLACE = {"aggregation": "in_place", "mask": "multiply", "extra_token": "none", "no_grad": "none"}


def test_behind_a_hard_mask_in_place_no_parameter_learns() -> None:
    """As in every log of the commits from 21f61b8 to ca287c1 and from 5506017 to 66c66c5."""
    gated = {**IN_PLACE, "relevance": "gated", "score": "weighted"}
    decisions = ("topk", "gumbel_ste", "gumbel_sigmoid_ste", "sigmoid_mean")
    configs = {d: config({"sdtps": {**gated, "decision": d}}) for d in decisions}
    found = audit({"base": config({"sdtps": V2}), **configs}, "base", steps=2).findings
    (error,) = [f for f in found if f.kind == "no_gradient" and f.variant != "base"]
    assert error.variant == "topk" and error.text.startswith("no parameter of SDTPS learns")


def test_a_gradient_of_zero_is_none_also_beside_an_sdtps_that_learns_nothing(audited: Audit) -> None:
    weight = torch.ones(2, requires_grad=True)
    (weight * 0).sum().backward()
    examined = audited.examinations["topk"]
    parts = examined.initial.parts | dict.fromkeys((*OF_SDTPS, "heads"), gradient_of([weight]))
    dead = replace(examined, initial=replace(examined.initial, parts=parts))
    texts = " ".join(f.text for f in findings({"topk": examined, "dead": dead}, "topk", 2))
    assert "no parameter of SDTPS learns" in texts and "the heads learns nothing" in texts


@pytest.mark.parametrize(
    ("chosen", "task"),
    # The values of an axis meet the tasks by turns.
    [*zip(filter(None, combinations(alone=True)), cycle(["reid", "retrieval"]), strict=False)],
    ids=lambda c: c if isinstance(c, str) else "-".join(c.values()),
)
def test_every_value_takes_a_step_and_what_gets_no_gradient_is_named(
    task: str, chosen: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sdtps.audit.examination.changes", lambda _: {})  # `audited` has them
    if not in_retrieval(chosen):
        task = "reid"
    tree: dict[str, Any] = {"task": task, "sdtps": {"no_grad": "none", **chosen}}
    if task == "retrieval":
        tree["image_encoder"] = {"name": "tiny_vit", "size": 56, "patch": 8}
    made = parse_config(tree) if task == "retrieval" else config(tree)
    examined = examine(made, {}, steps=1, seed=0)
    assert math.isfinite(examined.after.loss)
    words = " ".join(f.text for f in findings({"it": examined}, "it", 1))
    for part in TRAINED:
        if part in examined.initial.parts:
            assert (NAMES[part] in words) != examined.initial.parts[part].learns, part


def test_the_share_of_untrained_parameters_is_counted(audited: Audit) -> None:
    shares = {n: e.initial.without_gradient for n, e in audited.examinations.items()}
    assert shares["topk"] == 0
    assert 0 < shares["selection"] < shares["only_selection"] < 1


def test_no_grad_on_attentions_keeps_the_patch_gradient(audited: Audit) -> None:
    rows = {row["variant"]: row for row in audited.as_json()["variants"]}
    assert rows["attention"]["patch_cosine"] == pytest.approx(1, abs=1e-3)
    assert abs(rows["gumbel_tau1"]["patch_cosine"]) < 0.2


def test_the_file_holds_every_figure(audited: Audit) -> None:
    content = json.loads(json.dumps(audited.as_json(), allow_nan=False))
    assert {row["variant"] for row in content["variants"]} == set(VARIANTS)
    by_part = {
        row["part"]: row
        for row in content["gradients"]
        if row["variant"] == "gumbel_tau1" and row["when"] == "initial"
    }
    assert by_part["aggregation"]["ratio"] == pytest.approx(1)
    assert by_part["score_mlp"]["ratio"] == pytest.approx(said(audited, "gumbel_tau1")[0].factor)
    assert {"encoder", "class_token", "selected_patches", "guides", "extra_token", "heads"} <= set(
        by_part
    )


@pytest.mark.parametrize("width", [80, 220])
def test_the_table_prints_and_cuts_no_number_short(audited: Audit, width: int) -> None:
    console = Console(width=width)
    with console.capture() as captured:
        show(audited, console)
    assert "gumbel_tau1" in captured.get()
    assert "…" not in captured.get()
    assert "the factor is the mask constant" in " ".join(captured.get().split())


def test_fp16_reports_the_scaler() -> None:
    parts = {"topk": VARIANTS["topk"], "gumbel_tau1": VARIANTS["gumbel_tau1"]}
    audited = audit({n: config(p, "fp16") for n, p in parts.items()}, "topk", steps=3)
    scaler = audited.examinations["gumbel_tau1"].scaler
    assert scaler is not None
    assert (scaler.skipped, scaler.scale) == (3, 65536 / 8)
    assert "skipped 3 of 3 steps" in said(audited, "gumbel_tau1")[0].text


def test_an_audit_repeats_in_one_thread_and_leaves_random_state_and_threads_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used = set()

    def examined(*arguments: Any) -> Examination:
        used.add(torch.get_num_threads())
        return examine(*arguments)

    monkeypatch.setattr("sdtps.audit.audit.examine", examined)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    configs = {n: config(VARIANTS[n]) for n in ("topk", "gumbel_tau1")}
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, second = (audit(configs, "topk", steps=1).as_json() for _ in range(2))
    assert first == second
    assert torch.equal(before, torch.get_rng_state())
    assert (used, torch.get_num_threads()) == ({1}, 2)
    torch.set_num_threads(threads)


def test_the_same_sentence_is_said_once_for_all_its_variants() -> None:
    def note(variant: str, value: str) -> Finding:
        return Finding(variant, "note", "no_effect", f"the ratio loss is a constant ({value}).")

    notes = [note(f"v{i}", f"{i}.5e-05") for i in range(7)]
    errors = [
        Finding(name, "error", "exploded", f"{factor:g} times", factor)
        for name, factor in (("small", 1e3), ("large", 1e9))
    ]
    assert [(whose, f.text) for whose, f in grouped([*notes, *errors])] == [
        ("large", "1e+09 times"),
        ("small", "1000 times"),
        ("v0, v1, v2, v3 and 3 others", "the ratio loss is a constant (0.5e-05)."),
    ]


def test_tiny_keeps_the_axes_and_every_count() -> None:
    original = parse_config(
        {"sdtps": {"keep_ratio": 0.7, "aggregation_ratio": 0.5}, "train": {"amp": "bf16"}}
    )
    small = tiny(original)
    assert small.sdtps == original.sdtps
    assert small.train.amp == "bf16"
    parse_config(small.model_dump(mode="json"))  # still valid
    patches = (small.data.height // small.backbone.patch) * (small.data.width // small.backbone.patch)
    assert patches == 128


def test_factors_read_as_people_write_them() -> None:
    written = {5.4e9: "5.4e9", 1e10: "1e10", 264.0: "264", 99.9: "100", 1.04: "1", 2e-5: "2e-5"}
    assert {value: number(value) for value in written} == written
