"""Image-text retrieval: encoders, projections to a common width, the cross-net, and the loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sdtps.config import RetrievalConfig
from sdtps.config.axes import find
from sdtps.crossnet import CrossNet, Matches
from sdtps.data.caption_batches import RetrievalBatch, TextBatch
from sdtps.models.encoders import ImageEncoder, ImageShape, TextEncoder, text_width
from sdtps.models.losses import contrastive_loss
from sdtps.selection import part_of
from sdtps.system import distributed


class RetrievalModel(nn.Module):
    """Similarities of images and captions.

    Args:
        config: the run's configuration.
        shape: what the image encoder hands on.
        encoder: the image encoder; None where batches hold its features (frozen).
        text_encoder: the text encoder of sparse and dense texts; None likewise.
    """

    def __init__(
        self,
        config: RetrievalConfig,
        shape: ImageShape,
        encoder: ImageEncoder | None,
        text_encoder: TextEncoder | None,
    ) -> None:
        super().__init__()
        embed = config.matching.embed
        self.micro_batch = config.train.micro_batch
        self.encoder = encoder
        self.text_encoder = text_encoder
        self.image_projection = nn.Linear(shape.width, embed)
        self.text_projection = nn.Linear(text_width(config.text_encoder), embed)
        self.crossnet = CrossNet(
            config.sdtps,
            config.matching,
            width=embed,
            patches=shape.patches,
            class_token=shape.class_token,
        )

    def compile(self, **options: Any) -> None:
        """Compile the encoders' layers, not the cross-net, whose shapes change with the texts."""
        for encoder in (self.encoder, self.text_encoder):
            if encoder is not None:
                encoder.compile(**options)

    def tokens(self, images: Tensor) -> Tensor:
        """Pixels (B, 3, S, S), or features (B, V, width), to visual tokens (B, V, C)."""
        hidden = images if self.encoder is None else self.encoder(images)
        projected: Tensor = self.image_projection(hidden)
        return projected

    def words(self, texts: TextBatch) -> Tensor:
        """Token ids (T, L), or features (T, L, width), to words (T, L, C)."""
        hidden = texts.values
        if self.text_encoder is not None:
            hidden = self.text_encoder(texts.values, texts.lengths)
        projected: Tensor = self.text_projection(hidden)
        return projected

    def _in_pieces(self, texts: TextBatch) -> Tensor:
        def words(values: Tensor, lengths: Tensor) -> Tensor:
            return self.words(TextBatch(values, lengths))

        parts = distributed.in_pieces(words, self.micro_batch, texts.values, texts.lengths)
        return torch.cat(parts)

    def forward(self, batch: RetrievalBatch) -> Matches:
        """All pairs of a batch; of the batches of all processes, where there are several."""
        gather = distributed.gather_batch
        size = self.micro_batch
        images = gather(torch.cat(distributed.in_pieces(self.tokens, size, batch.images)))
        words, lengths = gather(self._in_pieces(batch.sparse)), gather(batch.sparse.lengths)
        dense: tuple[Tensor, ...] = ()
        if batch.dense is not None:
            dense = (gather(self._in_pieces(batch.dense)), gather(batch.dense.lengths))
        matches: Matches = self.crossnet(images, words, lengths, *dense)
        return matches


def retrieval_loss(
    model: RetrievalModel,
    config: RetrievalConfig,
    batch: RetrievalBatch,
    *,
    epoch: int,
    step: int,
    steps_per_epoch: int,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Alignment and ratio loss and their parts; `epoch` and `step` from 1.

    As released: the first epoch sums all hinges and grows their weight from 0 with the step, later
    ones take the hardest negative of each row and column.
    """
    settings = config.loss
    matches = model(batch)
    alignment = contrastive_loss(
        matches.similarity,
        margin=settings.margin,
        hardest=epoch > settings.warmup_epochs,
        image_ids=distributed.gather_batch(batch.image_ids),
    )
    parts = {"alignment": alignment.detach()}
    ramp = (step - 1) / steps_per_epoch if settings.ramp_first_epoch and epoch == 1 else 1.0
    total = alignment * ramp
    ratio_loss = find("ratio", settings.ratio).loss
    if ratio_loss is not None and matches.sparse_decision is not None:
        ratio = ratio_loss(
            matches.sparse_decision,
            matches.dense_decision,
            config.sdtps.keep_ratio,
            settings.lambda_sparse,
            settings.lambda_dense,
        )
        parts["ratio"] = ratio.detach()
        total = total + settings.ratio_weight * ratio
    return total, parts


def trunk(model: RetrievalModel) -> list[nn.Parameter]:
    """The pretrained encoders; projections and cross-net train at the full rate."""
    encoders = (model.encoder, model.text_encoder)
    return [p for encoder in encoders if encoder is not None for p in encoder.parameters()]


def module_groups(model: RetrievalModel) -> dict[str, list[nn.Parameter]]:
    """encoder, text_encoder, projections, alignment and SDTPS's parts; those there are."""
    groups: dict[str, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        part = name.split(".")[0]
        if part == "crossnet":
            part = part_of(name)
        elif part.endswith("_projection"):
            part = "projections"
        groups.setdefault(part, []).append(parameter)
    return groups
