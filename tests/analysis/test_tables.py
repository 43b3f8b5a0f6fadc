"""Cells say what happened: k of N, diverged, failed, missing; best is decided on what is printed."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace

import pytest
from planted import WEIRD, plant, plant_all, planted_study, reseal

from ablations.study.schema import MetricSpec, Reported, TableSpec
from analysis.cli import main
from analysis.results.frames import Result, judge
from analysis.runs.collect import collect
from analysis.tables import forms
from analysis.tables.study import table, tables
from sdtps.config import ProgramConfig
from sdtps.run.folder import RunFolder

FORBIDDEN = re.compile(r"\b(nan|inf|none|<na>|null)\b", re.IGNORECASE)
PERCENT = MetricSpec(direction="up", digits=1)
BEST = "best epoch on the test split / mAP (%)"


def plain(table, row, column):
    return table.cell(row, column).plain


def test_each_outcome_has_its_own_cell(hard):
    main = hard[2]["hard-main"]
    assert plain(main, "none", "best/mAP") == "81.4 ± 0.2"
    assert plain(main, "off", "best/mAP") == "90.0 ± 0.0 (2/3)"
    assert plain(main, "1", "best/mAP") == "85.5 ± 0.7 (2/3)"
    assert plain(main, WEIRD, "best/mAP") == "95.0 (1/3)"
    assert plain(main, "all_diverged", "best/mAP") == "div. (ep. 1–3)"
    assert plain(main, "failed", "best/mAP") == "OOM"
    assert plain(main, "absent", "best/mAP") == "--"
    assert plain(main, "none", "last/mAP") == "76.4 ± 0.2"


def test_best_is_decided_on_printed_values_among_whole_variants(hard):
    main = hard[2]["hard-main"]
    ranks = {row.key: main.cell(row.key, "best/mAP").rank for row in main.rows}
    assert (ranks["none"], ranks["NA"], ranks["tex"]) == (1, 1, 2)  # 81.4 and 81.42 print alike
    assert ranks["off"] == ranks["1"] == ranks[WEIRD] == 0  # higher, but not all seeds finished
    nar = {row.key: main.cell(row.key, "best/nar").rank for row in main.rows}
    assert (nar["tex"], nar["NA"], nar["none"]) == (1, 2, 0)  # lower is better


def test_the_caption_says_what_was_computed(hard):
    caption = " ".join(hard[2]["hard-main"].caption)
    for fact in ("ddof 1", "k/N", "selected on the test split", "generated", "22 of 27 planned runs"):
        assert fact in caption, fact


def test_every_mark_is_explained_and_nothing_else(hard):
    made = hard[2]
    main = made["hard-main"]
    grey = "Grey: none, the baseline."
    assert grey in forms.to_html(main) and "none (baseline)" in forms.to_latex(main)
    for form in (forms.to_latex, forms.to_markdown):  # which have no grey
        assert grey not in form(main)
    sweep = replace(main, rows=tuple(replace(row, shaded=False) for row in main.rows))
    assert "(baseline)" not in forms.to_latex(sweep) and grey not in forms.to_html(sweep)
    loo = " ".join(made["hard-loo"].caption)
    cells = [cell for row in made["hard-loo"].rows for cell in row.cells]
    assert ("*: p < 0.05" in loo) == any(cell.note == "*" for cell in cells)
    assert ("95 % t interval" in loo) == any(cell.signed and cell.spread for cell in cells)


@pytest.mark.parametrize(("second", "noted"), [(0.996, True), (0.98, False)])
def test_a_spread_beyond_the_scale_is_noted(tmp_path, second, noted):
    study = planted_study("high", ["a", "b"], seeds=(0, 1), metrics={"mAP": PERCENT})
    for variant in study.variants:
        for seed, value in enumerate((second, 1.0 if noted else 0.97)):
            plant(tmp_path, study, variant, seed, scores={"mAP": [value]})
    caption = " ".join(table(collect([study], tmp_path), study, study.tables[0]).caption)
    assert ("beyond 0 or 100 %" in caption) == noted


def test_what_programs_log_under_other_names_or_in_per_cent_is_told(tmp_path, monkeypatch, capsys):
    program = {"config": ProgramConfig(command="p.py {seed}")}
    metrics = {"acc": PERCENT, "acuracy": PERCENT}
    study = planted_study("s", {"a": program, "b": program}, metrics=metrics)
    plant_all(tmp_path, study, scores={"acc": [50.0, 99.5], "accuracy": [0.5, 0.6]})
    monkeypatch.setattr("analysis.verbs.load", lambda _: [study])
    compare, report = ["compare", "s", "a", "b", "--metric"], ["report", "-o", str(tmp_path / "r.html")]
    looks = ("collect", 0), ("tables", 1), (*report, 1)
    for *words, code in (*looks, (*compare, "acuracy", 1), (*compare, "acc", 0)):
        assert main([*words, "--runs-dir", str(tmp_path)]) == code
        out, told = capsys.readouterr()
        assert ("'acuracy' in its last evaluation. Did you mean 'accuracy'?" in told) == bool(code)
        assert words[0] != "tables" or out.count('acc: {direction: up, unit: ""}') == 1
        assert told.count('is per cent, write acc: {direction: up, unit: ""} under metrics') == 1
        assert ("best epoch" in out) == (words[0] == "tables")
    for folder in tmp_path.glob("s/*/seed*"):  # of a program that selects no epoch
        reseal(RunFolder(folder), best={})
    main(["tables", "--runs-dir", str(tmp_path)])
    assert "best epoch" not in capsys.readouterr().out


def test_the_notes_name_each_seed_that_is_not_in_a_mean(hard):
    notes = " ".join(hard[2]["hard-main"].notes)
    assert "1: seed 2 diverged at epoch 2 (step 8)." in notes
    assert "off: seed 1 not run." in notes
    assert f"{WEIRD}: seed 1 failed; seed 2 not run." in notes
    assert "failed: seeds 0, 1, 2 out of memory." in notes


def test_seeds_with_identical_curves_are_said_to_be(hard):
    assert "none: seeds 0, 1, 2 gave identical loss curves" in " ".join(hard[2]["hard-main"].notes)


@pytest.mark.parametrize("form", ["tex", "csv", "md", "html", "json"])
def test_no_form_prints_what_is_no_number(hard, form):
    for name, made in hard[2].items():
        text = forms.FORMS[form](made)
        if form == "json":
            json.loads(text, parse_constant=lambda c: pytest.fail(c))
            continue
        cleaned = re.sub(r"(?<![\w.])none(?![\w.])", "", text)  # a variant is called none
        assert not FORBIDDEN.search(cleaned), (name, FORBIDDEN.search(cleaned))


def test_latex_has_the_whole_tabular_with_equal_columns(hard):
    text = forms.to_latex(hard[2]["hard-main"])
    bodies = re.findall(r"\\midrule(.*?)\\bottomrule", text, re.DOTALL)
    assert len(bodies) == 2 and text.count(r"\begin{tabular}{@{}lccc@{}}") == 2  # one for each epoch
    for line in "".join(bodies).split("\n"):
        assert not line or len(re.findall(r"(?<!\\)&", line)) == 3, line
    assert r"w/o\_msa \& 5\% \#1 \{x\}\textasciitilde{}\textasciicircum{}\textbackslash{}" in text
    assert r"w/o L\ensuremath{_{1}}, \ensuremath{\tau} \ensuremath{\geq} 2" in text
    assert r"\textbf{81.4}" in text and r"NAR~\ensuremath{\downarrow}" in text
    assert r"\multicolumn{3}{c}{best epoch on the test split}" in text and r"\cmidrule(lr){2-4}" in text


def test_csv_and_markdown_keep_names_and_trailing_zeros(hard):
    main = hard[2]["hard-main"]
    rows = list(csv.reader(io.StringIO(forms.to_csv(main))))
    assert [r[0] for r in rows[1:5]] == ["none", "NA", "off", "1"]
    assert dict(zip(rows[0], rows[3], strict=True))[BEST] == "90.0 ± 0.0 (2/3)"
    assert r"w/o\_msa & 5% \#1 \{x\}\~^\\" in forms.to_markdown(main)
    assert "**81.4** ± 0.2" in forms.to_markdown(main)


def test_components_have_check_marks_or_their_word(hard):
    parts = hard[2]["hard-parts"]
    assert [plain(parts, v, "SDTPS") for v in ("none", "NA", WEIRD, "absent")] == ["", "✓", "half", ""]


def test_differences_are_paired_by_seed_and_from_unrounded_means(hard):
    loo = hard[2]["hard-loo"]
    assert loo.rows[0].key == "none"
    assert plain(loo, "tex", "last/mAP/difference") == "-10.4 ± 2.0*"
    assert plain(loo, "NA", "last/mAP/difference") == "0.0"  # the same in all seeds: no spread
    assert plain(loo, "off", "last/mAP/difference").endswith("(2/3)")
    assert "best/mAP/difference" not in {column.key for column in loo.columns}
    assert (
        plain(loo, "none", "last/mAP/difference") == plain(loo, "absent", "last/mAP/difference") == ""
    )
    assert "Holm-corrected over all 8 differences of this table" in " ".join(loo.caption)


def test_a_sweep_is_in_order_of_its_axis(tmp_path):
    study = planted_study(
        "s", ["c", "a", "b"], tables=(TableSpec(name="t", kind="sweep", axis="sdtps.keep_ratio"),)
    )
    plant_all(tmp_path, study)
    made = table(collect([study], tmp_path), study, study.tables[0])
    assert [row.cells[0].text for row in made.rows] == ["0.05", "0.095", "0.14"]
    assert [c.key for c in made.columns][:2] == ["axis:sdtps.keep_ratio", "last/mAP"]


def test_conditions_of_one_variant_are_rows(tmp_path):
    metrics = {
        "mAP": PERCENT,
        "rank1": PERCENT.model_copy(update={"label": "Rank-1"}),
        "mAP@missing_r": PERCENT.model_copy(update={"label": "mAP without RGB"}),
        "rank1@missing_r": PERCENT,
        "mAP@on_night": PERCENT,
    }
    spec = TableSpec(name="t", kind="conditions", rows=("a",), epoch="last")
    study = planted_study("s", ["a", "b"], seeds=(0,), metrics=metrics, tables=(spec,))
    scores = {name: [0.1 * (place + 1)] for place, name in enumerate(metrics)}
    plant(tmp_path, study, "a", 0, scores=scores)
    made = table(collect([study], tmp_path), study, spec)
    assert [c.head for c in made.columns] == ["Evaluated", "mAP (%) ↑", "Rank-1 (%) ↑"]
    assert [[cell.plain for cell in row.cells] for row in made.rows] == [
        ["as trained", "10.0", "20.0"],
        ["without RGB", "30.0", "40.0"],
        ["on_night", "50.0", ""],
    ]
    assert re.findall(r'data-metric="(.*?)"', forms.to_html(made)) == list(metrics)[2:]


def test_compute_counts_what_failed_too(hard):
    compute = hard[2]["hard-compute"]
    assert plain(compute, "*", "runs") == "14/27"
    assert plain(compute, "failed", "wasted") == "6.0 min" == plain(compute, "failed", "time")
    assert "NVIDIA H100" in compute.caption[0]


def test_variants_are_listed_with_their_differences(hard):
    listed = hard[2]["hard-variants"]
    assert plain(listed, "NA", "changes") == "keep_ratio = 0.095"
    assert "in the section sdtps" in listed.caption[1]


# -- reported against reproduced ----------------------------------------------------------------


def judged(reported, values, metric=PERCENT, **options):
    """The verdict on a reported number, given the values of our seeds."""
    result = Result(
        *("s", "a", "mAP", "last", "a", False, "", ""),
        len(values),
        len(values),
        dict(enumerate(values)),
    )
    return judge(reported, replace(result, values=dict(enumerate(values))), metric, **options)


@pytest.mark.parametrize(
    ("reported", "values", "tolerance", "n", "word"),
    [
        ("74.0", [0.731, 0.735, 0.739], 1.0, None, "cannot be told"),
        ("74.0", [0.7396, 0.7404, 0.7400], 1.0, None, "reproduced"),
        ("74.0", [0.731, 0.735, 0.739, 0.741, 0.738], 2.5, 5, "reproduced"),
        ("74.0", [0.731, 0.735, 0.739, 0.741, 0.738], 1.0, 1, "cannot be told"),
        ("74.0", [0.52, 0.96], None, None, "cannot be told"),
        ("74.0", [0.52, 0.96], 1.0, None, "cannot be told"),
        ("74.0", [0.7396, 0.7404], None, None, "cannot be told"),
        ("74.0", [0.735], 1.0, None, "cannot be told"),
        ("74.0", [0.74, 0.74], 1.0, None, "cannot be told"),
        ("79.0", [0.731, 0.735, 0.739], None, None, "lower"),
        ("70.0", [0.731, 0.735, 0.739], None, None, "higher"),
        ("79.0", [0.731, 0.735, 0.739], 2.0, None, "lower"),
        # 81.3 is anything from 81.25 to 81.35
        ("81.3", [0.81335, 0.8134, 0.81345], 0.5, None, "reproduced"),
        ("81.3", [0.81335, 0.8134, 0.81345], 0.05, None, "cannot be told"),
        ("81", [0.8140, 0.8141, 0.8139], 0.5, None, "cannot be told"),
        ("0.74", [0.731, 0.735, 0.739], 2.0, None, "unit unclear"),
        ("79.0", [], None, None, "not run"),
    ],
)
def test_verdicts(reported, values, tolerance, n, word):
    assert judged(reported, values, tolerance=tolerance, n=n) == word


def test_a_reported_spread_counts_with_its_own_rounding():
    seeds = [0.738, 0.740, 0.742]
    assert judged("79.0", seeds, n=5) == "lower"
    assert judged("79.0", seeds, n=5, sd="5") == "cannot be told"
    with pytest.raises(ValueError, match="'sd' needs 'n'"):
        Reported(variant="a", source="T3", values={"mAP": "79.0"}, sd={"mAP": "0.3"})


def test_reproduce_says_whether_a_number_is_the_papers_and_what_differs(tmp_path, capsys, monkeypatch):
    there = {"settings": {"sdtps.keep_ratio": 0.7}, "environment": {"gpu": "RTX 4090"}}
    far = Reported(variant="a", source="T3", values={"mAP": "79.0"}, sd={"mAP": "0.3"}, n=5, **there)
    study = planted_study("s", ["a", "b"], reported=(far,))
    plant_all(tmp_path, study)
    monkeypatch.setattr("analysis.verbs.load", lambda _: [study])
    words = ["reproduce", "s", "--runs-dir", str(tmp_path)]
    assert main([*words, "--json"]) == 1
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["verdict"], row["ours"]["mean"], row["ours"]["n"]) == ("lower", 51.0, 3)
    assert row["differs"] == ["sdtps.keep_ratio = 0.7, here 0.05", "gpu RTX 4090, here NVIDIA H100"]
    assert main(words) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "lower" in shown and "±" in shown
    assert "s-reproduce" in {t.name for t in tables(collect([study], tmp_path), study)}
    monkeypatch.setattr("analysis.verbs.load", lambda _: [planted_study("s", ["a"])])
    assert main(words) == 2


def test_a_metric_that_some_seeds_lack_is_named_with_seed_and_reason_and_counted(tmp_path):
    study = planted_study("s", ["a", "b"], metrics={"mAP": PERCENT, "rank1": PERCENT})
    for seed in study.seeds:
        scores = {"mAP": [0.5 + seed / 100], "rank1": [0.7 if seed != 1 else None]}
        plant(tmp_path, study, "a", seed, scores=scores)
        plant(tmp_path, study, "b", seed, state="running", stop=(1, 3))
    made = table(collect([study], tmp_path), study, TableSpec(name="t", epoch="last"))
    assert made.cell("a", "last/rank1").note == "2/3"
    assert made.cell("b", "last/mAP").plain == "running"
    assert any("rank1 is not a finite number in seed 1" in note for note in made.notes)
    assert "over 3 seeds" not in " ".join(made.caption)


def test_imported_variants_with_identical_series_are_one_result(tmp_path):
    study = planted_study("s", ["a", "b", "c"], seeds=(0,))
    for variant in study.variants:
        plant(tmp_path, study, variant, 0, imported=True, loss=lambda s, c=variant == "c": 1 / s + c)
    collected = collect([study], tmp_path)
    collected.runs = tuple(replace(run, planned=False) for run in collected.runs)
    made = table(collected, study, TableSpec(name="t"))
    assert [note for note in made.notes if "One result" in note] == [
        "One result, imported 2 times, value for value: a; b."
    ]


def test_per_cent_reported_for_a_fraction_is_told():
    fraction = MetricSpec(direction="up", digits=3, unit="")
    assert judged("74.0", [0.731, 0.735, 0.739], fraction) == "unit unclear"
    assert judged("0.79", [0.731, 0.735, 0.739], fraction) == "lower"


def test_reported_numbers_stand_by_who_reports_them_with_their_digits_and_what_differs(tmp_path):
    theirs = {"sdtps.keep_ratio": 0.7, "fusion.direct": True}
    study = planted_study(
        "s",
        ["a", "b"],
        tables=(TableSpec(name="rep", kind="reported"),),
        reported=(
            Reported(variant="a", source="T", values={"mAP": "79.00"}, tolerance=0.5, settings=theirs),
            Reported(variant="a", source="issue 6", by="third party", values={"mAP": "75"}, n=1),
            Reported(method="LAPS", source="Table 1", values={"rank1": "62.5"}),
        ),
    )
    plant_all(tmp_path, study)
    made = table(collect([study], tmp_path), study, study.tables[0])
    headings = [row.heading for row in made.rows if not row.cells]
    assert headings == [
        "Reported by the authors",
        "Reproductions by third parties",
        "Reported, not run here",
    ]
    groups = [row["group"] for row in csv.DictReader(io.StringIO(forms.to_csv(made)))]
    assert groups == headings
    lines = [[cell.plain for cell in row.cells] for row in made.rows if row.cells]
    source = "T; sdtps.keep_ratio = 0.7, here 0.05"
    ours = ["79.00 (tolerance 0.5)", "51.0 ± 1.0", "-28.00", "lower"]
    assert lines[0] == ["a", source, "mAP (%)", *ours]
    assert lines[1][3:5] == ["75 (n = 1)", "51.0 ± 1.0"]
    assert lines[2][3:] == ["62.5", "", "", ""]
    assert "lower: ours" in " ".join(made.caption)


def test_a_table_is_found_by_its_name_in_the_manifest(tmp_path, capsys, monkeypatch):
    study = planted_study("s", ["a"], seeds=(0,))
    plant_all(tmp_path, study)
    monkeypatch.setattr("analysis.verbs.load", lambda _: [study])
    assert main(["tables", "--table", "main", "--runs-dir", str(tmp_path)]) == 0
    assert "Variant" in capsys.readouterr().out
    assert main(["tables", "--table", "mian", "--runs-dir", str(tmp_path)]) == 2
    assert "Did you mean 'main'" in capsys.readouterr().err
