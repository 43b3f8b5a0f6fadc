"""One run is one run: what analysis prints and writes counts in English."""

from __future__ import annotations

import json
import re

import pytest
from planted import plant, planted_study, reseal

from analysis import commands
from analysis.cli import main
from analysis.paper.build import Options, build
from sdtps.system.errors import counted

ONE_OF_MANY = re.compile(
    r"(?<![\d.,/–-])1 (?:\w+ )?(?:runs|seeds|variants|times|tables|figures|numbers|steps|epochs|rows"
    r"|studies|lines|claims|files|findings|columns|cells)\b"
)


@pytest.mark.parametrize(
    ("number", "noun", "plural", "text"),
    [(0, "run", "", "0 runs"), (1, "run", "", "1 run"), (2, "study", "studies", "2 studies")],
)
def test_a_number_takes_its_noun(number, noun, plural, text):
    assert counted(number, noun, plural) == text


def test_a_study_of_one_run_is_told_in_the_singular(tmp_path, capsys, monkeypatch):
    study = planted_study("one", ["a"], seeds=(0,))
    folder = plant(tmp_path / "runs", study, "a", 0, scores={"mAP": [0.5]})
    with folder.metrics_file.open("a") as stream:
        stream.write("torn\n")
    reseal(folder)
    build([study], [], tmp_path / "runs", tmp_path / "generated", Options())
    monkeypatch.setattr(commands, "load", lambda _: [study])
    monkeypatch.setattr(commands, "others", lambda _: [])
    place = ["--runs-dir", str(tmp_path / "runs")]
    report = tmp_path / "report.html"
    paper = ["--main", str(tmp_path / "main.tex"), "--no-pdf", "--no-evidence", "--no-report"]
    (tmp_path / "main.tex").write_text(r"\input{\generated/results}")
    for words in (
        ["collect"],
        ["tables"],
        ["report", "-o", str(report)],
        ["paper", *paper],
        ["explain", "one-main:a:mAP", "--generated", str(tmp_path / "generated")],
    ):
        assert main([*words, *place]) == 0, words
    texts = {"printed": capsys.readouterr().out}
    for path in (tmp_path / "generated").rglob("*"):
        if path.suffix in (".tex", ".md", ".html", ".json"):
            texts[path.name] = re.sub(r"\\res\{\w+\}\{\*\}\{\w+\}", "1", path.read_text())
    data = re.search(
        r'<script[^>]*type="application/json"[^>]*>(.*?)</script>', report.read_text(), re.S
    )
    assert data is not None
    texts["report"] = json.dumps(json.loads(data[1]), ensure_ascii=False)
    assert "1 run" in texts["printed"]
    for name, text in texts.items():
        assert not (found := ONE_OF_MANY.search(text)), (name, found)
