"""Two processes compute the loss and the gradients of one, for every arrangement and decision.

In float64 and without dropout, whose draws belong to a process's own rows. Both processes run all cases
in one go; the cases are read from the table of axes.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing import spawn

from sdtps.config import Config, ReidConfig, parse_config
from sdtps.config.axes import AGGREGATIONS, DECISIONS, MASKS
from sdtps.data.caption_batches import RetrievalBatch, TextBatch
from sdtps.data.reid_batches import ReidBatch
from sdtps.models.encoders import ImageShape
from sdtps.models.reid import ReidModel, reid_loss
from sdtps.models.retrieval import RetrievalModel, retrieval_loss
from sdtps.system import distributed
from sdtps.training.device import random_states, resume_random_states, seed_everything
from sdtps.training.step import whole_batch_loss
from tests.sdtps.test_axes import in_retrieval, with_needs

BATCH, PATCHES, WIDTH = 4, 8, 64
REID: dict[str, Any] = {
    "data": {"height": 16, "width": 8, "batch_size": 4, "instances": 2},
    "backbone": {
        "name": "tiny_vit",
        "weights": "random",
        "patch": 4,
        "width": 16,
        "depth": 1,
        "heads": 2,
    },
}
RETRIEVAL: dict[str, Any] = {
    "task": "retrieval",
    "data": {"augment": False, "word_noise": 0.0},
    "image_encoder": {"frozen": True},
    "text_encoder": {"name": "tiny_bert", "frozen": True, "width": 16},
    "matching": {"embed": 16},
}


def arrangements() -> dict[str, dict[str, Any]]:
    """Every decision, mask and aggregation, DeMo's fusions, and the modules with batch statistics."""
    sdtps = [
        *(with_needs({"decision": d.name, **({} if d.soft else {"mask": "log"})}) for d in DECISIONS),
        *(with_needs({"decision": "gumbel_ste", "mask": m.name}) for m in MASKS),
        *(with_needs({"decision": "gumbel_ste", "aggregation": a.name}) for a in AGGREGATIONS),
    ]
    cases: dict[str, dict[str, Any]] = {}
    for chosen in sdtps:
        axes = {"no_grad": "none", "aggregation_ratio": 0.7, **chosen}
        if axes.get("aggregation") in ("none", "in_place"):
            axes.pop("aggregation_ratio")
        name = "-".join(map(str, axes.values()))
        cases[f"reid {name}"] = {**REID, "sdtps": axes}
        if in_retrieval(chosen):
            cases[f"retrieval {name}"] = {**RETRIEVAL, "sdtps": axes}
    for fusion in ({"kind": "hdm"}, {"kind": "hdm_atmoe"}, {"sacr": "single", "kind": "dgaf_v3"}):
        name = "-".join(fusion.values())
        cases[name] = {**REID, "sdtps": {"enabled": False}, "fusion": fusion}
    return cases


class Toy:
    """Whatever a training step asks of a task; its batch holds this process's rows."""

    device = torch.device("cpu")

    def __init__(self, config: Config) -> None:
        torch.manual_seed(0)
        self.config = config
        self.model: nn.Module
        if isinstance(config, ReidConfig):
            self.model = ReidModel(config, pids=3, cameras=2)
        else:
            self.model = RetrievalModel(config, ImageShape(PATCHES, 16, True), None, None)
        self.model.double().train()
        for module in self.model.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0

    def trunk(self) -> list[nn.Parameter]:
        return []

    def module_groups(self) -> dict[str, list[nn.Parameter]]:
        return {}

    def loss(self, batch: Any, epoch: int, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        if isinstance(self.config, ReidConfig):
            return reid_loss(self.model, self.config, batch)  # type: ignore[arg-type]
        return retrieval_loss(
            self.model,  # type: ignore[arg-type]
            self.config,
            batch,
            epoch=2,
            step=1,
            steps_per_epoch=1,
        )

    def batch(self) -> ReidBatch | RetrievalBatch:
        generator = torch.Generator().manual_seed(1)
        share = BATCH // distributed.world_size()
        own = slice(distributed.rank() * share, (distributed.rank() + 1) * share)

        def random(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        if isinstance(self.config, ReidConfig):
            images = random(3, BATCH, 3, 16, 8)[:, own]
            return ReidBatch(images, torch.tensor([0, 0, 1, 2])[own], torch.tensor([0, 1, 0, 1])[own])
        images, sparse, dense = (
            random(BATCH, 1 + PATCHES, 16),
            random(BATCH, 5, 16),
            random(BATCH, 6, 16),
        )
        lengths = torch.tensor([5, 2, 4, 3])
        return RetrievalBatch(
            images[own],
            TextBatch(sparse[own], lengths[own]),
            TextBatch(dense[own], lengths[own] + 1),
            torch.arange(BATCH)[own],
        )


def outcomes() -> dict[str, list[Tensor]]:
    """Loss, gradients and buffers of every case, in the processes that there are."""
    found: dict[str, list[Tensor]] = {}
    for name, tree in arrangements().items():
        toy = Toy(parse_config(tree))
        compute = whole_batch_loss(toy)
        torch.manual_seed(2 + distributed.rank())  # each process has its own generator's state
        loss, _ = compute(toy.batch(), 1, 1)
        loss.backward()
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in toy.model.parameters()]
        buffers = [b for b in toy.model.buffers() if b.is_floating_point()]
        found[name] = [loss.detach(), *gradients, *(b.clone() for b in buffers)]
    return found


def run(rank: int, port: int, path: Path) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2
    )
    found = outcomes()
    if rank == 0:
        torch.save(found, path)
    distributed.stop()


def test_processes_draw_their_own_dropout_also_when_more_resume_than_stopped() -> None:
    drawn = []
    for rank in (0, 1):
        seed_everything(3, rank)
        drawn.append(torch.rand(4))
    seed_everything(3)
    stopped = [random_states()]
    for rank in (0, 1):
        resume_random_states(stopped, rank, seed=3)
        drawn.append(torch.rand(4))
    assert torch.equal(drawn[2], drawn[0]) and torch.equal(drawn[3], drawn[1])
    assert not torch.equal(drawn[0], drawn[1])


@pytest.fixture(scope="module")
def of_two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Tensor]]:
    path = tmp_path_factory.mktemp("processes") / "found.pt"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spawn(run, (port, path), nprocs=2)
    loaded: dict[str, list[Tensor]] = torch.load(path)
    return loaded


@pytest.fixture(scope="module")
def of_one() -> dict[str, list[Tensor]]:
    return outcomes()


@pytest.mark.parametrize("case", arrangements())
def test_two_processes_are_one(
    of_one: dict[str, list[Tensor]], of_two: dict[str, list[Tensor]], case: str
) -> None:
    for one, two in zip(of_one[case], of_two[case], strict=True):
        scale = max(one.abs().max().item(), 1.0)
        torch.testing.assert_close(two, one, rtol=1e-9, atol=1e-9 * scale)
