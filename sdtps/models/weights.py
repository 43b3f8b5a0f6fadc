"""Pretrained weights from a path. What does not fit exactly is an error that names it.

Layouts read: a safetensors file, a PyTorch state dict, a TorchScript archive (OpenAI's ViT-B-16.pt is
one), or a Hugging Face folder with model.safetensors or pytorch_model.bin. Nothing is downloaded.
"""

from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path

import torch
from torch import Tensor, nn

from sdtps.errors import WeightsError
from sdtps.models.published import CLIP_VISUAL

FOLDER_FILES = ("model.safetensors", "pytorch_model.bin")
NAMES_SHOWN = 8


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


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a weight file by name, on the CPU.

    Raises:
        WeightsError: not a weight file.
    """
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        if _is_torchscript(path):
            return dict(torch.jit.load(path, map_location="cpu").state_dict())
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:  # torch's own text advises to read it unsafely
        raise WeightsError(
            f"{path}: not a readable weight file: it holds more than tensors in plain containers, "
            "which could run code while it is read. Save the model's state_dict() alone, or as "
            "safetensors."
        ) from None
    except Exception as error:  # the readers raise whatever a broken byte leads them to
        raise WeightsError(
            f"{path}: not a readable weight file ({type(error).__name__}: {str(error)[:200]})"
        ) from None
    for wrapper in ("state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(wrapper), dict):
            content = content[wrapper]
    if not isinstance(content, dict) or not any(isinstance(v, Tensor) for v in content.values()):
        raise WeightsError(f"{path}: holds no named tensors")
    return {name: value for name, value in content.items() if isinstance(value, Tensor)}


def _is_torchscript(path: Path) -> bool:
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any("/code/" in name for name in archive.namelist())


def load_exactly(model: nn.Module, tensors: dict[str, Tensor], source: str) -> None:
    """Copy `tensors` into `model`; every one must have a place and every place a tensor.

    Raises:
        WeightsError: missing, unexpected or mismatched tensors, all of them.
    """
    wanted = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    found = {name: tuple(value.shape) for name, value in tensors.items()}
    mismatched = [
        f"{name} is {found[name]}, the model has {wanted[name]}"
        for name in wanted
        if name in found and found[name] != wanted[name]
    ]
    problems = [
        _listed("missing", [name for name in wanted if name not in found]),
        _listed("unexpected", [name for name in found if name not in wanted]),
        _listed("of another shape", mismatched),
    ]
    problems = [p for p in problems if p]
    if problems:
        raise WeightsError(f"{source} does not fit the model:\n  " + "\n  ".join(problems))
    model.load_state_dict(tensors)


def _listed(what: str, names: list[str]) -> str:
    if not names:
        return ""
    more = f", ... and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return f"{len(names)} {what}: {', '.join(names[:NAMES_SHOWN])}{more}"


def load_weights(model: nn.Module, path: str) -> None:
    """Load a file saved from the same model. Raises WeightsError."""
    file = find_weights(path)
    load_exactly(model, read_tensors(file), str(file))


def load_clip_weights(tower: nn.Module, path: str) -> None:
    """Load CLIP's vision tower into a transformers CLIPVisionModelWithProjection.

    The text tower of a whole CLIP is left out; nothing else is. Raises WeightsError.
    """
    file = find_weights(path)
    tensors = read_tensors(file)
    if "visual.conv1.weight" in tensors:
        vision = clip_from_openai(tensors)
    else:
        text = ("text_model.", "text_projection.", "logit_scale")
        # Older files hold the row numbers of the position table, a constant.
        vision = {
            name: value
            for name, value in tensors.items()
            if not name.startswith(text) and not name.endswith("embeddings.position_ids")
        }
    load_exactly(tower, vision, str(file))


def clip_from_openai(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The vision tower of OpenAI's layout under transformers' names, in float32.

    A name below `visual.` that no ViT of OpenAI's has stays as it is, so that loading reports it beside
    everything else that does not fit.
    """
    visual = {
        name.removeprefix("visual."): value.float()
        for name, value in tensors.items()
        if name.startswith("visual.")
    }
    unknown = {name: visual.pop(name) for name in CLIP_VISUAL.refused(visual)}
    known = {name: value.contiguous() for name, value in CLIP_VISUAL.to_ours(visual).items()}
    return known | unknown
