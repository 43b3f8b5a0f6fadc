"""SDTPS for three image modalities: each one's patches are selected with the other two as guides.

The two other modalities take the places of sparse and dense text. Arrangements of the axes:

    v0                  aggregation none                  K + 1 tokens a modality
    v1, v2, v3          aggregation single, mask subtract_1e10, decision gumbel_ste
    released            score attention_sum, normalise none, no_grad selection, aggregation single
    paper               aggregation dual: two selections, one led by each guide (equation 4)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from sdtps.aggregation import DualTokenAggregation, TokenAggregation, aggregated_count
from sdtps.config.selection import SdtpsConfig
from sdtps.selection import Selection, TokenSelection

MODALITIES = ("rgb", "nir", "tir")


class MultiModalOutput(TypedDict):
    tokens: dict[str, Tensor]  # [B, A + 1, C] a modality (K + 1 without aggregation)
    masks: dict[str, Tensor]  # D [B, N] a modality; of the first selection where there are two
    scores: dict[str, Tensor]  # [B, N] a modality, of the same selection
    feature: Tensor  # [B, 3C] mean over each modality's tokens, concatenated


def other_modalities(modality: str) -> tuple[str, str]:
    """The two guides of a modality, in the order rgb, nir, tir."""
    first, second = (m for m in MODALITIES if m != modality)
    return first, second


class ModalitySdtps(nn.Module):
    """Selection and aggregation of one modality.

    Args:
        config: the SDTPS axes.
        width: C; patches: N.
    """

    def __init__(self, config: SdtpsConfig, width: int, patches: int) -> None:
        super().__init__()
        self.selection = TokenSelection(config, width)
        self.selection_dense: TokenSelection | None = None
        self.aggregation: TokenAggregation | DualTokenAggregation | None = None
        if config.aggregation == "none":
            return
        outputs = aggregated_count(patches, config.aggregation_ratio, config.keep_ratio)
        if config.aggregation == "single":
            self.aggregation = TokenAggregation(config, width, outputs)
        else:
            self.selection_dense = TokenSelection(config, width)
            self.aggregation = DualTokenAggregation(config, width, outputs)

    def forward(
        self, patches: Tensor, own: Tensor, guides: tuple[Tensor, Tensor], uniform: Tensor | None = None
    ) -> tuple[Tensor, Selection]:
        """Patches [B, N, C], own and guides' global features [B, C] -> output tokens and selection.

        Args:
            uniform: draws for the Gumbel noise: [B, N], or [2, B, N] with dual aggregation.
        """
        self_attention, attentions = self.selection.attentions(patches, own, guides)
        if self.selection_dense is None:
            selection = self.selection(patches, self_attention, attentions, uniform)
            output = selection.tokens
            if isinstance(self.aggregation, TokenAggregation):
                output = self.aggregation(
                    selection.tokens, selection.kept_decision, selection.kept_score
                )
            return _with_extra(output, selection.extra), selection
        # Two branches (paper-version module): each sees both guides in equation 3, its own first;
        # the released sum has one guide a branch.
        sparse_guides, dense_guides = attentions, attentions[::-1]
        if self.selection.config.score == "attention_sum":
            sparse_guides, dense_guides = sparse_guides[:1], dense_guides[:1]
        draws = (None, None) if uniform is None else (uniform[0], uniform[1])
        sparse = self.selection(patches, self_attention, sparse_guides, draws[0])
        dense = self.selection_dense(patches, self_attention, dense_guides, draws[1])
        assert isinstance(self.aggregation, DualTokenAggregation)
        extra = None
        if sparse.extra is not None and dense.extra is not None:
            extra = (sparse.extra + dense.extra) / 2
        return _with_extra(self.aggregation.of(sparse, dense), extra), sparse


def _with_extra(tokens: Tensor, extra: Tensor | None) -> Tensor:
    return tokens if extra is None else torch.cat([tokens, extra], dim=-2)


class MultiModalSdtps(nn.Module):
    """Three `ModalitySdtps`; 365,157 parameters in the v1 arrangement at C = 512, N = 128, rho 0.5.

    Args:
        config: the SDTPS axes.
        width: C; patches: N of each modality.

    Raises:
        ConfigError: the ratios leave no aggregated token.
    """

    def __init__(self, config: SdtpsConfig, width: int, patches: int) -> None:
        super().__init__()
        self.modalities = nn.ModuleDict({m: ModalitySdtps(config, width, patches) for m in MODALITIES})

    def compile(self, **options: Any) -> None:
        """Compile what one modality does, for the three; noise is drawn as without compilation."""
        for module in self.modalities.values():
            module.compile(**options)

    def forward(
        self,
        patches: Mapping[str, Tensor],
        globals_: Mapping[str, Tensor],
        uniform: Mapping[str, Tensor] | None = None,
    ) -> MultiModalOutput:
        """Patches [B, N, C] and global features [B, C] of rgb, nir and tir.

        Args:
            uniform: injected draws of the Gumbel noise a modality; torch's generator if None.
        """
        tokens: dict[str, Tensor] = {}
        masks: dict[str, Tensor] = {}
        scores: dict[str, Tensor] = {}
        for modality, module in self.modalities.items():
            first, second = other_modalities(modality)
            tokens[modality], selection = module(
                patches[modality],
                globals_[modality],
                (globals_[first], globals_[second]),
                None if uniform is None else uniform[modality],
            )
            masks[modality], scores[modality] = selection.decision, selection.score
        feature = torch.cat([tokens[m].mean(dim=-2) for m in MODALITIES], dim=-1)
        return {"tokens": tokens, "masks": masks, "scores": scores, "feature": feature}
