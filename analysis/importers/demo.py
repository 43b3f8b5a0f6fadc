"""Logs of DeMo, TransReID, CLIP-ReID and their relatives: the trainer's file or its redirected output.

One epoch may be evaluated under several heads: `ori` (plain global features), `moe` (the second
branch) and `[moe,ori]` (both concatenated, on which DeMo's authors select). All are kept:
`mAP` is the main head, `mAP/ori` and `mAP/moe` the others. Line formats: `DeMo/engine/processor.py`.
CLIP-ReID trains its prompts first, without an accuracy; these lines become rows of kind `stage1`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from analysis.importers.run import ImportedRun, fraction, number, percent
from analysis.importers.text import LogReader, reads

MAIN_HEADS = ("moe+ori", "", "moe", "ori")
# Switches of DeMo2's components, in the order in which an arrangement's name lists them.
_SWITCHES = (
    ("HDM", "MODEL.HDM"),
    ("ATM", "MODEL.ATM"),
    ("FRCA", "MODEL.USE_FRCA"),
    ("SACR", "MODEL.USE_SACR"),
    ("MultiModalSACR", "MODEL.USE_MULTIMODAL_SACR"),
    ("SDTPS", "MODEL.USE_SDTPS"),
    ("DGAF", "MODEL.USE_DGAF"),
    ("LIF", "MODEL.USE_LIF"),
)


class DemoLog(LogReader):
    """A log of DeMo, TransReID or CLIP-ReID. They validate on query and gallery: the test split."""

    name = "demo"
    looks_for = "lines such as 'DeMo.train INFO: Epoch[1] Iteration[10/54] Loss: ...'"
    recognised = r" DeMo INFO: |Epoch\[\d+\] Iteration\[\d+/\d+\] Loss: "
    prefix = re.compile(r"^(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),\d+ [\w.]+ [A-Z]+: ?")
    announced = ("Epoch[", "Validation Results", "mAP:", "CMC curve", "Best mAP", "Best Rank")
    select = "mAP max"
    seed_key = "SOLVER.SEED"
    epochs_keys = ("SOLVER.STAGE2.MAX_EPOCHS", "SOLVER.MAX_EPOCHS")
    stage1 = False  # the prompts are being trained
    head = ""
    evaluated: int | None = None  # epoch of the evaluation being read
    first_time = ""
    last_epoch_done = 0

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.heads: dict[str, None] = {}
        self.claimed_best: dict[str, str] = {}

    @reads(r"^start training$")
    def _start(self) -> None:
        if self.stage1:
            self.builder.new_stage()
        else:
            self.builder.restart(self.line.number)
        self.stage1 = False
        self.first_time = self.first_time or self.time
        self.evaluated, self.head = None, ""

    @reads(r"^Enter inferencing$")
    def _inference(self) -> None:
        self.only_evaluates = True

    @reads(r"Epoch\[(\d+)\] Iteration\[(\d+)/(\d+)\] Loss: (\S+), Acc: (\S+), Base Lr: (\S+)$")
    def _train(self, epoch: str, iteration: str, total: str, *printed: str) -> None:
        loss, accuracy, rate = map(number, printed)
        self.lengths[int(epoch)] = int(total)
        # DeMo prints means over the epoch so far, as our own runs' `running_loss` and `accuracy`.
        values = {"loss": loss, "running_loss": loss, "accuracy": accuracy, "lr": rate}
        step = self.steps_before(int(epoch)) + int(iteration)
        time = self.time.replace(" ", "T") or None
        self.builder.add("train", int(epoch), step, {**values, "time": time}, self.line.number)

    @reads(r"Epoch\[(\d+)\] Iteration\[(\d+)/(\d+)\] Loss: (\S+), Base Lr: (\S+)$")
    def _train_prompts(self, epoch: str, iteration: str, total: str, loss: str, rate: str) -> None:
        self.stage1 = True
        step = (int(epoch) - 1) * int(total) + int(iteration)
        self.builder.first_stage(int(epoch), step, loss=number(loss), lr=number(rate))

    @reads(r"Current is the (.+?) feature testing!$")
    def _head(self, head: str) -> None:
        self.head = head.strip("[]").replace(",", "+").replace(" ", "")
        self.evaluated = None

    @reads(r"(?:(\w+) )?Validation Results - Epoch: (\d+)$")
    def _evaluation(self, head: str | None, epoch: str) -> None:
        self.evaluated = int(epoch)
        self.head = head or self.head  # such as EMA: the averaged weights
        self.heads[self.head] = None

    @reads(r"^(?:CMC curve, )?(mAP|Rank-\d+)\s*: ?(\S+)%$")
    def _score(self, metric: str, printed: str) -> None:
        metric = metric.replace("Rank-", "rank")
        if self.evaluated is None:
            text = f"{metric}: {printed}%"
            self.builder.cannot_read(self.line.number, text, "a score outside of an evaluation")
            return
        name = f"{metric}/{self.head}" if self.head else metric
        step = self.steps_before(self.evaluated + 1)
        self.builder.add("eval", self.evaluated, step, {name: fraction(printed)})

    @reads(r"Best (mAP|Rank-\d+): (\S+)%$")
    def _best(self, metric: str, printed: str) -> None:
        fraction(printed)
        self.claimed_best[metric.replace("Rank-", "rank")] = printed
        self.evaluated, self.head = None, ""

    @reads(r"Epoch (\d+) done\. Time per batch: \S+\[s\] Speed: (\S+)\[samples/s\]$")
    def _epoch_done(self, epoch: str, speed: str) -> None:
        self.last_epoch_done = int(epoch)
        if self.builder.rows and self.builder.rows[-1].get("epoch") == int(epoch):
            self.builder.rows[-1]["images_per_s"] = number(speed)

    @reads(r"number of parameters: ?([\d.]+)$")
    def _parameters(self, millions: str) -> None:
        self.facts["parameters_million"] = number(millions)

    def finish(self, finished: bool | None = None) -> ImportedRun:
        evaluations = [row for row in self.builder.rows if row["kind"] == "eval"]
        main = next((head for head in (*MAIN_HEADS, *reversed(self.heads)) if head in self.heads), "")
        for row in evaluations if main else ():  # the main head's scores get their plain names
            for name in [n for n in row if n.endswith(f"/{main}")]:
                row[name.split("/")[0]] = row.pop(name)
        if planned := self.epochs_planned:
            finished = (evaluations[-1]["epoch"] if evaluations else self.last_epoch_done) >= planned
        self.facts |= {
            "dataset": self.config.get("DATASETS.NAMES", "").strip("(')"),
            "train_seconds": _seconds(self.first_time, self.time),
        }
        run = super().finish(finished)
        run.label, run.components = arrangement(self.config)
        settle_ties(run, self.claimed_best)
        return run


def _seconds(first: str, last: str) -> float | None:
    if not first or not last:
        return None
    form = "%Y-%m-%d %H:%M:%S"
    return (datetime.strptime(last, form) - datetime.strptime(first, form)).total_seconds()


def arrangement(config: Mapping[str, str]) -> tuple[str, dict[str, bool]]:
    """A name such as 'SDTPS+DGAF-v1' and the component switches, from a DeMo configuration.

    The name is empty where the configuration has none of the switches: nothing names the arrangement.
    """
    components = {name: config[key] == "True" for name, key in _SWITCHES if key in config}
    parts = []
    for name, on in components.items():
        if on:
            version = config.get(f"MODEL.{name}_VERSION", "").strip("'\"")
            parts.append(f"{name}-{version}" if version else name)
    return "+".join(parts) or ("baseline" if components else ""), components


def settle_ties(run: ImportedRun, printed: Mapping[str, str]) -> None:
    """Choose among evaluations that tie at the printed precision by the log's own `Best` lines.

    A trainer compares unrounded values, so its best may be any of the ties; all metrics must
    come from one evaluation, and its last `Best` lines, `printed` by metric, say which.
    """
    if run.best is None or "mAP" not in run.best:
        return
    ties = [row for row in run.rows if row["kind"] == "eval" and row.get("mAP") == run.best["mAP"]]
    claimed = {name: fraction(text) for name, text in printed.items()}
    agreeing = [row for row in ties if all(row.get(n, v) == v for n, v in claimed.items())]
    run.best = (agreeing or ties)[0]
    epoch = run.best["epoch"]
    if len(ties) > 1:
        epochs = ", ".join(str(row["epoch"]) for row in ties)
        agrees = f"; epoch {epoch} agrees with the log's Best lines" if agreeing else ""
        run.notes.append(
            f"epochs {epochs} tie at the printed best mAP {percent(run.best['mAP'])}%{agrees}"
        )
    for name, text in printed.items():
        if (found := run.best.get(name)) is not None and found != claimed[name]:
            said = f"its evaluation of epoch {epoch} says {percent(found)}%"
            run.notes.append(f"the log says Best {name} {text}%, {said}")
