"""What a caption must say, taken from what was computed, so that prose cannot drift from numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from analysis.results import numbers, stats
from analysis.results.outcomes import Epoch, Outcome
from analysis.runs.averaging import Mark
from analysis.runs.collect import Collected

if TYPE_CHECKING:
    from ablations.study.model import Study
    from ablations.study.schema import MetricSpec, TableSpec

CEILING = 0.98


def sentence(text: str) -> str:
    """A manifest's words with a full stop, unless they end as a sentence does: others follow."""
    text = text.rstrip()
    ended = text.rstrip("\"')]}»”’").endswith((".", "!", "?", "…", ":"))
    return text if ended or not text else f"{text}."


def statistic(rows: Sequence[Outcome]) -> str:
    """What a cell's number is, and over how many seeds."""
    counts = {len(row.completed) for row in rows if row.completed}
    planned = {row.planned for row in rows}
    if not counts:
        return "No run has finished yet."
    if counts == {1}:
        holes = ", 1/N where more are planned" if planned != {1} else ""
        return f"Single runs (n = 1{holes}): no spread can be given."
    if len(counts) == 1 and counts == planned:
        n = f"{counts.pop()} seeds"
    elif len(planned) == 1:
        n = f"the finished ones of {planned.pop()} seeds, k/N where some are not"
    else:
        n = "the finished seeds, k/N where some are not"
    single = "; a single seed has no spread" if 1 in counts else ""
    return f"Mean ± sample standard deviation (ddof 1) over {n}{single}."


def epochs(spec: TableSpec, collected: Collected, study: Study) -> str:
    """Which epoch's numbers are shown, and on which split it was chosen."""
    runs = collected.runs_of(study.name)
    splits = sorted({str(s) for s in runs["selected_on"] if s})
    where = f" on the {' and '.join(splits)} split" if splits else ""
    best = f"best epoch{where}"
    if "test" in splits or "testall" in splits:
        best += ", chosen there as published, which flatters every row"
    if spec.epoch == "best":
        return f"All metrics of a run are from its {best}."
    if spec.epoch == "final":
        return "All numbers are from the last epoch."
    return f"Left: {best}. Right: last epoch."


def left_out(where: str, labels: Sequence[str]) -> tuple[str, ...]:
    """Variants that a sweep does not show, which have more than its axis of their own."""
    return (f"{where}, for other settings differ too: {'; '.join(labels)}.",) if labels else ()


def ranking(any_marked: bool) -> str:
    return (
        "Bold: best; underlined: second best; by printed value, not by a test, among variants whose "
        "seeds all finished."
        if any_marked
        else ""
    )


def shading(found: Mapping[str, Outcome], study: Study) -> str:
    """What the shaded row is."""
    baseline = found.get(study.baseline)
    return f"Grey: {baseline.label}, the baseline." if baseline else ""


def ceiling(rows: Sequence[Outcome], metrics: Mapping[str, MetricSpec], epochs: Sequence[Epoch]) -> str:
    """A warning where most rows are so near to 100 % that their order says little."""
    high = []
    for name, metric in metrics.items():
        values = [list(row.values(name, epochs[-1]).values()) for row in rows]
        near = sum(bool(v) and stats.summary(v).mean >= CEILING for v in values)
        if metric.unit == "%" and metric.direction == "up" and near > 1 and 2 * near > len(rows):
            high.append(f"{metric.label or name} in {near} of {len(rows)} rows")
    if not high:
        return ""
    percent = numbers.fixed(100 * CEILING, 0)
    return (
        f"At or above {percent} %: {', '.join(high)}; so near to the ceiling, their order says little."
    )


def data(collected: Collected, study: Study) -> str:
    runs = collected.runs_of(study.name)
    done = runs[runs["state"] == "completed"]
    if len(done) and done["generated_data"].all():
        return "The images are generated: the numbers compare variants and nothing else."
    return ""


def notes(collected: Collected, study: Study, rows: Iterable[Outcome]) -> tuple[str, ...]:
    """One sentence for each variant that is not whole, and for what a reader would not expect."""
    sentences: list[str] = []
    rows = list(rows)
    by_text: dict[str, list[str]] = {}
    for row in rows:
        if why := row.explanation():
            by_text.setdefault(why, []).append(row.label)
    # Labels have commas of their own, and a table may name a variant in several rows.
    sentences += [f"{'; '.join(dict.fromkeys(names))}: {why}." for why, names in by_text.items()]
    if imported := [row.label for row in rows if row.imported]:
        which = f": {', '.join(imported)}" if len(imported) < len(rows) else ""
        sentences.append(f"Imported from other people's logs{which}.")
    for row in rows:
        for seeds in identical_seeds(collected, row):
            listed = ", ".join(map(str, seeds))
            sentences.append(
                f"{row.label}: seeds {listed} gave identical loss curves; they are not independent."
            )
    return tuple(sentences)


def identical_seeds(collected: Collected, row: Outcome) -> list[tuple]:
    """Groups of seeds of a variant whose training losses are equal in every logged value."""
    losses = collected.rows_of(row.study, row.variant, "train", "loss")
    if losses.empty:
        return []
    seeds = losses["seed"].to_numpy()
    values = losses["value"].to_numpy()
    return stats.identical_curves({run.seed: values[seeds == run.seed] for run in row.runs})


def other_settings(study: Study) -> str:
    """What holds for the settings that a table of variants does not name."""
    if getattr(study, "imported", False):
        return "Every other setting that their logs print is equal in all of them."
    return (
        "Every other setting is equal in all of them; the base and its defaults are in each run's "
        "config.yaml."
    )


def origin(collected: Collected, study: Study) -> tuple[str, ...]:
    """What a generated file was made from; the same runs give the same lines."""
    runs = collected.runs_of(study.name)
    codes = sorted({str(c)[:10] for c in runs["code"] if c})
    commits = sorted({str(c)[:10] for c in runs["commit"] if c})
    states = runs["state"].value_counts(sort=False, dropna=False)
    counted = ", ".join(f"{states[s]} {s}" for s in sorted(states.index))
    return (
        f"study {study.name}, manifest {study.digest[:10]}",
        f"runs: {counted}",
        f"code {', '.join(codes) or 'unknown'}; commit {', '.join(commits) or 'unknown'}",
        "made by sdtps tables; do not edit",
    )


def warnings(marks: Sequence[Mark], study: str) -> tuple[str, ...]:
    """Marks as sentences for the caption: what was allowed is said in print."""
    return tuple(f"{mark.text[0].upper()}{mark.text[1:]}." for mark in marks if mark.study == study)
