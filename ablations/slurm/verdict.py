"""How a run on the cluster is, where its own records leave it open: the scheduler's word and ours.

Both are needed: a scheduler without accounting soon forgets how a job ended, and a job whose node died
could write nothing down. One that does not answer changes no state.
"""

from __future__ import annotations

import time
from functools import cached_property

from ablations.slurm.commands import JobInfo
from ablations.slurm.queue import Scheduler, Snapshot
from ablations.store import attempts as records
from ablations.store import evidence
from ablations.store.attempts import End
from ablations.store.runstatus import OpenRun, RunStatus

# A submitter on another host whose claim has no receipt: longer than sbatch may take.
SUBMITTING_SECONDS = 900.0


class OnCluster:
    """Settles open runs; asks the scheduler at most once, when the first run needs it."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.asked = False

    @cached_property
    def queue(self) -> Snapshot:
        """The queue as it was when it was first needed."""
        self.asked = True
        return self._scheduler.queue()

    def settle(self, found: OpenRun) -> RunStatus:
        """The state of a run on the cluster."""
        end = found.attempts.last_end
        if end is not None and end.code not in (0, records.INTERRUPTED) and not end.terminated:
            # Ended by itself: nobody needs to be asked, whatever the scheduler makes of it. (Without a
            # result 0 is no such end: srun says it of a run whose node went down.)
            return self._by_end(found, end)
        if end is not None and found.claim.cancelled and found.submission.runs_per_job > 1:
            return self._by_end(found, end)  # its job goes on for the sake of other runs
        if found.job_id is None:
            return self._without_receipt(found)
        job = self.queue.find(found.job_id, found.submission.name)
        if job is None or job.missed:
            return self._unlisted(found, job)
        return self._by_job(found, job)

    def _by_job(self, found: OpenRun, job: JobInfo) -> RunStatus:
        where = {"node": job.node or None}
        start, end = found.attempts.last_start, found.attempts.last_end
        newer = start is not None and end is None and start.restart >= job.restarts
        if job.state in ("PENDING", "CONFIGURING") and newer and not job.held:
            # It has begun since the scheduler was asked: answers are some seconds old.
            return found.as_state("running", None, found.silence())
        if job.waiting:
            if found.claim.cancelled and found.submission.runs_per_job > 1:
                return found.as_state("cancelled")  # its job waits for the sake of other runs
            why = job.reason or job.state
            waits = f"held ({why}): nothing starts it until it is released" if job.held else ""
            if found.began or job.restarts:
                again = max(job.restarts, len(found.attempts.starts))
                waits = waits or f"waits to start again ({why})"
                attempt = found.status.get("attempt") or again
                return found.as_state("requeued", None, waits, attempt=attempt + 1, held=job.held)
            return found.as_state("queued", None, waits or job.reason, held=job.held)
        if not job.ended:
            return found.as_state("running", None, found.silence(), **where)
        if job.state == "PREEMPTED":
            return found.as_state("cancelled", None, "preempted")
        kind = evidence.from_scheduler(job)
        if kind == "cancelled" or (kind is None and found.claim.cancelled):
            return found.as_state("cancelled", None, found.course(), **where)
        if kind is not None:
            return found.as_state("failed", kind, self._story(found, kind, job), **where)
        if found.attempts.last_end is not None:
            return self._by_end(found, found.attempts.last_end)
        return self._by_exit(found, job)

    def _by_exit(self, found: OpenRun, job: JobInfo) -> RunStatus:
        """The batch script could not record its end, but the scheduler knows its exit."""
        text = evidence.tail(found.log_file)
        said = evidence.from_log(text)
        if said in ("timeout", "oom", "node"):
            return found.as_state("failed", said, self._story(found, said, job))
        if job.state == "COMPLETED":
            return found.as_state("failed", "lost", "its job completed, but wrote no result")
        if not found.began:
            how = f"signal {job.signal}" if job.signal else f"exit code {job.code}"
            return found.as_state("failed", "start", f"the job ended before the run began ({how})")
        if job.signal:
            return found.as_state("failed", "killed", f"killed by signal {job.signal}")
        return found.as_state("failed", "exit", f"exit code {job.code}")

    def _by_end(self, found: OpenRun, end: End) -> RunStatus:
        """From the exit record, and the output where the code alone does not say."""
        kind, what = evidence.from_code(end)
        said = evidence.from_log(evidence.tail(found.log_file))
        if kind in ("killed", "lost") or end.terminated:
            if said in ("timeout", "oom", "node"):
                return found.as_state("failed", said, self._story(found, said, None))
            if found.claim.cancelled or said == "cancelled":
                return found.as_state("cancelled", None, found.course())
            if end.terminated and said in ("preempted", "requeue"):
                return found.as_state("cancelled", None, "preempted and not queued again")
        if kind == "exit" and not found.attempts.python_ran:
            return found.as_state("failed", "start", f"Python did not come up (exit {end.code})")
        if kind == "exit" and said == "oom":
            return found.as_state("failed", "oom", self._story(found, "oom", None))
        if end.code == records.INTERRUPTED:
            word = "failed" if not end.terminated else "cancelled"
            why = "stopped at its time limit, and could not be requeued"
            return found.as_state(word, "timeout" if word == "failed" else None, why)
        return found.as_state("failed", kind, what)

    def _unlisted(self, found: OpenRun, last: JobInfo | None) -> RunStatus:
        """squeue does not name the job: no answer, or it does not know it yet, or not any more."""
        end = found.attempts.last_end
        assert found.job_id is not None
        asked = self.queue
        if not asked.gone(found.job_id, found.submission.name, found.submission.time + 5):
            if asked.error and end is not None and end.code == 0:
                return self._by_end(found, end)
            state = "running" if found.began and end is None else "requeued" if end else "queued"
            why = f"the scheduler did not answer: {asked.error}" if asked.error else found.silence()
            return found.as_state(state, None, why)
        array = found.job_id.partition("_")[0]
        known = self._scheduler.accounting({array}).get(found.job_id)
        if known is not None and known.name == found.submission.name and known.state != "PENDING":
            return self._by_job(found, known)
        if end is not None:
            return self._by_end(found, end)
        text = evidence.tail(found.log_file)
        said = evidence.from_log(text)
        if found.claim.cancelled or said == "cancelled":
            return found.as_state("cancelled", None, found.course())
        if said in ("timeout", "oom", "node"):
            return found.as_state("failed", said, self._story(found, said, None))
        if said in ("preempted", "requeue"):
            return found.as_state("cancelled", None, "preempted and not queued again")
        if found.began:
            why = f"job {found.job_id} is gone and left no exit record"
            return found.as_state("failed", "lost", why)
        # Nobody looked while the scheduler still knew. What waits seldom leaves in another way.
        why = (
            f"job {found.job_id} left the queue before it started: cancelled, or the scheduler lost it"
        )
        return found.as_state("cancelled", "unstarted", why)

    def _without_receipt(self, found: OpenRun) -> RunStatus:
        """No job id was written down: the submitter is at it, or died, or got no clear answer."""
        submitter = found.claim.submitter
        alive = submitter.alive() if submitter else False
        if alive or (alive is None and time.time() - found.claim.time < SUBMITTING_SECONDS):
            return found.as_state("queued", None, "being submitted")
        if not found.submission.intent:
            return found.as_state("planned", None, "its submitter died before it asked the scheduler")
        index = found.submission.index(found.folder)
        for job in self.queue.jobs.values():
            if job.name == found.submission.name and job.id.endswith(f"_{index}"):
                return self._by_job(found, job)
        if self.queue.error:
            return found.as_state(
                "queued", None, f"unknown whether it was submitted: {self.queue.error}"
            )
        return found.as_state("planned", None, "its submitter died; no job of that name is queued")

    @staticmethod
    def _story(found: OpenRun, kind: str, job: JobInfo | None) -> str:
        """How far it came, and on which node."""
        node = job.node if job else ""
        start = found.attempts.last_start
        node = node or (start.process.host if start else "")
        what = {
            "timeout": "ran into its time limit",
            "oom": "used more memory than resources.mem_gb allows",
            "node": "its node failed",
        }[kind]
        where = f" on {node}" if node else ""
        return f"{what}{where}{found.course(' ')}"
