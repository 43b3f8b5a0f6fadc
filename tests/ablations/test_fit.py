from __future__ import annotations

import pytest

from ablations.slurm.options import misfits, nodes_of
from ablations.study.schema import Resources

SINFO = """\
*** welcome to the cluster | maintenance | on | monday ***
gpu|2-00:00:00|64|257000+|gpu:a100:4(S:0-1)|3|up
gpu|2-00:00:00|32+|128000|gpu:2|2|up
debug*|30:00|8|16000|(null)|1|up
old|infinite|8|16000|(null)|1|down
"""


def test_sinfo_is_read_and_banners_are_not() -> None:
    nodes = nodes_of(SINFO)
    assert [(n.partition, n.timeout_min, n.cpus, n.gpus, n.default) for n in nodes] == [
        ("gpu", 2880, 64, 4, False),
        ("gpu", 2880, 32, 2, False),
        ("debug", 30, 8, 0, True),
        ("old", None, 8, 0, False),
    ]


@pytest.mark.parametrize(
    ("resources", "says"),
    [
        ({"partition": "gpu", "gpus": 4, "cpus": 16, "mem_gb": 200, "timeout_min": 2880}, []),
        ({"timeout_min": 30}, []),
        ({"timeout_min": 31}, ["resources.timeout_min: 31 is over the limit of partition debug, 30"]),
        ({"partition": "gpuu"}, ["no partition 'gpuu'. Did you mean 'gpu'?"]),
        (
            {"partition": "gpu", "gpus": 5, "cpus": 1},
            ["resources.gpus: 5 is more than partition gpu has, 4"],
        ),
        ({"partition": "gpu", "gpus": 4, "cpus": 17}, ["resources.cpus: 68 (17 for each of 4 GPUs)"]),
        ({"partition": "gpu", "mem_gb": 300}, ["resources.mem_gb: 300 is more than"]),
        ({"partition": "gpu", "nodes": 6}, ["resources.nodes: 6 is more than"]),
        ({"partition": "old"}, ["partition old is down"]),
        ({"partition": "debug,gpu", "timeout_min": 60, "cpus": 2}, []),
        ({"timeout_min": 60, "gpus": 1}, ["resources.timeout_min", "resources.gpus"]),
    ],
)
def test_what_does_not_fit_is_told_by_its_key(resources: dict[str, object], says: list[str]) -> None:
    found = misfits(Resources.model_validate(resources), nodes_of(SINFO), 1)
    assert len(found) == len(says)
    assert all(word in text for word, text in zip(says, found, strict=True))


def test_nothing_is_said_where_the_cluster_says_nothing() -> None:
    assert (
        misfits(Resources(partition="x"), nodes_of("slurm_load_partitions: Unable to contact\n"), 1)
        == []
    )
