"""What the tables show is said in words, whatever it is."""

from __future__ import annotations

import pytest
from planted import plant, planted_study, sketched

from ablations.study.manifest import load_study
from ablations.study.schema import MetricSpec
from analysis.paper.build import Options, build
from analysis.paper.findings import findings
from analysis.paper.setup import least_significant
from analysis.results.frames import results
from analysis.runs.collect import collect
from sdtps.run.locations import shipped

SPREAD = {0: 0.0, 1: 0.006, 2: -0.005, 3: 0.002, 4: -0.003}


def said(tmp_path, levels, seeds=(0, 1, 2), other=()):
    """The findings of a study whose variants reach these levels of mAP; the first is the baseline."""
    study = planted_study("s", list(levels), seeds=seeds)
    for number, (name, level) in enumerate(levels.items()):
        for seed in seeds:
            if (name, seed) in dict(other):
                plant(tmp_path, study, name, seed, **dict(other)[name, seed])
                continue
            # Seeds move all variants alike, up to a small part of their own.
            own = 0.001 * ((seed * 7 + number * 3) % 5 - 2) if number else 0.0
            value = level + SPREAD[seed] + own
            plant(tmp_path, study, name, seed, scores={"mAP": [value], "rank1": [value]})
    return " ".join(findings(results(collect([study], tmp_path), study)))


@pytest.mark.parametrize(
    ("levels", "facts"),
    [
        (
            {"topk": 0.7, "without": 0.8, "bad": 0.2},
            [
                "without is best with 80.",
                "the baseline, topk, has 70.",
                "Of 2 differences",
                "2 are significant",
            ],
        ),
        ({"topk": 0.9, "bad": 0.2}, ["the baseline, topk, is best with 90.", "bad worse, −70."]),
        ({"topk": 0.7, "same": 0.7005}, ["none is significant", "1 is open", "With 3 seeds"]),
        ({"topk": 0.7, "τ = 5, clamped": 0.2}, ["“τ\u00a0=\u00a05, clamped” worse, −50."]),
    ],
)
def test_the_best_and_what_can_be_told_apart_are_said(tmp_path, levels, facts):
    text = said(tmp_path, levels)
    assert [fact for fact in facts if fact not in text] == []


def test_lower_is_better_where_the_metric_says_so(tmp_path):
    study = planted_study("s", ["topk", "low", "last"], metrics={"mAP": MetricSpec(direction="down")})
    for name, level in (("topk", 0.7), ("low", 0.2), ("last", 0.9)):
        for seed in study.seeds:
            own = 0.001 * seed * (name != "topk")
            plant(tmp_path, study, name, seed, scores={"mAP": [level + SPREAD[seed] + own]})
    found = results(collect([study], tmp_path), study)
    text = " ".join(findings(found))
    assert least_significant(found) == "3.6 with 3 seeds and 2 comparisons"  # 6.205 / sqrt(3)
    assert "low is best" in text and "low better, −49." in text


def test_a_seed_that_diverged_is_told_and_its_variant_is_not_best(tmp_path):
    broken = {("fragile", 1): {"state": "diverged", "stop": (1, 3)}}
    text = said(tmp_path, {"topk": 0.7, "fragile": 0.9}, other=broken)
    assert "topk, is best" in text
    assert "fragile is not whole: seed 1 diverged" in text
    assert "1 is not tested" in text  # a lost seed leaves no test


@pytest.mark.parametrize(("best", "worst"), [("log_mask", "gumbel_tau1"), ("gumbel_tau1", "log_mask")])
def test_handwriting_has_its_section_and_findings_when_it_was_run(tmp_path, best, worst):
    """What the data are is the manifest's text; what came out is composed, whatever it is."""
    study = load_study(shipped("ablations/omniglot.yaml"))
    for number, variant in enumerate(study.variants):
        level = {best: 0.4, worst: 0.03}.get(variant, 0.3)
        for seed in study.seeds:
            own = 0.001 * ((seed + 1) * (number + 2) % 7)
            value = level + SPREAD[seed] + own
            scores = {"mAP": [value], "rank1": [value]}
            plant(tmp_path / "runs", study, variant, seed, scores=scores, selected_on="test")
    options = Options(evidence=False, report=False)
    with sketched():
        built = build([study], [], tmp_path / "runs", tmp_path / "generated", options)
    results_tex, available = (
        (built.folder / f"{name}.tex").read_text() for name in ("results", "available")
    )
    for text in ("real handwriting", "no re-identification benchmark", r"precision of about 1 \%"):
        assert text in results_tex.replace("\n", " "), text
    assert r"\input{\generated/tables/omniglot_main.tex}" in results_tex
    table = (built.folder / "tables" / "omniglot_main.tex").read_text()
    assert r"a random ranking has an mAP of about 1 \%" in table
    label = study.variants[best].label.split(", ")[1]
    assert label in results_tex.partition("is best")[0]
    assert r"\input{\generated/figures/omniglot-differences.tex}" in results_tex
    assert r"\studyavailable{omniglot}" in available
