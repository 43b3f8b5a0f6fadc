"""A misspelt metric is refused with the manifest; what is known as logged is what tasks log."""

from __future__ import annotations

from pathlib import Path

import pytest

from ablations.study.manifest import EVALUATED, load_study
from sdtps.system.errors import ManifestError

HEAD = """\
study: small
task: {task}
seeds: [0]
baseline: a
varies: [optim.lr]
variants: {{a: {{}}}}
"""


def load(tmp_path: Path, text: str, task: str = "reid") -> None:
    path = tmp_path / "small.yaml"
    path.write_text(HEAD.format(task=task) + text)
    load_study(path)


@pytest.mark.parametrize(
    ("task", "text", "says"),
    [
        ("reid", "metrics: {mAp: {direction: up}}", "'mAp' is logged by no run. Did you mean 'mAP'?"),
        ("reid", "metrics: {rsum: {direction: up}}", "'rsum' is logged by no run"),
        (
            "reid",
            "figures: [{name: x, metric: los}]",
            "'los' is logged by no run. Did you mean 'loss'?",
        ),
        ("reid", "metrics: {mAP@missing_r: {direction: up}}", "evaluation: see eval.also"),
        ("retrieval", "metrics: {rsum@shufled: {direction: up}}", "Did you mean 'shuffled'?"),
    ],
)
def test_a_metric_that_no_run_logs_is_refused(tmp_path: Path, task: str, text: str, says: str) -> None:
    with pytest.raises(ManifestError) as caught:
        load(tmp_path, text + "\n", task)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("task", "text"),
    [
        ("reid", "metrics: {mAP: {direction: up}}\nfigures: [{name: x, metric: loss/sdtps_id}]"),
        ("reid", "overrides: {eval.also: [missing_r]}\nmetrics: {mAP@missing_r: {direction: up}}"),
        ("retrieval", "metrics: {rsum@none: {direction: up}, i2t_r1@1k: {direction: up}}"),
        ("reid", "metrics: {mAP@on_msvr310: {direction: up}}"),  # evaluate --as msvr310
    ],
)
def test_what_runs_log_is_accepted(tmp_path: Path, task: str, text: str) -> None:
    load(tmp_path, text + "\n", task)


def test_the_names_are_those_of_the_evaluators() -> None:
    import torch

    from sdtps.evaluation import reid, retrieval

    one = reid.Features(torch.rand(4, 4), torch.tensor([0, 1, 0, 1]), torch.tensor([0, 0, 1, 1]))
    assert tuple(dict(reid.evaluate(one, one))) == EVALUATED["reid"]
    assert tuple(dict(retrieval.evaluate(torch.rand(4, 4), 1, "full"))) == EVALUATED["retrieval"]
