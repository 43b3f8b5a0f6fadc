from __future__ import annotations

from pathlib import Path

import pytest

from sdtps.config.yaml12 import parse, read
from sdtps.system.errors import YamlError


def test_scalars_are_read_as_people_mean_them() -> None:
    texts = ["off", "no", "on", "y", "1:30", "12:30:45", "2024-01-02", "1_000", "1e", "+"]
    assert parse(f"[{', '.join(texts)}]").data == texts
    written = "true, False, null, ~, 1e-4, 1.0e-4, 1E10, .5, -3., 010, 0x10, 0o10, 3.10, -.inf, .nan"
    meant = (
        "True, False, None, None, 0.0001, 0.0001, 10000000000.0, 0.5, -3.0, 10, 16, 8, 3.1, -inf, nan"
    )
    assert repr(parse(f"[{written}]").data) == f"[{meant}]"
    assert parse("['1', \"off\"]").data == ["1", "off"]
    assert parse("").data is None and parse("-").data == [None]


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
