"""Parts of a study that are not what is studied: resources, metrics, tables, figures, reported numbers.

They are not in a run's identity. One of them still touches a result: with Gumbel noise each of several
processes (gpus, nodes) draws its own part of the batch's noise, so that the draws are others.

Everything here is plain data, checked when the manifest is read; analysis renders it.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from sdtps.config.common import Frozen, NonNegative, PositiveInt
from sdtps.system.errors import counted

_CLOCK = re.compile(r"((?P<days>\d+)-)?(?P<hours>\d+):(?P<minutes>[0-5]?\d):(?P<seconds>[0-5]?\d)")
_DAYS_HOURS = re.compile(r"(?P<days>\d+)-(?P<hours>\d+)(:(?P<minutes>[0-5]?\d))?")

# SLURM keeps these in few bits and wraps larger ones in silence: 65,537 CPUs become 1, 2^32 + 1 minutes
# one minute, and of memory 0 is all that a node has. (Seen with 22.05.)
_MOST_COUNTED = 65_533
_MOST_MINUTES = 35_791_394  # 2^31 seconds
_MOST_AT_ONCE = 4_000_001  # the largest MaxArraySize
_LEAST_GB, _MOST_GB = 1 / 1024, 2**20  # from 1 MB to 1 PB

_GPUS = re.compile(r"[A-Za-z0-9_.-]+(:[A-Za-z0-9_.-]+)?:([1-9]\d{0,4})")
_MEMORY = "a number of GB from 0.001 (1 MB) to 1048576"
_TIME = f"whole minutes from 1 to {_MOST_MINUTES} (90), or HH:MM:SS, or D-HH:MM"

# Options of sbatch that decide which job is which, where its output goes and when it is told to stop.
_OURS = frozenset(
    {
        *("array", "job-name", "output", "error", "open-mode", "requeue", "no-requeue"),
        *("wrap", "signal", "parsable"),
    }
)
# Options that have a key of their own.
_SAID_BY = {
    **{key: key for key in ("partition", "account", "qos", "constraint", "exclude", "nodes")},
    **{"time": "timeout_min", "mem": "mem_gb", "mem-per-cpu": "mem_gb", "cpus-per-task": "cpus"},
    **{"gpus-per-node": "gpus", "gres": "gpus", "ntasks-per-node": "cpus"},
    **{"mail-user": "mail"},
}

Count = Annotated[int, Field(ge=1, le=_MOST_COUNTED)]

_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.,+=-]*")
LONGEST_NAME = 80  # file systems allow 255 bytes; people read less


def is_safe(name: str) -> bool:
    """Whether `name` can be a folder as it is: no separators, no leading dot or dash, not too long."""
    return len(name) <= LONGEST_NAME and _SAFE.fullmatch(name) is not None and not name.endswith(".")


def _file_name(name: str) -> str:
    if not is_safe(name):
        raise ValueError(f"'{name}' names a file or folder: letters, digits and _ . - only, 80 at most")
    return name


def _one_line(value: Any) -> Any:
    if isinstance(value, str) and (not value.strip() or not value.isprintable()):
        raise ValueError(f"{value!r} is not a single line of text")
    return value


def _refuse_count(seeds: Any) -> Any:
    if type(seeds) is int and 0 < seeds <= 10:
        many = f"{[*range(seeds)]} for {counted(seeds, 'seed')}"
        raise ValueError(f"{seeds} is no list: write {many}, or [{seeds}] for seed {seeds}")
    return seeds


def _distinct(seeds: tuple[int, ...]) -> tuple[int, ...]:
    for i, seed in enumerate(seeds):
        if seed in seeds[:i]:
            raise ValueError(f"seed {seed} is repeated: each seed is one replicate")
    return seeds


FileName = Annotated[str, AfterValidator(_file_name)]
Line = Annotated[str, AfterValidator(_one_line)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]  # what NumPy's generators take
Seeds = Annotated[
    tuple[Seed, ...], BeforeValidator(_refuse_count), Field(min_length=1), AfterValidator(_distinct)
]


def read_lines(value: Any) -> Any:
    """Lines of text as a list of them: `setup: |` may hold several."""
    return (
        tuple(line for line in value.splitlines() if line.strip()) if isinstance(value, str) else value
    )


def read_gpus(value: Any) -> Any:
    """A number of GPUs, or a type with one: 2, `a100:2`."""
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value)
    typed = isinstance(value, str) and _GPUS.fullmatch(value)
    number = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_COUNTED
    if not typed and not number:
        raise ValueError(
            f"'{value}' is not allowed: write a number of GPUs from 0 to {_MOST_COUNTED}, or a type "
            "with a number (a100:2)"
        )
    return value


def minutes(value: Any) -> Any:
    """A time limit in whole minutes, rounded up, from minutes or from SLURM's D-HH:MM:SS."""
    if not isinstance(value, str):
        return value
    if match := _CLOCK.fullmatch(value) or _DAYS_HOURS.fullmatch(value):
        parts = {unit: int(text or 0) for unit, text in match.groupdict().items()}
        hours = parts["days"] * 24 + parts["hours"]
        return hours * 60 + parts["minutes"] + (1 if parts.get("seconds") else 0)
    raise ValueError(
        f"'{value}' is not a time limit: write whole minutes (90), or HH:MM:SS, or D-HH:MM "
        "(MM:SS and HH:MM look alike and are refused)"
    )


def _variables(value: dict[str, str]) -> dict[str, str]:
    for name in value:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ValueError(f"'{name}' is not the name of an environment variable")
    return value


Environment = Annotated[dict[str, str], AfterValidator(_variables)]


class Resources(Frozen):
    """What one run asks of the scheduler. Runs with equal resources share one job array."""

    partition: Line | None = None  # null: the cluster's default
    # On each node: a number, or a type with one, such as a100:2.
    gpus: Annotated[int | str, BeforeValidator(read_gpus)] = 0
    gres: bool = False  # ask for GPUs by --gres, where --gpus-per-node is not known
    nodes: Count = 1
    cpus: Count = 2  # for each task; one task drives one GPU
    # On each node; null: the default.
    mem_gb: Annotated[float, Field(ge=_LEAST_GB, le=_MOST_GB, description=_MEMORY)] | None = None
    # Runs that share one GPU and one job at a time; cpus and mem_gb are for each of them.
    runs_per_gpu: Count = 1
    timeout_min: Annotated[
        int, BeforeValidator(minutes), Field(ge=1, le=_MOST_MINUTES, description=_TIME)
    ] = 60
    # At most this many runs of the array at once (on local slots: see --slots); null: no limit.
    max_parallel: Annotated[int, Field(ge=1, le=_MOST_AT_ONCE)] | None = None
    account: Line | None = None
    qos: Line | None = None
    constraint: Line | None = None
    exclude: Line | None = None  # nodes, as sbatch --exclude takes them
    mail: Line | None = None  # who is told by e-mail, and of what
    mail_type: str = "END,FAIL"
    # Requeues after preemption or time-out before a run counts as failed.
    max_requeues: int = Field(default=10, ge=0)
    # Shell lines before the run starts, such as `module load cuda`.
    setup: Annotated[tuple[str, ...], BeforeValidator(read_lines)] = ()
    environment: Environment = Field(default_factory=dict)  # exported before `setup`
    # Interpreter of the jobs, which may be a command: `apptainer exec --nv image.sif python`.
    python: Line | None = None  # null: the one that submits
    srun: tuple[str, ...] = ()  # further options of srun, such as --mpi=pmix
    # Further sbatch options, such as {reservation: course}. Values are passed as they are.
    sbatch: dict[Line, Line | int | bool] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _options_are_free(self) -> Resources:
        options = {key.lstrip("-").replace("_", "-") for key in self.sbatch}
        said = [f"sbatch: '{key}' cannot be set: it is this project's" for key in options & _OURS]
        for key in options & _SAID_BY.keys():
            own = _SAID_BY[key]
            if value := getattr(self, own):  # else nothing is asked for by it, and the option is free
                said.append(f"sbatch: '{key}' contradicts {own} ({value}): set {own} instead")
        if said:
            raise ValueError("; ".join(sorted(said)))
        return self

    @model_validator(mode="after")
    def _one_gpu_to_share(self) -> Resources:
        if self.runs_per_gpu > 1 and (self.gpu_count, self.nodes) != (1, 1):
            raise ValueError(
                f"runs_per_gpu {self.runs_per_gpu} needs gpus: 1 and nodes: 1, found gpus: {self.gpus} "
                f"and nodes: {self.nodes}"
            )
        if self.runs_per_gpu * self.cpus > _MOST_COUNTED:
            raise ValueError(
                f"runs_per_gpu {self.runs_per_gpu} x cpus {self.cpus} are more CPUs than a job may ask "
                f"for, {_MOST_COUNTED}: lower one of them"
            )
        if self.max_parallel is not None and self.runs_per_gpu > self.max_parallel:
            raise ValueError(
                f"runs_per_gpu {self.runs_per_gpu} starts more runs at once than max_parallel "
                f"{self.max_parallel} allows: raise max_parallel or lower runs_per_gpu"
            )
        return self

    @property
    def gpu_count(self) -> int:
        """GPUs of one node, whatever their type."""
        return self.gpus if isinstance(self.gpus, int) else int(self.gpus.rpartition(":")[2])

    @property
    def sbatch_options(self) -> dict[str, Any]:
        """`sbatch` under sbatch's own names; an option without a value is there or not."""
        given = {key.lstrip("-").replace("_", "-"): value for key, value in self.sbatch.items()}
        return {key: value for key, value in given.items() if value is not False}

    @property
    def gpus_of_node(self) -> int:
        """GPUs of one node, also where only `sbatch` asks for them."""
        if self.gpu_count:
            return self.gpu_count
        given = {key: str(value) for key, value in self.sbatch_options.items()}
        parts = [part for part in given.get("gres", "").split(",") if re.match(r"gpu\b", part)]
        for key in ("gpus-per-node", "gpus", "gpus-per-task"):
            parts += given[key].split(",") if key in given else []
        counts = [re.split("[:=]", part)[-1] for part in parts]
        return sum(int(count) if count.isdigit() else 1 for count in counts)

    @property
    def gpus_of_run(self) -> float:
        """GPUs that one run holds; 1 for a run without."""
        return self.gpus_of_node * self.nodes / self.runs_per_gpu or 1.0

    def key(self) -> str:
        """Equal for runs that may share an array; readable enough for a plan."""
        return self.model_dump_json()

    def summary(self, *, local: bool = False) -> str:
        """`gpu · 1 GPU · 8 CPUs · 32 GB · 60 min`; on local slots without the partition."""
        parts = [] if local else [self.partition or "default partition"]
        if self.nodes > 1:
            parts.append(counted(self.nodes, "node"))
        if self.gpu_count:
            shared = f" for {self.runs_per_gpu} runs" if self.runs_per_gpu > 1 else ""
            kind = f" {self.gpus.rpartition(':')[0]}" if isinstance(self.gpus, str) else ""
            parts.append(f"{self.gpu_count}{kind} GPU{'s' * (self.gpu_count > 1)}{shared}")
        parts.append(counted(self.cpus, "CPU"))
        if self.mem_gb:
            parts.append(f"{self.mem_gb:g} GB")
        parts.append(f"{self.timeout_min} min")
        return " · ".join(parts)


def _no_scale(unit: str) -> str:
    if re.sub(r"[\W_]", "", unit).casefold() in ("percent", "percentage", "pct", "fraction"):
        raise ValueError(
            f"'{unit}' would be printed as a word. Write '%' where runs log fractions (0.91 becomes "
            "91.0), or '' where they log what is to be printed"
        )
    return unit


class MetricSpec(Frozen):
    """How a metric is read and printed. Values are fractions in [0, 1] where unit is %."""

    # Which way is better; a manifest has to say it. None (imported logs only): nobody knows.
    direction: Literal["up", "down"] | None
    digits: int = Field(default=1, ge=0, le=6)  # printed, after the unit is applied
    # "%" prints 100 x value; anything else prints value and unit as they are
    unit: Annotated[str, AfterValidator(_no_scale)] = "%"
    label: str | None = None  # null: the metric's name


class TableSpec(Frozen):
    """One table of the paper. `rows` and `metrics` empty: all, in the manifest's order."""

    name: FileName
    # main: a row a variant. components: check marks from each variant's `components`. leave_one_out:
    # the full method first, differences to it. sweep: a row for each value of `axis`.
    # reported: the published number, ours, difference and verdict side by side. conditions: one variant
    # (in `rows`), a row for each condition of its metrics: mAP, mAP@missing_r, mAP@on_NAME.
    kind: Literal["main", "components", "leave_one_out", "sweep", "reported", "conditions"] = "main"
    metrics: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    baseline: str | None = None  # differences are taken to it; null: the study's baseline
    # The best epoch is usually chosen on the test split: it stands beside the last, without a star.
    epoch: Literal["last", "best", "both"] = "both"
    axis: str | None = None  # sweep: a dotted configuration key
    group_by: str | None = None  # rows are grouped by the value of this dotted key
    title: str | None = None
    caption: str = ""  # what it shows; statistic, n and selection are added from the computation
    notes: str = ""

    @model_validator(mode="after")
    def _fits_its_kind(self) -> TableSpec:
        if self.kind == "conditions" and len(self.rows) != 1:
            raise ValueError("kind: conditions shows one variant: name it, and it alone, in 'rows'")
        if (self.kind == "sweep") != (self.axis is not None):
            raise ValueError(
                "'axis' (a dotted configuration key) goes with kind: sweep, and only there"
            )
        return self


class FigureSpec(Frozen):
    """One figure of the paper. `variants` empty: all, in the manifest's order."""

    name: FileName
    # curves: a logged metric against epochs. sweep: a metric of the result against `axis`.
    # differences: a row a variant, its difference to the baseline with its 95 % interval.
    kind: Literal["curves", "sweep", "differences"] = "curves"
    metric: str = "loss"
    variants: tuple[str, ...] = ()
    panel_by: str | None = None  # one panel for each value of this dotted key
    in_every_panel: tuple[str, ...] = ()  # variants repeated in all panels, such as the baseline
    axis: str | None = None  # sweep: a dotted configuration key
    # differences: nearer to 0 than this, in the metric's printed unit, counts as equivalent.
    margin: Annotated[float, Field(gt=0.0)] | None = None
    log_y: bool = False
    band: Literal["sd", "minmax", "t95", "none"] = "minmax"
    width: Literal["column", "page"] = "column"
    title: str | None = None
    caption: str = ""

    @model_validator(mode="after")
    def _axes_of_kind(self) -> FigureSpec:
        if self.log_y and self.kind != "curves":
            raise ValueError("'log_y' goes with kind: curves, and only there")
        if (self.margin is not None) and self.kind != "differences":
            raise ValueError("'margin' goes with kind: differences, and only there")
        if (self.kind == "sweep") != (self.axis is not None):
            raise ValueError(
                "'axis' (a dotted configuration key) goes with kind: sweep, and only there"
            )
        return self


# Text, quoted or not: `79.10` keeps its last digit.
Printed = Annotated[
    str,
    Field(
        pattern=r"^[-+]?\d+(\.\d+)?$",
        max_length=20,
        description="a number as it is printed, such as 79.10, of 20 characters at most",
    ),
]


class _ReportedBy(Frozen):
    """Whose number it is and how it was made, as far as the source says."""

    # The variant it is compared with, or the name of a method that we have no runs of: one of the two.
    variant: str | None = None
    method: str | None = None
    dataset: str | None = None
    by: Literal["authors", "third party"] = "authors"
    # Largest difference, in the printed unit, that counts as reproduced whatever the seeds' spread.
    tolerance: NonNegative | None = None
    n: PositiveInt | None = None  # seeds behind it, where the source says so
    # Settings that it ran with, as the variant's: reproduce and table name what ours has otherwise.
    settings: dict[str, Any] = Field(default_factory=dict)
    # What it ran on, in the words of run.json: compared with ours by `sdtps reproduce` and its table.
    environment: dict[Literal["gpu", "torch", "data"], str] = Field(default_factory=dict)
    note: str = ""


class Reported(_ReportedBy):
    """A number that somebody else reports, as text: its digits say how exact it is meant."""

    source: str  # paper, table, row
    values: dict[str, Printed]  # metric -> value in the metric's printed unit
    # metric -> its standard deviation over n seeds, where given
    sd: dict[str, Printed] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_subject(self) -> Reported:
        if (self.variant is None) == (self.method is None):
            raise ValueError(
                "give either 'variant' (compared with ours) or 'method' (a row without runs)"
            )
        if not self.values:
            raise ValueError("'values' is empty")
        if self.sd and (self.n or 1) < 2:
            raise ValueError("'sd' needs 'n', the seeds that it was computed over: 2 or more")
        if extra := sorted(self.sd.keys() - self.values.keys()):
            raise ValueError(f"'sd' of {', '.join(extra)}, which 'values' does not have")
        return self


class AttributionSpec(Frozen):
    """Which of the settings in which two variants differ made the difference (`sdtps attribute`)."""

    good: str
    broken: str
    metric: str | None = None  # whose difference is explained; null: the study's first
    seeds: Annotated[Seeds, Field(min_length=2)] = (0, 1, 2, 3, 4)
    # Asks whether training explodes (diverges, or its loss peaks at twice the good end's) instead of
    # how far the metric falls: cells are then chosen in rounds, by delta debugging, with three seeds
    # each.
    explodes: bool = False


class RoundsSpec(Frozen):
    """Seeds in rounds: after each look, only variants whose verdict is open get the next seeds."""

    looks: Annotated[tuple[PositiveInt, ...], Field(min_length=2)]  # seeds at each look, increasing
    margin: Annotated[float, Field(gt=0)]  # differences below it are equivalent; printed unit

    @model_validator(mode="after")
    def _looks_increase(self) -> RoundsSpec:
        if list(self.looks) != sorted(set(self.looks)) or self.looks[0] < 2:
            raise ValueError(f"looks {list(self.looks)} must increase, from 2 seeds at least")
        if self.looks[-1] < 12:
            raise ValueError(
                f"looks end at {self.looks[-1]} seeds; below 12, rounds save no runs (they save 14 to "
                "37 % at 20). Write 'seeds' alone, or looks such as [5, 8, 12, 20]"
            )
        return self


class BudgetSpec(Frozen):
    """What a study may cost."""

    gpu_hours: Annotated[float, Field(gt=0)]  # of all attempts, failed ones included


class ReportedCsv(_ReportedBy):
    """Reported values taken from a CSV file: the one row that `where` selects.

    With a variant such as `{name}`, whose field is a column, each row with values is an entry.
    """

    csv: str  # beside the manifest, or relative to one of the folders above it
    where: dict[str, str] = Field(default_factory=dict)  # column -> text
    columns: dict[str, str]  # metric -> column
    source: str | None = None  # null: the file's own `source` column
