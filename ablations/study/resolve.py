"""From base file, study overrides and variant overrides to resolved configurations."""

from __future__ import annotations

import difflib
import os
import shlex
from pathlib import Path
from typing import Any

from ablations.study.mistakes import Mistakes, Source
from sdtps.config import AnyConfig, CommandConfig, config_keys, mapping, resolved
from sdtps.config.acting import idle_settings
from sdtps.config.identity import flatten
from sdtps.config.load import TASKS, check_config
from sdtps.config.yaml12 import KeyPath
from sdtps.run.locations import shipped
from sdtps.system.errors import ManifestError, did_you_mean

# What a variant that is a program may have, in a study of our own models.
_OF_PROGRAMS = frozenset(config_keys("command"))

# Where a value was written: the file and the path inside it.
Place = tuple[Source, KeyPath]


class Resolver:
    """Resolves each variant against one base; mistakes land where their value was written.

    Attributes:
        task: reid or retrieval.
        base: the configuration variants differ from.
        text: the base file's text, for the study's digest.
        broken: names of variants with mistakes in their overrides.
    """

    def __init__(
        self,
        mistakes: Mistakes,
        file: Path,
        source: Source,
        header: dict[str, Any],
        tree: dict[str, Any],
        data_root: str | None,
        known: frozenset[str],
    ) -> None:
        self.mistakes = mistakes
        self.source = source
        self.tree = tree
        self._known = known
        self._told_no_varies = False
        noted = mistakes.noted
        self.text = ""
        self.broken: set[str] = set()
        self._programs: set[str] = set()
        values: dict[str, Any] = {}
        places: dict[str, Place] = {}
        base = self._base(file, header.get("base"))
        base_task = base.document.data.pop("task", None) if base is not None else None
        self.task = header.get("task") or (base_task if base_task in list(TASKS) else None) or "reid"
        if base is not None and base_task is not None and base_task != self.task:
            text = f"the study's task is {self.task}; the base's is {base_task!r}"
            mistakes.add(base, ("task",), text)
        self.keys = config_keys(self.task)
        self._folder = file.absolute().parent
        if base is not None:
            self._flatten(base, (), base.document.data, values, places)
        overrides = tree.get("overrides")
        if overrides is not None and not isinstance(overrides, dict):
            mistakes.add(source, ("overrides",), "must map dotted keys to values")
        elif overrides:
            over: dict[str, Any] = {}
            over_places: dict[str, Place] = {}
            self._flatten(source, ("overrides",), overrides, over, over_places)
            _lay_over(values, over)
            _lay_over(places, over_places)
        if self.task == "command":
            self._place_directory(values)
        config, bad = self._resolve(values, places)
        for key in bad:
            values.pop(key, None)
        if data_root is not None and config.data.root is None and config.data.generate is None:
            values["data.root"] = data_root
            config, _ = self._resolve(values, places)
        self.values, self.base = values, config
        self._base_is_sound = mistakes.noted == noted
        self._idle: dict[str, set[str]] = {}  # variant to settings of the study that do nothing in it
        if isinstance(config, CommandConfig):
            self._check_mapping(config, ("overrides",) if overrides else ())
        self._flat_base = flatten(resolved(config))
        self.varies = self._varies(header.get("varies") or ())

    def variant(
        self, path: KeyPath, name: str, overrides: dict[str, Any], written: dict[str, KeyPath]
    ) -> AnyConfig:
        """The variant's configuration, without the overrides that have mistakes.

        `path` is where the variant is declared, `written` where each of its overrides is.
        """
        if "command" in overrides and self.task != "command":
            return self._program(path, name, overrides, written)
        before = self.mistakes.noted
        values: dict[str, Any] = {}
        places: dict[str, Place] = {}
        for key, value in overrides.items():
            self._flatten(self.source, written[key][:-1], {key: value}, values, places)
        for key in values:
            self._check_allowed(places[key], key)
            self._check_setting(places[key], key)
        if "directory" in values:
            self._place_directory(values)
        merged = {**_without(self.values, values), **values}
        self._idle[name] = self._idle_of_study(merged, values)
        kept = {key: value for key, value in merged.items() if key not in self._idle[name]}
        config, _ = self._resolve(kept, places, path)
        if isinstance(config, CommandConfig):
            if not config.command and self._base_is_sound:  # a misspelt `command` is named there
                text = "has no command line: give `command` in 'overrides', the base or the variant"
                self.mistakes.add(self.source, path, text)
            if any(key.split(".")[0] in ("log", "directory") for key in values):
                self._check_mapping(config, path)
        if self.mistakes.noted > before:
            self.broken.add(name)
        return config

    def _idle_of_study(self, merged: dict[str, Any], own: dict[str, Any]) -> set[str]:
        """Settings that the study or its base sets for all variants and that do nothing in this one."""
        dropped: set[str] = set()
        while True:
            kept = {key: value for key, value in merged.items() if key not in dropped}
            config, _ = check_config({**nest(kept), "task": self.task}, idle=True)
            found = [] if config is None else idle_settings(config)
            more = {key for key, _ in found if key in kept and key not in own}
            if not more:
                return dropped
            dropped |= more

    def _program(
        self, path: KeyPath, name: str, overrides: dict[str, Any], written: dict[str, KeyPath]
    ) -> AnyConfig:
        """A variant that is a program, in a study of our own models."""
        self._programs.add(name)
        values: dict[str, Any] = {}
        before = self.mistakes.noted
        for key, value in overrides.items():
            self._check_allowed((self.source, written[key]), key)
            values[key] = value
        self._place_directory(values)
        config, found = check_config({**nest(values), "task": "command"})
        for key, text in found:
            self.mistakes.add(self.source, written.get(key, path), text)
        if self.mistakes.noted > before:
            self.broken.add(name)
        if isinstance(config, CommandConfig):
            self._check_mapping(config, path)
        return self.base if config is None else config

    def _check_mapping(self, config: CommandConfig, path: KeyPath) -> None:
        """The mapping of a program's log, before anything is trained whose log could not be read."""
        if config.log is None or config.log.mapping is None:
            return
        try:
            mapping.load(config.log.mapping, Path(config.directory or "."))
        except mapping.MappingError as error:
            for text in str(error).splitlines():
                self.mistakes.add(self.source, path, f"log.mapping: {text}")

    def _place_directory(self, values: dict[str, Any]) -> None:
        """Where a program is started: relative to the manifest, in its folder if nothing is said."""
        given = values.get("directory")
        if given is None or isinstance(given, str):
            values["directory"] = str((self._folder / (given or "")).resolve())

    def _check_setting(self, place: Place, key: str) -> None:
        """A variant changes settings that the base has: a new name would be a typing error."""
        known = [k for k in self._flat_base if k.startswith("settings.")]
        if self.task == "command" and key.startswith("settings.") and key not in known:
            text = f"the base has no '{key}'. {did_you_mean(key, known)}"
            self.mistakes.add(*place, text)

    def check_declared(
        self, path: KeyPath, name: str, overrides: dict[str, Any], config: AnyConfig
    ) -> None:
        """A variant differs from the base in the keys it declares and in nothing else."""
        if name in self.broken or name in self._programs:
            return
        flat = flatten(resolved(config))
        for key in self._flat_base.keys() | flat.keys():
            if self._flat_base.get(key) == flat.get(key) or key in overrides or key in self._idle[name]:
                continue
            if not any(key.startswith(f"{o}.") or o.startswith(f"{key}.") for o in overrides):
                text = f"changes '{key}' without declaring it ({', '.join(overrides)})"
                self.mistakes.add(self.source, path, text)

    # -- reading --------------------------------------------------------------------------------

    def _base(self, file: Path, name: str | None) -> Source | None:
        if name is None:
            return None
        path = file.parent / name
        try:
            base = Source.read(path)
        except ManifestError as error:
            found = sorted(p.relative_to(file.parent).as_posix() for p in path.parent.glob("*.yaml"))
            hint = f" {did_you_mean(name, found)}" if not os.path.lexists(path) and found else ""
            # Never read in its stead: a base that somebody forgot to send along may bear the name, too.
            ours = shipped("ablations") / name
            if not os.path.lexists(path) and ours.is_file():
                words = shlex.join(("mkdir", "-p", str(path.parent)))
                words += " && " + shlex.join(("cp", str(ours), str(path)))
                hint = (
                    f" The program comes with a base of this name; to begin with a copy of it: {words}"
                )
            self.mistakes.add(self.source, ("base",), f"{error}.{hint}")
            return None
        self.text = base.document.text
        self.mistakes.add_problems(base)
        if base.document.data is None:
            return None
        if not isinstance(base.document.data, dict):
            self.mistakes.add(base, (), "must map configuration keys to values")
            return None
        return base

    def _flatten(
        self,
        source: Source,
        path: KeyPath,
        tree: dict[str, Any],
        values: dict[str, Any],
        places: dict[str, Place],
        prefix: str = "",
    ) -> None:
        """Nested and dotted keys alike become dotted keys; unknown ones are mistakes."""
        for written, value in tree.items():
            key, place = f"{prefix}{written}", (*path, written)
            if key not in self.keys and not self._free(key):
                self.mistakes.add(source, place, f"unknown key '{key}'. {self._nearest(key)}")
                continue
            if isinstance(value, dict) and value:
                self._flatten(source, place, value, values, places, f"{key}.")
                continue
            clash = _clash(key, values)
            if clash is not None:
                line = places[clash][0].document.line(places[clash][1])
                self.mistakes.add(
                    source, place, f"'{key}' and '{clash}' (line {line}) set the same value"
                )
                continue
            values[key], places[key] = value, (source, place)

    def _free(self, key: str) -> bool:
        """A program's settings and environment have names of their own."""
        return self.task == "command" and key.startswith(("settings.", "environment."))

    def _nearest(self, key: str) -> str:
        """Siblings where the section is right, else the nearest of all keys, else the sections."""
        parent = key.rpartition(".")[0]
        while parent and parent not in self.keys:
            parent = parent.rpartition(".")[0]
        siblings = [k for k in self.keys if k.rpartition(".")[0] == parent]
        if parent or "." not in key:
            same_end = [k for k in self.keys if k.rpartition(".")[2] == key.rpartition(".")[2]]
            if same_end and key not in siblings:
                return f"Did you mean '{same_end[0]}'? {did_you_mean('', siblings)}"
            return did_you_mean(key, siblings)
        near = did_you_mean(key, self.keys).partition("Allowed:")[0]
        return f"{near}Sections: {', '.join(sorted(s for s in siblings if s != 'task'))}."

    def _varies(self, varies: tuple[str, ...]) -> tuple[str, ...]:
        for i, key in enumerate(varies):
            place = ("varies", i)
            known = key in self.keys or key in _OF_PROGRAMS or self._free(key)
            if not known or key == "task":
                self.mistakes.add(self.source, place, f"unknown key '{key}'. {self._nearest(key)}")
            elif key in varies[:i]:
                self.mistakes.add(self.source, place, f"'{key}' is listed twice")
        return varies

    def _check_allowed(self, place: Place, key: str) -> None:
        if any(key == v or key.startswith(f"{v}.") for v in self.varies):
            return
        if not self.varies:
            self._tell_no_varies(place, key)
            return
        text = f"'{key}' may not change here: 'varies' lists {', '.join(self.varies)}"
        self.mistakes.add(*place, f"{text}. Add it there if this study is about it")

    def _tell_no_varies(self, place: Place, key: str) -> None:
        """Once for all variants, and not where the list is there but misspelt: that is told already."""
        written = self.tree.get("varies", [])
        unknown = [k for k in self.tree if k not in self._known]
        misspelt = "varies" not in self.tree and difflib.get_close_matches("varies", unknown, n=1)
        if self._told_no_varies or misspelt or not isinstance(written, list):
            return
        self._told_no_varies = True
        text = f"'{key}' may not change here: 'varies' lists nothing"
        self.mistakes.add(*place, f"{text}. Add what variants may change: varies: [{key}]")

    def _resolve(
        self, values: dict[str, Any], places: dict[str, Place], path: KeyPath | None = None
    ) -> tuple[AnyConfig, set[str]]:
        """The configuration of dotted `values`, leaving out those with mistakes (noted, and returned).

        `path` is the variant being resolved: mistakes that no single value causes land there.
        """
        values = dict(values)
        bad: set[str] = set()
        while True:
            config, found = check_config({**nest(values), "task": self.task})
            if config is not None:
                return config, bad
            dropped: set[str] = set()
            for key, text in found:
                guilty = [k for k in places if _related(k, key)]
                written = [k for k in guilty if k in values]
                if path is not None and not written:
                    written = [k for k in places if k in values]  # a rule across sections
                if len(guilty) == 1:
                    self.mistakes.add(*places[guilty[0]], text)
                elif path is not None:
                    self.mistakes.add(self.source, path, f"{key or self.task}: {text}")
                elif guilty:
                    source, place = places[guilty[0]]
                    self.mistakes.add(source, place[:-1], f"{key}: {text}")
                else:
                    self.mistakes.add(self.source, ("base",), f"{key or self.task}: {text}")
                dropped.update(written)
            if not dropped:  # nothing of ours to leave out: fall back to what is known to be good
                if path is None:
                    return TASKS[self.task](), set(values)
                return self.base, bad | set(places)
            bad |= dropped
            for key in dropped:
                del values[key]


def inside(key: str, section: str) -> bool:
    """`key` is `section` itself, or lies in it."""
    return key == section or key.startswith(f"{section}.")


def _related(a: str, b: str) -> bool:
    """One of the keys is the other, or lies in it. The empty key contains all."""
    return not b or inside(a, b) or inside(b, a)


def _clash(key: str, values: dict[str, Any]) -> str | None:
    """A key already set that is `key`, or a section of it, or lies in it."""
    if key in values:
        return key
    return next((k for k in values if inside(k, key) or inside(key, k)), None)


def _without(values: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """`values` without those that an override replaces: the same key, its section, or what is in it."""
    return {k: v for k, v in values.items() if not any(inside(k, o) or inside(o, k) for o in overrides)}


def _lay_over(values: dict[str, Any], over: dict[str, Any]) -> None:
    kept = _without(values, over)
    values.clear()
    values.update(kept)
    values.update(over)


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
