"""Hundreds of damaged manifests and configurations: a clear error or a right study, no traceback."""

from __future__ import annotations

import copy
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from ablations.study.manifest import load_study
from sdtps.config import ReidConfig, RetrievalConfig, identity, load_config, parse_config, resolved
from sdtps.config.identity import flatten
from sdtps.system.errors import ConfigError, ManifestError

ROOT = Path(__file__).resolve().parents[2]
STUDIES = ("omniglot", "omniglot", "omniglot", "rgbnt100", "rgbnt100", "demo", "rgbnt201")
SCALARS = (
    "", "null", "~", "on", "off", "true", "0", "-1", "010", "1e999", "-1e-4", ".nan", ".inf", "1:30",
    "2024-01-02", "''", '"\\n"', '"\\0"', "[]", "{}", "[1, [2]]", "{a: {b: 1}}", "*x", "&x 1",
    "!!int 3", "!!python/name:os.system x", "|", ">", "@", "`", "%", "{", "]", "- 1", "? 1", ": 1",
    "# x", "\t", "9" * 500, "x" * 3000, "é", "🙂", "../../etc", "subtract_1e10", "subtract_0",
    "log", "dual",
)  # fmt: skip

KEYS = ("x", "1", "seeds", "grid", "topk", "metrics")


def damaged(text: str, rng: random.Random) -> str:
    """`text` after one to three small accidents."""
    for _ in range(rng.randint(1, 3)):
        lines = text.splitlines() or [""]
        i, other = rng.randrange(len(lines)), rng.randrange(len(lines))
        line = lines[i]
        at, kind = rng.randint(0, len(line)), rng.randrange(9)
        if kind == 0:
            del lines[i]
        elif kind == 1:
            lines.insert(other, line)
        elif kind == 2:
            lines[i] = f"{line.partition(':')[0]}: {rng.choice(SCALARS)}"
        elif kind == 3:
            odd = chr(rng.choice((0, 7, 9, 34, 39, 58, 91, 93, 123, 125, 8232, 65279)))
            lines[i] = line[:at] + odd + line[at:]
        elif kind == 4:
            lines[i] = line[:at] + line[at + 1 :]
        elif kind == 5:
            lines[i] = " " * rng.randrange(5) + line
        elif kind == 6:
            lines[i], lines[other] = lines[other], lines[i]
        elif kind == 7:
            lines = lines[:i]
        else:
            lines.insert(i, f"{' ' * rng.choice((0, 2, 4))}{rng.choice(KEYS)}: {rng.choice(SCALARS)}")
        text = "\n".join(lines) + "\n"
    return text


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("studies")
    shutil.copytree(ROOT / "ablations" / "base", folder / "base")
    shutil.copytree(ROOT / "paper" / "reported", folder / "paper" / "reported")
    return folder


def check(path: Path) -> bool:
    """Load it; True for a study. Anything but a ManifestError with places fails the test."""
    try:
        study = load_study(path)
    except ManifestError as error:
        text = str(error)
        assert str(path) in text
        assert "Traceback" not in text
        assert all(line.strip() for line in text.splitlines())
        return False
    runs = study.runs()
    assert len(runs) == len(study.variants) * len(study.seeds) > 0
    assert len({r.name.casefold() for r in runs}) == len(runs)
    assert study.baseline in study.variants
    for variant in study.variants.values():
        assert all(
            any(key == v or key.startswith(f"{v}.") for v in study.varies)
            for key in study.differences(variant.name)
        )
    return True


def test_damaged_manifests_give_a_clear_error_or_a_right_study(folder: Path) -> None:
    rng = random.Random(20261127)
    texts = {n: (ROOT / "ablations" / f"{n}.yaml").read_text(encoding="utf-8") for n in set(STUDIES)}
    outcomes = []
    for i in range(250):
        path = folder / f"damaged{i}.yaml"
        path.write_text(damaged(texts[STUDIES[i % len(STUDIES)]], rng), encoding="utf-8")
        outcomes.append(check(path))
    assert 25 < sum(outcomes) < 225  # the accidents are neither all harmless nor all fatal


def test_a_damaged_base_gives_a_clear_error_or_a_right_study(folder: Path) -> None:
    rng = random.Random(1)
    study = (ROOT / "ablations" / "omniglot.yaml").read_text(encoding="utf-8")
    base = (ROOT / "ablations" / "base" / "omniglot.yaml").read_text(encoding="utf-8")
    for i in range(100):
        (folder / "base" / "x.yaml").write_text(damaged(base, rng), encoding="utf-8")
        path = folder / f"based{i}.yaml"
        path.write_text(study.replace("base/omniglot.yaml", "base/x.yaml"), encoding="utf-8")
        check(path)


def test_damaged_bytes_give_a_clear_error(folder: Path) -> None:
    rng = random.Random(2)
    content = (ROOT / "ablations" / "omniglot.yaml").read_bytes()
    for i in range(60):
        damage = bytearray(content)
        for _ in range(rng.randint(1, 5)):
            damage[rng.randrange(len(damage))] = rng.randrange(256)
        path = folder / f"bytes{i}.yaml"
        path.write_bytes(bytes(damage))
        check(path)


def damaged_tree(tree: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """A configuration with one to three keys changed, removed or added."""
    values: list[Any] = [None, True, -1, 0, 1e300, float("nan"), float("inf"), "", "x"]
    values += [[], {}, [1, "a"], {"a": {}}]
    for _ in range(rng.randint(1, 3)):
        *sections, last = rng.choice(list(flatten(tree))).split(".")
        below = tree
        for section in sections:
            below = below[section]
        kind = rng.randrange(3)
        if kind == 0:
            del below[last]
        elif kind == 1:
            below[last] = copy.deepcopy(rng.choice(values))
        else:
            below[rng.choice(("x", "lr", "mask", ""))] = copy.deepcopy(rng.choice(values))
    return tree


@pytest.mark.parametrize("model", [ReidConfig, RetrievalConfig])
def test_damaged_configurations_give_a_clear_error_or_a_right_configuration(
    model: type[ReidConfig] | type[RetrievalConfig], tmp_path: Path
) -> None:
    rng = random.Random(3)
    good = 0
    for i in range(150):
        tree = damaged_tree(resolved(model()), rng)
        try:
            config = parse_config(tree, where="here")
        except ConfigError as error:
            assert all(line.startswith("here: ") for line in str(error).splitlines())
            continue
        good += 1
        assert parse_config(resolved(config)) == config
        assert len(identity(config, i)) == 10
        path = tmp_path / "config.yaml"
        path.write_text(yaml.safe_dump(resolved(config), sort_keys=False), encoding="utf-8")
        assert load_config(path) == config
    assert 10 < good < 140
