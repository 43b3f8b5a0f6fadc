"""SDTPS for three image modalities: each one's patches are selected with the other two as guides.

The two other modalities take the places of sparse and dense text. Arrangements of the axes:

    v0                  aggregation none                  K + 1 tokens a modality
    v1, v2, v3          aggregation single, mask subtract_1e10, decision gumbel_ste
    released            score attention_sum, normalise none, no_grad selection, aggregation single
    paper               aggregation dual: two selections, one led by each guide (equation 4)
    from 21f61b8 on     aggregation in_place: all N tokens, times D
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict, cast

import torch
from torch import Tensor, nn

from sdtps.aggregation import build_aggregation, merged
from sdtps.config.common import SdtpsConfig
from sdtps.selection import Selection, TokenSelection
from sdtps.system import distributed

MODALITIES = ("rgb", "nir", "tir")


class MultiModalOutput(TypedDict):
    tokens: dict[str, Tensor]  # [B, A + 1, C] a modality (K + 1 without aggregation, N in place)
    masks: dict[str, Tensor]  # D [B, N] a modality; of the first selection where there are two
    feature: Tensor  # [B, 3C] mean over each modality's tokens, concatenated


def other_modalities(modality: str) -> tuple[str, str]:
    """The two guides of a modality, in the order rgb, nir, tir."""
    first, second = (m for m in MODALITIES if m != modality)
    return first, second


class OneModality(nn.Module):
    """Selection and aggregation of one modality.

    Args:
        config: the SDTPS axes.
        width: C; patches: N.
    """

    def __init__(self, config: SdtpsConfig, width: int, patches: int) -> None:
        super().__init__()
        self.selection = TokenSelection(config, width)
        # The second of two branches (paper-version module), led by the other guide.
        self.selection_dense: TokenSelection | None = None
        if len(config.axes.aggregation.networks) > 1:
            self.selection_dense = TokenSelection(config, width, attends=False)
        self.aggregation = build_aggregation(config, width, patches)

    def forward(
        self,
        patches: Tensor,
        own: Tensor,
        guides: tuple[Tensor, Tensor],
        globals_: Tensor,
        uniform: Tensor | None = None,
    ) -> tuple[Tensor, Selection]:
        """Patches [B, N, C], own and guides' global features [B, C] -> output tokens and selection.

        Args:
            globals_: the global features of rgb, nir and tir in this order, [B, 3C].
            uniform: draws for the Gumbel noise: [B, N], or [2, B, N] with dual aggregation.
        """
        self_attention, attentions = self.selection.attentions(patches, own, guides)
        if self.selection_dense is None:
            chosen = [self.selection(patches, self_attention, attentions, uniform, globals_)]
        else:
            # Each branch's own guide first; equation 3 sees both, the released sum one a branch.
            seen = self.selection.axes.score.guides_of_a_branch
            draws = (None, None) if uniform is None else (uniform[0], uniform[1])
            chosen = [
                branch(patches, self_attention, led[:seen], drawn, globals_)
                for branch, led, drawn in zip(
                    (self.selection, self.selection_dense),
                    (attentions, attentions[::-1]),
                    draws,
                    strict=True,
                )
            ]
        return merged(self.aggregation, chosen), chosen[0]


class MultiModal(nn.Module):
    """Three `OneModality`; 365,157 parameters in the v1 arrangement at C = 512, N = 128, rho 0.5.

    Args:
        config: the SDTPS axes.
        width: C; patches: N of each modality.

    Raises:
        ConfigError: the ratios leave no aggregated token.
    """

    def __init__(self, config: SdtpsConfig, width: int, patches: int) -> None:
        super().__init__()
        self.config = config
        self.modalities = nn.ModuleDict({m: OneModality(config, width, patches) for m in MODALITIES})
        if config.relevance_share == "all":
            first, *others = (cast(OneModality, module) for module in self.modalities.values())
            for module in others:
                module.selection.relevances = first.selection.relevances

    def compile(self, **options: Any) -> None:
        """Compile what one modality does, for the three; noise is drawn outside."""
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
            uniform: injected draws for each modality's noise, [B, N], or [2, B, N] with dual
                aggregation; None = torch's generator, the same draws on any number of processes.
        """
        tokens: dict[str, Tensor] = {}
        masks: dict[str, Tensor] = {}
        all_globals = torch.cat([globals_[m] for m in MODALITIES], dim=-1)
        for modality, module in self.modalities.items():
            first, second = other_modalities(modality)
            drawn = self._draws(patches[modality]) if uniform is None else uniform[modality]
            tokens[modality], selection = module(
                patches[modality],
                globals_[modality],
                (globals_[first], globals_[second]),
                all_globals,
                drawn,
            )
            masks[modality] = selection.decision
        feature = torch.cat([tokens[m].mean(dim=-2) for m in MODALITIES], dim=-1)
        return {"tokens": tokens, "masks": masks, "feature": feature}

    def _draws(self, patches: Tensor) -> Tensor | None:
        """Draws for one modality's noise where its decision takes any now."""
        axes = self.config.axes
        if not (axes.decision.draws_noise and axes.decision.acts(self.config, self.training)):
            return None
        batch, count, _ = patches.shape
        dtype = torch.promote_types(patches.dtype, torch.float32)
        branches = max(1, len(axes.aggregation.networks))
        # At evaluation processes hold batches of different sizes, and noise changes no feature.
        draw = distributed.draws if self.training else torch.rand
        drawn = [draw(batch, count, dtype=dtype, device=patches.device) for _ in range(branches)]
        return drawn[0] if branches == 1 else torch.stack(drawn)
