"""python -m analysis: the verbs of `analysis.cli`."""

import sys

from analysis.cli import main

sys.exit(main())
