"""What resources mean to SLURM: sbatch's options, and what the partitions have."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ablations.slurm import options
from ablations.slurm import script as batch
from ablations.slurm.arrays import Chunk
from ablations.slurm.options import misfits, nodes_of
from ablations.study.schema import Resources

NAME = "sdtps-study-0123456789"
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
        ({"timeout_min": 31}, ["resources.timeout_min: 31 is more than partition debug gives, 30"]),
        ({"partition": "gpuu"}, ["no partition 'gpuu'. Did you mean 'gpu'?"]),
        (
            {"partition": "gpu", "gpus": 5, "cpus": 1},
            ["resources.gpus: 5 is more than partition gpu gives, 4"],
        ),
        ({"partition": "gpu", "gpus": 4, "cpus": 17}, ["resources.cpus: 68 (17 for each of 4)"]),
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


def test_an_option_without_a_value_is_there_or_not(tmp_path: Path) -> None:
    given = {"exclusive": True, "overcommit": False, "mem": 0, "mail_type": "END"}
    resources = Resources.model_validate({"sbatch": given})
    text = batch.script(tmp_path / NAME, Chunk((None,), resources), tmp_path)
    options = [line.removeprefix("#SBATCH --") for line in text.splitlines() if "#SBATCH" in line]
    assert {"exclusive", "mem=0", "mail-type=END"} <= set(options)
    assert not any("overcommit" in option for option in options)
    assert len({option.partition("=")[0] for option in options}) == len(options)  # each once


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ({"gpus": "a100:2"}, {"gpus-per-node": "a100:2"}),
        ({"gpus": "a100:2", "gres": True}, {"gres": "gpu:a100:2"}),
        ({"gpus": 1, "gres": True}, {"gres": "gpu:1"}),
        ({"exclude": "n1,n2", "mail": "me@x.org"}, {"exclude": "n1,n2", "mail-type": "END,FAIL"}),
    ],
)
def test_resources_as_sbatch_options(
    tmp_path: Path, asked: dict[str, object], wanted: dict[str, str]
) -> None:
    text = batch.script(tmp_path / NAME, Chunk((None,), Resources.model_validate(asked)), tmp_path)
    found = dict(re.findall(r"^#SBATCH --([\w-]+)=(.*)$", text, re.MULTILINE))
    assert wanted.items() <= found.items()
    assert ("gres" in found) == ("gres" in wanted)


@pytest.mark.parametrize(
    ("asked", "gpus"),
    [
        ({"gpus": 2}, 2),
        ({"gpus": "a100:2"}, 2),
        ({"sbatch": {"gres": "gpu:a100:3"}}, 3),
        ({"sbatch": {"gres": "gpu"}}, 1),
        ({"sbatch": {"gres": "nvme:1,gpu:2"}}, 2),
        ({"sbatch": {"gpus": "v100:4"}}, 4),
        ({}, 0),
    ],
)
def test_gpus_are_counted_however_they_are_asked_for(asked: dict[str, object], gpus: int) -> None:
    assert options.gpus_of_node(Resources.model_validate(asked)) == gpus
