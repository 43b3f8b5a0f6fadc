"""What a run keeps of its model: checkpoint.pt to resume from, and weights to use afterwards.

checkpoint.pt holds all that a run needs to go on as if it had never stopped: plain tensors, numbers and
containers, so that `torch.load(weights_only=True)` reads it. Weights are safetensors files whose header
says what they are of (`about`).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from sdtps.data.contents import file_digest
from sdtps.models.weights import initial_file, load_exactly, not_finite, read_tensors
from sdtps.run.folder import finite
from sdtps.system.errors import RunError, WeightsError
from sdtps.system.files import replacing

FORMAT = 1
ENCODERS = ("backbone.", "encoder.", "text_encoder.")
HEADER = "sdtps"  # of a weights file: what the weights are of, as JSON


def save(path: Path, content: dict[str, Any]) -> None:
    """Write `content` whole or not at all, with the names of its tensors that are not finite.

    Raises:
        OSError: disk full, permission; the checkpoint before it is untouched.
    """
    broken = not_finite(content)
    with replacing(path) as stream:
        try:
            torch.save({"format": FORMAT, **content, "not_finite": broken}, stream)
        except RuntimeError as error:
            if isinstance(error.__context__, OSError):  # torch hides why a write failed
                raise error.__context__ from None
            raise


def load(path: Path, device: torch.device | str = "cpu") -> dict[str, Any] | None:
    """The checkpoint at `path`, or None where there is none.

    Raises:
        RunError: a file that is no checkpoint of this format, or in which a value has become NaN or
            infinite since it was written: training did not do that.
    """
    if not path.exists():
        return None
    try:
        content = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:  # the unpickler raises whatever a broken byte leads it to
        raise RunError(
            f"{path}: not a readable checkpoint ({type(error).__name__}: {error}). "
            "Delete it to start anew."
        ) from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise RunError(
            f"{path}: checkpoint of another format, expected {FORMAT}. Delete it to start anew."
        )
    broken = set(not_finite(content)) - set(content.get("not_finite", ()))
    if broken:
        names = ", ".join(sorted(broken)[:5])
        raise RunError(
            f"{path}: damaged: NaN or infinite values in {names}, which the run did not write. "
            "Restore the file, or delete it to start anew."
        )
    return content


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """A copy of the model's tensors in main memory."""
    return {
        name: value.detach().to("cpu", copy=True).contiguous()
        for name, value in model.state_dict().items()
    }


def save_weights(path: Path, weights: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write weights and what they are of, whole or not at all.

    Args:
        about: JSON-ready: config, seed, epoch, step, ... as `Loop` gives it.

    Raises:
        OSError: disk full, permission; the file before it is untouched.
    """
    header = {HEADER: json.dumps(finite(about), allow_nan=False)}
    with replacing(path) as stream:
        stream.write(safetensors.torch.save(dict(weights), metadata=header))


def load_weights(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Weights on the CPU and what they are of; an empty dictionary where the file does not say.

    Raises:
        RunError: no file, or no safetensors file.
    """
    try:
        with safetensors.safe_open(path, framework="pt") as stream:
            about = json.loads((stream.metadata() or {}).get(HEADER, "{}"))
        return safetensors.torch.load_file(path), about
    except FileNotFoundError:
        raise RunError(f"{path}: there is no file of that name") from None
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise RunError(f"{path}: not a readable safetensors file ({error})") from None


def link_weights(source: Path, target: Path) -> None:
    """The same file under a second name; a copy where the file system has no hard links."""
    target.unlink(missing_ok=True)
    try:
        target.hardlink_to(source)
    except OSError:
        with source.open("rb") as read, replacing(target) as stream:
            shutil.copyfileobj(read, stream)


def load_initial(model: nn.Module, start: str) -> dict[str, Any]:
    """Take over every tensor of the same name and shape from a run's best weights or from a file.

    Returns:
        For run.json: file, digest, how many tensors were loaded, and the names of those left as they
        were (`left`), of another shape, and not used.

    Raises:
        RunError, WeightsError: nothing to start from, or nothing in it that fits.
    """
    file = initial_file(start)
    given = load_weights(file)[0] if file.suffix == ".safetensors" else read_tensors(file)
    own = model.state_dict()
    fits = {n: v for n, v in given.items() if n in own and own[n].shape == v.shape}
    other = sorted((given.keys() & own.keys()) - fits.keys())
    # Tables of cameras, identities and positions have as many rows as the data want; their width stays.
    wider = [
        f"{name} is {tuple(given[name].shape)}, the model's {tuple(own[name].shape)}"
        for name in other
        if name.startswith(ENCODERS) and given[name].shape[-1:] != own[name].shape[-1:]
    ]
    if wider or 2 * len(fits) < min(len(given), len(own)):
        raise WeightsError(
            f"train.init: {file}: is of another architecture: {len(fits)} of its {len(given)} tensors "
            f"fit the model by name and shape{'; '.join(['', *wider[:1]])}. Published files: "
            "sdtps convert first"
        )
    load_exactly(model, own | fits, f"train.init: {file}")
    return {
        "file": str(file.absolute()),
        "digest": file_digest(file),
        "loaded": len(fits),
        "left": sorted(own.keys() - fits.keys()),
        "other_shape": other,
        "not_used": sorted(given.keys() - own.keys()),
    }


def initial_line(record: Mapping[str, Any]) -> str:
    """What `load_initial` did, for train.log."""
    left, unused = record["left"], record["not_used"]
    text = f"starts from {record['file']}: {record['loaded']} tensors"
    if left:
        text += f"; left as initialised: {', '.join(left[:8])}{', ...' if len(left) > 8 else ''}"
    return text + (f"; {len(unused)} of the file not used" if unused else "")
