"""python -m sdtps VERB: one run, images to run on, published weights. The command: `ablations.cli`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

VERBS = {
    "run": ("sdtps.training.attempt", "train the run in a folder, or resume it", "models"),
    "evaluate": (
        "sdtps.trained.evaluate",
        "score a trained run again: other conditions, other data",
        "models",
    ),
    "embed": ("sdtps.trained.embed", "write a trained run's features of any pictures", "models"),
    "rank": (
        "sdtps.trained.rank",
        "write a page with a trained run's best matches for each query",
        "models",
    ),
    "backbones": (
        "sdtps.models.checkpoints",
        "list the image encoders and text towers in folders",
        "models",
    ),
    "convert": ("sdtps.models.convert", "convert published weights to ours, or back", "models"),
}


def main(words: Sequence[str] | None = None) -> int:
    from sdtps.system import commandline

    return commandline.run("python -m sdtps", VERBS, "Single runs, data and weights.", words)


if __name__ == "__main__":
    sys.exit(main())
