"""Which evaluation was best, where a log prints fewer digits than its trainer compared."""

from __future__ import annotations

from collections.abc import Mapping

from analysis.importers.record import ImportedRun, fraction, percent


def settle(run: ImportedRun, printed: Mapping[str, str]) -> None:
    """Choose among evaluations that tie at the printed precision by the log's own `Best` lines.

    A trainer compares unrounded values, so its best may be any of the ties; all metrics must
    come from one evaluation, and its last `Best` lines, `printed` by metric, say which.
    """
    if run.best is None:
        return
    rows = [row for row in run.rows if row["kind"] == "eval"]
    ties = [row for row in rows if row.get("mAP") == run.best["mAP"]]
    claimed = {name: fraction(text) for name, text in printed.items()}
    agreeing = [row for row in ties if all(row.get(n, v) == v for n, v in claimed.items())]
    run.facts["first_best_epoch"] = run.best["epoch"]
    run.best = (agreeing or ties)[0]
    run.printed = {
        name: percent(value)
        for name, value in run.best.items()
        if name == "mAP" or name.startswith("rank")
    }
    if len(ties) > 1:
        epochs = ", ".join(str(row["epoch"]) for row in ties)
        run.notes.append(
            f"epochs {epochs} tie at the printed best mAP {run.printed['mAP']}%; "
            f"epoch {run.best['epoch']} agrees with the log's Best lines"
            if agreeing
            else f"epochs {epochs} tie at the printed best mAP {run.printed['mAP']}%"
        )
    if not agreeing:
        for name, text in printed.items():
            if (found := run.best.get(name)) is not None and found != claimed[name]:
                run.notes.append(
                    f"the log says Best {name} {text}%, its evaluation of epoch "
                    f"{run.best['epoch']} says {percent(found)}%"
                )
