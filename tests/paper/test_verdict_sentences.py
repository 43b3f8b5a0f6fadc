"""A finding is printed by its claim's verdict: other runs, other sentence, in text and captions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from planted import plant, planted_study

from ablations.study.schema import TableSpec
from analysis.claims.ledger import load
from analysis.claims.verdicts import WORDS
from analysis.paper.build import Options, build
from sdtps.run.locations import shipped
from sdtps.system.errors import SdtpsError

CLAIMS = {claim.id: claim for claim in load(shipped("paper/claims.yaml"))}
SECTIONS = shipped("paper/sections")


def plant_gumbel(runs: Path, *, explodes: bool):
    """A study `gumbel` whose variant with the published mask explodes, or trains as Top-K does."""
    caption = "How training ends. [claim 43]"
    tables = (TableSpec(name="main", caption=caption),)
    names = ["topk", "gumbel_tau1"]
    study = planted_study("gumbel", names, seeds=(0, 1, 2), tables=tables, figures=())
    for seed in study.seeds:
        good = {"mAP": [0.3, 0.8], "rank1": [0.4, 0.90 + 0.01 * seed]}
        bad = {"mAP": [0.1, 0.1], "rank1": [0.1, 0.10 - 0.01 * seed]}
        plant(runs, study, "topk", seed, scores=good)
        loss = (lambda step: 10.0 * step) if explodes else None
        like = {"mAP": [0.3, 0.8], "rank1": [0.4, 0.905 + 0.008 * seed]}
        plant(runs, study, "gumbel_tau1", seed, scores=bad if explodes else like, loss=loss)
    return study


def built(root: Path, paper_sources, *, explodes: bool) -> Path:
    """The paper's main file, built with the claims that runs decide."""
    study = plant_gumbel(root / "runs", explodes=explodes)
    main = paper_sources(root / "paper")
    folder = main.parent / "generated"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("analysis.paper.build.load", lambda _: [c for c in CLAIMS.values() if c.runs])
        build([study], [], root / "runs", folder, Options(only=("gumbel-main",)))
    return main


def squeezed(text: str) -> str:
    return re.sub(r"[^A-Za-z]", "", text)


@pytest.mark.parametrize(("explodes", "word"), [(True, "supported"), (False, "refuted")])
def test_the_runs_decide_which_sentence_text_and_caption_print(tmp_path, paper_sources, explodes, word):
    main = built(tmp_path, paper_sources, explodes=explodes)
    generated = main.parent / "generated"
    says = squeezed(CLAIMS[43].sentences.of(word))
    others = [squeezed(CLAIMS[43].sentences.of(w)) for w in WORDS if w != word]
    for name in ("claims-numbers.tex", "tables/gumbel-main.tex", "tables/gumbel-main.md"):
        text = squeezed((generated / name).read_text())
        assert says in text, name
        assert not any(other in text for other in others), name


def test_every_claim_that_the_text_quotes_has_a_sentence_for_every_verdict():
    text = "".join(path.read_text() for path in SECTIONS.glob("*.tex"))
    quoted = {int(n) for n in re.findall(r"\\claim(?:withevidence|numbered)?\{(\d+)\}", text)}
    assert {43, 47, 49, 57, 58} <= quoted
    for number in quoted:
        sentences = CLAIMS[number].sentences
        assert sentences is not None, f"claim {number} has no sentences"
        said = [sentences.of(word) for word in WORDS]
        assert all(said) and len(set(said)) == len(WORDS), f"claim {number}"


def test_a_caption_that_names_a_claim_without_sentences_is_refused(tmp_path, paper_sources):
    from analysis.paper.build import with_verdicts

    study = planted_study("s", ["a"], tables=(TableSpec(name="main", caption="[claim 1]"),))
    with pytest.raises(SdtpsError, match=r"\[claim 1\]: the ledger has no sentences"):
        with_verdicts(study, [])
