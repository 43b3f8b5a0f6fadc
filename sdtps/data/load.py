"""Which reader reads a run's data: a benchmark's folders, a table of one's own, or generated images."""

from __future__ import annotations

from pathlib import Path

from sdtps.config import ReidConfig, RetrievalConfig
from sdtps.data.captions import CaptionSplit, read_split, repeated
from sdtps.data.generated import generate_captions, generate_rgbnt201
from sdtps.data.images import raise_mistakes
from sdtps.data.own import read_own_captions, read_own_reid
from sdtps.data.reid_folders import ReidDataset, read_dataset
from sdtps.run.locations import cache_root, data_file, data_root


def load_reid_data(config: ReidConfig, *, trains: bool = True) -> ReidDataset:
    """The data set of a run, read or generated.

    Args:
        trains: whether a training split is needed; a table of one's own may hold test images alone.
    """
    data = config.data
    if data.file is not None:
        return read_own_reid(data_file(data.root, data.file), trains=trains)
    if data.generate is None:
        return read_dataset(data.dataset, data_root(data.root))
    parent = cache_root() if data.root is None else Path(data.root)
    root = generate_rgbnt201(data.generate, data.height, data.width, parent)
    return read_dataset(data.dataset, root)


def split_names(config: RetrievalConfig) -> list[str]:
    """Those that a run of this configuration trains on, selects on and tests on."""
    dev = ["dev"] if config.eval.select_on == "dev" else []
    return ["train", config.eval.test_split, *dev]


def load_splits(config: RetrievalConfig, names: list[str]) -> tuple[dict[str, CaptionSplit], Path]:
    """The splits of a run, and the folder they come from."""
    data = config.data
    image_root = None if data.image_root is None else Path(data.image_root).expanduser()
    modes = {
        "train": {config.matching.dense_text},
        "dev": {config.matching.eval_dense_text},
        "test": {config.matching.eval_dense_text, *config.eval.also_dense_text},
    }
    looks_at_dense = config.matching.axis.dense
    dense = {name: looks_at_dense and modes.get(name, modes["test"]) != {"none"} for name in names}
    if data.file is not None:
        file = data_file(data.root, data.file)
        splits = read_own_captions(
            file, names, dataset=data.dataset, image_root=image_root, dense=dense
        )
        raise_mistakes("images", [text for _, _, text in repeated(splits)])
        return splits, file.parent
    if data.generate is not None:
        parent = cache_root() if data.root is None else Path(data.root)
        root = generate_captions(data.generate, parent)
    else:
        root = data_root(data.root)
        if not (root / "id_mapping.json").is_file() and (root / data.dataset).is_dir():
            root = root / data.dataset
    splits = {}
    for name in names:
        written = "test" if data.generate is not None and name == "testall" else name
        splits[name] = read_split(data.dataset, written, root, image_root=image_root, dense=dense[name])
    # Another file of the same bytes is told only: users of a benchmark cannot change it.
    raise_mistakes("images", [text for first, image, text in repeated(splits) if first == image])
    return splits, root
