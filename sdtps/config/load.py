"""From plain data to a configuration, with every mistake named at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from sdtps.config.acting import idle_settings
from sdtps.config.identity import resolved
from sdtps.config.program import ProgramConfig
from sdtps.config.reid import ReidConfig
from sdtps.config.retrieval import RetrievalConfig
from sdtps.config.wording import section_of, sentences
from sdtps.config.yaml12 import Loader
from sdtps.system.errors import ConfigError, did_you_mean
from sdtps.system.files import read_bytes

Config = ReidConfig | RetrievalConfig  # of a model of ours
AnyConfig = Config | ProgramConfig
TASKS: dict[str, type[ReidConfig] | type[RetrievalConfig] | type[ProgramConfig]] = {
    "reid": ReidConfig,
    "retrieval": RetrievalConfig,
    "command": ProgramConfig,
}


def config_keys(task: str) -> dict[str, Any]:
    """Every dotted key of a task's configuration with its type annotation, sections included."""
    keys: dict[str, Any] = {}

    def walk(model: type[BaseModel], prefix: str) -> None:
        for name, field in model.model_fields.items():
            keys[f"{prefix}{name}"] = field.annotation
            section = section_of(field.annotation)
            if section is not None:
                walk(section, f"{prefix}{name}.")

    walk(TASKS[task], "")
    return keys


def tuples(value: Any) -> Any:
    """Lists become tuples: strict models keep the types that YAML and JSON cannot write."""
    if isinstance(value, list):
        return tuple(tuples(v) for v in value)
    if isinstance(value, dict):
        return {k: tuples(v) for k, v in value.items()}
    return value


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`base` with `changes` laid over it, section by section."""
    result = dict(base)
    for key, value in changes.items():
        below = result.get(key)
        if isinstance(below, dict) and isinstance(value, dict):
            value = merged(below, value)
        result[key] = value
    return result


def check_config(
    tree: dict[str, Any], *, idle: bool = False
) -> tuple[AnyConfig | None, list[tuple[str, str]]]:
    """A frozen configuration from nested dictionaries laid over the task's defaults, or its mistakes.

    Args:
        idle: accept settings off their default that nothing reads (see `sdtps.config.acting`).

    Returns:
        the configuration and no mistakes, or None and (dotted key, sentence) for each mistake.
    """
    task = tree.get("task", "reid")
    if not isinstance(task, str) or task not in TASKS:
        return None, [("task", f"unknown task '{task}'. {did_you_mean(str(task), TASKS)}")]
    tree = merged(resolved(TASKS[task]()), tree)
    try:
        config = TASKS[task].model_validate(tuples(tree))
    except ValidationError as error:
        wrong = sentences(error, TASKS[task], tree)
        return None, [(".".join(map(str, path)), text) for path, text in wrong]
    if not idle and (mistakes := idle_settings(config)):
        return None, mistakes
    return config, []


def parse_config(
    tree: dict[str, Any], *, where: str = "configuration", idle: bool = False
) -> AnyConfig:
    """A frozen configuration from nested dictionaries, laid over the task's defaults.

    A section given in part keeps the task's own values for the rest (DeMo's optimiser, say), not the
    section's general ones. `idle` as in `check_config`.

    Raises:
        ConfigError: unknown keys, wrong types, parts that do not fit; all of them in one text.
    """
    config, mistakes = check_config(tree, idle=idle)
    if config is None:
        lines = [f"{where}: {key or tree.get('task', 'reid')}: {text}" for key, text in mistakes]
        raise ConfigError("\n".join(lines))
    return config


def load_config(path: Path) -> AnyConfig:
    """The configuration that a run folder's config.yaml holds (written by us, fully resolved)."""
    try:
        content = read_bytes(path)
        tree = content and yaml.load(content, Loader)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    if content is None:
        raise ConfigError(f"{path}: there is no file of that name")
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: holds no configuration")
    # What a run was is read as it is, also where an idle setting would be refused today.
    return parse_config(tree, where=str(path), idle=True)
