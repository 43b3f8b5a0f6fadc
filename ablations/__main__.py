"""python -m ablations: the verbs of `ablations.cli`."""

import sys

from ablations.cli import room

sys.exit(room())
