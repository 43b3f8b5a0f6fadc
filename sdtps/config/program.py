"""The configuration of a run that is any program: its command line, its settings, its results."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from sdtps.config.common import Frozen, LoggerName
from sdtps.config.identity import flatten
from sdtps.config.mapping import FORMATS, shipped
from sdtps.system.errors import did_you_mean

_FIELD = re.compile(r"(?<!\$)\{([A-Za-z_][\w.]*)\}")  # not ${VARIABLE}, not {a,b}
# Fields of a command line beside {settings.NAME}.
FIELDS = ("seed", "run", "config", "data", "python")
# A word that is a script below the folder in which the program is started.
_SCRIPT = re.compile(r"(?<!\S)[\w.-][\w./-]*\.(?:py|sh|R|jl|pl|rb|lua)(?!\S)")
_ELSEWHERE = re.compile(r"\b(cd|pushd)\b|[>#]")  # a line that may leave the folder, or write a script


class ProgramData(Frozen):
    """Where the program finds its data; not part of the identity."""

    root: str | None = None  # {data} in the command line

    @property
    def generate(self) -> None:
        """Nothing is generated for a program."""
        return None


class LogConfig(Frozen):
    """The log of a program that does not call `sdtps.log`: imported while the program runs."""

    file: str  # a file or folder; {run} is the run's folder, else it is relative to the directory
    # One of both: the name of a format or of a shipped mapping, or a mapping's file, relative to the
    # directory. `sdtps import --mappings` prints the names.
    format: str | None = None
    mapping: str | None = None
    # Where the mapping leaves them open, as `sdtps import` takes them: --split, --unit.
    split: Literal["val", "test", "eval"] | None = None
    unit: Literal["percent", "fraction"] | None = None

    @model_validator(mode="after")
    def _says_how(self) -> LogConfig:
        known = [*FORMATS, *shipped()]
        if (self.format is None) == (self.mapping is None):
            raise ValueError(
                "say how it is read: `format`, one of "
                f"{', '.join(known)}; or `mapping`, a file (sdtps import LOG --propose writes one)"
            )
        if self.format is not None and self.format not in known:
            raise ValueError(f"no format '{self.format}'. {did_you_mean(self.format, known)}")
        return self


class ProgramConfig(Frozen):
    """A program as a variant.

    `command` is a line for bash. Filled in, each as one word: {seed}; {settings.NAME}; {run}, the run's
    folder; {config}, its config.yaml; {data}, the data root; {python}, the interpreter of the job.
    ${VARIABLE} and {a,b} are left to bash.
    """

    task: Literal["command"] = "command"
    # Free: numbers, texts, true and false, lists. What the command line does not name is refused,
    # unless the program reads {config}.
    settings: dict[str, Any] = Field(default_factory=dict)
    command: str = Field(
        default="", description="a line for bash, such as 'python train.py --seed {seed}'"
    )
    environment: dict[str, str] = Field(default_factory=dict)
    # Where it is started, beside the manifest; not part of the identity. null: the manifest's folder.
    directory: str | None = None
    # What must lie there, which `sdtps data` checks; {settings.NAME} is filled in. Not in the identity.
    needs: tuple[str, ...] = ()
    # null: the program writes metrics.jsonl itself (`sdtps.log`).
    log: LogConfig | None = None
    # The evaluation metric that selects the epoch that `best` stands for; null: the last one.
    select: str | None = None
    select_direction: Literal["up", "down"] = "up"
    data: ProgramData = Field(default_factory=ProgramData)
    # Tools that get the rows too, as `train.loggers` of our models; not part of the identity.
    loggers: tuple[LoggerName, ...] = ()

    @field_validator("command")
    @classmethod
    def _fields_exist(cls, command: str, info: ValidationInfo) -> str:
        if not command or "settings" not in info.data:  # those have a mistake of their own
            return command
        settings = [f"settings.{name}" for name in flatten(info.data["settings"])]
        named = set(_FIELD.findall(command))
        known = [*FIELDS, *settings]
        if unknown := sorted(named.difference(known)):
            told = (f"names {{{field}}}. {did_you_mean(field, known)}" for field in unknown)
            raise ValueError("; ".join(told))
        unread = [name for name in settings if name not in named]
        if unread and "config" not in named:
            raise ValueError(
                f"does not name {', '.join(unread)}: write {{{unread[0]}}} where it "
                "belongs, or {config} if the program reads the run's config.yaml"
            )
        if "seed" not in named and "config" not in named:
            raise ValueError(
                "does not name {seed}, so all seeds would be one run: write {seed} "
                "where the program takes it (or set it by the environment and write SEED={seed} first)"
            )
        return command

    def absent(self) -> list[str]:
        """What the program needs and is not here, in words."""
        flat = {f"settings.{name}": _text(value) for name, value in flatten(self.settings).items()}
        named = (_FIELD.sub(lambda match: flat.get(match[1], match[0]), need) for need in self.needs)
        here = Path(self.directory or ".")
        paths = [here / need for need in named]
        missing = [f"{path} is not visible here" for path in paths if not path.exists()]
        if "{data}" in self.command and self.data.root is None:
            missing.append("no data root: give --data-root or set SDTPS_DATA_ROOT")
        script = None if _ELSEWHERE.search(self.command) else _SCRIPT.search(self.command)
        if script and not (here / script[0]).exists():  # of several only the first: it may write others
            others = (here / script[0]).parent.glob(f"*{Path(script[0]).suffix}")
            near = did_you_mean(script[0], [str(file.relative_to(here)) for file in others])
            missing.append(f"the command's {script[0]} is not in {here}. {near}".rstrip("."))
        return missing

    def line(self, *, seed: int, run: str) -> str:
        """The command line of one run: each field as one word for the shell."""
        values: dict[str, Any] = {
            **{f"settings.{name}": value for name, value in flatten(self.settings).items()},
            "seed": seed,
            "run": run,
            "config": f"{run}/config.yaml",
            "data": self.data.root or "",
            "python": sys.executable,
        }

        def word(match: re.Match[str]) -> str:
            return shlex.quote(_text(values[match[1]])) if match[1] in values else match[0]

        return _FIELD.sub(word, self.command)


def _text(value: Any) -> str:
    """A setting as a program's argument: true, 0.001, a text as it is, a list as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
