"""What goes into the report: nothing lost in thinning, nothing that data could turn into script."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.report import command, logs, series
from analysis.report.audit import audit_parts
from analysis.report.page import embedded, page
from analysis.report.payload import payload
from analysis.report.thin import kept
from analysis.runs.collect import Collected
from sdtps.run.folder import RunFolder
from tests.analysis.report.conftest import HOSTILE, SPIKE, SPIKE_STEP

VALUES = st.lists(st.floats(allow_nan=True, allow_infinity=False, width=32), min_size=1, max_size=400)


@given(VALUES, st.integers(4, 60))
def test_thinning_keeps_ends_extremes_and_gaps(values: list[float], most: int) -> None:
    y = np.array(values)
    index = kept(y, most)
    assert index[0] == 0 and index[-1] == len(y) - 1
    assert np.all(np.diff(index) > 0)
    if np.isfinite(y).any():
        assert np.nanmax(y[index]) == np.nanmax(y) and np.nanmin(y[index]) == np.nanmin(y)
    assert np.isfinite(y[index]).all() == np.isfinite(y).all()
    assert len(index) <= max(most, 8) * 2 + 8


def curve(seed: int, steps: list[int], values: list[float]) -> series.Curve:
    return series.Curve("v", seed, np.array(steps), np.array(values))


def test_a_mean_counts_seeds_and_does_not_jump_where_one_was_not_logged() -> None:
    a = curve(0, [1, 2, 3, 4], [1.0, 2.0, 3.0, 4.0])
    b = curve(1, [1, 3, 4], [3.0, 5.0, np.nan])
    mean = series.mean_over_seeds([a, b])
    assert mean is not None
    assert mean.step.tolist() == [1, 3, 4]  # step 2: seed 1 trained on and was not logged
    assert mean.mean.tolist() == [2.0, 4.0, 4.0]
    assert mean.count.tolist() == [2, 2, 1]
    assert (mean.low.tolist(), mean.high.tolist()) == ([1.0, 3.0, 4.0], [3.0, 5.0, 4.0])


def test_one_seed_has_no_mean() -> None:
    assert series.mean_over_seeds([curve(0, [1], [1.0])]) is None


def test_a_spike_of_one_step_is_in_the_page(collected: Collected) -> None:
    data = payload(collected, tables={})
    seeds = data["series"]["0|train|loss"]["seeds"]
    spiked = next(s for s in seeds if max(v for v in s["y"] if v is not None) > SPIKE)
    assert spiked["x"][int(np.argmax([v or 0 for v in spiked["y"]]))] == SPIKE_STEP


def test_a_diverged_run_is_null_at_its_end_and_has_no_result(collected: Collected) -> None:
    data = payload(collected, tables={})
    number, run = next((i, r) for i, r in enumerate(data["runs"]) if r["state"] == "diverged")
    assert run["best"] == {} and run["epoch"] == 8
    line = next(s for s in data["series"]["0|train|loss"]["seeds"] if s["run"] == number)
    assert line["y"][-1] is None


def test_every_planned_run_is_there(collected: Collected) -> None:
    data = payload(collected, tables={})
    assert len(data["runs"]) == 18
    assert sum(len(v["runs"]) for v in data["studies"][0]["variants"]) == 18
    assert {r["state"] for r in data["runs"]} == {"completed", "diverged", "failed", "missing"}


@given(
    st.recursive(
        st.text() | st.integers() | st.none(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_embedded_data_is_the_same_data_and_holds_no_markup(value: object) -> None:
    text = embedded({"value": value})
    assert json.loads(text) == {"value": value}
    assert not re.search("[<>&\u2028\u2029]", text)


def test_names_cannot_leave_their_place(collected: Collected) -> None:
    text = page('a <b> & "c" << script >>', payload(collected, tables={}))
    assert text.count("</script>") == 2
    assert HOSTILE not in text
    assert "<title>a &lt;b&gt; &amp; &quot;c&quot; &lt;&lt; script &gt;&gt;</title>" in text


def test_the_same_runs_give_the_same_bytes(collected: Collected) -> None:
    assert page("t", payload(collected, tables={})) == page("t", payload(collected, tables={}))


def test_a_non_finite_number_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        embedded({"value": float("nan")})


def test_nothing_in_the_page_points_outside(collected: Collected) -> None:
    text = page("t", payload(collected, tables={}))
    assert not re.search(r"""(?:src|href)\s*=\s*["'](?!#|data:)|https?://|@import|url\(""", text)


def test_log_tails_are_whole_lines_without_colours(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.log_file.write_bytes(b"x" * 5000 + b"\nlast \x1b[31mwords\x1b[0m\r\n")
    assert logs.tail(folder, 1000) == "last words"
    folder.log_file.unlink()
    folder.submitit_folder.mkdir()
    (folder.submitit_folder / "7_0_log.err").write_text("Traceback\n")
    assert logs.tail(folder, 1000) == "Traceback"


def test_a_picture_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("<svg>")
    with pytest.raises(command.ReportError, match="not a PNG"):
        command.picture(tmp_path / "a.png")


def test_commands_name_exactly_the_run_whatever_it_is_called(collected: Collected) -> None:
    data = payload(collected, tables={})
    missing = next(r for r in data["runs"] if r["state"] == "missing")["rerun"]
    place = ["--runs-dir", str(collected.runs_dir)]
    assert shlex.split(missing)[-6:] == ["--variant", "NA", "--seed", "1", *place]
    hostile = next(r for r in data["runs"] if "{x}" in r["rerun"])["rerun"].splitlines()
    assert hostile[0] == f"git checkout {'a' * 40}"
    assert shlex.split(hostile[-1])[-6:-2] == ["--variant", "w/o_msa & 5% #1 {x}~^\\", "--seed", "0"]


def test_an_audit_becomes_words(tmp_path: Path) -> None:
    rows = [
        {"variant": v, "when": "initial", "part": "heads", "state": s, "norm": n, "ratio": r}
        for v, s, n, r in (
            ("a", "finite", 0.5, 1.0),
            ("b", "finite", 7.0, 14.0),
            ("c", "none", None, None),
        )
    ]
    variants = [
        {
            **{"variant": name, "label": name, "patch_cosine": None, "without_gradient": 0.25},
            "scaler_skipped": None,
        }
        for name in "abc"
    ]
    document = {
        **{"study": "s", "baseline": "a", "findings": []},
        **{"variants": variants, "gradients": rows},
    }
    findings, gradients = audit_parts(document)
    assert findings["notes"] == ["Nothing was found."]
    assert gradients["columns"] == ["Variant", "Heads", "Patch cosine", "Untrained (%)"]
    assert [row[:2] for row in gradients["rows"]] == [["a", "1.0"], ["b", "14"], ["c", "no path"]]
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(command.ReportError, match="not an audit"):
        command.write(None, tmp_path / "r.html", audits=[tmp_path / "a.json"])  # type: ignore[arg-type]
