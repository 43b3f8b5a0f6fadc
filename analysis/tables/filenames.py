"""What generated tables and figures are called."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ablations.study.model import Study


def file_name(study: Study, name: str) -> str:
    """STUDY-NAME, or NAME where it says the study already."""
    return name if name.startswith(study.name) else f"{study.name}-{name}"
