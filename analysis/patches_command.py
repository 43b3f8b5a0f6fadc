"""python -m analysis patches: pictures of the patches that runs kept, dropped and aggregated."""

from analysis.patches.command import add_arguments
from analysis.patches.command import run as command

__all__ = ["add_arguments", "command"]
