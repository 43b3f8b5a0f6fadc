"""Configuration of image-text retrieval. Defaults: the paper's method with the released recipe.

Paper values that differ from the released recipe (lr 1e-4, batch 32, no decay) are set by the studies.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from sdtps.config.axes import VALUES, Form, find
from sdtps.config.common import (
    AxisValue,
    EncoderConfig,
    Fraction,
    Frozen,
    NonNegative,
    OptimConfig,
    PositiveInt,
    SdtpsConfig,
    TrainConfig,
)
from sdtps.system.errors import did_you_mean

DenseText = Literal["own", "shuffled", "none"]


class GeneratedRetrievalConfig(Frozen):
    """Small images with sparse captions and dense descriptions, written in the LAPS/SEPS layout."""

    train_images: PositiveInt = 160
    dev_images: PositiveInt = 40
    test_images: PositiveInt = 40
    seed: int = Field(default=0, ge=0)


class RetrievalDataConfig(Frozen):
    dataset: Literal["f30k", "coco", "own"] = "f30k"
    # A CSV file (image, caption, split) or Karpathy's JSON in place of the LAPS files, below the root.
    file: str | None = None
    # Folder with id_mapping.json and the {split}_*.txt files. Null: --data-root or SDTPS_DATA_ROOT.
    root: str | None = None
    # Folder of the images that id_mapping.json names; null = root/images.
    image_root: str | None = None
    generate: GeneratedRetrievalConfig | None = None
    batch_size: PositiveInt = 128  # released; the paper says 32
    test_batch_size: PositiveInt = 64
    # Token limits of the sparse caption and of the dense text.
    max_words: PositiveInt = 64
    max_dense_words: PositiveInt = 90
    # Of the dense text in training; null = the same. Released: whole texts, which BERT ends at 512.
    train_dense_words: PositiveInt | None = None
    # Share of words that are masked, replaced or deleted in training (released 0.2).
    word_noise: Fraction = 0.2
    # Random resized crop (scale 0.6 to 1) and flip; off for cached features.
    augment: bool = True
    workers: int = Field(default=4, ge=0)

    @model_validator(mode="after")
    def _file_fits(self) -> RetrievalDataConfig:
        if self.dataset == "own" and self.file is None:
            raise ValueError("dataset own needs data.file: a CSV file (image, caption, split)")
        if self.file is not None and self.generate is not None:
            raise ValueError("data.file and data.generate exclude each other")
        return self


class ImageEncoderConfig(EncoderConfig):
    # `checkpoint`: what the Hugging Face folder `weights` describes: CLIP, ViT, DeiT, DINOv2, SigLIP,
    # SigLIP 2, Swin.
    name: Literal["vit_b16", "swin_b", "tiny_vit", "tiny_swin", "efficientnet_lite0", "checkpoint"] = (
        "vit_b16"
    )
    size: PositiveInt = 224  # 224 or 384 for ViT-B/16 and Swin-B
    # Interpolate position tables of weights that were trained at another image size.
    resize_positions: bool = False
    patch: PositiveInt = 16  # tiny_vit and tiny_swin only, as width, depth and heads


class TextEncoderConfig(EncoderConfig):
    # `checkpoint`: the text tower of the Hugging Face folder `weights`: BERT, CLIP, SigLIP, SigLIP 2.
    name: Literal["bert_base", "minilm", "tiny_bert", "checkpoint"] = "bert_base"


class MatchingConfig(Frozen):
    """The cross-net's form around the selection."""

    # `laps`: one branch, no dense text; `released`: sparse and dense branch, similarities added;
    # `paper`: both branches aggregated together, sparse words aligned (v2 module).
    form: AxisValue = "paper"
    # Common embedding width; 512 (1024 for multi-GPU Swin).
    embed: PositiveInt = 512
    # HRPA (equation 5): `mean` with leaky ReLU 0.1 as released, `mean_topk` adds MLP(TOPK).
    alignment: AxisValue = "mean_topk"
    top_k: PositiveInt = 5  # v2 module; not given in the paper
    # Dense text used in training and at evaluation. `own` is the query's own target image's text.
    dense_text: DenseText = "own"
    eval_dense_text: DenseText = "own"
    # Whether the sparse caption guides the selection; False = the dense text alone does, and the
    # sparse words are aligned all the same (the paper's "only dense text"). `paper` form only.
    sparse_guide: bool = True
    # Pairs scored at once; bounds memory, cannot change a result beyond rounding. Null: as many as
    # suit the device.
    chunk: PositiveInt | None = None
    # How aggregated tokens are scored: `fused` in one Triton kernel, on a GPU of compute capability 8.0
    # or newer; elsewhere a run uses `plain` and says so. No GPU has run it yet. Cannot change a result
    # beyond rounding.
    kernel: Literal["plain", "fused"] = "plain"

    @property
    def axis(self) -> Form:
        """The entry of `form`."""
        entry: Form = find("form", self.form)
        return entry

    @model_validator(mode="after")
    def _guides_fit(self) -> MatchingConfig:
        if not self.sparse_guide and (not self.axis.together or self.dense_text == "none"):
            raise ValueError("sparse_guide false leaves the dense text: needs form paper with one")
        return self


class RetrievalLossConfig(Frozen):
    margin: NonNegative = 0.2
    # First epochs with the sum of hinges; the hardest negative afterwards (released: 1).
    warmup_epochs: int = Field(default=1, ge=0)
    # Epoch 0 multiplies the loss by step / steps (released).
    ramp_first_epoch: bool = True
    # `released`: (mean(Ds + Dd) - rho)^2; `separate`: l1 (mean Ds - rho)^2 + l2 (mean Dd - rho)^2
    # (v2 module); `eq7`: (rho - l1 mean Ds - l2 mean Dd)^2 over the selected, as the paper writes it.
    ratio: AxisValue = "separate"
    ratio_weight: NonNegative = 2.0
    lambda_sparse: NonNegative = 1.0
    lambda_dense: NonNegative = 1.0


class RetrievalEvalConfig(Frozen):
    # `full`: all images (Flickr30K, COCO-5K); `1k_folds`: mean of five folds of 1,000 images (COCO-1K);
    # `both`: full under plain names, folds as metrics with a suffix (rsum@1k).
    protocol: Literal["full", "1k_folds", "both"] = "full"
    # Where the best epoch is chosen. `test` is the published habit and is marked in every table.
    select_on: Literal["dev", "test"] = "dev"
    test_split: Literal["test", "testall"] = "test"
    # The test split is scored with these dense texts too, as metrics with a suffix (rsum@none): what
    # the leak of `own` is worth, on the same trained model.
    also_dense_text: tuple[DenseText, ...] = ()


class RetrievalConfig(Frozen):
    task: Literal["retrieval"] = "retrieval"
    data: RetrievalDataConfig = RetrievalDataConfig()
    image_encoder: ImageEncoderConfig = ImageEncoderConfig()
    text_encoder: TextEncoderConfig = TextEncoderConfig()
    sdtps: SdtpsConfig = SdtpsConfig()
    matching: MatchingConfig = MatchingConfig()
    loss: RetrievalLossConfig = RetrievalLossConfig()
    optim: OptimConfig = OptimConfig(
        name="adamw",
        lr=2e-4,
        backbone_lr_factor=0.1,
        schedule="multistep",
        milestones=(10, 16, 21, 26),  # released: 9, 15, 20, 25, counted from 0
        gamma=0.3,
    )
    train: TrainConfig = TrainConfig(epochs=30, clip_grad_norm=2.0)
    eval: RetrievalEvalConfig = RetrievalEvalConfig()

    @model_validator(mode="after")
    def _parts_fit(self) -> RetrievalConfig:
        if not self.matching.axis.dense and (
            self.matching.dense_text != "none" or self.matching.eval_dense_text != "none"
        ):
            raise ValueError(
                f"matching.form {self.matching.form} has no dense text: set dense_text, "
                "eval_dense_text to none"
            )
        axes = self.sdtps.axes
        for axis, value in axes._asdict().items() if self.sdtps.enabled else ():
            if self.task not in value.tasks:
                allowed = [v.name for v in VALUES[axis] if self.task in v.tasks]
                raise ValueError(
                    f"sdtps.{axis} {value.name} is for re-identification alone. "
                    + did_you_mean(value.name, allowed)
                )
        branches = len(axes.aggregation.networks)
        if self.sdtps.enabled and branches > 1 and not self.matching.axis.together:
            raise ValueError(
                f"sdtps.aggregation {self.sdtps.aggregation} merges two branches, but matching.form "
                f"{self.matching.form} aligns each by itself: set sdtps.aggregation to single or none"
            )
        if self.image_encoder.frozen and self.data.augment:
            raise ValueError("a frozen image_encoder's features are cached: set data.augment to false")
        if self.text_encoder.frozen and self.data.word_noise:
            raise ValueError("a frozen text_encoder's features are cached: set data.word_noise to 0")
        return self
