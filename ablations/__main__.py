"""python -m ablations: the verbs of `ablations.cli`."""

from __future__ import annotations

import sys

from ablations.cli import main

if __name__ == "__main__":
    sys.exit(main())
