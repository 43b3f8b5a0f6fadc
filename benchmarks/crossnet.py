"""Seconds and peak memory of the batched cross-net beside the loop it equals, on the same inputs.

`similarity_loop` is the cross-net as an executable specification: a loop over captions, nothing clever.
Tests compare the two on every axis of the configuration.

Peak memory is what each adds on top of its inputs and parameters, measured in a process of its own.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.timing import Row, compare
from sdtps.aggregation import merged
from sdtps.config import SdtpsConfig
from sdtps.config.retrieval import MatchingConfig
from sdtps.crossnet import CrossNet
from sdtps.selection import Selection, TokenSelection, no_gradient
from sdtps.training.device import keep_freed_memory

WIDTH = 512
SPARSE_WORDS = 32
DENSE_WORDS = 96
PER_TEXT = 5  # captions of an image, which share its dense text


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
Kernel = Literal["plain", "fused"]


@dataclass(frozen=True)
class Case:
    """One measurement.

    Attributes:
        per_text: captions that share one dense text, as those of an image do at evaluation.
    """

    form: Form
    training: bool
    images: int
    captions: int
    encoder: Encoder
    device: str
    per_text: int = 1
    kernel: Kernel = "plain"

    def __str__(self) -> str:
        shape = f"images {self.images}, captions {self.captions}, {self.encoder.patches} patches"
        texts = f", {self.per_text} captions a text" if self.per_text > 1 else ""
        kernel = ", fused" if self.kernel == "fused" else ""
        return f"{'train' if self.training else 'evaluate'}, {self.form}, {shape}{texts}{kernel}"

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
                kernel=self.kernel,
            ),
            width=WIDTH,
            patches=self.encoder.patches,
            class_token=self.encoder.class_token,
        )
        return net.to(self.device).train(self.training)

    def inputs(self) -> list[Tensor]:
        """Random tokens and words; texts have a quarter to all of the words, the first has all."""
        generator = torch.Generator().manual_seed(1)
        texts = [(self.captions, SPARSE_WORDS)]
        if self.form != "laps":
            texts.append((self.captions // self.per_text, DENSE_WORDS))
        tokens = self.encoder.patches + self.encoder.class_token
        inputs = [torch.randn(self.images, tokens, WIDTH, generator=generator).to(self.device)]
        for number, words in texts:
            inputs.append(torch.randn(number, words, WIDTH, generator=generator).to(self.device))
            lengths = torch.randint(words // 4, words + 1, (number,), generator=generator)
            lengths[0] = words
            inputs.append(lengths.to(self.device))
        if self.training:
            inputs = [x.requires_grad_() if x.is_floating_point() else x for x in inputs]
        return inputs


def compute(case: Case, way: Way) -> Callable[[], list[Tensor]]:
    """A function that does the work once and returns the similarity and, in training, the gradients."""
    net, inputs = case.network(), case.inputs()
    leaves = [x for x in [*inputs, *net.parameters()] if x.requires_grad]
    rows = torch.arange(case.captions, device=case.device) // case.per_text

    def similarity() -> Tensor:
        if way == "loop":
            return similarity_loop(net, *inputs[:3], *(x[rows] for x in inputs[3:]))
        if case.per_text == 1:
            return net(*inputs).similarity
        alone, dense = net.apart(*inputs)
        return alone + dense[:, rows]

    def once() -> list[Tensor]:
        with torch.set_grad_enabled(case.training):
            scored = similarity()
            if not case.training:
                return [scored]
            grads = torch.autograd.grad(scored.square().sum(), leaves, allow_unused=True)
            missing = zip(leaves, grads, strict=True)
            return [scored, *(torch.zeros_like(x) if g is None else g for x, g in missing)]

    return once


def difference(ours: list[Tensor], loop: list[Tensor]) -> float:
    """The largest difference, as a share of the largest value of any tensor."""
    largest = max(float(b.detach().abs().max()) for b in loop)
    pairs = zip(ours, loop, strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs) / largest


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
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def measure(case: Case, repeats: int) -> Row:
    """The two ways timed in turns, and their peak memory.

    Raises:
        RuntimeError: their results differ by more than rounding.
    """
    ways = compute(case, "batched"), compute(case, "loop")
    if difference(ways[0](), ways[1]()) > 1e-4:  # also warms up
        raise RuntimeError(f"crossnet ({case}): the two ways disagree")
    device = torch.device(case.device)
    timed = compare("crossnet", str(case), *ways, device, repeats=repeats, warmup=0)
    del ways
    peaks = [round(peak_by_itself(case, way), 1) for way in ("batched", "loop")]
    return replace(timed, peak_mib=peaks[0], reference_mib=peaks[1])


def run(device: torch.device, form: Form = "released", *, repeats: int = 5) -> Iterator[Row]:
    """Training at 196 and at 49 patches and an evaluation block at both.

    A block on a CPU is as `Scorer` takes it. On a GPU each case with the plain and with the fused
    kernel, where there is Triton.
    """
    keep_freed_memory()  # as training and evaluation do
    for case in cases(device.type, form):
        yield measure(case, repeats)


def cases(device: str, form: Form) -> list[Case]:
    pairs, block = ((64, 64), (128, 128)) if device == "cuda" else ((32, 32), (32, 65))
    has_kernel = device == "cuda" and importlib.util.find_spec("triton") is not None
    kernels: tuple[Kernel, ...] = ("plain", "fused") if has_kernel else ("plain",)
    made = []
    for encoder in (VIT, SWIN):
        for kernel in kernels:
            case = Case(form, True, *pairs, encoder, device, kernel=kernel)
            tested = replace(case, training=False, images=block[0], captions=block[1])
            made += [case, tested]
            if form == "released":
                made.append(replace(tested, per_text=PER_TEXT))
    return made


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

    def score(tokens: Tensor, text: Tensor) -> Tensor:
        tokens = tokens if classes is None else torch.cat([classes, tokens], dim=1)
        text = F.normalize(text, dim=-1).expand(len(tokens), -1, -1)
        return net.alignment(F.normalize(tokens, dim=-1), text)

    if net.sparse_selection is None:
        return score(patches, caption)
    own = [caption.mean(0)] if net.matching.sparse_guide else []
    other = [] if dense is None else [dense.mean(0)]
    together = bool(other) and net.matching.axis.together
    guides = own + other if together else own
    first = _select(net, net.sparse_selection, patches, guides, draws[0])
    if dense is None:
        return score(merged(net.aggregation, [first]), caption)
    assert net.dense_selection is not None
    guides = other + own if together else other
    second = _select(net, net.dense_selection, patches, guides, draws[1])
    if together:
        return score(merged(net.aggregation, [first, second]), caption)
    alone = score(merged(net.aggregation, [first]), caption)
    return alone + score(merged(net.aggregation, [second]), dense)


def _select(
    net: CrossNet, selection: TokenSelection, patches: Tensor, guides: list[Tensor], draws: Tensor
) -> Selection:
    with no_gradient(net.config.axes.no_grad.selection):
        own, guided = selection.attentions(
            patches, patches.mean(1), [guide.expand(len(patches), -1) for guide in guides]
        )
        return selection(patches, own, guided, draws)
