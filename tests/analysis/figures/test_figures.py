"""Curves show what was logged: spikes, divergence, number of seeds; files do not change."""

from __future__ import annotations

import io
import itertools
import math
import re
import time

import numpy as np
import pytest
import scipy.stats
from matplotlib.axes import Axes
from matplotlib.text import Text
from planted import WEIRD, falling, plant, planted_study, sketched
from pypdf import PdfReader

from ablations.study.schema import FigureSpec, TableSpec
from analysis.cli import main
from analysis.figures import figure
from analysis.figures.curves import plot
from analysis.figures.figure import draw as draw_all
from analysis.figures.figure import figures
from analysis.results.frames import results
from analysis.runs.collect import collect
from analysis.tables.study import table
from analysis.venues import VENUES
from sdtps.config import ProgramConfig, ReidConfig, parse_config

FORMS = {"article": ("pdf", "svg", "png"), "cvpr": ("pdf",), "ieee": ("pdf",)}


def draw(collected, study, spec, **options):
    return draw_all(collected, study, spec, **{"endings": ("pdf",), **options})


@pytest.fixture
def exploding(tmp_path):
    """Three seeds of `fine`; of `bad` one explodes to 1e9 and one diverges at step 12."""
    study = planted_study("x", ["fine", "bad"])
    for seed in study.seeds:
        plant(tmp_path, study, "fine", seed, scores={"mAP": [0.1] * 4})
    plant(tmp_path, study, "bad", 0, scores={"mAP": [0.1] * 4}, loss=lambda s: 1e9 if s > 9 else 1.0)
    plant(tmp_path, study, "bad", 1, state="diverged", stop=(3, 12), loss=lambda s: 2.0)
    plant(tmp_path, study, "bad", 2, scores={"mAP": [0.1] * 4}, loss=lambda s: 3.0)
    return study, collect([study], tmp_path)


def curve(pair, variant, **fields):
    study, collected = pair
    spec = FigureSpec(name="f", **fields)
    return next(c for c in plot(collected, study, spec).curves if c.variant == variant)


def test_the_mean_is_linear_also_on_a_logarithmic_axis(exploding):
    bad = curve(exploding, "bad", log_y=True)
    assert bad.mean[0] == pytest.approx((1 + 2 + 3) / 3)
    assert bad.mean[10] == pytest.approx((1e9 + 2 + 3) / 3)


def test_a_diverged_seed_ends_in_a_mark_and_leaves_the_label(exploding):
    bad = curve(exploding, "bad")
    assert bad.label == "bad (2/3)"
    shown = plot(exploding[1], exploding[0], FigureSpec(name="f"))
    assert [curve.variant for curve in shown.by_end()] == ["bad", "fine"]
    assert curve(exploding, "fine").label == "fine"


def test_an_explosion_turns_the_axis_logarithmic_and_percentages_stay_linear(exploding, tmp_path):
    study, collected = exploding
    assert plot(collected, study, FigureSpec(name="f")).log
    calm = FigureSpec(name="f", variants=("fine",))
    assert not plot(collected, study, calm).log
    study = planted_study("learns", ["learns"], seeds=(0,))
    plant(tmp_path / "learns", study, "learns", 0, scores={"mAP": [0.001, 0.2, 0.9]})
    collected = collect([study], tmp_path / "learns")
    assert not plot(collected, study, FigureSpec(name="f", metric="mAP")).log
    assert plot(collected, study, FigureSpec(name="f", metric="mAP", log_y=True)).log


def test_the_caption_follows_from_what_is_drawn(exploding):
    study, collected = exploding
    text = " ".join(draw(collected, study, FigureSpec(name="f", band="t95"), endings=()).caption)
    assert "95 % t interval" in text and "cross marks" in text and "axis is logarithmic" in text
    calm = draw(collected, study, FigureSpec(name="f", variants=("fine",)), endings=()).caption
    for word in ("Dotted", "Triangles", "cross", "bar marks", "k/N", "logarithmic", "legend lists"):
        assert word not in " ".join(calm), word  # what a caption explains is in the figure
    assert "k of N seeds completed" in text


def test_bands_are_what_the_caption_says(exploding):
    seeds = np.array([falling(3) * f for f in (1.0, 1.01, 1.02)])
    fine = curve(exploding, "fine")
    half = {kind: (fine.band(kind)[1] - fine.mean)[2] for kind in ("sd", "t95")}
    assert half["sd"] == pytest.approx(seeds.std(ddof=1))
    assert half["t95"] == pytest.approx(4.302653 * seeds.std(ddof=1) / math.sqrt(3))
    assert fine.band("minmax")[1][2] == pytest.approx(seeds.max())


@pytest.mark.parametrize("venue", FORMS)
def test_a_figure_is_as_wide_as_the_venue_wants_and_equal_runs_give_equal_bytes(hard, venue):
    study, collected, _ = hard
    spec = FigureSpec(name="f")
    files = draw(collected, study, spec, venue=venue, endings=FORMS[venue]).files
    page = PdfReader(io.BytesIO(files["pdf"])).pages[0]
    assert float(page.mediabox.width) == pytest.approx(VENUES[venue].column * 72, abs=1e-6)
    fonts = page["/Resources"]["/Font"].values()
    kinds = {str(font.get_object()["/Subtype"]) for font in fonts}
    assert kinds == {"/Type0"} and b"/Type3" not in files["pdf"]  # it holds the TrueType (type 42) font
    text = re.sub(r"\s", "", page.extract_text())
    for label in ("none", "NA", "off (2/3)", "1 (2/3)", f"{WEIRD} (1/3)", "all_diverged (0/3)"):
        assert re.sub(r"\s", "", label) in text, label
    if venue == "article":
        time.sleep(1.1)  # a time stamp would have a resolution of one second
        assert draw_all(collected, study, spec).files == files


def test_names_that_matplotlib_reads_as_something_else_are_printed(tmp_path):
    study = planted_study("m", ["_hidden", "$x^2$", "a$b"], seeds=(0,))
    for variant in study.variants:
        plant(tmp_path, study, variant, 0)
    content = draw(collect([study], tmp_path), study, FigureSpec(name="f")).files["pdf"]
    text = PdfReader(io.BytesIO(content)).pages[0].extract_text()
    assert all(label in text for label in ("_hidden", "$x^2$", "a$b"))


def test_a_value_that_is_not_finite_on_the_way_is_marked_and_ends_no_curve(tmp_path):
    study = planted_study("half", ["a"], seeds=(0, 1))
    plant(tmp_path, study, "a", 0, loss=lambda s: math.inf if s < 4 else 2.0)
    plant(tmp_path, study, "a", 1, loss=lambda s: 2.0)
    collected = collect([study], tmp_path)
    text = " ".join(draw(collected, study, FigureSpec(name="f"), endings=()).caption)
    assert "Triangles at the upper border" in text and "a gap where a seed has no finite value" in text


def test_a_variant_without_the_metric_is_named_and_has_no_entry(tmp_path):
    study = planted_study("amp", ["half", "whole", "absent"], seeds=(0,))
    for variant in ("half", "whole"):
        logged = {"amp_scale": lambda step: 65536.0} if variant == "half" else {}
        plant(tmp_path, study, variant, 0, logged=logged)
    spec = FigureSpec(name="f", metric="amp_scale")
    drawn = draw(collect([study], tmp_path), study, spec)
    assert "No AMP loss scale was logged for: whole." in drawn.caption
    text = PdfReader(io.BytesIO(drawn.files["pdf"])).pages[0].extract_text()
    assert "half" in text and "absent (0/1)" in text and "whole" not in text


def test_panels_and_sweeps_are_drawn(hard, tmp_path):
    study, collected, _ = hard
    spec = FigureSpec(name="p", panel_by="sdtps.keep_ratio", in_every_panel=("none",))
    assert draw(collected, study, spec, endings=("svg",)).files["svg"].count(b'id="axes_') == 8
    sweep = FigureSpec(name="s", kind="sweep", metric="mAP", axis="sdtps.keep_ratio")
    drawn = draw_all(collected, study, sweep)
    text = PdfReader(io.BytesIO(drawn.files["pdf"])).pages[0].extract_text()
    assert "div." in text and "OOM" in text
    paths = figure.write(drawn, tmp_path / "figures")
    assert {p.suffix for p in paths} == {".pdf", ".svg", ".png", ".tex", ".json"}
    assert "figures/hard-s.pdf" in (tmp_path / "figures" / "hard-s.tex").read_text()


def swept(tmp_path):
    """A baseline at 0.5, a sweep of two more, and two variants that have another setting as well."""
    made = {
        name: {"label": name.upper(), "config": parse_config({"task": "reid", "sdtps": sdtps})}
        for name, sdtps in {
            "topk": {"keep_ratio": 0.5},
            "low": {"keep_ratio": 0.3},
            "odd": {"keep_ratio": 0.4, "decision": "gumbel_ste"},
            "same": {"keep_ratio": 0.5, "decision": "gumbel_ste"},
            "high": {"keep_ratio": 0.7},
        }.items()
    }
    varies = ("sdtps.keep_ratio", "sdtps.decision")
    study = planted_study("sweep", made, seeds=(0,), varies=varies)
    for variant in made:
        plant(tmp_path, study, variant, 0, scores={"mAP": [0.5], "rank1": [0.5]})
    return study, collect([study], tmp_path)


def test_a_sweep_joins_only_what_differs_in_its_axis_and_names_the_rest(tmp_path, monkeypatch):
    study, collected = swept(tmp_path)
    lines = []
    plot = Axes.plot
    monkeypatch.setattr(Axes, "plot", lambda self, *a, **k: lines.append(a) or plot(self, *a, **k))
    spec = FigureSpec(name="s", kind="sweep", metric="mAP", axis="sdtps.keep_ratio")
    drawn = draw(collected, study, spec, endings=())
    assert max(lines, key=lambda a: len(set(a[0])))[0] == (0.3, 0.5, 0.7)
    caption = " ".join(drawn.caption)
    assert "Variants: TOPK; LOW; HIGH." in caption
    assert "This is one slice of the study. In all of it sdtps.decision = topk." in caption
    assert "Not drawn, because other settings differ too: ODD; SAME." in caption
    assert set(drawn.runs) == {"topk", "low", "high"}
    away = spec.model_copy(update={"variants": ("odd", "same")})  # from the baseline: drawn whole
    drawn = draw(collected, study, away, endings=())
    assert set(drawn.runs) == {"odd", "same"} and "Not drawn" not in " ".join(drawn.caption)


def test_a_sweep_table_of_two_settings_shows_both_and_leaves_nothing_out(tmp_path):
    study, collected = swept(tmp_path)
    spec = TableSpec(name="s", kind="sweep", axis="sdtps.keep_ratio", metrics=("mAP",))
    made = table(collected, study, spec)
    assert [row.cells[0].text for row in made.rows] == ["0.3", "0.4", "0.5", "0.5", "0.7"]
    assert [c.key.partition(":")[0] for c in made.columns[:2]] == ["axis"] * 2
    assert not any("Not in the table" in note for note in made.notes)
    listed = table(collected, study, spec.model_copy(update={"rows": ("low", "odd")}))
    assert [row.cells[0].text for row in listed.rows] == ["0.3", "0.4"]


def test_across_panels_one_setting_has_one_colour_and_one_entry(tmp_path):
    def variant(label, temperature, mask):
        sdtps = {"decision": "gumbel_ste", "temperature": temperature, "mask": mask}
        config = parse_config({"task": "reid", "sdtps": {**sdtps, "aggregation": "single"}})
        overrides = {"sdtps.temperature": temperature, "sdtps.mask": mask}
        return {"label": label, "config": config, "overrides": overrides}

    variants = {
        f"{mask}{temperature:g}": variant(f"τ = {temperature:g}, {mask} mask", temperature, mask)
        for temperature in (1.0, 5.0)
        for mask in ("log", "subtract_10")
    }
    study = planted_study("panels", {"topk": {}, **variants}, seeds=(0, 1))
    plant(tmp_path, study, "log1", 0)
    spec = FigureSpec(name="p", panel_by="sdtps.temperature", in_every_panel=("topk",))
    drawn = draw(collect([study], tmp_path), study, spec)
    text = PdfReader(io.BytesIO(drawn.files["pdf"])).pages[0].extract_text()
    assert "log mask (1/4)" in text and "subtract_10 mask (0/4)" in text and "topk (0/2)" in text
    assert "τ" not in text


def test_a_study_without_any_run_still_draws(tmp_path):
    study = planted_study("empty", ["a"])
    drawn = draw(collect([study], tmp_path), study, FigureSpec(name="f"))
    text = PdfReader(io.BytesIO(drawn.files["pdf"])).pages[0].extract_text()
    assert "no run has logged it" in text and "a (0/3)" in text


@pytest.mark.parametrize(
    ("config", "words", "figure", "code"),
    [
        (ReidConfig(), ["--metric", "losss"], "loss", 2),
        (ReidConfig(), ["--metric", "loss"], "loss", 0),
        (ReidConfig(), [], "amp_scale", 0),
        (ProgramConfig(command="p.py {seed}"), [], "amp_scale", 2),
    ],
)
def test_a_metric_that_nothing_logs_is_named_instead_of_drawn_empty(
    tmp_path, monkeypatch, capsys, config, words, figure, code
):
    specs = (FigureSpec(name="f", metric=figure),)
    study = planted_study("s", {"a": {"config": config}}, seeds=(0,), figures=specs)
    plant(tmp_path / "runs", study, "a", 0)
    monkeypatch.setattr("analysis.verbs.load", lambda _: [study])
    place = ["--runs-dir", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]
    with sketched():
        assert main(["curves", *place, *words]) == code
    assert not code or "no run of s logged '" in capsys.readouterr().err


def test_a_bad_figure_stops_no_other_says_why_and_fails_the_command(tmp_path, monkeypatch, capsys):
    specs = (FigureSpec(name="bad"), FigureSpec(name="good", variants=("a",)))
    study = planted_study("s", {"a": {}, "b": {"label": "odd \U000f0000"}}, seeds=(0,), figures=specs)
    for variant in study.variants:
        plant(tmp_path / "runs", study, variant, 0)
    bad, good = figures(collect([study], tmp_path / "runs"), study)
    assert "STIXGeneral and DejaVu Sans lack" in bad.problem
    assert good.problem is None and set(good.files) == {"pdf", "svg", "png", "csv"}
    monkeypatch.setattr("analysis.verbs.load", lambda _: [study])
    out = tmp_path / "out"
    with sketched():
        assert main(["curves", "--runs-dir", str(tmp_path / "runs"), "--out", str(out)]) == 1
    assert (
        "STIXGeneral and DejaVu Sans lack" in capsys.readouterr().out and (out / "s-good.pdf").exists()
    )
    written = (out / "s-bad.tex").read_text()
    assert "could not be drawn" in written and "includegraphics" not in written


def test_zero_and_negative_values_are_told_on_a_logarithmic_axis(tmp_path):
    study = planted_study("s", ["a", "b"], seeds=(0,))
    plant(tmp_path, study, "a", 0, loss=lambda s: 1.0 - 0.25 * s)
    plant(tmp_path, study, "b", 0, loss=lambda s: 1.0)
    collected = collect([study], tmp_path)
    spec = FigureSpec(name="f", log_y=True)
    text = " ".join(draw(collected, study, spec, endings=()).caption)
    assert "Zero and negative values" in text and ": a (7)." in text
    calm = draw(collected, study, FigureSpec(name="f"), endings=()).caption
    assert "Zero and negative" not in " ".join(calm)


def test_variants_that_evaluate_at_different_steps_each_join_their_own_points(tmp_path, monkeypatch):
    study = planted_study("s", ["a", "b"], seeds=(0,))
    scores = {"mAP": [0.1 + 0.02 * n for n in range(12)]}
    for variant, steps in (("a", 39), ("b", 54)):
        plant(tmp_path, study, variant, 0, scores=scores, steps_per_epoch=steps)
    lines = []
    plot_ = Axes.plot
    monkeypatch.setattr(Axes, "plot", lambda self, *a, **k: lines.append(a) or plot_(self, *a, **k))
    collected = collect([study], tmp_path)
    draw(collected, study, FigureSpec(name="f", metric="mAP"), endings=())
    shown = plot(collected, study, FigureSpec(name="f", metric="mAP"))
    assert [c.pieces() for c in shown.curves] == [[slice(0, 12)]] * 2
    epochs = [x for x in (np.asarray(line[0]) for line in lines) if len(x) == 12 and x[-1] == 12]
    assert shown.epochs and len(epochs) == 2  # two unbroken lines of twelve epochs


def test_what_a_figure_shows_is_beside_it_as_csv(exploding):
    import pandas as pd

    study, collected = exploding
    drawn = draw(collected, study, FigureSpec(name="f"), endings=())
    table = pd.read_csv(io.BytesIO(drawn.files["csv"]))
    bad = table[table["variant"] == "bad"]
    np.testing.assert_allclose(bad["mean"], curve(exploding, "bad").mean)
    assert bad["n"].tolist() == [3] * 11 + [2] * 9


@pytest.mark.parametrize("venue", ["article", "cvpr"])
def test_no_text_is_smaller_than_seven_points(hard, tmp_path, venue, monkeypatch):
    study, collected, _ = hard
    sizes = []

    def measured(picture, endings=()):
        picture.draw_without_rendering()
        sizes.extend(t.get_fontsize() for t in picture.findobj(Text) if t.get_text())
        return {}

    monkeypatch.setattr(figure, "saved", measured)
    draw(collected, study, FigureSpec(name="f"), venue=venue)
    sweep = FigureSpec(name="s", kind="sweep", metric="mAP", axis="sdtps.keep_ratio")
    draw(collected, study, sweep, venue=venue)
    assert len(sizes) > 30 and min(sizes) >= 7


def test_differences_are_drawn_with_what_seeds_can_and_cannot_tell(tmp_path):
    """A starred, an equivalent, an open, an untested and a lost variant."""
    levels = {"base": 0.6, "worse": 0.5, "same": 0.601, "wide": 0.61, "partly": 0.58, "gone": 0.5}
    spreads = {"base": 0.0, "worse": 0.002, "same": 0.001, "wide": 0.03, "partly": 0.004, "gone": 0.0}
    tables = (TableSpec(name="main", baseline="base", metrics=("mAP",)),)
    study = planted_study("d", list(levels), seeds=range(4), tables=tables)
    for variant, seed in itertools.product(levels, study.seeds):
        lost = variant == "gone" or (variant, seed) == ("partly", 3)
        value = levels[variant] + spreads[variant] * (-1) ** seed * (1 + seed / 10)
        state = "diverged" if lost else "completed"
        plant(tmp_path, study, variant, seed, state=state, scores={"mAP": [value], "rank1": [value]})
    collected = collect([study], tmp_path)
    spec = FigureSpec(name="f", kind="differences", metric="mAP", margin=1.0)
    drawn = draw(collected, study, spec)
    text = " ".join(drawn.caption)
    words = ("starred", "equivalent", "open", "not tested")
    counted = {word: re.search(rf"{word}: [^;]*\((\d)\)", text)[1] for word in words}
    assert counted == {"starred": "1", "equivalent": "1", "open": "1", "not tested": "2"}
    assert "margin of 1 points" in text and "over 5 differences" in text
    printed = PdfReader(io.BytesIO(drawn.files["pdf"])).pages[0].extract_text()
    assert "−10.0" in printed and "(3/4)" in printed and "div." in printed
    row = results(collected, study).get("worse", "mAP")
    half = (row.difference_high - row.difference_low) / 2
    expected = half * scipy.stats.t.ppf(1 - 0.05 / 10, 3) / scipy.stats.t.ppf(0.975, 3)
    assert row.least_starred == pytest.approx(expected)
