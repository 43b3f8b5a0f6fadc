"""What learns in the three-modality module, by which path and how strongly; memory and loss scaling."""

from __future__ import annotations

from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from analysis.claims.checks.published import (
    PATCHES,
    WIDTH,
    arrangement,
    cosine,
    listed,
    run,
    seed_weights,
    shown,
)
from analysis.claims.verdicts import Statement, check
from sdtps.config import SdtpsConfig
from sdtps.config.axes import gumbel_noise, straight_through
from sdtps.multimodal import MODALITIES, MultiModal
from sdtps.selection import TokenSelection, gather_tokens

if TYPE_CHECKING:
    from collections.abc import Iterator


@check
def stability_script() -> Iterator[Statement]:
    """The script's procedure: scores without a gradient, a straight-through mask, a backward pass."""
    torch.manual_seed(0)
    score = 2 * torch.randn(4, PATCHES)  # no requires_grad, as there
    soft = (score + gumbel_noise(torch.rand_like(score))).softmax(dim=1)
    hard = torch.zeros_like(score).scatter(1, score.topk(64).indices, 1.0)
    loss = straight_through(hard, soft).sum()
    try:
        loss.backward()
        ran = True
    except RuntimeError:  # torch: nothing in the graph requires a gradient
        ran = False
    found = "it ran" if ran else "no tensor in it asks for a gradient, so there is none"
    yield Statement("its backward pass runs", ran, found)


@check
def gumbel_gradient_ratio(stage: str, part: str, reported: float, sane: float) -> Iterator[Statement]:
    """The gradient of a part with Gumbel at temperature 1 over that without.

    Args:
        reported: the norm in the source, for comparison only; sizes and inputs there are unknown.
        sane: the ratio above which it is not normal.
    """
    with_gumbel = run(arrangement(stage, decision="gumbel_ste")).part(part)
    without = run(arrangement(stage)).part(part)
    assert with_gumbel is not None and without is not None
    ratio = with_gumbel / without
    yield Statement(
        f"within {sane:g} times that of Top-K",
        ratio <= sane,
        f"{part}: {with_gumbel:.3g} with Gumbel, {without:.3g} with Top-K, ratio {ratio:.1e}; "
        f"reported {reported:.3g}",
    )


@check
def gumbel_effect(stages: list[str]) -> Iterator[Statement]:
    """Features and gradients with Gumbel against those with Top-K, bit by bit."""
    for name in stages:
        on, off = run(arrangement(name, decision="gumbel_ste")), run(arrangement(name))
        same = torch.equal(on.feature, off.feature)
        yield Statement(f"{name}: same output", same, f"{name} output {'same' if same else 'differs'}")
        ratio = (on.parameters() or 0.0) / (off.parameters() or 1.0)
        pairs = zip(on.module.parameters(), off.module.parameters(), strict=True)
        grads = [(a.grad, b.grad) for a, b in pairs]
        equal = all(a is b if a is None or b is None else torch.equal(a, b) for a, b in grads)
        yield Statement(
            f"{name}: same gradients",
            equal,
            f"{name} gradients {'same' if equal else f'{ratio:.1e} times as large'}",
        )


@check
def score_gradient_by_position() -> Iterator[Statement]:
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
    yield Statement(
        "no kept position has one", among_kept == 0.0, f"{among_kept:.0%} of the kept positions get one"
    )
    yield Statement(
        "no dropped position has one",
        among_dropped == 0.0,
        f"{among_dropped:.0%} of the dropped positions get one, through the extra token",
    )


@check
def score_mlp_gradient() -> Iterator[Statement]:
    """The score MLP's gradient in v1 with Top-K, with and without the extra token."""
    whole = run(arrangement("v1")).part("score_mlp")
    without = run(arrangement("v1", extra_token="none")).part("score_mlp")
    importance = run(arrangement("v4")).part("score_mlp")
    yield Statement(
        "the score MLP gets a gradient",
        bool(whole),
        f"the score MLP's gradient is {shown(whole)} with the extra token",
    )
    yield Statement(
        "it gets one without the extra token",
        bool(without),
        f"it is {shown(without)} without the extra token, {shown(importance)} with log-importance",
    )


@check
def gather_gradient() -> Iterator[Statement]:
    """Gradients of gathered patches, by the indices of a fixed Top-K."""
    torch.manual_seed(0)
    tokens = torch.randn(4, PATCHES, 32, requires_grad=True)
    score = torch.rand(4, PATCHES, requires_grad=True)
    index = score.topk(64).indices
    gather_tokens(tokens, index).square().sum().backward()
    assert tokens.grad is not None
    share = float((tokens.grad.abs().sum(dim=-1) > 0).double().mean())
    yield Statement(
        "the gathered patches get no gradient",
        share == 0.0,
        f"{share:.0%} of the patches, all that are kept, get a gradient; the score gets "
        f"{'none' if score.grad is None else 'one'}",
    )


@check
def straight_through_decision() -> Iterator[Statement]:
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
    yield Statement(
        "forwards it is the hard decision",
        forward == 0.0,
        f"difference from the hard decision {forward:g}",
    )
    yield Statement(
        "backwards it is the soft one",
        backward == 0.0 and bool(of_soft.any()),
        f"difference from the soft decision's gradient {backward:g}",
    )


@check
def no_grad_patch_gradient() -> Iterator[Statement]:
    """The patches' gradient in v1 (attentions without gradients) and v2 (with), Top-K."""
    cut, whole = run(arrangement("v1")), run(arrangement("v2"))
    a, b = cut.patch_gradient(), whole.patch_gradient()
    alike = cosine(a, b)
    difference = float((a - b).norm() / b.norm())
    globals_ = listed([cut.part("globals"), whole.part("globals")])
    yield Statement(
        "the patches' gradient is cut by more than half",
        float(a.norm()) < 0.5 * float(b.norm()),
        f"the patches' gradient is {float(a.norm()):.3g} without, {float(b.norm()):.3g} with; "
        f"cosine {alike:.4f}, "
        f"relative difference {difference:.1%}; only the global features lose theirs ({globals_})",
    )


@check
def token_weighting() -> Iterator[Statement]:
    """The "fixed" version, which weighs the gathered patches by the straight-through decision."""
    fixed, topk = run(arrangement("fixed", decision="gumbel_ste")), run(arrangement("fixed"))
    gumbel, plain = fixed.part("patches"), topk.part("patches")
    assert gumbel is not None and plain is not None
    score = fixed.part("score_mlp")
    other = run(arrangement("fixed", decision="gumbel_ste"), noise_seed=2)
    same = all(torch.equal(fixed.decisions[m], other.decisions[m]) for m in fixed.decisions)
    yield Statement(
        "the score learns from the kept patches, at an ordinary size",
        score is not None and score > 0 and gumbel < 10 * plain,
        f"score MLP {shown(score)} (Top-K {shown(topk.part('score_mlp'))}); patches {gumbel:.3g} "
        f"against {plain:.3g}",
    )
    yield Statement(
        "the noise takes part in the choice of patches",
        not same,
        "two draws of the noise keep the same patches" if same else "the patches kept differ",
    )


# Dynamic loss scaling as DeMo trains with it (torch's defaults except for the growth, left out here).
INITIAL_SCALE = 65536.0
SMALL_WIDTH, SMALL_PATCHES, SMALL_BATCH = 32, 32, 2  # half precision is slow on a CPU


@contextmanager
def _saved_bytes() -> Iterator[list[int]]:
    """Bytes that autograd keeps for the backward pass, each storage counted once."""
    total = [0]
    seen: dict[int, Tensor] = {}  # keeps them alive, so that no address is used twice

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in seen:
            seen[storage.data_ptr()] = tensor
            total[0] += storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield total


@cache
def _cost(name: str) -> dict[str, float]:
    """`memory` in MiB and `arithmetic` in millions of operations of a training step."""
    torch.manual_seed(0)
    patches = {m: torch.randn(4, PATCHES, WIDTH, requires_grad=True) for m in MODALITIES}
    globals_ = {m: torch.randn(4, WIDTH, requires_grad=True) for m in MODALITIES}
    module = MultiModal(arrangement(name), WIDTH, PATCHES)
    with _saved_bytes() as total, FlopCounterMode(display=False) as counter:
        module(patches, globals_)["feature"].sum().backward()
    return {"memory": total[0] / 2**20, "arithmetic": counter.get_total_flops() / 1e6}


@check
def no_grad_saves(what: str, least: float) -> Iterator[Statement]:
    """`memory` that the backward pass needs kept, or `arithmetic` of both passes, in v1 and v2.

    v1 computes the attentions without gradients, v2 with. Arithmetic is counted and not timed, so that
    every machine gives the same verdict.

    Args:
        least: the share that must be saved to count as saving.
    """
    less, more = (_cost(name)[what] for name in ("v1", "v2"))
    unit = "MiB" if what == "memory" else "million operations in products of matrices"
    yield Statement(
        f"at least {least:.0%} less {what} in training",
        less <= (1 - least) * more,
        f"{less:.1f} {unit} instead of {more:.1f} for 4 images of SDTPS alone: "
        f"{1 - less / more:.0%} less",
    )


def _scaled_steps(config: SdtpsConfig, steps: int) -> tuple[int, float, Tensor]:
    """Train on noise under fp16 autocast with a loss scaler.

    Returns:
        Skipped steps, the last scale, and the gradients (unscaled, one row) before any step.
    """
    torch.manual_seed(0)
    encoder = nn.Linear(SMALL_WIDTH, SMALL_WIDTH)  # an encoder's last layer, in half precision
    module = MultiModal(config, SMALL_WIDTH, SMALL_PATCHES)
    both = nn.ModuleList([encoder, module])
    seed_weights(both)
    optimiser = torch.optim.Adam(both.parameters(), lr=3.5e-4)
    scaler = torch.amp.GradScaler("cpu", init_scale=INITIAL_SCALE, growth_interval=2000)
    patches = {m: torch.randn(SMALL_BATCH, SMALL_PATCHES, SMALL_WIDTH) for m in MODALITIES}
    globals_ = {m: torch.randn(SMALL_BATCH, SMALL_WIDTH) for m in MODALITIES}
    skipped, first = 0, torch.empty(0)
    for step in range(steps):
        optimiser.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            encoded = {name: encoder(tokens) for name, tokens in patches.items()}
            loss = module(encoded, globals_)["feature"].float().square().mean()
        before = scaler.get_scale()
        scaler.scale(loss).backward()
        if step == 0:
            grads = [p.grad for p in both.parameters() if p.grad is not None]
            first = torch.cat([g.flatten() for g in grads]) / before
        scaler.step(optimiser)
        scaler.update()
        skipped += scaler.get_scale() < before
    return skipped, scaler.get_scale(), first


@check
def loss_scale_collapse(steps: int = 40) -> Iterator[Statement]:
    """v2 with Gumbel at temperature 1 against Top-K and the log mask, fp16 with dynamic scaling."""
    topk_skipped, topk_scale, ordinary = _scaled_steps(arrangement("v2"), steps)
    gumbel = arrangement("v2", decision="gumbel_ste")
    skipped, scale, _ = _scaled_steps(gumbel, steps)
    repaired = arrangement("v2", decision="gumbel_ste", mask="log")
    log_skipped, log_scale, _ = _scaled_steps(repaired, steps)
    alive = ordinary[ordinary != 0].abs()
    smallest = torch.finfo(torch.float16).smallest_normal
    lost, at_start = (float((alive * s < smallest).double().mean()) for s in (scale, INITIAL_SCALE))
    yield Statement(
        "steps are skipped that Top-K takes",
        skipped > 10 and topk_skipped == 0,
        f"{skipped} of {steps} steps skipped (Top-K {topk_skipped}, log mask {log_skipped})",
    )
    yield Statement(
        "the scale falls below 1",
        scale < 1.0,
        f"the scale ends at {scale:.1e} (Top-K {topk_scale:g}, log mask {log_scale:g})",
    )
    yield Statement(
        "at that scale most of Top-K's gradients underflow in fp16",
        lost > 0.5,
        f"{lost:.0%} of Top-K's gradients underflow at that scale, {at_start:.0%} at the first one",
    )
