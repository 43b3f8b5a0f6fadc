"""What a test says about a claim: statements that hold or not, and the verdict that follows.

A claim is broken into statements, each a consequence that would be seen if the claim were right. All
hold: supported. None holds: refuted. Some hold: partly. If no statement could be tested because data
are missing, the claim is not tested; if some are open, it is inconclusive. No other module decides.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sdtps.system.errors import counted

Word = Literal["supported", "refuted", "partly", "inconclusive", "not tested"]
DECIDED: tuple[Word, ...] = ("supported", "refuted", "partly")
WORDS: tuple[Word, ...] = (*DECIDED, "inconclusive", "not tested")


@dataclass(frozen=True)
class Statement:
    """One consequence of a claim and what was measured.

    holds: None = open; then `why` says the reason, and `needs` is true where data are missing and not
    contradictory or incomplete. study, seeds, generated: of runs, whose they are, how many, and whether
    their images are generated.
    """

    says: str
    holds: bool | None
    measured: str
    numbers: Mapping[str, float | int | str | None] = field(default_factory=dict)
    runs: tuple[str, ...] = ()
    why: str = ""
    needs: bool = False
    study: str = ""
    seeds: int = 0
    generated: bool = False

    @property
    def scope(self) -> str:
        """`study quick, 2 seeds, generated images`; empty for what was not measured on runs."""
        parts = [
            f"study {self.study}",
            counted(self.seeds, "seed"),
            "generated images" * self.generated,
        ]
        return ", ".join(filter(None, parts)) if self.study else ""


@dataclass(frozen=True)
class Verdict:
    """The word and, where nothing was decided, the reason."""

    word: Word
    why: str = ""

    @property
    def decided(self) -> bool:
        return self.word in DECIDED


def missing(needs: str) -> Statement:
    """A statement whose data do not exist; `needs` completes "not tested: needs ..."."""
    return Statement(says="", holds=None, measured="", why=needs, needs=True)


def verdict(statements: Sequence[Statement]) -> Verdict:
    """The verdict that follows from the statements of one claim.

    Raises:
        ValueError: no statement at all; a test must say something.
    """
    if not statements:
        raise ValueError("a test gave no statement")
    open_ = [s for s in statements if s.holds is None]
    if open_:
        why = "; ".join(dict.fromkeys(s.why for s in open_))
        all_missing = len(open_) == len(statements) and all(s.needs for s in open_)
        return Verdict("not tested" if all_missing else "inconclusive", why)
    holding = sum(bool(s.holds) for s in statements)
    if holding == len(statements):
        return Verdict("supported")
    return Verdict("partly" if holding else "refuted")


# -- checks: functions of plain arguments that return statements, named by the ledger ---------------

Check = Callable[..., Iterable[Statement]]
CHECKS: dict[str, Check] = {}


def check(function: Check) -> Check:
    """Register a check under its own name.

    Raises:
        ValueError: the name is taken.
    """
    name = function.__name__
    if name in CHECKS:
        raise ValueError(f"two checks are named {name}")
    CHECKS[name] = function
    return function


def argument_mistake(name: str, arguments: Mapping[str, Any]) -> str | None:
    """What is wrong with a call of check `name`, or None."""
    try:
        inspect.signature(CHECKS[name]).bind(**arguments)
    except TypeError as error:
        return f"check {name}{inspect.signature(CHECKS[name])}: {error}"
    return None
