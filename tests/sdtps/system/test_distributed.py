"""Two processes compute the loss and the gradients of one, for every arrangement and decision.

In float64 and without dropout, whose draws belong to a process's own rows. Both processes run all cases
in one go; the cases are read from the table of axes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing import start_processes

from sdtps.audit.toys import build_toy
from sdtps.config import parse_config
from sdtps.config.axes import AGGREGATIONS, DECISIONS, MASKS
from sdtps.data.caption_batches import RetrievalBatch, TextBatch
from sdtps.data.reid_batches import ReidBatch
from sdtps.system import distributed
from sdtps.training.device import random_states, resume_random_states, seed_everything
from sdtps.training.step import whole_batch_loss
from tests.sdtps.small import free_port
from tests.sdtps.test_axes import in_retrieval, with_needs

REID: dict[str, Any] = {"data": {"height": 64, "width": 32}}
RETRIEVAL: dict[str, Any] = {
    "task": "retrieval",
    "data": {"augment": False, "word_noise": 0.0, "max_words": 6, "max_dense_words": 8},
    "image_encoder": {"name": "tiny_vit", "frozen": True, "size": 48},
    "text_encoder": {"frozen": True},
}


def arrangements() -> dict[str, dict[str, Any]]:
    """Every decision, mask and aggregation, tasks by turns; DeMo's fusions; batch statistics."""
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
        task = RETRIEVAL if len(cases) % 2 and in_retrieval(chosen) else REID
        cases[f"{task.get('task', 'reid')} {name}"] = {**task, "sdtps": axes}
    for fusion in ({"kind": "hdm"}, {"kind": "hdm_atmoe"}, {"sacr": "single", "kind": "dgaf_v3"}):
        name = "-".join(fusion.values())
        cases[name] = {**REID, "sdtps": {"enabled": False}, "fusion": fusion}
    return cases


def own_rows(batch: Any) -> Any:
    """This process's rows of a batch, in float64."""
    is_reid = isinstance(batch, ReidBatch)
    share = len(batch.labels if is_reid else batch.image_ids) // distributed.world_size()
    rows = slice(distributed.rank() * share, (distributed.rank() + 1) * share)
    if is_reid:
        return ReidBatch(batch.images[:, rows].double(), batch.labels[rows], batch.camids[rows])
    texts = (TextBatch(t.values[rows].double(), t.lengths[rows]) for t in (batch.sparse, batch.dense))
    return RetrievalBatch(batch.images[rows].double(), *texts, batch.image_ids[rows])


def outcomes() -> dict[str, list[Tensor]]:
    """Loss, gradients and buffers of every case, in the processes that there are."""
    computed: dict[str, list[Tensor]] = {}
    for name, tree in arrangements().items():
        config: Any = parse_config({**tree, "train": {"amp": "off"}})
        toy = build_toy(config, 0, None)
        toy.model.double().train()
        for module in toy.model.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
        compute = whole_batch_loss(toy)
        torch.manual_seed(2 + distributed.rank())  # each process has its own generator's state
        loss, _ = compute(own_rows(toy.batch(0)), toy.epoch, 1)
        loss.backward()
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in toy.model.parameters()]
        buffers = [b for b in toy.model.buffers() if b.is_floating_point()]
        computed[name] = [loss.detach(), *gradients, *(b.clone() for b in buffers)]
    return computed


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
    start_processes(run, (free_port(), path), nprocs=2, start_method="forkserver")
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
