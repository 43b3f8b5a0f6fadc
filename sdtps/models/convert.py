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
from sdtps.system.errors import WeightsError
from sdtps.system.files import write_bytes

FIELDS = {
    "modality": "rgb|nir|tir",
    "set": "rnt|rn|rt|nt|r|n|t",
    "kind": "weight|bias",
    "n": r"\d+",
    "m": r"\d+",
    "k": r"\d+",
    "rest": ".+",
}
_FIELD = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Form:
    """How one published tensor becomes our tensor or tensors, and back."""

    ours: Callable[[Tensor], tuple[Tensor, ...]] = lambda tensor: (tensor,)
    published: Callable[..., tuple[Tensor, ...]] = lambda tensor: (tensor,)


SAME = Form()
TRANSPOSED = Form(lambda t: (t.T,), lambda t: (t.T,))
# One published tensor that holds query, key and value one after the other.
THIRDS = Form(lambda t: tuple(t.chunk(3)), lambda *parts: (torch.cat(parts),))
# [n, 1, C] against [n, C]; [H, 1, 1] against [H, 1], and against [H]; [1] against a number; [1, H].
SQUEEZED = Form(lambda t: (t.squeeze(1),), lambda t: (t.unsqueeze(1),))
FLATTENED = Form(lambda t: (t.flatten(),), lambda t: (t[:, None, None],))
NUMBER = Form(lambda t: (t.squeeze(0),), lambda t: (t.unsqueeze(0),))

Direction = Literal["ours", "published"]


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

    def renamed(self, state: Mapping[str, Tensor], to: Direction) -> dict[str, Tensor]:
        """A state dict under the other names.

        Raises:
            WeightsError: names that do not belong to this layout or would share a name, parts that are
                missing, tensors of a shape that a rule cannot turn; all of them.
        """
        result: dict[str, Tensor] = {}
        refused: list[str] = []
        for name, value in state.items():
            place = self.place(name, to)
            if place is None:
                refused.append(f"{name}: not a tensor of {self.name} ({self.source})")
                continue
            form, sources, targets = place
            missing = [other for other in sources if other not in state]
            refused += [f"{other}: missing beside {name}" for other in missing]
            if missing or name != sources[0]:  # the first is turned with all
                continue
            taken = [target for target in targets if target in result]
            refused += [f"{name}: would share the name {target} with another" for target in taken]
            parts = getattr(form, to)(*(state[source] for source in sources))
            if len(parts) != len(targets):
                refused.append(f"{name}: shape {tuple(value.shape)} cannot become {', '.join(targets)}")
            result.update(zip(targets, parts, strict=False))
        if refused:
            raise WeightsError("\n".join(refused))
        return result

    def refused(self, names: Iterable[str], to: Direction = "ours") -> list[str]:
        """Names that no rule matches, on the published side or on ours."""
        return [name for name in names if self.place(name, to) is None]

    def place(self, name: str, to: Direction) -> tuple[Form, list[str], list[str]] | None:
        """How the tensor of this name is turned: with which others (itself among them), into which."""
        for rule in self.rules:
            sides = ((rule.published,), rule.ours)
            sources, targets = sides if to == "ours" else sides[::-1]
            for template in sources:
                if match := _pattern(template).fullmatch(name):
                    words = match.groupdict()
                    names, made = ([t.format(**words) for t in side] for side in (sources, targets))
                    return rule.form, names, made
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


def _timm_block(published: str, ours: str) -> tuple[Rule, ...]:
    """A layer of timm's ViT or Swin."""
    attention = tuple(f"{ours}attention.{part}_proj.{{kind}}" for part in "qkv")
    return (
        Rule(f"{published}attn.qkv.{{kind}}", attention, THIRDS),
        *same(
            (f"{published}attn.proj.{{kind}}", f"{ours}attention.o_proj.{{kind}}"),
            (f"{published}norm1.{{kind}}", f"{ours}layernorm_before.{{kind}}"),
            (f"{published}norm2.{{kind}}", f"{ours}layernorm_after.{{kind}}"),
            (f"{published}mlp.fc{{k}}.{{kind}}", f"{ours}mlp.fc{{k}}.{{kind}}"),
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
        ),
        *_timm_block("blocks.{n}.", "layers.{n}."),
    ),
)
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
                "layers.{n}.blocks.{m}.attn.relative_position_bias_table",
                _SWIN + "attention.relative_position_bias.relative_position_bias_table",
            ),
        ),
        *_timm_block("layers.{n}.blocks.{m}.", _SWIN),
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
    converted = layout.renamed(state, to)
    returned = layout.renamed(converted, "published" if to == "ours" else "ours")
    lost = [n for n, v in state.items() if n not in returned or not _equal(returned[n], v)]
    if lost:
        raise WeightsError("\n".join(f"{name}: would not survive the way back" for name in lost))
    return converted


def _equal(first: Tensor, second: Tensor) -> bool:
    return first.dtype == second.dtype and torch.equal(first.nan_to_num(), second.nan_to_num())


def convert_file(
    source: Path, target: Path, *, layout: Layout | None = None, to: Direction = "ours"
) -> tuple[Layout, int]:
    """Convert a safetensors or PyTorch file into another, by the target's suffix.

    PyTorch files are read with `weights_only`; what stands beside the state dict in a training
    checkpoint (options, epoch) is left out.

    Returns:
        the layout and the number of tensors written.

    Raises:
        WeightsError: an unreadable file, or tensors without a place, by name.
    """
    if target.suffix not in (".safetensors", ".pt", ".pth"):
        raise WeightsError(f"{target}: writes .safetensors, .pt or .pth")
    with torch.serialization.safe_globals([argparse.Namespace]):  # the options that SEPS and LAPS save
        state = read_tensors(source)
    chosen = layout or find_layout(list(state), to)
    # Its own storage for each: safetensors refuses tensors that share one.
    converted = {
        name: value.clone(memory_format=torch.contiguous_format)
        for name, value in convert(state, chosen, to).items()
    }
    if target.suffix == ".safetensors":
        content = save_safetensors(converted, {"layout": chosen.name, "names": to})
    else:
        stream = io.BytesIO()
        torch.save(converted, stream)
        content = stream.getvalue()
    write_bytes(target, content)
    return chosen, len(converted)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", type=Path, help=".safetensors, .pt or .pth; no code in it is run")
    parser.add_argument("target", type=Path, help=".safetensors, .pt or .pth")
    parser.add_argument("--to", choices=["ours", "published"], default="ours")
    parser.add_argument(
        "--layout", choices=LAYOUTS, help="whose names they are; found by itself where only one fits"
    )


def command(arguments: argparse.Namespace) -> int:
    """The verb `convert`."""
    layout, count = convert_file(
        arguments.source, arguments.target, layout=LAYOUTS.get(arguments.layout), to=arguments.to
    )
    print(f"{arguments.target}: {count} tensors of {layout.name} under {arguments.to} names")
    return 0
