from __future__ import annotations

import math
from pathlib import Path

import pytest

from sdtps.config.yaml12 import load_yaml, parse
from sdtps.system.errors import YamlError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("off", "off"),
        ("no", "no"),
        ("on", "on"),
        ("y", "y"),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("1e-4", 1e-4),
        ("1.0e-4", 1e-4),
        ("1E10", 1e10),
        (".5", 0.5),
        ("-3.", -3.0),
        ("010", 10),
        ("0x10", 16),
        ("0o10", 8),
        ("1:30", "1:30"),
        ("12:30:45", "12:30:45"),
        ("2024-01-02", "2024-01-02"),
        ("1_000", "1_000"),
        ("3.10", 3.1),
        ("'1'", "1"),
        ('"off"', "off"),
        ("-.inf", -math.inf),
        ("-", [None]),
        ("1e", "1e"),
        ("+", "+"),
    ],
)
def test_scalars_are_read_as_people_mean_them(text: str, value: object) -> None:
    assert load_yaml(text)[0] == value
    assert type(load_yaml(text)[0]) is type(value)


def test_nan_is_read_as_a_number() -> None:
    assert math.isnan(load_yaml(".nan")[0])


def test_keys_are_strings_whatever_they_look_like() -> None:
    data, _ = load_yaml("off: 1\n1: 2\nnull: 3\n1e-4: 4\n2024-01-02: 5\n")
    assert list(data) == ["off", "1", "null", "1e-4", "2024-01-02"]


def test_duplicate_keys_name_both_lines() -> None:
    with pytest.raises(YamlError, match=r"text:4: 'variants.topk' is given twice: lines 2 and 4"):
        load_yaml("variants:\n  topk: {}\n  other: {}\n  topk: {a: 1}\n")
    with pytest.raises(YamlError, match="'1' is given twice"):  # equal once keys are strings
        load_yaml("1: a\n'1': b\n")


def test_every_duplicate_is_reported_at_once() -> None:
    problems = parse("a: 1\na: 2\nb: {c: 1, c: 2}\n").problems
    assert [p.line for p in problems] == [2, 3]


def test_lines_are_those_of_the_keys_and_items() -> None:
    _, lines = load_yaml("# comment\nvariants:\n  topk: {}\ntables:\n  - name: main\n  - name: b\n")
    assert lines[("variants", "topk")] == 3
    assert lines[("tables", 1)] == 6
    assert lines[("tables", 1, "name")] == 6
    assert parse("a:\n  b: 1\n").line(("a", "b", "missing", 3)) == 2


def test_aliases_are_followed_but_not_for_ever() -> None:
    assert load_yaml("a: &x {k: 1}\nb: *x\n")[0] == {"a": {"k": 1}, "b": {"k": 1}}
    with pytest.raises(YamlError, match="contains itself"):
        load_yaml("a: &x [*x]\n")
    bomb = "a0: &a0 [x, x]\n" + "".join(
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9)
    )
    with pytest.raises(YamlError, match="expand to more than"):
        load_yaml(bomb)


@pytest.mark.parametrize(
    "text",
    [
        "a: [1, 2\n",
        "a: b: c\n",
        "\ta: 1\n",
        "a: *nothing\n",
        "--- 1\n--- 2\n",
        "a: !!python/object/apply:os.system ['true']\n",
        "? [1, 2]\n: 3\n",
        "a: \x07\n",
        "[" * 5000,
        "a: " + "9" * 5000,
    ],
)
def test_what_is_not_our_yaml_is_a_clear_error(text: str) -> None:
    with pytest.raises(YamlError):
        load_yaml(text)


def test_a_file_is_named_in_its_errors(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_bytes(b"a: \xff\n")
    with pytest.raises(YamlError, match=r"study\.yaml: not UTF-8"):
        load_yaml(path)
    with pytest.raises(YamlError, match=r"absent\.yaml: cannot be read: No such file"):
        load_yaml(tmp_path / "absent.yaml")
    path.write_text("a: [\n")
    with pytest.raises(YamlError, match=r"study\.yaml: line 2"):
        load_yaml(path)


def test_the_written_text_of_numbers_is_kept() -> None:
    document = parse("a: 79.10\nb: '1'\nc: [off, 010, ~]\n")
    assert document.texts == {("a",): "79.10", ("c", 1): "010", ("c", 2): "~"}
