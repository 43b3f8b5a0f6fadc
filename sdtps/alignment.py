"""Patch-word alignment: how a set of visual tokens and the words of a caption make one similarity.

With cosines A[i, j] between token i and word j, the row part is the best word of each token, the column
part the best token of each word (equation 5 of the paper; the released code keeps the means only, of
leaky-rectified cosines).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LEAK = 0.1  # released code: slope below zero, applied to the cosines before the maxima


def word_mask(lengths: Tensor, width: int) -> Tensor:
    """Boolean (T, width): True at the words of a caption, False at its padding."""
    return torch.arange(width, device=lengths.device) < lengths[:, None]


class Alignment(nn.Module):
    """Mean and Top-K pooling of the best matches, both directions added (HRPA).

    `mean`: means of leaky-rectified cosines (released). `mean_topk`: mean + MLP(TOPK), plain cosines
    (equation 5). `topk`: MLP(TOPK) alone, the paper's "only relevance-aware selection". One MLP serves
    both directions; fewer than `top_k` matches are padded with zeros (paper-version module).
    """

    def __init__(
        self, kind: Literal["mean", "mean_topk", "topk"] = "mean_topk", top_k: int = 5
    ) -> None:
        super().__init__()
        self.kind = kind
        self.top_k = top_k
        self.relevance_mlp: nn.Sequential | None = None
        if kind != "mean":
            self.relevance_mlp = nn.Sequential(
                nn.Linear(top_k, 2 * top_k), nn.GELU(), nn.Linear(2 * top_k, 1)
            )

    def forward(self, tokens: Tensor, words: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Similarity (B) of normalised tokens (B, V, C) and words (B, L, C) of `lengths` (B)."""
        cosines = tokens @ words.transpose(1, 2)
        if lengths is None:
            return self.pool(cosines.amax(2), cosines.amax(1))
        present = word_mask(lengths, words.shape[1])
        best_word = cosines.masked_fill(~present[:, None], -torch.inf).amax(2)
        return self.pool(best_word, cosines.amax(1), words=present)

    def pool(
        self,
        best_word: Tensor,
        best_token: Tensor,
        *,
        words: Tensor | None = None,
        tokens: Tensor | None = None,
    ) -> Tensor:
        """Similarity (...) from each token's best word (..., V) and each word's best token (..., L).

        `words` (..., L) and `tokens` (..., V) say which of them exist; None = all. The leak of `mean`
        acts here: a monotone function may as well be applied after the maximum.
        """
        return self._side(best_word, tokens) + self._side(best_token, words)

    def _side(self, best: Tensor, present: Tensor | None) -> Tensor:
        if present is not None:
            present = present.expand_as(best)
        total = best.new_zeros(best.shape[:-1])
        if self.kind != "topk":
            value = F.leaky_relu(best, LEAK) if self.kind == "mean" else best
            if present is None:
                total = value.mean(-1)
            else:
                total = value.masked_fill(~present, 0.0).sum(-1) / present.sum(-1)
        if self.relevance_mlp is not None:
            total = total + self.relevance_mlp(self._top(best, present)).squeeze(-1)
        return total

    def _top(self, best: Tensor, present: Tensor | None) -> Tensor:
        """The `top_k` largest of those present (..., top_k), zero where there are fewer."""
        if present is not None:
            best = best.masked_fill(~present, -torch.inf)
        values = best.topk(min(self.top_k, best.shape[-1]), dim=-1).values
        values = values.masked_fill(torch.isneginf(values), 0.0)
        return F.pad(values, (0, self.top_k - values.shape[-1]))
