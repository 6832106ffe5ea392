# Snakemake (9.27) starts a timer with every decision of its scheduler, and every timer leads to another
# decision: there are as many of them as jobs have ended, each with a thread, and the work grows with the
# square. One at a time is enough.
import threading


def one_timer_at_a_time(scheduler):
    pending = threading.Event()

    def decide_again():
        pending.clear()
        scheduler._open_jobs.release()

    def schedule(delay):
        if not pending.is_set():
            pending.set()
            threading.Timer(delay, decide_again).start()

    scheduler._schedule_reevalutation = schedule
