"""Published tensor names and ours, in both directions, losing nothing.

A layout is a list of rules, one layout for each published module and whole model. A rule pairs name
templates: `{modality}` and the like stand for one of the words in FIELDS, `{n}` for a number, `{rest}`
for the rest of a name. Most rules only rename; the others also turn the tensor (`TRANSPOSED`, `THIRDS`,
...), invertibly. A name that no rule matches is refused. To add a layout, write its rules and put it
into LAYOUTS. `sdtps convert IN OUT` converts a file and finds the layout by itself; `--to published`
goes back.
"""

from __future__ import annotations

import argparse
import io
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import save as save_safetensors
from torch import Tensor

from sdtps.models.weights import read_tensors
from sdtps.multimodal import MODALITIES, other_modalities
from sdtps.system.errors import WeightsError, did_you_mean
from sdtps.system.files import write_bytes

FIELDS = {
    "modality": "rgb|nir|tir",
    "set": "rnt|rn|rt|nt|r|n|t",
    "kind": "weight|bias",
    "n": r"\d+",
    "m": r"\d+",
    "rest": ".+",
}
_FIELD = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Form:
    """How one published tensor becomes our tensor or tensors, and back."""

    to_ours: Callable[[Tensor], tuple[Tensor, ...]] = lambda tensor: (tensor,)
    to_published: Callable[..., Tensor] = lambda tensor: tensor


SAME = Form()
TRANSPOSED = Form(lambda t: (t.T,), lambda t: t.T)
# One published tensor that holds query, key and value one after the other.
THIRDS = Form(lambda t: tuple(t.chunk(3)), lambda *parts: torch.cat(parts))
# [n, 1, C] against [n, C]; [H, 1, 1] against [H, 1], and against [H]; [1] against a number; [1, H].
SQUEEZED = Form(lambda t: (t.squeeze(1),), lambda t: t.unsqueeze(1))
FLATTENED = Form(lambda t: (t.flatten(),), lambda t: t[:, None, None])
NUMBER = Form(lambda t: (t.squeeze(0),), lambda t: t.unsqueeze(0))


@dataclass(frozen=True)
class Rule:
    published: str
    ours: tuple[str, ...]
    form: Form = SAME


@dataclass(frozen=True)
class Layout:
    """One published module or model.

    Args:
        name: as given to `convert --layout`.
        source: whose module it is.
        rules: the first that matches a name counts.
    """

    name: str
    source: str
    rules: tuple[Rule, ...]

    def under(self, published: str, ours: str) -> tuple[Rule, ...]:
        """The rules with a prefix on each side, to build larger layouts from smaller ones."""
        return tuple(
            replace(rule, published=published + rule.published, ours=tuple(ours + o for o in rule.ours))
            for rule in self.rules
        )

    def names(self, published: Iterable[str]) -> dict[str, str]:
        """Published name -> our name, where each tensor is one of ours.

        Raises:
            WeightsError: names that do not belong to this layout, all of them.
        """
        return {name: ours[0] for name, (_, ours) in self._match(published).items()}

    def to_ours(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A published state dict under our names.

        Raises:
            WeightsError: names that do not belong to this layout, or tensors of a shape that a rule
                cannot turn; all of them.
        """
        result: dict[str, Tensor] = {}
        for name, (rule, ours) in self._match(state).items():
            parts = rule.form.to_ours(state[name])
            if len(parts) != len(ours):
                raise WeightsError(
                    f"{name}: shape {tuple(state[name].shape)} cannot become {', '.join(ours)}"
                )
            result.update(zip(ours, parts, strict=True))
        return result

    def to_published(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Our state dict under the published names; raises as `to_ours` does, and for missing parts."""
        result: dict[str, Tensor] = {}
        refused: list[str] = []
        done: set[str] = set()
        for name in state:
            if name in done:
                continue
            found = self._reverse(name)
            if found is None:
                refused.append(f"{name}: has no counterpart in {self.name} ({self.source})")
                continue
            rule, published, ours = found
            missing = [other for other in ours if other not in state]
            if missing:
                refused += [f"{other}: missing beside {name}" for other in missing]
            else:
                result[published] = rule.form.to_published(*(state[other] for other in ours))
            done.update(ours)
        if refused:
            raise WeightsError("\n".join(refused))
        return result

    def refused(self, names: Iterable[str], to: Literal["ours", "published"] = "ours") -> list[str]:
        """Names that no rule matches, on the published side or on ours."""
        find = self._forward if to == "ours" else self._reverse
        return [name for name in names if find(name) is None]

    def _match(self, published: Iterable[str]) -> dict[str, tuple[Rule, tuple[str, ...]]]:
        matched: dict[str, tuple[Rule, tuple[str, ...]]] = {}
        taken: dict[str, str] = {}
        refused: list[str] = []
        for name in published:
            found = self._forward(name)
            if found is None:
                refused.append(f"{name}: not a tensor of {self.name} ({self.source})")
                continue
            for ours in found[1]:
                if ours in taken:
                    refused.append(f"{name}: would share our name {ours} with {taken[ours]}")
                taken[ours] = name
            matched[name] = found
        if refused:
            raise WeightsError("\n".join(refused))
        return matched

    def _forward(self, name: str) -> tuple[Rule, tuple[str, ...]] | None:
        for rule in self.rules:
            match = _pattern(rule.published).fullmatch(name)
            if match:
                return rule, tuple(ours.format(**match.groupdict()) for ours in rule.ours)
        return None

    def _reverse(self, name: str) -> tuple[Rule, str, tuple[str, ...]] | None:
        for rule in self.rules:
            for template in rule.ours:
                match = _pattern(template).fullmatch(name)
                if match:
                    words = match.groupdict()
                    ours = tuple(other.format(**words) for other in rule.ours)
                    return rule, rule.published.format(**words), ours
        return None


def same(*pairs: tuple[str, str]) -> tuple[Rule, ...]:
    """Rules that only rename: (published, ours) templates."""
    return tuple(Rule(published, (ours,)) for published, ours in pairs)


@cache
def _pattern(template: str) -> re.Pattern[str]:
    parts = _FIELD.split(template)  # text, field, text, field, ..., text
    return re.compile(
        "".join(
            f"(?P<{part}>{FIELDS[part]})" if i % 2 else re.escape(part) for i, part in enumerate(parts)
        )
    )


TOKEN_SPARSE = Layout(
    "token_sparse",
    "TokenSparse of the paper-version module",
    same(
        ("score_predictor.{rest}", "score_mlp.{rest}"),
        ("modal_weights", "guide_weights"),
        ("modal_weight_mlp.{rest}", "router.{rest}"),
    ),
)
PATCH_ATTENTION = Layout(
    "patch_attention",
    "CrossModalAttention of DeMo2, 6e09693 to d128cea",
    (
        *same(
            ("q_proj.{kind}", "query.{kind}"),
            ("k_proj.{kind}", "key.{kind}"),
            ("alpha", "alpha"),
            ("temperature", "temperature"),
            ("gate_norm.{kind}", "gate_norm.{kind}"),
        ),
        Rule("gate_weight", ("mix",), NUMBER),
        Rule("score_proj.weight", ("head_weights",), NUMBER),
        # One arithmetic in several spellings; the first of each is written.
        Rule("gate_scale", ("gate.weight",), SQUEEZED),
        Rule("gate_bias", ("gate.bias",), FLATTENED),
        Rule("gate_conv.weight", ("gate.weight",), SQUEEZED),
        *same(
            ("gate_conv.bias", "gate.bias"),
            ("gate_linear.{kind}", "gate.{kind}"),
            ("gate_mlp.{n}.{kind}", "gate.{n}.{kind}"),
            ("cosine_gate.{n}.{kind}", "gate.{n}.{kind}"),
        ),
    ),
)
TOKEN_AGGREGATION = Layout(
    "token_aggregation",
    "TokenAggregation and DualTokenAggregation",
    same(
        ("scale", "scale"),
        ("weight.{rest}", "weight.{rest}"),
        ("weight_sparse.{rest}", "weight_sparse.{rest}"),
        ("weight_dense.{rest}", "weight_dense.{rest}"),
    ),
)
MULTIMODAL_SDTPS = Layout(
    "multimodal_sdtps",
    "MultiModalSDTPS of DeMo2, all versions",
    (
        *TOKEN_SPARSE.under("{modality}_sparse.", "modalities.{modality}.selection."),
        *TOKEN_AGGREGATION.under("{modality}_aggr.", "modalities.{modality}.aggregation."),
        *(
            rule
            for own in MODALITIES
            for place, other in enumerate((own, *other_modalities(own)))
            for rule in PATCH_ATTENTION.under(
                f"{own}_self_attn." if other == own else f"{own}_cross_{other}.",
                f"modalities.{own}.selection.relevances.{place}.",
            )
        ),
    ),
)
FUSION = Layout(
    "fusion",
    "GeneralFusion of DeMo",
    same(
        ("{set}_token", "hdm.tokens.{set}"),
        ("{set}.{rest}", "hdm.attention.{set}.{rest}"),
        ("moe.experts.{n}.expertHead.{m}.mlp.{rest}", "moe.experts.{n}.{m}.{rest}"),
        ("moe.gating_network.gate.linear_re.{rest}", "moe.gate.bottleneck.{rest}"),
        ("moe.gating_network.gate.q_.{rest}", "moe.gate.query.{rest}"),
        ("moe.gating_network.gate.k_.{rest}", "moe.gate.key.{rest}"),
    ),
)
CROSSNET = Layout(
    "crossnet",
    "CrossSparseAggrNet_v2 (SEPS, LAPS) and CrossSparseAggrNet (paper-version module)",
    (
        *TOKEN_SPARSE.under("sparse_net_cap.", "sparse_selection."),
        *TOKEN_SPARSE.under("sparse_net_long.", "dense_selection."),
        *TOKEN_AGGREGATION.under("aggr_net.", "aggregation."),
        *same(("hrpa.relevance_mlp.{rest}", "alignment.relevance_mlp.{rest}")),
    ),
)
_BLOCK, _LAYER = "transformer.resblocks.{n}.", "vision_model.encoder.layers.{n}."
# OpenAI's visual transformer against transformers' CLIPVisionModelWithProjection.
CLIP_VISUAL = Layout(
    "clip_visual",
    "visual transformer of OpenAI's CLIP",
    (
        *same(
            ("class_embedding", "vision_model.embeddings.class_embedding"),
            ("positional_embedding", "vision_model.embeddings.position_embedding.weight"),
            ("conv1.weight", "vision_model.embeddings.patch_embedding.weight"),
            ("ln_pre.{kind}", "vision_model.pre_layrnorm.{kind}"),
            ("ln_post.{kind}", "vision_model.post_layernorm.{kind}"),
        ),
        Rule("proj", ("visual_projection.weight",), TRANSPOSED),
        Rule(
            _BLOCK + "attn.in_proj_{kind}",
            tuple(_LAYER + f"self_attn.{part}_proj.{{kind}}" for part in "qkv"),
            THIRDS,
        ),
        *same(
            (_BLOCK + "attn.out_proj.{kind}", _LAYER + "self_attn.out_proj.{kind}"),
            (_BLOCK + "mlp.c_fc.{kind}", _LAYER + "mlp.fc1.{kind}"),
            (_BLOCK + "mlp.c_proj.{kind}", _LAYER + "mlp.fc2.{kind}"),
            (_BLOCK + "ln_{m}.{kind}", _LAYER + "layer_norm{m}.{kind}"),
        ),
    ),
)
_HEADS = {"": "global", "_sdtps": "sdtps", "_moe": "fusion", "_r": "rgb", "_n": "nir", "_t": "tir"}
DEMO = Layout(
    "demo",
    "DeMo, and DeMo2 with any SDTPS; with CLIP",
    (
        *CLIP_VISUAL.under("BACKBONE.base.", "backbone.tower."),
        Rule("BACKBONE.cv_embed", ("backbone.camera",), SQUEEZED),
        *MULTIMODAL_SDTPS.under("sdtps.", "sdtps."),
        *FUSION.under("generalFusion.", "fusion."),
        *same(("{modality}_reduce.{rest}", "pife.{modality}.{rest}")),
        *same(
            *(
                (f"classifier{theirs}.{{kind}}", f"heads.{ours}.classifier.{{kind}}")
                for theirs, ours in _HEADS.items()
            ),
            *(
                (f"bottleneck{theirs}.{{rest}}", f"heads.{ours}.neck.{{rest}}")
                for theirs, ours in _HEADS.items()
            ),
        ),
    ),
)
_SWIN = "encoder.layers.{n}.blocks.{m}."
# ViT and Swin as their checkpoints on the Hugging Face hub have them, against transformers 5's modules.
VISION = Layout(
    "vision",
    "ViT and Swin checkpoints written before transformers 5",
    same(
        *(
            (f"{published}{old}.{{kind}}", f"{ours}{new}.{{kind}}")
            for published, ours, attention in (
                ("encoder.layer.{n}.", "layers.{n}.", "attention.attention"),
                (_SWIN, _SWIN, "attention.self"),
            )
            for old, new in (
                (f"{attention}.query", "attention.q_proj"),
                (f"{attention}.key", "attention.k_proj"),
                (f"{attention}.value", "attention.v_proj"),
                ("attention.output.dense", "attention.o_proj"),
                ("intermediate.dense", "mlp.fc1"),
                ("output.dense", "mlp.fc2"),
                ("layernorm_before", "layernorm_before"),
                ("layernorm_after", "layernorm_after"),
            )
        ),
        *(
            (
                _SWIN + f"attention.self.relative_position_{word}",
                _SWIN + f"attention.relative_position_bias.relative_position_{word}",
            )
            for word in ("bias_table", "index")
        ),
        ("encoder.layers.{n}.downsample.{rest}", "encoder.layers.{n}.downsample.{rest}"),
        ("embeddings.{rest}", "embeddings.{rest}"),
        ("layernorm.{kind}", "layernorm.{kind}"),
        # Poolers are carried along; our encoders have none, as nothing ever read them.
        ("pooler.{rest}", "pooler.{rest}"),
    ),
)
# timm's names, which DeiT's own checkpoints share, against transformers 5's modules.
TIMM_VIT = Layout(
    "timm_vit",
    "ViT and DeiT of timm",
    (
        *same(
            ("cls_token", "embeddings.cls_token"),
            ("pos_embed", "embeddings.position_embeddings"),
            ("patch_embed.proj.{kind}", "embeddings.patch_embeddings.projection.{kind}"),
            ("norm.{kind}", "layernorm.{kind}"),
            ("blocks.{n}.attn.proj.{kind}", "layers.{n}.attention.o_proj.{kind}"),
            ("blocks.{n}.norm1.{kind}", "layers.{n}.layernorm_before.{kind}"),
            ("blocks.{n}.norm2.{kind}", "layers.{n}.layernorm_after.{kind}"),
            ("blocks.{n}.mlp.fc{m}.{kind}", "layers.{n}.mlp.fc{m}.{kind}"),
        ),
        Rule(
            "blocks.{n}.attn.qkv.{kind}",
            tuple(f"layers.{{n}}.attention.{part}_proj.{{kind}}" for part in "qkv"),
            THIRDS,
        ),
    ),
)
_TIMM_SWIN = "layers.{n}.blocks.{m}."
# Patches are merged at the end of a stage, as in the published Swin; timm itself has moved that to the
# beginning of the next stage (`sdtps.models.encoders` moves it back).
TIMM_SWIN = Layout(
    "timm_swin",
    "Swin of Microsoft and of timm before 0.9",
    (
        *same(
            ("patch_embed.proj.{kind}", "embeddings.patch_embeddings.projection.{kind}"),
            ("patch_embed.norm.{kind}", "embeddings.norm.{kind}"),
            ("norm.{kind}", "layernorm.{kind}"),
            ("layers.{n}.downsample.{rest}", "encoder.layers.{n}.downsample.{rest}"),
            (
                _TIMM_SWIN + "attn.relative_position_bias_table",
                _SWIN + "attention.relative_position_bias.relative_position_bias_table",
            ),
            (_TIMM_SWIN + "attn.proj.{kind}", _SWIN + "attention.o_proj.{kind}"),
            (_TIMM_SWIN + "norm1.{kind}", _SWIN + "layernorm_before.{kind}"),
            (_TIMM_SWIN + "norm2.{kind}", _SWIN + "layernorm_after.{kind}"),
            (_TIMM_SWIN + "mlp.fc1.{kind}", _SWIN + "mlp.fc1.{kind}"),
            (_TIMM_SWIN + "mlp.fc2.{kind}", _SWIN + "mlp.fc2.{kind}"),
        ),
        Rule(
            _TIMM_SWIN + "attn.qkv.{kind}",
            tuple(_SWIN + f"attention.{part}_proj.{{kind}}" for part in "qkv"),
            THIRDS,
        ),
    ),
)
SEPS = Layout(
    "seps",
    "VSEModel of SEPS and LAPS, with ViT or Swin and BERT",
    (
        *CROSSNET.under("cross_net.", "crossnet."),
        *VISION.under("img_enc.visual_encoder.", "encoder.network."),
        *same(
            ("img_enc.vision_proj.{kind}", "image_projection.{kind}"),
            ("txt_enc.bert.{rest}", "text_encoder.network.{rest}"),
            ("txt_enc.fc.{kind}", "text_projection.{kind}"),
        ),
    ),
)
LAYOUTS = {
    layout.name: layout
    for layout in (
        TOKEN_SPARSE,
        TOKEN_AGGREGATION,
        PATCH_ATTENTION,
        MULTIMODAL_SDTPS,
        FUSION,
        CROSSNET,
        CLIP_VISUAL,
        DEMO,
        VISION,
        TIMM_VIT,
        TIMM_SWIN,
        SEPS,
    )
}


Direction = Literal["ours", "published"]


def layout_named(name: str) -> Layout:
    """The layout of that name.

    Raises:
        WeightsError: there is none; names the nearest.
    """
    if name not in LAYOUTS:
        raise WeightsError(f"unknown layout '{name}'. {did_you_mean(name, LAYOUTS)}")
    return LAYOUTS[name]


def find_layout(names: list[str], to: Direction) -> Layout:
    """The only layout that has a place for every name.

    Raises:
        WeightsError: none has, or several have; names what the nearest one refuses.
    """
    refused = {name: layout.refused(names, to) for name, layout in LAYOUTS.items()}
    fitting = [name for name, left in refused.items() if not left]
    if len(fitting) == 1:
        return LAYOUTS[fitting[0]]
    if fitting:
        raise WeightsError(f"these tensors fit several layouts, name one: {', '.join(fitting)}")
    nearest = min(refused, key=lambda name: len(refused[name]))
    raise WeightsError(
        f"no layout fits. The nearest, {nearest}, has no place for "
        + "\n  ".join([f"{len(refused[nearest])} of {len(names)} tensors:", *refused[nearest]])
    )


def convert(state: Mapping[str, Tensor], layout: Layout, to: Direction) -> dict[str, Tensor]:
    """`state` under the other names, checked to come back as it was.

    Raises:
        WeightsError: tensors without a place, by name.
    """
    there, back = layout.to_ours, layout.to_published
    if to == "published":
        there, back = back, there
    converted = there(state)
    returned = back(converted)
    lost = [
        name
        for name, value in state.items()
        if name not in returned or not _equal(returned[name], value)
    ]
    if lost or len(returned) != len(state):
        raise WeightsError("\n".join(f"{name}: would not survive the way back" for name in lost))
    return converted


def _equal(first: Tensor, second: Tensor) -> bool:
    return first.dtype == second.dtype and torch.equal(first.nan_to_num(), second.nan_to_num())


def convert_file(
    source: Path, target: Path, *, layout: str | None = None, to: Direction = "ours"
) -> tuple[Layout, int]:
    """Convert a safetensors or PyTorch file into another, by the target's suffix.

    PyTorch files are read with `weights_only`; what stands beside the state dict in a training
    checkpoint (options, epoch) is left out. A `module.` in front of every name is DataParallel's.

    Returns:
        the layout and the number of tensors written.

    Raises:
        WeightsError: an unreadable file, or tensors without a place, by name.
    """
    if target.suffix not in (".safetensors", ".pt", ".pth"):
        raise WeightsError(f"{target}: writes .safetensors, .pt or .pth")
    with torch.serialization.safe_globals([argparse.Namespace]):  # the options that SEPS and LAPS save
        state = read_tensors(source)
    if all(name.startswith("module.") for name in state):
        state = {name.removeprefix("module."): value for name, value in state.items()}
    chosen = find_layout(list(state), to) if layout is None else layout_named(layout)
    converted = {name: value.contiguous() for name, value in convert(state, chosen, to).items()}
    write_tensors(target, converted, {"layout": chosen.name, "names": to})
    return chosen, len(converted)


def write_tensors(path: Path, state: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """A state dict as safetensors or PyTorch file, whole or not at all."""
    if path.suffix == ".safetensors":
        # Its own storage for each: safetensors refuses tensors that share one.
        content = save_safetensors({name: value.clone() for name, value in state.items()}, metadata)
    else:
        stream = io.BytesIO()
        torch.save(state, stream)
        content = stream.getvalue()
    write_bytes(path, content)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", type=Path, help=".safetensors, .pt or .pth; no code in it is run")
    parser.add_argument("target", type=Path, help=".safetensors, .pt or .pth")
    parser.add_argument("--to", choices=["ours", "published"], default="ours")
    parser.add_argument("--layout", help="whose names they are; found by itself where only one fits")


def command(arguments: argparse.Namespace) -> int:
    """The verb `convert`."""
    layout, count = convert_file(
        arguments.source, arguments.target, layout=arguments.layout, to=arguments.to
    )
    print(f"{arguments.target}: {count} tensors of {layout.name} under {arguments.to} names")
    return 0
