"""Logs of fast-reid: `log.txt` or redirected output, with or without the epoch in the progress line.

Progress lines hold medians over a window (fvcore's EventStorage); epochs and iterations count from 0
there and from 1 here. Evaluations are printed as a table of per cents, or in early versions as
one `Task:` and one value line each.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from analysis.importers.run import ImportedRun, fraction, number, seed_of
from analysis.importers.text import Line, LogReader

NAME = "fastreid"
LOOKS_FOR = "lines such as 'fastreid.utils.events]:  eta: 0:10:00  epoch/iter: 0/199  total_loss: ...'"

_PREFIX = re.compile(
    r"^\[\d\d/\d\d \d\d:\d\d:\d\d(?: (?P<name>[\w.]+))?\](?:: ?| (?P<old>[\w.]+) [A-Z]+: ?)"
)
_PROGRESS = re.compile(
    r"(?:^|\s)(?:eta: \S+\s+)?(?:epoch/iter: (\d+)/(\d+)|iter: (\d+))\s+(.*\btotal_loss: .*)$"
)
_PAIR = re.compile(r"([A-Za-z_][\w./]*): (\S+)")
_TASK = re.compile(r"^Task: (\S.*)$")
_TASK_VALUE = re.compile(r"^(\S+)%$")
_RANK = re.compile(r"^Rank-(\d+)$")
_CONFIG_KEY = re.compile(r"^( *)([A-Z][A-Z_0-9]*): ?(.*)$")
_FINISHED = re.compile(r"Overall training speed|Total training time")


def recognises(name: str, text: str) -> bool:
    return "fastreid." in text and bool(re.search(r"total_loss: |Evaluation results in csv", text))


class FastreidLog(LogReader):
    """A log of fast-reid."""

    format_name = NAME

    def __init__(self, path: Path, content: bytes, restarts: bool = False) -> None:
        super().__init__(path, content, restarts)
        self.sections: list[tuple[int, str]] = []
        self.in_config = False
        self.header: list[str] | None = None
        self.in_results = False
        self.task = ""
        self.epoch, self.step = 1, 0
        self.finished = False
        self.datasets: list[str] = []
        self.waiting: dict[str, float] = {}  # an evaluation whose epoch the next progress line tells
        self.evaluates_first: bool | None = None  # an epoch's progress line comes after its evaluation

    def feed(self, line: Line) -> None:
        prefix = _PREFIX.match(line.text)
        text = line.text[prefix.end() :].strip() if prefix else line.text
        self.builder.follow_traceback(line.number, line.text, bool(prefix))
        if prefix:
            self.in_config = "Running with full config" in text
            self.in_results = "Evaluation results in csv" in text
            self.header = None
        elif self.in_config and (match := _CONFIG_KEY.match(line.text)):
            self._config_line(match)
            return
        try:
            if match := _PROGRESS.search(text):
                self._progress(match, line.number)
            elif "total_loss:" in text:
                self.builder.cannot_read(
                    line.number, line.text, "a progress line without epoch or iter"
                )
            elif text.startswith("Starting training from iteration"):
                self.builder.restart(line.number)
            elif _FINISHED.search(text):
                self._evaluated()
                self.finished = True
            elif self.in_results and text.startswith("|"):
                self._table_line(text, line)
            elif match := _TASK.match(text):
                self.task = match.group(1)
            elif self.task and (match := _TASK_VALUE.match(text)):
                self._scores({self.task: match.group(1)}, "")
                self.task = ""
        except ValueError as error:
            self.builder.cannot_read(line.number, line.text, str(error))

    def _config_line(self, match: re.Match[str]) -> None:
        indent, key, value = len(match.group(1)), match.group(2), match.group(3)
        self.sections = [s for s in self.sections if s[0] < indent]
        if value:
            self.config[".".join([name for _, name in self.sections] + [key])] = value
        else:
            self.sections.append((indent, key))

    def _progress(self, match: re.Match[str], line: int) -> None:
        values: dict[str, Any] = {}
        for name, printed in _PAIR.findall(match.group(4)):
            if name == "max_mem":
                values["memory_mib"] = number(printed.rstrip("M"))
            elif name == "total_loss":
                values["loss"] = number(printed)
            elif name.startswith("loss"):
                values[f"loss/{name.removeprefix('loss_') or name}"] = number(printed)
            elif name in ("lr", "time"):
                values["seconds_per_step" if name == "time" else name] = number(printed)
        epoch = int(match.group(1)) + 1 if match.group(1) is not None else self.epoch
        if self.waiting and self.evaluates_first is None:
            tells = match.group(1) is not None
            self.evaluates_first = not self.step or (tells and epoch == self.epoch)
        if not self.evaluates_first:
            self._evaluated()
        self.epoch, self.step = epoch, int(match.group(2) or match.group(3)) + 1
        self.builder.train(self.epoch, self.step, line, **values)
        self._evaluated()

    def _evaluated(self) -> None:
        """The waiting evaluation belongs to where the training is now."""
        if self.waiting:
            self.builder.evaluation(self.epoch, self.step, self.waiting)
            self.waiting = {}

    def _table_line(self, text: str, line: Line) -> None:
        cells = [cell.strip() for cell in text.strip().strip("|").split("|")]
        if self.header is None:
            self.header = cells
        elif set("".join(cells)) <= set(":- "):
            return
        elif len(cells) != len(self.header):
            self.builder.cannot_read(
                line.number, line.text, "a result row that does not fit its header"
            )
        else:
            row = dict(zip(self.header, cells, strict=True))
            dataset = row.pop("Datasets", row.pop("Dataset", ""))
            self._scores(row, dataset)

    def _scores(self, printed: dict[str, str], dataset: str) -> None:
        """Scores of one test set; the first test set is the main one, others get `/NAME`.

        What is evaluated after training ended (fast-reid's final test) gets `/final`.
        """
        if dataset and dataset not in self.datasets:
            self.datasets.append(dataset)
        suffix = f"/{dataset}" if dataset and dataset != self.datasets[0] else ""
        suffix += "/final" if self.finished else ""
        values = {
            f"{_metric(name)}{suffix}": fraction(text)
            for name, text in printed.items()
            if name != "metric"
        }
        for name, value in values.items():
            if self.waiting.setdefault(name, value) != value:
                self.builder.cannot_read(0, f"{name} {value}", "a second evaluation of one epoch")

    def finish(self) -> ImportedRun:
        if self.waiting and self.evaluates_first and not self.finished:
            text = ", ".join(f"{name} {value}" for name, value in self.waiting.items())
            self.builder.cannot_read(0, text, "no progress line tells the epoch of this evaluation")
        else:
            self._evaluated()
        epochs = self.config.get("SOLVER.MAX_EPOCH", "")
        return self.builder.finish(
            epochs_planned=int(epochs) if epochs.isdigit() else None,
            finished=True if self.finished else None,
            select="mAP max",
            config=self.config,
            seed=seed_of(self.config.get("SEED")),
            facts={"dataset": self.datasets[0] if self.datasets else ""},
        )


def _metric(name: str) -> str:
    match = _RANK.match(name)
    return f"rank{match.group(1)}" if match else name
