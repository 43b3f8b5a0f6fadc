"""python -m ablations: the command `sdtps`."""

import sys

from ablations.cli import main

sys.exit(main())
