"""Every study in the repository can be loaded and keeps the promises that studies make."""

from __future__ import annotations

from pathlib import Path

import pytest

from ablations.study.manifest import load_study

ROOT = Path(__file__).resolve().parents[2]
STUDIES = sorted((ROOT / "ablations").glob("*.yaml"))


@pytest.mark.parametrize("path", STUDIES, ids=lambda p: p.stem)
def test_every_study_loads_and_bears_its_files_name(path: Path) -> None:
    study = load_study(path)
    assert study.name == path.stem
    assert study.metrics
    assert study.tables or study.figures
    assert len({run.identity for run in study.runs()}) == len(study.runs())


def test_every_published_arrangement_is_a_variant_of_the_main_study() -> None:
    study = load_study(ROOT / "ablations" / "rgbnt201.yaml")
    found = {
        (s.enabled, s.score, s.no_grad, s.decision, s.temperature, s.noise_clamp, s.mask, s.aggregation)
        for s in (v.config.sdtps for v in study.variants.values())
    }
    published = {
        "without": (False, "eq3", "none", "topk", 1.0, None, "subtract_1e10", "single"),
        "released": (True, "attention_sum", "selection", "topk", 1.0, None, "none", "single"),
        "paper": (True, "eq3", "attention", "topk", 1.0, None, "none", "dual"),
        "v0": (True, "eq3", "none", "topk", 1.0, None, "none", "none"),
        "v1": (True, "eq3", "attention", "gumbel_ste", 1.0, None, "subtract_1e10", "single"),
        "v2": (True, "eq3", "none", "gumbel_ste", 1.0, None, "subtract_1e10", "single"),
        "v2 without Gumbel": (True, "eq3", "none", "topk", 1.0, None, "subtract_1e10", "single"),
        "v3": (True, "eq3", "none", "gumbel_ste", 5.0, 5.0, "subtract_1e10", "single"),
        "tau 10": (True, "eq3", "none", "gumbel_ste", 10.0, 5.0, "subtract_1e10", "single"),
        "mask not passed": (True, "eq3", "none", "gumbel_ste", 1.0, None, "none", "single"),
        "log mask": (True, "eq3", "none", "gumbel_ste", 1.0, None, "log", "single"),
        "v4": (True, "eq3", "none", "topk", 1.0, None, "importance", "single"),
    }
    assert {name for name, point in published.items() if point not in found} == set()
    placements = {(s.no_grad, s.decision) for s in (v.config.sdtps for v in study.variants.values())}
    assert {(kind, "topk") for kind in ("none", "cross", "attention", "selection")} <= placements
    assert "soft" in {v.config.sdtps.decision for v in study.variants.values()}


def test_the_readmes_example_is_a_study(tmp_path: Path) -> None:
    text = (ROOT / "ablations" / "README.md").read_text(encoding="utf-8")
    example = text.split("```yaml\n")[1].split("```")[0]
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "quick.yaml").write_text("task: reid\n")
    (tmp_path / "paper" / "reported").mkdir(parents=True)
    (tmp_path / "paper" / "reported" / "demo_reported.csv").write_text("method,mAP\nB,73.0\n")
    (tmp_path / "gumbel.yaml").write_text(example, encoding="utf-8")
    study = load_study(tmp_path / "gumbel.yaml")
    assert len(study.variants) == 4 + 3 * 2
