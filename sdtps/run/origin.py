"""What a run's numbers rest on: sources, data, weights. Its checkpoints and its result hold it.

A run's identity names data and weights as the configuration does; the files behind the names can
change. A run goes on only with the data and the weights it began with. It may go on with other
sources, and then its result names both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sdtps.errors import RunError
from sdtps.run.provenance import source_digest


@dataclass(frozen=True)
class Origin:
    """Digests; JSON and checkpoints hold it as a mapping."""

    code: list[str]  # `source_digest` of every attempt that trained it, in order
    data: str | None  # fingerprint of the data set
    weights: dict[str, str]  # sha256 of each file of weights, by the part that it was loaded into

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Origin:
        """Of a run that begins here, from what its task says for run.json (`Task.record`)."""
        data, weights = record.get("data") or {}, record.get("weights") or {}
        files = {"backbone": weights} if "sha256" in weights else weights
        digests = {part: file["sha256"] for part, file in files.items() if file is not None}
        return cls([source_digest()], data.get("fingerprint"), digests)

    def going_on_from(self, saved: Mapping[str, Any], checkpoint: Path) -> Origin:
        """Of a run that goes on here from `checkpoint`, which holds `saved`.

        Raises:
            RunError: the checkpoint was trained on other data, or from other weights.
        """
        mistakes = []
        if saved["data"] != self.data:
            mistakes.append(
                f"trained on data with the fingerprint {saved['data']}, here is {self.data}"
            )
        for part in sorted({*saved["weights"], *self.weights}):
            theirs, ours = (of.get(part, "none") for of in (saved["weights"], self.weights))
            if theirs != ours:
                mistakes.append(
                    f"trained from weights of {part} with sha256 {theirs[:12]}, here are {ours[:12]}"
                )
        if mistakes:
            raise RunError(
                f"{checkpoint}: {'; '.join(mistakes)}. Go on with the data and weights that the run "
                "began with (run.json), or delete the checkpoint to start anew."
            )
        earlier = [code for code in saved["code"] if code not in self.code]
        return Origin([*earlier, *self.code], self.data, self.weights)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
