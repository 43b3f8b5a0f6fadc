"""Token aggregation: K kept tokens become A tokens, each a convex combination of the kept ones.

    logits = MLP(LN(tokens))^T scale     [..., A, K]
    output = softmax over K (logits, masked by the decision) x tokens        equation 4, one branch

How the decision D [..., K] enters the softmax is the `mask` axis. The published form subtracts
(1 - D) 1e10. Its forward is right, but d logits / d D = 1e10: a straight-through D then receives
1e10 times every other gradient. `log` adds log D instead, whose gradient is bounded because the
softmax is proportional to D.

Masks and softmax are computed in float32 at least and outside autocast: (1 - D) 1e10 overflows float16.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sdtps.config.selection import SdtpsConfig
from sdtps.errors import ConfigError
from sdtps.selection import Selection, full_precision, mix_tokens

IMPORTANCE_EPSILON = 1e-8  # v4


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


def mask_logits(
    logits: Tensor,
    mask: str,
    *,
    constant: float | None = None,
    decision: Tensor | None = None,
    score: Tensor | None = None,
) -> Tensor:
    """Aggregation logits [..., A, K] with the decision put in, in float32 at least.

    Args:
        mask: as in `SdtpsConfig`; `none` and `multiply` leave the logits alone.
        constant: C of `subtract_C`.
        decision: D [..., K]; without it only `importance` acts.
        score: kept scores [..., K], for `importance`.
    """
    logits = full_precision(logits)
    if mask == "importance" and score is not None:
        importance = full_precision(score).softmax(dim=-1)
        return logits + torch.log(importance + IMPORTANCE_EPSILON).unsqueeze(-2)
    if decision is None or mask in ("none", "multiply", "importance"):
        return logits
    decision = full_precision(decision)
    if mask == "log":
        # The floor only touches what is dropped: log of a kept 1 is exactly 0, in value and slope.
        floor = torch.finfo(decision.dtype).tiny
        return logits + torch.log(decision.clamp_min(floor)).unsqueeze(-2)
    if constant is None:
        raise ValueError(f"mask {mask} needs its constant")
    return logits - ((1 - decision) * constant).unsqueeze(-2)


class WeightNetwork(nn.Sequential):
    """LN -> Linear(C, int(C x hidden)) -> GELU -> Linear(., A): logits [..., K, A] of one branch."""

    def __init__(self, width: int, outputs: int, hidden_ratio: float) -> None:
        hidden = max(1, int(width * hidden_ratio))
        super().__init__(
            nn.LayerNorm(width), nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, outputs)
        )


class _Aggregation(nn.Module):
    """What single and dual aggregation share: the mask axis, the scale, the weighted sum."""

    def __init__(self, config: SdtpsConfig) -> None:
        super().__init__()
        self.mask = config.mask
        self.constant = config.mask_constant
        self.scale = nn.Parameter(torch.ones(1, 1, 1))

    def weights(
        self,
        network: WeightNetwork,
        tokens: Tensor,
        decision: Tensor | None = None,
        score: Tensor | None = None,
    ) -> Tensor:
        """Rows [..., A, K] that sum to 1 over the kept tokens [..., K, C]."""
        logits = network(tokens).transpose(-1, -2) * self.scale.squeeze()
        masked = mask_logits(logits, self.mask, constant=self.constant, decision=decision, score=score)
        return masked.softmax(dim=-1)


class TokenAggregation(_Aggregation):
    """One weight network (released; v1 to v5): 57,368 parameters at C = 512, A = 39."""

    def __init__(self, config: SdtpsConfig, width: int, outputs: int) -> None:
        super().__init__(config)
        self.weight = WeightNetwork(width, outputs, config.aggregation_hidden)

    def forward(
        self, tokens: Tensor, decision: Tensor | None = None, score: Tensor | None = None
    ) -> Tensor:
        """Kept tokens [..., K, C], D and scores at them [..., K] -> [..., A, C]."""
        return mix_tokens(self.weights(self.weight, tokens, decision, score), tokens)


class DualTokenAggregation(_Aggregation):
    """Equation 4: a weight network each for the sparse and the dense branch, outputs added.

    One scale for both, as in the paper-version module; the summed weights of an output add to 2.
    114,735 parameters at C = 512, A = 39.
    """

    def __init__(self, config: SdtpsConfig, width: int, outputs: int) -> None:
        super().__init__(config)
        self.weight_sparse = WeightNetwork(width, outputs, config.aggregation_hidden)
        self.weight_dense = WeightNetwork(width, outputs, config.aggregation_hidden)

    def forward(
        self,
        sparse: Tensor,
        dense: Tensor,
        sparse_decision: Tensor | None = None,
        dense_decision: Tensor | None = None,
        sparse_score: Tensor | None = None,
        dense_score: Tensor | None = None,
    ) -> Tensor:
        """Kept tokens of both branches, [..., K, C] each -> [..., A, C]."""
        from_sparse = self.weights(self.weight_sparse, sparse, sparse_decision, sparse_score)
        from_dense = self.weights(self.weight_dense, dense, dense_decision, dense_score)
        return mix_tokens(from_sparse, sparse) + mix_tokens(from_dense, dense)

    def of(self, sparse: Selection, dense: Selection) -> Tensor:
        """`forward` on two selections."""
        return self(
            sparse.tokens,
            dense.tokens,
            sparse.kept_decision,
            dense.kept_decision,
            sparse.kept_score,
            dense.kept_score,
        )
