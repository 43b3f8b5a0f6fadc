"""Claims on shapes, counts and values of a forward pass."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from analysis.claims.checks.published import PATCHES, WIDTH, arrangement
from analysis.claims.verdicts import Statement, check
from sdtps.aggregation import TokenAggregation, aggregated_count
from sdtps.config.axes import straight_through
from sdtps.multimodal import MODALITIES, MultiModal
from sdtps.selection import TokenSelection, kept_count


def _count(says: str, claimed: int, measured: int) -> Statement:
    return Statement(f"{says}: {claimed}", measured == claimed, f"{measured} {says}")


@check
def token_counts(
    patches: int, keep_ratio: float, aggregation_ratio: float, expected: dict[str, int]
) -> Iterator[Statement]:
    """Token counts of real forward passes, against those that are claimed."""
    width = 8
    ratios = {"keep_ratio": keep_ratio, "aggregation_ratio": aggregation_ratio}
    inputs = {m: torch.randn(1, patches, width) for m in MODALITIES}
    globals_ = {m: torch.randn(1, width) for m in MODALITIES}
    with torch.no_grad():
        whole, plain = (
            MultiModal(arrangement(name, **ratios), width, patches)(inputs, globals_)
            for name in ("v1", "v0")
        )
    output = whole["tokens"]["rgb"].shape[1]
    found = {
        "kept patches": int(whole["masks"]["rgb"].sum()),
        "aggregated tokens": output - 1,
        "output tokens with the extra token": output,
        "output tokens with extra and class token": output + 1,
        "output tokens without aggregation": plain["tokens"]["rgb"].shape[1],
    }
    for says, claimed in expected.items():
        yield _count(says, claimed, found[says])


@check
def parameter_share(millions: float, share: float, model_millions: float) -> Iterator[Statement]:
    """SDTPS's parameters at full size; the whole model's count is the logged one."""
    module = MultiModal(arrangement("v1"), WIDTH, PATCHES)
    count = sum(p.numel() for p in module.parameters())
    part = count / (model_millions * 1e6)
    yield Statement(
        f"{millions} million parameters", round(count / 1e6, 2) == millions, f"{count:,} parameters"
    )
    yield Statement(
        f"a share of {share:.2%} in {model_millions} million",
        round(part, 4) == share,
        f"a share of {part:.4%}",
    )


@check
def aggregation_size(
    dim: int, ratio: float, hidden: int, aggregated: int, parameters: int
) -> Iterator[Statement]:
    """Hidden width and size of the weight network."""
    config = arrangement("v1", aggregation_hidden=ratio)
    module = TokenAggregation(config, dim, aggregated)
    linear = [m for m in module.modules() if isinstance(m, torch.nn.Linear)]
    count = sum(p.numel() for p in module.parameters())
    yield _count("hidden units", hidden, linear[0].out_features)
    yield _count(f"parameters at {aggregated} outputs", parameters, count)


@check
def aggregation_rows() -> Iterator[Statement]:
    """Row sums of the weights without a mask and with each form of it, half of the kept dropped."""
    torch.manual_seed(0)
    tokens = torch.randn(4, 64, 32)
    decision = (torch.rand(4, 64) < 0.5).float()
    decision[:, 0] = 1.0  # a row with nothing kept has no softmax
    score = torch.rand(4, 64)
    for mask in ("none", "subtract_1e10", "subtract_100", "log", "importance"):
        module = TokenAggregation(arrangement("v1", mask=mask), 32, 25)
        with torch.no_grad():
            rows = module.weights(module.networks[0], tokens, decision, score).sum(dim=-1)
        error = float((rows - 1).abs().max())
        yield Statement(
            f"rows sum to 1 with mask {mask}",
            error < 1e-5,
            f"off by {error:.1e} at most with mask {mask}",
        )


@check
def decision_is_ones() -> Iterator[Statement]:
    """The decision at the kept patches, and what the other order of the same sum would give."""
    torch.manual_seed(0)
    for temperature in (1.0, 5.0, 10.0):
        config = arrangement("v2", decision="gumbel_ste", temperature=temperature)
        module = TokenSelection(config, 32)
        tokens = torch.randn(16, PATCHES, 32)
        attention = torch.rand(3, 16, PATCHES)
        with torch.no_grad():
            selection = module(tokens, attention[0], list(attention[1:]))
        error = float((selection.kept_decision - 1).abs().max())
        yield Statement(
            f"exactly one at temperature {temperature:g}",
            error == 0.0,
            f"largest deviation {error:g} at temperature {temperature:g}",
        )
    soft = torch.rand(10_000)
    other = float((((torch.ones_like(soft) + soft) - soft) - 1).abs().max())
    exact = float((straight_through(torch.ones_like(soft), soft) - 1).abs().max())
    note = f"{exact:g} as written; summed the other way {other:.1e}, times 1e10 {other * 1e10:.0f}"
    yield Statement("the straight-through sum is exact", exact == 0.0, note)


@check
def aggregated_below_kept() -> Iterator[Statement]:
    """Counts of every published grid and pair of ratios."""
    grids = (
        (196, 0.5, 0.4),
        (576, 0.5, 0.4),
        (49, 0.8, 0.6),
        (144, 0.8, 0.6),
        (128, 0.5, 0.4),
        (128, 0.6, 0.4),
        (128, 0.7, 0.5),
    )
    for patches, rho, ratio in grids:
        kept, out = kept_count(patches, rho), aggregated_count(patches, ratio, rho)
        yield Statement(
            f"fewer for {patches} patches at {rho}, {ratio}",
            out < kept,
            f"{out} of {kept} ({patches} patches)",
        )


@check
def score_range(low: float, high: float) -> Iterator[Statement]:
    """Scores of equation 3 at initialisation and with a score MLP driven to its ends."""
    torch.manual_seed(0)
    module = TokenSelection(arrangement("v2"), WIDTH)
    tokens = torch.randn(32, PATCHES, WIDTH)
    guides = torch.randn(3, 32, WIDTH)
    extremes = []
    with torch.no_grad():
        for sharpness in (1.0, 100.0, 1e4):  # of the MLP before its sigmoid, as late in training
            linear = [m for m in module.modules() if isinstance(m, torch.nn.Linear)][-1]
            linear.weight.mul_(sharpness)
            own, others = module.attentions(tokens, guides[0], list(guides[1:]))
            score = module.score(own, others, module.predicted(tokens))
            extremes += [float(score.min()), float(score.max())]
        same = module.attentions(tokens, tokens.mean(dim=1), [tokens.mean(dim=1)] * 2)
        score = module.score(same[0], same[1], module.predicted(tokens))  # all three attentions agree
        extremes += [float(score.min()), float(score.max())]
    least, most = min(extremes), max(extremes)
    bound = 1 + 2 * module.config.beta
    yield Statement(
        f"scores below {low} or above {high} occur",
        least <= low or most >= high,
        f"scores from {least:.3f} to {most:.3f}; the formula's bounds are 0 and {bound:g}",
    )


@check
def decision_shape() -> Iterator[Statement]:
    """The decision [B, N] as the mask of K < N kept patches."""
    config = arrangement("v1")
    selection = TokenSelection(config, 32)
    aggregation = TokenAggregation(config, 32, 25)
    tokens, attention = torch.randn(2, PATCHES, 32), torch.rand(3, 2, PATCHES)
    with torch.no_grad():
        chosen = selection(tokens, attention[0], list(attention[1:]))
        shapes = f"decision {list(chosen.decision.shape)}, kept patches {list(chosen.tokens.shape)}"
        try:
            aggregation.merge(chosen.tokens, chosen.decision)
            fits = True
        except RuntimeError:  # torch: sizes that cannot be broadcast
            fits = False
        aggregation.merge(chosen.tokens, chosen.kept_decision)  # gathered, it fits
    yield Statement(
        "the aggregation takes it",
        fits,
        f"{shapes}: {'accepted' if fits else 'no fit'}; gathered at the kept patches it fits",
    )


@check
def soft_sum_shape() -> Iterator[Statement]:
    """Remedy A of design note 002: softmax weights over all patches, one weighted sum."""
    tokens, score = torch.randn(2, PATCHES, 32), torch.rand(2, PATCHES)
    summed = torch.bmm(score.softmax(dim=1).unsqueeze(1), tokens)
    config = arrangement("v2", decision="soft", aggregation="none", mask="none")
    rows = TokenSelection(config, 32).train().select(tokens, score).tokens
    yield Statement(
        "one token",
        summed.shape[1] == 1,
        f"output {list(summed.shape)}; one weight row for each kept rank gives {list(rows.shape)}",
    )
