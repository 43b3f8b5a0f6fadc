"""Column names of other loggers in our words, and columns that say they hold per cents."""

from __future__ import annotations

import re
from collections.abc import Iterable

# Scores that are fractions with us.
_SHARE = re.compile(
    r"^(?:mAP|mINP|rank\d+|[it]2[it]_r\d+|rsum|r\d+|acc|accuracy|top\d+)(?:/.*)?$", re.IGNORECASE
)
_EVAL_PREFIX = re.compile(r"^(?:val(?:idation)?|valid|test|eval|dev)[_/.\-]", re.IGNORECASE)
_TRAIN_PREFIX = re.compile(r"^(?:train(?:ing)?)[_/.\-]", re.IGNORECASE)
_RANK = re.compile(r"^(?:rank|r|cmc|top)[-_@ ]?(\d+)$", re.IGNORECASE)
_RATE = re.compile(r"^(?:lr|learning_rate|lr-\w+|base_lr)$", re.IGNORECASE)
_PER_CENT = re.compile(r"\s*[(\[]?%[)\]]?\s*$")


def kind_of(name: str) -> str:
    """eval for a column that says so or that holds a retrieval score, else train."""
    if _EVAL_PREFIX.match(name):
        return "eval"
    return "eval" if not _TRAIN_PREFIX.match(name) and _SHARE.match(canonical(name)) else "train"


def canonical(name: str) -> str:
    """Our name of a metric: `Rank-1 (%)`, `val/mAP`, `train_loss_step` are rank1, mAP, loss."""
    bare = _PER_CENT.sub("", name.strip())
    is_eval = bool(_EVAL_PREFIX.match(bare))
    short = _TRAIN_PREFIX.sub("", _EVAL_PREFIX.sub("", bare))
    if match := _RANK.match(short):
        return f"rank{match.group(1)}"
    if short.lower() == "map":
        return "mAP"
    if _RATE.match(short) and not is_eval:
        return "lr"
    if short in ("loss", "loss_step", "total_loss"):
        return "val_loss" if is_eval else "loss"
    if is_eval and not _SHARE.match(short):
        return f"val_{short}"
    return short


def is_share(name: str) -> bool:
    """Whether a metric (by our name) lies in [0, 1]; rsum, a sum of six, in [0, 6]."""
    return bool(_SHARE.match(name))


def most_as_fraction(name: str) -> float:
    """The largest value of a share that is written as a fraction."""
    return 6.0 if name.split("/")[0].lower() == "rsum" else 1.0


def says_per_cent(header: str, printed: Iterable[str] = ()) -> bool:
    """Whether a column's head or one of its cells says that it holds per cents."""
    return bool(_PER_CENT.search(header)) or any(text.rstrip().endswith("%") for text in printed)
