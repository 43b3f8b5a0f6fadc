"""The claims ledger: read paper/claims.yaml, run each claim's test, give each its verdict.

Verdicts are computed every time and typed nowhere. See `analysis.claims.verdicts` for the rule,
`analysis.claims.checks` for the checks, `analysis.claims.runs` for statements over runs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, Field, PrivateAttr, ValidationError, field_validator

from analysis.claims import verdicts
from analysis.claims.runs import Expression, ExpressionError, StudyRuns, has_data, statement
from analysis.claims.verdicts import Statement, Verdict, missing, verdict
from sdtps.config.common import Frozen
from sdtps.config.wording import sentences as mistakes_of
from sdtps.config.yaml12 import Document, KeyPath, parse, read_text
from sdtps.run.locations import shipped
from sdtps.system import files
from sdtps.system.errors import SdtpsError, YamlError, did_you_mean

if TYPE_CHECKING:
    from analysis.runs.collect import Collected

Model = TypeVar("Model", bound=BaseModel)


class ClaimsError(SdtpsError):
    """A ledger with mistakes; the text lists all of them with their lines."""


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _expression(text: str) -> str:
    try:
        return Expression(text).text
    except ExpressionError as error:
        raise ValueError(str(error)) from None


Text = Annotated[str, AfterValidator(_one_line)]


class RunStatement(Frozen):
    """A statement over runs: `holds` is an expression, decided for the mean or in each seed."""

    says: Text
    holds: Annotated[str, AfterValidator(_expression)]
    over: Literal["mean", "each_seed"] = "mean"


class RunsTest(Frozen):
    """Statements over the runs of a study."""

    study: str
    statements: Annotated[tuple[RunStatement, ...], Field(min_length=1)]


class CheckTest(Frozen, extra="allow"):
    """A check of `analysis.claims.checks`; every other key is one of its arguments."""

    check: str

    @property
    def arguments(self) -> dict[str, Any]:
        return dict(self.__pydantic_extra__ or {})


class NeedsTest(Frozen):
    """Nothing here decides the claim; `needs` says what would."""

    needs: Text


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
    """One entry of the ledger. Of several studies in `test`, the first that has runs decides."""

    id: Annotated[int, Field(ge=1)]
    claim: Text
    source: Text
    kind: Literal["structure", "gradient", "source", "training", "reported"]
    test: Any
    limits: Text = ""
    sentences: Sentences | None = None
    _where: str = PrivateAttr("")  # file:line

    @field_validator("test")
    @classmethod
    def _form(cls, test: Any) -> Any:
        if not _test_models(test):
            raise ValueError(
                "a test has 'check', or 'study' and 'statements' (or is a list of such), or 'needs'"
            )
        return test

    @property
    def run_tests(self) -> tuple[RunsTest, ...]:
        """The statements over runs that may decide it, best study first; none for other tests."""
        tests = self.test if isinstance(self.test, tuple) else (self.test,)
        return tuple(t for t in tests if isinstance(t, RunsTest))


def _test_models(test: Any) -> list[tuple[KeyPath, type[BaseModel], Any]]:
    """(place, model, value) of each part of a test as written; nothing where it has no known form."""
    if isinstance(test, list | tuple) and test:
        found = [_test_models(part) for part in test]
        only_studies = all(parts and parts[0][1] is RunsTest for parts in found)
        return [((i,), RunsTest, part) for i, part in enumerate(test)] if only_studies else []
    for key, model in (("check", CheckTest), ("study", RunsTest), ("needs", NeedsTest)):
        if isinstance(test, dict) and key in test:
            return [((), model, test)]
    return []


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
        document = parse(read_text(path))
    except YamlError as error:
        raise ClaimsError(f"{path}: {error}") from None
    mistakes = [(p.line, p.text) for p in document.problems]
    entries = document.data.get("claims") if isinstance(document.data, dict) else None
    if not isinstance(entries, list):
        raise ClaimsError(f"{path}: holds no list under 'claims'")
    claims: list[Claim] = []
    for index, entry in enumerate(entries):
        claim = _claim(document, ("claims", index), entry, mistakes)
        if claim is None:
            continue
        if claim.id in {c.id for c in claims}:
            mistakes.append((document.line(("claims", index)), f"claim {claim.id} stands twice"))
        claim._where = f"{path}:{document.line(('claims', index))}: "
        claims.append(claim)
    if mistakes:
        raise ClaimsError("\n".join(f"{path}:{line}: {text}" for line, text in sorted(mistakes)))
    return claims


def _claim(document: Document, place: KeyPath, entry: Any, mistakes: list[tuple[int, str]]) -> Any:
    """A claim, or None with the reasons appended to `mistakes`."""
    name = f"claim {entry.get('id', '?')}" if isinstance(entry, dict) else "a claim"

    def read(model: type[Model], at: KeyPath, value: Any) -> Model | None:
        try:
            return model.model_validate(_tuples(value))
        except ValidationError as error:
            for inside, text in mistakes_of(error, model, value):
                where = ".".join(map(str, (*at, *inside)[2:]))
                line = document.line((*at, *inside))
                mistakes.append((line, f"{name}{f', {where}' if where else ''}: {text}"))
            return None

    if not isinstance(entry, dict):
        keys = ", ".join(Claim.model_fields)
        mistakes.append((document.line(place), f"a claim is a mapping with {keys}"))
        return None
    claim = read(Claim, place, entry)
    parts = [
        read(model, (*place, "test", *inside), value)
        for inside, model, value in _test_models(entry.get("test"))
    ]
    if claim is None or None in parts:
        return None
    test = tuple(parts) if isinstance(entry["test"], list) else parts[0]
    return claim.model_copy(update={"test": test})


def _tuples(value: Any) -> Any:
    """Lists as tuples, which strict frozen models ask for."""
    if isinstance(value, list):
        return tuple(map(_tuples, value))
    return {k: _tuples(v) for k, v in value.items()} if isinstance(value, dict) else value


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
        """What the paper says of the claim today; "" for a claim that no sentence of it quotes."""
        return self.claim.sentences.of(self.verdict.word) if self.claim.sentences else ""


def studies_named(claims: Iterable[Claim]) -> list[str]:
    """The studies whose runs decide any of `claims`, in order."""
    return list(dict.fromkeys(t.study for c in claims for t in c.run_tests))


def evaluate(
    claims: Iterable[Claim],
    collected: Collected | None,
    *,
    on_claim: Callable[[Claim], None] = lambda _: None,
    kept: Path | None = None,
) -> list[Answer]:
    """Run every claim's test.

    Args:
        collected: the runs of the studies that claims name; a study that is absent (or None) leaves its
            claims not tested.
        on_claim: called before each claim, for progress.
        kept: a file with the statements of checks: those of unchanged code are read, not computed.

    Raises:
        ClaimsError: a check that does not exist, or arguments that it does not take.
    """
    claims = list(claims)
    checked = _Checks(kept)
    checked.refuse_unknown(claims)
    answers = []
    for claim in claims:
        on_claim(claim)
        if isinstance(claim.test, NeedsTest):
            statements = [missing(claim.test.needs)]
        elif isinstance(claim.test, CheckTest):
            statements = checked.statements(claim.test)
        else:
            statements = _over_runs(claim.run_tests, collected)
        answers.append(Answer(claim, tuple(statements), verdict(statements)))
    checked.keep()
    return answers


def _over_runs(tests: tuple[RunsTest, ...], collected: Collected | None) -> list[Statement]:
    """The statements of the first study in which all variants have a finished seed in common."""
    present = set() if collected is None else {s.name for s in collected.studies}
    studies = [StudyRuns(collected, t.study) if t.study in present else None for t in tests]  # type: ignore[arg-type]
    chosen = 0
    for index, (runs, test) in enumerate(zip(studies, tests, strict=True)):
        if runs is not None and any(has_data(runs, Expression(s.holds)) for s in test.statements):
            chosen = index
            break
    test, runs = tests[chosen], studies[chosen]
    if runs is None:
        return [missing(f"ablations/{test.study}.yaml and its runs")]
    return [statement(runs, s.says, Expression(s.holds), s.over) for s in test.statements]


class _Checks:
    """The checks' statements, kept in a file while neither code nor arguments change."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._code = _code_digest() if path is not None else ""
        known = json.loads(path.read_text(encoding="utf-8")) if path and path.is_file() else {}
        self._known: dict[str, list[dict[str, Any]]] = known
        self._changed = False

    def _key(self, test: CheckTest) -> str:
        return f"{test.check} {json.dumps(test.arguments, sort_keys=True)} {self._code}"

    def refuse_unknown(self, claims: Iterable[Claim]) -> None:
        mistakes = []
        for claim in claims:
            test = claim.test
            if not isinstance(test, CheckTest) or self._key(test) in self._known:
                continue
            import analysis.claims.checks  # noqa: F401  (imports torch, fills CHECKS)

            if test.check not in verdicts.CHECKS:
                nearest = did_you_mean(test.check, verdicts.CHECKS)
                mistakes.append(f"{claim._where}claim {claim.id}: unknown check. {nearest}")
            elif mistake := verdicts.argument_mistake(test.check, test.arguments):
                mistakes.append(f"{claim._where}claim {claim.id}: {mistake}")
        if mistakes:
            raise ClaimsError("\n".join(mistakes))

    def statements(self, test: CheckTest) -> list[Statement]:
        from sdtps.audit.audit import one_thread

        key = self._key(test)
        if key not in self._known:
            with one_thread():
                self._known[key] = [asdict(s) for s in verdicts.CHECKS[test.check](**test.arguments)]
            self._changed = True
        return [Statement(**{**s, "runs": tuple(s["runs"])}) for s in self._known[key]]

    def keep(self) -> None:
        """Write the statements of this code, where any is new."""
        if self._path is not None and self._changed:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            current = {key: value for key, value in self._known.items() if key.endswith(self._code)}
            files.write_json(self._path, current)


def _code_digest() -> str:
    """Of the code that checks execute: sdtps, the checks themselves, the logs they read."""
    from sdtps.run.provenance import package_digest

    digest = hashlib.sha256(package_digest().encode())
    here = Path(__file__).parent
    logs = [here / "verdicts.py", *shipped("paper/reported").glob("*.csv")]
    for path in sorted([*logs, *here.glob("checks/*.py")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def counts(answers: Iterable[Answer]) -> Mapping[str, int]:
    """How many claims got each verdict, in the order of `verdicts.WORDS`."""
    words = [a.verdict.word for a in answers]
    return {word: words.count(word) for word in verdicts.WORDS}
