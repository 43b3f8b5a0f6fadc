"""Published tensor names and ours: one table for each published module and whole model.

To add one, write its rules and put it into LAYOUTS; `sdtps.models.layout` says what a rule can do.
"""

from __future__ import annotations

from sdtps.models.layout import SQUEEZED, THIRDS, TRANSPOSED, Layout, Rule, same

TOKEN_SPARSE = Layout(
    "token_sparse",
    "TokenSparse of the paper-version module",
    same(("score_predictor.{rest}", "score_mlp.{rest}")),
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
    "MultiModalSDTPS of DeMo2, v0 to v3",
    (
        *TOKEN_SPARSE.under("{modality}_sparse.", "modalities.{modality}.selection."),
        *TOKEN_AGGREGATION.under("{modality}_aggr.", "modalities.{modality}.aggregation."),
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
    "DeMo, and DeMo2 with SDTPS v0 to v3; with CLIP",
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
