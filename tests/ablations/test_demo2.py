"""The published record as manifests: each of the 152 logs by its own program and by ours."""

from __future__ import annotations

import csv
import functools
import os
import shutil
import sys
from pathlib import Path

import pytest

from ablations.study.manifest import load_study
from sdtps.config import ProgramConfig, ReidConfig
from sdtps.run.folder import RunFolder
from sdtps.system.errors import RunError
from sdtps.training.attempt import execute
from tests.ablations.copies import fork_modules

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "paper/reported/demo2_runs.csv"
LOGS = Path(os.environ.get("SDTPS_REAL_DATA", "/nowhere")) / "demo_logs"
PROGRAM = Path(__file__).with_name("published.py")
SEEDS = {"1111": 69, "1234": 83}


study_of = functools.cache(load_study)


def rows() -> list[dict[str, str]]:
    with TABLE.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def here(row: dict[str, str]) -> Path:
    return LOGS / Path(*Path(row["log"]).parts[1:])


@pytest.mark.parametrize("seed", SEEDS)
def test_every_log_is_a_command_with_its_score(seed: str) -> None:
    study = load_study(ROOT / f"ablations/demo2_{seed}.yaml")
    mine = {row["name"]: row for row in rows() if row["seed"] == seed}
    assert study.variants.keys() == mine.keys() and len(mine) == SEEDS[seed]
    reported = {entry.variant: entry for entry in study.reported}
    for name, row in mine.items():
        config = study.variants[name].config
        assert isinstance(config, ProgramConfig)
        line = config.line(seed=int(seed), run="/r")
        assert f"SOLVER.SEED {seed} " in line and row["options"] in line
        assert f"cd {row['commit']} " in line
        assert (name in reported) == bool(row["mAP"])
        if row["mAP"]:
            assert reported[name].values == {"mAP": row["mAP"]} and reported[name].source == row["log"]
    absent = study.variants[name].config.absent()  # type: ignore[union-attr]
    assert any(f"{row['commit']}/train_net.py" in text for text in absent)


def test_every_log_is_a_variant_of_ours() -> None:
    study = load_study(ROOT / "ablations/demo2_ours.yaml")
    table = rows()
    assert {row["ours"] for row in table} == study.variants.keys()
    logs = [entry.source for entry in study.reported]
    assert sorted(logs) == sorted(row["log"] for row in table if row["mAP"])
    for row in table:
        config = study.variants[row["ours"]].config
        assert isinstance(config, ReidConfig)
        assert config.sdtps.enabled == bool(row["arithmetic"])
        assert config.optim.schedule == row["schedule"]
        assert config.optim.lr == float(row["base_lr"])
        assert (config.optim.backbone_lr == 5e-6) == row["optimiser"].startswith("trunk 5e-6")
        assert config.data.dataset == row["dataset"].lower()
        assert config.sdtps.decision != "gumbel_ste"  # in none of the logs
        assert config.train.amp == "fp16"
        assert row["epochs"] in ("", "0") or int(row["epochs"]) <= config.train.epochs


@pytest.mark.real_data
@pytest.mark.parametrize("row", [r for r in rows() if here(r).is_file()], ids=lambda r: r["name"])
def test_a_stand_in_gives_the_logged_score(
    row: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log's program, in place of which a stand-in prints the log."""
    fork_modules(monkeypatch, "analysis.importers.verb")
    study = study_of(ROOT / f"ablations/demo2_{row['seed']}.yaml")
    config = study.variants[row["name"]].config
    place = tmp_path / row["commit"]
    place.mkdir()
    shutil.copyfile(PROGRAM, place / "train_net.py")
    monkeypatch.setenv("PUBLISHED_LOG", str(here(row)))
    monkeypatch.setenv("PUBLISHED_ENDS", "0" if row["mAP"] else "1")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    folder = RunFolder(tmp_path / "runs" / "s" / "v" / "seed0-x")
    folder.create(
        config.model_copy(update={"directory": str(tmp_path)}),
        {"study": "s", "variant": "v", "seed": int(row["seed"])},
    )
    if not row["mAP"]:
        with pytest.raises(RunError, match="exit code 1"):
            execute(folder.path)
        return
    assert execute(folder.path) == "completed"
    result = folder.result()
    assert result is not None
    assert f"{100 * result['best']['mAP']:.1f}" == row["mAP"]
