"""One variant under examination: where the loss's gradient arrives, before and after some training.

Parts that are no parameters (patches, class token, guides, extra token) are watched: a watched tensor
is replaced by a view of itself that keeps its gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sdtps.audit.toys import Toy, build_toy
from sdtps.config import Config, RetrievalConfig
from sdtps.config.axes import find
from sdtps.selection import Selection, TokenSelection
from sdtps.training.step import TrainingStep


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


def examine(config: Config, weights: Mapping[str, Tensor], steps: int, seed: int) -> Examination:
    """Look at one variant, train it, look again, and look at what would prove a cause."""
    toy = build_toy(config, seed, weights)
    initial = look(toy, seed)
    changed = {
        name: look(build_toy(other, seed, weights), seed) for name, other in changes(config).items()
    }
    scaler = train(toy, steps, seed)
    return Examination(config, initial, look(toy, seed), scaler, changed)


def changes(config: Config) -> dict[str, Config]:
    """The configurations whose gradients tell where a large or missing one comes from."""
    sdtps, axes = config.sdtps, config.sdtps.axes
    changed: dict[str, Config] = {}
    if sdtps.enabled and axes.decision.carries_gradient:
        for name, update in (axes.mask.counterfactuals | axes.decision.counterfactuals).items():
            changed[name] = config.model_copy(update={"sdtps": sdtps.model_copy(update=update)})
    if isinstance(config, RetrievalConfig) and find("ratio", config.loss.ratio).loss and sdtps.enabled:
        loss = config.loss.model_copy(update={"ratio": "none"})
        changed["ratio none"] = config.model_copy(update={"loss": loss})
    return changed


def look(toy: Toy, seed: int) -> Look:
    """Gradients of the loss of the audit's batch, in float32 and training mode."""
    plain = toy.config.model_copy(update={"train": toy.config.train.model_copy(update={"amp": "off"})})
    step = TrainingStep(toy, plain)
    toy.model.train()
    toy.model.zero_grad(set_to_none=True)
    torch.manual_seed(seed)  # the same noise for every variant
    with watched(toy.model) as watch:
        loss, _ = step.forward(toy.batch(0), toy.epoch)
        if loss.requires_grad:
            step.backward(loss)
    parts = {part: watch.gradient(part) for part in watch.parts}
    parts |= {part: gradient_of(params) for part, params in toy.module_groups().items()}
    patches = watch.flat("patches")
    return Look(
        loss.item(),
        parts,
        share_without(toy.model),
        None if patches is None else patches.detach().clone(),
    )


def train(toy: Toy, steps: int, seed: int) -> Scaler | None:
    """Training steps with the variant's optimiser, clipping and precision, at its full rate."""
    step = TrainingStep(toy, toy.config)
    torch.manual_seed(seed + 1)
    for number in range(1, steps + 1):
        loss, _ = step.forward(toy.batch(number), toy.epoch)
        if not loss.requires_grad:  # nothing in this variant can learn
            break
        step.backward(loss)
        step.update(measure=False)
        step.counters.step += 1
    if not step.scaler.is_enabled():
        return None
    return Scaler(int(step.counters.skipped), steps, step.scaler.get_scale())


# `absent`: the model has no such part. `none`: no path for a gradient (None). `zero`: exactly zero.
State = Literal["absent", "none", "zero", "finite", "nonfinite"]


@dataclass(frozen=True)
class Gradient:
    """The gradient of one part."""

    state: State
    norm: float | None  # None unless finite or zero

    @property
    def learns(self) -> bool:
        return self.state in ("finite", "nonfinite")


ABSENT = Gradient("absent", None)


def gradient_of(tensors: Iterable[Tensor]) -> Gradient:
    """Norm and state of the gradients that `tensors` hold; frozen ones are left out."""
    gradients = [t.grad for t in tensors if t.requires_grad]
    found = [g.detach().double() for g in gradients if g is not None]
    if not found:
        return Gradient("none", None)
    norm = math.sqrt(sum(g.square().sum().item() for g in found))
    if not math.isfinite(norm):
        return Gradient("nonfinite", None)
    return Gradient("finite" if norm > 0 else "zero", norm)


def share_without(model: nn.Module) -> float:
    """Share of a model's trainable parameters whose gradient is None or exactly zero, in [0, 1]."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    silent = sum(p.numel() for p in trainable if p.grad is None or not p.grad.any())
    return silent / max(1, sum(p.numel() for p in trainable))


def cosine(first: Tensor | None, second: Tensor | None) -> float | None:
    """Cosine of two gradients of equal shape; None where one has none or is zero or not finite."""
    if first is None or second is None or first.shape != second.shape:
        return None
    a, b = first.double().flatten(), second.double().flatten()
    if not (torch.isfinite(a).all() and torch.isfinite(b).all()):
        return None
    length = (a.norm() * b.norm()).item()
    return None if length == 0 else (a @ b).item() / length


class Watch:
    """Tensors on the way, by part."""

    def __init__(self) -> None:
        self.parts: dict[str, list[Tensor]] = {}

    def __call__(self, part: str, tensor: Tensor) -> Tensor:
        """A view of `tensor` that keeps its gradient, to be used in its place."""
        kept = self.parts.setdefault(part, [])
        if not tensor.requires_grad:
            return tensor
        view = tensor.view_as(tensor)
        view.retain_grad()
        kept.append(view)
        return view

    def gradient(self, part: str) -> Gradient:
        if part not in self.parts:
            return ABSENT
        return gradient_of(self.parts[part])

    def flat(self, part: str) -> Tensor | None:
        """The gradients of a part one after the other, None where a tensor has none."""
        gradients = [t.grad for t in self.parts.get(part, [])]
        if not gradients or any(g is None for g in gradients):
            return None
        return torch.cat([g.flatten() for g in gradients if g is not None])


@contextmanager
def watched(model: nn.Module) -> Iterator[Watch]:
    """Watch the parts of a re-identification or retrieval model during the forward passes inside.

    Parts: `patches`, `class_token` (the encoder's outputs, all paths), `selected_patches` (the patches
    on their way through SDTPS), `guides` (global features on their way into the scores),
    `extra_token`; retrieval also `words` and `dense_words`.
    """
    watch = Watch()
    handles: list[Any] = []
    restore: list[tuple[Any, str]] = []

    def before(module: nn.Module, change: Callable[..., Any]) -> None:
        handles.append(module.register_forward_pre_hook(lambda _, inputs: change(*inputs)))

    def after(module: nn.Module, change: Callable[..., Any]) -> None:
        handles.append(module.register_forward_hook(lambda _, inputs, output: change(output)))

    def replace(module: Any, method: str, change: Callable[..., Any]) -> None:
        setattr(module, method, partial(change, watch, getattr(module, method)))
        restore.append((module, method))

    for name, module in model.named_modules():
        if name == "backbone":
            after(module, lambda out: (watch("class_token", out[0]), watch("patches", out[1])))
        elif name == "sdtps":
            before(module, partial(_watched_modalities, watch))
        elif name == "crossnet":
            before(module, partial(_watched_inputs, watch, module.class_token))
        elif isinstance(module, TokenSelection):
            replace(module, "attentions", _watched_attentions)
            if name.startswith("crossnet"):  # forms no token: watch what it takes of each patch
                replace(module, "extra_weights", _watched_extra)
            else:
                after(module, partial(_watched_selection, watch))
    try:
        yield watch
    finally:
        for handle in handles:
            handle.remove()
        for module, method in restore:
            delattr(module, method)


def _watched_modalities(watch: Watch, patches: Mapping[str, Tensor], *rest: Any) -> tuple[Any, ...]:
    return {m: watch("selected_patches", p) for m, p in patches.items()}, *rest


def _watched_inputs(
    watch: Watch, class_token: bool, images: Tensor, words: Tensor, lengths: Tensor, *dense: Tensor
) -> tuple[Tensor, ...]:
    patches = watch("patches", watch("selected_patches", images[:, 1:] if class_token else images))
    if class_token:
        patches = torch.cat([watch("class_token", images[:, :1]), patches], dim=1)
    if dense:
        dense = (watch("dense_words", dense[0]), *dense[1:])
    return patches, watch("words", words), lengths, *dense


def _watched_selection(watch: Watch, found: Selection) -> Selection:
    return found if found.extra is None else found._replace(extra=watch("extra_token", found.extra))


def _watched_attentions(
    watch: Watch,
    attentions: Callable[..., Any],
    tokens: Tensor,
    self_guide: Tensor,
    guides: Iterable[Tensor],
) -> Any:
    watched_guides = [watch("guides", guide) for guide in guides]
    return attentions(tokens, watch("guides", self_guide), watched_guides)


def _watched_extra(
    watch: Watch, extra_weights: Callable[..., Tensor | None], *arguments: Tensor
) -> Tensor | None:
    weights = extra_weights(*arguments)
    return None if weights is None else watch("extra_token", weights)
