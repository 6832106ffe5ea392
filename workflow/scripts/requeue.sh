#!/bin/sh
# requeue.sh STATUS: what becomes of a job, by the exit status of its command.
# 75 says: the time limit is near, state is saved, call again. Slurm then requeues the job, and it
# goes on with the cell's next step. Everything else is a failure, and Snakemake's `retries` count.
status=$1
if [ "$status" = 75 ] && [ -n "${SLURM_JOB_ID:-}" ] && scontrol requeue "$SLURM_JOB_ID"; then
    sleep 300 # Slurm ends this job now; nothing more may start in it.
fi
exit "$status"
