"""Gumbel noise, temperature and the soft masks of the cross-attention versions (9a18c62 to 66c66c5)."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import nn

from analysis.claims.checks.published import PATCHES, WIDTH, arrangement
from analysis.claims.verdicts import Statement, check
from sdtps.config import SdtpsConfig
from sdtps.config.axes import gumbel_noise, sigmoid_above_mean, sigmoid_above_quantile
from sdtps.selection import TokenSelection, kept_count

SEED = 20251205


def _uniform(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(SEED))


def limits() -> tuple[float, float]:
    """Least and largest noise that float32 draws can give, by the guards in the logarithms."""
    largest = 1 - torch.finfo(torch.float32).eps / 2  # the largest float below 1
    ends = gumbel_noise(torch.tensor([0.0, largest]))
    return float(ends[0]), float(ends[1])


@check
def noise_statistics(
    draws: int, minimum: float, maximum: float, mean: float, deviation: float
) -> Iterator[Statement]:
    """The claimed figures against the distribution of `draws` draws."""
    noise = gumbel_noise(_uniform(4000, draws)).double()
    true_mean, true_deviation = float(noise.mean()), float(noise.std())
    means, deviations = noise.mean(dim=1), noise.std(dim=1)
    highest = noise.amax(dim=1)
    low, high = limits()
    chance = float((highest >= maximum).double().mean())

    def typical(value: float, sample: torch.Tensor) -> bool:
        """Within the central 95 % of the samples' own values."""
        return bool(sample.quantile(0.025) <= value <= sample.quantile(0.975))

    yield Statement(
        f"a mean of {mean} is typical of {draws} draws", typical(mean, means), f"mean {true_mean:.3f}"
    )
    yield Statement(
        f"a standard deviation of {deviation} is typical",
        typical(deviation, deviations),
        f"standard deviation {true_deviation:.3f}",
    )
    yield Statement(
        f"no draw lies outside [{minimum}, {maximum}]",
        low >= minimum and high <= maximum,
        f"limits {low:.2f} and {high:.2f}; the largest of {draws} draws has the median "
        f"{float(highest.median()):.1f} and is {maximum} or more in {chance:.1%} of samples",
    )


@check
def noise_clamp(limit: float) -> Iterator[Statement]:
    """How often each side of the clamp acts."""
    noise = gumbel_noise(_uniform(4_000_000))
    low, _ = limits()
    above = float((noise > limit).double().mean())
    below = float((noise < -limit).double().mean())
    yield Statement(
        f"the lower bound -{limit:g} can act",
        low < -limit,
        f"the least possible noise is {low:.2f}; {below:.2%} of draws lie below -{limit:g}, "
        f"{above:.2%} above {limit:g}",
    )


@check
def soft_maxima(maxima: list[list[float]]) -> Iterator[Statement]:
    """Largest soft weight of 4 x 128 scores: of 2 x normal scores (as in the note), and of real ones.

    Args:
        maxima: pairs of temperature and claimed maximum.
    """
    samples = 2000
    generator = torch.Generator().manual_seed(SEED)
    invented = 2 * torch.randn(samples, 4, PATCHES, generator=generator)
    noise = gumbel_noise(torch.rand(samples, 4, PATCHES, generator=generator))
    real = _real_scores(samples * 4).reshape(samples, 4, PATCHES)
    for temperature, claimed in maxima:
        values = ((invented + noise) / temperature).softmax(dim=-1).amax(dim=(1, 2))
        low, middle, high = (float(values.quantile(q)) for q in (0.025, 0.5, 0.975))
        yield Statement(
            f"{claimed} is typical at temperature {temperature:g} with invented scores",
            low <= claimed <= high,
            f"temperature {temperature:g}: 95 % in {low:.3f} to {high:.3f}, median {middle:.3f}",
        )
        values = ((real + noise) / temperature).softmax(dim=-1).amax(dim=(1, 2))
        middle = float(values.median())
        yield Statement(
            f"{claimed} is the median, within 10 %, with the module's own scores",
            math.isclose(middle, claimed, rel_tol=0.1),
            f"with real scores {middle:.3f}",
        )


def _real_scores(rows: int) -> torch.Tensor:
    """Scores of equation 3 at initialisation, [rows, N], from as many passes as it takes."""
    torch.manual_seed(SEED)
    module = TokenSelection(arrangement("v2"), WIDTH)
    batch = 64
    scores = []
    with torch.no_grad():
        for _ in range(math.ceil(min(rows, 512) / batch)):
            tokens, guides = torch.randn(batch, PATCHES, WIDTH), torch.randn(3, batch, WIDTH)
            own, others = module.attentions(tokens, guides[0], list(guides[1:]))
            scores.append(module.score(own, others, module.predicted(tokens)))
    once = torch.cat(scores)
    return once.repeat(math.ceil(rows / len(once)), 1)[:rows]  # fresh noise for each repetition


@check
def softmax_overflow(temperatures: list[float]) -> Iterator[Statement]:
    """The softmax on the largest score plus the largest noise that can occur, float32 and float16."""
    low, high = limits()
    bad = []
    most = 1 + 2 * arrangement("v2").beta
    for dtype in (torch.float32, torch.float16):
        for temperature in temperatures:
            row = torch.full((1, PATCHES), low)
            row[0, 0] = most + high
            soft = (row.to(dtype) / temperature).softmax(dim=-1)
            noisy = 6 * torch.randn(64, PATCHES) + gumbel_noise(_uniform(64, PATCHES))
            wide = (noisy.to(dtype) / temperature).softmax(dim=-1)  # scores as the note imagines them
            if not (soft.isfinite().all() and wide.isfinite().all()):
                bad.append(f"{dtype} at {temperature:g}")
    listed = ", ".join(f"{t:g}" for t in temperatures)
    yield Statement(
        "a softmax of score plus noise is not finite",
        bool(bad),
        f"not finite: {', '.join(bad)}" if bad else f"finite at temperatures {listed}",
    )


@check
def hard_mask_attention() -> Iterator[Statement]:
    """Gradients of cross-attention whose score only decides a hard Top-K mask on the patches.

    Three heads (9a18c62): the global feature asks, the patches answer; softmax over the patches.
    """
    torch.manual_seed(0)
    heads = [(nn.Linear(32, 32), nn.Linear(32, 32)) for _ in range(3)]
    patches = torch.randn(4, 128, 32, requires_grad=True)
    logits = [torch.einsum("bc,bnc->bn", q(torch.randn(4, 32)), k(patches)) for q, k in heads]
    score = torch.stack([(row / math.sqrt(32)).softmax(dim=-1) for row in logits]).mean(dim=0)
    hard = torch.zeros_like(score).scatter(1, score.topk(kept_count(128, 0.5)).indices, 1.0)
    soft = sigmoid_above_mean(hard, score, None, SdtpsConfig())
    parameters = [p for head in heads for part in head for p in part.parameters()]
    learning = []
    for mask in (hard, soft):
        (patches * mask.unsqueeze(-1)).mean(dim=1).square().sum().backward(retain_graph=True)
        learning.append(sum(p.grad is not None for p in parameters))
    yield Statement(
        "some of its parameters get a gradient",
        learning[0] > 0,
        f"{learning[0]} of {len(parameters)} parameters with the hard mask, {learning[1]} with a soft",
    )


@check
def quantile_threshold(patches: int, ratios: list[float]) -> Iterator[Statement]:
    """Patches above one half of sigmoid((score - quantile(1 - rho)) / 0.3), scores in (0, 1)."""
    torch.manual_seed(0)
    score = torch.sigmoid(torch.randn(256, patches))  # sigmoid of a z-score, as in 66c66c5
    for rho in ratios:
        mask = sigmoid_above_quantile(score, score, None, SdtpsConfig(keep_ratio=rho))
        above = (mask > 0.5).sum(dim=1)
        least, most = int(above.min()), int(above.max())
        span = f"{least}" if least == most else f"{least} to {most}"
        yield Statement(
            f"{rho:g} x {patches} within one",
            abs(least - rho * patches) <= 1 and abs(most - rho * patches) <= 1,
            f"{span} of {patches} at rho {rho:g}, weights {float(mask.quantile(0.01)):.2f} to "
            f"{float(mask.quantile(0.99)):.2f}",
        )


@check
def gumbel_sigmoid() -> Iterator[Statement]:
    """The noise of 66c66c5, sigmoid((score + g - 1/2) / tau), against the logistic noise it stands for.

    A relaxed Bernoulli decision is the sigmoid of logit plus the difference of two Gumbel draws, which
    is logistic, symmetric about 0 (Maddison et al. 2017). There is one draw in the code.
    """
    generator = torch.Generator().manual_seed(0)
    draws = torch.rand(2, 1_000_000, generator=generator)
    one = gumbel_noise(draws[0])
    logistic = one - gumbel_noise(draws[1])
    bias, centre = float(one.mean()), float(logistic.mean())
    on = float((one > 0).double().mean())
    soft = torch.sigmoid(torch.linspace(-3, 3, 7)[:, None] + one[:1000] - 0.5)
    increasing = bool((soft.mean(dim=1).diff() > 0).all())
    yield Statement(
        "a patch is kept the more the higher its score, independently of the others",
        increasing,
        "the mean mask rises with the score",
    )
    yield Statement(
        "its noise is that of a relaxed keep-or-drop decision, without bias",
        abs(bias) < 0.01,
        f"the noise has mean {bias:+.3f}, not {centre:+.3f}, and is above 0 in {on:.0%} of draws",
    )
