"""Configuration of multi-modal re-identification. Defaults: DeMo's recipe for RGBNT201 with SDTPS."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from pydantic import Field, field_validator, model_validator

from sdtps.config.common import (
    EncoderConfig,
    Fraction,
    Frozen,
    NonNegative,
    OptimConfig,
    Positive,
    PositiveInt,
    SdtpsConfig,
    TrainConfig,
)


class GeneratedReidConfig(Frozen):
    """A deterministic data set of real JPEG files in RGBNT201's layout, for machines without one.

    Identity lives in a few patches among clutter, and no single modality suffices.
    """

    train_pids: PositiveInt = 24
    test_pids: PositiveInt = 16
    cameras: int = Field(default=2, ge=2)
    images_per_camera: PositiveInt = 4
    seed: int = Field(default=0, ge=0)


class ReidDataConfig(Frozen):
    dataset: Literal["rgbnt201", "rgbnt100", "msvr310", "own"] = "rgbnt201"
    # With dataset `own`: a CSV file of images (path, pid, camid, modality, split) below the root.
    file: str | None = None
    # Folder that contains RGBNT201/, RGBNT100/ or MSVR310/. Null: --data-root or SDTPS_DATA_ROOT.
    root: str | None = None
    # Write the images before training instead of reading a benchmark (dataset must be rgbnt201).
    generate: GeneratedReidConfig | None = None
    # DeMo: 256x128 for persons, 128x256 for vehicles.
    height: PositiveInt = 256
    width: PositiveInt = 128
    # DeMo: 64 images = 8 identities x 8 instances (RGBNT100: 128 x 16, MSVR310: 64 x 4).
    batch_size: PositiveInt = 64
    instances: PositiveInt = 8
    test_batch_size: PositiveInt = 128
    # Flip 0.5, pad 10 and crop, erase 0.5 per pixel; each modality on its own (DeMo).
    flip: Fraction = 0.5
    pad: int = Field(default=10, ge=0)
    erase: Fraction = 0.5
    # How many bits hold a value in image files of 16 bits a channel, as thermal cameras with 12 or 14
    # write them. Null: as the file says (PNG's sBIT), else 16; images that leave the upper bits empty
    # are refused.
    bits: int | None = Field(default=None, ge=9, le=16)
    workers: int = Field(default=4, ge=0)  # not in the identity: a result must not depend on it

    @model_validator(mode="after")
    def _batch_is_whole(self) -> ReidDataConfig:
        if self.batch_size % self.instances:
            raise ValueError(
                f"batch_size {self.batch_size} is not a multiple of instances {self.instances}"
            )
        if self.generate is not None and self.dataset != "rgbnt201":
            raise ValueError(f"generate writes the rgbnt201 layout, but dataset is {self.dataset}")
        if (self.file is not None) != (self.dataset == "own"):
            raise ValueError("dataset own and data.file go together: a CSV file of one's own images")
        return self


class BackboneConfig(EncoderConfig):
    """One image encoder shared by the three modalities. Frozen, so is its camera table."""

    # `checkpoint`: what the Hugging Face folder `weights` describes: CLIP, ViT, DeiT, DINOv2, SigLIP,
    # SigLIP 2, Swin.
    name: Literal["tiny_vit", "clip_vit_b16", "checkpoint"] = "clip_vit_b16"
    weights: str = "ViT-B-16.pt"
    # tiny_vit only, as width, depth and heads (clip_vit_b16 is 16, 512, 768, 12, 12).
    patch: PositiveInt = 16
    embed: PositiveInt = 64
    # Camera embedding added to the class token (SIE), its coefficient and initial deviation.
    camera_embedding: bool = True
    camera_coefficient: NonNegative = 1.0
    camera_std: NonNegative = 0.02


DGAF = ("dgaf_v1", "dgaf_v1_global", "dgaf_v3", "parallel")


class FusionConfig(Frozen):
    """DeMo's own fusion (PIFE, HDM, ATMoE) and DeMo2's modules; off in the SDTPS studies.

    Formulas and sources: `sdtps.models.reid` and `sdtps.models.demo2`.
    """

    # DGAF's vectors: v1 = means of the selected tokens, v1_global = PIFE of them and the global feature
    # (from 665f66a on), v3 = pooled by attention; of the patches where there is no SDTPS. `parallel`:
    # nine heads, of SDTPS, DGAF v3 of the patches, and the global features of each modality.
    kind: Literal["none", "hdm", "hdm_atmoe", "dgaf_v1", "dgaf_v1_global", "dgaf_v3", "parallel"] = (
        "none"
    )
    # PIFE: global feature = QuickGELU(Linear(LN([class token, mean of patches]))).
    global_local: bool = False
    # ATMoE gate heads: 4 (RGBNT201), 8 (RGBNT100, MSVR310); attention heads of DGAF v3: 8.
    heads: PositiveInt = 4
    # DGAF: temperature of the entropies, start of the balance before its sigmoid, and whether SDTPS has
    # a head of its own beside DGAF's (from 3126d45 to 4e180fd).
    tau: Positive = 1.0
    alpha: float = 0.5
    beside_sdtps: bool = False
    # Before SDTPS: SACR on each modality's patches, or on all three.
    sacr: Literal["none", "single", "multimodal_v1", "multimodal_v2"] = "none"
    dilations: tuple[PositiveInt, ...] = (2, 3, 4)
    # Before SDTPS: patches weighted by their images' quality, and the weight of its loss.
    lif: bool = False
    lif_beta: Positive = 0.4
    lif_weight: NonNegative = 0.2
    # In SDTPS's place.
    frca: bool = False
    # One classifier on the concatenated modalities (DIRECT 1), or one for each.
    direct: bool = True


class ReidLossConfig(Frozen):
    id_weight: NonNegative = 0.25
    triplet_weight: NonNegative = 1.0
    label_smoothing: Fraction = 0.1
    # Null: the soft margin log(1 + exp(d_ap - d_an)) that DeMo trains with.
    triplet_margin: NonNegative | None = None
    # The branch on the plain global features beside SDTPS (dropped from commit 5e52f9a on).
    global_branch: bool = True


MODALITY_LETTERS = "rnt"  # rgb, nir, tir
_SETS = "r|n|t|rn|rt|nt"
_CONDITION = re.compile(
    rf"(?:missing_(?P<missing>{_SETS})|(?P<query>{_SETS}|rnt)_to_(?P<gallery>{_SETS}|rnt))?"
    r"(?:(?:^|(?<=\w)\+)(?P<rerank>rerank))?(?:(?:^|(?<=\w)\+)(?P<any_camera>any_camera))?"
)


@dataclass(frozen=True)
class Condition:
    """How a trained model's test images are shown and ranked.

    Attributes:
        name: suffix of its metrics (`mAP@missing_r`); empty for all modalities and plain ranking.
        query, gallery: the modalities that they have, letters of `rnt`; images of others are zeroed.
        rerank: k-reciprocal re-ranking.
        any_camera: without the camera (MSVR310: scene) rule: a query is kept from itself alone.
    """

    name: str = ""
    query: str = MODALITY_LETTERS
    gallery: str = MODALITY_LETTERS
    rerank: bool = False
    any_camera: bool = False

    @classmethod
    def parse(cls, name: str) -> Condition:
        """`missing_r` (and n, t, rn, rt, nt: DeMo's), `r_to_n` (RGB queries, NIR gallery), `rerank`,
        `any_camera`, or several joined by + in this order.

        Raises:
            ValueError: another name.
        """
        parts = _CONDITION.fullmatch(name)
        if not name or parts is None:
            raise ValueError(
                f"unknown condition '{name}'. Allowed: missing_r, missing_n, missing_t, missing_rn, "
                "missing_rt, missing_nt; r_to_n and the like (query modalities, gallery modalities); "
                "rerank; any_camera; and missing_r+rerank+any_camera and the like"
            )
        missing = parts["missing"] or ""
        left = "".join(m for m in MODALITY_LETTERS if m not in missing)
        shown = parts["query"] or left, parts["gallery"] or left
        return cls(name, *shown, bool(parts["rerank"]), bool(parts["any_camera"]))


class ReidEvalConfig(Frozen):
    # Which feature is ranked: plain globals, the SDTPS or fusion feature, or both concatenated.
    feature: Literal["concat", "global", "sdtps"] = "concat"
    # Conditions (see `Condition`) under which the weights of the selected and of the last epoch are
    # scored too, as metrics with a suffix (mAP@missing_r). Not in the identity: training is the same.
    also: tuple[str, ...] = ()

    @field_validator("also")
    @classmethod
    def _conditions_exist(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            Condition.parse(name)
        if len(set(value)) < len(value):
            raise ValueError("a condition is listed twice")
        return value


class ReidConfig(Frozen):
    task: Literal["reid"] = "reid"
    data: ReidDataConfig = ReidDataConfig()
    backbone: BackboneConfig = BackboneConfig()
    sdtps: SdtpsConfig = SdtpsConfig()
    fusion: FusionConfig = FusionConfig()
    loss: ReidLossConfig = ReidLossConfig()
    optim: OptimConfig = OptimConfig(
        backbone_lr=5e-6, bias_lr_factor=2.0, warmup_epochs=10.0, lr_noise=True
    )
    train: TrainConfig = TrainConfig(amp="fp16")
    eval: ReidEvalConfig = ReidEvalConfig()

    @property
    def second_branch(self) -> bool:
        """Whether there is more than the global features."""
        return self.sdtps.enabled or self.fusion.kind != "none" or self.fusion.frca

    @model_validator(mode="after")
    def _parts_fit(self) -> ReidConfig:
        fusion = self.fusion
        if self.sdtps.enabled and (fusion.kind in ("hdm", "hdm_atmoe") or fusion.frca):
            other = "frca" if fusion.frca else f"kind {fusion.kind}"
            raise ValueError(
                f"fusion.{other} and sdtps.enabled exclude each other: both are the second branch"
            )
        if not (self.second_branch or self.loss.global_branch):
            raise ValueError("nothing to train: sdtps, fusion and loss.global_branch are all off")
        parts = (self.sdtps.enabled, fusion.global_local, self.loss.global_branch, not fusion.direct)
        if fusion.kind == "parallel" and not all(parts):
            raise ValueError(
                "fusion.kind parallel needs sdtps.enabled, fusion.global_local and loss.global_branch "
                "true, and fusion.direct false"
            )
        if fusion.kind == "dgaf_v1_global" and not fusion.global_local:
            raise ValueError("fusion.kind dgaf_v1_global needs fusion.global_local true")
        if fusion.lif and self.backbone.frozen:
            raise ValueError(
                "fusion.lif sees the images, which a frozen backbone's cache does not hold"
            )
        if self.eval.feature == "global" and not self.loss.global_branch:
            raise ValueError(
                "eval.feature global would rank an untrained branch: loss.global_branch is false. "
                "Set eval.feature to concat or sdtps, or loss.global_branch to true"
            )
        drawn = [k for k in ("flip", "pad", "erase") if getattr(self.data, k)]
        if self.backbone.frozen and drawn:
            raise ValueError(
                "a frozen backbone's features are cached, before anything is drawn: set "
                f"{', '.join(f'data.{k}' for k in drawn)} to 0"
            )
        if self.backbone.name == "checkpoint":  # its own configuration says the patch
            return self
        patch = 16 if self.backbone.name == "clip_vit_b16" else self.backbone.patch
        if self.data.height % patch or self.data.width % patch:
            raise ValueError(
                f"data size {self.data.height}x{self.data.width} is not a multiple of patch {patch}"
            )
        return self
