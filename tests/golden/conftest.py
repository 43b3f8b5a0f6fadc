"""Golden vectors: what the published modules computed, in float64, from two folders of .npz files.

A test module names its cases in `CASES` (file name patterns) and takes the fixture `golden`; it runs
once for each matching file of tests/golden/vectors and of its folder demo2 (DeMo2's later versions), or
of the folders in SDTPS_GOLDEN and SDTPS_GOLDEN2 when these are set.
"""

from __future__ import annotations

import os
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

HERE = Path(__file__).with_name("vectors")
FOLDERS = (
    Path(os.environ.get("SDTPS_GOLDEN") or HERE),
    Path(os.environ.get("SDTPS_GOLDEN2") or HERE / "demo2"),
)
TOLERANCE = 1e-9  # relative to the largest published value of the array
# Below this a published value is a zero plus rounding (a bias in front of a softmax: 4e-16).
ROUNDING = 1e-12


@cache
def read(path: Path) -> dict[str, Any]:
    with np.load(path) as archive:
        return {key: archive[key] for key in archive.files}


class Golden:
    """One case. Input tensors are made once and collect gradients; names as in the folder's README."""

    def __init__(self, path: Path) -> None:
        self.name = path.stem
        self.arrays = read(path)
        self._inputs: dict[str, Tensor] = {}

    def __contains__(self, key: str) -> bool:
        return key in self.arrays

    def number(self, key: str, default: float | None = None) -> float:
        """A scalar of the case: a ratio, tau (0 = Gumbel off), noise_clamp (0 = none)."""
        if default is not None and key not in self.arrays:
            return default
        return self.arrays[key].item()

    def constant(self, key: str) -> Tensor:
        return torch.from_numpy(self.arrays[key])

    def input(self, key: str) -> Tensor:
        """The array as a leaf that collects a gradient."""
        if key not in self._inputs:
            self._inputs[key] = self.constant(key).clone().requires_grad_(True)
        return self._inputs[key]

    def parameters(self) -> dict[str, Tensor]:
        """Published name -> value, buffers included."""
        return self._under("param.")

    def gradients(self) -> dict[str, Tensor]:
        """Published name -> gradient; an array of length 0 is a published None."""
        return self._under("grad.")

    def _under(self, prefix: str) -> dict[str, Tensor]:
        return {
            key.removeprefix(prefix): self.constant(key)
            for key in self.arrays
            if key.startswith(prefix)
        }

    def check(self, key: str, actual: Tensor) -> None:
        """`actual` is the published array, within TOLERANCE."""
        same(actual.detach(), self.constant(key), f"{self.name}: {key}")

    def finish(
        self, loss: Tensor, module: nn.Module | None = None, ours: dict[str, str] | None = None
    ) -> None:
        """Go back from the loss: every published `grad_X` is the gradient of input X.

        A published None is None or zero. Of a module, as `check_parameter_gradients`.
        """
        loss.backward()  # type: ignore[no-untyped-call]
        published = [key for key in self.arrays if key.startswith("grad_")]
        assert published, f"{self.name}: holds no input gradients"
        for key in published:
            same_gradient(
                self.input(key.removeprefix("grad_")).grad, self.constant(key), f"{self.name}: {key}"
            )
        if module is not None and ours is not None:
            self.check_parameter_gradients(module, ours)

    def check_modalities(self, output: Any) -> Tensor:
        """Outputs and masks of `MultiModal` are the published ones; the loss behind the gradients."""
        loss = torch.zeros((), dtype=torch.float64)
        for m, tokens in output["tokens"].items():
            self.check(f"{m}_output", tokens)
            self.check(f"{m}_mask", output["masks"][m])
            loss = loss + (tokens * self.constant(f"{m}_cotangent")).sum()
        return loss

    def check_parameter_gradients(self, module: nn.Module, ours: dict[str, str]) -> None:
        """Every published `grad.NAME` is the gradient of our parameter; `ours` maps published names."""
        parameters = dict(module.named_parameters(remove_duplicate=False))
        published = self.gradients()
        trained = {theirs for theirs in ours if ours[theirs] in parameters}
        assert published.keys() == trained, f"{self.name}: parameters and gradients differ in name"
        for name, gradient in published.items():
            same_gradient(parameters[ours[name]].grad, gradient, f"{self.name}: grad.{name}")


def same(actual: Tensor, expected: Tensor, what: str) -> None:
    assert actual.shape == expected.shape, f"{what}: shape {tuple(actual.shape)}"
    assert actual.dtype == expected.dtype, f"{what}: {actual.dtype}"
    scale = expected.abs().max().item()
    error = (actual - expected).abs().max().item()
    allowed = max(TOLERANCE * scale, ROUNDING)
    assert error <= allowed, f"{what}: off by {error:.2e}, the largest value is {scale:.3e}"


def same_gradient(actual: Tensor | None, expected: Tensor, what: str) -> None:
    nothing = expected.numel() == 0 or not expected.any()
    if nothing:
        assert actual is None or not actual.any(), f"{what}: published none, ours is not zero"
    else:
        assert actual is not None, f"{what}: published a gradient, ours is None"
        same(actual, expected.reshape(actual.shape), what)


def cases(patterns: tuple[str, ...], folders: tuple[Path, ...] = FOLDERS) -> list[Path]:
    files = sorted(path for folder in folders for path in folder.glob("*.npz"))
    return [path for path in files if any(fnmatch(path.stem, q) for q in patterns)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "golden" in metafunc.fixturenames:
        paths = cases(metafunc.module.CASES)
        metafunc.parametrize("golden", paths, ids=[p.stem for p in paths], indirect=True)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden(request.param)
