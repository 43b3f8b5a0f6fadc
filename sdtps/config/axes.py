"""The axes of SDTPS: one entry for each value a study can choose, with its arithmetic.

    relevance    how relevant a patch is to a guide: a cosine, or learned
    normalise    the range of those relevances
    score        how a patch's score is made of them
    no_grad      what is computed without gradient
    decision     how scores become the decision D, and what gradient D carries
    mask         how D enters the aggregation
    aggregation  how many weight networks merge the kept tokens
    extra_token  how the dropped tokens become one token
    form, alignment, ratio    retrieval: the cross-net's branches, its pooling, the ratio loss

An entry says everything that depends on the value: its formula, the settings that act with it, what the
cross-net may not shortcut, and what the audit compares it with; a comment beside it gives its source.
Both tasks, the reference loop and the audit ask the entry; nothing else compares names. A new value is
one new entry; `tests/sdtps/test_axes.py` then runs it through both tasks and the reference loop.

Shapes: scores and D are [..., N] for N patches, of which K are kept; leading axes may be images, or
images x captions. The formulas use tensor methods only, so that this module imports no torch: plans and
`--help` read it.

Sources: `paper` = arXiv 2511.01390v1; `paper-version module` = the v2 re-implementation of the paper;
`released` = the SEPS open-source release; `v0` to `v4` = the stages of the re-identification module
(v1 65c69af, v2 6334359, v3 f6f6c69, v4 8c5696a); seven digits = a commit of DeMo2.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from sdtps.config.wording import shown
from sdtps.system.errors import did_you_mean

if TYPE_CHECKING:
    from torch import Tensor

    from sdtps.config.common import SdtpsConfig as Settings

Changes = dict[str, dict[str, Any]]

MINMAX_EPSILON = 1e-8  # paper-version module and v0 to v4
ZSCORE_EPSILON = 1e-5  # 66c66c5 and d128cea
GUMBEL_EPSILON = 1e-9  # inside both logarithms; limits float32 noise to [-3.03, 16.62]
IMPORTANCE_EPSILON = 1e-8  # v4
# Below this D counts as this in the log mask; only dropped tokens do. float32's smallest normal number.
SMALLEST_DECISION = 2.0**-126


@dataclass(frozen=True, kw_only=True)
class Value:
    """One value of an axis.

    Attributes:
        name: as a configuration writes it.
        settings: keys of `SdtpsConfig` that act with this value; without any value that names them
            they do nothing, and a configuration that sets them is refused.
        needs: other axes -> the values that this one goes with; it goes with all of the others.
        tasks: those that have it.
    """

    name: str
    settings: tuple[str, ...] = ()
    needs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    tasks: tuple[str, ...] = ("reid", "retrieval")


# -- relevance --------------------------------------------------------------------------------------


class Network(Protocol):
    """What the formulas of learned relevances read of `sdtps.selection.PatchAttention`."""

    alpha: Tensor
    temperature: Tensor
    mix: Tensor
    head_weights: Tensor

    def gate_logits(self, cosine: Tensor) -> Tensor: ...


Combine = Callable[["Tensor", "Tensor", Network, "Settings"], "Tensor"]


@dataclass(frozen=True, kw_only=True)
class Relevance(Value):
    """How relevant a patch is to a guide, [..., N].

    Attributes:
        combine: (logits [..., H, N] of attention, guide = query, patches = keys; cosine [..., N];
            the network; settings) -> relevance. None = nothing is learned.
        unit: without `combine`, whether patch and guide are normalised (cosine) or not (dot / C).
        learned: names of the network's scalars, with their start.
        per_head: start of one weight for each head, as a multiple of 1 / H.
        gate: how cosines become one gate logit for each head: (weight, bias) at the start, the same
            for all heads; or the widths of an MLP's hidden and last layer (None = H) and the gain of
            its start.
        gate_norm: whether a LayerNorm over the heads comes behind the gate.
        projected: whether each head takes the cosine of its own projections.
        patch_queries: whether patches are queries and the guide the key.
    """

    combine: Combine | None = None
    unit: bool = True
    learned: Mapping[str, float] = field(default_factory=dict)
    per_head: float | None = None
    gate: tuple[float, float] | tuple[int, int | None, float] | None = None
    gate_norm: bool = False
    projected: bool = False
    patch_queries: bool = False


def mean_of_heads(weights: Tensor) -> Tensor:
    return weights.mean(dim=-2)


def shares(weights: Tensor) -> Tensor:
    """Weights [..., N] that sum to 1; zeros stay zeros."""
    return weights / (weights.sum(dim=-1, keepdim=True) + MINMAX_EPSILON)


def gated(logits: Tensor, cosine: Tensor, net: Network, settings: Settings) -> Tensor:
    """Each head's attention times a gate made of the cosine; heads are averaged."""
    return mean_of_heads(logits.softmax(dim=-1) * net.gate_logits(cosine).sigmoid())


def gated_shares(logits: Tensor, cosine: Tensor, net: Network, settings: Settings) -> Tensor:
    """As `gated`; each head sums to 1 again."""
    return mean_of_heads(shares(logits.softmax(dim=-1) * net.gate_logits(cosine).sigmoid()))


def weighted_logits(logits: Tensor, cosine: Tensor, net: Network, settings: Settings) -> Tensor:
    """Weighted sum of the heads' logits, no softmax."""
    return (logits * net.head_weights.unsqueeze(-1)).sum(dim=-2)


def mixed(logits: Tensor, cosine: Tensor, net: Network, settings: Settings) -> Tensor:
    """sigmoid(w) attention + (1 - sigmoid(w)) cosine."""
    weight = net.mix.sigmoid()
    return weight * mean_of_heads(logits.softmax(dim=-1)) + (1 - weight) * cosine


def times_cosine(logits: Tensor, cosine: Tensor, net: Network, settings: Settings) -> Tensor:
    """Attention times cosine; can be negative."""
    return mean_of_heads(logits.softmax(dim=-1)) * cosine


def biased(logits: Tensor, cosine: Tensor, net: Network, settings: Settings) -> Tensor:
    """softmax(logits + cosine / its temperature), heads averaged."""
    bias = (cosine / settings.cosine_temperature).unsqueeze(-2)
    return mean_of_heads((logits + bias).softmax(dim=-1))


def biased_learned(logits: Tensor, cosine: Tensor, net: Network, settings: Settings) -> Tensor:
    """softmax((logits + alpha cosine) / T) with learned alpha and T."""
    biased_logits = logits + net.alpha * cosine.unsqueeze(-2)
    return mean_of_heads((biased_logits / net.temperature).softmax(dim=-1))


def boosted(logits: Tensor, cosine: Tensor, net: Network, settings: Settings) -> Tensor:
    """c + alpha c w: c the cosine in [0, 1], w N times the attention at temperature T."""
    unit = (cosine + 1) / 2
    attention = mean_of_heads((logits / net.temperature).softmax(dim=-1))
    return unit + net.alpha * unit * (cosine.shape[-1] * attention)


def cosine_gated(logits: Tensor, cosine: Tensor, net: Network, settings: Settings) -> Tensor:
    """softmax(alpha cosine / T), each head gated by its logits; each sums to 1 again."""
    attention = (net.alpha * cosine / net.temperature).softmax(dim=-1)
    return mean_of_heads(shares(attention.unsqueeze(-2) * logits.sigmoid()))


_ALPHA_T = {"alpha": 1.0, "temperature": 1.0}


def learned(name: str, combine: Combine, *settings: str, **more: Any) -> Relevance:
    """A relevance with an attention network."""
    acting = ("relevance_heads", "relevance_share", *settings)
    return Relevance(name=name, combine=combine, settings=acting, **more)


RELEVANCES = (
    Relevance(name="cosine"),  # of patch and guide: released; v0 to v4
    Relevance(name="dot", unit=False),  # equation 2 as printed, dot product / C: paper
    # 6e09693
    learned("attention_logits", weighted_logits, per_head=1.0, patch_queries=True),
    learned("attention_cosine", mixed, learned={"mix": 1.0}),  # 9a18c62
    learned("gated_mlp", gated, gate=(32, 1, 0.1)),  # the gate is an MLP of the cosine: c2549be
    learned("gated", gated, gate=(1.0, 0.0)),  # attention x sigmoid(a cosine + b): 019ece5
    learned("gated_half", gated, gate=(0.5, 0.5)),  # from a = b = 0.5: 83bc831
    # As gated_half, gate logits normalised over heads: 83bc831 with its two options on
    learned("gated_norm", gated_shares, gate=(0.5, 0.5), gate_norm=True),
    # As gated_shares, by cosines of the projections: bc12492
    learned("gated_projected", gated_shares, gate=(1.0, 0.0), projected=True),
    learned("gated_shares", gated_shares, gate=(1.0, 0.0)),  # 00f8b57; 1f92e56; 9a85faa; 715926a
    learned("gated_heads_mlp", gated_shares, gate=(8, None, 0.5)),  # one MLP for all heads: 18323ed
    learned("attention_times_cosine", times_cosine),  # ca287c1
    learned("biased_learned", biased_learned, learned=_ALPHA_T),  # 9fa81e3; 6306fc6; 1915c89
    learned("boosted", boosted, learned=_ALPHA_T),  # a5b5c75
    learned("cosine_gated", cosine_gated, learned=_ALPHA_T),  # c1f836a
    # e5e6243; one head: 413d1df; one head and 0.3: 66c66c5, d128cea
    learned("biased", biased, "cosine_temperature"),
)


# -- score ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Score(Value):
    """How the score of a patch [..., N] is made.

    Attributes:
        combine: (own relevance, guides' relevances, what the network says, settings) -> score.
            Relevances are normalised.
        network: `mlp` = s^p of equation 1, [..., N]; `weights` = one learned logit [1 + guides] for own
            and each guide; `router`, `deep_router` = MLPs that make them of all global features.
        guides_of_a_branch: how many guides each of two branches sees; None = all.
    """

    combine: Callable[[Tensor, Sequence[Tensor], Tensor | None, Settings], Tensor]
    network: Literal["mlp", "weights", "router", "deep_router"] | None = None
    guides_of_a_branch: int | None = None


def attention_sum(
    own: Tensor, guides: Sequence[Tensor], predicted: Tensor | None, settings: Settings
) -> Tensor:
    """The image's own relevance plus the guides'."""
    return sum(guides, own)


def mean_of_three(
    own: Tensor, guides: Sequence[Tensor], predicted: Tensor | None, settings: Settings
) -> Tensor:
    """Mean of own and guides' relevances."""
    return sum(guides, own) / (1 + len(guides))


def weighted(
    own: Tensor, guides: Sequence[Tensor], predicted: Tensor | None, settings: Settings
) -> Tensor:
    """Softmax of the network's logits [..., 1 + guides] as weights of own and guides' relevances."""
    assert predicted is not None
    relevances = (own, *guides)
    weights = predicted[..., : len(relevances)].softmax(dim=-1).unsqueeze(-1).unbind(dim=-2)
    first, *others = (w * r for w, r in zip(weights, relevances, strict=True))
    return sum(others, first)


def equation_3(
    own: Tensor, guides: Sequence[Tensor], predicted: Tensor | None, settings: Settings
) -> Tensor:
    """(1 - 2 beta) s^p + beta (guides + 2 own): in [0, 1 + 2 beta] with min-max and two guides."""
    assert predicted is not None
    beta = settings.beta
    return (1 - 2 * beta) * predicted + beta * sum(guides, 2 * own)


_ROUTED = Score(name="routed", combine=weighted, network="router", tasks=("reid",))
SCORES = (
    # paper; v0 to v4
    Score(name="eq3", settings=("beta",), combine=equation_3, network="mlp"),
    Score(name="attention_sum", combine=attention_sum, guides_of_a_branch=1),  # released; LAPS
    Score(name="mean", combine=mean_of_three),  # 21f61b8 to 83bc831; f291f52; 05d17b7; 66c66c5
    Score(name="weighted", combine=weighted, network="weights"),  # bc12492 to ca287c1
    _ROUTED,  # by an MLP of the three global features: 9fa81e3 to 413d1df
    replace(_ROUTED, name="routed_deep", network="deep_router"),  # deeper, with dropout: d128cea
)


# -- normalise --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Normalise(Value):
    """Norm of equation 2, on relevances [..., N] in float32 at least."""

    apply: Callable[[Tensor], Tensor] = lambda relevance: relevance


def minmax(relevance: Tensor) -> Tensor:
    """Each row to [0, 1]; a constant row becomes 0."""
    low = relevance.amin(dim=-1, keepdim=True)
    high = relevance.amax(dim=-1, keepdim=True)
    return (relevance - low) / (high - low + MINMAX_EPSILON)


def zscore_sigmoid(relevance: Tensor) -> Tensor:
    """Sigmoid of each row's standard scores (deviation with N - 1)."""
    mean, deviation = relevance.mean(dim=-1, keepdim=True), relevance.std(dim=-1, keepdim=True)
    return ((relevance - mean) / (deviation + ZSCORE_EPSILON)).sigmoid()


def clamp_minmax(relevance: Tensor) -> Tensor:
    """As `minmax`; negative relevances become 0 first."""
    return minmax(relevance.clamp_min(0.0))


NORMALISATIONS = (
    Normalise(name="minmax", apply=minmax),  # paper-version module; v0 to v4
    Normalise(name="none"),  # released
    Normalise(name="clamp_minmax", apply=clamp_minmax),  # 6306fc6 to c1f836a
    Normalise(name="zscore_sigmoid", apply=zscore_sigmoid),  # 66c66c5; d128cea
)


# -- no_grad ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class NoGrad(Value):
    """What is computed inside no_grad.

    Attributes:
        guides: the relevances to the guides; own: that to the image's own feature;
        selection: scores, decision and the gathering of tokens too.
    """

    guides: bool = False
    own: bool = False
    selection: bool = False


NO_GRADS = (
    NoGrad(name="none"),  # v0; v2 to v4; all later commits
    NoGrad(name="cross", guides=True),  # none published
    # v1; LAPS; paper-version module; sdtps_fixed.py of 5577328
    NoGrad(name="attention", guides=True, own=True),
    NoGrad(name="selection", guides=True, own=True, selection=True),  # released
)


# -- decision ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Decision(Value):
    """How scores become D [..., N]; K tokens are kept, those of the highest scores.

    Attributes:
        decide: (hard D of zeros and ones, score, draws in [0, 1) or None, settings) -> D, equal to
            the hard D in its values unless `soft`; None = the hard D itself, without gradient.
        mix: (score, kept scores [..., K], draws or None, settings) -> rows [..., R, N] that sum to 1:
            kept tokens are these R mixtures of all tokens, and D is each token's weight in them.
            None = kept tokens are gathered as they are.
        soft: whether D lies between 0 and 1; it then only scales tokens in place.
        reads_keep_ratio: whether rho has a part in it.
        draws_noise: whether `decide` or `mix` takes draws.
        counterfactuals: what else the audit examines to prove a cause: name -> changed settings.
    """

    decide: Callable[[Tensor, Tensor, Tensor | None, Settings], Tensor] | None = None
    mix: Callable[[Tensor, Tensor, Tensor | None, Settings], Tensor] | None = None
    soft: bool = False
    reads_keep_ratio: bool = True
    draws_noise: bool = False
    counterfactuals: Changes = field(default_factory=dict)

    @property
    def carries_gradient(self) -> bool:
        """Whether D passes a gradient on to the scores."""
        return self.decide is not None or self.mix is not None

    def acts(self, settings: Settings, training: bool) -> bool:
        """Whether D now is more than the hard Top-K decision, as it mostly is in training alone."""
        noisy_in_eval = "noise_in_eval" in self.settings and settings.noise_in_eval
        return self.carries_gradient and (training or self.soft or noisy_in_eval)


def gumbel_noise(uniform: Tensor, clamp: float | None = None) -> Tensor:
    """Gumbel(0, 1) noise from draws in [0, 1), clamped to [-clamp, clamp] (v3: 5)."""
    noise = -(-(uniform + GUMBEL_EPSILON).log() + GUMBEL_EPSILON).log()
    return noise if clamp is None else noise.clamp(-clamp, clamp)


def noisy(score: Tensor, uniform: Tensor | None, settings: Settings) -> Tensor:
    """Scores with Gumbel noise from draws of their shape."""
    assert uniform is not None
    return score + gumbel_noise(uniform, settings.noise_clamp)


def gumbel_softmax(score: Tensor, uniform: Tensor | None, settings: Settings) -> Tensor:
    """softmax((score + noise) / temperature)"""
    return (noisy(score, uniform, settings) / settings.temperature).softmax(dim=-1)


def straight_through(hard: Tensor, soft: Tensor) -> Tensor:
    """The hard decision forward, the gradient of the soft one backward.

    The bracket comes first: soft - soft is exactly 0, so the sum is exactly `hard`. In the other
    order (hard + soft) - soft is off by up to 6e-8, which the 1e10 mask turns into logits of -596.
    """
    return hard + (soft - soft.detach())


def gumbel_straight_through(
    hard: Tensor, score: Tensor, uniform: Tensor | None, settings: Settings
) -> Tensor:
    """Gradient of softmax((score + noise) / temperature); the noise never changes what is kept."""
    return straight_through(hard, gumbel_softmax(score, uniform, settings))


def gumbel_sigmoid_straight_through(
    hard: Tensor, score: Tensor, uniform: Tensor | None, settings: Settings
) -> Tensor:
    """Gradient of sigmoid((score + noise - 0.5) / temperature), each token by itself."""
    above = noisy(score, uniform, settings) - 0.5
    return straight_through(hard, (above / settings.temperature).sigmoid())


def sigmoid_above_mean(
    hard: Tensor, score: Tensor, uniform: Tensor | None, settings: Settings
) -> Tensor:
    """Sigmoid of the distance to the mean score."""
    return ((score - score.mean(dim=-1, keepdim=True)) / settings.mask_temperature).sigmoid()


def sigmoid_above_quantile(
    hard: Tensor, score: Tensor, uniform: Tensor | None, settings: Settings
) -> Tensor:
    """Sigmoid of the distance to the (1 - rho) quantile, by linear interpolation."""
    rising = score.sort(dim=-1).values
    place = (1 - settings.keep_ratio) * (score.shape[-1] - 1)
    below = math.floor(place)
    low, high = rising[..., below], rising[..., min(below + 1, score.shape[-1] - 1)]
    quantile = (low + (place - below) * (high - low)).unsqueeze(-1)
    return ((score - quantile) / settings.mask_temperature).sigmoid()


def gumbel_mean(
    score: Tensor, kept_score: Tensor, uniform: Tensor | None, settings: Settings
) -> Tensor:
    """One row: softmax((score + noise) / temperature) over all tokens."""
    return gumbel_softmax(score, uniform, settings).unsqueeze(-2)


def soft_sort(score: Tensor, kept_score: Tensor, uniform: Tensor | None, settings: Settings) -> Tensor:
    """One weight row over all tokens for each kept rank (SoftSort, Prillo and Eisenschlos 2020).

    The rows tend to those that gather the Top-K as the temperature falls.
    """
    distance = (kept_score.unsqueeze(-1) - score.unsqueeze(-2)).abs()
    return (-distance / settings.temperature).softmax(dim=-1)


_GUMBEL_STE = Decision(
    name="gumbel_ste",
    settings=("temperature", "noise_clamp", "noise_in_eval"),
    decide=gumbel_straight_through,
    draws_noise=True,
    counterfactuals={"decision topk": {"decision": "topk"}},
)
_SIGMOID_MEAN = Decision(
    name="sigmoid_mean",
    settings=("mask_temperature",),
    needs={"aggregation": ("in_place",)},
    tasks=("reid",),
    decide=sigmoid_above_mean,
    soft=True,
    reads_keep_ratio=False,
)
DECISIONS = (
    Decision(name="topk"),  # released; v4; 21f61b8 to 66c66c5 as logged
    _GUMBEL_STE,  # v0 to v3; 21f61b8 to 05d17b7
    # In training kept tokens are mixtures, in evaluation Top-K: none published
    Decision(name="soft", settings=("temperature",), mix=soft_sort),
    # As soft, with one token: design note 002, remedy A
    Decision(
        name="gumbel_mean",
        settings=("temperature", "noise_clamp"),
        mix=gumbel_mean,
        draws_noise=True,
    ),
    # 66c66c5
    replace(_GUMBEL_STE, name="gumbel_sigmoid_ste", decide=gumbel_sigmoid_straight_through),
    _SIGMOID_MEAN,  # 9fa81e3 to e5e6243
    replace(  # d128cea
        _SIGMOID_MEAN,
        name="sigmoid_quantile",
        decide=sigmoid_above_quantile,
        reads_keep_ratio=True,
    ),
)


# -- mask -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Mask(Value):
    """How D enters the aggregation.

    Attributes:
        bias: what is added to the logits, [..., K], from D [..., K] of the tokens that are merged;
            None = nothing. In the cross-net dropped tokens are among them, with D 0 and score -inf.
        reads_score: whether `bias` takes the score [..., K] instead of D.
        scales_tokens: whether kept tokens are multiplied by D. D's gradient then passes through the
            tokens and a uniform extra token; where D carries one, the cross-net must gather each
            pair's tokens.
        constant: C, of masks that have one.
        counterfactuals: as of `Decision`; examined where D carries a gradient.
    """

    bias: Callable[[Tensor], Tensor] | None = None
    reads_score: bool = False
    scales_tokens: bool = False
    constant: float | None = None
    counterfactuals: Changes = field(default_factory=dict)

    def masked(self, logits: Tensor, decision: Tensor | None, score: Tensor | None) -> Tensor:
        """Logits [..., A, K] with D or score [..., K] put in; unchanged where that is None."""
        read = score if self.reads_score else decision
        if self.bias is None or read is None:
            return logits
        return logits + self.bias(read).unsqueeze(-2)


def log_decision(decision: Tensor) -> Tensor:
    """log D. The floor touches dropped tokens only: of a kept 1 the log is exactly 0, its slope 1."""
    return decision.clamp_min(SMALLEST_DECISION).log()


def log_importance(score: Tensor) -> Tensor:
    """log of the softmax of the merged tokens' scores."""
    return (score.softmax(dim=-1) + IMPORTANCE_EPSILON).log()


_MERGED = {"aggregation": ("single", "dual")}  # where there is a softmax to enter


def subtracting(constant: float) -> Mask:
    """The mask published with C = 1e10 (v1 to v3): right in the forward, but d logits / d D = C."""
    return Mask(
        name=f"subtract_{constant:g}".replace("e+", "e"),  # one spelling, one identity
        needs=_MERGED,
        bias=lambda decision: -((1 - decision) * constant),
        constant=constant,
        counterfactuals={
            "mask none": {"mask": "none"},
            "mask log": {"mask": "log"},
            "constant / 10": {"mask": f"subtract_{constant / 10:g}"},
        },
    )


MASKS = (
    Mask(name="none"),  # released; paper-version module
    subtracting(1e10),
    Mask(name="log", needs=_MERGED, bias=log_decision),  # the repair: a bounded gradient
    Mask(name="importance", needs=_MERGED, bias=log_importance, reads_score=True),  # v4; 6e09693
    # sdtps_fixed.py of 5577328; 21f61b8 and later
    Mask(
        name="multiply",
        needs={"decision": tuple(d.name for d in DECISIONS if d.mix is None)},
        scales_tokens=True,
    ),
)
_SUBTRACT = re.compile(r"subtract_(\d+(?:\.\d+)?(?:e[+-]?\d+)?)")


# -- aggregation ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Aggregation(Value):
    """How kept tokens are merged.

    Attributes:
        networks: names of its weight networks, one for each selection that it merges. None: kept tokens
            stay as they are, of every selection that there is.
        in_place: whether all N tokens stay where they are, times D.
    """

    networks: tuple[str, ...] = ()
    in_place: bool = False


_RATIOS = ("aggregation_ratio", "aggregation_hidden")
AGGREGATIONS = (
    Aggregation(name="none"),  # v0
    Aggregation(name="single", networks=("weight",), settings=_RATIOS),  # released; LAPS; v1 to v4
    # Equation 4, the outputs of two selections added: paper; paper-version module
    Aggregation(name="dual", networks=("weight_sparse", "weight_dense"), settings=_RATIOS),
    # 21f61b8 and later. Not for retrieval: its cosines do not see a token's length.
    Aggregation(
        name="in_place",
        needs={"mask": ("multiply",), "extra_token": ("none",)},
        tasks=("reid",),
        in_place=True,
    ),
)


# -- extra token ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ExtraToken(Value):
    """What one extra token takes of each token, [..., N]; zeros where nothing is dropped.

    Attributes:
        of_dropped: (D [..., N], scores of the dropped tokens by falling value and their indices
            [..., N - K]) -> weights. None = no extra token.
        of_mixed: (D, score [..., N]) -> weights, where kept tokens are mixtures of all.
        while_idle: the value that counts while the decision does not act; None = this one.
    """

    of_dropped: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None
    of_mixed: Callable[[Tensor, Tensor], Tensor] | None = None
    while_idle: ExtraToken | None = None


def softmax_of_dropped(decision: Tensor, dropped_score: Tensor, dropped: Tensor) -> Tensor:
    """Softmax of the dropped tokens' scores."""
    return decision.new_zeros(decision.shape).scatter(-1, dropped, dropped_score.softmax(dim=-1))


def softmax_of_mixed(decision: Tensor, score: Tensor) -> Tensor:
    """Softmax of all scores, times 1 - D."""
    return shares((1 - decision) * (score - score.amax(dim=-1, keepdim=True).detach()).exp())


_SOFTMAX = ExtraToken(name="softmax", of_dropped=softmax_of_dropped, of_mixed=softmax_of_mixed)
_UNIFORM = ExtraToken(
    name="uniform",
    of_dropped=lambda decision, dropped_score, dropped: shares(1 - decision),
    of_mixed=lambda decision, score: shares(1 - decision),
)
EXTRA_TOKENS = (
    _SOFTMAX,  # released; v0 to v4; 6e09693
    _UNIFORM,  # the mean of the dropped tokens: none published
    # Uniform while the decision carries a gradient: sdtps_fixed.py of 5577328
    replace(_UNIFORM, name="uniform_in_training", while_idle=_SOFTMAX),
    ExtraToken(name="none"),  # 21f61b8 and later
)


# -- retrieval: form, alignment, ratio loss -----------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Form(Value):
    """How the cross-net puts sparse caption and dense text together.

    Attributes:
        dense: whether there is a branch that the dense text guides.
        together: whether both guides lead both branches, which are merged and aligned with the sparse
            words. Otherwise each text guides and is aligned with a branch of its own, and the
            similarities are added.
    """

    dense: bool = True
    together: bool = False


FORMS = (
    Form(name="laps", dense=False),  # one branch, no dense text: LAPS
    Form(name="released"),
    Form(name="paper", together=True),  # paper; paper-version module
)


@dataclass(frozen=True, kw_only=True)
class Alignment(Value):
    """How the best matches of tokens and words are pooled (HRPA, equation 5).

    Attributes:
        mean: whether their mean counts; top_k: whether an MLP of the K largest does.
        leak: slope of the cosines below zero, before the mean.
    """

    mean: bool = True
    top_k: bool = False
    leak: float = 1.0


ALIGNMENTS = (
    Alignment(name="mean", leak=0.1),  # released
    Alignment(name="mean_topk", settings=("top_k",), top_k=True),  # paper; paper-version module
    # paper, "only relevance-aware selection"
    Alignment(name="topk", settings=("top_k",), mean=False, top_k=True),
)


@dataclass(frozen=True, kw_only=True)
class RatioLoss(Value):
    """How far the decisions D (B, T, N) of the branches are from keeping rho of the patches.

    Attributes:
        loss: (D of the sparse branch, of the dense branch or None, rho, lambda sparse, lambda dense)
            -> scalar. None = no ratio loss. A constant without gradient under exact Top-K.
    """

    loss: Callable[[Tensor, Tensor | None, float, float, float], Tensor] | None = None


def ratio_of_the_sum(
    sparse: Tensor, dense: Tensor | None, rho: float, of_sparse: float, of_dense: float
) -> Tensor:
    """(mean(Ds + Dd) - rho)^2"""
    total = sparse if dense is None else sparse + dense
    return (total.mean() - rho) ** 2


def ratio_of_each(
    sparse: Tensor, dense: Tensor | None, rho: float, of_sparse: float, of_dense: float
) -> Tensor:
    """l1 (mean Ds - rho)^2 + l2 (mean Dd - rho)^2"""
    loss = of_sparse * (sparse.mean() - rho) ** 2
    return loss if dense is None else loss + of_dense * (dense.mean() - rho) ** 2


def ratio_of_the_kept(
    sparse: Tensor, dense: Tensor | None, rho: float, of_sparse: float, of_dense: float
) -> Tensor:
    """(rho - l1 mean Ds - l2 mean Dd)^2 with means over the kept patches, as the paper writes it."""
    kept = of_sparse * _mean_over_kept(sparse)
    if dense is not None:
        kept = kept + of_dense * _mean_over_kept(dense)
    return (rho - kept) ** 2


def _mean_over_kept(decision: Tensor) -> Tensor:
    """Mean of D where it is 1; a straight-through D brings its gradient along."""
    kept = (decision.detach() > 0.5).to(decision.dtype)
    return (decision * kept).sum() / kept.sum()


_LAMBDAS = ("ratio_weight", "lambda_sparse", "lambda_dense")
RATIOS = (
    RatioLoss(name="released", settings=("ratio_weight",), loss=ratio_of_the_sum),
    RatioLoss(name="separate", settings=_LAMBDAS, loss=ratio_of_each),  # paper-version module
    RatioLoss(name="eq7", settings=_LAMBDAS, loss=ratio_of_the_kept),  # paper
    RatioLoss(name="none"),  # re-identification
)


# -- the table --------------------------------------------------------------------------------------


class Axes(NamedTuple):
    """The chosen entry of each axis that both tasks have; the fields are keys of `SdtpsConfig`."""

    relevance: Relevance
    normalise: Normalise
    score: Score
    no_grad: NoGrad
    decision: Decision
    mask: Mask
    aggregation: Aggregation
    extra_token: ExtraToken

    def gathers(self, settings: Settings, training: bool) -> bool:
        """Whether the cross-net must gather each pair's tokens.

        Otherwise a pair's tokens differ from the image's patches in weights only, and are never formed.
        """
        changes_tokens = self.decision.mix is not None or self.mask.scales_tokens
        return changes_tokens and self.decision.acts(settings, training)


VALUES: Mapping[str, tuple[Value, ...]] = {
    "relevance": RELEVANCES,
    "normalise": NORMALISATIONS,
    "score": SCORES,
    "no_grad": NO_GRADS,
    "decision": DECISIONS,
    "mask": MASKS,  # and subtract_C for any positive C
    "aggregation": AGGREGATIONS,
    "extra_token": EXTRA_TOKENS,
    "form": FORMS,
    "alignment": ALIGNMENTS,
    "ratio": RATIOS,
}
# Section of a configuration that an axis and its values' settings stand in; `sdtps` for the others.
SECTIONS = {"form": "matching", "alignment": "matching", "ratio": "loss"}


def find(axis: str, name: object) -> Any:
    """The entry of that name.

    Raises:
        ValueError: no value of this axis; names those there are, the nearest first.
    """
    for value in VALUES[axis]:
        if value.name == name:
            return value
    constant = _SUBTRACT.fullmatch(str(name)) if axis == "mask" else None
    if constant is not None and float(constant[1]) > 0:
        return subtracting(float(constant[1]))
    nearest = did_you_mean(str(name), (value.name for value in VALUES[axis]))
    more = " C in subtract_C is any positive number." if axis == "mask" else ""
    raise ValueError(f"{shown(name)} is not allowed. {nearest}{more}")


@lru_cache(maxsize=4096)
def find_all(*chosen: str) -> Axes:
    """The entries of one value for each axis, in the order of `Axes`."""
    return Axes(*(find(axis, name) for axis, name in zip(Axes._fields, chosen, strict=True)))
