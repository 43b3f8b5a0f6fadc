"""The modules as a library: lazily imported, and the documented examples run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import sdtps

DOCUMENT = Path(__file__).parents[2] / "docs" / "library.md"


def test_every_documented_example_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 4
    exec("\n".join(blocks), {})
    for name in sdtps.__all__:
        assert any(f"{name}(" in block for block in blocks), f"no example shows {name}"


def test_importing_the_package_imports_no_torch() -> None:
    code = (
        "import sys, sdtps, sdtps.config.axes; assert 'torch' not in sys.modules\n"
        "from sdtps import CrossNet, MultiModal, TokenAggregation, TokenSelection"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Crossnet'"):
        sdtps.Crossnet  # noqa: B018
