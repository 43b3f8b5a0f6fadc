"""Submit a study: `python submit.py STUDY ...` is `sdtps submit STUDY ...` (see README.md)."""

import sys

from ablations.cli import main

if __name__ == "__main__":
    sys.argv.insert(1, "submit")
    sys.exit(main())
