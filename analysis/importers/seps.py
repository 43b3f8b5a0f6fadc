"""Training logs of SEPS, LAPS and of VSE++ and its relatives (SCAN, VSRN, SGRAF), which print alike.

Scores are recalls in per cent; `rsum` is the sum of the six. Epochs and iterations count from 0 there.
An epoch may be evaluated several times. Line formats: `lib/evaluation.py`, `lib/train.py` of SEPS.
"""

from __future__ import annotations

import re
from ast import literal_eval

from analysis.importers.run import ImportedRun, fraction, number
from analysis.importers.text import LogReader, reads

_METER = re.compile(r"([A-Za-z][\w-]*) (\S+) \((\S+?)\)")
_RATE = re.compile(r"\blr ([\d.eE+-]+)(?=\s)")  # VSE++ prints the rate without an average
_ARGUMENT = re.compile(r"(\w+)=('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|\[[^\]]*\]|[^,]+)")
# Names of the one-line form: r1 is image to text, r1i text to image.
_SHORT = {
    **{f"r{k}": f"i2t_r{k}" for k in (1, 5, 10)},
    **{f"r{k}i": f"t2i_r{k}" for k in (1, 5, 10)},
}
_METERS = {"Loss": "loss", "Le": "loss", "lr": "lr"}


class SepsLog(LogReader):
    """A log of SEPS, LAPS, VSE++ or one of their relatives."""

    name = "seps"
    looks_for = (
        "lines such as 'Epoch: [0][0/907] Iter ... Loss ...' or 'Image to text (R@1, R@5, R@10): ...'"
    )
    recognised = r"Epoch: \[\d+\]\[\d+/\d+\]\s+(?:Iter|Eit) |\A(?s:(?=.*Image to text)(?=.*rsum))"
    announced = ("Epoch: [", "Image to text", "Text to image", "Current rsum")
    split = "val"  # VSE++ and its relatives evaluate the development split after each epoch
    select = "rsum max"
    seed_key = "seed"
    epochs_keys = ("num_epochs",)
    epoch = step = 0

    @reads(r"Epoch: \[(\d+)\]\[(\d+)/(\d+)\]\s+(.*)$")
    def _train(self, epoch: str, iteration: str, length: str, printed: str) -> None:
        meters = {name: current for name, current, _ in _METER.findall(printed)}
        if "lr" not in meters and (rate := _RATE.search(printed)):
            meters["lr"] = rate.group(1)
        values = {ours: number(meters[name]) for name, ours in _METERS.items() if name in meters}
        if "loss" not in values:
            raise ValueError("a training line without a loss")
        if "Batch-Time" in printed:
            self.split = "test"  # LAPS and SEPS, train.py: validate(opt, test_loader, ...)
        self.epoch = int(epoch) + 1
        self.lengths[self.epoch] = int(length)
        self.step = self.steps_before(self.epoch) + int(iteration) + 1
        self.builder.add("train", self.epoch, self.step, values, self.line.number)

    @reads(r"(Image to text|Text to image)(?: \(R@1, R@5, R@10\))?: (\S+), (\S+), (\S+?)(?:,|$|\s)")
    def _recalls(self, side: str, *printed: str) -> None:
        names = (f"{'i2t' if side[0] == 'I' else 't2i'}_r{k}" for k in (1, 5, 10))
        self._scores(dict(zip(names, printed, strict=True)))

    @reads(r"Current rsum is (\S+)$")
    def _rsum(self, printed: str) -> None:
        self._scores({"rsum": printed})

    @reads(r"Val: (.*\brsum=.*)$")
    def _validation(self, printed: str) -> None:
        pairs = dict(pair.split("=", 1) for pair in printed.split(", ") if "=" in pair)
        names = {**_SHORT, "rsum": "rsum"}
        self._scores({ours: pairs[name] for name, ours in names.items() if name in pairs})

    def _scores(self, printed: dict[str, str]) -> None:
        """Further lines of the same evaluation complete its row."""
        scores = {name: fraction(text) for name, text in printed.items()}
        self.builder.add("eval", self.epoch, self.step, scores)

    @reads(r"Epoch: \[\d+\], Best rsum: \S+$")
    def _best(self) -> None:
        """The best so far; the evaluations say it."""

    @reads(r"Namespace\((.*)\)$")
    def _arguments(self, printed: str) -> None:
        self.config |= {key: _plain(value.strip()) for key, value in _ARGUMENT.findall(printed)}
        self.facts["dataset"] = self.config.get("dataset", "")
        self.builder.restart(self.line.number)

    @reads(r"Computing results\.\.\.")
    def _evaluation(self) -> None:
        self.only_evaluates = True

    def finish(self, finished: bool | None = None) -> ImportedRun:
        for row in self.builder.rows:
            recalls = [row[name] for name in _SHORT.values() if name in row]
            if row["kind"] == "eval" and "rsum" not in row and len(recalls) == 6:
                row["rsum"] = float(f"{sum(recalls):.6f}")
        return super().finish(finished)


def _plain(value: str) -> str:
    if value[:1] in "'\"":
        try:
            return str(literal_eval(value))
        except (ValueError, SyntaxError):
            return value
    return value
