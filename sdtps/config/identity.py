"""What makes two runs the same run: the fully resolved configuration and the seed.

Defaults are part of it, so changing a default makes a new run instead of silently reusing an old one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from pydantic import BaseModel

# Where files lie, how fast they come, what is logged; and where and how it is computed, which changes a
# result by rounding only.
NOT_IN_IDENTITY = frozenset(
    {
        "data.root",
        "data.image_root",
        "data.workers",
        "directory",
        "needs",
        "data.test_batch_size",
        "eval.also",
        "loggers",
        "matching.chunk",
        "matching.kernel",
        "train.log_every",
        "train.loggers",
        "train.checkpoint_every_steps",
        "train.checkpoint_every_s",
        "train.device",
        "train.threads",
        "train.compile",
        "train.tf32",
    }
)
# Paths that count by their last part: the file decides, not the folder it was put into.
BY_FILE_NAME = frozenset(
    {
        "backbone.weights",
        "image_encoder.weights",
        "text_encoder.weights",
        "data.file",
        "train.init",
        "log.mapping",
    }
)
# What counts as another value: `auto` as what it means on today's GPUs. Where it meant something else,
# the run's origin says so, and tables do not mix the two.
COUNTS_AS = {("train.amp", "auto"): "bf16"}
# Raise this when the meaning of a configuration changes without its keys changing.
IDENTITY_VERSION = 1


def resolved(config: BaseModel) -> dict[str, Any]:
    """The whole configuration as plain nested dictionaries, defaults included."""
    return config.model_dump(mode="json")


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries as dotted keys; an empty dictionary or None stays a value."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            flat.update(flatten(value, f"{name}."))
        else:
            flat[name] = value
    return flat


def identity(config: BaseModel, seed: int) -> str:
    """Ten hexadecimal digits that name this configuration and seed."""
    return identities(canonical(config), [seed])[0]


def canonical(config: BaseModel) -> str:
    """What of a configuration can change a result, as text: equal for configurations that are one."""
    flat = {k: v for k, v in flatten(resolved(config)).items() if k not in NOT_IN_IDENTITY}
    for (key, value), same in COUNTS_AS.items():
        if flat.get(key) == value:
            flat[key] = same
    for key in BY_FILE_NAME & flat.keys():
        if flat[key] is not None:
            flat[key] = PurePath(flat[key]).name
    return json.dumps(flat, sort_keys=True, allow_nan=False)


def identities(text: str, seeds: Sequence[int]) -> list[str]:
    """`identity` of the configuration whose `canonical` text it is, for each of several seeds."""
    named = (f'{{"config": {text}, "seed": {seed}, "version": {IDENTITY_VERSION}}}' for seed in seeds)
    return [hashlib.sha256(name.encode()).hexdigest()[:10] for name in named]
