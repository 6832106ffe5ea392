# Snakemake's lock outlives a Snakemake that is killed outright. So every call says that it is there, in a file
# beside the lock, from before it can take the lock until it ends. A lock that is there without such a call, or
# with calls of this machine that are gone, is removed, and the same command goes on.
import atexit
import shutil
import socket

import psutil

LOCKS = Path(".snakemake/locks").absolute()
CALL = LOCKS / f"{socket.gethostname()} {os.getpid()}.call"


def begin(process):
    # The number of a process is given again, for example after the machine was started anew. Since the start of
    # the machine: the time of day changes for all processes if the clock is set.
    return f"{process.create_time() - psutil.boot_time():.1f}"


def hold_lock():
    LOCKS.mkdir(parents=True, exist_ok=True)
    CALL.write_text(begin(psutil.Process()))


def is_over(call):
    host, process = call.stem.split()
    if host != socket.gethostname():
        return False
    try:
        return begin(psutil.Process(int(process))) != call.read_text()
    except (psutil.NoSuchProcess, FileNotFoundError):
        return True


def remove_abandoned_lock():
    if all(is_over(call) for call in LOCKS.glob("*.call")):
        shutil.rmtree(LOCKS, ignore_errors=True)


if workflow.is_main_process:
    remove_abandoned_lock()
    hold_lock()
    atexit.register(CALL.unlink, missing_ok=True)
    STARTED = CALL.stat().st_mtime_ns
