"""The splits that a retrieval run reads, of a benchmark or generated. No torch is imported here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sdtps.config import RetrievalConfig
from sdtps.data.captions import CaptionSplit, read_split
from sdtps.run.locations import cache_root, data_root


def split_names(config: RetrievalConfig) -> list[str]:
    """Those that a run of this configuration trains on, selects on and tests on."""
    dev = ["dev"] if config.eval.select_on == "dev" else []
    return ["train", config.eval.test_split, *dev]


def load_splits(
    config: RetrievalConfig, names: list[str]
) -> tuple[dict[str, CaptionSplit], Path, dict[str, Any] | None]:
    """The splits of a run, the folder they come from, and how it was generated (None: it was not)."""
    data = config.data
    generated = None
    if data.generate is not None:
        from sdtps.data.generated_captions import generate_captions, generated_name

        parent = cache_root() if data.root is None else Path(data.root)
        root = generate_captions(data.generate, parent / generated_name(data.generate))
        generated = data.generate.model_dump()
        names = ["test" if name == "testall" else name for name in names]
    else:
        root = data_root(data.root)
        if not (root / "id_mapping.json").is_file() and (root / data.dataset).is_dir():
            root = root / data.dataset
    image_root = None if data.image_root is None else Path(data.image_root).expanduser()
    modes = {
        "train": {config.matching.dense_text},
        "dev": {config.matching.eval_dense_text},
        "test": {config.matching.eval_dense_text, *config.eval.also_dense_text},
    }
    splits = {}
    for name in names:
        dense = config.matching.form != "laps" and modes.get(name, modes["test"]) != {"none"}
        splits[name] = read_split(data.dataset, name, root, image_root=image_root, dense=dense)
    if data.generate is not None and config.eval.test_split == "testall":
        splits["testall"] = splits.pop("test")
    return splits, root, generated
