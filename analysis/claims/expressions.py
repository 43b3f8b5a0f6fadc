"""Expressions over a study's runs, such as `final('topk', 'rank1') >= final('soft', 'rank1') - 0.05`.

The language is a small part of Python: numbers, comparisons, `and or not`, + - * /, abs, min, max, and

    peak_loss(V)      largest mean training loss of an epoch
    final_loss(V)     mean training loss of the last epoch
    final(V, M)       metric M at the last evaluation          best(V, M)   at the selected one

V is the name of a variant. A run that diverged has an infinite loss and the worst value of a metric
(minus infinity where up is better): it never counts as good, and it is never left out.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from analysis.results.stats import Decision, decide, decide_within

OPERATORS: dict[type[ast.AST], Callable[..., float | bool]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.USub: operator.neg,
    ast.Not: operator.not_,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
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

    def decided(self, values: Mapping[Call, Sequence[float]]) -> Decision:
        """The truth for the mean over seeds, by the intervals of seed-wise differences.

        `a > b` asks whether the mean of a - b is above 0; `abs(x) < m` whether x is equivalent to 0
        within m (two one-sided tests), and `abs(x) > m` whether its interval lies outside.

        Args:
            values: of each call, one a seed, in the same order of seeds.
        """
        count = len(next(iter(values.values())))

        def each(node: ast.AST) -> list[float]:
            return [float(self._evaluate(node, lambda c, i=i: values[c][i])) for i in range(count)]  # type: ignore[misc]

        return self._decide(self._tree, each)

    def _decide(self, node: ast.AST, each: Callable[[ast.AST], list[float]]) -> Decision:
        if isinstance(node, ast.UnaryOp):
            return _not(self._decide(node.operand, each))
        if isinstance(node, ast.BoolOp):
            parts = [self._decide(value, each) for value in node.values]
            wanted = not isinstance(node.op, ast.And)  # the truth value of one part that settles it
            settled = [p for p in parts if p.holds is wanted]
            undecided = [p for p in parts if p.holds is None]
            return (settled or undecided or parts)[0]
        assert isinstance(node, ast.Compare)
        small, large = node.left, node.comparators[0]
        if isinstance(node.ops[0], ast.Gt | ast.GtE):
            small, large = large, small
        for distance, margin, within in ((small, large, True), (large, small, False)):
            if isinstance(distance, ast.Call) and getattr(distance.func, "id", "") == "abs":
                pairs = zip(each(distance.args[0]), each(margin), strict=True)
                answer = decide_within([value / most for value, most in pairs], 1.0)
                return answer if within else _not(answer)
        return decide([b - a for a, b in zip(each(small), each(large), strict=True)])

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
        elif isinstance(node, ast.BinOp | ast.UnaryOp) and type(node.op) in OPERATORS:
            children = [node.left, node.right] if isinstance(node, ast.BinOp) else [node.operand]
        elif isinstance(node, ast.Compare) and all(type(op) in OPERATORS for op in node.ops):
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

    def _evaluate(self, node: ast.AST, read: Callable[[Call], float]) -> float | bool:
        if isinstance(node, ast.Call):
            name = node.func.id  # type: ignore[attr-defined]  # checked on construction
            if name in READERS:
                return read(self._reader(node, name))
            return PURE[name](*(self._evaluate(a, read) for a in node.args))
        if isinstance(node, ast.Constant):
            return node.value  # type: ignore[return-value]
        if isinstance(node, ast.BinOp):
            return OPERATORS[type(node.op)](
                self._evaluate(node.left, read), self._evaluate(node.right, read)
            )
        if isinstance(node, ast.UnaryOp):
            return OPERATORS[type(node.op)](self._evaluate(node.operand, read))
        if isinstance(node, ast.BoolOp):
            values = (self._evaluate(v, read) for v in node.values)
            return all(values) if isinstance(node.op, ast.And) else any(values)
        assert isinstance(node, ast.Compare)
        left, right = (self._evaluate(side, read) for side in (node.left, node.comparators[0]))
        return OPERATORS[type(node.ops[0])](left, right)


def _not(decision: Decision) -> Decision:
    if decision.holds is None:
        return decision
    return replace(decision, holds=not decision.holds)
