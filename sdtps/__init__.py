"""SDTPS, sparse and dense text- or token-aware patch selection: what the studies study.

Importing this package is cheap: no torch until a module that computes is imported.

Axis names used in shapes throughout:
    B batch · N patches · K kept patches (ceil of keep_ratio x N) · A aggregated tokens
    C embedding width · M modalities (rgb, nir, tir) · T captions · L words
    Q query images · G gallery images · P identities (pids)
"""

__version__ = "0.1.0"
