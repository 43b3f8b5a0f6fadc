"""A study with everything that can go wrong in it, and its report in a headless Chromium."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from planted import plant, planted_study

from ablations.study.schema import TableSpec
from analysis.runs.collect import Collected, collect

HOSTILE = "</script><script>document.title='owned'</script>"
NAMES = ("topk", "none", "NA", "w/o_msa & 5% #1 {x}~^\\", HOSTILE, "gumbel")
WINDOW: dict[str, Any] = {"viewport": {"width": 1280, "height": 900}, "offline": True}
PATIENCE = 120_000  # milliseconds that a busy machine may take to open a page


@pytest.fixture(scope="session")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Collected:
    runs = tmp_path_factory.mktemp("runs")
    tables = (TableSpec(name="main"), TableSpec(name="loo", kind="leave_one_out"))
    study = planted_study("demo", NAMES, seeds=(0, 1, 2), tables=tables, title=f"Hostile {HOSTILE}")
    rng = np.random.default_rng(0)
    for number, variant in enumerate(study.variants):
        for seed in study.seeds:
            if variant == "NA" and seed == 1:
                continue

            def loss(step: int, number: int = number, seed: int = seed) -> float:
                spike = 40.0 if (number, seed, step) == (0, 0, 77) else 0.0
                return 3 * math.exp(-step / 60) + 0.3 + 0.05 * number + 0.01 * seed + spike

            more: dict[str, Any] = {}
            if variant == "gumbel":
                more = {
                    "state": "diverged",
                    "stop": (8 + seed, 76 + 10 * seed),
                    "reason": "loss is nan",
                }
            if variant == "none" and seed == 2:
                more = {"state": "failed", "stop": (3, 25), "reason": "CUDA out of memory"}
            base = 0.5 + 0.01 * seed + 0.03 * number
            scores = {"mAP": [base - 0.1, base], "rank1": [base, base + 0.1]}
            folder = plant(
                runs, study, variant, seed, scores=scores, loss=loss, steps_per_epoch=50, **more
            )
            identity = np.arange(40) // (3 if variant == HOSTILE else 2)
            ranks = rng.integers(1, 400, 40) % np.array([2, 400] * 20)
            folder.write_queries({"AP": rng.random(40), "rank": ranks, "identity": identity})
            folder.log_file.write_text(f"first line\nlast words of {variant} seed {seed}\n")
    return collect([study], runs)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Headless Chromium: `SDTPS_CHROMIUM`, or the one on the PATH, or playwright's own."""
    from playwright.sync_api import Error, sync_playwright

    own = os.environ.get("SDTPS_CHROMIUM")
    path = own or next(
        (p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None
    )
    with sync_playwright() as playwright:
        try:
            started = playwright.chromium.launch(
                executable_path=path, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
            )
        except Error as error:
            pytest.skip(f"no Chromium: {error.message.splitlines()[0]}")
        yield started
        started.close()


@pytest.fixture(scope="session")
def window(browser: Any) -> Any:
    """Where pages without options open: a window of its own for each would take most of the time."""
    return browser.new_context(**WINDOW)


@pytest.fixture
def open_page(browser: Any, window: Any) -> Iterator[Any]:
    """Opens a file; after the test there must have been no error and no request but the file's own."""
    opened: list[Any] = []
    complaints: list[str] = []

    def open_(path: Path, fragment: str = "", **options: Any) -> Any:
        context = browser.new_context(**{**WINDOW, **options}) if options else window
        tab = context.new_page()
        tab.set_default_timeout(PATIENCE)
        opened.append(context if options else tab)
        tab.on("console", lambda m: complaints.append(f"{m.type}: {m.text}"))
        tab.on("pageerror", lambda e: complaints.append(str(e)))
        own = path.absolute().as_uri()
        tab.on(
            "request",
            lambda r: (
                r.url.split("#")[0] in (own,) or r.url.startswith("data:") or complaints.append(r.url)
            ),
        )
        tab.goto(own + fragment)
        return tab

    yield open_
    for each in opened:
        each.close()
    assert not complaints
