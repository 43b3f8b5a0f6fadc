"""Expressions over a study's runs, such as `peak_loss('gumbel_tau1') >= 2 * peak_loss('topk')`.

Evaluated seed by seed, so that both sides see the same seed, or over the means of all seeds. The
language is a small part of Python: numbers, comparisons, `and or not`, + - * /, abs, min, max, and

    peak_loss(V)      largest mean training loss of an epoch
    final_loss(V)     mean training loss of the last epoch
    final(V, M)       metric M at the last evaluation          best(V, M)   at the selected one

V is the name of a variant. A run that diverged has an infinite loss and the worst value of a metric
(minus infinity where up is better): it never counts as good, and never vanishes.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass

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
# Names of the functions that read runs, with how many words each takes.
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
        sides = [self._evaluate(side, read) for side in (node.left, *node.comparators)]
        return all(
            OPERATORS[type(op)](a, b) for op, a, b in zip(node.ops, sides, sides[1:], strict=False)
        )
