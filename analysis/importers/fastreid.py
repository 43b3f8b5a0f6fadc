"""Logs of fast-reid: `log.txt` or redirected output, with or without the epoch in the progress line.

Progress lines hold medians over a window (fvcore's EventStorage); epochs and iterations count from 0
there and from 1 here. Evaluations are printed as a table of per cents, or in early versions as
one `Task:` and one value line each.
"""

from __future__ import annotations

import re
from typing import Any

from analysis.importers.run import ImportedRun, fraction, number
from analysis.importers.text import LogReader, reads

_PAIR = re.compile(r"([A-Za-z_][\w./]*): (\S+)")


class FastreidLog(LogReader):
    """A log of fast-reid."""

    name = "fastreid"
    looks_for = (
        "lines such as 'fastreid.utils.events]:  eta: 0:10:00  epoch/iter: 0/199  total_loss: ...'"
    )
    recognised = r"\A(?s:(?=.*fastreid\.)(?=.*(?:total_loss: |Evaluation results in csv)))"
    prefix = re.compile(r"^\[\d\d/\d\d \d\d:\d\d:\d\d(?: [\w.]+)?\](?:: ?| [\w.]+ [A-Z]+: ?)")
    select = "mAP max"
    seed_key = "SEED"
    epochs_keys = ("SOLVER.MAX_EPOCH",)
    header: list[str] | None = None
    header_of = 0  # the line of the record below which the table stands
    task = ""
    epoch, step = 1, 0
    finished = False
    evaluates_first: bool | None = None  # an epoch's progress line comes after its evaluation

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.datasets: list[str] = []
        self.waiting: dict[str, float] = {}  # an evaluation whose epoch the next progress line tells

    @reads(r"(?:^|\s)(?:eta: \S+\s+)?(?:epoch/iter: (\d+)/(\d+)|iter: (\d+))\s+(.*\btotal_loss: .*)$")
    def _progress(self, told: str | None, iteration: str | None, alone: str, pairs: str) -> None:
        values: dict[str, Any] = {}
        for name, printed in _PAIR.findall(pairs):
            if name == "max_mem":
                values["memory_mib"] = number(printed.rstrip("M"))
            elif name == "total_loss":
                values["loss"] = number(printed)
            elif name.startswith("loss"):
                values[f"loss/{name.removeprefix('loss_') or name}"] = number(printed)
            elif name in ("lr", "time"):
                values["seconds_per_step" if name == "time" else name] = number(printed)
        epoch = int(told) + 1 if told is not None else self.epoch
        if self.waiting and self.evaluates_first is None:
            self.evaluates_first = not self.step or (told is not None and epoch == self.epoch)
        if not self.evaluates_first:
            self._evaluated()
        self.epoch, self.step = epoch, int(iteration or alone) + 1
        self.builder.add("train", self.epoch, self.step, values, self.line.number)
        self._evaluated()

    @reads(r"total_loss:")
    def _torn(self) -> None:
        raise ValueError("a progress line without epoch or iter")

    @reads(r"^Starting training from iteration")
    def _start(self) -> None:
        self.builder.restart(self.line.number)

    @reads(r"Overall training speed|Total training time")
    def _end(self) -> None:
        self._evaluated()
        self.finished = True

    def _evaluated(self) -> None:
        """The waiting evaluation belongs to where the training is now."""
        if self.waiting:
            self.builder.add("eval", self.epoch, self.step, self.waiting)
            self.waiting = {}

    @reads(r"^\|(.*)$")
    def _table_line(self, text: str) -> None:
        if "Evaluation results in csv" not in self.record.text:
            return
        cells = [cell.strip() for cell in text.strip().strip("|").split("|")]
        if self.header_of != self.record.number:
            self.header, self.header_of = cells, self.record.number
        elif not set("".join(cells)) <= set(":- "):
            header = self.header or []
            if len(cells) != len(header):
                raise ValueError("a result row that does not fit its header")
            row = dict(zip(header, cells, strict=True))
            self._scores(row, row.pop("Datasets", row.pop("Dataset", "")))

    @reads(r"^Task: (\S.*)$")
    def _task(self, task: str) -> None:
        self.task = task

    @reads(r"^(\S+)%$")
    def _task_value(self, printed: str) -> None:
        if self.task:
            self._scores({self.task: printed}, "")
            self.task = ""

    def _scores(self, printed: dict[str, str], dataset: str) -> None:
        """Scores of one test set; the first test set is the main one, others get `/NAME`.

        What is evaluated after training ended (fast-reid's final test) gets `/final`.
        """
        if dataset and dataset not in self.datasets:
            self.datasets.append(dataset)
            self.facts["dataset"] = self.datasets[0]
        suffix = f"/{dataset}" if dataset and dataset != self.datasets[0] else ""
        suffix += "/final" if self.finished else ""
        printed.pop("metric", None)
        for name, text in printed.items():
            name, value = re.sub(r"^Rank-(\d+)$", r"rank\1", name) + suffix, fraction(text)
            if self.waiting.setdefault(name, value) != value:
                self.builder.cannot_read(0, f"{name} {value}", "a second evaluation of one epoch")

    def finish(self, finished: bool | None = None) -> ImportedRun:
        if self.waiting and self.evaluates_first and not self.finished:
            text = ", ".join(f"{name} {value}" for name, value in self.waiting.items())
            self.builder.cannot_read(0, text, "no progress line tells the epoch of this evaluation")
        else:
            self._evaluated()
        return super().finish(self.finished or None)
