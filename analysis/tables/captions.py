"""What a caption must say, taken from what was computed, so that prose cannot drift from numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from analysis.results import stats
from analysis.results.frames import Epoch, Results
from analysis.results.outcomes import Outcome, outcomes, seed_list
from analysis.runs.collect import Collected
from analysis.runs.comparable import Mark, readable, setting, varying
from analysis.tables.model import Column, Row, Table, file_name
from sdtps.config import RetrievalConfig
from sdtps.system.errors import counted

if TYPE_CHECKING:
    from ablations.study.model import Study
    from ablations.study.schema import TableSpec

# Behind the names of rows whose evaluation gives a query the dense text of its own target image.
LEAK = "†"
TEST = "t test, which takes the seeds' differences to be normally distributed"


def sentence(text: str) -> str:
    """A manifest's words with a full stop, unless they end as a sentence does: others follow."""
    text = text.rstrip()
    ended = text.rstrip("\"')]}»”’").endswith((".", "!", "?", "…", ":"))
    return text if ended or not text else f"{text}."


def declared(
    collected: Collected,
    study: Study,
    spec: TableSpec,
    marks: Sequence[Mark],
    *,
    title: str,
    columns: Sequence[Column],
    rows: Sequence[Row],
    shown: Sequence[Outcome],
    metrics: Sequence[str],
    epochs: Sequence[Epoch],
    caption: Iterable[str] = (),
    more: Iterable[str] = (),
) -> Table:
    """A table of the manifest, whose caption begins with the manifest's words and ends with `marks`."""
    warned = warnings(marks, study.name)
    baseline = outcomes(collected, study).get(study.baseline)
    computed: tuple[str, ...] = ()
    if shown:
        words = statistic(shown, metrics, epochs[0]), beyond(study, shown, metrics, epochs)
        computed = (*words, which_epochs(epochs, shown))
    first = sentence(spec.caption or spec.title or title)
    return Table(
        name=file_name(study, spec.name),
        study=study.name,
        title=spec.title or title,
        columns=tuple(columns),
        rows=tuple(rows),
        caption=tuple(filter(None, (first, *computed, *caption, data(collected, study), *warned))),
        notes=(
            *absent(study, metrics, shown),
            *notes(collected, study, shown),
            *leak_note(study, metrics, shown),
            *more,
            *([spec.notes] if spec.notes else []),
        ),
        origin=origin(collected, study),
        marks=warned,
        shading=f"Grey: {baseline.label}, the baseline." if baseline else "",
    )


def statistic(rows: Sequence[Outcome], metrics: Sequence[str], epoch: Epoch = "last") -> str:
    """What a cell's number is, and over how many seeds."""
    counts = {len(row.values(metric, epoch)) for row in rows for metric in metrics} - {0}
    planned = {row.planned for row in rows}
    if not counts:
        done = any(row.completed for row in rows)
        return f"No finished run logged {' or '.join(metrics)}." if done else "No run has finished yet."
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


def beyond(
    study: Study, rows: Sequence[Outcome], metrics: Sequence[str], epochs: Sequence[Epoch]
) -> str:
    """Notes where a spread reaches beyond what a share can be, and where a program logs no shares."""
    shares = [metric for metric in metrics if study.metrics[metric].unit == "%"]
    said = []
    for row, metric, epoch in product(rows, shares, epochs):
        if not (values := list(row.values(metric, epoch).values())):
            continue
        found = stats.summary(values)
        if 0 <= found.mean <= 1 and (found.mean < found.sd or found.mean + found.sd > 1):
            said.append("± is symmetric: where it reaches beyond 0 or 100 %, no seed does.")
        said += study.not_fractions(row.key, {metric: found.mean})
    return " ".join(dict.fromkeys(said))


def which_epochs(shown: Sequence[Epoch], rows: Sequence[Outcome]) -> str:
    """Which epoch's numbers are shown, and on which split a best one was selected."""
    if "best" not in shown:
        return "All numbers are from the last epoch."
    splits = sorted({row.selected_on for row in rows if row.selected_on})
    best = "the best epoch" + (f", selected on the {' and '.join(splits)} split" if splits else "")
    warning = ""
    if any(split.startswith("test") for split in splits):
        warning = " The scores are from that split, too: optimistic, and not tested."
    if len(shown) == 1:
        return f"All metrics of a run are from {best}.{warning}"
    return f"Two epochs are shown: the last one, and {best}.{warning}"


def epoch_name(epoch: Epoch, rows: Sequence[Outcome]) -> str:
    """The head over an epoch's columns."""
    if epoch == "last":
        return "last epoch"
    on_test = any(row.selected_on.startswith("test") for row in rows)
    return "best epoch on the test split" if on_test else "best epoch"


def left_out(where: str, labels: Sequence[str]) -> tuple[str, ...]:
    """Variants that a sweep does not show, because they differ in further settings."""
    return (f"{where}, because other settings differ too: {'; '.join(labels)}.",) if labels else ()


def slice_of(
    study: Study,
    axes: Sequence[str],
    names: Sequence[str],
    others: Sequence[str],
    where: str = "Not in the table",
) -> tuple[str, ...]:
    """What is fixed in a sweep that does not show all variants, and which it leaves out.

    Args:
        axes: what is swept. names: variants that are shown. others: labels of those that are not.
    """
    if not others or not names:
        return ()
    fixed = [key for key in varying(study, list(study.variants)) if key not in axes]
    settings = [
        f"{key} = {readable(setting(study, names[0], key))}"
        for key in fixed
        if len({readable(setting(study, name, key)) for name in names}) == 1
    ]
    at = f" In all of it {', '.join(settings)}." if settings else ""
    return (f"This is one slice of the study.{at}", *left_out(where, others))


def differences(
    found: Results, baseline: str, rows: Sequence[Row], metrics: Sequence[str], epoch: Epoch
) -> str:
    """What the column of differences is, and how it was tested."""
    label = found.outcomes[baseline].label if baseline in found.outcomes else baseline
    shown = [
        found.get(row.key, metric, epoch)
        for row in rows
        for metric in metrics
        if row.cells and row.key != baseline
    ]
    cells = [cell for row in rows for cell in row.cells if cell.signed]
    if not cells:
        return f"Δ: difference to {label}, empty where no seed has a value in both."
    paired = {result.paired for result in shown if result.difference_n}
    how = "paired by seed" if paired == {True} else "of unpaired runs"
    if len(paired) > 1:
        how = "paired by seed, unpaired where one side is imported"
    text = f"Δ: mean difference to {label}, {how}, from unrounded values"
    if any(cell.spread is not None for cell in cells):
        text += ", ± half its 95 % t interval"
    families = {r.family: r.family_size for r in shown if r.family_size}
    if families:
        starred = any(cell.note == "*" for cell in cells)
        size = max(families.values())
        of = "of this table" if size == len(shown) else "of this table and of others of the study"
        test = f"{TEST}, Holm-corrected over all {counted(size, 'difference')} {of}"
        if rounds := found.study.rounds:
            looks = ", ".join(map(str, rounds.looks))
            test = (
                f"t tests at looks of {looks} seeds, whose levels add up to 5 %; p is read at that of "
                f"its look, Holm-corrected over at most {counted(size, 'difference')}"
            )
        text += f"; *: p < 0.05 ({test})" if starred else f"; none has p < 0.05 ({test})"
    if any(0 < result.difference_n < result.difference_planned for result in shown):
        text += "; k/N: seeds that both have, not tested where some are missing"
    if any(not result.difference_n for result in shown):
        text += "; empty where no seed has a value in both"
    return f"{text}."


RANKING = (
    "Bold: best; underlined: second best; by printed value, not by a test, among variants whose seeds "
    "all finished."
)


def data(collected: Collected, study: Study) -> str:
    done = [run for run in collected.runs_of(study.name) if run.state == "completed"]
    if done and all(run.generated_data for run in done):
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
    warned = (warning for row in rows for run in row.runs for warning in run.warnings)
    sentences += [sentence(f"Data: {text}") for text in dict.fromkeys(warned)]
    for labels in identical_logs(rows):
        sentences.append(
            f"One result, imported {len(labels)} times, value for value: {'; '.join(labels)}."
        )
    for row in rows:
        for seeds in identical_seeds(row):
            listed = ", ".join(map(str, seeds))
            sentences.append(
                f"{row.label}: seeds {listed} gave identical loss curves; they are not independent."
            )
    completed = [run for row in rows for run in row.runs if run.state == "completed"]
    machines = {
        "types of GPU": Counter(run.gpu for run in completed if run.gpu),
        "versions of torch": Counter(run.torch for run in completed if run.torch),
    }
    for what, found in machines.items():
        if len(found) > 1:
            listed = ", ".join(f"{name} ({counted(n, 'run')})" for name, n in found.most_common())
            sentences.append(f"These runs come from {len(found)} {what}: {listed}.")
    return tuple(sentences)


def identical_seeds(row: Outcome) -> list[list[int]]:
    """Groups of seeds of a variant whose training losses are equal in every logged value.

    Curves of fewer than two values are left out: they may agree by chance.
    """
    losses = ((run.seed, run.rows.series("train", "loss")[1]) for run in row.runs)
    return _alike((seed, loss.tobytes() if len(loss) > 1 else b"") for seed, loss in losses)


def identical_logs(rows: Sequence[Outcome]) -> list[list[str]]:
    """Groups of imported variants that logged the same values at the same steps, throughout."""
    logs = ((row.label, [run.rows.content() for run in row.runs]) for row in rows if row.imported)
    return _alike((label, tuple(sorted(filter(None, contents)))) for label, contents in logs)


def _alike(contents: Iterable[tuple[Any, Hashable]]) -> list[list[Any]]:
    """Names whose contents are equal and not empty."""
    groups: dict[Hashable, list[Any]] = {}
    for name, content in contents:
        groups.setdefault(content, []).append(name)
    return [names for content, names in groups.items() if content and len(names) > 1]


def absent(study: Study, metrics: Sequence[str], rows: Iterable[Outcome]) -> tuple[str, ...]:
    """One sentence for each metric that some finished seeds of a variant lack."""
    sentences = []
    for row in rows:
        for name in metrics:
            lacking = [run for run in row.completed if name not in run.last]
            if 0 < len(lacking) < len(row.completed):
                bad = [run.seed for run in lacking if f"final/{name}" in run.not_finite]
                silent = [run.seed for run in lacking if run.seed not in bad]
                parts = [f"not a finite number in {seed_list(bad)}"] if bad else []
                parts += [f"not logged by {seed_list(silent)}"] if silent else []
                label = study.metrics[name].label or name
                sentences.append(f"{row.label}: {label} is {' and '.join(parts)}.")
    return tuple(sentences)


def leaks(study: Study, metrics: Sequence[str], row: Outcome) -> bool:
    """Whether a row's metrics come from an evaluation with the dense text of the target image.

    Decided by the configuration; `sdtps audit` decides the same by scoring. Metrics that name their
    dense text (rsum@none) need no mark.
    """
    metrics = metrics or tuple(study.metrics)
    variant = study.variants.get(row.key)
    if variant is None or row.imported or all("@" in m and not m.endswith("@1k") for m in metrics):
        return False
    config = variant.config
    if not isinstance(config, RetrievalConfig) or not config.matching.axis.dense:
        return False
    return config.sdtps.enabled and config.matching.eval_dense_text == "own"


def leak_note(study: Study, metrics: Sequence[str], rows: Sequence[Outcome]) -> tuple[str, ...]:
    """What the mark means, where a row has it."""
    if not any(leaks(study, metrics, row) for row in rows):
        return ()
    return (
        f"{LEAK} Evaluated with the dense text of each query's own target image, which a query does "
        "not have outside a benchmark.",
    )


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
    codes = sorted({run.code[:10] for run in runs if run.code})
    commits = sorted({run.commit[:10] for run in runs if run.commit})
    states = Counter(run.state for run in runs)
    counted = ", ".join(f"{n} {state}" for state, n in sorted(states.items()))
    return (
        f"study {study.name}, manifest {study.digest[:10]}",
        f"runs: {counted}",
        f"code {', '.join(codes) or 'unknown'}; commit {', '.join(commits) or 'unknown'}",
        "made by sdtps tables; do not edit",
    )


def warnings(marks: Sequence[Mark], study: str) -> tuple[str, ...]:
    """Marks as sentences for the caption: what was allowed is said in print."""
    return tuple(f"{mark.text[0].upper()}{mark.text[1:]}." for mark in marks if mark.study == study)
