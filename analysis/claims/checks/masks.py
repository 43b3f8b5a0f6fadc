"""Claims on masks that are no axis of this project: the cross-attention stages from v6 on.

Their formulas stand here in a few lines each, from the commits named, because nothing else needs them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from analysis.claims.checks.registry import check
from analysis.claims.verdicts import Statement
from sdtps.selection import gumbel_noise, kept_count

SOFTNESS = 0.3  # width of the soft mask's sigmoid (9fa81e3, 66c66c5)


class _CrossAttention(nn.Module):
    """One head of 9a18c62: the global feature asks, the patches answer; softmax over the patches."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)

    def forward(self, patches: Tensor, guide: Tensor) -> Tensor:
        """Patches [B, N, C], guide [B, C] -> scores [B, N]."""
        logits = torch.einsum("bc,bnc->bn", self.query(guide), self.key(patches))
        return (logits / math.sqrt(patches.shape[-1])).softmax(dim=-1)


@check
def hard_mask_attention() -> list[Statement]:
    """Gradients of cross-attention whose score only decides a hard Top-K mask on the patches."""
    torch.manual_seed(0)
    attention = nn.ModuleList(_CrossAttention(32) for _ in range(3))
    patches = torch.randn(4, 128, 32, requires_grad=True)
    score = torch.stack([a(patches, torch.randn(4, 32)) for a in attention]).mean(dim=0)
    index = score.topk(kept_count(128, 0.5)).indices
    mask = torch.zeros_like(score).scatter(1, index, 1.0)
    (patches * mask.unsqueeze(-1)).mean(dim=1).square().sum().backward()
    parameters = list(attention.parameters())
    learning = sum(p.grad is not None for p in parameters)
    soft = torch.sigmoid((score - score.mean(dim=1, keepdim=True)) / SOFTNESS)
    (patches * soft.unsqueeze(-1)).mean(dim=1).square().sum().backward()
    with_soft = sum(p.grad is not None for p in parameters)
    return [
        Statement(
            "some of its parameters get a gradient",
            learning > 0,
            f"{learning} of {len(parameters)} parameters with the hard mask, {with_soft} with a soft",
            {"hard": learning, "soft": with_soft, "parameters": len(parameters)},
        )
    ]


@check
def quantile_threshold(patches: int, ratios: list[float]) -> list[Statement]:
    """Patches above one half of sigmoid((score - quantile(1 - rho)) / 0.3), scores in (0, 1)."""
    torch.manual_seed(0)
    score = torch.sigmoid(torch.randn(256, patches))  # sigmoid of a z-score, as in 66c66c5
    statements = []
    for rho in ratios:
        threshold = score.quantile(1 - rho, dim=1, keepdim=True)
        mask = torch.sigmoid((score - threshold) / SOFTNESS)
        above = (mask > 0.5).sum(dim=1)
        least, most = int(above.min()), int(above.max())
        span = f"{least}" if least == most else f"{least} to {most}"
        statements.append(
            Statement(
                f"{rho:g} x {patches} within one",
                abs(least - rho * patches) <= 1 and abs(most - rho * patches) <= 1,
                f"{span} of {patches} at rho {rho:g}, weights {float(mask.quantile(0.01)):.2f} to "
                f"{float(mask.quantile(0.99)):.2f}",
                {"least": least, "most": most, "expected": rho * patches},
            )
        )
    return statements


@check
def gumbel_sigmoid() -> list[Statement]:
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
    return [
        Statement(
            "a patch is kept the more the higher its score, independently of the others",
            increasing,
            "the mean mask rises with the score",
        ),
        Statement(
            "its noise is that of a relaxed keep-or-drop decision, without bias",
            abs(bias) < 0.01,
            f"the noise has mean {bias:+.3f}, not {centre:+.3f}, and is above 0 in {on:.0%} of draws",
            {"bias": bias, "logistic": centre, "positive": on},
        ),
    ]
