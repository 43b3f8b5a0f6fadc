"""Training logs of SEPS, LAPS and of VSE++ and its relatives (SCAN, VSRN, SGRAF), which print alike.

Scores are recalls in per cent; `rsum` is the sum of the six. Epochs and iterations count from 0 there.
An epoch may be evaluated several times. Line formats: `lib/evaluation.py`, `lib/train.py` of SEPS.
"""

from __future__ import annotations

import re
from ast import literal_eval
from pathlib import Path

from analysis.importers.run import ImportedRun, fraction, number, seed_of
from analysis.importers.text import Line, LogReader

NAME = "seps"
LOOKS_FOR = (
    "lines such as 'Epoch: [0][0/907] Iter ... Loss ...' or 'Image to text (R@1, R@5, R@10): ...'"
)

_TRAIN = re.compile(r"Epoch: \[(\d+)\]\[(\d+)/(\d+)\]\s+(.*)$")
_METER = re.compile(r"([A-Za-z][\w-]*) (\S+) \((\S+?)\)")
_RATE = re.compile(r"\blr ([\d.eE+-]+)(?=\s)")  # VSE++ prints the rate without an average
_RECALLS = re.compile(
    r"(Image to text|Text to image)(?: \(R@1, R@5, R@10\))?: (\S+), (\S+), (\S+?)(?:,|$|\s)"
)
_RSUM = re.compile(r"Current rsum is (\S+)$")
_VALIDATION = re.compile(r"Val: (.*\brsum=.*)$")
_BEST = re.compile(r"Epoch: \[(\d+)\], Best rsum: (\S+)$")
_ARGUMENTS = re.compile(r"Namespace\((.*)\)$")
_ARGUMENT = re.compile(r"(\w+)=('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|\[[^\]]*\]|[^,]+)")
# Names of the one-line form: r1 is image to text, r1i text to image.
_SHORT = {
    **{f"r{k}": f"i2t_r{k}" for k in (1, 5, 10)},
    **{f"r{k}i": f"t2i_r{k}" for k in (1, 5, 10)},
}
_METERS = {"Loss": "loss", "Le": "loss", "lr": "lr"}


def recognises(name: str, text: str) -> bool:
    return bool(re.search(r"Epoch: \[\d+\]\[\d+/\d+\]\s+(?:Iter|Eit) ", text)) or (
        "Image to text" in text and "rsum" in text
    )


class SepsLog(LogReader):
    """A log of SEPS, LAPS, VSE++ or one of their relatives."""

    format_name = NAME
    split = "val"  # VSE++ and its relatives evaluate the development split after each epoch

    def __init__(self, path: Path, content: bytes, restarts: bool = False) -> None:
        super().__init__(path, content, restarts)
        self.epoch, self.step = 0, 0
        self.length: dict[int, int] = {}
        self.scores: dict[str, float] = {}

    def feed(self, line: Line) -> None:
        text = line.text
        self.builder.follow_traceback(line.number, text, False)
        self.only_evaluates |= "Computing results..." in text
        try:
            if match := _TRAIN.search(text):
                self._train(match, line)
            elif match := _RECALLS.search(text):
                side = "i2t" if match.group(1).startswith("Image") else "t2i"
                for rank, printed in zip((1, 5, 10), match.groups()[1:], strict=True):
                    self.scores[f"{side}_r{rank}"] = fraction(printed)
                self._flush()
            elif match := _RSUM.search(text):
                self.scores["rsum"] = fraction(match.group(1))
                self._flush()
            elif match := _VALIDATION.search(text):
                pairs = dict(pair.split("=", 1) for pair in match.group(1).split(", ") if "=" in pair)
                self.scores |= {
                    ours: fraction(pairs[name]) for name, ours in _SHORT.items() if name in pairs
                }
                self.scores["rsum"] = fraction(pairs["rsum"])
                self._flush()
            elif _BEST.search(text):
                return
            elif match := _ARGUMENTS.search(text):
                self.config |= {k: _plain(v.strip()) for k, v in _ARGUMENT.findall(match.group(1))}
                self.builder.restart(line.number)
            elif text.lstrip().startswith(
                ("Epoch: [", "Image to text", "Text to image", "Current rsum")
            ):
                self.builder.cannot_read(line.number, text, "a record that is torn or altered")
        except ValueError as error:
            self.builder.cannot_read(line.number, text, str(error))

    def _train(self, match: re.Match[str], line: Line) -> None:
        epoch, iteration, length = (int(match.group(i)) for i in (1, 2, 3))
        meters = {name: current for name, current, _ in _METER.findall(match.group(4))}
        if "lr" not in meters and (rate := _RATE.search(match.group(4))):
            meters["lr"] = rate.group(1)
        values = {ours: number(meters[name]) for name, ours in _METERS.items() if name in meters}
        if "loss" not in values:
            self.builder.cannot_read(line.number, line.text, "a training line without a loss")
            return
        if "Batch-Time" in match.group(4):
            self.split = "test"  # LAPS and SEPS, train.py: validate(opt, test_loader, ...)
        self.epoch, self.length[epoch + 1] = epoch + 1, length
        before = [n for e, n in self.length.items() if e <= epoch]
        self.step = sum(before) + (epoch - len(before)) * length + iteration + 1
        self.scores = {}
        self.builder.train(self.epoch, self.step, line.number, **values)

    def _flush(self) -> None:
        """The scores known so far; further lines of the same evaluation complete its row."""
        self.builder.evaluation(self.epoch, self.step, self.scores)

    def finish(self) -> ImportedRun:
        for row in self.builder.rows:
            recalls = [row[name] for name in _SHORT.values() if name in row]
            if row["kind"] == "eval" and "rsum" not in row and len(recalls) == 6:
                row["rsum"] = float(f"{sum(recalls):.6f}")
        planned = self.config.get("num_epochs", "")
        return self.builder.finish(
            epochs_planned=int(planned) if planned.isdigit() else None,
            select="rsum max",
            config=self.config,
            seed=seed_of(self.config.get("seed")),
            facts={"dataset": self.config.get("dataset", "")},
        )


def _plain(value: str) -> str:
    if value[:1] in "'\"":
        try:
            return str(literal_eval(value))
        except (ValueError, SyntaxError):
            return value
    return value
