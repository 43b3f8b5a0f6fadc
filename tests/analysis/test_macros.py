r"""Numbers of the text: names that LaTeX reads as they are, whatever a variant or metric is called."""

from __future__ import annotations

import json
import re

from planted import PERCENT, WEIRD, plant_all, planted_study

from analysis.paper import audits
from analysis.paper.explain import find
from analysis.paper.macros import macros, numbers_file
from analysis.runs.collect import collect
from analysis.tables import forms

DEFINITION = re.compile(r"\\resdef\{[^{}]*\}\{([A-Za-z0-9_.,+=*-]+)\}\{([!-~ ]+?)\}\{.*\}%")


def test_metrics_of_any_name_are_defined_on_a_line_of_their_own(tmp_path):
    study = planted_study("s", ["a"], metrics={"m%_#}{é\\": PERCENT}, seeds=(0,))
    plant_all(tmp_path, study)
    made = macros(collect([study], tmp_path), study)
    lines = [line for line in numbers_file(made, []).splitlines() if "U+" in line]
    assert lines and all(DEFINITION.fullmatch(line) for line in lines)
    assert DEFINITION.fullmatch(lines[0])[2] == "mU+0025_U+0023U+007DU+007BU+00E9U+005C"


def test_an_audits_numbers_have_the_variants_names_of_all_other_numbers_and_name_their_runs(tmp_path):
    study = planted_study("s", ["a", WEIRD, "}x{"])
    document = json.loads(json.dumps(audits.document(study)))
    table = audits.table(document, study)
    forms.write(table, tmp_path / "tables")
    behind = find(f"{table.name}:a:{table.columns[1].key}", tmp_path)
    assert behind.runs == tuple(run.name for run in study.runs() if run.variant == "a")
    lines = numbers_file(audits.macros(study, table), []).splitlines()
    found = [DEFINITION.fullmatch(line) for line in lines]
    assert {match[1] for match in found} == {v.slug for v in study.variants.values()}
