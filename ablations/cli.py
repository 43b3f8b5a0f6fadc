"""sdtps VERB, and python -m ablations VERB: the verbs of all three packages."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence

# Until a verb starts, Ctrl-C ends the process silently: nothing was done yet, and Python's own handler
# would print a traceback from the middle of an import.
_PYTHONS = signal.default_int_handler

VERBS = {
    "submit": ("ablations.launch.submit", "submit every run that is missing", "submit"),
    "plan": ("ablations.launch.submit:plan", "show what submit would do, and why", "submit"),
    "try": (
        "ablations.launch.trial:try",
        "try one run here and now, apart from the other runs",
        "submit",
    ),
    "retry": (
        "ablations.launch.submit:retry",
        "submit failed, diverged, cancelled or stale runs again; release held ones",
        "submit",
    ),
    "cancel": (
        "ablations.store.cancel",
        "cancel queued and running runs; without --yes only report",
        "submit",
    ),
    "clean": ("ablations.store.clean", "delete run folders; without --yes only report", "submit"),
    "audit": (
        "ablations.launch.audit",
        "measure gradients at toy size: which parts of each variant learn",
        "submit",
    ),
    "data": ("ablations.view.data", "show which data and weights a study's runs would read", "models"),
    "site": (
        "ablations.launch.site",
        "submit a short test job and say what works on this cluster",
        "submit",
    ),
    "pull": (
        "ablations.store.pull",
        "copy the run store (runs/) of another machine, or update the copy",
        "watch",
    ),
    "status": ("ablations.view.status", "show the state of every run, also as exit code", "watch"),
    "watch": (
        "ablations.view.watch",
        "show a live table: state, epoch, loss, metric, time left",
        "watch",
    ),
    "logs": ("ablations.view.logs", "show the logs of one run", "watch"),
    "completion": ("ablations.completion", "print the completion script for bash or zsh", "tools"),
}
ABOUT = """Submit an ablation study, look at its curves, regenerate the paper's tables.
STUDY is a name (quick) or a manifest (ablations/quick.yaml)."""


def main(words: Sequence[str] | None = None) -> int:
    """The console command: the verbs of all three packages."""
    if words is None and signal.getsignal(signal.SIGINT) is _PYTHONS:  # a process of our own
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from sdtps.system import commandline

    return commandline.run("sdtps", all_verbs(), ABOUT, words)


def all_verbs() -> dict[str, tuple[str, str, str]]:
    """The verbs of the three packages."""
    import analysis.cli
    import sdtps.cli

    return {**VERBS, **analysis.cli.VERBS, **sdtps.cli.VERBS}


if __name__ == "__main__":
    sys.exit(main())
