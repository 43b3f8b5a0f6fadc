"""A number has one value: table, CSV, macro, report and claim print the same, cell by cell."""

from __future__ import annotations

import csv
import io
import re

import numpy as np
import pytest
from planted import plant, planted_study

from ablations.study.schema import MetricSpec, TableSpec
from analysis.claims.runs import side
from analysis.paper.macros import macros
from analysis.report.verb import report_data
from analysis.results.frames import EPOCHS, results
from analysis.results.numbers import in_unit
from analysis.runs.collect import collect
from analysis.runs.comparable import KINDS, refuse_to_average
from analysis.tables import forms
from analysis.tables.study import tables

METRICS = {
    "mAP": MetricSpec(direction="up", digits=1),
    "rank1": MetricSpec(direction="up", digits=2, label="Rank-1"),
    "nar": MetricSpec(direction="down", digits=3, unit="", label="NAR"),
}
GROUPS = {"last": "last epoch", "best": "best epoch on the test split"}


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """Five variants: two that differ, one that lost a seed, one that diverged, one with equal seeds."""
    runs = tmp_path_factory.mktemp("one")
    study = planted_study(
        "one",
        ["base", "better", "partly", "gone", "same"],
        seeds=range(4),
        metrics=METRICS,
        tables=(TableSpec(name="main", baseline="base", epoch="both"),),
    )
    rng = np.random.default_rng(5)
    for variant, level in zip(study.variants, (0.6, 0.7, 0.65, 0.5, 0.6), strict=True):
        for seed in study.seeds:
            noise = 0.0 if variant == "same" else float(rng.normal(0, 0.004))
            scores = {
                "mAP": [level + 0.03 + noise, level + noise],
                "rank1": [level + 0.1 + noise, level + 0.08 - noise],
                "nar": [1.0 + level, 1.2 + level + noise],
            }
            lost = variant == "gone" or (variant, seed) == ("partly", 3)
            plant(runs, study, variant, seed, state="diverged" if lost else "completed", scores=scores)
    return study, collect([study], runs)


@pytest.fixture(scope="module")
def main(planted):
    study, collected = planted
    made = tables(collected, study, refuse_to_average(collected, allow=KINDS))
    return next(table for table in made if table.name == "one-main")


def places(study):
    """Every (variant, metric, epoch) of the study."""
    return [(v, m, e) for v in study.variants for m in study.metrics for e in EPOCHS]


def test_tables_and_macros_print_the_frame(planted, main):
    study, collected = planted
    made = {macro.name: macro for macro in macros(collected, study)}
    frame = results(collected, study)
    for variant, metric, epoch in places(study):
        row, slug = frame.get(variant, metric, epoch), study.variants[variant].slug
        cell = main.cell(variant, f"{epoch}/{metric}")
        key = metric if epoch == "last" else f"{metric}.best"
        macro = made[f"one/{slug}/{key}"]
        assert macro.text == cell.plain and macro.runs == cell.runs == row.runs
        if row.n:
            assert cell.value == row.mean
            mean = made[f"one/{slug}/{key}.mean"].text
            assert cell.text == mean.split(" ")[0] and mean.endswith(f"({row.n}/4)") == (row.n < 4)
        if epoch == "last":
            difference = main.cell(variant, f"last/{metric}/difference")
            told = made.get(f"one/{slug}/{key}.difference")
            assert difference.plain == (told.text if told else "")
            assert difference.plain.endswith("*") == row.starred


def test_csv_holds_the_frame_unrounded(planted, main):
    study, collected = planted
    lines = {line["Variant"]: line for line in csv.DictReader(io.StringIO(forms.to_csv(main)))}
    for variant, metric, epoch in places(study):
        row, spec = results(collected, study).get(variant, metric, epoch), METRICS[metric]
        label, line = spec.label or metric, lines[variant]
        score = f"{GROUPS[epoch]} / {label}{f' ({spec.unit})' if spec.unit else ''}"
        assert line[score] == main.cell(variant, f"{epoch}/{metric}").plain
        expected = {f"{score} / mean": row.mean, f"{score} / sd": row.sd}
        if epoch == "last":
            difference = f"{GROUPS[epoch]} / Δ {label}"
            ends = (row.difference, row.difference_low, row.difference_high)
            keys = (f"{difference} / {name}" for name in ("mean", "low", "high"))
            expected |= dict(zip(keys, ends, strict=True))
        for name, value in expected.items():
            assert float(line[name] or "nan") == pytest.approx(float(in_unit(value, spec)), nan_ok=True)
        assert line[f"{score} / n"] == (str(row.n) if row.n else "")


def test_every_form_prints_the_same_texts(main):
    cells = [cell for row in main.rows for cell in row.cells if cell.kind == "number"]
    html, markdown, tex = forms.to_html(main), forms.to_markdown(main), forms.to_latex(main)
    for cell in cells:
        printed = cell.text.replace("-", "−")
        assert printed in html and printed in markdown
        assert cell.text.lstrip("+-") in tex
    stars = sum(cell.note == "*" for cell in cells)
    assert stars > 0
    assert len(re.findall(r"\d\*", tex)) == stars


def test_the_report_prints_the_frame(planted, main):
    study, collected = planted
    (told,) = report_data(collected)["studies"]
    scores = {variant["name"]: variant["scores"] for variant in told["variants"]}
    for variant, metric, epoch in places(study):
        assert scores[variant][metric][epoch] == main.cell(variant, f"{epoch}/{metric}").plain
    (table,) = (t for t in told["tables"] if t["table"] == "one-main")
    assert table["html"] == forms.to_html(main)


def test_claims_read_the_frame(planted):
    study, collected = planted
    for variant, metric, epoch in places(study):
        if epoch == "last":
            read = side(collected, study, variant, metric).values
            row = results(collected, study).get(variant, metric)
            assert {s: value for s, value in read.items() if np.isfinite(value)} == dict(row.values)
