"""What goes into the report: nothing lost in thinning, nothing that data could turn into script."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.report import payload as payload_of
from analysis.report.payload import embedded, log_tail, page, payload
from analysis.results.curves import curves
from analysis.runs.collect import Collected, collect
from sdtps.run.folder import RunFolder
from tests.analysis.report.conftest import HOSTILE


def text_of(collected: Collected) -> str:
    return b"".join(page(payload(collected, tables={}))).decode()


def test_means_are_those_of_the_frame_point_by_point(collected: Collected) -> None:
    """What the report draws is what the figures draw: the frame's numbers, to five digits."""
    (study,) = collected.studies
    data = payload(collected, tables={})
    variants = [v["name"] for v in data["studies"][0]["variants"]]
    for key, lines in data["series"].items():
        _, kind, metric = key.split("|")
        means = {variants[m["variant"]]: m for m in lines["means"]}
        found = curves(collected, study, metric, kind)
        for curve in (c for c in found if sum(len(s.step) > 0 for s in c.seeds) > 1):
            mean = means[curve.variant]
            np.testing.assert_allclose(mean["y"], curve.mean, rtol=1e-4)
            assert mean["n"].tolist() == curve.n.tolist()
            assert mean["x"].tolist() == curve.step.tolist()


def test_every_curve_of_a_large_report_has_few_points(collected: Collected, monkeypatch) -> None:
    monkeypatch.setattr(payload_of, "CURVE_BUDGET", 1)
    series = payload(collected, tables={})["series"].values()
    assert max(len(line["x"]) for lines in series for line in lines["seeds"] + lines["means"]) < 20


TEXTS = st.text("<>&/!-'\"\\\u2028\u2029\0\n a尺")


@given(
    st.recursive(TEXTS | st.integers() | st.none(), lambda x: st.lists(x) | st.dictionaries(TEXTS, x))
)
def test_embedded_data_is_the_same_data_and_holds_no_markup(value: object) -> None:
    text = embedded({"value": value})
    assert json.loads(text) == {"value": value}
    assert not re.search("[<>&\u2028\u2029]", text)


def test_names_cannot_leave_their_place(collected: Collected) -> None:
    text = text_of(collected)
    assert text.count("</script>") == 2
    assert HOSTILE not in text


def test_a_store_that_was_copied_gives_the_same_report(tmp_path: Path, collected: Collected) -> None:
    shutil.copytree(collected.runs_dir, tmp_path / collected.runs_dir.name)
    copied = collect(collected.studies, tmp_path / collected.runs_dir.name)
    assert text_of(copied) == text_of(collected)


def test_a_non_finite_number_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        embedded({"value": float("nan")})


def test_nothing_in_the_page_points_outside(collected: Collected) -> None:
    text = text_of(collected)
    text = text.replace('"http://www.w3.org/2000/svg"', "")  # the name space of pictures
    assert not re.search(r"""(?:src|href)\s*=\s*["'](?!#|data:)|https?://|@import|url\((?!#)""", text)


def test_log_tails_are_whole_lines_without_colours(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.log_file.write_bytes(b"x" * 5000 + b"\nlast \x1b[31mwords\x1b[0m\r\n")
    assert log_tail(folder, 1000) == "last words"
    folder.log_file.unlink()
    folder.submitit_folder.mkdir()
    (folder.submitit_folder / "7_0_log.err").write_text("Traceback\n")
    assert log_tail(folder, 1000) == "Traceback"


def test_commands_name_exactly_the_run_whatever_it_is_called(collected: Collected) -> None:
    data = payload(collected, tables={})
    missing = next(r for r in data["runs"] if r["state"] == "planned")["rerun"]
    place = ["--runs-dir", collected.runs_dir.name]
    assert shlex.split(missing)[-6:] == ["--variant", "NA", "--seed", "1", *place]
    hostile = next(r for r in data["runs"] if "{x}" in r["rerun"])["rerun"].splitlines()
    assert hostile[0] == f"git checkout {'a' * 40}"
    assert shlex.split(hostile[-1])[-6:-2] == ["--variant", "w/o_msa & 5% #1 {x}~^\\", "--seed", "0"]
