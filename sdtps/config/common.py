"""What both tasks' configurations share: field types, the axes of SDTPS, optimiser and trainer."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, model_validator

from sdtps.config.axes import Axes, find, find_all


class Frozen(BaseModel):
    """Immutable, and an unknown key is an error. Booleans and numbers are never read from strings."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
PositiveFraction = Annotated[float, Field(gt=0.0, le=1.0)]
PositiveInt = Annotated[int, Field(ge=1)]
NonNegative = Annotated[float, Field(ge=0.0)]
Positive = Annotated[float, Field(gt=0.0)]


def find_name(name: object, field: ValidationInfo) -> str:
    """The name of a value of the axis that the field is; a mask's constant gets one spelling."""
    return str(find(str(field.field_name), name).name)


AxisValue = Annotated[str, BeforeValidator(find_name)]
LoggerName = Literal["tensorboard", "mlflow", "wandb"]


class SdtpsConfig(Frozen):
    """How patches are scored, decided on, and merged. Defaults: the paper's method with Top-K.

    The values of each axis, their formulas and sources: `sdtps.config.axes`.
    """

    # False removes the module: the baseline of every ablation.
    enabled: bool = True

    # How relevant a patch is to a guide: cosine, dot (equation 2 as printed), or learned.
    relevance: AxisValue = "cosine"
    # Of the learned ones: attention heads, and which patches-to-guide networks are one (05d17b7: those
    # of a modality; f291f52: all).
    relevance_heads: PositiveInt = 4
    relevance_share: Literal["none", "modality", "all"] = "none"
    # Of biased: the cosine is divided by it (66c66c5, d128cea: 0.3).
    cosine_temperature: Positive = 1.0
    # Norm of equation 2 on relevances (unspecified in the paper), and how a score is made of them.
    normalise: AxisValue = "minmax"
    score: AxisValue = "eq3"
    # beta of equation 3; not given in the paper, 0.25 in the paper-version module.
    beta: Fraction = 0.25

    # What is computed inside no_grad.
    no_grad: AxisValue = "attention"

    # How scores become the decision D.
    decision: AxisValue = "topk"
    # Of the Gumbel decisions and soft: tau; 1 in v1, 5 in v3.
    temperature: Positive = 1.0
    # Gumbel noise is clamped to [-noise_clamp, noise_clamp] (v3: 5); null = no clamp.
    noise_clamp: Positive | None = None
    # The paper-version module and v0 draw noise in evaluation too; v1 to v3 only in training.
    noise_in_eval: bool = False
    # Of sigmoid_mean and sigmoid_quantile: what the score's distance is divided by (published: 0.3).
    mask_temperature: Positive = 0.3

    # How D enters the aggregation: none, log, importance, multiply, or subtract_C (published: 1e10).
    mask: AxisValue = "none"
    # How kept tokens are merged.
    aggregation: AxisValue = "dual"
    # The fused token of dropped patches.
    extra_token: AxisValue = "softmax"

    # rho: K = ceil(rho x N). Paper: ViT 0.5, Swin 0.8.
    keep_ratio: PositiveFraction = 0.5
    # A = int(N x aggregation_ratio x rho). Released defaults: ViT 0.4, Swin 0.6.
    aggregation_ratio: PositiveFraction = 0.4
    # Hidden width of the weight network = int(C x this); 0.2 everywhere (512 gives 102).
    aggregation_hidden: PositiveFraction = 0.2

    # Weight of the SDTPS branch's loss (re-identification; 1 in v1, 2.0 from af9cf51 on).
    loss_weight: NonNegative = 1.0

    @model_validator(mode="after")
    def _parts_fit(self) -> SdtpsConfig:
        wrong = [
            f"{axis} '{value.name}' needs {other} {' or '.join(fitting)}, not {getattr(self, other)}"
            for axis, value in self.axes._asdict().items()
            for other, fitting in value.needs.items()
            if getattr(self, other) not in fitting
        ]
        if wrong:
            raise ValueError("; ".join(wrong))
        return self

    @property
    def axes(self) -> Axes:
        """The entry of each axis."""
        return find_all(*(getattr(self, axis) for axis in Axes._fields))


class EncoderConfig(Frozen):
    """What all encoders have in common; `name` says which one, and `weights` what it starts from."""

    name: str
    # A file or folder in Hugging Face or OpenAI layout, or the word `random`, asked for by name.
    # A path counts in the identity by its last part; its hash is in run.json.
    weights: str = "random"
    frozen: bool = False  # True: it stays as it is; its outputs are computed once and cached
    # Of the tiny ones. Swin: two stages, `depth` blocks each, patches merged 2 x 2 between.
    width: PositiveInt = 64
    depth: PositiveInt = 2
    heads: PositiveInt = 4

    @model_validator(mode="after")
    def _checkpoint_is_named(self) -> Self:
        if self.name == "checkpoint" and self.weights in ("random", "packaged"):
            raise ValueError(
                "name checkpoint needs weights: a Hugging Face folder with its config.json"
            )
        return self


class OptimConfig(Frozen):
    """Optimiser and schedule. Task configurations give their own recipe's defaults."""

    name: Literal["adam", "adamw", "sgd"] = "adam"
    lr: Positive = 3.5e-4
    # Learning rate of the pretrained trunk: an absolute value (DeMo fixes CLIP at 5e-6) ...
    backbone_lr: Positive | None = None
    # ... or a factor on lr (released SEPS: 0.1). At most one of the two acts; null = trunk at lr.
    backbone_lr_factor: Positive | None = None
    # Each layer of the trunk below the top learns at so many times the rate of the layer above it.
    layer_decay: PositiveFraction = 1.0
    # DeMo trains biases at twice the rate.
    bias_lr_factor: Positive = 1.0
    weight_decay: NonNegative = 1e-4
    schedule: Literal["constant", "linear", "cosine", "multistep"] = "cosine"
    # Warm-up from warmup_factor x lr with the cosine, else from that share of a group's own rate; in
    # epochs, fractional allowed.
    warmup_epochs: NonNegative = 0.0
    warmup_factor: Fraction = 0.1
    # cosine and linear end at lr_min_factor x lr.
    lr_min_factor: Fraction = 1e-3
    # multistep: lr x gamma from each of these epochs on, counted from 1, as DeMo's STEPS.
    milestones: tuple[PositiveInt, ...] = ()
    gamma: Positive = 0.1
    # DeMo multiplies each epoch's rate by 1 + n, n ~ N(0, 1) redrawn until |n| < 0.67.
    lr_noise: bool = False


class TrainConfig(Frozen):
    """One trainer for both tasks."""

    epochs: PositiveInt = 50
    # Stop early after this many steps in all (smoke runs); null = train all epochs.
    max_steps: PositiveInt | None = None
    # auto: bf16 on a GPU that computes in it, fp16 on an older one, off on a CPU. It counts as bf16.
    amp: Literal["off", "fp16", "bf16", "auto"] = "off"
    # Global gradient norm limit; null = no clipping.
    clip_grad_norm: Positive | None = None
    eval_every: PositiveInt = 1  # epochs; the last epoch is always evaluated
    # Start from another run's best weights, or from a weights file: every tensor of the same name and
    # shape is taken over; run.json names what was not. Counts in the identity by its last part.
    init: str | None = None
    # The pretrained trunk stays as it is in the first epochs.
    freeze_epochs: int = Field(default=0, ge=0)
    # Samples that go through the encoders at once; the loss still sees the whole batch, and activations
    # are computed again in the backward pass (as GradCache). Null: all at once.
    micro_batch: PositiveInt | None = None
    # The optimiser moves after so many batches, by the mean of their gradients.
    accumulate: PositiveInt = 1
    # Decay of an exponential average of the weights, which is what is evaluated and kept; null = none.
    ema: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None
    # Not part of a run's identity (they change nothing; the last four change rounding):
    log_every: PositiveInt = 10  # steps between metric rows; losses are read from the device only then
    # Tools that get the rows too, while the run goes on (sdtps/training/loggers.py).
    loggers: tuple[LoggerName, ...] = ()
    checkpoint_every_steps: PositiveInt | None = None  # null = at epochs' ends only
    # At an epoch's end a checkpoint is written when this many seconds have passed since the last one: a
    # gigabyte with CLIP, which would otherwise be written every few seconds.
    checkpoint_every_s: NonNegative = 30.0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: PositiveInt | None = None  # CPU threads; null = what the job was given
    compile: bool | Literal["auto"] = False  # auto: on a GPU that can, and without where it fails
    tf32: bool = False
