"""Seconds and peak memory of the batched cross-net beside the loop it equals, on the same inputs.

`similarity_loop` is the cross-net as an executable specification: a loop over captions, nothing clever.
Tests compare the two on every axis of the configuration.

The two are timed in turns, so that other work on the machine hits both, and the fastest repeat counts.
Peak memory is what each adds on top of its inputs and parameters, measured in a process of its own.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.machine import compare, machine
from sdtps.aggregation import merged
from sdtps.config import SdtpsConfig
from sdtps.config.retrieval import MatchingConfig
from sdtps.crossnet import CrossNet
from sdtps.selection import Selection, TokenSelection, no_gradient
from sdtps.training.device import keep_freed_memory

WIDTH = 512
SPARSE_WORDS = 32
DENSE_WORDS = 96


@dataclass(frozen=True)
class Encoder:
    """What an image encoder hands on, and the released ratios for it."""

    patches: int
    class_token: bool
    keep_ratio: float
    aggregation_ratio: float


VIT = Encoder(196, True, 0.5, 0.4)  # ViT-B/16 at 224
SWIN = Encoder(49, False, 0.8, 0.6)  # Swin-B at 224

Form = Literal["laps", "released", "paper"]
Way = Literal["batched", "loop"]
Work = Literal["train", "evaluate"]


@dataclass(frozen=True)
class Case:
    """One measurement."""

    name: Work
    form: Form
    images: int
    captions: int
    encoder: Encoder
    device: str
    chunk: int | None = None
    kernel: Literal["fused"] | None = None  # None = plain

    def network(self) -> CrossNet:
        """In the arrangement of the form, seeded."""
        torch.manual_seed(0)
        paper = self.form == "paper"
        dense: Literal["own", "none"] = "none" if self.form == "laps" else "own"
        net = CrossNet(
            SdtpsConfig(
                score="eq3" if paper else "attention_sum",
                normalise="minmax" if paper else "none",
                no_grad="selection" if self.form == "released" else "attention",
                aggregation="dual" if paper else "single",
                keep_ratio=self.encoder.keep_ratio,
                aggregation_ratio=self.encoder.aggregation_ratio,
            ),
            MatchingConfig(
                form=self.form,
                alignment="mean_topk" if paper else "mean",
                dense_text=dense,
                eval_dense_text=dense,
                chunk=self.chunk,
                kernel=self.kernel or "plain",
            ),
            width=WIDTH,
            patches=self.encoder.patches,
            class_token=self.encoder.class_token,
        )
        return net.to(self.device).train(self.name == "train")

    def inputs(self) -> list[Tensor]:
        """Random tokens and words; captions have a quarter to all of the words, the first has all."""
        generator = torch.Generator().manual_seed(1)
        shapes = [(self.images, self.encoder.patches + self.encoder.class_token, WIDTH)]
        widths = [SPARSE_WORDS] if self.form == "laps" else [SPARSE_WORDS, DENSE_WORDS]
        shapes += [(self.captions, words, WIDTH) for words in widths]
        tensors = [torch.randn(shape, generator=generator).to(self.device) for shape in shapes]
        if self.name == "train":
            tensors = [tensor.requires_grad_() for tensor in tensors]
        inputs = tensors[:1]
        for tensor, words in zip(tensors[1:], widths, strict=True):
            lengths = torch.randint(words // 4, words + 1, (self.captions,), generator=generator)
            lengths[0] = words
            inputs += [tensor, lengths.to(self.device)]
        return inputs


def compute(case: Case, way: Way) -> Callable[[], list[Tensor]]:
    """A function that does the work once and returns the similarity and, in training, the gradients."""
    net, inputs = case.network(), case.inputs()
    leaves = [x for x in [*inputs, *net.parameters()] if x.requires_grad]

    def once() -> list[Tensor]:
        with torch.set_grad_enabled(case.name == "train"):
            batched = way == "batched"
            similarity = net(*inputs).similarity if batched else similarity_loop(net, *inputs)
            results = [similarity]
            if case.name == "train":
                grads = torch.autograd.grad(similarity.square().sum(), leaves, allow_unused=True)
                results += [
                    torch.zeros_like(x) if g is None else g for x, g in zip(leaves, grads, strict=True)
                ]
        if case.device == "cuda":
            torch.cuda.synchronize()
        return results

    return once


def peak_mib(case: Case, way: Way) -> float:
    """Memory in MiB that the work adds at its peak; on a CPU this must be a fresh process."""
    once = compute(case, way)
    if case.device == "cuda":
        once()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        once()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    torch.set_num_threads(1)
    resident = _peak_resident_mib()
    once()
    return _peak_resident_mib() - resident


def peak_by_itself(case: Case, way: Way) -> float:
    """`peak_mib`; on a CPU in a process that did nothing before, on a GPU its allocator knows."""
    if case.device == "cuda":
        return peak_mib(case, way)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(peak_mib, case, way).result()


def _peak_resident_mib() -> float:
    """High-water mark of this process on Linux (getrusage's would survive exec: our own)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("/proc/self/status has no VmHWM")


def relative_difference(ours: list[Tensor], loop: list[Tensor]) -> float | None:
    """Largest difference, as a share of the largest value of any tensor; None without tensors."""
    if not ours:
        return None
    largest = max(b.detach().abs().max() for b in loop)
    difference = max((a - b).detach().abs().max() for a, b in zip(ours, loop, strict=True))
    return float(difference / largest)


def measure(case: Case, repeats: int) -> dict[str, Any]:
    """The two ways timed in turns, their results compared, and their peak memory."""
    ways: tuple[Way, Way] = ("batched", "loop")
    work = {way: compute(case, way) for way in ways}
    ours, loop = work["batched"](), work["loop"]()  # also warms up
    difference = relative_difference(ours[:1], loop[:1])
    gradient_difference = relative_difference(ours[1:], loop[1:])
    del ours, loop
    device = torch.device(case.device)
    timed = compare(work["batched"], work["loop"], device, repeats=repeats, warmup=0)
    del work
    memory = {way: round(peak_by_itself(case, way), 1) for way in ways}
    return {
        **asdict(case),
        **timed,
        "peak_mib": {"ours": memory["batched"], "reference": memory["loop"]},
        "relative_difference": {"similarity": difference, "gradients": gradient_difference},
    }


def run(
    device: str,
    *,
    form: Form = "released",
    pairs: tuple[int, int] | None = None,
    block: tuple[int, int] | None = None,
    repeats: int = 5,
    chunk: int | None = None,
) -> dict[str, Any]:
    """Training at 196 and at 49 patches and an evaluation block at both, as one JSON-ready dictionary.

    On a GPU each with the plain and with the fused kernel, where there is Triton.

    Args:
        pairs: images and captions in training; 32 x 32 on a CPU, 64 x 64 on a GPU by default.
        block: images and captions in evaluation; 32 x 64, as `Scorer` takes them, and 500 x 500 by
            default.
    """
    keep_freed_memory()  # as training and evaluation do
    on_gpu = device == "cuda"
    pairs = pairs or ((64, 64) if on_gpu else (32, 32))
    block = block or ((500, 500) if on_gpu else (32, 64))
    sizes: dict[Work, tuple[int, int]] = {"train": pairs, "evaluate": block}
    kernels: list[Literal["fused"] | None] = [None]
    if on_gpu and importlib.util.find_spec("triton") is not None:
        kernels.append("fused")
    cases = [
        Case(name, form, *size, encoder, device, chunk, kernel)
        for name, size in sizes.items()
        for encoder in (VIT, SWIN)
        for kernel in kernels
    ]
    return {
        "bench": "crossnet",
        **machine(torch.device(device)),
        "width": WIDTH,
        "words": [SPARSE_WORDS, DENSE_WORDS],
        "cases": [measure(case, repeats) for case in cases],
    }


def similarity_loop(
    net: CrossNet,
    images: Tensor,
    words: Tensor,
    lengths: Tensor,
    dense_words: Tensor | None = None,
    dense_lengths: Tensor | None = None,
) -> Tensor:
    """Similarity (B, T) with the parameters of `net`; arguments as those of `CrossNet.forward`."""
    classes = images[:, :1] if net.class_token else None
    patches = images[:, 1:] if net.class_token else images
    draws = [_draws(net, patches, words) for _ in range(1 if dense_words is None else 2)]
    columns = []
    for t in range(len(words)):
        caption = words[t, : int(lengths[t])]
        dense = None
        if dense_words is not None and dense_lengths is not None:
            dense = dense_words[t, : int(dense_lengths[t])]
        columns.append(_one_caption(net, classes, patches, caption, dense, [d[:, t] for d in draws]))
    return torch.stack(columns, dim=1)


def _draws(net: CrossNet, patches: Tensor, words: Tensor) -> Tensor:
    """Noise of one branch for all pairs, drawn as the batched form draws it."""
    shape = len(patches), len(words), patches.shape[1]
    decision = net.config.axes.decision
    if not (decision.draws_noise and decision.acts(net.config, net.training)):
        return patches.new_zeros(shape)
    return torch.rand(shape, dtype=patches.dtype, device=patches.device)


def _one_caption(
    net: CrossNet,
    classes: Tensor | None,
    patches: Tensor,
    caption: Tensor,
    dense: Tensor | None,
    draws: list[Tensor],
) -> Tensor:
    """Similarity (B) of all images with one caption of exact length."""
    if net.sparse_selection is None:
        return _align(net, _with_class(classes, patches), caption)
    sparse_guide = [caption.mean(0)] if net.matching.sparse_guide else []
    if dense is None:
        chosen = [_select(net, net.sparse_selection, patches, sparse_guide, draws[0])]
        return _align(net, _tokens(net, classes, chosen), caption)
    assert net.dense_selection is not None
    if not net.matching.axis.together:
        first = _select(net, net.sparse_selection, patches, sparse_guide, draws[0])
        second = _select(net, net.dense_selection, patches, [dense.mean(0)], draws[1])
        return _align(net, _tokens(net, classes, [first]), caption) + _align(
            net, _tokens(net, classes, [second]), dense
        )
    guides = [*sparse_guide, dense.mean(0)]
    chosen = [
        _select(net, net.sparse_selection, patches, guides, draws[0]),
        _select(net, net.dense_selection, patches, guides[::-1], draws[1]),
    ]
    return _align(net, _tokens(net, classes, chosen), caption)


def _select(
    net: CrossNet, selection: TokenSelection, patches: Tensor, guides: list[Tensor], draws: Tensor
) -> Selection:
    with no_gradient(net.config.axes.no_grad.selection):
        own, guided = selection.attentions(
            patches, patches.mean(1), [guide.expand(len(patches), -1) for guide in guides]
        )
        return selection(patches, own, guided, draws)


def _tokens(net: CrossNet, classes: Tensor | None, chosen: list[Selection]) -> Tensor:
    return _with_class(classes, merged(net.aggregation, chosen))


def _with_class(classes: Tensor | None, tokens: Tensor) -> Tensor:
    return tokens if classes is None else torch.cat([classes, tokens], dim=1)


def _align(net: CrossNet, tokens: Tensor, caption: Tensor) -> Tensor:
    """Similarity (B) of normalised tokens (B, V, C) with the normalised words of one caption (L, C)."""
    words = F.normalize(caption, dim=-1).expand(len(tokens), -1, -1)
    return net.alignment(F.normalize(tokens, dim=-1), words)
