"""python -m analysis import: other people's logs into run folders."""

from analysis.importers.command import add_arguments
from analysis.importers.command import run as command

__all__ = ["add_arguments", "command"]
