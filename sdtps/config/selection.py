"""SDTPS as axes: every published arrangement is a point in this space.

Sources: `paper` = arXiv 2511.01390v1; `released` = the SEPS open-source release; `v0` to `v4` = the
stages of the re-identification module (v1 65c69af, v2 6334359, v3 f6f6c69, v4 8c5696a).
"""

from __future__ import annotations

import re
from typing import Literal

from pydantic import field_validator, model_validator

from sdtps.config.base import Fraction, Frozen, NonNegative, Positive, PositiveFraction

_SUBTRACT = re.compile(r"subtract_(\d+(?:\.\d+)?(?:e[+-]?\d+)?)")


class SdtpsConfig(Frozen):
    """How patches are scored, decided on, and merged. Defaults: the paper's method with Top-K."""

    # False removes the module: the baseline of every ablation.
    enabled: bool = True

    # Equation 3 with its score MLP; `attention_sum` is the released code's self + cross attention.
    score: Literal["eq3", "attention_sum"] = "eq3"
    # Norm of equation 2, unspecified in the paper; min-max per sample in every eq. 3 implementation.
    normalise: Literal["minmax", "none"] = "minmax"
    # beta of equation 3; not given in the paper, 0.25 in the paper-version module.
    beta: Fraction = 0.25

    # What is computed inside no_grad: `cross` = guide attentions only, `attention` = self and guide
    # (v0, v1, paper-version), `selection` = attentions and the selection itself (released).
    no_grad: Literal["none", "cross", "attention", "selection"] = "attention"

    # `gumbel_ste` = straight-through Gumbel-Softmax mask over a noise-free Top-K (v0 to v3);
    # `soft` = each output token is a weighted sum of all tokens in training, Top-K in evaluation.
    decision: Literal["topk", "gumbel_ste", "soft"] = "topk"
    # Gumbel-Softmax temperature tau; 1 in v1, 5 in v3.
    temperature: Positive = 1.0
    # Noise is clamped to [-noise_clamp, noise_clamp] (v3: 5); null = no clamp.
    noise_clamp: Positive | None = None
    # The paper-version module draws noise in evaluation too; v0 to v3 only in training.
    noise_in_eval: bool = False

    # How the decision D enters the aggregation's softmax. `subtract_C`: logits - (1 - D) * C, as
    # published with C = 1e10 (v1 to v3); `log`: logits + log D, the repair; `importance`: logits +
    # log softmax(score) (v4); `multiply`: D multiplies the tokens themselves ("fixed" version).
    mask: str = "none"
    # `dual`: two weight networks, summed (equation 4); `single`: one; `none`: kept tokens as they are.
    aggregation: Literal["none", "single", "dual"] = "dual"
    # The fused token of dropped patches; `softmax` of their scores (released, v0 to v5), `uniform`.
    extra_token: Literal["softmax", "uniform", "none"] = "softmax"

    # rho: K = ceil(rho x N). Paper: ViT 0.5, Swin 0.8.
    keep_ratio: PositiveFraction = 0.5
    # A = int(N x aggregation_ratio x rho). Released defaults: ViT 0.4, Swin 0.6.
    aggregation_ratio: PositiveFraction = 0.4
    # Hidden width of the weight network = int(C x this); 0.2 everywhere (512 gives 102).
    aggregation_hidden: PositiveFraction = 0.2

    # Weight of the SDTPS branch's loss (re-identification; 1 in v1, 2.0 from af9cf51 on).
    loss_weight: NonNegative = 1.0

    @field_validator("mask")
    @classmethod
    def _mask_is_known(cls, mask: str) -> str:
        if mask in ("none", "log", "importance", "multiply"):
            return mask
        match = _SUBTRACT.fullmatch(mask)
        if match is None or float(match.group(1)) <= 0:
            raise ValueError(
                f"'{mask}' is not a mask; allowed: none, log, importance, multiply, or subtract_C "
                "with a positive number C such as subtract_1e10"
            )
        return f"subtract_{float(match.group(1)):g}".replace("e+", "e")  # one spelling, one identity

    @model_validator(mode="after")
    def _parts_fit(self) -> SdtpsConfig:
        if self.aggregation == "none" and self.mask not in ("none", "multiply"):
            raise ValueError(f"mask '{self.mask}' acts inside the aggregation, but aggregation is none")
        if self.decision == "soft" and self.mask == "multiply":
            raise ValueError("mask 'multiply' needs a hard decision (topk or gumbel_ste), not soft")
        return self

    @property
    def mask_constant(self) -> float | None:
        """C of `subtract_C`; None for the other masks."""
        match = _SUBTRACT.fullmatch(self.mask)
        return float(match.group(1)) if match else None
