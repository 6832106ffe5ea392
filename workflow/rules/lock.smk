# Snakemake's lock outlives a Snakemake that is killed outright. Its holder is written beside it: on the
# same machine, a lock whose holder is gone is removed, and the same command goes on.
import shutil
import socket

LOCKS = Path(".snakemake/locks")
HOLDER = LOCKS / "holder"


def hold_lock():
    LOCKS.mkdir(parents=True, exist_ok=True)
    HOLDER.write_text(f"{socket.gethostname()} {os.getpid()}")


def remove_abandoned_lock():
    try:
        host, process = HOLDER.read_text().split()
        if host == socket.gethostname():
            os.kill(int(process), 0)
    except ProcessLookupError:
        shutil.rmtree(LOCKS, ignore_errors=True)
    except (FileNotFoundError, ValueError, PermissionError):
        pass  # nobody has held it, or somebody else's process has


if workflow.is_main_process:
    remove_abandoned_lock()
