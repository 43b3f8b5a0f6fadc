"""The fused kernel without a GPU: in Triton's interpreter, in its compiler, and where it cannot run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sdtps.config import SdtpsConfig, parse_config
from sdtps.config.retrieval import MatchingConfig
from sdtps.crossnet import CrossNet
from sdtps.system.errors import ConfigError
from sdtps.training.device import for_machine


@pytest.mark.triton
def test_kernel_is_the_loop_and_the_plain_form_in_the_interpreter() -> None:
    """All of fused_kernel.py, in a process of its own: Triton must be told before it is imported."""
    pytest.importorskip("triton")
    tests = Path(__file__).with_name("fused_kernel.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests)]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


@pytest.mark.triton
@pytest.mark.parametrize(
    ("name", "tokens", "capability"),
    [
        *(("_score", 39, 90), ("_grad_weights", 39, 90), ("_grad_words", 39, 120)),
        *(("_grad_patches", *at) for at in ((39, 90), (118, 90), (230, 80))),
    ],
)
def test_compiler_takes_the_kernel(
    name: str, tokens: int, capability: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At real sizes and for GPUs, on which the interpreter's freedoms would not run."""
    pytest.importorskip("triton")
    from triton import compile as to_gpu
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from sdtps import fused

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernel = getattr(fused, name)
    blocks = fused._blocks(tokens, 98, 96, 512)
    columns = max(fused.SMALLEST_BLOCK, fused.PRODUCTS // blocks["TOKENS"])
    constants: dict[str, Any] = {**blocks, "COLUMNS": columns, "ROWS": 128}
    constants |= {"PRECISION": "tf32", "PADDED": True, "SHORTEST": 1e-24}
    types = {"kept": "*i64", "padding": "*i8"}
    types |= dict.fromkeys(["its_word", "its_token", "places"], "*i32")
    sizes = dict.fromkeys(["b", "t", "a", "k", "n", "length", "width"], "i32")
    given = {key: value for key, value in constants.items() if key in kernel.arg_names}
    signature = {
        key: "constexpr" if key in given else {**types, **sizes}.get(key, "*fp32")
        for key in kernel.arg_names
    }
    target, options = GPUTarget("cuda", capability, 32), {"num_warps": fused.WARPS}
    made = to_gpu(ASTSource(kernel, signature, given), target=target, options=options)
    assert made.asm["cubin"]
    assert made.metadata.shared <= fused.shared_bytes(tokens)


@pytest.mark.triton
def test_the_plain_form_scores_where_shared_memory_does_not_suffice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("triton")
    from sdtps import fused

    properties = SimpleNamespace(shared_memory_per_block_optin=99 * 1024)  # a consumer's card
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    gpu = torch.device("cuda")
    assert fused.fits(118, gpu) and not fused.fits(230, gpu)
    monkeypatch.setattr(fused, "fits", lambda *_: False)
    images, words, lengths = torch.randn(2, 12, 8), torch.randn(3, 4, 8), torch.tensor([4, 1, 2])
    assert build("fused")(images, words, lengths, words, lengths).similarity.shape == (2, 3)


def build(kernel: str) -> CrossNet:
    sdtps, matching = SdtpsConfig(aggregation_ratio=0.6), MatchingConfig(kernel=kernel)
    return CrossNet(sdtps, matching, width=8, patches=12, class_token=False)


def test_without_triton_fused_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"kernel fused needs Triton.* matching\.kernel to plain"):
        build("fused")
    build("plain")


@pytest.mark.triton
def test_without_a_gpu_fused_is_refused_by_name() -> None:
    pytest.importorskip("triton")
    images, words, lengths = torch.randn(2, 12, 8), torch.randn(3, 4, 8), torch.tensor([4, 1, 2])
    with pytest.raises(ConfigError, match="needs a GPU, but the tensors are on cpu"):
        build("fused")(images, words, lengths, words, lengths)


@pytest.mark.parametrize(
    ("device", "capability", "has_triton", "lacks"),
    [
        ("cuda", (8, 0), True, None),
        ("cuda", (7, 5), True, "a GPU of compute capability 8.0 or newer"),
        ("cuda", (9, 0), False, "Triton"),
        ("cpu", None, True, "a GPU"),
    ],
)
def test_a_run_goes_on_with_the_plain_kernel_and_says_so(
    monkeypatch: pytest.MonkeyPatch, device: str, capability: Any, has_triton: bool, lacks: str | None
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: True if has_triton else None)
    asked = parse_config(
        {
            "task": "retrieval",
            "matching": {"kernel": "fused"},
            "train": {"amp": "off", "compile": False},
        }
    )
    found, notes = for_machine(asked, torch.device(device))
    assert found.matching.kernel == ("fused" if lacks is None else "plain")
    assert len(notes) == (lacks is not None)
    assert all("fused needs Triton and a GPU of" in n and "plain is used here" in n for n in notes)
