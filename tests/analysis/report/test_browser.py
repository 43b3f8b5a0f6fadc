"""The report in a real Chromium: what a reader does with it works, offline and without an error."""

from __future__ import annotations

import csv
import http.client
import io
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from planted import plant, planted_study
from pypdf import PdfReader

from ablations.study.schema import TableSpec
from analysis.questions.compare import compare
from analysis.report import live, verb
from analysis.report.payload import page, payload
from analysis.results.frames import results
from analysis.runs.collect import Collected, collect
from sdtps.system.errors import SdtpsError
from tests.analysis.report.conftest import HOSTILE, PATIENCE

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, collected: Collected) -> Path:
    folder = tmp_path_factory.mktemp("report")
    claim = {"source": "a", "evidence": "b", "runs": []}
    claims = [
        {**claim, "id": 1, "claim": HOSTILE, "verdict": "refuted"},
        {**claim, "id": 2, "claim": "x", "verdict": "supported"},
    ]
    gradient = {"variant": HOSTILE, "when": "initial", "part": "score_mlp", "state": "zero"}
    finding = {"variant": HOSTILE, "severity": "warning", "text": "the score MLP learns nothing"}
    examined = {"without_gradient": 0.0, "patch_cosine": None, "scaler_skipped": None}
    variants = [{"variant": name, "label": name, **examined} for name in ("topk", HOSTILE)]
    audit = {"study": "demo", "baseline": "topk", "steps": 2, "variants": variants}
    audit |= {"findings": [finding], "gradients": [gradient]}
    verb.write(collected, folder / "report.html", claims=claims, audits=[audit])
    return folder / "report.html"


def column(tab: Any, number: int) -> list[str]:
    return tab.locator(f"#runs tbody td:nth-child({number})").all_inner_texts()


def differences(tab: Any) -> dict[str, list[str]]:
    """What differs between two variants side by side: name to both values."""
    rows = (text.split("\t") for text in tab.locator("#differences tbody tr").all_inner_texts())
    return {name: values for name, *values in rows}


def test_runs_are_sorted_by_a_score_and_filtered_by_words_and_state(open_page, report: Path) -> None:
    tab = open_page(report)  # the best first, absent ones last either way
    tab.click("#runs .sort[data-key='final:mAP']")
    scores = column(tab, 4)
    numbers = [float(s) for s in scores if s != "–"]
    assert numbers == sorted(numbers, reverse=True) and len(numbers) == 13
    assert set(scores[13:]) == {"–"}
    tab.click("#runs .sort[data-key='final:mAP']")
    again = column(tab, 4)
    assert [float(s) for s in again[:13]] == sorted(numbers) and set(again[13:]) == {"–"}
    assert tab.get_attribute("#runs th:nth-child(4)", "aria-sort") == "ascending"
    tab.fill("#filter", "gumbel seed1")
    assert tab.inner_text("#runs-count") == "1 of 18 runs"
    tab.fill("#filter", "")
    tab.click("#runs .chip[data-filter='diverged']")
    assert tab.locator("#runs tbody tr").count() == 3
    tab.click("#runs .chip[data-filter='failed']")
    assert tab.locator("#runs tbody tr").count() == 4
    assert "CUDA out of memory" in tab.inner_text("#runs tbody")


def test_a_chart_without_a_variant_with_hover_zoom_and_keyboard(open_page, report: Path) -> None:
    tab = open_page(report)
    shown = "() => [curveChart.lines.map((l) => l.label), curveChart.marks.length]"
    labels, crosses = tab.evaluate(shown)
    assert "gumbel" in labels and crosses == 4
    tab.uncheck("#curves input[data-variant='gumbel']")
    labels, crosses = tab.evaluate(shown)
    assert not any("gumbel" in label for label in labels) and crosses == 1  # the failed seed's bar
    tab.get_by_role("button", name="Show all variants").click()
    assert tab.evaluate(shown)[1] == 4
    canvas = tab.locator("#curves canvas[role='img']").first
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    tab.mouse.move(box["x"] + 400, box["y"] + 200)
    tab.wait_for_selector("#curves .tip:not([hidden])")
    assert "topk" in tab.inner_text("#curves .tip") and tab.locator("#curves .tip canvas").count() == 6
    tab.mouse.down()
    tab.mouse.move(box["x"] + 600, box["y"] + 200, steps=4)
    tab.mouse.up()
    low, high = tab.evaluate("() => curveChart.zoom")
    assert 1 < low < high < 100
    tab.get_by_role("button", name="Reset zoom").click()
    assert tab.evaluate("() => curveChart.zoom") is None
    canvas.focus()
    tab.keyboard.press("ArrowRight")
    assert "step" in tab.inner_text("#live")
    tab.keyboard.press("+")
    assert tab.evaluate("() => curveChart.zoom") is not None


def test_a_number_in_a_table_leads_to_its_runs_and_a_run_to_its_log(open_page, report: Path) -> None:
    tab = open_page(report)
    tab.click("#tables [data-cell='demo-main|topk|best/mAP']")
    rows = tab.locator("#panel table.behind tbody tr")
    assert rows.count() == 3
    values = tab.locator("#panel table.behind td:nth-child(3)").all_inner_texts()
    assert values == ["50.0", "51.0", "52.0"]
    rows.nth(1).get_by_role("button", name="Open").click()
    text = tab.inner_text("#panel")
    assert "last words of topk seed 1" in text and "NVIDIA H100" in text and "node01" in text
    assert "sdtps submit ablations/demo.yaml --variant topk --seed 1" in text
    assert "#run=demo" in tab.url
    tab.get_by_role("button", name="Compare, on the right").click()
    assert not tab.locator("#panel").is_visible() and "#run=" not in tab.url
    assert tab.locator("#differences thead th").last.inner_text() == "topk, seed 1"


def test_a_link_opens_its_run_and_a_number_lists_its_own(open_page, report: Path, collected) -> None:
    tab = open_page(report, f"#run={collected.runs[0].where}")
    assert tab.inner_text("#panel-title") == "topk, seed 0"
    tab.keyboard.press("Escape")
    tab.click("#tables [data-cell='demo-main|NA|best/mAP']")
    tab.get_by_role("button", name="Show these in the runs table").click()
    assert tab.inner_text("#runs-count") == "3 of 18 runs"
    states = tab.locator("#runs tbody tr")
    found = [states.nth(i).get_attribute("data-state") for i in range(3)]
    assert sorted(found) == ["completed", "completed", "planned"]


def test_hostile_names_are_text_and_audit_and_claims_are_shown(open_page, report: Path) -> None:
    tab = open_page(report)
    assert tab.title() == "SDTPS results"
    assert HOSTILE in tab.inner_text("#overview") and HOSTILE in tab.inner_text("#claims")
    audited = tab.inner_text("#audit")
    assert "learns nothing" in audited and "zero: a gradient reaches it" in audited
    assert "Nothing was found in: topk." in audited
    assert tab.locator("#claims tbody tr").count() == 2
    tab.click("#claims .chip >> text=refuted")
    assert tab.locator("#claims tbody tr").count() == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_controls_are_readable_in_both_themes(open_page, report: Path, scheme: str) -> None:
    """Contrast of body and muted text on its card is at least 4.5 : 1 (WCAG AA)."""
    tab = open_page(report, color_scheme=scheme)
    assert tab.get_attribute("html", "data-theme") == scheme
    script = """() => {
      const light = (c) => { const v = c.match(/[0-9.]+/g).slice(0, 3).map((x) => x / 255).map((x) => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4); return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2]; };
      const card = light(getComputedStyle(document.querySelector(".card")).backgroundColor);
      return ["body", ".muted", "thead th", ".verdict.refuted", ".verdict.supported"].map((s) => { const ink = light(getComputedStyle(document.querySelector(s)).color); return (Math.max(ink, card) + 0.05) / (Math.min(ink, card) + 0.05); });
    }"""  # noqa: E501
    assert min(tab.evaluate(script)) >= 4.5
    nameless = """() => [...document.querySelectorAll("button, input, select, canvas[role=img]")]
      .filter((n) => !(n.textContent.trim() || n.getAttribute("aria-label") || n.title
        || n.closest("label")))
      .map((n) => n.outerHTML)"""
    assert tab.evaluate(nameless) == []
    drawn = {"light": "#882255", "dark": "rgb(166,90,128)"}  # a line's colour, 3 : 1 on either card
    assert tab.evaluate("() => Chart.paint('#882255')") == drawn[scheme]


def test_many_runs_are_listed_and_sorted(open_page, tmp_path: Path, collected: Collected) -> None:
    data = payload(collected, tables={})
    one = data["studies"][0]
    template = data["runs"][0]
    for number in range(18, 900):
        data["runs"].append({**template, "where": f"demo/x/seed{number}", "seed": number, "variant": 0})
        one["variants"][0]["runs"].append(number)
    (tmp_path / "big.html").write_bytes(b"".join(page(data)))
    tab = open_page(tmp_path / "big.html")
    assert tab.inner_text("#runs-count") == "900 of 900 runs"
    tab.click("#runs .sort[data-key='seed']")
    shown = [int(seed) for seed in column(tab, 2)]
    assert shown == sorted(shown) and len(shown) == 200  # more on demand
    tab.click("#runs .sort[data-key='seed']")
    assert column(tab, 2)[0] == "899"
    tab.evaluate("() => { document.getElementById('runs-table').scrollTop = 3000; }")
    head, host = (tab.locator(part).bounding_box() for part in ("#runs thead", "#runs-table"))
    assert head["y"] == pytest.approx(host["y"], abs=2)  # the titles stay in sight


def test_half_precision_reads_on_a_logarithmic_axis_and_names_who_has_no_scale(
    open_page, tmp_path: Path
) -> None:
    study = planted_study("half", ["fp16", "bf16"], seeds=(0, 1))
    for variant in study.variants:
        for seed in study.seeds:
            logged = {"amp_scale": lambda step: 2.0 ** (16 - 3 * step)} if variant == "fp16" else {}
            plant(tmp_path / "runs", study, variant, seed, logged=logged)
    verb.write(collect([study], tmp_path / "runs"), tmp_path / "report.html")
    tab = open_page(tmp_path / "report.html")
    assert not tab.is_checked("#log-axis")  # the loss falls by less than a factor of 50
    tab.select_option("#metric", "train|amp_scale")
    assert tab.is_checked("#log-axis")
    assert "amp_scale was not logged by bf16." in tab.inner_text("#curve-note")
    tab.uncheck("#log-axis")
    assert "try the logarithmic axis" in tab.inner_text("#curve-note")
    tab.select_option("#metric", "train|loss")
    assert "not logged" not in tab.inner_text("#curve-note")


def test_smoothing_keeps_the_raw_line_behind(open_page, report: Path) -> None:
    tab = open_page(report)
    tab.fill("#smoothing", "0.9")
    raw, smooth = tab.evaluate("""() => { const mine = curveChart.lines.filter(
      (l) => l.label === "topk" && l.mean);
      return [mine.find((l) => l.raw), mine.find((l) => !l.raw)].map((l) => [l.y, l.alpha ?? 1]); }""")
    assert raw[1] < smooth[1] and max(raw[0]) > 10 > max(smooth[0])  # the spike stays in the raw line
    own = []
    total = norm = 0.0
    for value in raw[0]:
        total, norm = 0.9 * total + 0.1 * value, 0.9 * norm + 0.1
        own.append(total / norm)
    assert smooth[0] == pytest.approx(own)
    assert "Smoothed" in tab.inner_text("#curve-note")


def test_least_last_and_greatest_values_are_listed(open_page, report: Path) -> None:
    tab = open_page(report)
    find = "curveChart.lines.find((l) => l.label === 'none' && l.n)"
    y, x = tab.evaluate(f"() => [{find}.y, {find}.x]")
    row = tab.locator("#extremes tbody tr", has_text="none").first.inner_text().split("\t")
    assert row[0] == "none" and row[4] == "2/3"
    for cell, value in zip(row[1:4], (min(y), y[-1], max(y)), strict=True):
        assert cell == f"{value:.5g} at {x[y.index(value)]:.5g}"


def test_wall_clock_and_gpu_hours_are_axes(open_page, report: Path) -> None:
    tab = open_page(report)
    longest = "() => Math.max(...curveChart.lines.flatMap((l) => l.x.filter((v) => v !== null)))"
    tab.select_option("#x-axis", "wall")
    assert tab.evaluate(longest) == pytest.approx(120, rel=0.3)  # seconds that planted attempts took
    assert "spread evenly over their steps" in tab.inner_text("#curve-note")
    tab.select_option("#x-axis", "gpu")
    assert tab.evaluate("() => curveChart.xLabel") == "GPU hours"
    assert tab.evaluate(longest) == pytest.approx(120 / 3600, rel=0.3)


def test_zeros_are_told_on_logarithmic_axes(open_page, tmp_path: Path) -> None:
    study = planted_study("zeros", ["a"], seeds=(0,))
    plant(tmp_path / "runs", study, "a", 0, loss=lambda step: 5.0 - step)
    verb.write(collect([study], tmp_path / "runs"), tmp_path / "report.html")
    tab = open_page(tmp_path / "report.html")
    tab.check("#log-axis")
    assert "6 values of zero or less" in tab.inner_text("#curve-note")
    tab.check("#log-x")
    assert tab.evaluate("() => curveChart.logX")


@pytest.mark.parametrize("form", ["SVG", "PNG", "CSV"])
def test_a_chart_is_saved(open_page, report: Path, form: str) -> None:
    tab = open_page(report)
    with tab.expect_download() as download:
        tab.click(f"#curves [role='group'] button:text-is('{form}')")
    content = Path(download.value.path()).read_bytes()
    assert download.value.suggested_filename == f"demo-loss.{form.lower()}"
    if form == "PNG":
        assert content.startswith(b"\x89PNG")
    elif form == "SVG":
        root = ElementTree.fromstring(content)
        assert len(root.findall(".//{http://www.w3.org/2000/svg}path")) > 20
    else:
        rows = list(csv.DictReader(io.StringIO(content.decode())))
        mean = [r for r in rows if r["variant"] == "topk" and r["seed"] == ""]
        assert len(mean) == 100 and {r["n"] for r in mean} == {"3"}
        assert len([r for r in rows if r["variant"] == "topk" and r["seed"] == "1"]) == 100


def test_two_variants_side_by_side_show_only_what_differs(open_page, report: Path) -> None:
    tab = open_page(report)
    tab.select_option("#compare-a", "v|topk")
    tab.select_option("#compare-b", "v|gumbel")
    rows = differences(tab)
    assert set(rows["sdtps.keep_ratio"]) == {"0.05", "0.275"}
    assert rows["mAP, last epoch"] == ["51.0 ± 1.0", "div. (ep. 8–10)"]
    assert rows["state"] == ["completed", "diverged"]
    assert "machine" not in rows and "machine" in tab.inner_text("#equal")
    labels = tab.evaluate("() => pairChart.lines.filter((l) => !l.silent).map((l) => l.label)")
    assert labels == ["topk", "gumbel"]


def test_queries_that_changed_are_those_that_compare_counts(
    open_page, report: Path, collected: Collected, monkeypatch
) -> None:
    tab = open_page(report, "#left=v|topk&right=v|none")  # which has two seeds
    rows = (text.split("\t") for text in tab.locator("#queries tbody tr").all_inner_texts())
    shown = {metric: (int(gained), int(lost)) for metric, gained, lost, *_ in rows}
    for metric, label in (("mAP", "mAP"), ("rank1", "Rank-1")):
        found = compare(results(collected, collected.studies[0]), "none", metric, "last", None)
        assert shown[label] == (found["queries"]["higher"], found["queries"]["lower"])
    tab.press("#queries summary >> nth=0", "Enter")
    assert tab.inner_text("#queries details[open]").count("→") == sum(shown["mAP"]) - 5
    tab.select_option("#compare-b", f"v|{HOSTILE}")
    assert "different queries" in tab.inner_text("#queries")
    monkeypatch.setattr("analysis.report.payload.QUERY_BUDGET", 100)
    verb.write(collected, report.with_name("large.html"))
    assert "sdtps compare" in open_page(report.with_name("large.html")).inner_text("#queries")


def test_everything_works_with_the_keyboard(open_page, report: Path) -> None:
    tab = open_page(report, reduced_motion="reduce")

    def reach(selector: str, key: str = "Shift") -> None:
        """By Tab alone; the focus is drawn, and nothing covers it."""
        for _ in range(150):
            tab.keyboard.press("Tab")
            if tab.evaluate("(s) => document.activeElement.matches(s)", selector):
                break
        seen = """() => { const n = document.activeElement, r = n.getBoundingClientRect();
          return [n.matches(":focus-visible"), getComputedStyle(n).outlineStyle,
            document.elementFromPoint(r.x + r.width / 2, r.y + r.height / 2) === n]; }"""
        assert tab.evaluate(seen) == [True, "solid", True], selector
        tab.keyboard.press(key)

    reach("nav a[href='#curves']", "Enter")
    reach("nav a, #metric", "ArrowDown")  # the first stop after the link is in its section
    for control in ("#x-axis", "#log-axis", "#log-x"):
        reach(control)
    reach("#smoothing", "End")
    assert tab.evaluate("() => [chosen.metric, chosen.smooth]") == ["grad_norm", 0.99]
    reach("#compare-a", "End")
    reach("#compare-b", "t")
    tab.keyboard.type("opk, seed 1")
    heads = tab.locator("#differences thead th").all_inner_texts()
    assert heads == ["Differs in", "gumbel, seed 2", "topk, seed 1"]
    assert "seed" in differences(tab) and "commit" not in differences(tab)
    with tab.expect_download() as download:
        reach("#compare [aria-label='Save the chart as SVG']", "Enter")
    assert download.value.suggested_filename == "demo-side-by-side-grad_norm.svg"
    reach("#tables [data-cell='demo-main|topk|best/mAP']", "Enter")
    assert tab.locator("#panel").is_visible()


def test_nothing_is_wider_than_a_telephone(open_page, report: Path) -> None:
    tab = open_page(report, viewport={"width": 400, "height": 800})
    wide = """() => [...document.querySelectorAll("body *")].filter((n) => !n.closest(".scroll, nav")
      && n.getBoundingClientRect().right > innerWidth + 1).map((n) => n.outerHTML.slice(0, 120))"""
    assert tab.evaluate(wide) == []
    assert tab.evaluate("() => document.documentElement.scrollWidth") <= 400
    ends = "() => [...document.querySelectorAll('caption')].map((c) => c.getBoundingClientRect().right)"
    assert max(tab.evaluate(ends)) <= 400  # above a table that is wider and scrolls
    assert tab.locator("td.state").first.evaluate("(n) => getComputedStyle(n).display") == "table-cell"
    for table in ("#forest", "#overview .scroll", "#curve-values .scroll"):
        assert tab.locator(table).evaluate("(n) => n.scrollWidth <= n.clientWidth")
    tab.hover("#curves .chart canvas")
    tip, canvas = (tab.locator(f"#curves {part}").first.bounding_box() for part in (".tip", "canvas"))
    assert tip["y"] >= canvas["y"] + canvas["height"]  # the curves stay in sight


def test_printed_tables_are_whole(open_page, report: Path) -> None:
    tab = open_page(report)
    pages = PdfReader(io.BytesIO(tab.pdf(prefer_css_page_size=True))).pages
    tab.emulate_media(media="print")
    tab.set_viewport_size({"width": 1031, "height": 729})  # A4 across, less margins, in CSS pixels
    beyond = """() => [...document.querySelectorAll("#audit th, #audit td, #tables th, #tables td")]
      .filter((n) => n.getBoundingClientRect().right > innerWidth + 1).length"""
    assert tab.evaluate(beyond) == 0
    texts = ["".join(page.extract_text().split()) for page in pages]
    assert "Untrained(%)" in "".join(texts) and "ScoreMLP" in "".join(texts)
    listed = [text.count("BestepochTime") for text in texts if "node01NVIDIA" in text]
    assert set(listed) == {1}  # the runs table has its titles on every page


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two studies whose variants differ in keep_ratio; the first one's scores rise with it."""
    folder = tmp_path_factory.mktemp("swept")
    tables = (TableSpec(name="main", baseline="topk"),)
    studies = [
        planted_study(name, variants, seeds=(0, 1, 2), tables=tables)
        for name, variants in (("one", ["topk", "low", "high"]), ("two", ["topk", "wide"]))
    ]
    for study in studies:
        for number, variant in enumerate(study.variants):
            for seed in study.seeds:
                score = 0.5 + 0.1 * number + 0.001 * seed * (1 + number)
                scores = {"mAP": [score - 0.1, score], "rank1": [score, score]}
                plant(folder / "runs", study, variant, seed, scores=scores)
    verb.write(collect(studies, folder / "runs"), folder / "report.html")
    return folder / "report.html"


RATIOS = ["0.05", "0.095", "0.14"]


def test_settings_are_columns_that_sort_filter_and_group(open_page, swept: Path) -> None:
    tab = open_page(swept)
    tab.click("#runs .sort[data-key='setting:sdtps.keep_ratio']")
    assert column(tab, 6) == [ratio for ratio in RATIOS for _ in range(3)]
    tab.fill("#filter", "keep_ratio=0.095")
    assert tab.inner_text("#runs-count") == "3 of 9 runs"
    tab.fill("#filter", "")
    tab.select_option("#runs-group", "setting:sdtps.keep_ratio")
    heads = tab.locator("#runs tr.heading").all_inner_texts()
    assert heads == [f"sdtps.keep_ratio: {ratio} (3 runs)" for ratio in RATIOS]


def test_differences_to_the_baseline_and_results_against_settings(open_page, swept: Path) -> None:
    tab = open_page(swept)
    tab.select_option("#forest-metric", "rank1")
    rows = [text.split("\t") for text in tab.locator("#forest tbody tr").all_inner_texts()]
    assert [row[0] for row in rows[:2]] == ["low", "high"]
    assert rows[0][2].startswith("+10.") and rows[0][3] == "starred"
    tab.select_option("#scatter-x", "sdtps.keep_ratio")
    tab.select_option("#scatter-y", "rank1")
    assert tab.locator("#scatter .dot-run").count() == 9
    assert tab.locator("#scatter .dot-run title", has_text="sdtps.keep_ratio 0.14").count() == 3
    assert tab.evaluate("() => axisOf([0.6, 88], '%').at(44.3)") == pytest.approx(0.5)  # linear
    assert tab.locator("#parallel .variant-line text").all_text_contents() == ["high", "low", "topk"]
    tab.locator("#scatter .dot-run").last.click()
    assert tab.inner_text("#panel-title") == "high, seed 2"
    tab.keyboard.press("Escape")
    for stop in ("#scatter .dot-run", "#parallel .variant-line"):
        assert tab.locator(f"{stop}[tabindex='0']").count() == 1  # of the Tab key
    tab.keyboard.press("ArrowLeft")
    assert "high, seed 1" in tab.inner_text("#scatter + p")
    tab.keyboard.press("Enter")
    assert tab.inner_text("#panel-title") == "high, seed 1"


def test_a_variant_of_another_study_is_compared_and_several_charts_stand_at_once(
    open_page, swept: Path
) -> None:
    tab = open_page(swept)
    tab.select_option("#compare-a", "v|high")
    tab.select_option("#compare-b", "s|two|wide")
    rows = differences(tab)
    assert rows["sdtps.keep_ratio"] == ["0.14", "0.095"]
    assert rows["mAP, last epoch"][0].startswith("70.")
    assert len(tab.evaluate("() => pairChart.lines.filter((l) => !l.silent)")) == 2
    tab.click("#curves summary >> text=More charts")
    tab.check("#curves [data-more='eval|mAP']")
    tab.check("#curves [data-more='train|lr']")
    assert tab.locator("#more-charts canvas").count() == 2
    assert tab.evaluate("() => moreCharts.get('eval|mAP').yLabel") == "mAP (%)"
    beside = "() => moreCharts.get('train|lr').frame.box.left"  # room for long numbers and the label
    assert tab.evaluate(beside) >= 70
    tab.get_by_role("button", name="Show a chart of every metric").click()
    assert tab.locator("#more-charts canvas").count() == tab.locator("[data-more]").count() > 3


def test_a_link_keeps_the_view(open_page, swept: Path) -> None:
    tab = open_page(swept)
    tab.select_option("#metric", "eval|mAP")
    tab.select_option("#x-axis", "epoch")
    tab.check("#log-axis")
    tab.uncheck("#curves input[data-variant='low']")
    tab.get_by_role("button", name="Zoom in").click()
    tab.select_option("#compare-b", "v|high")
    tab.fill("#filter", "seed1")
    tab.click("#theme")
    view = """() => [chosen.kind, chosen.metric, chosen.x, chosen.hidden.has("low"), curveChart.log,
      table.words, curveChart.zoom.map((v) => v.toPrecision(5)), pair.b,
      document.documentElement.dataset.theme]"""
    before = tab.evaluate(view)
    other = open_page(swept, tab.url[tab.url.index("#") :])
    assert other.evaluate(view) == before
    assert before[:3] == ["eval", "mAP", "epoch"] and before[-1] == "dark"


def test_a_live_page_follows_a_running_run(browser: Any, tmp_path: Path) -> None:
    study = planted_study("live", ["a"], seeds=(0,))
    folder = plant(tmp_path / "live-runs", study, "a", 0, state="running", stop=(1, 4))

    def make() -> dict[str, Any]:
        return verb.report_data(collect([study], tmp_path / "live-runs"))

    source = live.Source(make, [tmp_path / "live-runs" / "live"])
    with live.served(source) as address, browser.new_context() as context:
        assert address.startswith("http://127.0.0.1:")
        context.set_default_timeout(PATIENCE)
        tab = context.new_page()
        tab.goto(address)
        assert tab.evaluate("() => curveChart.lines[0].x.length") == 4
        tab.fill("#smoothing", "0.5")
        tab.focus("#smoothing")
        folder.append_metrics({"attempt": 1, "kind": "train", "epoch": 1, "step": 5, "loss": 1.0})
        tab.wait_for_function("() => curveChart.lines.at(-1).x.length === 5")
        assert tab.evaluate("() => [chosen.smooth, document.activeElement.id]") == [0.5, "smoothing"]


def test_a_live_page_answers_no_other_host(tmp_path: Path) -> None:
    def make() -> dict[str, Any]:
        return verb.report_data(collect([planted_study("live", ["a"])], tmp_path))

    with live.served(live.Source(make, [tmp_path])) as address:
        port = int(address.rstrip("/").rpartition(":")[2])
        for host, path, status in (
            (f"127.0.0.1:{port}", "/", 200),
            ("evil.example:80", "/", 403),
            (f"localhost:{port}", "/etc/passwd", 404),
        ):
            connection = http.client.HTTPConnection("127.0.0.1", port)
            connection.request("GET", path, headers={"Host": host})
            assert connection.getresponse().status == status
            connection.close()
        with pytest.raises(SdtpsError, match="--port"), live.served(live.Source(make, []), port):
            pass
