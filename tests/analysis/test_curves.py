"""Curves show what was logged: spikes, divergence, number of seeds; files do not change."""

from __future__ import annotations

import io
import json
import math
import re
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from planted import NOW, WEIRD, falling, hard_study, plant, plant_hard, planted_study
from pypdf import PdfReader

from ablations.study.schema import FigureSpec, TableSpec
from analysis.cli import main
from analysis.figures import binning
from analysis.figures import file as figurefile
from analysis.figures.curvedata import curve_set
from analysis.figures.curves import draw as draw_all
from analysis.figures.palette import Style, palette
from analysis.figures.variantpage import variant_page
from analysis.figures.venues import VENUES
from analysis.runs.collect import Collected, collect
from analysis.tables.study import table
from sdtps.config import parse_config


def draw(collected, study, spec, **options):
    return draw_all(collected, study, spec, **{"endings": ("pdf",), **options})


@pytest.fixture(scope="module")
def hard(tmp_path_factory):
    runs = tmp_path_factory.mktemp("hard")
    study = hard_study()
    plant_hard(runs, study)
    return study, collect([study], runs, now=NOW)


@pytest.fixture
def exploding(tmp_path):
    """Three seeds of `fine`; of `bad` one explodes to 1e9 and one diverges at step 12."""
    study = planted_study("x", ["fine", "bad"])
    for seed in study.seeds:
        plant(tmp_path, study, "fine", seed, scores={"mAP": [0.1] * 4})
    plant(tmp_path, study, "bad", 0, scores={"mAP": [0.1] * 4}, loss=lambda s: 1e9 if s > 9 else 1.0)
    plant(tmp_path, study, "bad", 1, state="diverged", stop=(3, 12), loss=lambda s: 2.0)
    plant(tmp_path, study, "bad", 2, scores={"mAP": [0.1] * 4}, loss=lambda s: 3.0)
    return study, collect([study], tmp_path, now=NOW)


def curve(pair, variant, **fields):
    study, collected = pair
    spec = FigureSpec(name="f", **fields)
    return next(c for c in curve_set(collected, study, spec).curves if c.variant == variant)


def test_the_mean_is_linear_also_on_a_logarithmic_axis(exploding):
    bad = curve(exploding, "bad", log_y=True)
    assert bad.mean[0] == pytest.approx((1 + 2 + 3) / 3)
    assert bad.mean[10] == pytest.approx((1e9 + 2 + 3) / 3)


def test_a_diverged_seed_ends_in_a_mark_and_leaves_the_label(exploding):
    bad = curve(exploding, "bad")
    assert bad.label == "bad (2/3)"
    assert bad.seeds[1].end == (11.0, 2.0)  # the last finite value: step 12 was no number
    assert bad.whole[:11].all() and not bad.whole[11:].any()
    assert np.isfinite(bad.mean).all()  # the two others go on
    assert curve(exploding, "fine").label == "fine"


def test_an_explosion_turns_the_axis_logarithmic(exploding):
    study, collected = exploding
    assert curve_set(collected, study, FigureSpec(name="f")).explodes
    calm = FigureSpec(name="f", variants=("fine",))
    assert not curve_set(collected, study, calm).explodes
    assert "The vertical axis is logarithmic." in draw(collected, study, FigureSpec(name="f")).caption


def test_the_caption_follows_from_what_is_drawn(exploding):
    study, collected = exploding
    text = " ".join(draw(collected, study, FigureSpec(name="f", band="t95", smoothing=0.9)).caption)
    assert "95 % t interval" in text and "weight 0.9" in text and "cross marks" in text
    assert "k of N seeds completed" in text


def test_bands_are_what_the_caption_says(exploding):
    seeds = np.array([falling(3) * f for f in (1.0, 1.01, 1.02)])
    sd = curve(exploding, "fine", band="sd")
    assert sd.high[2] - sd.mean[2] == pytest.approx(seeds.std(ddof=1))
    t95 = curve(exploding, "fine", band="t95")
    assert t95.high[2] - t95.mean[2] == pytest.approx(4.302653 * seeds.std(ddof=1) / math.sqrt(3))
    assert curve(exploding, "fine", band="minmax").high[2] == pytest.approx(seeds.max())


def test_a_gap_is_not_bridged_by_smoothing():
    values = np.array([1.0, 1.0, np.nan, 3.0, 3.0])
    assert binning.smoothed(values, 0.9)[3:] == pytest.approx([3.0, 3.0])
    assert np.isnan(binning.smoothed(values, 0.9)[2])


@given(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=300), st.integers(1, 40))
def test_binning_keeps_extremes_and_mean(values, limit):
    steps = np.arange(1, len(values) + 1)
    on = binning.grid(steps, limit)
    line = binning.binned(steps, np.array(values), on)
    assert np.nanmax(line.high) == max(values) and np.nanmin(line.low) == min(values)
    counts = np.bincount(np.searchsorted(on.edges, steps, side="right") - 1, minlength=on.bins)
    assert np.nansum(line.mean * counts) == pytest.approx(sum(values))


def big(variants: int, seeds: int, steps: int) -> tuple:
    """A frame as collect makes it, without the files; one spike at one step of one seed."""
    import pandas as pd

    study = planted_study("big", [f"v{i}" for i in range(variants)], seeds=range(seeds))
    rng = np.random.default_rng(0)
    parts, spans = [], {}
    for number, variant in enumerate(study.variants):
        for seed in study.seeds:
            value = 2 * np.exp(-np.arange(steps) / 9000) + 0.1 * rng.random(steps) + 0.2 * number
            if number == 2 and seed == 1:
                value[steps // 2] = 40.0
            start = len(parts) * steps
            spans.setdefault(("big", variant), []).append((start, start + steps))
            parts.append((number, seed, value))
    step = np.tile(np.arange(1, steps + 1, dtype=np.int32), len(parts))
    names = pd.Index(list(study.variants), dtype=object)
    rows = pd.DataFrame(
        {
            "study": pd.Categorical(["big"]).repeat(len(step)),
            "variant": pd.Categorical.from_codes(np.repeat([p[0] for p in parts], steps), names),
            "seed": np.repeat([p[1] for p in parts], steps),
            "kind": pd.Categorical(["train"]).repeat(len(step)),
            "attempt": 1,
            "epoch": step // 1000 + 1,
            "step": step,
            "metric": pd.Categorical(["loss"]).repeat(len(step)),
            "value": np.concatenate([p[2] for p in parts]),
        }
    )
    runs = pd.DataFrame(
        [
            {
                "study": "big",
                "variant": v,
                "seed": s,
                "folder": f"{v}/{s}",
                "where": f"{v}/{s}",
                "state": "completed",
                "planned": True,
                "imported": False,
                "epoch": 50,
                "step": steps,
                "reason": None,
                "code": "c",
                "commit": "c",
                "generated_data": False,
            }
            for v in study.variants
            for s in study.seeds
        ]
    )
    return study, Collected([study], study.path, runs, rows, spans=spans)


def test_a_spike_of_one_step_in_a_long_run_is_drawn_at_its_height():
    study, collected = big(3, 2, 20_000)
    curves = curve_set(collected, study, FigureSpec(name="f"))
    assert curves.grid.merges and len(curves.grid.edges) == 401
    assert np.nanmax(curves.curves[2].seeds[1].line.high) == 40.0
    assert np.nanmax(curves.curves[2].mean) < 5.0  # which the mean of the bin would have hidden
    picture = draw(collected, study, FigureSpec(name="f"), endings=("png",))
    from PIL import Image

    image = np.asarray(Image.open(io.BytesIO(picture.files["png"])).convert("L")).astype(int)
    top = image[int(image.shape[0] * 0.02) : int(image.shape[0] * 0.35), image.shape[1] // 5 :]
    assert (top < 200).any(), "nothing is drawn where the spike should be"


def test_eight_variants_five_seeds_and_fifty_thousand_steps_take_under_ten_seconds():
    study, collected = big(8, 5, 50_000)
    start = time.process_time()
    drawn = draw(collected, study, FigureSpec(name="f"))
    assert time.process_time() - start < 10
    assert len(drawn.files["pdf"]) < 2_000_000


@pytest.mark.parametrize("venue", sorted(VENUES))
def test_a_figure_is_exactly_as_wide_as_the_venue_wants(hard, venue):
    study, collected = hard
    drawn = draw(collected, study, FigureSpec(name="f", variants=("none", "1")), venue=venue)
    box = PdfReader(io.BytesIO(drawn.files["pdf"])).pages[0].mediabox
    assert float(box.width) == pytest.approx(VENUES[venue].column * 72, abs=1e-6)


def test_fonts_are_embedded_as_truetype(hard):
    study, collected = hard
    content = draw(collected, study, FigureSpec(name="f")).files["pdf"]
    fonts = PdfReader(io.BytesIO(content)).pages[0]["/Resources"]["/Font"]
    kinds = {str(font.get_object()["/Subtype"]) for font in fonts.values()}
    assert kinds == {"/Type0"} and b"/Type3" not in content  # Type 0 holds the TrueType (type 42) font


def test_drawing_twice_gives_the_same_bytes(hard):
    study, collected = hard
    spec = FigureSpec(name="f")
    first = draw_all(collected, study, spec)
    time.sleep(1.1)  # a time stamp would have a resolution of one second
    assert draw_all(collected, study, spec).files == first.files


def test_legends_print_every_name(hard):
    study, collected = hard
    content = draw(collected, study, FigureSpec(name="f")).files["pdf"]
    text = PdfReader(io.BytesIO(content)).pages[0].extract_text()
    for label in ("none", "NA", "off (2/3)", "1 (2/3)", f"{WEIRD} (1/3)", "all_diverged (0/3)"):
        assert re.sub(r"\s", "", label) in re.sub(r"\s", "", text), label


def test_names_that_matplotlib_reads_as_something_else_are_printed(tmp_path):
    study = planted_study("m", ["_hidden", "$x^2$", "a$b"], seeds=(0,))
    for variant in study.variants:
        plant(tmp_path, study, variant, 0)
    content = draw(collect([study], tmp_path, now=NOW), study, FigureSpec(name="f")).files["pdf"]
    text = PdfReader(io.BytesIO(content)).pages[0].extract_text()
    assert all(label in text for label in ("_hidden", "$x^2$", "a$b"))


def test_colours_belong_to_variants_and_not_to_figures(hard):
    study, _ = hard
    styles = palette(study)
    assert styles["none"] == Style("#000000", (3.0, 2.0))  # seen over a curve that it equals
    assert styles["off"].colour == "#cc3311"
    many = planted_study("many", [f"v{i}" for i in range(30)])
    assert len({(s.colour, s.dashes) for s in palette(many).values()}) == 30


def test_a_value_that_is_not_finite_on_the_way_is_marked_and_ends_no_curve(tmp_path):
    study = planted_study("half", ["a"], seeds=(0, 1))
    plant(tmp_path, study, "a", 0, loss=lambda s: math.inf if s < 4 else 2.0)
    plant(tmp_path, study, "a", 1, loss=lambda s: 2.0)
    collected = collect([study], tmp_path, now=NOW)
    curve = curve_set(collected, study, FigureSpec(name="f")).curves[0]
    assert list(curve.seeds[0].line.broken) == [1, 2, 3] and curve.seeds[0].end is None
    assert list(curve.whole) == [False] * 3 + [True] * 7
    text = " ".join(draw(collected, study, FigureSpec(name="f")).caption)
    assert "Triangles at the upper border" in text and "dotted where a seed has no value" in text


def test_what_a_caption_explains_is_in_the_figure(exploding):
    study, collected = exploding
    calm = " ".join(draw(collected, study, FigureSpec(name="f", variants=("fine",))).caption)
    for word in ("dotted", "Triangles", "cross", "bar marks", "k/N", "logarithmic", "Names stand"):
        assert word not in calm, word


def test_a_variant_without_the_metric_is_named_and_has_no_entry(tmp_path):
    study = planted_study("amp", ["half", "whole", "absent"], seeds=(0,))
    for variant in ("half", "whole"):
        folder = plant(tmp_path, study, variant, 0)
        rows = [json.loads(line) for line in folder.metrics_file.read_text().splitlines()]
        if variant == "half":
            rows = [{**row, "amp_scale": 65536.0} for row in rows if row["kind"] == "train"]
        folder.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = FigureSpec(name="f", metric="amp_scale")
    drawn = draw(collect([study], tmp_path, now=NOW), study, spec)
    assert "No AMP loss scale was logged for: whole." in drawn.caption
    text = PdfReader(io.BytesIO(drawn.files["pdf"])).pages[0].extract_text()
    assert "half" in text and "absent (0/1)" in text and "whole" not in text


def test_names_stand_in_the_order_in_which_curves_end(exploding):
    study, collected = exploding
    curves = curve_set(collected, study, FigureSpec(name="f"))
    assert [curve.variant for curve in curves.by_end()] == ["bad", "fine"]


def test_panels_and_sweeps_are_drawn(hard, tmp_path):
    study, collected = hard
    spec = FigureSpec(name="p", panel_by="sdtps.keep_ratio", in_every_panel=("none",))
    assert draw(collected, study, spec, endings=("svg",)).files["svg"].count(b'id="axes_') == 8
    sweep = FigureSpec(name="s", kind="sweep", metric="mAP", axis="sdtps.keep_ratio")
    drawn = draw_all(collected, study, sweep)
    text = PdfReader(io.BytesIO(drawn.files["pdf"])).pages[0].extract_text()
    assert "div." in text and "OOM" in text
    paths = figurefile.write(drawn, tmp_path / "figures")
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
    study = planted_study("sweep", made, seeds=(0,))
    for variant in made:
        plant(tmp_path, study, variant, 0, scores={"mAP": [0.5], "rank1": [0.5]})
    return study, collect([study], tmp_path, now=NOW)


def test_a_sweep_joins_only_what_differs_in_its_axis_and_names_the_rest(tmp_path, monkeypatch):
    study, collected = swept(tmp_path)
    lines = []
    plot = Axes.plot
    monkeypatch.setattr(Axes, "plot", lambda self, *a, **k: lines.append(a) or plot(self, *a, **k))
    spec = FigureSpec(name="s", kind="sweep", metric="mAP", axis="sdtps.keep_ratio")
    drawn = draw(collected, study, spec, endings=("svg",))
    assert max(lines, key=lambda a: len(set(a[0])))[0] == (0.3, 0.5, 0.7)
    caption = " ".join(drawn.caption)
    assert "Variants: TOPK; LOW; HIGH." in caption
    assert "Not drawn, for other settings differ too: ODD; SAME." in caption
    assert set(drawn.runs) == {"topk", "low", "high"}


def test_a_sweep_away_from_the_baseline_is_drawn_whole(tmp_path):
    study, collected = swept(tmp_path)
    chosen = {"axis": "sdtps.keep_ratio", "variants": ("odd", "same")}
    spec = FigureSpec(name="s", kind="sweep", metric="mAP", **chosen)
    drawn = draw(collected, study, spec, endings=("svg",))
    assert set(drawn.runs) == {"odd", "same"} and "Not drawn" not in " ".join(drawn.caption)


def test_a_sweep_table_has_a_row_for_what_differs_in_its_axis_or_is_listed(tmp_path):
    study, collected = swept(tmp_path)
    spec = TableSpec(name="s", kind="sweep", axis="sdtps.keep_ratio", metrics=("mAP",))
    made = table(collected, study, spec)
    assert [row.cells[0].text for row in made.rows] == ["0.3", "0.5", "0.7"]
    assert "Not in the table, for other settings differ too: ODD; SAME." in made.notes
    listed = table(collected, study, spec.model_copy(update={"rows": ("low", "odd")}))
    cells = [[cell.text for cell in row.cells[:2]] for row in listed.rows]
    assert cells == [["0.3", "LOW"], ["0.4", "ODD"]]


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
    drawn = draw(collect([study], tmp_path, now=NOW), study, spec)
    text = PdfReader(io.BytesIO(drawn.files["pdf"])).pages[0].extract_text()
    assert "log mask (1/4)" in text and "subtract_10 mask (0/4)" in text and "topk (0/2)" in text
    assert "τ" not in text


def test_a_variant_has_a_page_of_all_it_logged(hard):
    study, collected = hard
    text = (
        PdfReader(io.BytesIO(variant_page(collected, study, "1").files["pdf"])).pages[0].extract_text()
    )
    assert all(name in text for name in ("training loss", "learning rate", "gradient norm", "Rank-1"))


def test_a_study_without_any_run_still_draws(tmp_path):
    study = planted_study("empty", ["a"])
    drawn = draw(collect([study], tmp_path, now=NOW), study, FigureSpec(name="f"))
    text = PdfReader(io.BytesIO(drawn.files["pdf"])).pages[0].extract_text()
    assert "no run has logged it" in text and "a (0/3)" in text


@pytest.mark.parametrize(
    ("words", "figure", "code"),
    [
        (["--metric", "losss"], "loss", 2),
        (["--metric", "loss"], "loss", 0),
        ([], "mAPP", 2),
        ([], "amp_scale", 0),
    ],
)
def test_a_metric_that_nothing_logs_is_named_instead_of_drawn_empty(
    tmp_path, monkeypatch, capsys, words, figure, code
):
    study = planted_study("s", ["a"], seeds=(0,), figures=(FigureSpec(name="f", metric=figure),))
    plant(tmp_path / "runs", study, "a", 0)
    monkeypatch.setattr("analysis.commands.load", lambda _: ([study], []))
    place = ["--runs-dir", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]
    assert main(["curves", *place, *words]) == code
    assert not code or "no run logged '" in capsys.readouterr().err
