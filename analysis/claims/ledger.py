"""The claims ledger: read paper/claims.yaml, run each claim's test, give each its verdict.

Verdicts are computed every time and typed nowhere. See `analysis.claims.verdicts` for the rule,
`analysis.claims.checks` for the checks, `analysis.claims.expressions` for statements over runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from analysis.claims.expressions import Expression, ExpressionError
from analysis.claims.verdicts import Literal, Statement, Verdict, missing, verdict
from sdtps.config.yaml12 import load_yaml
from sdtps.errors import SdtpsError, did_you_mean

if TYPE_CHECKING:
    from analysis.runs.collect import Collected

Kind = Literal["structure", "gradient", "source", "training", "reported"]
KINDS: tuple[str, ...] = get_args(Kind)
OVER = ("each_seed", "mean")
ENTRY_KEYS = ("id", "claim", "source", "kind", "test", "limits")
STATEMENT_KEYS = ("says", "holds", "over")


class ClaimsError(SdtpsError):
    """A ledger with mistakes; the text lists all of them with their lines."""


@dataclass(frozen=True)
class CheckTest:
    """A check of `analysis.claims.checks` with its arguments."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class RunsTest:
    """Statements over the runs of a study: (says, expression, over)."""

    study: str
    statements: tuple[tuple[str, Expression, str], ...]


@dataclass(frozen=True)
class FirstTest:
    """Statements over several studies, the best first: the first that has runs decides."""

    tests: tuple[RunsTest, ...]


@dataclass(frozen=True)
class NeedsTest:
    """Nothing here decides it; `needs` says what would."""

    needs: str


Test = CheckTest | RunsTest | FirstTest | NeedsTest


@dataclass(frozen=True)
class Claim:
    """One entry of the ledger."""

    id: int
    claim: str
    source: str
    kind: str
    test: Test
    limits: str = ""


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


# -- reading ------------------------------------------------------------------------------------


def load(path: Path | str) -> list[Claim]:
    """The claims in the order of the file.

    Raises:
        ClaimsError: every mistake at once: unknown keys, kinds, checks or arguments, expressions that
            do not parse, ids that are missing or repeated.
    """
    path = Path(path)
    data, lines = load_yaml(path)
    mistakes: list[tuple[int, str]] = []
    claims: list[Claim] = []
    entries = data.get("claims") if isinstance(data, dict) else None
    if not isinstance(entries, list):
        raise ClaimsError(f"{path}: holds no list under 'claims'")
    for index, entry in enumerate(entries):
        line = lines.get(("claims", index), 0)
        found: list[str] = []
        claim = _claim(entry, found) if isinstance(entry, dict) else None
        if not isinstance(entry, dict):
            found.append("a claim is a mapping with id, claim, source, kind and test")
        mistakes += [(line, text) for text in found]
        if claim is not None:
            if claim.id in {c.id for c in claims}:
                mistakes.append((line, f"claim {claim.id} stands twice"))
            claims.append(claim)
    if mistakes:
        raise ClaimsError("\n".join(f"{path}:{line}: {text}" for line, text in mistakes))
    return claims


def _claim(entry: dict[str, Any], mistakes: list[str]) -> Claim | None:
    """A claim, or None with the reasons appended to `mistakes`."""
    name = f"claim {entry.get('id', '?')}"
    before = len(mistakes)
    for key in entry:
        if key not in ENTRY_KEYS:
            mistakes.append(f"{name}: unknown key '{key}'. {did_you_mean(str(key), ENTRY_KEYS)}")
    for key in ("id", "claim", "source", "kind", "test"):
        if key not in entry:
            mistakes.append(f"{name}: '{key}' is missing")
    if len(mistakes) > before:
        return None
    if not isinstance(entry["id"], int):
        mistakes.append(f"{name}: id must be a whole number")
    if entry["kind"] not in KINDS:
        mistakes.append(f"{name}: unknown kind. {did_you_mean(str(entry['kind']), KINDS)}")
    test = _test(entry["test"], name, mistakes)
    if len(mistakes) > before or test is None:
        return None
    texts = {k: " ".join(str(entry.get(k, "")).split()) for k in ("claim", "source", "limits")}
    return Claim(id=entry["id"], kind=entry["kind"], test=test, **texts)


def _test(test: Any, name: str, mistakes: list[str]) -> Test | None:
    if isinstance(test, dict) and set(test) == {"needs"}:
        return NeedsTest(" ".join(str(test["needs"]).split()))
    if isinstance(test, dict) and "check" in test:
        return _check(test, name, mistakes)
    if isinstance(test, dict) and set(test) == {"study", "statements"}:
        return _runs(test, name, mistakes)
    if isinstance(test, list) and all(isinstance(t, dict) and "study" in t for t in test):
        tests = [_test(t, name, mistakes) for t in test]
        return FirstTest(tuple(t for t in tests if isinstance(t, RunsTest)))
    mistakes.append(
        f"{name}: a test has 'check', or 'study' and 'statements' (or is a list of such), or 'needs'"
    )
    return None


def _check(test: dict[str, Any], name: str, mistakes: list[str]) -> CheckTest | None:
    from analysis.claims.checks import CHECKS, argument_mistake  # imports torch

    check = str(test["check"])
    if check not in CHECKS:
        mistakes.append(f"{name}: unknown check. {did_you_mean(check, CHECKS)}")
        return None
    arguments = {k: v for k, v in test.items() if k != "check"}
    mistake = argument_mistake(check, arguments)
    if mistake:
        mistakes.append(f"{name}: {mistake}")
        return None
    return CheckTest(check, arguments)


def _runs(test: dict[str, Any], name: str, mistakes: list[str]) -> RunsTest | None:
    before = len(mistakes)
    statements = []
    for entry in test["statements"] or [{}]:
        for key in sorted(set(entry) - set(STATEMENT_KEYS)):
            mistakes.append(f"{name}: unknown key '{key}'. {did_you_mean(key, STATEMENT_KEYS)}")
        over = entry.get("over", "each_seed")
        if over not in OVER:
            mistakes.append(f"{name}: over: {did_you_mean(str(over), OVER)}")
        if not {"says", "holds"} <= set(entry):
            mistakes.append(f"{name}: a statement has 'says' and 'holds'")
            continue
        try:
            statements.append((str(entry["says"]), Expression(str(entry["holds"])), str(over)))
        except ExpressionError as error:
            mistakes.append(f"{name}: {error}")
    return RunsTest(str(test["study"]), tuple(statements)) if len(mistakes) == before else None


# -- deciding -----------------------------------------------------------------------------------


def studies_named(claims: Iterable[Claim]) -> list[str]:
    """The studies whose runs decide any of `claims`, in order."""
    return list(dict.fromkeys(t.study for c in claims for t in _over_runs(c.test)))


def _over_runs(test: Test) -> tuple[RunsTest, ...]:
    if isinstance(test, FirstTest):
        return test.tests
    return (test,) if isinstance(test, RunsTest) else ()


def evaluate(
    claims: Iterable[Claim],
    collected: Collected | None,
    *,
    on_claim: Callable[[Claim], None] | None = None,
) -> list[Answer]:
    """Run every claim's test.

    Args:
        collected: the runs of the studies that claims name; a study that is absent (or None) leaves its
            claims not tested.
        on_claim: called before each claim, for progress.
    """
    answers = []
    for claim in claims:
        if on_claim is not None:
            on_claim(claim)
        statements = tuple(_statements(claim.test, collected))
        answers.append(Answer(claim, statements, verdict(statements)))
    return answers


def _statements(test: Test, collected: Collected | None) -> list[Statement]:
    if isinstance(test, NeedsTest):
        return [missing(test.needs)]
    if isinstance(test, CheckTest):
        from analysis.claims.checks import CHECKS  # imports torch

        return CHECKS[test.name](**test.arguments)
    from analysis.claims.runs import StudyRuns, has_data, statement

    tests = _over_runs(test)
    present = set() if collected is None else {s.name for s in collected.studies}
    studies = [
        StudyRuns(collected, t.study) if collected is not None and t.study in present else None
        for t in tests
    ]
    best = 0
    for index, (runs, over) in enumerate(zip(studies, tests, strict=True)):
        if runs is not None and any(has_data(runs, e) for _, e, _ in over.statements):
            best = index
            break
    chosen, runs = tests[best], studies[best]
    if runs is None:
        return [missing(f"ablations/{chosen.study}.yaml and its runs")]
    return [statement(runs, says, expression, over) for says, expression, over in chosen.statements]


def counts(answers: Iterable[Answer]) -> dict[str, int]:
    """How many claims got each verdict, in the order of `verdicts.WORDS`."""
    from analysis.claims.verdicts import WORDS

    words = [a.verdict.word for a in answers]
    return {word: words.count(word) for word in WORDS}
