"""What the released and the paper-version cross-net hold, train and give away; their ratio loss."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from analysis.claims.checks.published import (
    CROSS_WIDTH,
    DENSE_WORDS,
    SWIN,
    VIT,
    WORDS,
    Inputs,
    attentions,
    backward,
    crossnet,
    inputs,
    match,
    norm,
    shown,
    sparse_decision,
)
from analysis.claims.verdicts import Statement, check
from sdtps.config import RetrievalConfig
from sdtps.config.axes import ratio_of_each, ratio_of_the_sum
from sdtps.models.losses import contrastive_loss


@check
def released_self_attention() -> Iterator[Statement]:
    """The patches' gradient in the released arrangement, and had the self-attention been outside."""
    net = crossnet("released")
    own, _ = attentions(net)
    given, _ = backward(net, VIT)
    elsewhere, _ = backward(crossnet("released", no_grad="cross"), VIT)
    reached, other = norm([given.patches.grad]), norm([elsewhere.patches.grad])
    yield Statement(
        "the image's patches learn from it",
        own and bool(reached),
        f"patches' gradient {shown(reached)}; with gradients through self-attention and selection "
        f"it would be {shown(other)}",
    )


@check
def released_guides() -> Iterator[Statement]:
    """Gradients through the guides' attentions and the selection in the released arrangement."""
    net = crossnet("released")
    _, guides = attentions(net)
    given, _ = backward(crossnet("released", grid=SWIN), SWIN)
    image, words = norm([given.patches.grad]), norm([given.words.grad])
    yield Statement(
        "the captions' attention carries no gradient",
        not guides,
        "no gradient through it" if not guides else "it carries gradients",
    )
    yield Statement(
        "neither does the selection: an image without a class token gets none at all",
        not image,
        f"image without class token {shown(image)}, words {shown(words)} by the alignment alone",
    )


@check
def released_parts() -> Iterator[Statement]:
    """Parts of the released arrangement at full width."""
    net = crossnet("released", width=512)
    names = [name for name, _ in net.named_parameters()]
    count = sum(p.numel() for p in net.parameters())
    networks = {name.partition(".weight")[0] for name in names if ".weight" in name}
    small, given = crossnet("released"), inputs(VIT)
    with torch.no_grad():
        first, second = (match(small, given, noise_seed=seed) for seed in (2, 3))
        given.dense.add_(torch.randn_like(given.dense))
        other = match(small, given)
    same = torch.equal(first.similarity, second.similarity)
    alone = torch.equal(sparse_decision(first), sparse_decision(other))
    yield Statement(
        "no score MLP",
        not any("score_mlp" in name for name in names),
        f"{count:,} parameters, all in the aggregation",
    )
    yield Statement(
        "no noise", same, f"two random states give {'one result' if same else 'two results'}"
    )
    yield Statement(
        "the sparse branch does not see the dense text",
        alone,
        f"another dense text {'keeps' if alone else 'changes'} the sparse branch's decision",
    )
    yield Statement(
        "one aggregation for both branches",
        networks == {"aggregation"},
        f"weight networks: {', '.join(sorted(networks))}",
    )


@check
def paper_version_parts() -> Iterator[Statement]:
    """Parts and options of the paper-version arrangement."""
    own, guides = attentions(crossnet("paper"))
    net = crossnet("paper")
    given, matches = backward(net, VIT)
    noisy = match(crossnet("paper", decision="gumbel_ste", noise_in_eval=True), given)
    single = crossnet("paper", aggregation="single", width=512)
    dual = crossnet("paper", width=512)
    counts = [sum(p.numel() for p in n.parameters()) for n in (dual, single)]
    dense = norm([given.dense.grad])
    yield Statement(
        "no attention carries a gradient, so dense text, which only guides, gets none",
        not own and not guides and not dense,
        f"dense text's gradient {shown(dense)}",
    )
    yield Statement(
        "Gumbel can be on or off",
        sparse_decision(noisy).requires_grad and not sparse_decision(matches).requires_grad,
        "the decision carries a gradient with Gumbel and none without",
    )
    yield Statement(
        "aggregation can be dual or single",
        counts[0] > counts[1],
        f"{counts[0]:,} parameters dual, {counts[1]:,} single",
    )


@check
def paper_version_mask() -> Iterator[Statement]:
    """Gradients with Gumbel in the paper-version arrangement, and had the decision been the mask."""
    settings: dict[str, dict[str, Any]] = {
        "off": {},
        "on": {"decision": "gumbel_ste"},
        "masked": {"decision": "gumbel_ste", "mask": "subtract_1e10"},
    }
    norms = {}
    for name, changes in settings.items():
        net = crossnet("paper", **changes)
        backward(net, VIT)
        norms[name] = norm(p.grad for p in net.parameters())
    yield Statement(
        "Gumbel changes the gradients, as a mask would",
        norms["on"] != norms["off"],
        f"gradient {shown(norms['on'])} with Gumbel, {shown(norms['off'])} without; as a mask it "
        f"would be {shown(norms['masked'])}",
    )


@check
def released_encoder_trains() -> Iterator[Statement]:
    """Gradients that reach the image encoder in the released arrangement, by encoder."""
    vit, _ = backward(crossnet("released"), VIT)
    swin, _ = backward(crossnet("released", grid=SWIN), SWIN)
    assert vit.classes is not None
    for which, part in {"with": vit.classes, "without": swin.patches}.items():
        gradient = norm([part.grad])
        yield Statement(
            f"{which} a class token the encoder gets no gradient, or is switched off",
            not gradient or RetrievalConfig().image_encoder.frozen,
            f"{which} a class token the encoder's gradient is {shown(gradient)}",
        )


@check
def dense_text_leak() -> Iterator[Statement]:
    """Text-to-image R@1 when captions say nothing and dense texts describe an image.

    The released arrangement, untrained. All captions are equal; a dense text's words are noisy copies
    of the patches of the image that it belongs to.
    """
    count = 32
    net = crossnet("released", grid=SWIN)
    torch.manual_seed(3)
    patches = torch.randn(count, SWIN[0], CROSS_WIDTH)
    words = torch.randn(1, WORDS, CROSS_WIDTH).expand(count, -1, -1)
    own = patches[:, :DENSE_WORDS] + 0.5 * torch.randn(count, DENSE_WORDS, CROSS_WIDTH)
    recall = {}
    with torch.no_grad():
        for name, dense in {"own": own, "shuffled": own.roll(1, dims=0)}.items():
            scores = match(net, Inputs(None, patches, words, dense)).similarity
            recall[name] = float((scores.argmax(dim=0) == torch.arange(count)).double().mean())
    chance = 1 / count
    yield Statement(
        "with empty captions retrieval stays near chance",
        recall["own"] <= 3 * chance,
        f"R@1 {recall['own']:.0%} with the target's own dense text, {recall['shuffled']:.0%} with "
        f"another image's, chance {chance:.0%}; {count} random tensors as images, untrained weights, "
        "no photograph",
    )


@check
def ratio_loss_gradient() -> Iterator[Statement]:
    """The score MLP's gradient from the ratio loss with Gumbel, beside that from the alignment."""
    net = crossnet("paper", decision="gumbel_ste")
    matches = match(net, inputs(VIT))
    parameters = [p for name, p in net.named_parameters() if "score_mlp" in name]
    loss = ratio_of_each(sparse_decision(matches), matches.dense_decision, 0.4, 1.0, 1.0)
    ratio = norm(torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True))
    align = norm(
        torch.autograd.grad(contrastive_loss(matches.similarity), parameters, allow_unused=True)
    )
    assert align is not None
    yield Statement(
        "the gradient is more than rounding",
        (ratio or 0.0) > 1e-6 * align,
        f"the score MLP's gradient is {shown(ratio)} from the ratio loss, which is off its target "
        f"by 0.1, and {align:.3g} from the alignment",
    )


@check
def ratio_loss_constant() -> Iterator[Statement]:
    """Value and gradient of the ratio loss with Top-K, in the released and paper-version form."""
    for form, ratio_loss in (("released", ratio_of_the_sum), ("paper", ratio_of_each)):
        matches = match(crossnet(form), inputs(VIT))  # type: ignore[arg-type]
        loss = ratio_loss(sparse_decision(matches), matches.dense_decision, 0.5, 1.0, 1.0)
        yield Statement(
            f"it has a gradient in the {form} form",
            loss.requires_grad,
            f"{form}: the constant {float(loss):.2g}, no gradient"
            if not loss.requires_grad
            else f"{form}: {float(loss):.2g} with a gradient",
        )
