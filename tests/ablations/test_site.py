"""A site file fills what a study leaves open; options win; a mistake in it is told with its line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ablations.cli import main
from ablations.study.schema import Resources
from ablations.study.site import Site, read_site
from sdtps.errors import ManifestError

MANIFEST = """\
study: small
task: reid
seeds: [0]
baseline: a
varies: [optim.lr]
overrides: {data.generate: {seed: 1}}
metrics: {mAP: {direction: up}}
resources: {gpus: 1, setup: [own], exclude: bad1, environment: {B: "2"}}
variants:
  a: {}
  b: {optim.lr: 1, resources: {partition: mine, gpus: "v100:2"}}
"""
SITE = """\
partition: gpu
account: ab1234
gpu_type: a100
gres: true
python: apptainer exec --nv /i.sif python
srun: [--mpi=pmix]
setup: |
  module load cuda
  ulimit -c 0
exclude: [bad2, bad3]
environment: {A: "1", B: "1"}
mail: me@example.org
"""


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """The resources that a plan asks for, by the variant of their first run."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "small.yaml").write_text(MANIFEST)

    def plan(*words: str) -> dict[str, dict[str, object]]:
        assert main(["plan", str(tmp_path / "small.yaml"), "--json", *words]) == 0
        arrays = json.loads(capsys.readouterr().out)["arrays"]
        return {array["runs"][0].split("/")[1]: array["resources"] for array in arrays}

    return plan


def test_a_site_fills_what_the_study_leaves_open(asked, tmp_path: Path) -> None:
    file = tmp_path / "config" / "sdtps" / "site.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(SITE)
    found = asked()
    a, b = found["a"], found["b"]
    assert (a["partition"], a["account"], a["gpus"], a["gres"]) == ("gpu", "ab1234", "a100:1", True)
    assert a["setup"] == ["module load cuda", "ulimit -c 0", "own"]
    assert a["exclude"] == "bad2,bad3,bad1"
    assert a["environment"] == {"A": "1", "B": "2"}
    assert a["python"] == "apptainer exec --nv /i.sif python" and a["mail"] == "me@example.org"
    assert (b["partition"], b["gpus"]) == ("mine", "v100:2")
    assert asked("--site", "none")["a"]["partition"] is None


def test_options_win_over_study_and_site(asked, tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text("partition: slow\n")
    words = ("--site", str(tmp_path / "other.yaml"), "--account", "z", "--gpus", "h100:4")
    found = asked(*words, "--partition", "fast")
    [resources] = found.values()  # one class of resources is one array
    assert resources["partition"] == "fast" and resources["account"] == "z"
    assert resources["gpus"] == "h100:4"


def test_mistakes_in_a_site_file_are_told_with_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "site.yaml"
    file.write_text("partiton: gpu\nenvironment: {1A: x}\n")
    with pytest.raises(ManifestError) as caught:
        read_site(file)
    told = str(caught.value)
    assert (
        "site.yaml:1: partiton: unknown key 'partiton'" in told and "Did you mean 'partition'?" in told
    )
    assert "site.yaml:2: environment: '1A' is not the name of an environment variable" in told
    with pytest.raises(ManifestError, match=r"absent/site\.yaml"):
        read_site(tmp_path / "absent" / "site.yaml")


@pytest.mark.parametrize("text", ["a100:0", "a100", "a100:x", ":2", "-1", "a b:2"])
def test_gpus_that_are_no_number_and_no_type_with_a_number_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="GPUs"):
        Resources(gpus=text)


@pytest.mark.parametrize(("gpus", "count"), [(2, 2), ("2", 2), ("a100:2", 2), ("nvidia:a100:3", 3)])
def test_gpus_are_counted_whatever_their_type(gpus: int | str, count: int) -> None:
    assert Resources(gpus=gpus).gpu_count == count


def test_gres_beside_gpus_is_a_contradiction() -> None:
    with pytest.raises(ValueError, match="'gres' contradicts gpus"):
        Resources(gpus=1, sbatch={"gres": "gpu:a100:2"})
    assert Resources(sbatch={"gres": "gpu:a100:2"}).gpus == 0


def test_an_empty_site_changes_nothing() -> None:
    resources = Resources(gpus=1, mem_gb=4, setup=("x",))
    assert Site().over(resources) == resources
