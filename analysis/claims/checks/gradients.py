"""Claims on gradients of the three-modality module: what learns, through which path, how strongly."""

from __future__ import annotations

import torch

from analysis.claims.checks.arrangements import (
    PATCHES,
    arrangement,
    cosine,
    listed,
    run,
)
from analysis.claims.checks.registry import check
from analysis.claims.verdicts import Statement
from sdtps.selection import TokenSelection, gather_tokens, gumbel_noise, straight_through


def _norm(value: float | None) -> str:
    return "none" if value is None else f"{value:.3g}"


@check
def stability_script() -> list[Statement]:
    """The script's procedure: scores without a gradient, a straight-through mask, a backward pass."""
    torch.manual_seed(0)
    score = 2 * torch.randn(4, PATCHES)  # no requires_grad, as there
    soft = (score + gumbel_noise(torch.rand_like(score))).softmax(dim=1)
    hard = torch.zeros_like(score).scatter(1, score.topk(64).indices, 1.0)
    loss = straight_through(hard, soft).sum()
    try:
        loss.backward()
        error = ""
    except RuntimeError as problem:
        error = str(problem).splitlines()[0]
    return [
        Statement("its backward pass runs", not error, f"RuntimeError: {error}" if error else "it ran")
    ]


@check
def gumbel_gradient_ratio(stage: str, part: str, reported: float, sane: float) -> list[Statement]:
    """The gradient of a part with Gumbel at temperature 1 over that without.

    Args:
        reported: the norm in the source, for comparison only; sizes and inputs there are unknown.
        sane: the ratio above which it is not normal.
    """
    with_gumbel = run(arrangement(stage, decision="gumbel_ste")).part(part)
    without = run(arrangement(stage)).part(part)
    assert with_gumbel is not None and without is not None
    ratio = with_gumbel / without
    return [
        Statement(
            f"within {sane:g} times that of Top-K",
            ratio <= sane,
            f"{part}: {with_gumbel:.3g} with Gumbel, {without:.3g} with Top-K, ratio {ratio:.1e}; "
            f"reported {reported:.3g}",
            {"gumbel": with_gumbel, "topk": without, "ratio": ratio, "reported": reported},
        )
    ]


@check
def gumbel_effect(stages: list[str]) -> list[Statement]:
    """Features and gradients with Gumbel against those with Top-K, bit by bit."""
    statements = []
    for name in stages:
        on, off = run(arrangement(name, decision="gumbel_ste")), run(arrangement(name))
        same = torch.equal(on.feature, off.feature)
        statements.append(
            Statement(f"{name}: same output", same, f"{name} output {'same' if same else 'differs'}")
        )
        ratio = (on.parameters() or 0.0) / (off.parameters() or 1.0)
        equal = all(
            (a.grad is None and b.grad is None)
            or (a.grad is not None and b.grad is not None and torch.equal(a.grad, b.grad))
            for a, b in zip(on.module.parameters(), off.module.parameters(), strict=True)
        )
        statements.append(
            Statement(
                f"{name}: same gradients",
                equal,
                f"{name} gradients {'same' if equal else f'{ratio:.1e} times as large'}",
                {f"{name}_ratio": ratio},
            )
        )
    return statements


@check
def score_gradient_by_position() -> list[Statement]:
    """Which positions of the score get a gradient in v1 with Top-K."""
    torch.manual_seed(0)
    selection = TokenSelection(arrangement("v1"), 32)
    score = torch.rand(4, PATCHES, requires_grad=True)
    chosen = selection.select(torch.randn(4, PATCHES, 32), score)
    assert chosen.extra is not None
    (chosen.tokens.square().sum() + chosen.extra.square().sum()).backward()
    assert score.grad is not None
    kept = chosen.decision.bool()
    among_kept = float((score.grad[kept] != 0).double().mean())
    among_dropped = float((score.grad[~kept] != 0).double().mean())
    return [
        Statement(
            "no kept position has one",
            among_kept == 0.0,
            f"{among_kept:.0%} of the kept positions get one",
            {"kept": among_kept},
        ),
        Statement(
            "no dropped position has one",
            among_dropped == 0.0,
            f"{among_dropped:.0%} of the dropped positions get one, through the extra token",
            {"dropped": among_dropped},
        ),
    ]


@check
def score_mlp_gradient() -> list[Statement]:
    """The score MLP's gradient in v1 with Top-K, with and without the extra token."""
    whole = run(arrangement("v1")).part("score_mlp")
    without = run(arrangement("v1", extra_token="none")).part("score_mlp")
    importance = run(arrangement("v4")).part("score_mlp")
    return [
        Statement(
            "the score MLP gets a gradient",
            bool(whole),
            f"the score MLP's gradient is {_norm(whole)} with the extra token",
            {"with_extra": whole},
        ),
        Statement(
            "it gets one without the extra token",
            bool(without),
            f"it is {_norm(without)} without the extra token, {_norm(importance)} with log-importance",
            {"without_extra": without, "v4": importance},
        ),
    ]


@check
def gather_gradient() -> list[Statement]:
    """Gradients of gathered patches, by the indices of a fixed Top-K."""
    torch.manual_seed(0)
    tokens = torch.randn(4, PATCHES, 32, requires_grad=True)
    score = torch.rand(4, PATCHES, requires_grad=True)
    index = score.topk(64).indices
    gather_tokens(tokens, index).square().sum().backward()
    assert tokens.grad is not None
    share = float((tokens.grad.abs().sum(dim=-1) > 0).double().mean())
    return [
        Statement(
            "the gathered patches get no gradient",
            share == 0.0,
            f"{share:.0%} of the patches, all that are kept, get a gradient; the score gets "
            f"{'none' if score.grad is None else 'one'}",
            {"share": share},
        )
    ]


@check
def straight_through_decision() -> list[Statement]:
    """Value and gradient of the decision against those of its hard and its soft part."""
    torch.manual_seed(0)
    score = torch.rand(4, PATCHES, requires_grad=True)
    weights = torch.randn(4, PATCHES)
    soft = (score + gumbel_noise(torch.rand(4, PATCHES))).softmax(dim=1)
    hard = torch.zeros(4, PATCHES).scatter(1, score.topk(64).indices, 1.0)
    decision = straight_through(hard, soft)
    (through,) = torch.autograd.grad((weights * decision).sum(), score, retain_graph=True)
    (of_soft,) = torch.autograd.grad((weights * soft).sum(), score)
    forward = float((decision - hard).detach().abs().max())
    backward = float((through - of_soft).abs().max())
    return [
        Statement(
            "forwards it is the hard decision",
            forward == 0.0,
            f"difference from the hard decision {forward:g}",
            {"forward": forward},
        ),
        Statement(
            "backwards it is the soft one",
            backward == 0.0 and bool(of_soft.any()),
            f"difference from the soft decision's gradient {backward:g}",
            {"backward": backward},
        ),
    ]


@check
def no_grad_patch_gradient() -> list[Statement]:
    """The patches' gradient in v1 (attentions without gradients) and v2 (with), Top-K."""
    cut, whole = run(arrangement("v1")), run(arrangement("v2"))
    a, b = cut.patch_gradient(), whole.patch_gradient()
    alike = cosine(a, b)
    difference = float((a - b).norm() / b.norm())
    globals_ = listed([cut.part("globals"), whole.part("globals")])
    return [
        Statement(
            "the patches' gradient is cut by more than half",
            float(a.norm()) < 0.5 * float(b.norm()),
            f"the patches' gradient is {float(a.norm()):.3g} without, {float(b.norm()):.3g} with; "
            f"cosine {alike:.4f}, "
            f"relative difference {difference:.1%}; only the global features lose theirs ({globals_})",
            {"cosine": alike, "difference": difference},
        )
    ]


@check
def token_weighting() -> list[Statement]:
    """The "fixed" version, which weighs the gathered patches by the straight-through decision."""
    fixed, topk = run(arrangement("fixed", decision="gumbel_ste")), run(arrangement("fixed"))
    gumbel, plain = fixed.part("patches"), topk.part("patches")
    assert gumbel is not None and plain is not None
    score = fixed.part("score_mlp")
    other = run(arrangement("fixed", decision="gumbel_ste"), noise_seed=2)
    same = all(torch.equal(fixed.decisions[m], other.decisions[m]) for m in fixed.decisions)
    return [
        Statement(
            "the score learns from the kept patches, at an ordinary size",
            score is not None and score > 0 and gumbel < 10 * plain,
            f"score MLP {_norm(score)} (Top-K {_norm(topk.part('score_mlp'))}); patches {gumbel:.3g} "
            f"against {plain:.3g}",
            {"score_mlp": score, "patches": gumbel, "patches_topk": plain},
        ),
        Statement(
            "the noise takes part in the choice of patches",
            not same,
            "two draws of the noise keep the same patches" if same else "the patches kept differ",
        ),
    ]
