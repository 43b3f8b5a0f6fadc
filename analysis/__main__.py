"""python -m analysis: the verbs of `analysis.cli`."""

from __future__ import annotations

import sys

from analysis.cli import main

if __name__ == "__main__":
    sys.exit(main())
