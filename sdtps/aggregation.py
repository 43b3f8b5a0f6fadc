"""Token aggregation: K kept tokens become A tokens, each a convex combination of the kept ones.

    logits = MLP(LN(tokens))^T scale     [..., A, K]
    output = softmax over K (logits, masked by the decision) x tokens        equation 4, one branch

How the decision D [..., K] enters the softmax is the `mask` axis. The published form subtracts
(1 - D) 1e10. Its forward is right, but d logits / d D = 1e10: a straight-through D then receives
1e10 times every other gradient. `log` adds log D instead, whose gradient is bounded because the
softmax is proportional to D.

The cross-net has a path of its own (crossnet.py, `_choose` and `_aggregated`): it scores pairs without
forming their tokens. A new way to aggregate is needed in both.

Masks and softmax are computed in float32 at least and outside autocast: (1 - D) 1e10 overflows float16.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from sdtps.config.common import SdtpsConfig
from sdtps.selection import Selection, full_precision, mix_tokens, no_autocast
from sdtps.system.errors import ConfigError


def aggregated_count(patches: int, aggregation_ratio: float, keep_ratio: float) -> int:
    """A = int(N x aggregation_ratio x rho), truncated and multiplied in this order, as published.

    Raises:
        ConfigError: no token would be left.
    """
    count = int(patches * aggregation_ratio * keep_ratio)
    if count < 1:
        raise ConfigError(
            f"sdtps: int({patches} patches x aggregation_ratio {aggregation_ratio} x keep_ratio "
            f"{keep_ratio}) = 0 aggregated tokens; raise a ratio or use more patches"
        )
    return count


class WeightNetwork(nn.Sequential):
    """LN -> Linear(C, int(C x hidden)) -> GELU -> Linear(., A): logits [..., K, A] of one branch."""

    def __init__(self, width: int, outputs: int, hidden_ratio: float) -> None:
        hidden = max(1, int(width * hidden_ratio))
        super().__init__(
            nn.LayerNorm(width), nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, outputs)
        )


class TokenAggregation(nn.Module):
    """Merges the kept tokens of one selection (`single`), or of two (`dual`, equation 4).

    With two, each has a weight network, their outputs are added, and one scale serves both, as in the
    paper-version module; the weights of an output then add to 2. At C = 512 and A = 39: 57,368
    parameters, or 114,735 with two.

    Args:
        config: the SDTPS axes; `aggregation` is not `none`.
        width: C; outputs: A.
    """

    def __init__(self, config: SdtpsConfig, width: int, outputs: int) -> None:
        super().__init__()
        self.mask = config.axes.mask
        self.names = config.axes.aggregation.networks
        self.outputs = outputs
        self.scale = nn.Parameter(torch.ones(1, 1, 1))
        for name in self.names:
            self.add_module(name, WeightNetwork(width, outputs, config.aggregation_hidden))

    @property
    def networks(self) -> list[WeightNetwork]:
        """One for each selection that is merged."""
        return [cast(WeightNetwork, getattr(self, name)) for name in self.names]

    def weights(
        self,
        network: WeightNetwork,
        tokens: Tensor,
        decision: Tensor | None = None,
        score: Tensor | None = None,
    ) -> Tensor:
        """Rows [..., A, K] that sum to 1, for kept tokens [..., K, C] with D and scores [..., K]."""
        logits = full_precision(network(tokens).transpose(-1, -2) * self.scale.squeeze())
        decision = None if decision is None else full_precision(decision)
        score = None if score is None else full_precision(score)
        with no_autocast(tokens):
            return self.mask.masked(logits, decision, score).softmax(dim=-1)

    def merge(
        self,
        tokens: Tensor,
        decision: Tensor | None = None,
        score: Tensor | None = None,
        network: int = 0,
    ) -> Tensor:
        """Kept tokens [..., K, C] of one selection, D and scores [..., K] -> [..., A, C].

        Without the decision (or the score, for a mask that reads it) nothing is masked.
        """
        return mix_tokens(self.weights(self.networks[network], tokens, decision, score), tokens)

    def forward(self, *selections: Selection) -> Tensor:
        """One selection for each weight network -> [..., A, C]."""
        parts = [
            self.merge(chosen.tokens, chosen.kept_decision, chosen.kept_score, network)
            for network, chosen in enumerate(selections)
        ]
        return sum(parts[1:], parts[0])


def build_aggregation(config: SdtpsConfig, width: int, patches: int) -> TokenAggregation | None:
    """The aggregation of a configuration for N patches of C channels; None where there is none.

    Raises:
        ConfigError: the ratios leave no aggregated token.
    """
    if not config.axes.aggregation.networks:
        return None
    outputs = aggregated_count(patches, config.aggregation_ratio, config.keep_ratio)
    return TokenAggregation(config, width, outputs)


def merged(aggregation: TokenAggregation | None, chosen: Sequence[Selection]) -> Tensor:
    """Tokens of one or two selections [..., A or K, C], with the mean of their extra tokens behind.

    A single weight network merges the first selection only. Without aggregation the kept tokens of all
    stand one after the other.
    """
    if aggregation is None:
        tokens = [selection.tokens for selection in chosen]
    else:
        chosen = chosen[: len(aggregation.names)]
        tokens = [aggregation(*chosen)]
    extras = [selection.extra for selection in chosen if selection.extra is not None]
    if extras:
        tokens.append(sum(extras[1:], extras[0]) / len(extras))
    return torch.cat(tokens, dim=-2)
