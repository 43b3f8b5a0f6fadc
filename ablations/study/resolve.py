"""From base file, study overrides and variant overrides to resolved configurations."""

from __future__ import annotations

import functools
import os
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ablations.study.mistakes import Source
from sdtps.config import AnyConfig, ProgramConfig, config_keys, mapping, resolved
from sdtps.config.acting import idle_settings
from sdtps.config.identity import flatten
from sdtps.config.load import TASKS, check_config
from sdtps.config.yaml12 import KeyPath
from sdtps.run.locations import shipped
from sdtps.system.errors import ManifestError, did_you_mean

keys_of = functools.cache(config_keys)  # asked for each setting of each variant


class Setting(NamedTuple):
    """A value of the configuration, and where it is written."""

    value: Any
    source: Source
    path: KeyPath


Settings = dict[str, Setting]  # by dotted key
Value = TypeVar("Value")


class Resolver:
    """Resolves each variant against one base; mistakes land where their value was written.

    Attributes:
        base: the configuration variants differ from.
        text: the base file's text, for the study's digest.
        broken: names of variants with mistakes in their overrides.
    """

    def __init__(
        self,
        source: Source,
        *,
        task: str | None,
        base: str | None,
        varies: tuple[str, ...] | None,
        data_root: str | None,
    ) -> None:
        """`varies` is None where it is written and has a mistake: then variants may change anything."""
        self.source = source
        self.broken: set[str] = set()
        before = len(source.found)
        file = self._base(base)
        self.text = file.document.text if file is not None else ""
        tree = file.document.data if file is not None else {}
        base_task = tree.pop("task", None)
        self.task = task or (base_task if base_task in list(TASKS) else None) or "reid"
        if file is not None and base_task not in (None, self.task):
            file.mistake(("task",), f"the study's task is {self.task}; the base's is {base_task!r}")
        settings = self._flatten(self.task, file or source, (), tree)
        overrides = source.document.data.get("overrides")
        if overrides is not None and not isinstance(overrides, dict):
            source.mistake(("overrides",), "must map dotted keys to values")
        elif overrides:
            over = self._flatten(self.task, source, ("overrides",), overrides)
            settings = {**without(settings, over), **over}
        if self.task == "command":
            self._place_directory(settings)
        config, bad = self._resolve(self.task, {}, settings)
        settings = {key: setting for key, setting in settings.items() if key not in bad}
        if data_root is not None and config.data.root is None and config.data.generate is None:
            settings["data.root"] = Setting(data_root, source, ())
            config, _ = self._resolve(self.task, {}, settings)
        self.values = {key: setting.value for key, setting in settings.items()}
        self.base = config
        self._base_is_sound = len(source.found) == before
        if isinstance(config, ProgramConfig):
            self._check_mapping(config, ("overrides",) if overrides else ())
        self._flat_base = flatten(resolved(config))
        self.varies = varies
        for i, key in enumerate(varies or ()):  # one that is listed twice says nothing more
            known = key in keys_of(self.task) or key in keys_of("command") or _is_free(self.task, key)
            if not known or key == "task":
                self._tell_unknown(self.task, source, ("varies", i), key)

    def variant(
        self, path: KeyPath, name: str, overrides: dict[str, Any], written: dict[str, KeyPath]
    ) -> AnyConfig:
        """The variant's configuration, without the overrides that have mistakes.

        With a `command` it is a program, which has no base in a study of our own models.
        `path` is where the variant is declared, `written` where each of its overrides is.
        """
        before = len(self.source.found)
        task = "command" if "command" in overrides else self.task
        own: Settings = {}
        for key, value in overrides.items():
            own |= self._flatten(task, self.source, written[key][:-1], {key: value}, above=own)
        known = [key for key in self._flat_base if key.startswith("settings.")]
        for key, setting in list(own.items()):
            self._check_allowed(setting, key)
            chosen = task == self.task == "command" and key.startswith("settings.")
            if chosen and not self.source.expect(setting.path, key, known, "is no setting of the base"):
                del own[key]
        base = self.values if task == self.task else {}
        if "directory" in own or task != self.task:
            self._place_directory(own)
        kept = self._without_idle(task, base, own)
        config, _ = self._resolve(task, kept, own, path)
        if isinstance(config, ProgramConfig):
            if not config.command and self._base_is_sound:  # a misspelt `command` is named there
                text = "has no command line: give `command` in 'overrides', the base or the variant"
                self.source.mistake(path, text)
            if any(key.split(".")[0] in ("log", "directory") for key in own):
                self._check_mapping(config, path)
        if len(self.source.found) > before:
            self.broken.add(name)
        return config

    def _without_idle(self, task: str, base: dict[str, Any], own: Settings) -> dict[str, Any]:
        """`base` without what `own` replaces, and what does nothing in this variant."""
        kept = without(base, own)
        while True:
            values = {**kept, **{key: setting.value for key, setting in own.items()}}
            config, _ = check_config({**nest(values), "task": task}, idle=True)
            idle = {key for key, _ in idle_settings(config)} & kept.keys() if config else set()
            if not idle:
                return kept
            kept = {key: value for key, value in kept.items() if key not in idle}

    def _check_mapping(self, config: ProgramConfig, path: KeyPath) -> None:
        """The mapping of a program's log, before anything is trained whose log could not be read."""
        if config.log is None or config.log.mapping is None:
            return
        try:
            mapping.load(config.log.mapping, Path(config.directory or "."))
        except mapping.MappingError as error:
            for text in str(error).splitlines():
                self.source.mistake(path, f"log.mapping: {text}")

    def _place_directory(self, settings: Settings) -> None:
        """Where a program is started: relative to the manifest, in its folder if nothing is said."""
        given = settings.get("directory", Setting("", self.source, ()))
        if given.value is None or isinstance(given.value, str):
            folder = (self.source.file.absolute().parent / (given.value or "")).resolve()
            settings["directory"] = given._replace(value=str(folder))

    # -- reading --------------------------------------------------------------------------------

    def _base(self, name: str | None) -> Source | None:
        if name is None:
            return None
        folder = self.source.file.parent
        path = folder / name
        try:
            base = Source.read(path, self.source.found)
        except ManifestError as error:
            found = sorted(p.relative_to(folder).as_posix() for p in path.parent.glob("*.yaml"))
            hint = f" {did_you_mean(name, found)}" if not os.path.lexists(path) and found else ""
            # Never read in its stead: a base that somebody forgot to send along may bear the name, too.
            ours = shipped("ablations") / name
            if not os.path.lexists(path) and ours.is_file():
                words = shlex.join(("mkdir", "-p", str(path.parent)))
                words += " && " + shlex.join(("cp", str(ours), str(path)))
                hint = (
                    f" The program comes with a base of this name; to begin with a copy of it: {words}"
                )
            self.source.mistake(("base",), f"{error}.{hint}")
            return None
        if base.document.data is not None and not isinstance(base.document.data, dict):
            base.mistake((), "must map configuration keys to values")
        return base if isinstance(base.document.data, dict) else None

    def _flatten(
        self,
        task: str,
        source: Source,
        path: KeyPath,
        tree: dict[str, Any],
        prefix: str = "",
        above: Settings | None = None,
    ) -> Settings:
        """Nested keys become dotted ones; a mistake if unknown, or set by one of `above`."""
        settings: Settings = {}
        for written, value in tree.items():
            key, place = f"{prefix}{written}", (*path, written)
            known = {**(above or {}), **settings}
            if key not in keys_of(task) and not _is_free(task, key):
                self._tell_unknown(task, source, place, key)
            elif isinstance(value, dict) and value:
                settings |= self._flatten(task, source, place, value, f"{key}.", known)
            elif clash := next((k for k in known if _related(k, key)), None):
                line = known[clash].source.document.line(known[clash].path)
                source.mistake(place, f"'{key}' and '{clash}' (line {line}) set the same value")
            else:
                settings[key] = Setting(value, source, place)
        return settings

    def _tell_unknown(self, task: str, source: Source, path: KeyPath, key: str) -> None:
        """Siblings where the section is right, else the nearest of all keys and the sections."""
        keys = keys_of(task)
        parent = key.rpartition(".")[0]
        while parent and parent not in keys:
            parent = parent.rpartition(".")[0]
        siblings = [k for k in keys if k.rpartition(".")[0] == parent and k != "task"]
        same_end = [k for k in keys if k.rpartition(".")[2] == key.rpartition(".")[2]]
        if same_end and key not in siblings:
            near = f"Did you mean '{same_end[0]}'? "
        else:
            near = did_you_mean(key, siblings if parent else keys).partition("Allowed:")[0]
        source.mistake(path, f"unknown key '{key}'. {near}Allowed: {', '.join(sorted(siblings))}.")

    def _check_allowed(self, setting: Setting, key: str) -> None:
        if self.varies is None or any(inside(key, section) for section in self.varies):
            return
        if not self.varies:  # told once for all variants that change it
            text = f"lists nothing, and variants change '{key}'. Add it: varies: [{key}]"
            self.source.mistake(("varies",), text)
            return
        text = f"'{key}' may not change here: 'varies' lists {', '.join(self.varies)}"
        self.source.mistake(setting.path, f"{text}. Add it there if this study is about it")

    def _resolve(
        self, task: str, values: dict[str, Any], own: Settings, path: KeyPath | None = None
    ) -> tuple[AnyConfig, set[str]]:
        """The configuration of `own` laid over `values`, and the keys with mistakes, left out of it.

        `path` is the variant being resolved: mistakes that no single setting causes land there.
        """
        values = {**values, **{key: setting.value for key, setting in own.items()}}
        bad: set[str] = set()
        while True:
            config, found = check_config({**nest(values), "task": task})
            if config is not None:
                return config, bad
            dropped: set[str] = set()
            for key, text in found:
                guilty = [k for k in own if _related(k, key)]
                written = [k for k in guilty if k in values]
                if path is not None and not written:
                    written = [k for k in own if k in values]  # a rule across sections
                if len(guilty) == 1:
                    own[guilty[0]].source.mistake(own[guilty[0]].path, text)
                elif path is not None or not guilty:
                    self.source.mistake(path or ("base",), f"{key or task}: {text}")
                else:
                    setting = own[guilty[0]]
                    setting.source.mistake(setting.path[:-1], f"{key}: {text}")
                dropped.update(written)
            if not dropped:  # nothing of ours to leave out: fall back to what is known to be good
                return (TASKS[task]() if path is None else self.base), set(values)
            bad |= dropped
            for key in dropped:
                del values[key]


def _is_free(task: str, key: str) -> bool:
    """A program's settings and environment have names of their own."""
    return task == "command" and key.startswith(("settings.", "environment."))


def inside(key: str, section: str) -> bool:
    """`key` is `section` itself, or lies in it."""
    return key == section or key.startswith(f"{section}.")


def _related(a: str, b: str) -> bool:
    """One of the keys is the other, or lies in it. The empty key contains all."""
    return not b or inside(a, b) or inside(b, a)


def without(values: dict[str, Value], others: Iterable[str]) -> dict[str, Value]:
    """`values` without the keys `others`, their sections and what is in them."""
    return {k: v for k, v in values.items() if not any(inside(k, o) or inside(o, k) for o in others)}


def nest(values: dict[str, Any]) -> dict[str, Any]:
    """Dotted keys as nested mappings."""
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *sections, last = key.split(".")
        below = tree
        for section in sections:
            below = below.setdefault(section, {})
        below[last] = value
    return tree
