"""A new submission and the runs that it has claimed, until they are queued or given back."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path

from ablations.store import claims
from ablations.store.claims import Claim
from ablations.store.submissions import Submission
from ablations.study.model import RunSpec
from sdtps.run.folder import RunFolder


@dataclass
class Claimed:
    """What `dispatch` holds while it asks the scheduler."""

    submission: Submission
    runs: list[RunSpec] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)
    _fresh: set[Path] = field(default_factory=set)
    _earlier: dict[Path, Claim] = field(default_factory=dict)

    def add(self, run: RunSpec, folder: Path, fresh: bool, earlier: Claim | None) -> None:
        self.runs.append(run)
        self.folders.append(folder)
        if fresh:
            self._fresh.add(folder)
        if earlier is not None:
            self._earlier[folder] = earlier

    def give_back(self) -> None:
        """Nothing was queued: leave every run as it was found, and no file of ours.

        What a full disk does not let go the next submission repairs: its submitter will be dead.
        """
        for folder in self.folders:
            with contextlib.suppress(OSError):
                self._give_back(folder)
        self.submission.discard()

    def _give_back(self, folder: Path) -> None:
        mine = claims.read(folder)
        if mine is None or mine.submission != self.submission.name:
            return
        earlier = self._earlier.get(folder)
        if earlier is not None and earlier.submission:
            claims.rewrite(folder, mine, earlier)
            return
        if folder in self._fresh:
            for file in (RunFolder(folder).config_file, RunFolder(folder).run_file):
                file.unlink(missing_ok=True)
        claims.release(folder, mine)
        if folder in self._fresh:
            _remove_empty(folder)


def _remove_empty(folder: Path) -> None:
    """The run folder and its variant's, where nothing is left in them."""
    for path in (folder, folder.parent):
        try:
            path.rmdir()
        except OSError:
            return
