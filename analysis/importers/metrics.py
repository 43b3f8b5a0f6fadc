"""Other programs' metric names: our name for each, the split, which way is better, and the unit.

What the name and the printed values do not tell is asked for: see `analysis.importers.mapping`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

Direction = Literal["up", "down", "none"]
# percent and fraction: scores that are kept as fractions and printed in per cent.
# raw: a number that is printed as it stands. unknown: percent or fraction, and nothing tells which.
Unit = Literal["percent", "fraction", "raw", "unknown"]


@dataclass(frozen=True)
class Metric:
    """What is known of one logged value. None: nothing tells."""

    name: str  # ours
    split: str | None  # train, val, test or eval; "row" where each row says it
    direction: Direction | None
    unit: Unit | None

    def open(self) -> list[str]:
        """The properties that somebody has to state before the value can stand in a table."""
        if self.split == "train":
            return []
        questions = [name for name in ("split", "direction") if getattr(self, name) is None]
        return questions + (["unit"] if self.unit in (None, "unknown") else [])


# Scores of retrieval and classification: fractions with us, whatever a program prints.
_SHARE = re.compile(
    r"^(?:mAP|mINP|rank\d+|[it]2[it]_r\d+|rsum|r\d+|acc|accuracy|(?:accuracy_)?top-?\d+|mAP50(?:-95)?)(?:/.*)?$",
    re.IGNORECASE,
)
# Scores that stay as they are printed.
_UP = re.compile(
    r"^(?:f1|precision|recall|ap\d*|auc|auroc|m?iou|dice|psnr|ssim|bleu(?:-?\d)?|rouge\w*|meteor|cider|"
    r"spice|confidence|ndcg(?:@?\d+)?|mrr|kappa|mcc|r2|spearman\w*|pearson\w*)$",
    re.IGNORECASE,
)
_DOWN = re.compile(
    r"^(?:.*loss|error|err|wer|cer|per|ppl|perplexity|rmse|mse|mae|mape|nme|eer|bpc|bpb|nll|fid|kid|lpips|"
    r"epe|mean_?r(?:ank)?|med(?:ian)?_?r(?:ank)?|mnr|mdr)(?:/.*)?$",
    re.IGNORECASE,
)
_SPLIT = re.compile(r"^(train(?:ing)?|val(?:idation)?|valid|dev|test|eval)[_/.\-]", re.IGNORECASE)
_SPLITS = {"training": "train", "validation": "val", "valid": "val", "dev": "val"}
_RANK = re.compile(r"^(?:rank|r|cmc)[-_@ ]?(\d+)$", re.IGNORECASE)
_RATE = re.compile(r"^(?:lr|learning_rate|lr-[\w/]+|base_lr|lr/pg\d+)$", re.IGNORECASE)
_PER_CENT = re.compile(r"\s*[(\[]?%[)\]]?\s*$")
# What programs log about the training itself.
_TRAINING_ONLY = re.compile(
    r"^(?:lr|grad_?norm|loss_scale|momentum|memory(?:_mib)?|data_time|time|seconds_per_step|images_per_s)$",
    re.IGNORECASE,
)

# What selects the best epoch where the program does not say: the first of these that was evaluated.
SELECTION = (
    "mAP", "mAP50-95", "rsum", "rank1", "accuracy", "acc", "top1", "accuracy_top1", "f1", "miou", "iou",
)  # fmt: skip


def split_of(name: str) -> str | None:
    """The split that a column's prefix names: train, val, test or eval; None without a prefix."""
    if match := _SPLIT.match(name.strip()):
        word = match.group(1).lower()
        return _SPLITS.get(word, word)
    return None


def split_word(text: str) -> str | None:
    """The split that a cell names, such as `phase: valid`."""
    word = text.strip().lower()
    known = _SPLITS.get(word, word)
    return known if known in ("train", "val", "test", "eval") else None


def canonical(name: str) -> str:
    """Our name of a metric: `Rank-1 (%)`, `val/mAP`, `train_loss_step` are rank1, mAP, loss."""
    bare = _PER_CENT.sub("", name.strip())
    split = split_of(bare)
    short = _SPLIT.sub("", bare)
    if match := _RANK.match(short):
        return f"rank{match.group(1)}"
    if short.lower() == "map":
        return "mAP"
    if _RATE.match(short) and split in (None, "train"):
        return "lr"
    if short in ("loss", "loss_step", "total_loss"):
        return "loss" if split in (None, "train") else f"{split}_loss"
    if split not in (None, "train") and not _SHARE.match(short):
        return f"{split}_{short}"
    return short


def is_share(name: str) -> bool:
    """Whether a metric (by our name) lies in [0, 1]; rsum, a sum of six, in [0, 6]."""
    return bool(_SHARE.match(_SPLIT.sub("", name)))


def most_as_fraction(name: str) -> float:
    """The largest value of a share that is written as a fraction."""
    return 6.0 if name.split("/")[0].lower().endswith("rsum") else 1.0


def direction_of(name: str) -> Direction | None:
    """Which way is better, where every user of the metric agrees; None where nothing tells."""
    bare = _SPLIT.sub("", name)
    if is_share(bare) or _UP.match(bare):
        return "up"
    return "down" if _DOWN.match(bare) else None


def unit_of(name: str, most: float, per_cent: bool) -> Unit | None:
    """The unit of a metric by our name, from its largest printed value and an explicit per cent sign.

    A value above 1 shows per cents. Without one nothing tells: a failed run's 0.8 % looks like 80 %.
    """
    if per_cent:
        return "percent"
    if is_share(name):
        return "percent" if most > most_as_fraction(name) else "unknown"
    return "raw" if direction_of(name) else None


def known(name: str, most: float = math.nan, per_cent: bool = False, *, by_row: bool = False) -> Metric:
    """What a column's own name and values tell; the questions that remain are in `Metric.open`.

    Args:
        most: the largest value printed.
        by_row: each row says its split; a name without one has that of its row.
    """
    ours = canonical(name)
    per_cent = per_cent or bool(_PER_CENT.search(name))  # said by the column's head
    split = split_of(name)
    if by_row and split is None and not _TRAINING_ONLY.match(ours):
        return Metric(ours, "row", direction_of(ours), unit_of(ours, most, per_cent))
    if split is None and (_TRAINING_ONLY.match(ours) or ours == "loss" or ours.startswith("loss/")):
        split = "train"  # a loss without a prefix is the training loss in every program we know
    if split == "train":
        unit = unit_of(ours, most, per_cent)
        return Metric(ours, split, "none", "raw" if unit in (None, "unknown") else unit)
    return Metric(ours, split, direction_of(ours), unit_of(ours, most, per_cent))


def separate(metrics: Mapping[str, Metric]) -> dict[str, Metric]:
    """Metrics by column, so that no two columns of different splits share a name.

    `accuracy` beside `val_accuracy` is the training's; `val_acc` beside `test_acc` keep their split in
    the name. Where one split alone is evaluated its metrics go without it.
    """
    done = dict(metrics)
    evaluated = {canonical(column) for column in metrics if split_of(column) not in (None, "train")}
    short = {_SPLIT.sub("", name) for name in evaluated}
    for column, metric in metrics.items():
        if metric.split is None and metric.name in short:
            unit: Unit = "raw" if metric.unit in (None, "unknown") else metric.unit or "raw"
            done[column] = replace(metric, split="train", direction="none", unit=unit)
    splits = {m.split for m in done.values()} - {None, "train"}
    if len(splits) > 1:
        for column, metric in done.items():
            if metric.split not in (None, "train") and not metric.name.startswith(f"{metric.split}_"):
                done[column] = replace(metric, name=f"{metric.split}_{metric.name}")
    return done


def best_of(
    rows: Sequence[dict[str, Any]], metrics: Mapping[str, Metric], select: tuple[str, str] | None
) -> tuple[dict[str, Any] | None, str]:
    """The best evaluation row and what selected it ("mAP max"); (None, "") where nothing selects.

    Validation selects before test does; of one split, the first of `SELECTION`, else its loss, else its
    only metric with a direction.
    """
    chosen = select or _selecting(rows, metrics)
    if chosen is None:
        return None, ""
    name, way = chosen
    usable = [row for row in rows if isinstance(row.get(name), float) and math.isfinite(row[name])]
    if not usable:
        return None, ""
    sign = -1.0 if way == "max" else 1.0
    return min(usable, key=lambda row: (sign * row[name], row["step"])), f"{name} {way}"


def _selecting(rows: Sequence[dict[str, Any]], metrics: Mapping[str, Metric]) -> tuple[str, str] | None:
    seen = {name for row in rows for name, value in row.items() if isinstance(value, float)}
    known_here = {name: metrics[name] for name in metrics if name in seen}
    order = {"val": 0, "eval": 1, "test": 2}
    splits = sorted(
        {m.split or "" for m in known_here.values()}, key=lambda split: (order.get(split, 3), split)
    )
    for split in splits:
        here = {n: m for n, m in known_here.items() if (m.split or "") == split}
        plain = {_SPLIT.sub("", n).lower(): n for n in here}
        for name in SELECTION:
            if name.lower() in plain:
                return plain[name.lower()], "max"
        for name in ("loss",):
            if name in plain:
                return plain[name], "min"
        ways = [(n, m.direction) for n, m in here.items() if m.direction in ("up", "down")]
        if len(ways) == 1:
            return ways[0][0], "max" if ways[0][1] == "up" else "min"
    return None
