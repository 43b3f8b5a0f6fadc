"""The report in a real Chromium: what a reader does with it works, offline and without an error."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from planted import NOW, plant, planted_study

from analysis.report import command
from analysis.report.page import page
from analysis.report.payload import payload
from analysis.runs.collect import Collected, collect
from tests.analysis.report.conftest import HOSTILE

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, collected: Collected) -> Path:
    folder = tmp_path_factory.mktemp("report")
    claims = {
        "claims": [
            {
                "id": 1,
                "claim": HOSTILE,
                "source": "a",
                "verdict": "refuted",
                "evidence": "b",
                "runs": [],
            },
            {"id": 2, "claim": "x", "source": "a", "verdict": "supported", "evidence": "b", "runs": []},
        ]
    }
    (folder / "claims.json").write_text(json.dumps(claims))
    gradient = {"variant": HOSTILE, "when": "initial", "part": "score_mlp", "state": "zero"}
    finding = {"variant": HOSTILE, "severity": "warning", "text": "the score MLP learns nothing"}
    audit = {"study": "demo", "baseline": "topk", "findings": [finding], "gradients": [gradient]}
    (folder / "audit.json").write_text(json.dumps(audit))
    command.write(
        collected,
        folder / "report.html",
        claims=folder / "claims.json",
        audits=[folder / "audit.json"],
    )
    return folder / "report.html"


def column(tab: Any, number: int) -> list[str]:
    return tab.locator(f"#runs tbody td:nth-child({number})").all_inner_texts()


def test_sorting_by_a_score_puts_the_best_first_and_absent_ones_last(open_page, report: Path) -> None:
    tab = open_page(report)
    tab.click("#runs .sort[data-key='best:mAP']")
    scores = column(tab, 4)
    numbers = [float(s) for s in scores if s != "–"]
    assert numbers == sorted(numbers, reverse=True) and len(numbers) == 13
    assert set(scores[13:]) == {"–"}
    tab.click("#runs .sort[data-key='best:mAP']")
    again = column(tab, 4)
    assert [float(s) for s in again[:13]] == sorted(numbers) and set(again[13:]) == {"–"}
    assert tab.get_attribute("#runs th:nth-child(4)", "aria-sort") == "ascending"


def test_filtering_by_words_and_by_state(open_page, report: Path) -> None:
    tab = open_page(report)
    tab.fill("#filter", "gumbel seed1")
    assert tab.inner_text("#runs-count") == "1 of 18 runs"
    tab.fill("#filter", "")
    tab.click("#runs .chip[data-filter='diverged']")
    assert tab.locator("#runs tbody tr").count() == 3
    tab.click("#runs .chip[data-filter='failed']")
    assert tab.locator("#runs tbody tr").count() == 4
    assert "CUDA out of memory" in tab.inner_text("#runs tbody")


def test_switching_a_variant_off_removes_its_line_and_its_crosses(open_page, report: Path) -> None:
    tab = open_page(report)
    shown = "() => [curveChart.lines.map((l) => l.label), curveChart.marks.length]"
    labels, crosses = tab.evaluate(shown)
    assert "gumbel" in labels and crosses == 3
    tab.uncheck("#curves input[data-variant='gumbel']")
    labels, crosses = tab.evaluate(shown)
    assert not any("gumbel" in label for label in labels) and crosses == 0
    tab.get_by_role("button", name="Show all variants").click()
    assert tab.evaluate(shown)[1] == 3


def test_a_mean_says_where_seeds_are_gone(open_page, report: Path) -> None:
    tab = open_page(report)
    counts = tab.evaluate("() => curveChart.lines.find((l) => l.label === 'gumbel' && l.n).n")
    assert counts[0] == 3 and counts[-1] == 1


def test_a_number_in_a_table_leads_to_its_runs_and_a_run_to_its_log(open_page, report: Path) -> None:
    tab = open_page(report)
    tab.click("#tables [data-cell='demo-main|topk|best/mAP']")
    rows = tab.locator("#panel table.behind tbody tr")
    assert rows.count() == 3
    assert tab.locator("#panel table.behind td:nth-child(3)").all_inner_texts() == [
        "50.0",
        "51.0",
        "52.0",
    ]
    rows.nth(1).get_by_role("button", name="Open").click()
    text = tab.inner_text("#panel")
    assert "last words of topk seed 1" in text and "NVIDIA H100" in text and "node01" in text
    assert "sdtps submit ablations/demo.yaml --variant topk --seed 1" in text
    assert "#run=demo" in tab.url
    tab.keyboard.press("Escape")
    assert not tab.locator("#panel").is_visible() and "#run=" not in tab.url


def test_the_runs_behind_a_number_can_be_shown_in_the_runs_table(open_page, report: Path) -> None:
    tab = open_page(report)
    tab.click("#tables [data-cell='demo-main|NA|best/mAP']")
    tab.get_by_role("button", name="Show these in the runs table").click()
    assert tab.inner_text("#runs-count") == "3 of 18 runs"
    states = tab.locator("#runs tbody tr")
    found = [states.nth(i).get_attribute("data-state") for i in range(3)]
    assert sorted(found) == ["completed", "completed", "missing"]


def test_a_link_opens_its_run(open_page, report: Path, collected: Collected) -> None:
    where = str(collected.runs["folder"].iloc[0]).removeprefix(str(collected.runs_dir) + "/")
    tab = open_page(report, f"#run={where}")
    assert tab.inner_text("#panel-title") == "topk, seed 0"


def test_hover_zoom_and_keyboard(open_page, report: Path) -> None:
    tab = open_page(report)
    canvas = tab.locator("#curves canvas[role='img']").first
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    tab.mouse.move(box["x"] + 400, box["y"] + 200)
    tab.wait_for_selector("#curves .tip:not([hidden])")
    assert "topk" in tab.inner_text("#curves .tip")
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


def test_logarithmic_axis_epochs_and_other_metrics(open_page, report: Path) -> None:
    tab = open_page(report)
    tab.check("#log-axis")
    assert tab.evaluate("() => curveChart.log")
    tab.select_option("#x-axis", "epoch")
    assert tab.evaluate("() => Math.max(...curveChart.lines.flatMap((l) => l.x))") == 2
    tab.select_option("#metric", "eval|mAP")
    assert tab.evaluate("() => curveChart.yLabel") == "mAP (%)"


def test_hostile_names_are_text(open_page, report: Path) -> None:
    tab = open_page(report)
    assert tab.title() == "SDTPS results"
    assert HOSTILE in tab.inner_text("#overview") and HOSTILE in tab.inner_text("#claims")
    assert tab.evaluate("() => document.scripts.length") == 2


def test_audit_and_claims_are_shown_and_filtered(open_page, report: Path) -> None:
    tab = open_page(report)
    assert "learns nothing" in tab.inner_text("#audit") and "exactly 0" in tab.inner_text("#audit")
    assert tab.locator("#claims tbody tr").count() == 2
    tab.click("#claims .chip >> text=refuted")
    assert tab.locator("#claims tbody tr").count() == 1
    assert "No patch pictures" in tab.inner_text("#patches")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable_in_both_themes(open_page, report: Path, scheme: str) -> None:
    """Contrast of body and muted text on its card is at least 4.5 : 1 (WCAG AA)."""
    tab = open_page(report, color_scheme=scheme)
    assert tab.get_attribute("html", "data-theme") == scheme
    script = """() => {
      const light = (c) => { const v = c.match(/[0-9.]+/g).slice(0, 3).map((x) => x / 255).map((x) => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4); return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2]; };
      const card = light(getComputedStyle(document.querySelector(".card")).backgroundColor);
      return ["body", ".muted", "thead th", ".verdict.refuted", ".verdict.supported"].map((s) => { const ink = light(getComputedStyle(document.querySelector(s)).color); return (Math.max(ink, card) + 0.05) / (Math.min(ink, card) + 0.05); });
    }"""  # noqa: E501
    assert min(tab.evaluate(script)) >= 4.5


def test_every_control_has_a_name(open_page, report: Path) -> None:
    tab = open_page(report)
    nameless = """() => [...document.querySelectorAll("button, input, select, canvas[role=img]")]
      .filter((n) => !(n.textContent.trim() || n.getAttribute("aria-label") || n.title
        || n.closest("label")))
      .map((n) => n.outerHTML)"""
    assert tab.evaluate(nameless) == []
    assert tab.evaluate("() => [...document.querySelectorAll('img')].every((i) => i.alt)")


def test_hundreds_of_runs_stay_fluid(open_page, tmp_path: Path, collected: Collected) -> None:
    data = payload(collected, tables={})
    one = data["studies"][0]
    template = data["runs"][0]
    for number in range(18, 900):
        data["runs"].append({**template, "where": f"demo/x/seed{number}", "seed": number, "variant": 0})
        one["variants"][0]["runs"].append(number)
    (tmp_path / "big.html").write_text(page("big", data))
    started = time.perf_counter()
    tab = open_page(tmp_path / "big.html")
    assert tab.inner_text("#runs-count") == "900 of 900 runs"
    assert time.perf_counter() - started < 10
    took = tab.evaluate("""() => { const t = performance.now();
      document.querySelector("#runs .sort[data-key='seed']").click();
      return performance.now() - t; }""")
    assert took < 1500


def test_half_precision_reads_on_a_logarithmic_axis_and_names_who_has_no_scale(
    open_page, tmp_path: Path
) -> None:
    study = planted_study("half", ["fp16", "bf16"], seeds=(0, 1))
    for variant in study.variants:
        for seed in study.seeds:
            folder = plant(tmp_path / "runs", study, variant, seed)
            rows = [json.loads(line) for line in folder.metrics_file.read_text().splitlines()]
            if variant == "fp16":
                rows = [
                    {**r, "amp_scale": 2.0 ** (16 - 3 * r["step"])} if r["kind"] == "train" else r
                    for r in rows
                ]
            folder.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command.write(collect([study], tmp_path / "runs", now=NOW), tmp_path / "report.html")
    tab = open_page(tmp_path / "report.html")
    assert not tab.is_checked("#log-axis")  # the loss falls by less than a factor of 50
    tab.select_option("#metric", "train|amp_scale")
    assert tab.is_checked("#log-axis")
    assert "amp_scale was not logged by bf16." in tab.inner_text("#curve-note")
    tab.uncheck("#log-axis")
    assert "try the logarithmic axis" in tab.inner_text("#curve-note")
    assert "not logged" in tab.inner_text("#curve-note")
    tab.select_option("#metric", "train|loss")
    assert "not logged" not in tab.inner_text("#curve-note")


def test_the_shaded_row_of_a_table_is_the_one_that_its_notes_explain(open_page, report: Path) -> None:
    tab = open_page(report)
    shaded = tab.locator("#tables tr.shaded").first
    assert shaded.inner_text().startswith("topk")
    assert "Grey: topk, the baseline." in tab.inner_text("#tables")
