"""Variants are told apart by everybody, also without colours and where curves overlap; letters."""

from __future__ import annotations

import io
import itertools
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure
from planted import falling, plant, planted_study
from pypdf import PdfReader

from ablations.study.manifest import load_study
from ablations.study.schema import FigureSpec
from analysis.figures.curves import marker_places, plot
from analysis.figures.style import Style, palette, saved, styled
from analysis.runs.collect import collect
from analysis.venues import VENUES
from sdtps.run.locations import shipped

# Machado, Oliveira and Fernandes 2009, severity 1: linear sRGB as people with the dichromacy see it.


@pytest.mark.parametrize("count", [14, 30])
def test_variants_differ_without_colours_too(count):
    study = planted_study("s", {f"v{i}": {"color": "#cc3311"} if i == 3 else {} for i in range(count)})
    assert palette(study)["v3"].colour == "#cc3311"
    assert palette(study)["v0"] == Style("#000000", (3.0, 2.0))  # seen over a curve that it equals
    styles = palette(planted_study("s", [f"v{i}" for i in range(count)])).values()
    assert len({(s.marker, s.fill, s.dashes) for s in styles}) == count


@pytest.mark.parametrize("name", ["quick", "nograd", "gumbel", "mask_constant", "rgbnt201"])
def test_a_dropped_variant_leaves_the_others_their_colours(name):
    study = load_study(shipped(f"ablations/{name}.yaml"))
    whole = palette(study)
    for dropped in study.variants.keys() - {study.baseline}:
        variants = {key: v for key, v in study.variants.items() if key != dropped}
        rest = palette(replace(study, variants=variants))
        assert rest == {key: whole[key] for key in variants}


@pytest.mark.parametrize("epochs", [1, 4, 40])
def test_markers_of_curves_that_lie_on_each_other_take_turns(tmp_path, epochs):
    study = planted_study("same", ["a", "b", "c"], seeds=(0, 1))
    for variant, seed in itertools.product(study.variants, study.seeds):
        plant(tmp_path, study, variant, seed, scores={"mAP": [0.5] * epochs}, loss=falling)
    shown = plot(collect([study], tmp_path), study, FigureSpec(name="f"))
    found = marker_places(shown.curves)
    marked = np.concatenate([found[name] for name in study.variants])
    assert all(len(found[name]) for name in study.variants)
    assert len(np.unique(marked)) == len(marked)


def test_letters_are_drawn_as_themselves_in_times():
    text = 'a_b <c> {d} | ~ ^ \\ " τ = 5 ± 2 × 3 – — “q” ≥ é'
    with styled(VENUES["article"]):
        picture = Figure(figsize=(5, 1))
        picture.text(0.1, 0.5, text, parse_math=False)
        content = saved(picture, ("pdf",))["pdf"]
    page = PdfReader(io.BytesIO(content)).pages[0]
    assert page.extract_text().split() == text.split()
    names = {str(f.get_object()["/BaseFont"]) for f in page["/Resources"]["/Font"].values()}
    assert all("STIX" in name for name in names)


def test_each_form_has_room_for_its_own_letters():
    def picture():
        figure = Figure(figsize=(4, 1), layout="constrained")
        figure.subplots().set_yticks([0], ["τ = 5, 1e10 mask, clamped -noise_clamp"])
        return figure

    with styled(VENUES["article"]):
        assert saved(picture())["png"] == saved(picture(), ["png"])["png"]
