"""The known metric names: the only ones whose direction and kind need not be said in a mapping.

`sdtps import --mappings` prints this table; docs/importing.md holds it. Nothing else is inferred from a
column's name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Direction = Literal["up", "down", "none"]
Unit = Literal["percent", "fraction", "raw"]  # the first two are kept as fractions, shown in per cent

# Shares: a mapping must say whether they are printed as fractions or in per cent.
SHARES = (
    "mAP", "mINP", "rank1", "rank5", "rank10", "rank20", "i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1",
    "t2i_r5", "t2i_r10", "rsum", "accuracy", "acc", "top1", "top5", "mAP50", "mAP50-95", "f1",
    "precision", "recall", "AP", "AUC", "AUROC", "IoU", "mIoU", "dice",
)  # fmt: skip
HIGHER = ("PSNR", "SSIM", "BLEU", "CIDEr", "METEOR", "confidence")  # kept as printed
LOWER = (
    "loss", "error", "WER", "CER", "PPL", "perplexity", "RMSE", "MSE", "MAE", "NME", "EER", "BPC",
    "FID", "mean_rank", "median_rank",
)  # fmt: skip
_KNOWN: dict[str, tuple[str, Direction, bool]] = {
    **{name.lower(): (name, "up", True) for name in SHARES},
    **{name.lower(): (name, "up", False) for name in HIGHER},
    **{name.lower(): (name, "down", False) for name in LOWER},
}
# What `--propose` takes for a split at the start of a column's name, and for one in a cell.
SPLITS = {
    **{word: word for word in ("train", "val", "test", "eval")},
    **{"training": "train", "validation": "val", "valid": "val", "dev": "val"},
}
_PREFIX = re.compile(rf"({'|'.join(SPLITS)})[_/.\-]", re.IGNORECASE)
_RANK = re.compile(r"rank[-_@ ]?(\d+)", re.IGNORECASE)
_RECALL = re.compile(r"rank\d+|[it]2[it]_r\d+")


@dataclass(frozen=True)
class Metric:
    """What one logged value is: our name, its split ("row": the row says it), direction and unit."""

    name: str
    split: str
    direction: Direction
    unit: Unit


def bare(name: str) -> str:
    """A metric's name without its split and data set: `val_mAP/market` is mAP."""
    return _PREFIX.sub("", name, count=1).split("/")[0]


def spelled(name: str) -> str:
    """The table's spelling: `map` is mAP, `Rank-1` rank1. Other names stay."""
    if match := _RANK.fullmatch(name):
        return f"rank{match[1]}"
    return _KNOWN[name.lower()][0] if name.lower() in _KNOWN else name


def split_of(name: str) -> tuple[str | None, str]:
    """The split that a column's prefix names, and the rest of its name."""
    match = _PREFIX.match(name)
    return (SPLITS[match[1].lower()], name[match.end() :]) if match else (None, name)


def direction_of(name: str) -> Direction | None:
    """Which way is better; None where the table does not have the name."""
    known = _known(name)
    return known[1] if known else None


def is_share(name: str) -> bool:
    """Whether the table has the name as a score in [0, 1] (rsum, a sum of six: in [0, 6])."""
    known = _known(name)
    return known is not None and known[2]


def _known(name: str) -> tuple[str, Direction, bool] | None:
    short = bare(name).lower()
    return (short, "up", True) if _RECALL.fullmatch(short) else _KNOWN.get(short)


def table() -> str:
    """The table as Markdown."""
    kinds = (
        ("higher is better; say `unit: percent` or `fraction`", SHARES),
        ("higher is better, kept as printed", HIGHER),
        ("lower is better, kept as printed", LOWER),
    )
    lines = ["| names (in any case; `Rank-1` is `rank1`) | what is known of them |", "|---|---|"]
    lines += [f"| {', '.join(f'`{name}`' for name in names)} | {kind} |" for kind, names in kinds]
    words = ", ".join(f"`{word}`" for word in SPLITS)
    return "\n".join([*lines, f"| {words} | a split, in a cell of the `split` column |"]) + "\n"
