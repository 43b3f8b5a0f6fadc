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

from ablations.study.mistakes import Mistakes, Source
from ablations.study.schema import Environment, Resources, read_lines
from sdtps.config.common import Frozen
from sdtps.system.errors import ManifestError


def _nodes(value: Any) -> Any:
    return (
        ",".join(value)
        if isinstance(value, tuple) and all(isinstance(v, str) for v in value)
        else value
    )


class Site(Frozen):
    """The keys of a site file; each is described at `Resources`."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    exclude: Annotated[str | None, BeforeValidator(_nodes)] = None  # nodes; a list, or as sbatch has it
    gpu_type: str | None = None
    gres: bool = False
    max_parallel: int | None = Field(default=None, ge=1)
    mail: str | None = None
    mail_type: str = "END,FAIL"
    setup: Annotated[tuple[str, ...], BeforeValidator(read_lines)] = ()
    environment: Environment = Field(default_factory=dict)
    python: str | None = None
    srun: tuple[str, ...] = ()
    sbatch: dict[str, str | int | bool] = Field(default_factory=dict)
    squeue_seconds: int = Field(default=10, ge=1)  # how long an answer of squeue is waited for

    def over(self, resources: Resources) -> Resources:
        """`resources` with what they leave open taken from the site."""
        asked = resources.model_dump()
        for key in ("partition", "account", "qos", "constraint", "python", "mail", "max_parallel"):
            if asked[key] is None:
                asked[key] = getattr(self, key)
        if "mail_type" not in resources.model_fields_set:
            asked["mail_type"] = self.mail_type
        nodes = [text for text in (self.exclude, resources.exclude) if text]
        asked["exclude"] = ",".join(nodes) or None
        asked["setup"] = (*self.setup, *resources.setup)
        asked["srun"] = (*self.srun, *resources.srun)
        asked["environment"] = {**self.environment, **resources.environment}
        asked["sbatch"] = {**self.sbatch, **resources.sbatch}
        asked["gres"] = self.gres or resources.gres
        if self.gpu_type and isinstance(resources.gpus, int) and resources.gpus:
            asked["gpus"] = f"{self.gpu_type}:{resources.gpus}"
        return Resources.model_validate(asked)


def default_file() -> Path:
    """$XDG_CONFIG_HOME/sdtps/site.yaml, usually ~/.config/sdtps/site.yaml."""
    folder = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(folder).expanduser() / "sdtps" / "site.yaml"


def read_site(file: Path | None = None) -> Site:
    """The site that `file` describes; None: the default file's, or an empty one where there is none.

    Raises:
        ManifestError: every mistake at once, each with its line.
    """
    path = file or default_file()
    if file is None and not path.exists():
        return Site()
    source = Source.read(path)
    mistakes = Mistakes()
    mistakes.add_problems(source)
    tree = source.document.data
    site = mistakes.check(source, (), Site, {} if tree is None else tree)
    mistakes.raise_if_any(path)
    if site is None:
        raise ManifestError(f"{path}: is not a site file")
    return site
