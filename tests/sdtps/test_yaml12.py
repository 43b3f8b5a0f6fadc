from __future__ import annotations

import math
from pathlib import Path

import pytest

from sdtps.config.yaml12 import parse, read
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
    assert parse(text).data == value
    assert type(parse(text).data) is type(value)


def test_nan_is_read_as_a_number() -> None:
    assert math.isnan(parse(".nan").data)


def test_keys_are_strings_whatever_they_look_like() -> None:
    document = parse("off: 1\n1: 2\nnull: 3\n1e-4: 4\n2024-01-02: 5\n")
    assert list(document.data) == ["off", "1", "null", "1e-4", "2024-01-02"]


def test_every_duplicate_key_is_reported_with_both_lines() -> None:
    text = "variants:\n  topk: {}\n  other: {}\n  topk: {a: 1, a: 2}\n1: a\n'1': b\n"
    assert parse(text).problems == [
        (4, "'variants.topk' is given twice: lines 2 and 4; remove one"),
        (6, "'1' is given twice: lines 5 and 6; remove one"),  # equal once keys are strings
    ]


def test_lines_are_those_of_the_keys_and_items() -> None:
    document = parse("# comment\nvariants:\n  topk: {}\ntables:\n  - name: main\n  - name: b\n")
    assert document.lines[("variants", "topk")] == 3
    assert document.lines[("tables", 1)] == 6
    assert document.lines[("tables", 1, "name")] == 6
    assert parse("a:\n  b: 1\n").line(("a", "b", "missing", 3)) == 2


def test_aliases_are_followed_but_not_for_ever() -> None:
    assert parse("a: &x {k: 1}\nb: *x\n").data == {"a": {"k": 1}, "b": {"k": 1}}
    with pytest.raises(YamlError, match="contains itself"):
        parse("a: &x [*x]\n")
    bomb = "a0: &a0 [x, x]\n" + "".join(
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9)
    )
    with pytest.raises(YamlError, match="expand to more than"):
        parse(bomb)


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
        if problems := parse(text).problems:
            raise YamlError(str(problems))


def test_a_file_is_named_in_its_errors(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_bytes(b"a: \xff\n")
    with pytest.raises(YamlError, match=r"study\.yaml: not UTF-8"):
        read(path)
    with pytest.raises(YamlError, match=r"absent\.yaml: cannot be read: No such file"):
        read(tmp_path / "absent.yaml")
    path.write_text("a: [\n")
    with pytest.raises(YamlError, match=r"study\.yaml: line 2"):
        read(path)


def test_the_written_text_of_numbers_is_kept() -> None:
    document = parse("a: 79.10\nb: '1'\nc: [off, 010, ~]\n")
    assert document.texts == {("a",): "79.10", ("c", 1): "010", ("c", 2): "~"}
