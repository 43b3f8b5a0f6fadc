"""The training loop's settings, shared by both tasks."""

from __future__ import annotations

from typing import Literal

from sdtps.config.base import Fraction, Frozen, NonNegative, Positive, PositiveInt


class OptimConfig(Frozen):
    """Optimiser and schedule. Task configurations give their own recipe's defaults."""

    name: Literal["adam", "adamw", "sgd"] = "adam"
    lr: Positive = 3.5e-4
    # Learning rate of the pretrained trunk: an absolute value (DeMo fixes CLIP at 5e-6) ...
    backbone_lr: Positive | None = None
    # ... or a factor on lr (released SEPS: 0.1). At most one of the two acts; null = trunk at lr.
    backbone_lr_factor: Positive | None = None
    # DeMo trains biases at twice the rate.
    bias_lr_factor: Positive = 1.0
    weight_decay: NonNegative = 1e-4
    schedule: Literal["constant", "linear", "cosine", "multistep"] = "cosine"
    # Linear warm-up from warmup_factor x lr; in epochs, fractional allowed.
    warmup_epochs: NonNegative = 0.0
    warmup_factor: Fraction = 0.1
    # cosine and linear end at lr_min_factor x lr.
    lr_min_factor: Fraction = 1e-3
    # multistep: lr x gamma after each of these epochs.
    milestones: tuple[PositiveInt, ...] = ()
    gamma: Positive = 0.1
    # DeMo multiplies each epoch's rate by 1 + n, n ~ N(0, 1) redrawn until |n| < 0.67.
    lr_noise: bool = False


class TrainConfig(Frozen):
    """One trainer for both tasks."""

    epochs: PositiveInt = 50
    # Stop early after this many steps in all (smoke runs); null = train all epochs.
    max_steps: PositiveInt | None = None
    amp: Literal["off", "fp16", "bf16"] = "off"
    # Global gradient norm limit; null = no clipping.
    clip_grad_norm: Positive | None = None
    eval_every: PositiveInt = 1  # epochs; the last epoch is always evaluated
    # Not part of a run's identity (they change nothing; the last four change rounding):
    log_every: PositiveInt = 10  # steps between metric rows; losses are read from the device only then
    checkpoint_every_steps: PositiveInt | None = None  # null = at epochs' ends only
    # At an epoch's end a checkpoint is written when this many seconds have passed since the last one: a
    # gigabyte with CLIP, which would otherwise be written every few seconds.
    checkpoint_every_s: NonNegative = 30.0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: PositiveInt | None = None  # CPU threads; null = what the job was given
    compile: bool = False
    tf32: bool = False
