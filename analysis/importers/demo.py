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
from pathlib import Path
from typing import Any

from analysis.importers.run import ImportedRun, fraction, number, percent, seed_of
from analysis.importers.text import Line, LogReader

NAME = "demo"
LOOKS_FOR = "lines such as 'DeMo.train INFO: Epoch[1] Iteration[10/54] Loss: ...'"

_PREFIX = re.compile(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),\d+ [\w.]+ [A-Z]+: ?")
_TRAIN = re.compile(r"Epoch\[(\d+)\] Iteration\[(\d+)/(\d+)\] Loss: (\S+), Acc: (\S+), Base Lr: (\S+)$")
_STAGE1 = re.compile(r"Epoch\[(\d+)\] Iteration\[(\d+)/(\d+)\] Loss: (\S+), Base Lr: (\S+)$")
_EPOCH_DONE = re.compile(r"Epoch (\d+) done\. Time per batch: (\S+)\[s\] Speed: (\S+)\[samples/s\]$")
_HEAD = re.compile(r"Current is the (.+?) feature testing!$")
_EVALUATION = re.compile(r"(?:(\w+) )?Validation Results - Epoch: (\d+)$")
_MAP = re.compile(r"mAP: (\S+)%$")
_RANK = re.compile(r"CMC curve, Rank-(\d+)\s*: ?(\S+)%$")
_BEST = re.compile(r"Best (mAP|Rank-\d+): (\S+)%$")
_SECTION = re.compile(r"^([A-Z][A-Z_0-9]*):\s*$")
_KEY = re.compile(r"^ {2}([A-Z][A-Z_0-9]*): ?(.*)$")
_SUB_KEY = re.compile(r"^ {4}([A-Z][A-Z_0-9]*): ?(.*)$")
_TOP_KEY = re.compile(r"^([A-Z][A-Z_0-9]*): (.*)$")
_PARAMETERS = re.compile(r"number of parameters: ?([\d.]+)$")
# Lines that announce a record; one of these that matches nothing above is reported.
_RECORD_WORDS = ("Epoch[", "Validation Results", "mAP:", "CMC curve", "Best mAP", "Best Rank")
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


def recognises(name: str, text: str) -> bool:
    """True where the file holds DeMo's training lines, or at least its logger's name."""
    return " DeMo INFO: " in text or bool(re.search(r"Epoch\[\d+\] Iteration\[\d+/\d+\] Loss: ", text))


class DemoLog(LogReader):
    """A log of DeMo, TransReID or CLIP-ReID. They validate on query and gallery: the test split."""

    format_name = NAME

    def __init__(self, path: Path, content: bytes, restarts: bool = False) -> None:
        super().__init__(path, content, restarts)
        self.facts: dict[str, Any] = {}
        self.iterations: dict[int, int] = {}  # epoch -> batches of that epoch
        self.section = self.subsection = ""
        self.in_config = False
        self.stage1 = False  # the prompts are being trained
        self.head = ""
        self.evaluated: int | None = None  # epoch of the evaluation being read
        self.heads: list[str] = []
        self.claimed_best: dict[str, str] = {}
        self.first_time = self.last_time = ""
        self.last_epoch_done = 0

    def feed(self, line: Line) -> None:
        prefix = _PREFIX.match(line.text)
        text = line.text[prefix.end() :] if prefix else line.text
        if prefix:
            self.last_time = prefix.group(1)
            self.in_config = text.startswith("Running with config")
            self.section = self.subsection = ""
        elif self.in_config and self._config_line(text):
            return
        self.builder.follow_traceback(line.number, line.text, bool(prefix))
        self.only_evaluates |= text == "Enter inferencing"
        if text == "start training":
            if self.stage1:
                self.builder.new_stage()
            else:
                self.builder.restart(line.number)
            self.stage1 = False
            self.first_time = self.first_time or self.last_time
            self.evaluated, self.head = None, ""
            return
        try:
            known = self._record(text, line.number)
        except ValueError as error:
            self.builder.cannot_read(line.number, line.text, str(error))
            return
        if not known and text.startswith(_RECORD_WORDS):
            self.builder.cannot_read(line.number, line.text, "a record that is torn or altered")

    def _config_line(self, text: str) -> bool:
        """Takes a line of the configuration dump; False ends the dump."""
        if match := _SECTION.match(text):
            self.section, self.subsection = match.group(1), ""
            return True
        if self.section and (match := _KEY.match(text)):
            self.subsection = "" if match.group(2) else f"{self.section}.{match.group(1)}"
            self.config[f"{self.section}.{match.group(1)}"] = match.group(2)
            return True
        if self.subsection and (match := _SUB_KEY.match(text)):
            self.config[f"{self.subsection}.{match.group(1)}"] = match.group(2)
            return True
        if match := _TOP_KEY.match(text):
            self.config[match.group(1)] = match.group(2)
            return True
        if text[0].isspace():  # a value that goes on over several lines
            return True
        self.in_config = False
        return False

    def _record(self, text: str, line: int) -> bool:
        if match := _TRAIN.search(text):
            self._train_line(match, line)
        elif match := _STAGE1.search(text):
            self.stage1 = True
            epoch, iteration, total = (int(match.group(i)) for i in (1, 2, 3))
            loss, rate = number(match.group(4)), number(match.group(5))
            self.builder.first_stage(epoch, (epoch - 1) * total + iteration, loss=loss, lr=rate)
        elif match := _HEAD.search(text):
            self.head = match.group(1).strip("[]").replace(",", "+").replace(" ", "")
            self.evaluated = None
        elif match := _EVALUATION.search(text):
            self.evaluated = int(match.group(2))
            self.head = match.group(1) or self.head  # such as EMA: the averaged weights
            if self.head not in self.heads:
                self.heads.append(self.head)
        elif match := _MAP.match(text):
            self._score("mAP", match.group(1), line)
        elif match := _RANK.match(text):
            self._score(f"rank{match.group(1)}", match.group(2), line)
        elif match := _BEST.match(text):
            name = match.group(1).replace("Rank-", "rank")
            fraction(match.group(2))
            self.claimed_best[name] = match.group(2)
            self.evaluated, self.head = None, ""
        elif match := _EPOCH_DONE.search(text):
            self._epoch_done(int(match.group(1)), number(match.group(3)))
        elif match := _PARAMETERS.search(text):
            self.facts["parameters_million"] = number(match.group(1))
        else:
            return False
        return True

    def _train_line(self, match: re.Match[str], line: int) -> None:
        epoch, iteration, total = (int(match.group(i)) for i in (1, 2, 3))
        loss, accuracy, rate = (number(match.group(i)) for i in (4, 5, 6))
        self.iterations[epoch] = total
        step = self._steps_before(epoch) + iteration
        time = self.last_time.replace(" ", "T") or None
        # DeMo prints means over the epoch so far, as our own runs' `running_loss` and `accuracy`.
        self.builder.train(
            epoch, step, line, loss=loss, running_loss=loss, accuracy=accuracy, lr=rate, time=time
        )

    def _epoch_done(self, epoch: int, speed: float) -> None:
        self.last_epoch_done = epoch
        if self.builder.rows and self.builder.rows[-1].get("epoch") == epoch:
            self.builder.rows[-1]["images_per_s"] = speed

    def _score(self, metric: str, printed: str, line: int) -> None:
        if self.evaluated is None:
            self.builder.cannot_read(line, f"{metric}: {printed}%", "a score outside of an evaluation")
            return
        step = self._steps_before(self.evaluated + 1)
        name = f"{metric}/{self.head}" if self.head else metric
        self.builder.evaluation(self.evaluated, step, {name: fraction(printed)})

    def _steps_before(self, epoch: int) -> int:
        """Optimiser steps before an epoch; an epoch without lines is as long as the one before it."""
        total, length, done = 0, next(iter(self.iterations.values()), 1), 0
        for known in sorted(e for e in self.iterations if e < epoch):
            total += (known - done - 1) * length
            length, done = self.iterations[known], known
            total += length
        return total + (epoch - 1 - done) * length

    def finish(self) -> ImportedRun:
        main = next(
            (head for head in MAIN_HEADS if head in self.heads), self.heads[-1] if self.heads else ""
        )
        evaluations = [row for row in self.builder.rows if row["kind"] == "eval"]
        if main:
            for row in evaluations:
                _promote(row, main)
        planned = self.config.get("SOLVER.STAGE2.MAX_EPOCHS") or self.config.get(
            "SOLVER.MAX_EPOCHS", ""
        )
        epochs_planned = int(planned) if planned.isdigit() else None
        last = evaluations[-1]["epoch"] if evaluations else self.last_epoch_done
        finished = bool(epochs_planned) and last >= (epochs_planned or 0)
        name, components = arrangement(self.config)
        self.facts |= {
            "dataset": self.config.get("DATASETS.NAMES", "").strip("(')"),
            "train_seconds": _seconds(self.first_time, self.last_time),
        }
        run = self.builder.finish(
            epochs_planned=epochs_planned,
            finished=finished if epochs_planned else None,
            select="mAP max",
            config=self.config,
            seed=seed_of(self.config.get("SOLVER.SEED")),
            facts=self.facts,
        )
        run.label, run.components = name, components
        settle_ties(run, self.claimed_best)
        return run


def _promote(row: dict[str, Any], main: str) -> None:
    """The main head's scores under their plain names."""
    for name in [n for n in row if n.endswith(f"/{main}")]:
        row[name.split("/")[0]] = row.pop(name)


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
    rows = [row for row in run.rows if row["kind"] == "eval"]
    ties = [row for row in rows if row.get("mAP") == run.best["mAP"]]
    claimed = {name: fraction(text) for name, text in printed.items()}
    agreeing = [row for row in ties if all(row.get(n, v) == v for n, v in claimed.items())]
    run.best = (agreeing or ties)[0]
    if len(ties) > 1:
        epochs = ", ".join(str(row["epoch"]) for row in ties)
        run.notes.append(
            f"epochs {epochs} tie at the printed best mAP {percent(run.best['mAP'])}%; "
            f"epoch {run.best['epoch']} agrees with the log's Best lines"
            if agreeing
            else f"epochs {epochs} tie at the printed best mAP {percent(run.best['mAP'])}%"
        )
    if not agreeing:
        for name, text in printed.items():
            if (found := run.best.get(name)) is not None and found != claimed[name]:
                run.notes.append(
                    f"the log says Best {name} {text}%, its evaluation of epoch "
                    f"{run.best['epoch']} says {percent(found)}%"
                )
