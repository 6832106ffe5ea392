# The shell of every job sources this file (shell.prefix). As is Snakemake's default, it ends at the first failure.
set -euo pipefail
# In a job of Slurm:
# - scancel and preemption send SIGTERM to every process. The shell waits for its command, which saves its state.
# - Exit status 75 means that a time limit is near and the state is saved. Slurm then requeues the job, which
#   continues with the cell's next step. Any other status is a failure, to which Snakemake's `retries` apply.
# - The preloaded process of this machine is not part of any job, so it is not used.
if [ -n "${SLURM_JOB_ID:-}" ]; then
    unset DPSWEEP_PRELOADED
    trap : TERM
    trap 'status=$?; [ $status != 75 ] || ! scontrol requeue "$SLURM_JOB_ID" || sleep 300; exit $status' EXIT
fi
# For dpsweep in a container: DPSWEEP_COMMAND="singularity exec --nv dpsweep.sif dpsweep".
if [ -n "${DPSWEEP_COMMAND:-}" ]; then
    dpsweep() { env -u DPSWEEP_PRELOADED $DPSWEEP_COMMAND "$@"; }
fi
