"""No mistake in a configuration is told in the words of the library that found it."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, ValidationError

from ablations.study.schema import FigureSpec, MetricSpec, Reported, ReportedCsv, Resources, TableSpec
from sdtps.config import ReidConfig, RetrievalConfig
from sdtps.config.wording import sentences

MODELS = (
    *(ReidConfig, RetrievalConfig),
    *(Resources, MetricSpec, TableSpec, FigureSpec, Reported, ReportedCsv),
)
# Something wrong for every type of field.
VALUES = (None, [], [[]], {}, {"x": 1}, {1: "x"}, "", "x", "5", -1, 0, 1.5, 10**40, float("inf"), True)
ITS_WORDS = ("should", "Input", "valid ", "tuple", "dictionary", "integer", "pattern", "validation")


def sections(model: type[BaseModel]) -> list[type[BaseModel]]:
    found = [model]
    for field in model.model_fields.values():
        for part in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(part, type) and issubclass(part, BaseModel):
                found += sections(part)
    return found


@pytest.mark.parametrize("model", [s for m in MODELS for s in sections(m)])
def test_a_wrong_value_of_any_field_is_told_in_our_words(model: type[BaseModel]) -> None:
    told = 0
    for name in model.model_fields:
        for value in VALUES:
            try:
                model.model_validate({name: value})
            except ValidationError as error:
                for _, text in sentences(error, model, {name: value}):
                    told += 1
                    assert not any(word in text for word in ITS_WORDS), text
                    assert "another kind" not in text, (name, text)
    assert told > len(model.model_fields)
