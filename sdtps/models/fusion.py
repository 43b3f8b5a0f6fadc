"""DeMo's own fusion of three modalities: PIFE, HDM and ATMoE (AAAI 2025).

PIFE    class token and mean patch of a modality -> its global feature
HDM     seven learnable queries, one for each non-empty set of modalities, attend to the set's tokens
ATMoE   an expert for each of the seven vectors, weighed by an attention gate
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, cast

import torch
from torch import Tensor, nn

from sdtps import distributed
from sdtps.multimodal import MODALITIES

# The non-empty sets of modalities in DeMo's order, by first letters.
SETS = ("r", "n", "t", "rn", "rt", "nt", "rnt")
_LETTER = {modality[0]: modality for modality in MODALITIES}


class QuickGELU(nn.Module):
    """x sigmoid(1.702 x), CLIP's activation."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


class Pife(nn.ModuleDict):
    """Patch-integrated feature: QuickGELU(Linear(LN([class token, mean patch]))), one a modality.

    1.58 M parameters at C = 512.
    """

    def __init__(self, width: int) -> None:
        super().__init__(
            {
                m: nn.Sequential(nn.LayerNorm(2 * width), nn.Linear(2 * width, width), QuickGELU())
                for m in MODALITIES
            }
        )

    def forward(
        self, patches: Mapping[str, Tensor], classes: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Patches [B, N, C] and class tokens [B, C] a modality -> global features [B, C]."""
        return {
            m: reduce(torch.cat([classes[m], patches[m].mean(dim=1)], dim=-1))
            for m, reduce in self.items()
        }


class Hdm(nn.Module):
    """Hierarchical decoupling: seven vectors, one for each set of modalities.

    Args:
        width: C, a multiple of 64 (heads of 64).
    """

    def __init__(self, width: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.tokens = nn.ParameterDict(
            {s: nn.Parameter(width**-0.5 * torch.randn(1, 1, width)) for s in SETS}
        )
        self.attention = nn.ModuleDict(
            {
                s: nn.MultiheadAttention(width, max(1, width // 64), dropout, batch_first=True)
                for s in SETS
            }
        )

    def forward(self, patches: Mapping[str, Tensor], globals_: Mapping[str, Tensor]) -> Tensor:
        """Patches [B, N, C] and global features [B, C] a modality -> [B, 7, C] in the order of SETS."""
        sequences = {m: torch.cat([globals_[m].unsqueeze(1), patches[m]], dim=1) for m in MODALITIES}
        vectors = []
        for name in SETS:
            members = torch.cat([sequences[_LETTER[letter]] for letter in name], dim=1)
            query = self.tokens[name].expand(len(members), -1, -1).to(members.dtype)
            vectors.append(self.attention[name](query, members, members, need_weights=False)[0])
        return torch.cat(vectors, dim=1)


class GateAttention(nn.Module):
    """Gate of ATMoE: softmax over the seven vectors of q k / sqrt(C / heads), per head."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.bottleneck = nn.Sequential(
            nn.Linear(len(SETS) * width, width), QuickGELU(), distributed.BatchNorm1d(width)
        )
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)

    def forward(self, vectors: Tensor) -> Tensor:
        """[B, 7, C] -> [B, heads, 7], rows sum to 1."""
        batch, count, width = vectors.shape
        head = width // self.heads
        query = self.query(self.bottleneck(vectors.flatten(1))).view(batch, self.heads, 1, head)
        key = self.key(vectors).view(batch, count, self.heads, head).transpose(1, 2)
        return ((query * key).sum(dim=-1) * head**-0.5).softmax(dim=-1)


class Expert(nn.Sequential):
    """One head's slice of one vector: Linear, QuickGELU, BatchNorm."""

    def __init__(self, width: int) -> None:
        super().__init__(nn.Linear(width, width), QuickGELU(), distributed.BatchNorm1d(width))


class AtMoe(nn.Module):
    """Attention-triggered mixture of experts: experts' outputs times their gate, concatenated.

    Args:
        width: C; heads: gate heads, 4 (RGBNT201) or 8 (RGBNT100, MSVR310).
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.gate = GateAttention(width, heads)
        self.experts = nn.ModuleList(  # [head][vector]
            nn.ModuleList(Expert(width // heads) for _ in SETS) for _ in range(heads)
        )

    def forward(self, vectors: Tensor) -> Tensor:
        """[B, 7, C] -> [B, 7C], vector by vector, each one's heads side by side."""
        gate = self.gate(vectors)
        slices = vectors.chunk(self.heads, dim=-1)
        experts = [cast(nn.ModuleList, of_head) for of_head in self.experts]
        outputs = [
            experts[h][v](slices[h][:, v]) * gate[:, h, v].unsqueeze(-1)
            for v in range(len(SETS))
            for h in range(self.heads)
        ]
        return torch.cat(outputs, dim=-1)


class Fusion(nn.Module):
    """HDM, with or without ATMoE, as the second branch of the re-identification model.

    Args:
        kind: `hdm` concatenates the seven vectors; `hdm_atmoe` gates them.
        width: C; heads: of ATMoE.
    """

    def __init__(self, kind: Literal["hdm", "hdm_atmoe"], width: int, heads: int) -> None:
        super().__init__()
        self.hdm = Hdm(width)
        self.moe = AtMoe(width, heads) if kind == "hdm_atmoe" else None

    def forward(self, patches: Mapping[str, Tensor], globals_: Mapping[str, Tensor]) -> Tensor:
        """Patches [B, N, C] and global features [B, C] a modality -> [B, 7C]."""
        vectors = self.hdm(patches, globals_)
        return vectors.flatten(1) if self.moe is None else self.moe(vectors)
