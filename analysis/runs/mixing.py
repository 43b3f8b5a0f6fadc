"""Runs that do not rest on the same sources, data or weights, although their settings say so.

A run's identity names data and weights as its configuration does: by data set and file name, not by
what lay in them. What lay in them is in `origin` of result.json (`sdtps.run.provenance`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from analysis.results.numbers import counted
from analysis.runs.settings import setting

if TYPE_CHECKING:
    import pandas as pd

    from ablations.study.model import Study

NOT_RECORDED = "not recorded"
SHOWN = 12  # digits of a digest that a reader needs; as long as `not recorded`
# What decides which files of a data set a run reads, and so its fingerprint; the place does not.
_WHAT_IS_READ = (
    *("data.dataset", "data.generate"),
    *("eval.select_on", "eval.test_split", "eval.also_dense_text"),
    *("matching.form", "matching.dense_text", "matching.eval_dense_text"),
)


@dataclass(frozen=True)
class Mixture:
    """Runs of one study that must not be averaged.

    Attributes:
        kind: mixed_code, mixed_data or mixed_weights.
        text: what is mixed, with counts. odd: folders of the runs unlike most others, each with what it
            rests on.
    """

    kind: str
    text: str
    odd: dict[str, str]


def mixtures(study: Study, runs: pd.DataFrame) -> list[Mixture]:
    """What is mixed among the completed runs of a study; other people's logs say nothing of it."""
    done = runs[(runs["state"] == "completed") & ~runs["imported"]].to_dict("records")
    found = [_code(done), _data(study, done), *_weights(study, done)]
    return [mixture for mixture in found if mixture is not None]


def code_of(run: dict[Any, Any]) -> str:
    """The sources that trained a run: `begun with A, finished with B` where there are two."""
    codes = [code[:SHOWN] for code in run["codes"]]
    if len(codes) < 2:
        return codes[0] if codes else NOT_RECORDED
    between = "".join(f"went on with {code}, " for code in codes[1:-1])
    return f"begun with {codes[0]}, {between}finished with {codes[-1]}"


def _code(done: Sequence[dict[Any, Any]]) -> Mixture | None:
    versions = Counter(code_of(run) for run in done)
    single = [code for code, _ in versions.most_common() if " " not in code]
    if len(versions) < 2 and len(single) == len(versions):
        return None
    most = single[0] if single else ""
    odd = {run["folder"]: code_of(run) for run in done if code_of(run) != most}
    codes = {code for run in done for code in run["codes"]}
    if len(codes) > 1:
        head = f"{len(codes)} code versions are mixed"
    else:
        head = "not every run records its code"
    return Mixture("mixed_code", f"{head}: {_listed(versions)}", odd)


def _data(study: Study, done: Sequence[dict[Any, Any]]) -> Mixture | None:
    def group(run: dict[Any, Any]) -> str:
        return repr([setting(study, run["variant"], key) for key in _WHAT_IS_READ])

    return _mixture("mixed_data", "data", done, group, lambda run: run["data"])


def _weights(study: Study, done: Sequence[dict[Any, Any]]) -> Iterator[Mixture | None]:
    for part in ("backbone", "image_encoder", "text_encoder"):
        named = [run for run in done if _file(study, run, part)]
        yield _mixture(
            "mixed_weights",
            f"weights of {part.replace('_', ' ')}",
            named,
            lambda run, part=part: _file(study, run, part),  # type: ignore[misc]
            lambda run, part=part: run["weights"].get(part),  # type: ignore[misc]
        )


def _file(study: Study, run: dict[Any, Any], part: str) -> str:
    """The encoder and the file of its weights, as the run's identity has them; empty for none."""
    weights = setting(study, run["variant"], f"{part}.weights")
    if weights in (None, "random"):
        return ""
    return f"{setting(study, run['variant'], f'{part}.name')} {PurePath(weights).name}"


def _mixture(
    kind: str,
    what: str,
    done: Sequence[dict[Any, Any]],
    group: Callable[[dict[Any, Any]], str],
    version: Callable[[dict[Any, Any]], str | None],
) -> Mixture | None:
    """Within each group, runs that do not have the version that most have."""
    groups: dict[str, list[dict[Any, Any]]] = {}
    for run in done:
        groups.setdefault(group(run), []).append(run)
    mixed: Counter[str] = Counter()
    odd: dict[str, str] = {}
    for members in groups.values():
        versions = Counter((version(run) or NOT_RECORDED)[:SHOWN] for run in members)
        if len(versions) > 1:
            mixed += versions
            most = versions.most_common(1)[0][0]
            found = {run["folder"]: (version(run) or NOT_RECORDED)[:SHOWN] for run in members}
            odd |= {folder: here for folder, here in found.items() if here != most}
    if not mixed:
        return None
    text = f"{len(mixed)} versions of the {what} are mixed under one name: {_listed(mixed)}"
    return Mixture(kind, text, odd)


def _listed(versions: Counter[str]) -> str:
    return "; ".join(f"{name} ({counted(n, 'run')})" for name, n in versions.most_common())
