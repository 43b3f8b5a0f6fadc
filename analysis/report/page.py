"""One self-contained HTML file: styles, scripts and data inside, nothing fetched.

The page's content security policy allows its own script by hash and pictures inside the file, so data
cannot become script, whatever a variant is called. A live page may ask its own server for data, too.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ASSETS = Path(__file__).parent / "assets"
# In the order in which they use each other.
SCRIPTS = (
    *("dom.js", "chart.js", "curves.js", "panel.js"),
    *("compare.js", "runs.js", "sections.js", "main.js"),
)


def page(title: str, data: Mapping[str, Any]) -> str:
    """The report as HTML. The same data give the same bytes: no date is in it.

    Args:
        data: see `payload`; with `live` true the page asks `data.json` beside it for news.

    Raises:
        ValueError: a non-finite number in `data`.
    """
    style = _asset("report.css")
    script = '"use strict";\n' + "\n".join(_asset(name) for name in SCRIPTS)
    parts = {
        "title": html.escape(title),
        "style": style,
        "style_hashes": _hash(style),
        "script": script,
        "script_hash": _hash(script),
        "connect": "connect-src 'self'; " if data.get("live") else "",
        "data": embedded(data),
    }
    # Split once at the marks, so that no part can hold a mark of another.
    pieces = _asset("page.html").split("<< ")
    text = pieces[0]
    for piece in pieces[1:]:
        name, rest = piece.split(" >>", 1)
        text += parts[name] + rest
    return text


def embedded(data: Mapping[str, Any]) -> str:
    """JSON that is safe inside a script element: no `<`, no `&`, no line separators of JavaScript."""
    text = json.dumps(data, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
