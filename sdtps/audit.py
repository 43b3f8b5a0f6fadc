"""The gradient audit: for each variant of a study, which parts learn, which do not, and which explode.

Every variant is built at the size of a toy (`sdtps.tiny`) with the baseline's weights wherever the two
have the same tensor, and looked at on the same batch with the same random draws: at initialisation and
after some training steps in its own precision. What is looked at is computed in float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sdtps import atomic
from sdtps.config import Config, RetrievalConfig
from sdtps.errors import ConfigError, did_you_mean
from sdtps.findings import Finding, findings
from sdtps.gradients import Gradient, cosine, gradient_of, share_without, watched
from sdtps.optim import build_optimizer, parameter_groups
from sdtps.subjects import Subject, subject

STEPS = 10
SEED = 0
INITIAL_SCALE = 65536.0  # torch.amp.GradScaler's


@dataclass(frozen=True)
class Look:
    """One backward pass, looked at."""

    loss: float
    parts: dict[str, Gradient]
    without_gradient: float  # share of trainable parameters with no gradient, in [0, 1]
    patch_gradient: Tensor | None  # at the encoder's outputs, for cosines


@dataclass(frozen=True)
class Scaler:
    """What fp16's loss scaler did in the training steps."""

    skipped: int
    steps: int
    scale: float


@dataclass(frozen=True)
class Examination:
    """A variant, looked at twice.

    Attributes:
        counterfactuals: the first look of the same variant with one axis changed, to prove a cause:
            `mask none`, `mask log`, `constant / 10`, `decision topk`, `ratio none`.
    """

    config: Config
    initial: Look
    after: Look
    scaler: Scaler | None
    counterfactuals: dict[str, Look]


@dataclass(frozen=True)
class Audit:
    """All variants of a study and what is to be said about them, worst first."""

    study: str
    baseline: str
    steps: int
    examinations: dict[str, Examination]
    findings: list[Finding]
    labels: Mapping[str, str]

    def warnings(self) -> list[Finding]:
        """Findings that are no mere notes, worst first."""
        return [finding for finding in self.findings if finding.severity != "note"]

    def as_json(self) -> dict[str, Any]:
        """The whole audit as flat records, as `audit.json` holds it."""
        base = self.examinations[self.baseline]
        variants, gradients = [], []
        for name, examined in self.examinations.items():
            scaler = examined.scaler
            variants.append(
                {
                    "variant": name,
                    "label": self.labels.get(name, name),
                    "loss": _finite(examined.initial.loss),
                    "loss_after": _finite(examined.after.loss),
                    "without_gradient": examined.initial.without_gradient,
                    "patch_cosine": cosine(
                        examined.initial.patch_gradient, base.initial.patch_gradient
                    ),
                    "scaler_skipped": None if scaler is None else scaler.skipped,
                    "scaler_scale": None if scaler is None else scaler.scale,
                }
            )
            for when, look, reference in (
                ("initial", examined.initial, base.initial),
                ("after", examined.after, base.after),
            ):
                gradients += [
                    {
                        "variant": name,
                        "when": when,
                        "part": part,
                        "state": gradient.state,
                        "norm": gradient.norm,
                        "ratio": ratio(gradient, reference.parts.get(part)),
                    }
                    for part, gradient in look.parts.items()
                    if gradient.state != "absent"
                ]
        return {
            "study": self.study,
            "baseline": self.baseline,
            "steps": self.steps,
            "findings": [asdict(finding) for finding in self.findings],
            "variants": variants,
            "gradients": gradients,
        }


def audit(
    configs: Mapping[str, Config],
    baseline: str,
    *,
    study: str = "",
    labels: Mapping[str, str] | None = None,
    only: list[str] | None = None,
    steps: int = STEPS,
    seed: int = SEED,
) -> Audit:
    """Examine variants by name.

    Args:
        configs: variant name to configuration, the baseline's among them.
        labels: variant name to its name for readers.
        only: these variants and the baseline; None = all.
        steps: training steps between the two looks.

    Raises:
        ConfigError: a name in `only` that is no variant.
    """
    for name in only or []:
        if name not in configs:
            raise ConfigError(f"unknown variant '{name}'. {did_you_mean(name, configs)}")
    names = [baseline] + [n for n in configs if n != baseline and (only is None or n in only)]
    with _undisturbed():
        weights = _start(configs[baseline], seed, None).model.state_dict()
        weights = {name: value.clone() for name, value in weights.items()}
        found = {name: examine(configs[name], weights, steps, seed) for name in names}
    ordered = {name: found[name] for name in configs if name in found}
    said = findings(ordered, baseline, steps)
    return Audit(study, baseline, steps, ordered, said, labels or {})


def examine(config: Config, weights: Mapping[str, Tensor], steps: int, seed: int) -> Examination:
    """Look at one variant, train it, look again, and look at what would prove a cause."""
    examined = _start(config, seed, weights)
    initial = look(examined, seed)
    changed = {
        name: look(_start(other, seed, weights), seed) for name, other in changes(config).items()
    }
    scaler = train(examined, steps, seed)
    return Examination(config, initial, look(examined, seed), scaler, changed)


def changes(config: Config) -> dict[str, Config]:
    """The configurations whose gradients tell where a large or missing one comes from."""
    sdtps = config.sdtps
    other: dict[str, dict[str, Any]] = {}
    if sdtps.enabled and sdtps.decision != "topk":
        if sdtps.mask_constant is not None:
            other["mask none"] = {"mask": "none"}
            other["mask log"] = {"mask": "log"}
            other["constant / 10"] = {"mask": f"subtract_{sdtps.mask_constant / 10:g}"}
        if sdtps.decision == "gumbel_ste":
            other["decision topk"] = {"decision": "topk"}
    changed = {
        name: config.model_copy(update={"sdtps": sdtps.model_copy(update=update)})
        for name, update in other.items()
    }
    if isinstance(config, RetrievalConfig) and config.loss.ratio != "none" and sdtps.enabled:
        loss = config.loss.model_copy(update={"ratio": "none"})
        changed["ratio none"] = config.model_copy(update={"loss": loss})
    return changed


def look(examined: Subject, seed: int) -> Look:
    """Gradients of the loss of the audit's batch, in float32 and training mode."""
    examined.model.train()
    examined.model.zero_grad(set_to_none=True)
    torch.manual_seed(seed)  # the same noise for every variant
    with watched(examined.model) as watch:
        loss = examined.loss(examined.batch(0))
        if loss.requires_grad:
            loss.backward()
    parts = {part: watch.gradient(part) for part in watch.parts}
    parts |= {part: gradient_of(params) for part, params in examined.groups.items()}
    return Look(loss.item(), parts, share_without(examined.model), _detached(watch.flat("patches")))


def train(examined: Subject, steps: int, seed: int) -> Scaler | None:
    """Training steps with the variant's optimiser, clipping and precision, at its full rate."""
    config, model = examined.config, examined.model
    groups = parameter_groups(model, examined.trunk, config.optim)
    optimizer = build_optimizer(groups, config.optim)
    amp = config.train.amp
    dtype = torch.float16 if amp == "fp16" else torch.bfloat16
    scaler = torch.amp.GradScaler("cpu", init_scale=INITIAL_SCALE, enabled=amp == "fp16")
    skipped = 0
    torch.manual_seed(seed + 1)
    for step in range(1, steps + 1):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=dtype, enabled=amp != "off"):
            loss = examined.loss(examined.batch(step))
        if not loss.requires_grad:
            break
        scaler.scale(loss).backward()
        if config.train.clip_grad_norm is not None:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), config.train.clip_grad_norm)
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        skipped += scaler.get_scale() < before
    return Scaler(skipped, steps, scaler.get_scale()) if amp == "fp16" else None


def ratio(gradient: Gradient, reference: Gradient | None) -> float | None:
    """Norm over the reference's norm; None where either has none."""
    if reference is None or not gradient.norm or not reference.norm:
        return None
    return gradient.norm / reference.norm


def write(audited: Audit, path: Path) -> None:
    """`audit.json`, whole or not at all."""
    atomic.write_json(path, audited.as_json())


def _start(config: Config, seed: int, weights: Mapping[str, Tensor] | None) -> Subject:
    torch.manual_seed(seed)
    examined = subject(config, seed)
    if weights is not None:
        own = examined.model.state_dict()
        shared = {n: v for n, v in weights.items() if n in own and own[n].shape == v.shape}
        examined.model.load_state_dict(shared, strict=False)
    return examined


@contextmanager
def _undisturbed() -> Iterator[None]:
    """The caller's random state stays as it was."""
    with torch.random.fork_rng(devices=[]):
        yield


def _detached(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach().clone()


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None
