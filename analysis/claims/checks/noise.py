"""Claims on the Gumbel noise and the soft decision: distributions, not single samples.

The noise is -log(-log(u + 1e-9) + 1e-9) with u uniform in [0, 1), in float32, as published.
"""

from __future__ import annotations

import math

import torch

from analysis.claims.checks.arrangements import PATCHES, WIDTH, arrangement
from analysis.claims.checks.registry import check
from analysis.claims.verdicts import Statement
from sdtps.selection import TokenSelection, gumbel_noise

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
) -> list[Statement]:
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

    return [
        Statement(
            f"a mean of {mean} is typical of {draws} draws",
            typical(mean, means),
            f"mean {true_mean:.3f}",
            {"mean": true_mean},
        ),
        Statement(
            f"a standard deviation of {deviation} is typical",
            typical(deviation, deviations),
            f"standard deviation {true_deviation:.3f}",
            {"deviation": true_deviation},
        ),
        Statement(
            f"no draw lies outside [{minimum}, {maximum}]",
            low >= minimum and high <= maximum,
            f"limits {low:.2f} and {high:.2f}; the largest of {draws} draws has the median "
            f"{float(highest.median()):.1f} and is {maximum} or more in {chance:.1%} of samples",
            {"low": low, "high": high, "chance": chance},
        ),
    ]


@check
def noise_clamp(limit: float) -> list[Statement]:
    """How often each side of the clamp acts."""
    noise = gumbel_noise(_uniform(4_000_000))
    low, _ = limits()
    above = float((noise > limit).double().mean())
    below = float((noise < -limit).double().mean())
    return [
        Statement(
            f"the lower bound -{limit:g} can act",
            low < -limit,
            f"the least possible noise is {low:.2f}, below -{limit:g} {below:.2%} of draws; "
            f"the upper bound acts on {above:.2%}",
            {"low": low, "below": below, "above": above},
        )
    ]


@check
def soft_maxima(maxima: list[list[float]]) -> list[Statement]:
    """Largest soft weight of 4 x 128 scores: of 2 x normal scores (as in the note), and of real ones.

    Args:
        maxima: pairs of temperature and claimed maximum.
    """
    samples = 2000
    generator = torch.Generator().manual_seed(SEED)
    invented = 2 * torch.randn(samples, 4, PATCHES, generator=generator)
    noise = gumbel_noise(torch.rand(samples, 4, PATCHES, generator=generator))
    real = _real_scores(samples * 4).reshape(samples, 4, PATCHES)
    statements = []
    for temperature, claimed in maxima:
        values = ((invented + noise) / temperature).softmax(dim=-1).amax(dim=(1, 2))
        low, middle, high = (float(values.quantile(q)) for q in (0.025, 0.5, 0.975))
        statements.append(
            Statement(
                f"{claimed} is typical at temperature {temperature:g} with invented scores",
                low <= claimed <= high,
                f"temperature {temperature:g}: 95 % in {low:.3f} to {high:.3f}, median {middle:.3f}",
                {"low": low, "high": high, "median": middle},
            )
        )
        values = ((real + noise) / temperature).softmax(dim=-1).amax(dim=(1, 2))
        middle = float(values.median())
        statements.append(
            Statement(
                f"{claimed} is the median, within 10 %, with the module's own scores",
                math.isclose(middle, claimed, rel_tol=0.1),
                f"with real scores {middle:.3f}",
                {"median": middle},
            )
        )
    return statements


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
            scores.append(module.score(tokens, own, others))
    once = torch.cat(scores)
    return once.repeat(math.ceil(rows / len(once)), 1)[:rows]  # fresh noise for each repetition


@check
def softmax_overflow(temperatures: list[float]) -> list[Statement]:
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
    return [
        Statement(
            "a softmax of score plus noise is not finite",
            bool(bad),
            f"not finite: {', '.join(bad)}" if bad else f"finite at temperatures {listed}",
            {"largest_input": most + high},
        )
    ]
