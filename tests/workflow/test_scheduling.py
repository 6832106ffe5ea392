"""The scheduler's timers do not multiply."""

import inspect
import runpy
import threading
import time
from pathlib import Path

from snakemake.scheduling.job_scheduler import JobScheduler

RULES = Path(__file__).parents[2] / "workflow" / "rules"


class Scheduler:
    def __init__(self) -> None:
        self._open_jobs = threading.Semaphore(0)

    def releases(self) -> int:
        count = 0
        while self._open_jobs.acquire(blocking=False):
            count += 1
        return count


def test_one_timer_runs_at_a_time_and_the_next_one_after_it() -> None:
    scheduler = Scheduler()
    runpy.run_path(str(RULES / "scheduling.smk"))["one_timer_at_a_time"](scheduler)
    for _ in range(2):
        for _ in range(5):
            scheduler._schedule_reevalutation(0.05)  # type: ignore[attr-defined]
        assert scheduler.releases() == 0
        assert scheduler._open_jobs.acquire(timeout=10)
        time.sleep(0.2)
        assert scheduler.releases() == 0


def test_snakemake_still_has_what_is_replaced() -> None:
    source = inspect.getsource(JobScheduler)
    assert "self._schedule_reevalutation(self.job_rate_limiter.timespan)" in source
    assert "self._open_jobs.release()" in inspect.getsource(JobScheduler._schedule_reevalutation)
