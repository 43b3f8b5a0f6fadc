"""What stops averaging over seeds: missing runs; runs of different code, data or weights; no values.

A run's identity names data and weights as its configuration does: by data set and file name, not by
their content. The content is in `origin` of result.json (`sdtps.run.provenance`).

Which variants differ in which settings is here too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path, PurePath
from typing import Any

from ablations.store.states import UNFINISHED
from ablations.study.model import Study, as_written
from analysis.runs import hints
from analysis.runs.collect import Collected
from analysis.runs.record import Run
from sdtps.config import resolved
from sdtps.config.identity import NOT_IN_IDENTITY, flatten
from sdtps.system.errors import AggregationError, counted, did_you_mean

# Kinds of marks, each with what the option that allows it does: `--allow-mixed-code` for `mixed_code`.
KINDS = {
    "missing": "go on without runs that are missing or unfinished, and say so in print",
    "damaged": "go on without runs that were changed after they had ended, and say so in print",
    "mixed_code": "put runs of different code versions into one table, and say so in print",
    "mixed_data": "put runs on different data of one name into one table, and say so in print",
    "mixed_weights": "put runs from different weights of one name into one table, and say so in print",
    "mixed_precision": "put runs whose `train.amp: auto` differs into one table, and say so in print",
}


@dataclass(frozen=True)
class Mark:
    """Something that a reader of a table must know; `text` is plain, without the study's name.

    `runs` are the folders of the runs it is about, each with what is odd about it.
    """

    study: str
    kind: str  # one of KINDS
    text: str
    runs: dict[str, str]


def option(kind: str) -> str:
    """The option that allows a kind of mark."""
    return f"--allow-{kind.replace('_', '-')}"


def refuse_to_average(
    collected: Collected,
    *,
    allow: Collection[str] = (),
    studies: Sequence[str] | None = None,
) -> list[Mark]:
    """What stands against averaging over seeds, as marks to be printed.

    A run that diverged or failed for good is a result and is shown as one; a run that is missing or
    unfinished is a hole.

    Args:
        allow: of `KINDS`, what is marked and not refused.

    Raises:
        AggregationError: a seed is missing, or code, data or weights are mixed, and that is not
            allowed; the text names each run and the command that gets it.
    """
    marks: list[Mark] = []
    complaints: list[str] = []
    for study in collected.studies:
        if studies is not None and study.name not in studies:
            continue
        runs = collected.runs_of(study.name)
        found = [*_unfinished(study, runs), *mixtures(study, runs)]
        marks += found
        for mark in (mark for mark in found if mark.kind not in allow):
            doubt = " They may not be comparable." if mark.kind.startswith("mixed") else ""
            complaints.append(f"{study.name}: {mark.text}.{doubt}")
            for run in (run for run in runs if run.folder in mark.runs):
                what = f"{mark.runs[run.folder]}: {run.folder}"
                complaints.append(f"  {run.variant} seed {run.seed}: {what}")
            ends = remedy(mark.kind, study, collected.runs_dir)
            complaints.append(f"  {ends}    or: {option(mark.kind)}")
    if complaints:
        raise AggregationError("\n".join(complaints))
    return marks


_REMEDY = {
    "missing": "Get them",
    "damaged": "Restore the files, or delete these folders and run",
    "mixed_precision": "Delete these folders and run",
}


def remedy(kind: str, study: Study, runs_dir: Path) -> str:
    """The command that repairs a kind of mark.

    Of a mixture, it trains what is not of today: the runs that a mark names are the fewer, and may be
    those of today.
    """
    what = _REMEDY.get(kind, "Run again what other code, data or weights made")
    again = () if kind in _REMEDY else ("--retry", "stale")
    return f"{what}: {hints.submit(study.path, runs_dir, *again)}"


def _unfinished(study: Study, runs: Sequence[Run]) -> Iterator[Mark]:
    """Planned runs without an end, and runs that were changed after theirs."""
    planned = [run for run in runs if run.planned]
    if holes := [run for run in planned if run.state in UNFINISHED]:
        text = f"{len(planned) - len(holes)} of {len(planned)} planned runs have ended"
        words = {
            run.folder: f"{run.word} ({run.reason})" if run.reason and "(" not in run.word else run.word
            for run in holes
        }
        yield Mark(study.name, "missing", text, words)
    if damaged := {run.folder: "; ".join(run.changed) for run in runs if run.changed}:
        text = f"the files of {counted(len(damaged), 'run')} were changed after their end"
        yield Mark(study.name, "damaged", text, damaged)


# -- mixtures --------------------------------------------------------------------------------------

NOT_RECORDED = "not recorded"
SHOWN = 12  # digits of a digest that a reader needs; as long as `not recorded`
# What decides which files of a data set a run reads, and so its digest; the place does not.
_WHAT_IS_READ = (
    *("data.dataset", "data.generate"),
    *("eval.select_on", "eval.test_split", "eval.also_dense_text"),
    *("matching.form", "matching.dense_text", "matching.eval_dense_text"),
)


def mixtures(study: Study, runs: Sequence[Run]) -> list[Mark]:
    """What is mixed among the completed runs of a study; other people's logs say nothing of it."""
    done = [run for run in runs if run.state == "completed" and not run.imported]

    @cache  # runs of a variant read the same
    def files_read(variant: str) -> str:
        return repr([setting(study, variant, key) for key in _WHAT_IS_READ])

    found = [_code(study, done), _evaluations(study, done)]
    read = (lambda run: files_read(run.variant), lambda run: run.data)
    found.append(_mixture(study, "mixed_data", "data", done, *read))
    for part in ("backbone", "image_encoder", "text_encoder"):
        file, digests = partial(_file, study, part), {run: run.weights.get(part) for run in done}
        named, what = list(filter(file, done)), f"weights of {part.replace('_', ' ')}"
        found.append(_mixture(study, "mixed_weights", what, named, file, digests.get))
    for name in sorted({name for run in done for name in run.program}):  # of the study's own program
        programs = {run: run.program[name] for run in done if name in run.program}
        what = f"file {name}"
        found.append(_mixture(study, "mixed_code", what, list(programs), lambda _: "", programs.get))
    auto = [run for run in done if setting(study, run.variant, "train.amp") == "auto"]
    found.append(
        _mixture(study, "mixed_precision", "precision", auto, lambda _: "", lambda run: run.precision)
    )
    return [mixture for mixture in found if mixture is not None]


def code_of(run: Run) -> str:
    """The sources that trained a run: `begun with A, finished with B` where there are two."""
    codes = [code[:SHOWN] for code in run.codes]
    if len(codes) < 2:
        return codes[0] if codes else NOT_RECORDED
    between = "".join(f"went on with {code}, " for code in codes[1:-1])
    return f"begun with {codes[0]}, {between}finished with {codes[-1]}"


def _code(study: Study, done: Sequence[Run]) -> Mark | None:
    versions = Counter(code_of(run) for run in done)
    single = [code for code, _ in versions.most_common() if " " not in code]
    if len(versions) < 2 and len(single) == len(versions):
        return None
    most = single[0] if single else ""
    odd = {run.folder: code_of(run) for run in done if code_of(run) != most}
    codes = {code for run in done for code in run.codes}
    if len(codes) > 1:
        head = f"{len(codes)} code versions are mixed"
    else:
        head = "not every run records its code"
    return Mark(study.name, "mixed_code", f"{head}: {_listed(versions)}", odd)


def _evaluations(study: Study, done: Sequence[Run]) -> Mark | None:
    """Runs that `sdtps evaluate` scored for a metric of the study with other code than trained them."""
    odd: dict[str, str] = {}
    for run in done:
        by = {code for name, code in run.evaluated_by.items() if name in study.metrics}
        other = sorted((code or NOT_RECORDED)[:SHOWN] for code in by - {run.code})
        if other:
            odd[run.folder] = f"trained with {code_of(run)}, evaluated with {', '.join(other)}"
    if not odd:
        return None
    head = "some runs were evaluated, after training, with other code than trained them"
    return Mark(study.name, "mixed_code", f"{head}: {_listed(Counter(odd.values()))}", odd)


def _file(study: Study, part: str, run: Run) -> str:
    """The encoder and the file of its weights, as the run's identity has them; empty for none."""
    weights = setting(study, run.variant, f"{part}.weights")
    if weights in (None, "random"):
        return ""
    return f"{setting(study, run.variant, f'{part}.name')} {PurePath(weights).name}"


def _mixture(
    study: Study,
    kind: str,
    what: str,
    done: Sequence[Run],
    group: Callable[[Run], str],
    version: Callable[[Run], str | None],
) -> Mark | None:
    """Within each group, runs that do not have the version that most have."""
    groups: dict[str, list[Run]] = {}
    for run in done:
        groups.setdefault(group(run), []).append(run)
    mixed: Counter[str] = Counter()
    odd: dict[str, str] = {}
    for members in groups.values():
        versions = Counter((version(run) or NOT_RECORDED)[:SHOWN] for run in members)
        if len(versions) > 1:
            mixed += versions
            most = versions.most_common(1)[0][0]
            found = {run.folder: (version(run) or NOT_RECORDED)[:SHOWN] for run in members}
            odd |= {folder: here for folder, here in found.items() if here != most}
    if not mixed:
        return None
    text = f"{len(mixed)} versions of the {what} are mixed under one name: {_listed(mixed)}"
    return Mark(study.name, kind, text, odd)


def _listed(versions: Counter[str]) -> str:
    return "; ".join(f"{name} ({counted(n, 'run')})" for name, n in versions.most_common())


def unlogged(collected: Collected, names: Sequence[str] = ()) -> Iterator[str]:
    """A sentence for each metric (of `names`; none: all) that no finished run has in its result.

    Of studies with programs, which log what they like: what our models log is known with the manifest.
    """
    for study in collected.studies:
        programs = len(study.models()) < len(study.variants)
        runs = [r for r in collected.runs_of(study.name) if programs and r.state == "completed"]
        has = {name for run in runs for name in (*run.best, *run.last)}
        has |= {name.partition("/")[2] for run in runs for name in run.not_finite}
        for name in names or study.metrics:
            if has and name not in has:
                near = did_you_mean(name, has).replace("Allowed:", "Logged:")
                yield f"{study.name}: no finished run has '{name}' in its last evaluation. {near}"


# -- what variants are set to -------------------------------------------------------------------


def settings(study: Study, variant: str) -> dict[str, Any] | None:
    """Dotted key to value of a variant; None for one without a configuration (imported beside ours)."""
    if variant not in study.variants:
        return None
    config = study.variants[variant].config
    # An imported study's variant has no configuration of ours but what its log printed, flat.
    return config if isinstance(config, dict) else flatten(resolved(config))


def setting(study: Study, variant: str, key: str) -> Any:
    """The resolved value of a dotted key in a variant; None where it has none."""
    return (settings(study, variant) or {}).get(key)


def readable(value: Any) -> str:
    """A configuration value as people write it."""
    if isinstance(value, (list, tuple)):
        return ", ".join(readable(v) for v in value) or "none"
    return str(value) if isinstance(value, dict) else as_written(value, none="none")


def varying(study: Study, names: Sequence[str]) -> list[str]:
    """Dotted keys in which these variants differ, among those that can change a result."""
    found = [s for s in (settings(study, name) for name in names) if s is not None]
    keys = dict.fromkeys(key for one in found for key in one if key not in NOT_IN_IDENTITY)
    return [key for key in keys if len({repr(one.get(key)) for one in found}) > 1]


def on_axis(study: Study, names: Sequence[str], *axes: str) -> list[str]:
    """Those of some variants that differ in `axes` alone, in the given order.

    From the baseline, if any other does; or else as many as differ in it alone from each other.
    """

    def others(name: str) -> str | None:
        """Every other setting that decides what a run is; None without a configuration."""
        if (found := settings(study, name)) is None:
            return None
        left_out = {*NOT_IN_IDENTITY, *axes}
        return repr(sorted((k, repr(v)) for k, v in found.items() if k not in left_out))

    groups: dict[str, list[str]] = {}
    for name in names:
        if (rest := others(name)) is not None:
            groups.setdefault(rest, []).append(name)
    if not groups:
        return []
    own = groups.get(others(study.baseline) or "", [])
    return own if len(own) > 1 else max(groups.values(), key=len)


def by_axis(study: Study, names: Sequence[str], *axes: str) -> list[str]:
    """Variants in order of some axes; texts keep the manifest's order, behind the numbers."""

    def place(name: str) -> list[tuple[bool, float]]:
        values = [setting(study, name, axis) for axis in axes]
        numbers = [isinstance(v, (int, float)) and not isinstance(v, bool) for v in values]
        return [
            (not number, float(value) if number else 0.0)
            for number, value in zip(numbers, values, strict=True)
        ]

    return sorted(names, key=place)
