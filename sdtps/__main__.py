"""python -m sdtps: the verbs of `sdtps.cli`."""

import sys

from sdtps.cli import main

sys.exit(main())
