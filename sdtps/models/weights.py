"""Pretrained weights from a path. What does not fit exactly is an error that names it.

Layouts read: a safetensors file, a PyTorch state dict (alone or in a training checkpoint), a
TorchScript archive (OpenAI's ViT-B-16.pt is one), or a Hugging Face folder with model.safetensors or
pytorch_model.bin. Nothing is downloaded. No torch is imported before tensors are read.
"""

from __future__ import annotations

import os
import pickle
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdtps.data.contents import file_digest, values_digest
from sdtps.system.errors import WeightsError

if TYPE_CHECKING:
    from torch import Tensor, nn

FOLDER_FILES = ("model.safetensors", "pytorch_model.bin")
VOCABULARIES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.txt", "vocab.json", "merges.txt", "spiece.model", "tokenizer.model"),
)
NAMES_SHOWN = 8
# What frameworks put in front of every name: DataParallel, torch.compile, Lightning and the like.
WRAPPING = ("module.", "_orig_mod.", "model.")
# What lies where weights should, by its beginning.
NO_WEIGHTS = {
    b"version https://git-lfs": "a Git LFS pointer, not the weights; fetch them with `git lfs pull`",
    b"<": "a web page (HTML), not weights: open it in a browser to see why, and download again",
    b"{": "a text file (JSON), not weights; download again",
}


def find_weights(path: str) -> Path:
    """The file behind `backbone.weights`: as given, or inside the folder SDTPS_WEIGHTS.

    Raises:
        WeightsError: no such file.
    """
    candidates = [Path(path).expanduser()]
    if "SDTPS_WEIGHTS" in os.environ and not candidates[0].is_absolute():
        candidates.append(Path(os.environ["SDTPS_WEIGHTS"]).expanduser() / path)
    for candidate in candidates:
        if candidate.is_file():
            return candidate
        for name in FOLDER_FILES:
            if (candidate / name).is_file():
                return candidate / name
    raise WeightsError(
        f"weights '{path}' were not found at {' or '.join(str(c.absolute()) for c in candidates)}. "
        "Give a file, a folder with model.safetensors or pytorch_model.bin, set SDTPS_WEIGHTS to the "
        "folder that holds it, or ask for untrained weights with the word 'random'."
    )


def weights_digest(file: Path, part: str) -> str:
    """The digest of a file of weights; of a text encoder with the vocabulary beside it."""
    if part != "text_encoder":
        return file_digest(file)
    files = [file, *(file.parent / name for name in VOCABULARIES)]
    return values_digest(*(f"{f.name} {file_digest(f)}" for f in files if f.is_file()))


def initial_file(start: str) -> Path:
    """The weights file behind `train.init`. Raises WeightsError where it is not there."""
    from sdtps.run.folder import RunFolder

    place = Path(start).expanduser()
    file = RunFolder(place).weights_file("best") if place.is_dir() else place
    if not file.is_file():
        what = "there is no such file"
        if place.is_dir():
            what = "has no best.safetensors: the run has not completed"
        raise WeightsError(f"train.init: {place.absolute()}: {what}")
    return file


def file_mistake(path: Path) -> str | None:
    """What is wrong with a weight file by its first bytes and its size; None where it may be read."""
    from safetensors import SafetensorError, safe_open

    with path.open("rb") as stream:
        start = stream.read(512)
    if not start:
        return "is an empty file; copy or download it again"
    if _is_safetensors(start):
        try:
            with safe_open(path, "numpy"):
                return None
        except SafetensorError as error:
            return f"is truncated or damaged ({error}); copy or download it again"
    text = start.lstrip(b"\xef\xbb\xbf \r\n\t")
    found = [what for beginning, what in NO_WEIGHTS.items() if text.startswith(beginning)]
    if found:
        return f"is {found[0]}"
    if start.startswith(b"PK\x03\x04") and not zipfile.is_zipfile(path):
        return "is truncated: a PyTorch archive without its end; copy or download it again"
    return None


def _is_safetensors(start: bytes) -> bool:
    return start[8:9] == b"{" and int.from_bytes(start[:8], "little") < 2**27


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a weight file by name, on the CPU; unpacked from a training checkpoint.

    Raises:
        WeightsError: not a weight file (with what it is), or several sets of weights in one.
    """
    import torch

    wrong = file_mistake(path)
    if wrong is not None:
        raise WeightsError(f"{path}: {wrong}")
    with path.open("rb") as stream:
        start = stream.read(16)
    try:
        if _is_safetensors(start):
            from safetensors.torch import load_file

            return load_file(path)
        if _is_torchscript(path):
            return dict(torch.jit.load(path, map_location="cpu").state_dict())
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the readers raise whatever a broken byte leads them to
        wrong = f"not a readable weight file ({type(error).__name__}: {str(error)[:200]})"
        if isinstance(error, EOFError) or "truncated" in str(error):
            wrong = "is truncated; copy or download it again"
        elif isinstance(error, pickle.UnpicklingError):  # torch's own text advises to read it unsafely
            wrong = (
                "not a readable weight file: no PyTorch file, or one with more than tensors in plain "
                "containers, which could run code while it is read. Save the model's state_dict() "
                "alone, or as safetensors"
            )
        raise WeightsError(f"{path}: {wrong}") from None
    tensors = {
        name: value
        for name, value in _unpacked(content, path).items()
        if isinstance(value, torch.Tensor)
    }
    for prefix in WRAPPING:
        if all(name.startswith(prefix) for name in tensors):
            tensors = {name.removeprefix(prefix): value for name, value in tensors.items()}
    return tensors


def _unpacked(content: Any, path: Path) -> dict[str, Any]:
    """The one set of named tensors in a checkpoint, however deep: {"model_state_dict": ...} and so on.

    Raises:
        WeightsError: there is none, or there are several (a model and its moving average, say).
    """
    found = dict(_sets(content, ""))
    largest = max(map(len, found.values()), default=0)
    # A loss or a normaliser that is saved beside the model has a few tensors.
    found = {name: tensors for name, tensors in found.items() if len(tensors) > largest / 10}
    if len(found) > 1:
        raise WeightsError(
            f"{path}: holds several sets of weights: {', '.join(found)}. Save the one that is wanted "
            "alone: torch.save(torch.load(FILE)[NAME], NEW_FILE)"
        )
    if found:
        return next(iter(found.values()))
    if isinstance(content, dict) and any(hasattr(value, "shape") for value in content.values()):
        return content
    raise WeightsError(f"{path}: holds no named tensors")


def _sets(content: Any, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(dotted name, tensors by name) for each dictionary of tensors; optimisers number theirs."""
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        return
    if content and all(hasattr(value, "shape") for value in content.values()):
        yield name or "state_dict", content
    for key, value in content.items():
        yield from _sets(value, f"{name}.{key}" if name else key)


def _is_torchscript(path: Path) -> bool:
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any("/code/" in name for name in archive.namelist())


def load_exactly(model: nn.Module, tensors: dict[str, Tensor], source: str) -> None:
    """Copy `tensors` into `model`; every one must have a place and every place a tensor.

    Raises:
        WeightsError: missing, unexpected or mismatched tensors, or values that are not finite; all.
    """
    wanted = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    found = {name: tuple(value.shape) for name, value in tensors.items()}
    mismatched = [
        f"{name} is {found[name]}, the model has {wanted[name]}"
        for name in wanted
        if name in found and found[name] != wanted[name]
    ]
    whole = {name for name, value in model.state_dict().items() if value.is_floating_point()}
    integers = [n for n in whole & found.keys() if not tensors[n].is_floating_point()]
    refuse(
        f"{source} does not fit the model",
        {
            "missing": [name for name in wanted if name not in found],
            "unexpected": [name for name in found if name not in wanted],
            "of another shape": mismatched,
            "with NaN or infinite values": not_finite(tensors),
            "of integers: quantised weights, whose scales are not read": sorted(integers),
        },
    )
    model.load_state_dict(tensors)


def not_finite(content: Any, name: str = "") -> list[str]:
    """Dotted names of the tensors in nested containers that hold NaN or infinite values."""
    import torch

    if isinstance(content, torch.Tensor):
        broken = content.is_floating_point() and not content.isfinite().all()
        return [name] if broken else []
    if isinstance(content, (list, tuple)):
        content = dict(enumerate(content))
    inside = content.items() if isinstance(content, Mapping) else ()
    return [bad for k, value in inside for bad in not_finite(value, f"{name}.{k}".lstrip("."))]


def refuse(what: str, wrong: dict[str, list[str]]) -> None:
    """Raises WeightsError where there are names under any of the kinds of mistakes; all are told."""
    found = []
    for kind, names in wrong.items():
        more = f", ... and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
        if names:
            found.append(f"{len(names)} {kind}: {', '.join(names[:NAMES_SHOWN])}{more}")
    if found:
        raise WeightsError("\n  ".join([f"{what}:", *found]))
