"""SDTPS, sparse and dense text- or token-aware patch selection: what the studies study.

As a library:

    from sdtps import CrossNet, MultiModal, TokenAggregation, TokenSelection
    from sdtps.config import MatchingConfig, SdtpsConfig

`docs/library.md` shows each with its shapes. Importing this package is cheap: no torch until one of
these names is asked for.

Axis names used in shapes throughout:
    B batch · N patches · K kept patches (ceil of keep_ratio x N) · A aggregated tokens
    C embedding width · M modalities (rgb, nir, tir) · T captions · L words
    Q query images · G gallery images · P identities (pids)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sdtps.aggregation import TokenAggregation
    from sdtps.crossnet import CrossNet
    from sdtps.multimodal import MultiModal
    from sdtps.selection import TokenSelection

__version__ = "0.1.0"
__all__ = ["CrossNet", "MultiModal", "TokenAggregation", "TokenSelection"]

_HOMES = {
    "CrossNet": "crossnet",
    "MultiModal": "multimodal",
    "TokenAggregation": "aggregation",
    "TokenSelection": "selection",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sdtps' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(f"sdtps.{_HOMES[name]}"), name)
