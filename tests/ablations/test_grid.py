from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ablations.study.manifest import load_study
from ablations.study.model import Study
from sdtps.system.errors import ManifestError

HEAD = """\
study: grid
task: reid
seeds: [0]
baseline: base
varies: [sdtps, optim.lr, train.epochs, optim.warmup_epochs]
variants: {base: {}}
"""
Load = Callable[[str], Study]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def read(text: str) -> Study:
        path = tmp_path / "grid.yaml"
        path.write_text(HEAD + text, encoding="utf-8")
        return load_study(path)

    return read


@pytest.mark.parametrize(
    ("grid", "names"),
    [
        (
            "{product: {sdtps.keep_ratio: [0.2, 0.5], sdtps.mask: [log, subtract_1e10]}}",
            [f"keep_ratio={r},mask={m}" for r in ("0.2", "0.5") for m in ("log", "subtract_1e10")],
        ),
        (
            "{zip: {optim.lr: [1e-3, 1e-4], train.epochs: [10, 20]}}",
            ["lr=0.001,epochs=10", "lr=0.0001,epochs=20"],
        ),
        (
            "{name: 't{temperature} {mask} lr{lr}', set: {sdtps.decision: gumbel_ste}, "
            "product: {sdtps.temperature: [1, 5], sdtps.mask: [log, none]}, "
            "zip: {optim.lr: [1e-3, 1e-4], train.epochs: [10, 20]}, "
            "exclude: [{sdtps.mask: none, sdtps.temperature: 5}, {optim.lr: 1e-4, sdtps.mask: [log]}]}",
            ["t1 log lr0.001", "t1 none lr0.001", "t1 none lr0.0001", "t5 log lr0.001"],
        ),
        (
            "[{product: {sdtps.noise_clamp: [null, 5]}, set: {sdtps.decision: gumbel_ste}}, "
            "{product: {train.epochs: [7]}}]",
            ["noise_clamp=none", "noise_clamp=5", "epochs=7"],
        ),
        (
            "{product: {train.epochs: [7], optim.warmup_epochs: [1]}}",
            ["epochs=7,warmup_epochs=1"],
        ),
    ],
)
def test_every_combination_is_a_variant_with_a_readable_name(
    load: Load, grid: str, names: list[str]
) -> None:
    assert list(load(f"grid: {grid}\n").variants)[1:] == names


def test_values_may_be_named_and_labels_follow_the_names(load: Load) -> None:
    study = load(
        "grid:\n"
        '  name: "c{mask}_tau{temperature}{noise_clamp}"\n'
        '  label: "C = {mask}"\n'
        "  set: {sdtps.decision: gumbel_ste}\n"
        "  product:\n"
        "    sdtps.mask: {1: subtract_1, 1e10: subtract_1e10}\n"
        "    sdtps.temperature: [1, 5]\n"
        "    sdtps.noise_clamp: {'': null, _clamp: 5}\n"
        "  exclude: [{sdtps.mask: '1', sdtps.noise_clamp: _clamp}, {sdtps.noise_clamp: null}]\n"
    )
    assert list(study.variants)[1:] == ["c1e10_tau1_clamp", "c1e10_tau5_clamp"]
    last = study.variants["c1e10_tau5_clamp"]
    assert last.label == "C = 1e10"
    assert (last.config.sdtps.mask, last.config.sdtps.noise_clamp) == ("subtract_1e10", 5.0)


@pytest.mark.parametrize(
    ("grid", "says"),
    [
        ("{}", "needs 'product' or 'zip'"),
        ("{product: {optim.lr: []}}", "grid.product.optim.lr: [] is not allowed. Allowed: a list"),
        (
            "{product: {optim.lr: 3}}",
            "grid.product.optim.lr: 3 is not allowed. Did you mean [3]? Allowed: a list",
        ),
        ("{product: {optim.lr: [1, 1.0]}}", "two of its variants are named 'lr=1'"),
        ("{zip: {optim.lr: [1, 2], train.epochs: [1]}}", "unequal length: optim.lr 2, train.epochs 1"),
        ("{product: {optim.lr: [1]}, zip: {optim.lr: [2]}}", "more than one of set, product and zip"),
        ("{product: {optim.lr: [1, 2]}, exclude: [{optim.lr: 3}]}", "excludes nothing"),
        ("{product: {optim.lr: [1, 2]}, exclude: [{optim.rl: 1}]}", "Did you mean 'optim.lr'?"),
        ("{product: {optim.lr: [1, 2]}, exclude: [{}]}", "grid.exclude[0]: {} is not allowed"),
        ("{product: {optim.lr: [1]}, exclude: [{optim.lr: 1}]}", "expands to no variant"),
        ("{product: {optim.lr: [1, 2]}, name: x}", "two of its variants are named 'x'"),
        ("{product: {optim.lr: [1, 2]}, name: '{rl}'}", "Did you mean 'lr'?"),
        ("{products: {optim.lr: [1]}}", "Did you mean 'product'?"),
        ("{product: {sdtps.temprature: [1, 2]}}", "grid.product.sdtps.temprature: unknown key"),
        ("{product: {sdtps.temperature: [2, -1]}}", "-1 is not allowed. Allowed: a number above 0."),
        ("{product: {data.pad: [2, 1]}}", "'data.pad' may not change here"),
        ("{product: {optim.lr: [1]}, name: base}", "'base' and 'base' (line 6) would share"),
        (
            f"{{product: {{optim.lr: {[*range(1, 200)]}, train.epochs: {[*range(1, 200)]}}}}}",
            "expands to 39601 variants",
        ),
    ],
)
def test_a_malformed_grid_is_told(load: Load, grid: str, says: str) -> None:
    with pytest.raises(ManifestError) as caught:
        load(f"grid: {grid}\n")
    assert says in str(caught.value)
    assert "grid.yaml:7: " in str(caught.value)


ROWS = "name,lr,kind,commit\na,0.1,slow,8e85568\nb,,fast,1e5\na,0.1,slow,8e85568\n"
WORDS = "words: {kind: {slow: {train.epochs: 9}, fast: {train.epochs: 8}}}"


@pytest.fixture
def of_rows(load: Load, tmp_path: Path) -> Load:
    (tmp_path / "rows.csv").write_text(ROWS)
    return load


def test_rows_of_a_table_are_variants_and_rows_of_one_name_are_one(of_rows: Load) -> None:
    grid = f'grid: {{csv: rows.csv, name: "{{name}}", columns: {{optim.lr: lr}}, {WORDS}}}\n'
    reported = (
        'reported: [{variant: "{name}", source: "{commit}", csv: rows.csv, columns: {mAP: lr}}]\n'
    )
    study = of_rows(grid + "metrics: {mAP: {direction: up}}\n" + reported)
    assert list(study.variants) == ["base", "a", "b"]
    assert study.variants["a"].overrides == {"train.epochs": 9, "optim.lr": 0.1}
    assert study.variants["b"].overrides == {"train.epochs": 8}
    found = [(entry.variant, entry.source, entry.values["mAP"]) for entry in study.reported]
    assert found == [("a", "8e85568", "0.1")] * 2


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("optim.lr: lr", "optim.lr: lrr", "'lrr' is not a column. Did you mean 'lr'?"),
        ("fast: {", "last: {", "'fast' has no changes here. Did you mean 'last'?"),
        ('name: "{name}"', 'name: "x"', "two rows named 'x' set different values"),
        ("csv: rows.csv", "csv: other.csv", "'other.csv' lies neither beside the manifest"),
        ("csv: rows.csv", "csv: rows.csv, where: {name: c}", "selects no row of rows.csv"),
    ],
)
def test_mistakes_about_a_table_are_named(of_rows: Load, old: str, new: str, says: str) -> None:
    text = f'grid: {{csv: rows.csv, name: "{{name}}", columns: {{optim.lr: lr}}, {WORDS}}}\n'
    assert old in text
    with pytest.raises(ManifestError) as caught:
        of_rows(text.replace(old, new))
    assert says in str(caught.value)
