"""Statements over the runs of a study, with the values and the run folders behind each.

A statement is an expression such as `final('topk', 'rank1') >= final('soft', 'rank1') - 0.05`. The
language is a small part of Python: numbers, comparisons, `and or not`, + - * /, abs, min, max, and

    peak_loss(V)      largest mean training loss of an epoch
    final_loss(V)     mean training loss of the last epoch
    final(V, M)       metric M at the last evaluation          best(V, M)   at the selected one

V is the name of a variant. A run that diverged has an infinite loss and the worst value of a metric
(minus infinity where up is better): it never counts as good, and it is never left out.

A statement about a mean is decided by the interval of its seed-wise differences. One about single runs
(`each_seed`) must be true in every seed, or false in every seed.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from analysis.claims.verdicts import Statement, missing
from analysis.results.frames import results
from analysis.results.numbers import fixed, printed
from analysis.results.stats import Decision, decide
from sdtps.system.errors import counted

if TYPE_CHECKING:
    from analysis.runs.collect import Collected

# What an expression may consist of, besides calls, numbers, `and` and `or`.
OPERATORS = (
    *(ast.Add, ast.Sub, ast.Mult, ast.Div, ast.USub, ast.Not),
    *(ast.Lt, ast.LtE, ast.Gt, ast.GtE),
)
PURE: dict[str, Callable[..., float]] = {"abs": abs, "min": min, "max": max}
# Names of the functions that read runs, with the number of their arguments.
READERS = {"peak_loss": 1, "final_loss": 1, "final": 2, "best": 2}


class ExpressionError(ValueError):
    """An expression that is not in the language; the text says where and what is allowed."""


@dataclass(frozen=True)
class Call:
    """One use of a reader: `final('topk', 'rank1')` is Call('final', ('topk', 'rank1'))."""

    function: str
    words: tuple[str, ...]

    @property
    def variant(self) -> str:
        return self.words[0]

    def __str__(self) -> str:
        return f"{self.function}({', '.join(self.words)})"


class Expression:
    """A checked expression. `calls` lists what it reads, each once, in order.

    Raises:
        ExpressionError: a syntax error, or anything outside the language.
    """

    def __init__(self, text: str) -> None:
        self.text = " ".join(text.split())
        try:
            self._tree = ast.parse(self.text, mode="eval").body
        except SyntaxError as error:
            raise ExpressionError(f"{self.text!r}: {error.msg}") from None
        self.calls = tuple(dict.fromkeys(self._check(self._tree)))
        if not self.calls:
            raise ExpressionError(f"{self.text!r} reads no run")
        if not isinstance(self._tree, ast.Compare | ast.BoolOp | ast.UnaryOp):
            raise ExpressionError(f"{self.text!r} is a number; a statement must be true or false")

    def value(self, read: Callable[[Call], float]) -> bool:
        """The truth of the expression where `read` gives the value of each call."""
        return bool(self._evaluate(self._tree, read))

    def decided(self, values: Mapping[Call, Sequence[float]], unit: float = 0.0) -> Decision:
        """The truth for the mean over seeds, by the intervals of seed-wise differences.

        `a > b` asks whether the mean of a - b is above 0; `abs(x) < m` whether x is equivalent to 0
        within m (two one-sided tests), and `abs(x) > m` whether its interval lies outside.

        Args:
            values: of each call, one a seed, in the same order of seeds.
            unit: in which they were written (`stats.resolution`).
        """
        count = len(next(iter(values.values())))

        def each(node: ast.expr) -> list[float]:
            return [float(self._evaluate(node, lambda c, i=i: values[c][i])) for i in range(count)]  # type: ignore[misc]

        return self._decide(self._tree, each, unit)

    def _decide(self, node: ast.expr, each: Callable[[ast.expr], list[float]], unit: float) -> Decision:
        if isinstance(node, ast.UnaryOp):
            return _not(self._decide(node.operand, each, unit))
        if isinstance(node, ast.BoolOp):
            parts = [self._decide(value, each, unit) for value in node.values]
            settling = not isinstance(node.op, ast.And)  # the truth value of one part that settles it
            settled = [p for p in parts if p.holds is settling]
            undecided = [p for p in parts if p.holds is None]
            return (settled or undecided or parts)[0]
        assert isinstance(node, ast.Compare)
        small, large = node.left, node.comparators[0]
        if isinstance(node.ops[0], ast.Gt | ast.GtE):
            small, large = large, small
        for distance, margin, within in ((small, large, True), (large, small, False)):
            if isinstance(distance, ast.Call) and getattr(distance.func, "id", "") == "abs":
                margins = each(margin)
                shares = [v / most for v, most in zip(each(distance.args[0]), margins, strict=True)]
                answer = decide(shares, 1.0, unit / min(margins))
                return answer if within else _not(answer)
        differences = [b - a for a, b in zip(each(small), each(large), strict=True)]
        return decide(differences, unit=unit)

    def _check(self, node: ast.AST) -> Iterator[Call]:
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else ast.unparse(node.func)
            if name in READERS:
                yield self._reader(node, name)
                return
            if name not in PURE or node.keywords:
                allowed = ", ".join([*READERS, *PURE])
                raise ExpressionError(f"{self.text!r}: unknown function {name}; allowed: {allowed}")
            children: list[ast.AST] = list(node.args)
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
            children = []
        elif isinstance(node, ast.BinOp | ast.UnaryOp) and isinstance(node.op, OPERATORS):
            children = [node.left, node.right] if isinstance(node, ast.BinOp) else [node.operand]
        elif isinstance(node, ast.Compare) and all(isinstance(op, OPERATORS) for op in node.ops):
            if len(node.ops) > 1:
                raise ExpressionError(f"{self.text!r}: write a < b < c as a < b and b < c")
            children = [node.left, *node.comparators]
        elif isinstance(node, ast.BoolOp):
            children = list(node.values)
        else:
            raise ExpressionError(f"{self.text!r}: {ast.unparse(node)!r} is not allowed here")
        for child in children:
            yield from self._check(child)

    def _reader(self, node: ast.Call, name: str) -> Call:
        words = tuple(
            a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)
        )
        if len(words) != READERS[name] or len(node.args) != READERS[name] or node.keywords:
            form = "('VARIANT')" if READERS[name] == 1 else "('VARIANT', 'METRIC')"
            raise ExpressionError(f"{self.text!r}: {name} is written {name}{form}")
        return Call(name, words)

    def _evaluate(self, node: ast.expr, read: Callable[[Call], float]) -> float | bool:
        """The value of a part of the expression; `_check` let nothing through but the language."""
        readers = {
            name: lambda *words, name=name: read(Call(name, words))  # type: ignore[misc]
            for name in READERS
        }
        code = compile(ast.Expression(node), "<claim>", "eval")
        value: float | bool = eval(code, {"__builtins__": {}, **PURE, **readers})
        return value


def _not(decision: Decision) -> Decision:
    if decision.holds is None:
        return decision
    return replace(decision, holds=not decision.holds)


# -- what is read of runs -----------------------------------------------------------------------


class StudyRuns:
    """What expressions can read of one study's runs."""

    def __init__(self, collected: Collected, study: str) -> None:
        self.collected = collected
        self.study = collected.study(study)
        self.command = f"sdtps submit {self.study.path}"
        self._runs = {(run.variant, run.seed): run for run in collected.runs_of(study)}

    def mistakes(self, expression: Expression) -> list[str]:
        """Variants and metrics that the study does not have."""
        unknown = sorted({c.variant for c in expression.calls} - set(self.study.variants))
        text = [f"ablations/{self.study.name}.yaml has no variant {name}" for name in unknown]
        metrics = {c.words[1] for c in expression.calls if len(c.words) == 2}
        allowed = set(self.study.metrics)
        return text + [f"{self.study.name} declares no metric {m}" for m in sorted(metrics - allowed)]

    def finished(self, variant: str, seed: int) -> bool:
        run = self._runs.get((variant, seed))
        return run is not None and run.state in ("completed", "diverged")

    def diverged(self, variant: str, seed: int) -> bool:
        return self._runs[variant, seed].state == "diverged"

    def is_generated(self, variant: str, seed: int) -> bool:
        return self._runs[variant, seed].generated_data

    def folder(self, variant: str, seed: int) -> str:
        return self._runs[variant, seed].where

    def read(self, call: Call, seed: int) -> float:
        """The value of a call for one seed: infinite where the run diverged, NaN where it has none."""
        if call.function in ("peak_loss", "final_loss"):
            if self.diverged(call.variant, seed):
                return math.inf
            losses = self.epoch_losses(call.variant, seed)
            if not len(losses):
                return math.nan
            return float(losses.max() if call.function == "peak_loss" else losses[-1])
        metric = call.words[1]
        if self.diverged(call.variant, seed):
            return -math.inf if self.study.metrics[metric].direction == "up" else math.inf
        epoch: Literal["last", "best"] = "last" if call.function == "final" else "best"
        result = results(self.collected, self.study).get(call.variant, metric, epoch)
        return result.values.get(seed, math.nan)

    def named(self, call: Call) -> str:
        """A call in words, for a reader: `final Rank-1 of Top-K`."""
        label = self.study.variants[call.variant].label
        if len(call.words) == 1:
            return f"{call.function.replace('_', ' ')} of {label}"
        metric = self.study.metrics[call.words[1]]
        unit = f" ({metric.unit})" if metric.unit else ""
        return f"{call.function} {metric.label or call.words[1]}{unit} of {label}"

    def shown(self, call: Call, values: Sequence[float]) -> str:
        """Values of the seeds in the unit and with the digits that the manifest says."""
        metric = None if len(call.words) == 1 else self.study.metrics[call.words[1]]

        def one(value: float) -> str:
            if not math.isfinite(value):
                return _word(value)
            return fixed(value, 2) if metric is None else printed(value, metric)

        return " / ".join(map(one, values))

    def epoch_losses(self, variant: str, seed: int) -> np.ndarray:
        """Mean training loss of each epoch, in order; a non-finite loss makes it infinite.

        The trainer writes an epoch's mean over all steps; logs from elsewhere hold single steps only.
        """
        rows = self._runs[variant, seed].rows
        losses = rows.by_epoch("epoch_loss")
        if not len(losses):
            losses = rows.by_epoch("loss")
        return np.where(np.isfinite(losses), losses, math.inf)


def has_data(runs: StudyRuns, expression: Expression) -> bool:
    """Whether the study has the variants and metrics, and a seed that finished in each variant."""
    if runs.mistakes(expression):
        return False
    variants = {call.variant for call in expression.calls}
    return any(all(runs.finished(v, s) for v in variants) for s in runs.study.seeds)


def statement(runs: StudyRuns, says: str, expression: Expression, over: str) -> Statement:
    """Evaluate one expression.

    Args:
        over: `mean` (decided by intervals) or `each_seed` (true or false in every seed, else open).
    """
    mistakes = runs.mistakes(expression)
    if mistakes:
        return missing("; ".join(mistakes))
    variants = list(dict.fromkeys(call.variant for call in expression.calls))
    planned = list(runs.study.seeds)
    seeds = [s for s in planned if all(runs.finished(v, s) for v in variants)]
    if not seeds:
        return missing(f"{runs.command} (no run has finished)")
    values = {call: [runs.read(call, seed) for seed in seeds] for call in expression.calls}
    folders = tuple(runs.folder(v, s) for v in variants for s in seeds)
    numbers = {
        f"{call}, seed {s}": _plain(value)
        for call, row in values.items()
        for s, value in zip(seeds, row, strict=True)
    }
    measured = "; ".join(f"{runs.named(call)}: {runs.shown(call, row)}" for call, row in values.items())

    def answer(holds: bool | None, why: str = "") -> Statement:
        return Statement(
            says,
            holds,
            measured,
            numbers=numbers,
            runs=folders,
            why=why,
            study=runs.study.name,
            seeds=len(seeds),
            generated=all(runs.is_generated(v, s) for v in variants for s in seeds),
        )

    if len(seeds) < len(planned):
        absent = [s for s in planned if s not in seeds]
        return answer(None, f"seeds {absent} of {', '.join(variants)} are not finished: {runs.command}")
    unlogged = [str(call) for call, row in values.items() if any(map(math.isnan, row))]
    if unlogged:
        return answer(None, f"some runs logged no {', '.join(unlogged)}")
    if over == "mean":
        found = results(runs.collected, runs.study)
        metrics = {(call.variant, call.words[1]) for call in expression.calls if len(call.words) == 2}
        unit = max((found.get(*key).unit for key in metrics), default=0.0)
        decision = expression.decided(values, unit)
        why = f"{counted(len(seeds), 'seed')} cannot tell: {decision.why}" if decision.why else ""
        return answer(decision.holds, why)
    truths = [
        _truth(expression, lambda call, i=i: values[call][i])  # type: ignore[misc]
        for i in range(len(seeds))
    ]
    if any(t is None for t in truths):
        return answer(None, "both sides of the comparison diverged")
    if len(set(truths)) > 1:
        return answer(None, f"true in {sum(map(bool, truths))} of {len(truths)} seeds: {says}")
    return answer(truths[0])


def _truth(expression: Expression, read: Callable[[Call], float]) -> bool | None:
    """None where two infinities would be compared: neither side is a number."""
    if sum(not math.isfinite(read(call)) for call in expression.calls) > 1:
        return None
    return expression.value(read)


def _plain(value: float) -> float | str:
    return value if math.isfinite(value) else _word(value)


def _word(value: float) -> str:
    return "not logged" if math.isnan(value) else "diverged"
