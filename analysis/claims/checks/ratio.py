"""Claims on the loss that holds the share of kept patches at its target."""

from __future__ import annotations

import torch

from analysis.claims.checks.arrangements import norm
from analysis.claims.checks.crossnets import VIT, crossnet, inputs, match, shown
from analysis.claims.checks.registry import check
from analysis.claims.verdicts import Statement
from sdtps.models.contrastive import contrastive_loss, ratio_loss


@check
def ratio_loss_gradient() -> list[Statement]:
    """The score MLP's gradient from the ratio loss with Gumbel, beside that from the alignment."""
    net = crossnet("paper", decision="gumbel_ste")
    matches = match(net, inputs(VIT))
    assert matches.sparse_decision is not None and matches.dense_decision is not None
    parameters = [p for name, p in net.named_parameters() if "score_mlp" in name]
    loss = ratio_loss(matches.sparse_decision, matches.dense_decision, form="separate", keep_ratio=0.4)
    ratio = norm(torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True))
    align = norm(
        torch.autograd.grad(contrastive_loss(matches.similarity), parameters, allow_unused=True)
    )
    assert align is not None
    return [
        Statement(
            "the gradient is more than rounding",
            (ratio or 0.0) > 1e-6 * align,
            f"the score MLP's gradient is {shown(ratio)} from the ratio loss, which is off its target "
            f"by 0.1, and {align:.3g} from the alignment",
            {"ratio": ratio, "alignment": align},
        )
    ]


@check
def ratio_loss_constant() -> list[Statement]:
    """Value and gradient of the ratio loss with Top-K, in the released and paper-version form."""
    statements = []
    for form, ratio_form in (("released", "released"), ("paper", "separate")):
        matches = match(crossnet(form), inputs(VIT))  # type: ignore[arg-type]
        assert matches.sparse_decision is not None
        loss = ratio_loss(
            matches.sparse_decision,
            matches.dense_decision,
            form=ratio_form,  # type: ignore[arg-type]
            keep_ratio=0.5,
        )
        statements.append(
            Statement(
                f"it has a gradient in the {form} form",
                loss.requires_grad,
                f"{form}: the constant {float(loss):.2g}, no gradient"
                if not loss.requires_grad
                else f"{form}: {float(loss):.2g} with a gradient",
                {"value": float(loss)},
            )
        )
    return statements
