"""What the tables show is said in words, whatever it is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from planted import plant, planted_study

from ablations.study.manifest import load_study
from analysis.paper.build import Options, build
from analysis.paper.findings import findings
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


def test_a_variant_above_the_baseline_is_named_as_the_best(tmp_path):
    text = said(tmp_path, {"topk": 0.7, "without": 0.8, "bad": 0.2})
    assert "By mAP at the last epoch, without is best with 80." in text
    assert "the baseline, topk, has 70." in text
    assert "above the baseline" in text and "without (+10." in text
    assert "below the baseline" in text and "bad (−50." in text


def test_the_baseline_is_named_where_it_is_the_best(tmp_path):
    text = said(tmp_path, {"topk": 0.9, "bad": 0.2})
    assert "the baseline, topk, is best with 90." in text


def test_what_cannot_be_told_from_the_baseline_is_said_with_the_reach_of_its_interval(tmp_path):
    text = said(tmp_path, {"topk": 0.7, "same": 0.7005, "bad": 0.2}, seeds=(0, 1))
    assert "same cannot be told from the baseline with 2 seeds" in text
    assert "The half width of their intervals is" in text


def test_a_seed_that_diverged_is_told_and_its_variant_is_not_best(tmp_path):
    broken = {("fragile", 1): {"state": "diverged", "stop": (1, 3)}}
    text = said(tmp_path, {"topk": 0.7, "fragile": 0.9}, other=broken)
    assert "topk, is best" in text
    assert "fragile is not whole: seed 1 diverged" in text


def test_a_difference_that_cannot_be_tested_is_not_called_none(tmp_path):
    """Without an interval nothing says that a variant equals the baseline."""
    for lost, why in (((), "every seed differs by the same"), ((1, 2), "one seed is finished in both")):
        broken = {("bad", seed): {"state": "diverged", "stop": (1, 3)} for seed in lost}
        study = planted_study("s", ["topk", "bad"])
        runs = tmp_path / str(len(lost))
        for name, level in (("topk", 0.7), ("bad", 0.2)):
            for seed in study.seeds:
                value = level + SPREAD[seed]
                fields = broken.get((name, seed), {"scores": {"mAP": [value], "rank1": [value]}})
                plant(runs, study, name, seed, **fields)
        text = " ".join(findings(results(collect([study], runs), study)))
        assert f"Not tested, because {why}: bad (−50.0" in text and "bad cannot be told" not in text
        assert ("; 1 of 3 seeds)" in text) == bool(lost)


def test_labels_with_commas_stand_in_quotes(tmp_path):
    text = said(tmp_path, {"topk": 0.7, "τ = 5, clamped": 0.2})
    assert "below the baseline" in text and "“τ\u00a0=\u00a05, clamped” (−50." in text
    assert "the baseline, “topk”, is best" in text


@pytest.mark.parametrize(("best", "worst"), [("log_mask", "gumbel_tau1"), ("gumbel_tau1", "log_mask")])
def test_handwriting_has_its_section_and_findings_when_it_was_run(tmp_path, best, worst):
    """What the data are is the manifest's text; what came out is composed, whatever it is."""
    study = load_study(shipped("ablations/omniglot.yaml"))
    study = replace(study, figures=())  # drawing is tested elsewhere
    for number, variant in enumerate(study.variants):
        level = {best: 0.4, worst: 0.03}.get(variant, 0.3)
        for seed in study.seeds:
            own = 0.001 * ((seed + 1) * (number + 2) % 7)
            value = level + SPREAD[seed] + own
            scores = {"mAP": [value], "rank1": [value]}
            plant(tmp_path / "runs", study, variant, seed, scores=scores, selected_on="test")
    options = Options(evidence=False, report=False)
    built = build([study], [], tmp_path / "runs", tmp_path / "generated", options)
    results_tex, findings_tex, available = (
        (built.folder / f"{name}.tex").read_text() for name in ("results", "findings", "available")
    )
    for text in ("real handwriting", "no re-identification benchmark", r"precision of about 1 \%"):
        assert text in results_tex.replace("\n", " "), text
    assert r"\input{\generated/tables/omniglot_main.tex}" in results_tex
    table = (built.folder / "tables" / "omniglot_main.tex").read_text()
    assert r"a random ranking has an mAP of about 1 \%" in table
    labels = {name: study.variants[name].label.split(",")[1] for name in (best, worst)}
    said_of = findings_tex.partition("Significantly above")[2]
    assert labels[best] in said_of.partition("Significantly below")[0]
    assert labels[worst] in said_of.partition("Significantly below")[2].partition(". ")[0]
    assert r"\studyavailable{omniglot}" in available and r"\findingdef{omniglot}{By mAP" in available
    abstract = (shipped("paper/sections") / "abstract.tex").read_text()
    assert r"\ifstudy{omniglot}{" in abstract
