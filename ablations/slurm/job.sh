#!/bin/bash
# What a job array runs: executor.py writes the options and these variables above it.
#   JOBS         folder of the submission, runs/STUDY/_jobs/NAME
#   SUBMISSION   its name        MODULE  what Python runs        SNAPSHOT  the frozen code
#   PYTHON       interpreter and its arguments, an array         SRUN_OPTIONS  an array
#   TOGETHER     runs of one element
#   INTERRUPTED NOT_OURS SETUP_FAILED  exit codes (see endings.py)
#
# It writes down in each run's submitit/attempts.txt when the job began and how it ended, so that the end
# of a process that could not speak for itself is known without accounting.
# shellcheck shell=bash disable=SC2317  # functions called by traps

JOB=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
MARK="$SUBMISSION $JOB ${SLURM_RESTART_COUNT:-0}"
BOOT=$(cat /proc/sys/kernel/random/boot_id 2>/dev/null || echo -)
START="start $MARK $(hostname -s) $$ $BOOT 0 $(date +%s)"
STUDY=$(dirname "$(dirname "$JOBS")")
FIRST=$((SLURM_ARRAY_TASK_ID * TOGETHER + 1))
LAST=$((FIRST + TOGETHER - 1))

# In a store that its group may write to, so is what the job makes.
[ -z "$(find "$JOBS" -maxdepth 0 -perm -g+w 2>/dev/null)" ] || umask 002

# SLURM signals this shell as well: it must live to write down how the run ended.
TERMINATED=-
trap 'TERMINATED=TERM' TERM
trap : USR2

# The lock in run folder $1 names this submission.
ours() {
  grep -qsF "\"$SUBMISSION\"" "$1/lock.json"
}

# Append line $2 to file $1. A line that a full disk cut short would swallow the next one.
note() {
  [ -z "$(tail -c 1 "$1" 2>/dev/null)" ] || echo >>"$1"
  echo "$2" >>"$1"
}

# Record exit code $1 of the run, and end.
finish_one() {
  # A folder that was deleted, or that another submission has locked by now, is not written to.
  if ours "$RUN"; then
    note "$ATTEMPTS" "end $MARK $1 $TERMINATED $(date +%s)"
  fi
  exit "$1"
}

# The same for the runs of an element whose end nobody could record. Left out are runs that ended by
# themselves in an earlier job of this element.
finish_several() {
  sed -n "${FIRST},${LAST}p" "$JOBS/runs.txt" | while IFS= read -r RUN; do
    RUN=$STUDY/$RUN
    ours "$RUN" || continue
    ATTEMPTS=$RUN/submitit/attempts.txt
    case $(grep -s "^end $SUBMISSION $JOB " "$ATTEMPTS" | tail -n 1) in
      "end $MARK "*) continue ;;
      "" | *" $INTERRUPTED - "* | *" TERM "*) ;;
      *) continue ;;
    esac
    mkdir -p "$RUN/submitit"
    grep -qs "^start $MARK " "$ATTEMPTS" || note "$ATTEMPTS" "$START"
    note "$ATTEMPTS" "end $MARK $1 $TERMINATED $(date +%s)"
  done
  exit "$1"
}

if [ "$TOGETHER" -eq 1 ]; then
  RUN=$STUDY/$(sed -n "${FIRST}p" "$JOBS/runs.txt")
  if ! ours "$RUN"; then
    echo "$RUN: not locked by $SUBMISSION any more"
    exit "$NOT_OURS"
  fi
  ATTEMPTS=$RUN/submitit/attempts.txt
  mkdir -p "$RUN/submitit"
  ln -sfn "../../../_jobs/$SUBMISSION/$JOB.log" "$RUN/submitit/job.log"
  # What an earlier job of this run said last would be taken for this one's.
  rm -f "$RUN/status.json"
  note "$ATTEMPTS" "$START"
  finish() { finish_one "$1"; }
else
  finish() { finish_several "$1"; }
fi

export PYTHONPATH=$SNAPSHOT${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 SDTPS_SNAPSHOT=$SNAPSHOT
# From 22.05 on srun does not inherit it, and a task would get one CPU.
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}
export OMP_NUM_THREADS=$((${SLURM_CPUS_PER_TASK:-1} / TOGETHER))
# Another program's process group is not ours.
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT

if [ -s "$JOBS/setup.sh" ]; then
  setup_failed() {
    trap - ERR
    echo "resources.setup, exit $1: $2"
    finish "$SETUP_FAILED"
  }
  trap 'setup_failed "$?" "$BASH_COMMAND"' ERR
  # shellcheck source=/dev/null
  . "$JOBS/setup.sh"
  trap - ERR
fi

# One process that fails ends the others, which would wait for it in a collective operation.
# Not --unbuffered: it gives tasks a pseudo-terminal, and progress bars would be drawn into the log.
# -P: the working directory, which may hold newer code, is not imported from.
srun --kill-on-bad-exit=1 "${SRUN_OPTIONS[@]}" "${PYTHON[@]}" -P -u -m "$MODULE" "$JOBS"
finish "$?"
