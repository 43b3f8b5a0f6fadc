"""What an audit has to say, in words, worst first. Each sentence names its numbers and its proof."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from sdtps.audit.examination import Examination, Look, Scaler, cosine

# A gradient this many times the baseline's trains something else than the baseline's loss.
EXPLODED = 100.0
# Within this of the baseline a counterfactual has lost the factor.
ORDINARY = 30.0

MOST_NAMED = 3
MOST_VARIANTS = 4
_NUMBER = re.compile(r"-?\d[\d.]*(e-?\d+)?")

# Parts that are made to learn: without gradient they are dead weight.
TRAINED = {
    "encoder": "the image encoder",
    "text_encoder": "the text encoder",
    "score_mlp": "the score MLP",
    "relevance": "the learned relevance",
    "guide_weights": "the weights of own and guides",
    "aggregation": "the aggregation",
    "alignment": "the alignment's MLP",
    "projections": "the projections",
    "pife": "the combined global features (PIFE)",
    "fusion": "the fusion of modalities",
    "sacr": "SACR",
    "lif": "LIF's quality maps",
    "frca": "FRCA",
    "heads": "the heads",
}
NAMES = TRAINED | {
    "selected_patches": "the patches on their way through SDTPS",
    "patches": "the patches",
    "class_token": "the class token",
    "guides": "the attention guides",
    "extra_token": "the extra token",
    "words": "the sparse words",
    "dense_words": "the dense words",
}
OF_SDTPS = ("score_mlp", "relevance", "guide_weights", "aggregation")
# The part whose factor leads the sentence, if it exploded: where the damage is done.
LEADING = ("score_mlp", "relevance", "guides", "selected_patches", "patches", "encoder")

Severity = Literal["error", "warning", "note"]
_RANK = {"error": 0, "warning": 1, "note": 2}


@dataclass(frozen=True)
class Finding:
    """One sentence about one variant.

    Attributes:
        severity: `error` = this cannot train as meant; `warning` = a part does nothing; `note` = by
            design, worth knowing.
        kind: exploded, nonfinite, scaler, no_gradient, cut, no_effect.
        factor: times the baseline's gradient, where that is what was found.
    """

    variant: str
    severity: Severity
    kind: str
    text: str
    factor: float | None = None

    def __str__(self) -> str:
        return f"{self.variant}: {self.text}"


def findings(examinations: Mapping[str, Examination], baseline: str, steps: int) -> list[Finding]:
    """Everything that is to be said, worst first."""
    found: list[Finding] = []
    reference = examinations[baseline]
    for name, examined in examinations.items():
        found += _nonfinite(name, examined, steps)
        found += _exploded(name, examined, baseline, reference)
        found += _silent(name, examined)
        found += _no_effect(name, examined)
        found += _ratio_loss(name, examined)
    return worst_first(found)


def worst_first(found: Iterable[Finding]) -> list[Finding]:
    """By severity, then by factor; otherwise as they came."""
    return sorted(found, key=lambda f: (_RANK[f.severity], -(f.factor or 0.0)))


def grouped(found: Iterable[Finding]) -> list[tuple[str, Finding]]:
    """Findings that differ in numbers only, once: (whose they are, the first of them), worst first.

    Errors are never grouped: each one's numbers count.
    """
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for finding in worst_first(found):
        key: tuple[str, ...] = (finding.severity, finding.kind, _NUMBER.sub("#", finding.text))
        if finding.severity == "error":
            key = (*key, finding.variant)
        groups.setdefault(key, []).append(finding)
    return [(_whose([f.variant for f in group]), group[0]) for group in groups.values()]


def _whose(variants: list[str]) -> str:
    more = len(variants) - MOST_VARIANTS
    if more <= 1:
        return ", ".join(variants)
    return f"{', '.join(variants[:MOST_VARIANTS])} and {more} others"


def _nonfinite(name: str, examined: Examination, steps: int) -> list[Finding]:
    for when, look in (
        ("at initialisation", examined.initial),
        (f"after {steps} steps", examined.after),
    ):
        parts = [NAMES.get(p, p) for p, g in look.parts.items() if g.state == "nonfinite"]
        if not math.isfinite(look.loss):
            return [Finding(name, "error", "nonfinite", f"the loss is not finite {when}.")]
        if parts:
            text = f"the gradient of {_listed(parts)} is not finite {when}."
            return [Finding(name, "error", "nonfinite", text)]
    return []


def _exploded(name: str, examined: Examination, baseline: str, reference: Examination) -> list[Finding]:
    times = factors(examined.initial, reference.initial)
    large = {part: factor for part, factor in times.items() if factor >= EXPLODED}
    scaler = _scaler_sentence(examined.scaler)
    if not large:  # an overflow in fp16 that no factor explains
        return [Finding(name, "error", "scaler", scaler.strip())] if scaler else []
    part = next((p for p in LEADING if p in large), max(large, key=lambda p: large[p]))
    proof = _cause(examined, reference, part)
    text = f"{NAMES[part]}'s gradient is {number(large[part])} times {baseline}'s{proof}"
    others = sorted((p for p in large if p != part), key=lambda p: -large[p])[:MOST_NAMED]
    if others:
        listed = _listed([f"{NAMES[p]} ({number(large[p])})" for p in others])
        text += f" The same with {listed}."
    direction = cosine(examined.initial.patch_gradient, reference.initial.patch_gradient)
    if direction is not None:
        text += f" The patches' gradient has a cosine of {direction:.2f} with {baseline}'s."
    return [Finding(name, "error", "exploded", text + scaler, large[part])]


def _cause(examined: Examination, reference: Examination, part: str) -> str:
    """How the sentence goes on: is the factor the mask's constant, gone with it and falling with it?"""
    tried = {
        name: factors(look, reference.initial).get(part)
        for name, look in examined.counterfactuals.items()
    }
    constant = examined.config.sdtps.axes.mask.constant
    own = factors(examined.initial, reference.initial)[part]
    tenth = tried.get("constant / 10")
    if constant is None or tenth is None:
        return "; no constant mask is in play."
    without, log = tried.get("mask none"), tried.get("mask log")
    proof = (
        f"{number(tenth)} times with a tenth of the constant, {_times(log)} with the log mask, "
        f"{_times(without)} with no mask"
    )
    gone = all(factor is None or factor < ORDINARY for factor in (without, log))
    if gone and 5 < own / tenth < 20:
        return f"; the factor is the mask constant {number(constant)} (it is {proof})."
    return f"; the mask alone does not explain it ({proof})."


def _scaler_sentence(scaler: Scaler | None) -> str:
    if scaler is None or scaler.skipped <= scaler.steps / 2:
        return ""
    return (
        f" In fp16 the loss scaler skipped {scaler.skipped} of {scaler.steps} steps and fell to "
        f"{scaler.scale:g}: nothing is trained."
    )


def _silent(name: str, examined: Examination) -> list[Finding]:
    """Parts that get no gradient; by design where a no_grad is asked for, and said all the same."""
    found = []
    look, sdtps = examined.initial, examined.config.sdtps
    config = examined.config
    frozen = config.backbone.frozen if config.task == "reid" else config.image_encoder.frozen
    if frozen:
        text = "the image encoder learns nothing: it is frozen, and its outputs are computed once."
        found.append(Finding(name, "note", "no_gradient", text))
    dead = [p for p in TRAINED if p in look.parts and not look.parts[p].learns]
    if "encoder" in dead:
        dead.remove("encoder")
        text = "the image encoder receives no gradient"
        if sdtps.axes.no_grad.selection:
            text += ": the selection runs inside no_grad, and there is no other way to it"
        found.append(Finding(name, "error", "no_gradient", text + "."))
    of_sdtps = [p for p in OF_SDTPS if p in look.parts]
    if of_sdtps and set(of_sdtps) <= set(dead) and sdtps.enabled:
        dead = [p for p in dead if p not in of_sdtps]
        text = (
            f"no parameter of SDTPS learns, so {_listed([NAMES[p] for p in of_sdtps])} "
            f"{'stay' if len(of_sdtps) > 1 else 'stays'} at the random start"
        )
        if not sdtps.axes.decision.carries_gradient:
            text += f": the decision {sdtps.decision} carries no gradient, and nothing else does"
        found.append(Finding(name, "error", "no_gradient", text + "."))
    if dead:
        share = look.without_gradient
        text = (
            f"{_listed([NAMES[p] for p in dead])} {'learn' if len(dead) > 1 else 'learns'} nothing: "
            f"{_states(look, dead)} ({100 * share:.1f} % of all parameters get no gradient)."
        )
        found.append(Finding(name, "warning", "no_gradient", text))
    patches = look.parts.get("selected_patches")
    # Re-identification selects among the encoder's outputs themselves: nothing before them learns.
    cut = not (frozen and config.task == "reid")
    if patches is not None and not patches.learns and cut:
        text = "no gradient reaches the patches through SDTPS"
        text += _by_design(sdtps.axes.no_grad.selection, "the selection runs inside no_grad")
        found.append(Finding(name, "warning", "cut", text))
    guides = look.parts.get("guides")
    if guides is not None and not guides.learns and not sdtps.axes.no_grad.selection and cut:
        text = "no gradient reaches the attention guides"
        text += _by_design(sdtps.axes.no_grad.own, "their cosines are computed inside no_grad")
        found.append(Finding(name, "note", "cut", text))
    dense = look.parts.get("dense_words")
    if dense is not None and not dense.learns:
        text = "no gradient reaches the dense words"
        reason = "all they do is guide the selection, inside no_grad"
        if not sdtps.enabled:
            reason = "without SDTPS they do nothing"
        text += _by_design(sdtps.axes.no_grad.guides or not sdtps.enabled, reason)
        found.append(Finding(name, "note", "cut", text))
    return found


def _no_effect(name: str, examined: Examination) -> list[Finding]:
    """A decision with noise whose removal changes no part's gradient enters nothing."""
    plain = examined.counterfactuals.get("decision topk")
    initial = examined.initial
    if plain is None or plain.loss != initial.loss or not _same(plain, initial):
        return []
    axis = examined.config.sdtps.axes.decision
    text = f"{axis.name} changes neither the loss nor any gradient: the decision enters nothing"
    mask = examined.config.sdtps.axes.mask
    if mask.bias is None and not mask.scales_tokens:
        text += f" (mask {mask.name})"
    return [Finding(name, "warning", "no_effect", text + ".")]


def _ratio_loss(name: str, examined: Examination) -> list[Finding]:
    """A ratio loss without which every gradient is the same is a constant."""
    without = examined.counterfactuals.get("ratio none")
    if without is None or not _same(without, examined.initial):
        return []
    value = examined.initial.loss - without.loss
    text = f"the ratio loss trains nothing: it is a constant ({value:.2g}) under an exact Top-K."
    return [Finding(name, "note", "no_effect", text)]


def _same(first: Look, second: Look) -> bool:
    """Whether every part has the same gradient, up to rounding."""
    return all(
        second.parts[part].state == gradient.state
        and math.isclose(second.parts[part].norm or 0.0, gradient.norm or 0.0, rel_tol=1e-6)
        for part, gradient in first.parts.items()
    )


def factors(look: Look, reference: Look) -> dict[str, float]:
    """Norm over the reference's norm, of the parts where both have one."""
    return {
        part: gradient.norm / reference.parts[part].norm  # type: ignore[operator]
        for part, gradient in look.parts.items()
        if gradient.norm and part in reference.parts and reference.parts[part].norm
    }


def _by_design(asked: bool, reason: str) -> str:
    return f": {reason}." if asked else "."


def _states(look: Look, parts: list[str]) -> str:
    states = {look.parts[p].state for p in parts}
    if states == {"none"}:
        return "no path leads to it" if len(parts) == 1 else "no path leads to them"
    return "the gradient is exactly zero" if states == {"zero"} else "no path, or exactly zero"


def _times(factor: float | None) -> str:
    return "none" if factor is None else f"{number(factor)} times"


def number(value: float) -> str:
    """1e10 rather than 1.0e+10, and no exponent near 1."""
    if 99.5 <= abs(value) < 999.5:
        return f"{value:.0f}"
    if 0.01 <= abs(value) < 99.5:
        return f"{value:.2g}"
    mantissa, _, exponent = f"{value:.1e}".partition("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent)}"


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
