"""The claims ledger: read paper/claims.yaml, run each claim's test, give each its verdict.

Verdicts are computed every time and typed nowhere. See `analysis.claims.verdicts` for the rule,
`analysis.claims.checks` for the checks, `analysis.claims.runs` for statements over runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, PrivateAttr, ValidationError, model_validator

from analysis.claims import verdicts
from analysis.claims.runs import Comparison, Text, seeds_of, statement
from analysis.claims.verdicts import Statement, Verdict, missing, verdict
from sdtps.config.common import Frozen
from sdtps.config.load import tuples
from sdtps.config.wording import sentences as mistakes_of
from sdtps.config.yaml12 import read
from sdtps.run.locations import shipped
from sdtps.system.errors import SdtpsError, YamlError, did_you_mean

if TYPE_CHECKING:
    from analysis.runs.collect import Collected


class ClaimsError(SdtpsError):
    """A ledger with mistakes; the text lists all of them with their lines."""


class RunsTest(Frozen):
    """Statements over the runs of a study."""

    study: str
    statements: Annotated[tuple[Comparison, ...], Field(min_length=1)]


class CheckTest(Frozen, extra="allow"):
    """A check of `analysis.claims.checks`; every key but its name is one of its arguments."""

    name: str

    @property
    def arguments(self) -> dict[str, Any]:
        return dict(self.__pydantic_extra__ or {})


class Sentences(Frozen):
    """What the paper says of a claim, by its verdict."""

    supported: Text
    refuted: Text
    partly: Text
    inconclusive: Text
    not_tested: Text

    def of(self, word: str) -> str:
        return str(getattr(self, word.replace(" ", "_")))


class Claim(Frozen):
    """One entry of the ledger, with one test: `check`, `runs` or `needs`.

    Attributes:
        runs: of several studies, the first that has runs decides.
        needs: what would decide a claim that nothing here can decide.
    """

    id: Annotated[int, Field(ge=1)]
    claim: Text
    source: Text
    kind: Literal["structure", "gradient", "source", "training", "reported", "own"]
    check: CheckTest | None = None
    runs: tuple[RunsTest, ...] = ()
    needs: Text = ""
    limits: Text = ""
    sentences: Sentences | None = None
    _where: str = PrivateAttr("")  # file:line

    @model_validator(mode="after")
    def _one_test(self) -> Claim:
        if sum(map(bool, (self.check, self.runs, self.needs))) != 1:
            raise ValueError("a claim has one of 'check', 'runs' and 'needs'")
        return self


# -- reading ------------------------------------------------------------------------------------


def ledger_of(main: Path) -> Path:
    """claims.yaml beside a document, or the ledger that comes with the program."""
    own = main.parent / "claims.yaml"
    return own if own.is_file() else shipped("paper/claims.yaml")


def load(path: Path | str) -> list[Claim]:
    """The claims in the order of the file. Names of checks are looked at when they run.

    Raises:
        ClaimsError: every mistake at once, with its line: unknown keys and kinds, expressions that do
            not parse, ids that are missing or repeated.
    """
    path = Path(path)
    try:
        document = read(path)
    except YamlError as error:
        raise ClaimsError(str(error)) from None
    mistakes = list(document.problems)
    entries = document.data.get("claims") if isinstance(document.data, dict) else None
    if not isinstance(entries, list):
        raise ClaimsError(f"{path}: holds no list under 'claims'")
    claims: dict[int, Claim] = {}
    for index, entry in enumerate(entries):
        place = ("claims", index)
        name = f"claim {entry.get('id', '?')}" if isinstance(entry, dict) else "a claim"
        try:
            claim = Claim.model_validate(tuples(entry))
        except ValidationError as error:
            for inside, text in mistakes_of(error, Claim, entry):
                key = f", {'.'.join(map(str, inside))}" if inside else ""
                mistakes.append((document.line((*place, *inside)), f"{name}{key}: {text}"))
            continue
        if claim.id in claims:
            mistakes.append((document.line(place), f"{name} stands twice"))
        claim._where = f"{path}:{document.line(place)}: "
        claims[claim.id] = claim
    if mistakes:
        raise ClaimsError("\n".join(f"{path}:{line}: {text}" for line, text in sorted(mistakes)))
    return list(claims.values())


# -- deciding -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """A claim with what its test found."""

    claim: Claim
    statements: tuple[Statement, ...]
    verdict: Verdict

    @property
    def runs(self) -> tuple[str, ...]:
        """The run folders behind the verdict, each once."""
        return tuple(dict.fromkeys(run for s in self.statements for run in s.runs))

    @property
    def sentence(self) -> str:
        """What the paper says of the claim today, with the study and seeds that decided it.

        "" for a claim that no sentence of the paper quotes.
        """
        text = self.claim.sentences.of(self.verdict.word) if self.claim.sentences else ""
        scopes = "; ".join(dict.fromkeys(s.scope for s in self.statements if s.scope))
        return f"{text.removesuffix('.')} ({scopes})." if text and scopes else text


def studies_named(claims: Iterable[Claim]) -> list[str]:
    """The studies whose runs decide any of `claims`, in order."""
    return list(dict.fromkeys(test.study for claim in claims for test in claim.runs))


def evaluate(claims: Iterable[Claim], collected: Collected) -> list[Answer]:
    """Run every claim's test.

    Args:
        collected: the runs of the studies that claims name; a study that is absent leaves its claims
            not tested.

    Raises:
        ClaimsError: a check that does not exist, or arguments that it does not take.
    """
    claims = list(claims)
    _refuse_unknown_checks(claims)
    answers = []
    for claim in claims:
        if claim.check:
            statements = _of_check(claim.check)
        elif claim.runs:
            statements = _over_runs(claim.runs, collected)
        else:
            statements = [missing(claim.needs)]
        answers.append(Answer(claim, tuple(statements), verdict(statements)))
    return answers


def _over_runs(tests: tuple[RunsTest, ...], collected: Collected) -> list[Statement]:
    """The statements of the first study in which both variants have a finished seed in common."""
    known = [test for test in tests if test.study in {s.name for s in collected.studies}]
    started = [
        test
        for test in known
        if any(seeds_of(collected, collected.study(test.study), s) for s in test.statements)
    ]
    test = (started or tests)[0]
    if test not in known:
        return [missing(f"ablations/{test.study}.yaml and its runs")]
    return [statement(collected, collected.study(test.study), s) for s in test.statements]


def _refuse_unknown_checks(claims: Iterable[Claim]) -> None:
    tests = [(claim, claim.check) for claim in claims if claim.check]
    if tests:
        import analysis.claims.checks  # noqa: F401  (imports torch, fills CHECKS)
    mistakes = []
    for claim, test in tests:
        if test.name not in verdicts.CHECKS:
            nearest = did_you_mean(test.name, verdicts.CHECKS)
            mistakes.append(f"{claim._where}claim {claim.id}: unknown check. {nearest}")
        elif mistake := verdicts.argument_mistake(test.name, test.arguments):
            mistakes.append(f"{claim._where}claim {claim.id}: {mistake}")
    if mistakes:
        raise ClaimsError("\n".join(mistakes))


_computed: dict[str, list[Statement]] = {}  # a check reads no runs: once for a process


def _of_check(test: CheckTest) -> list[Statement]:
    from sdtps.audit.audit import one_thread

    key = f"{test.name} {json.dumps(test.arguments, sort_keys=True)}"
    if key not in _computed:
        with one_thread():
            _computed[key] = list(verdicts.CHECKS[test.name](**test.arguments))
    return _computed[key]


def counts(answers: Iterable[Answer]) -> Mapping[str, int]:
    """How many claims got each verdict, in the order of `verdicts.WORDS`."""
    words = [a.verdict.word for a in answers]
    return {word: words.count(word) for word in verdicts.WORDS}
