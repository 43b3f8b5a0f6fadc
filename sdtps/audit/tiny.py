"""A configuration at the size of a toy: the same SDTPS axes on a small encoder and small images.

For the gradient audit and for smoke runs: what is cut on the way to the gradient, or multiplied by
1e10, is so at any size.
"""

from __future__ import annotations

from typing import Any

from sdtps.config import Config, ReidConfig, RetrievalConfig
from sdtps.config.reid import GeneratedReidConfig
from sdtps.config.retrieval import GeneratedRetrievalConfig

PATCH = 4
EMBED = 64  # a multiple of 64, one attention head of DeMo's fusion


def tiny(config: Config) -> Config:
    """`config` with a tiny encoder, a batch of 4 and generated data.

    The grid of patches stays, and with it every token count; patches are 4 pixels wide. Everything
    under `sdtps`, `fusion`, `loss`, `optim` and the precision stay too. A tiny retrieval encoder always
    has a class token.
    """
    changes = _tiny_reid(config) if isinstance(config, ReidConfig) else _tiny_retrieval(config)
    updated = {
        section: getattr(config, section).model_copy(update=values)
        for section, values in changes.items()
    }
    return config.model_copy(update=updated)


def _train(steps: int) -> dict[str, Any]:
    return {"epochs": 1, "max_steps": steps, "device": "cpu", "compile": False, "log_every": 1}


def _tiny_reid(config: ReidConfig) -> dict[str, dict[str, Any]]:
    patch = 16 if config.backbone.name == "clip_vit_b16" else config.backbone.patch
    return {
        "data": {
            "dataset": "rgbnt201",
            "root": None,
            "generate": GeneratedReidConfig(train_pids=4, test_pids=3, images_per_camera=2),
            "height": config.data.height // patch * PATCH,
            "width": config.data.width // patch * PATCH,
            "batch_size": 4,
            "instances": 2,
            "pad": min(config.data.pad, 2),
            "workers": 0,
        },
        "backbone": {
            "name": "tiny_vit",
            "weights": "random",
            "patch": PATCH,
            "width": 32,
            "depth": 1,
            "heads": 2,
            "embed": EMBED,
        },
        "train": _train(4),
    }


def _tiny_retrieval(config: RetrievalConfig) -> dict[str, dict[str, Any]]:
    encoder = config.image_encoder
    cell = {"vit_b16": 16, "tiny_vit": encoder.patch}.get(encoder.name, 32)
    return {
        "data": {
            "root": None,
            "image_root": None,
            "generate": GeneratedRetrievalConfig(train_images=16, dev_images=8, test_images=8),
            "batch_size": 8,
            "test_batch_size": 8,
            "max_words": 12,
            "max_dense_words": 24,
            "workers": 0,
        },
        "image_encoder": {
            "name": "tiny_vit",
            "weights": "random",
            "size": encoder.size // cell * PATCH,
            "patch": PATCH,
            "width": 32,
            "depth": 1,
            "heads": 2,
        },
        "text_encoder": {
            "name": "tiny_bert",
            "weights": "random",
            "width": 32,
            "depth": 1,
            "heads": 2,
        },
        "matching": {"embed": EMBED},
        "train": _train(4),
    }
