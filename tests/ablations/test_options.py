"""What resources mean to SLURM: sbatch's options."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ablations.slurm import script as batch
from ablations.slurm.arrays import Chunk
from ablations.study.schema import Resources

NAME = "sdtps-study-0123456789"


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
    assert Resources.model_validate(asked).gpus_of_node == gpus
