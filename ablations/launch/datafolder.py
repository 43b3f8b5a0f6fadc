"""Whether the data set lies where the runs will look for it, and is whole: read before they start.

A data root that exists and holds something else would otherwise fail every run, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from ablations.study.model import RunSpec
from sdtps.config import Config, ReidConfig
from sdtps.errors import DataError

VARIABLE = "SDTPS_DATA_ROOT"


def mistakes(runs: Iterable[RunSpec]) -> tuple[list[str], list[str]]:
    """(folders that are not to be seen here, what is wrong with those that are), each once.

    Generated data have nothing to check: a run makes them.
    """
    unseen: dict[str, None] = {}
    wrong: dict[str, None] = {}
    read: set[tuple[object, ...]] = set()
    for config in {run.variant: run.config for run in runs}.values():
        root = config.data.root
        if config.data.generate is not None:
            continue
        if root is None:
            unseen[f"no data root: give --data-root or set {VARIABLE}"] = None
        elif not Path(root).expanduser().is_dir():
            unseen[f"{root} is not visible here"] = None
        else:
            asked, reader = _reading(config)
            if asked in read:
                continue
            read.add(asked)
            try:
                reader()
            except DataError as error:
                wrong[str(error)] = None
    return list(unseen), list(wrong)


def _reading(config: Config) -> tuple[tuple[object, ...], Callable[[], object]]:
    """What decides on the files that a run reads, and a function that reads their names as it does."""
    data = config.data
    if isinstance(config, ReidConfig):
        from sdtps.data.reid_folders import read_dataset
        from sdtps.run.locations import data_root

        return (data.dataset, data.root), lambda: read_dataset(data.dataset, data_root(data.root))
    from sdtps.data.captions import load_splits, split_names

    names = split_names(config)
    matching = config.matching
    texts = (matching.form == "laps", matching.dense_text, matching.eval_dense_text)
    also = config.eval.also_dense_text
    asked = (data.dataset, data.root, config.data.image_root, *names, *texts, *also)
    return asked, lambda: load_splits(config, names)
