# ruff: noqa: E501 (lines as long as these programs print them)
"""Small logs in other people's formats, written by ourselves."""

from __future__ import annotations

from collections.abc import Sequence

STAMP = "2025-12-06 15:30:12,983"


def demo_header(
    *, epochs: int = 3, seed: str = "1111", switches: Sequence[str] = ("USE_SDTPS",), extra: str = ""
) -> str:
    """The configuration dump of DeMo as its logger prints it, after the YAML source that it overrides."""
    known = ("HDM", "ATM", "USE_SACR", "USE_SDTPS", "USE_DGAF", "USE_LIF")
    model = "".join(f"  {name}: {name in switches}\n" for name in known)
    return (
        f"{STAMP} DeMo INFO: Loaded configuration file configs/X.yml\n"
        f"{STAMP} DeMo INFO: \nMODEL:\n  USE_SDTPS: False   # comment in the source\nSOLVER:\n  MAX_EPOCHS: 99\n"
        f"{STAMP} DeMo INFO: Running with config:\n"
        f"DATASETS:\n  NAMES: RGBNT201\nMODEL:\n{model}  DGAF_VERSION: v3\n{extra}"
        f"OUTPUT_DIR: ..\nSOLVER:\n  MAX_EPOCHS: {epochs}\n  SEED: {seed}\n  WARMUP_ITERS: 0\n"
        "TEST:\n  FEAT_NORM: yes\n  WEIGHT: \n"
        "=> RGBNT201 loaded\n  train    |   171 |     3951 |         4\n"
        f"{STAMP} DeMo INFO: number of parameters:88.623444\n"
        f"{STAMP} DeMo.train INFO: start training\n"
    )


def demo_epoch(
    epoch: int,
    scores: dict[str, str],
    *,
    losses: Sequence[str] = ("2.500", "1.500"),
    rate: str = "5.00e-06",
    total: int = 25,
    rank1: str = "70.0",
) -> str:
    """Two training lines and an evaluation under each head (`ori`, `moe`, `[moe,ori]`)."""
    stamp = f"2025-12-06 15:{30 + epoch:02d}:12,983 DeMo.train INFO:"
    text = "".join(
        f"{stamp} Epoch[{epoch}] Iteration[{10 * (i + 1)}/{total}] Loss: {loss}, Acc: 0.500, Base Lr: {rate}\n"
        for i, loss in enumerate(losses)
    )
    text += f"{stamp} Epoch {epoch} done. Time per batch: 0.320[s] Speed: 199.8[samples/s]\n"
    for head, score in scores.items():
        text += (
            f"{stamp} ~~~~~\n{stamp} Current is the {head} feature testing!\nThe test feature is normalized\n"
            f"{stamp} Validation Results - Epoch: {epoch}\n{stamp} mAP: {score}%\n"
            f"{stamp} CMC curve, Rank-1  :{rank1}%\n{stamp} CMC curve, Rank-10 :90.0%\n"
        )
    return text


def demo_best(map_: str, rank1: str) -> str:
    stamp = f"{STAMP} DeMo.train INFO:"
    return f"{stamp} Best mAP: {map_}%\n{stamp} Best Rank-1: {rank1}%\n"


TRACEBACK = (
    "Traceback (most recent call last):\n"
    '  File "train_net.py", line 116, in <module>\n'
    "    do_train(\n"
    "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
)

FASTREID = """\
[11/27 10:00:00 fastreid]: Running with full config:
MODEL:
  BACKBONE:
    NAME: build_vit_backbone
SOLVER:
  MAX_EPOCH: 2
SEED: 7
[11/27 10:00:05 fastreid.engine.train_loop]: Starting training from epoch 0
[11/27 10:00:10 \x1b[32mfastreid.utils.events\x1b[0m]:  eta: 0:10:00  epoch/iter: 0/199  total_loss: 9.1  \
loss_cls: 6.5  loss_triplet: 2.6  time: 0.4  data_time: 0.001  lr: 3.5e-06  max_mem: 7000M
[11/27 10:00:20 fastreid.engine.defaults]: Prepare testing set
[11/27 10:00:30 fastreid.evaluation.testing]: Evaluation results in csv format:
| Dataset    | Rank-1   | mAP    | metric   |
|:-----------|:---------|:-------|:---------|
| Market1501 | 94.45    | 87.30  | 90.88    |
| DukeMTMC   | 40.10    | 25.00  | 32.55    |
[11/27 10:00:40 fastreid.utils.events]:  eta: 0:00:00  epoch/iter: 1/399  total_loss: 3.1  loss_cls: 2.5  \
loss_triplet: 0.6  time: 0.4  data_time: 0.001  lr: 3.5e-04  max_mem: 7010M
[11/27 10:00:50 fastreid.evaluation.testing]: Evaluation results in csv format:
| Dataset    | Rank-1   | mAP    | metric   |
|:-----------|:---------|:-------|:---------|
| Market1501 | 95.45    | 88.30  | 91.88    |
| DukeMTMC   | 41.10    | 26.00  | 33.55    |
[11/27 10:00:55 fastreid.engine.hooks]: Overall training speed: 397 iterations in 0:02:00
"""

SEPS = """\
2025-11-27 10:00:00,001 Namespace(data_path='data/', dataset='f30k', num_epochs=2, seed=3, lr=0.0002, names=['a', 'b'])
2025-11-27 10:01:00,001 Epoch: [0][0/907]\tIter 0 (0)  lr 2e-05 (2e-05)  Loss 105.3162 (105.3162)\tBatch-Time 0.9 (0.9)\t
2025-11-27 10:02:00,001 Epoch: [0][200/907]\tIter 200 (100)  lr 2e-05 (2e-05)  Loss 50.5 (75.0)\tBatch-Time 0.9 (0.9)\t
2025-11-27 10:03:00,001 Image to text (R@1, R@5, R@10): 60.1, 85.2, 91.3
2025-11-27 10:03:01,001 Text to image (R@1, R@5, R@10): 50.1, 75.2, 81.3
2025-11-27 10:03:02,001 Current rsum is 443.2
2025-11-27 10:03:03,001 Epoch: [0], Best rsum: 443.2
2025-11-27 10:04:00,001 Epoch: [1][0/907]\tIter 907 (0)  lr 2e-05 (2e-05)  Loss 20.5 (20.5)\tBatch-Time 0.9 (0.9)\t
2025-11-27 10:05:00,001 Image to text (R@1, R@5, R@10): 62.1, 86.2, 92.3
2025-11-27 10:05:01,001 Text to image (R@1, R@5, R@10): 52.1, 76.2, 82.3
2025-11-27 10:05:02,001 Current rsum is 451.2
2025-11-27 10:05:03,001 Epoch: [1], Best rsum: 451.2
"""
