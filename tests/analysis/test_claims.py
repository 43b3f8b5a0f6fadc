"""The claims, decided by computation, that agree with a line-by-line reading of the sources."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from facts_verdicts import FACTS, ONLY_BY_TEXT, agrees
from planted import plant, planted_study

from analysis.claims.ledger import Answer, ClaimsError, evaluate, load, studies_named
from analysis.claims.report import evidence, powers, summary, write
from analysis.runs.collect import collect

LEDGER = Path(__file__).parents[2] / "paper" / "claims.yaml"
NO_RUNS = collect([], "no such folder")


@pytest.fixture(scope="module")
def answers() -> list[Answer]:
    """Every claim without any run: what structure, gradients and logs decide."""
    return evaluate(load(LEDGER), NO_RUNS)


def test_all_claims_are_in_the_ledger_once_and_in_order() -> None:
    claims = load(LEDGER)
    assert [c.id for c in claims] == list(range(1, 72)) == sorted(FACTS)
    assert all(c.claim and c.source for c in claims)


def test_no_verdict_is_typed_into_the_ledger() -> None:
    text = "\n".join(line.partition("#")[0] for line in LEDGER.read_text().splitlines())
    assert not re.search(r"^\s*(verdict|answer|expected_verdict)\s*:", text, re.MULTILINE)
    assert not re.search(
        r"^(?!\s*(?:supported|refuted): >-).*\b(supported|refuted)\b", text, re.MULTILINE
    )


def test_every_decided_verdict_agrees_with_the_reading_of_the_sources(answers: list[Answer]) -> None:
    differing = {
        a.claim.id: (a.verdict.word, FACTS[a.claim.id])
        for a in answers
        if not agrees(a.claim.id, a.verdict.word)
    }
    assert not differing, "write the evidence to docs/decisions/ or mend the check"


def test_every_claim_that_needs_no_training_is_decided(answers: list[Answer]) -> None:
    undecided = {a.claim.id for a in answers if a.claim.check and not a.verdict.decided}
    assert not undecided
    assert sum(a.verdict.decided for a in answers) >= 39


def test_what_is_not_decided_says_what_it_needs_and_what_is_cites_what_was_seen(
    answers: list[Answer],
) -> None:
    for answer in answers:
        if answer.verdict.decided:
            assert all(s.measured for s in answer.statements) and evidence(answer), answer.claim.id
        else:
            assert answer.verdict.word == "not tested"
            assert answer.verdict.why and not answer.claim.check
    assert {a.claim.id for a in answers if a.claim.needs} >= ONLY_BY_TEXT


def test_what_we_counted_ourselves_is_counted_apart(answers: list[Answer]) -> None:
    own = [a for a in answers if a.claim.kind == "own"]
    assert {a.claim.id for a in own} == {50, *range(63, 72)}
    assert "of 61 claims decided" in summary(answers)
    assert summary(answers).endswith("apart from them 10 counts of our own: 10 supported")


# -- mistakes in a ledger -----------------------------------------------------------------------

MISTAKEN = """
claims:
  - {id: 9, claim: a, source: s, kind: structure, chek: {name: token_count, patches: 196}}
  - {id: 1, claim: a, source: s, kind: structural, needs: x}
  - {id: 2, claim: a, source: s, kind: training, verdikt: refuted, needs: x}
  - {id: 3, claim: a, source: s, kind: source, runs: [{study: g, statements: [{relation: over}]}]}
  - {id: 4, claim: a, source: s, kind: structure, needs: [x]}
  - {id: 5, claim: a, kind: structure}
  - {id: 7, claim: a, source: s, kind: source, needs: x}
  - {id: 7, claim: a, source: s, kind: source, needs: x}
"""


def test_all_mistakes_of_a_ledger_are_told_at_once_with_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "claims.yaml"
    path.write_text(MISTAKEN)
    with pytest.raises(ClaimsError) as caught:
        load(path)
    text = str(caught.value)
    for line, says in {
        3: "unknown key 'chek'",
        4: "Did you mean 'structure'?",
        5: "unknown key 'verdikt'",
        6: "relation",
        7: "claim 4, needs",
        8: "'source' is missing",
        10: "claim 7 stands twice",
    }.items():
        assert re.search(rf":{line}: .*{re.escape(says)}", text), (line, text)


def test_checks_that_do_not_exist_are_told_with_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "claims.yaml"
    path.write_text("""claims:
  - {id: 1, claim: a, source: s, kind: structure, check: {name: token_count, patches: 196}}
  - {id: 4, claim: a, source: s, kind: structure, check: {name: noise_clamp, limt: 5.0}}
""")
    with pytest.raises(ClaimsError) as caught:
        evaluate(load(path), NO_RUNS)
    first, second = str(caught.value).splitlines()
    assert ":2: claim 1" in first and "Did you mean 'token_counts'?" in first
    assert ":3: claim 4" in second and "noise_clamp(limit" in second


# -- training claims over planted runs ----------------------------------------------------------


def test_a_planted_explosion_decides_the_training_claims_and_cites_its_runs(tmp_path: Path) -> None:
    names = [
        "topk",
        "gumbel_tau1",
        "gumbel_tau5_clamp",
        "gumbel_tau10",
        "gumbel_tau10_clamp",
        "gumbel_tau1_clip",
        "gumbel_tau1_log",
        "gumbel_tau1_clamp",
        "gumbel_tau5_no_noise",
    ]
    study = planted_study("gumbel", names, seeds=(0, 1, 2))
    for seed in study.seeds:
        for name in names:
            trains = name in ("topk", "gumbel_tau1_log")
            last = (0.9 if trains else 0.1) + 0.0005 * seed * (1 + names.index(name))
            plant(
                tmp_path,
                study,
                name,
                seed,
                loss=(lambda step: 2.0 / step) if trains else (lambda step: 10.0 * step),
                scores={"mAP": [0.3, last], "rank1": [0.4, last]},
            )
    claims = [c for c in load(LEDGER) if "gumbel" in studies_named([c])]
    found = evaluate(claims, collect([study], tmp_path))
    words = {a.claim.id: a.verdict.word for a in found}
    supported, refuted = (43, 44, 45, 56), range(46, 50)
    assert words == dict.fromkeys(supported, "supported") | dict.fromkeys(refuted, "refuted")
    assert all(agrees(claim, word) for claim, word in words.items())
    explodes, loses_nothing = (next(a for a in found if a.claim.id == n) for n in (43, 56))
    assert explodes.sentence.endswith("(study gumbel, 3 seeds, generated images).")
    assert "5 points" in evidence(loses_nothing)  # the margin
    runs = explodes.runs
    assert len(runs) == 6 and all("gumbel" in run for run in runs)
    assert "gumbel" in studies_named(load(LEDGER))


def test_the_first_study_that_has_runs_decides(tmp_path: Path) -> None:
    names = {"gumbel": "gumbel_tau5_clamp", "quick": "gumbel_tau5"}
    studies = [planted_study(s, ["topk", name], seeds=(0, 1)) for s, name in names.items()]
    claim = next(c for c in load(LEDGER) if c.id == 46)
    assert [t.study for t in claim.runs] == list(names)

    def answer() -> Answer:
        return evaluate([claim], collect(studies, tmp_path))[0]

    assert answer().verdict.word == "not tested"
    assert "gumbel" not in answer().runs
    for seed in (0, 1):
        for own, name in enumerate(("topk", "gumbel_tau5")):
            scores = {"mAP": [0.6], "rank1": [0.7 + 0.002 * seed * own]}
            plant(tmp_path, studies[1], name, seed, scores=scores)
    assert answer().verdict.word == "supported"  # both train alike in the second study
    assert all(run.startswith("quick/") for run in answer().runs)
    plant(tmp_path, studies[0], "topk", 0)
    assert answer().verdict.word == "supported"  # the better study has nothing to compare yet
    plant(tmp_path, studies[0], "gumbel_tau5_clamp", 0)
    assert answer().verdict.word == "inconclusive"  # it has begun: it decides, one seed is missing


# -- what is written ----------------------------------------------------------------------------


def test_the_files_hold_all_claims_and_compile_safely(answers: list[Answer], tmp_path: Path) -> None:
    json_file, tex_file, _ = write(answers, tmp_path / "generated")
    table = json.loads(json_file.read_text())
    assert len(table["claims"]) == 71
    assert sum(table["counts"].values()) == 71
    assert table["decided"] == sum(a.verdict.decided for a in answers)
    tex = tex_file.read_text()
    for line in tex.splitlines():
        if line.startswith("%"):
            continue
        assert not re.search(r"(?<!\\)[#_]", line)
        assert not re.search(r"(?<!\\)%.", line)
    assert not re.search(r"\b(nan|None|inf)\b", re.sub(r"(?i)none", "", tex))
    assert tex.count(r"\\") >= 60
    assert summary(answers) in tex


def test_powers_of_ten_are_set_as_such_and_commits_are_not() -> None:
    assert powers("ratio 1.2e+08, 7.8e-12 at 6e09693") == (
        r"ratio 1.2$\times10^{8}$, 7.8$\times10^{-12}$ at 6e09693"
    )
    assert powers(r"off by 2e-7 with mask subtract\_1e10") == (
        r"off by 2$\times10^{-7}$ with mask subtract\_1e10"
    )


def test_a_claim_that_is_not_in_the_ledger_is_refused(capsys):
    from analysis.cli import main

    assert main(["claims", "--only", "999"]) == 2
    assert "no claim '999'" in capsys.readouterr().err
