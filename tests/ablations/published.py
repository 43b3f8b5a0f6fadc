"""DeMo2's train_net.py as a stand-in: it copies the published log of its options, and ends as that did."""

from __future__ import annotations

import csv
import os
import shutil
import sys
from pathlib import Path


def main(words: list[str]) -> int:
    """The words of the command line that ablations/demo2_*.yaml write."""
    config = words[words.index("--config_file") + 1]
    given = words[words.index("--exp_name") + 2 :]
    options = given[: given.index("SOLVER.SEED")]
    seed, output = given[given.index("SOLVER.SEED") + 1], Path(given[given.index("OUTPUT_DIR") + 1])
    with Path(os.environ["PUBLISHED_TABLE"]).open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    (row,) = [
        r
        for r in rows
        if (r["config"], r["options"].split(), r["seed"]) == (config, options, seed)
        and r["commit"] == Path.cwd().name
    ]
    log = Path(os.environ["PUBLISHED_LOGS"]) / Path(row["log"]).relative_to("logs")
    output.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(log, output / "train_log.txt")
    return 0 if row["mAP"] else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
