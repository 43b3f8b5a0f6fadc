"""A site: what belongs to a cluster and not to a study, such as its partition and its interpreter.

    # ~/.config/sdtps/site.yaml
    partition: gpu
    account: ab1234
    gpu_type: a100                                      # `gpus: 1` of a study becomes a100:1
    python: apptainer exec --nv /images/sdtps.sif python
    setup: [module load cuda]
    environment: {SDTPS_DATA_ROOT: /data}
    exclude: [node13]
    squeue_seconds: 30                                  # where the controller is slow

A study's own resources win over the site's, and --partition, --account and --gpus over both.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from ablations.study.mistakes import Source
from ablations.study.schema import Line, Resources


def _nodes(value: Any) -> Any:
    """A list of nodes as sbatch has it."""
    is_list = isinstance(value, tuple) and all(isinstance(v, str) for v in value)
    return ",".join(value) if is_list else value


class Site(Resources):
    """The keys of a site file: those of `resources`, and two of its own."""

    exclude: Annotated[Line | None, BeforeValidator(_nodes)] = None  # a list too
    gpu_type: str | None = None
    squeue_seconds: int = Field(default=10, ge=1)  # how long an answer of squeue is waited for

    def over(self, resources: Resources) -> Resources:
        """`resources` with what they leave open taken from the site; what are lists is joined."""
        own = self.model_dump(exclude_unset=True, exclude={"gpu_type", "squeue_seconds"})
        asked = {**own, **resources.model_dump(exclude_unset=True)}
        asked["exclude"] = ",".join(filter(None, (self.exclude, resources.exclude))) or None
        asked["setup"] = (*self.setup, *resources.setup)
        asked["srun"] = (*self.srun, *resources.srun)
        asked["environment"] = {**self.environment, **resources.environment}
        asked["sbatch"] = {**self.sbatch, **resources.sbatch}
        if self.gpu_type and isinstance(resources.gpus, int) and resources.gpus:
            asked["gpus"] = f"{self.gpu_type}:{resources.gpus}"
        return Resources.model_validate(asked)


def read_site(file: Path | None = None) -> Site:
    """The site that `file` describes; None: the default file's, or an empty one where there is none.

    Raises:
        ManifestError: every mistake at once, each with its line.
    """
    folder = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    path = file or Path(folder).expanduser() / "sdtps" / "site.yaml"
    if file is None and not path.exists():
        return Site()
    source = Source.read(path)
    tree = source.document.data
    site = source.check((), Site, {} if tree is None else tree)
    source.raise_if_any()
    assert site is not None
    return site
