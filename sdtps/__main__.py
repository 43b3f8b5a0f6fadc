"""python -m sdtps: the verbs of `sdtps.cli`."""

from __future__ import annotations

import sys

from sdtps.cli import main

if __name__ == "__main__":
    sys.exit(main())
