"""Submit a study: every run that is missing, and none that exists.

    python submit.py ablations/STUDY.yaml --dry-run              see plan, cost and sbatch text
    python submit.py ablations/STUDY.yaml                        to SLURM, or here without one
    python submit.py ablations/STUDY.yaml --executor local --slots 2
    python submit.py ablations/STUDY.yaml --retry failed         and again what failed
    python submit.py ablations/STUDY.yaml --variant topk 'gumbel*' --seed 0

The manifest is checked whole first, and nothing is queued while it has a mistake. Afterwards:
python -m ablations status|watch|logs|retry|cancel ...; results: python -m analysis.
The steps are in `ablations.launch.submit.submit`.
"""

from __future__ import annotations

import argparse
import sys

from ablations.launch import submit as front
from sdtps.commandline import Parser


def main(words: list[str] | None = None) -> int:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    front.add_study_arguments(parser)
    front.add_submit_arguments(parser)
    arguments = parser.parse_args(words)
    return front.guarded(front.submit, arguments)


if __name__ == "__main__":
    sys.exit(main())
