# How this call begins and ends.
import os
import signal
import sys

from dpsweep.cli import preload
from dpsweep.planning.failures import failure, summary

if workflow.is_main_process:
    CALL_FILE = call.CallFile(Path(".snakemake/locks"))


onstart:
    call.jobs_begin()
    CALL_FILE.write()
    if not workflow.non_local_exec:
        preload.start()
    else:
        # Jobs of a cluster are long and elsewhere. To end this process is to end them, as Ctrl-C does:
        # they save their state.
        signal.signal(signal.SIGTERM, signal.default_int_handler)


onerror:
    # Those that this run has begun and not finished were stopped, or failed without a word to Snakemake.
    begun = {
        job for job in workflow.dag.needrun_jobs() if CALL_FILE.has_begun(job.log)
    }
    jobs = {*workflow.scheduler.failed, *begun}
    failures = [failure(job.output, job.log, job.rule.name) for job in jobs]
    failures.sort(key=lambda each: str(each.log))
    waiting = len(set(workflow.scheduler.remaining_jobs) - jobs)
    if call.interrupted():
        call.end_interrupted()
    lines = summary(failures, call.called_again(), waiting)
    print(*lines, sep="\n", file=sys.stderr, flush=True)
