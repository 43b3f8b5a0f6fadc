"""A real SLURM of one node in a folder: its own munge, controller and node, and accounting if asked.

Nothing outside FOLDER is touched: keys, sockets, state, ports and logs are its own, so that it stands
beside a cluster the machine belongs to. Four CPUs (jobs at the same time, also on fewer cores), two
GPUs that are /dev/null, a partition `gpu` whose jobs are requeued by those of partition `urgent`. Works
as root and, without accounting, as any user. The folder's name must be short: sockets lie in it.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

NODE = "testnode"
CPUS = 4
GPUS = 2
GPU_TYPE = "toy"
# Daemons live in sbin, which a user's PATH may lack.
PATH = os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/local/sbin:/usr/sbin:/sbin"
# How long a test waits for anything. A busy machine may take minutes; a test that succeeds ends sooner.
PATIENCE_S = 300.0
NEEDED = ("slurmctld", "slurmd", "sbatch", "squeue", "munged")
NEEDED_FOR_ACCOUNTING = ("slurmdbd", "sacct", "sacctmgr", "mariadbd", "mariadb-install-db", "mariadb")

SLURM_CONF = """\
ClusterName={name}
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
SwitchType=switch/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=200
SchedulerType=sched/backfill
# batch_sched_delay=0 and a short interval: a test waits for each scheduling decision.
SchedulerParameters=bf_interval=1,sched_interval=2,batch_sched_delay=0,sched_min_interval=0,default_queue_depth=2000
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=1
JobAcctGatherParams=OverMemoryKill
{accounting}
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
# Between SIGTERM and SIGKILL: a run on a busy machine must have the time to write its checkpoint.
KillWait=8
# By default a job whose script is not up within 10 s counts as lost.
BatchStartTimeout=120
MinJobAge={min_job_age}
MaxArraySize=1001
MaxJobCount=20000
ReturnToService=2
SlurmdParameters=config_overrides
SlurmdTimeout=300
MessageTimeout=30
GresTypes=gpu
{nodes}
PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE
PartitionName=scavenge Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=CANCEL
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""

NODE_LINE = (
    "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} "
    "RealMemory={memory} Gres={gres}"
)
ACCOUNTING_OFF = "AccountingStorageType=accounting_storage/none"
ACCOUNTING_ON = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageEnforce=associations,limits,qos
AccountingStorageHost=127.0.0.1
AccountingStoragePass={folder}/munge.socket
AccountingStoragePort={database_daemon_port}"""

SLURMDBD_CONF = """\
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={database_daemon_port}
SlurmUser={user}
LogFile={folder}/slurmdbd.log
PidFile={folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database_port}
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct_db
"""


class ClusterError(RuntimeError):
    """The cluster did not come up; the text ends with the log of the daemon that failed."""


def missing(accounting: bool = False) -> str | None:
    """Why no cluster can be started here, or None."""
    for program in NEEDED + (NEEDED_FOR_ACCOUNTING if accounting else ()):
        if shutil.which(program, path=PATH) is None:
            return f"'{program}' is not installed (see .ci/packages)"
    if accounting and os.getuid() != 0:
        return "accounting needs root: MariaDB runs as its own user"
    return None


def until(true: Callable[[], bool], told: Callable[[], object] = str) -> None:
    """Wait until `true()`; fail with what `told()` says where that takes longer than PATIENCE_S."""
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, told()
        time.sleep(0.5)


class Cluster:
    """Starts and stops the daemons in `folder`; `SLURM_CONF` points the client commands at them."""

    def __init__(
        self,
        folder: Path,
        *,
        accounting: bool = False,
        min_job_age_s: int = 300,
        name: str = "test",
        nodes: int = 1,
    ) -> None:
        self.folder = Path(folder).resolve()
        self.accounting = accounting
        self.nodes = [NODE] if nodes == 1 else [f"{NODE}{k}" for k in range(1, nodes + 1)]
        self.conf = self.folder / "slurm.conf"
        self._settings = {
            "min_job_age": min_job_age_s,
            "name": name,
        }

    def start(self, timeout_s: float = PATIENCE_S) -> None:
        """Start everything and wait until the node takes jobs.

        Raises:
            ClusterError: a program is missing, or a daemon did not answer within `timeout_s`.
        """
        if reason := missing(self.accounting):
            raise ClusterError(reason)
        for name in ("state", *(f"spool.{node}" for node in self.nodes)):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o755)
        self._write_configuration()
        self._start_munge()
        deadline = time.monotonic() + timeout_s
        if self.accounting:
            self._start_database(deadline)
            self._daemon("slurmdbd")
            self._wait(deadline, "slurmdbd", "sacctmgr", "-n", "show", "cluster")
            self.run("sacctmgr", "-i", "add", "cluster", "test")
            self.run("sacctmgr", "-i", "add", "account", "lab", "cluster=test")
            self.run("sacctmgr", "-i", "add", "user", getpass.getuser(), "account=lab")
            brief = ("set", "MaxWall=1", "MaxSubmitJobsPerUser=3", "Flags=DenyOnLimit")
            self.run("sacctmgr", "-i", "add", "qos", "brief")
            self.run("sacctmgr", "-i", "modify", "qos", "brief", *brief)
            self.run("sacctmgr", "-i", "modify", "user", getpass.getuser(), "set", "qos+=brief")
        self._daemon("slurmctld", "-c")
        self._wait(deadline, "slurmctld", "scontrol", "ping")
        for node in self.nodes:
            self._daemon("slurmd", "-N", node)
        self.wait_for_node(deadline - time.monotonic())

    def wait_for_node(self, timeout_s: float = PATIENCE_S) -> None:
        """Until the node takes jobs. Raises ClusterError."""
        deadline = time.monotonic() + timeout_s
        while set(self.run("sinfo", "-h", "-N", "-o", "%T").stdout.split()) != {"idle"}:
            if time.monotonic() > deadline:
                raise ClusterError("no idle node\n" + self._log(f"slurmd.{self.nodes[0]}"))
            time.sleep(0.2)

    def end_jobs(self, timeout_s: float = PATIENCE_S) -> None:
        """Kill every job and wait until none is left. Raises ClusterError."""
        deadline = time.monotonic() + timeout_s
        while self.run("squeue", "-h").stdout.strip():
            if time.monotonic() > deadline:
                raise ClusterError("jobs do not end\n" + self.run("squeue").stdout)
            self.run("scancel", "--me")
            self.run("scancel", "--me", "--signal=KILL", "--full")
            time.sleep(0.2)

    def stop(self) -> None:
        """Kill all daemons, then the jobs, which they do not take along; the folder stays."""
        daemons = [f"slurmd.{node}" for node in self.nodes]
        for name in (*daemons, "slurmctld", "slurmdbd", "mariadbd", "munged"):
            with contextlib.suppress(FileNotFoundError, ValueError, ProcessLookupError):
                os.kill(int((self.folder / f"{name}.pid").read_text()), signal.SIGKILL)
        conf = f"SLURM_CONF={self.conf}".encode()
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                variables = (entry / "environ").read_bytes().split(b"\0")
                name = (entry / "comm").read_text().strip()
            except OSError:
                continue
            of_a_job = name == "slurmstepd" or any(v.startswith(b"SLURM_JOB_ID=") for v in variables)
            if conf in variables and of_a_job and int(entry.name) != os.getpid():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(entry.name), signal.SIGKILL)

    def run(self, *command: str, timeout_s: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
        """A client command against this cluster; never raises for its exit status."""
        return subprocess.run(
            command, env=self.environment(), capture_output=True, text=True, timeout=timeout_s
        )

    def start_now(self, element: str) -> None:
        """Let a requeued job start: it would wait about two minutes for its BeginTime.

        In the second in which its old credential was revoked, it would be killed.
        """

        def shown() -> str:
            return self.run("scontrol", "show", "job", element).stdout

        def started() -> bool:
            if "JobState=COMPLETING" in shown():  # its BeginTime is yet to be set
                return False
            time.sleep(1.1)
            done = self.run("scontrol", "update", f"JobId={element}", "StartTime=now")
            return done.returncode == 0 and "Reason=BeginTime" not in shown()

        until(started)

    def preempt(self) -> None:
        """Let a job of the partition `urgent` take all CPUs for a second."""
        words = ("--partition=urgent", "--exclusive", "--mem=100M", "--output=/dev/null")
        assert self.run("sbatch", *words, "--wrap", "sleep 1").returncode == 0

    def end_soon(self, element: str, seconds: int) -> None:
        """Let the time limit of a running job lie so far ahead: limits are whole minutes.

        SLURM looks twice a minute. What it sends before the limit and at it is as the job asked.
        Refused where the job's own limit was reached meanwhile.
        """
        at = time.strftime("%FT%T", time.localtime(time.time() + seconds))
        self.run("scontrol", "update", f"JobId={element}", f"EndTime={at}")

    def environment(self) -> dict[str, str]:
        """This process's environment, pointed at the cluster."""
        return {**os.environ, "PATH": PATH, "SLURM_CONF": str(self.conf)}

    # -- inside ---------------------------------------------------------------------------------

    def _write_configuration(self) -> None:
        controller, daemon, database, *ports = _free_ports(3 + len(self.nodes))
        host = socket.gethostname().split(".")[0]
        line = {
            **{"host": host, "cpus": CPUS, "memory": 4000},
            "gres": f"gpu:{GPU_TYPE}:{GPUS}",
        }
        pairs = zip(self.nodes, ports, strict=True)
        values = {
            **self._settings,
            "folder": self.folder,
            "host": host,
            "user": getpass.getuser(),
            "nodes": "\n".join(NODE_LINE.format(name=n, port=p, **line) for n, p in pairs),
            "controller_port": controller,
            "database_daemon_port": daemon,
            "database_port": database,
        }
        accounting = ACCOUNTING_ON.format(**values) if self.accounting else ACCOUNTING_OFF
        self.conf.write_text(SLURM_CONF.format(accounting=accounting, **values))
        devices = [self.folder / f"gpu{k}" for k in range(GPUS)]
        for device in devices:  # slurmd insists on character devices
            device.unlink(missing_ok=True)
            device.symlink_to("/dev/null")
        (self.folder / "gres.conf").write_text(
            "".join(f"Name=gpu Type={GPU_TYPE} File={d}\n" for d in devices)
        )
        dbd = self.folder / "slurmdbd.conf"
        dbd.write_text(SLURMDBD_CONF.format(**values))
        dbd.chmod(0o600)
        self._database_port = database

    def _start_munge(self) -> None:
        key = self.folder / "munge.key"
        if not key.exists():
            key.touch(mode=0o600)
            key.write_bytes(os.urandom(128))
        self._check(
            "munged",
            "--force",  # it may run as root, and in the temporary directory
            f"--socket={self.folder}/munge.socket",
            f"--key-file={key}",
            f"--pid-file={self.folder}/munged.pid",
            f"--log-file={self.folder}/munged.log",
            f"--seed-file={self.folder}/munge.seed",
        )

    def _start_database(self, deadline: float) -> None:
        data = self.folder / "mariadb"
        if not data.exists():
            data.mkdir()
            shutil.chown(data, "mysql", "mysql")
            words = ("--no-defaults", "--user=mysql", f"--datadir={data}", f"--tmpdir={data}")
            self._check("mariadb-install-db", *words)
        log = (self.folder / "mariadbd.log").open("ab")
        process = subprocess.Popen(
            [
                *("mariadbd", "--no-defaults", "--user=mysql", "--bind-address=127.0.0.1"),
                *(f"--datadir={data}", f"--socket={data}/m.socket", f"--pid-file={data}/m.pid"),
                f"--port={self._database_port}",
                # slurmdbd asks for these; small, since the tests keep a few thousand rows.
                *("--innodb-buffer-pool-size=64M", "--innodb-lock-wait-timeout=900"),
            ],
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        (self.folder / "mariadbd.pid").write_text(str(process.pid))
        client = ("mariadb", "--no-defaults", "-u", "root", f"--socket={data}/m.socket")
        self._wait(deadline, "mariadbd", *client, "-e", "select 1")
        grant = "create database if not exists slurm_acct_db;" + "".join(
            f"create user if not exists slurm@'{host}' identified by 'slurm';"
            f"grant all on slurm_acct_db.* to slurm@'{host}';"
            for host in ("localhost", "127.0.0.1")
        )
        self._check(*client, "-e", grant)

    def _daemon(self, name: str, *options: str) -> None:
        configuration = () if name == "slurmdbd" else ("-f", str(self.conf))
        self._check(name, *configuration, *options)

    def _check(self, *command: str) -> None:
        # A daemon keeps its parent's pipes open: output goes to a file instead.
        log = self.folder / f"{Path(command[0]).name}.start.log"
        with log.open("ab") as stream:
            done = subprocess.run(
                command,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                timeout=120,
            )
        if done.returncode != 0:
            raise ClusterError(
                f"{' '.join(command)}: exit {done.returncode}\n{log.read_text()[-2000:]}"
            )

    def _wait(self, deadline: float, daemon: str, *command: str) -> None:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                done = self.run(*command)
                if done.returncode == 0 and "DOWN" not in done.stdout:
                    return
            if time.monotonic() > deadline:
                raise ClusterError(f"{daemon} does not answer\n{self._log(daemon)}")
            time.sleep(0.2)

    def _log(self, daemon: str) -> str:
        log = self.folder / f"{daemon}.log"
        return log.read_text(errors="replace")[-3000:] if log.exists() else "(no log)"


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]
    finally:
        for s in sockets:
            s.close()
