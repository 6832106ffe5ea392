# Read by the shell of every job (shell.prefix), which ends at the first command that fails, as is Snakemake's way.
set -euo pipefail
# In a job of Slurm:
# - scancel and preemption send SIGTERM to every process. The shell waits for its command, which saves its state.
# - Exit status 75 says that a time limit is near, and the state is saved. Slurm then requeues the job, which goes
#   on with the cell's next step. Everything else is a failure, and Snakemake's `retries` count.
# - A process that was preloaded on this machine belongs to no job.
if [ -n "${SLURM_JOB_ID:-}" ]; then
    unset DPSWEEP_PRELOADED
    trap : TERM
    trap 'status=$?; [ $status != 75 ] || ! scontrol requeue "$SLURM_JOB_ID" || sleep 300; exit $status' EXIT
fi
# dpsweep may be in a container: DPSWEEP_COMMAND="singularity exec --nv dpsweep.sif dpsweep".
if [ -n "${DPSWEEP_COMMAND:-}" ]; then
    dpsweep() { env -u DPSWEEP_PRELOADED $DPSWEEP_COMMAND "$@"; }
fi
