"""A real Slurm on this machine: one node, four simulated GPUs.

Needs root and Debian's slurm-wlm and munge. The GPUs are character devices
made with mknod: Slurm hands them out as it would hand out real ones, and jobs train on the CPU.

As a script: ``python -m tests.slurm.cluster install``, ``start`` or ``stop``, to try things by hand.
"""

import fcntl
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.waiting import PATIENCE

GPUS = 4
# Two kinds of GPU, the second a MIG slice.
TYPES = ("a100-sxm4-80gb", "1g.10gb")
GRES = ",".join(f"gpu:{kind}:{GPUS // 2}" for kind in TYPES)
CPUS = 8
STATE = Path("/var/lib/dpsweep-slurm")
CONFIGURATION = Path("/etc/slurm")  # jobs do not inherit SLURM_CONF
LOCK = Path("/run/lock/dpsweep-slurm")
MUNGE_SOCKET = Path("/run/munge/munge.socket.2")
DAEMONS = ("slurmd", "slurmctld", "munged")
PACKAGES = ("slurm-wlm", "munge")

MARK = "# Written by the tests of dpsweep."
SLURM_CONF = f"""\
{MARK}
ClusterName=test
SlurmctldHost={{host}}(127.0.0.1)
AuthType=auth/munge
# Slurm holds a requeued job back for as long as credentials live.
AuthInfo=cred_expire=20
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
MpiDefault=none
GresTypes=gpu
# A busy machine answers late.
MessageTimeout=100
BatchStartTimeout=300
KillWait=300
# Time limits hold to the second.
OverTimeLimit=0
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=1
JobCompType=jobcomp/filetxt
JobCompLoc={STATE}/jobs.txt
StateSaveLocation={STATE}/ctld
SlurmdSpoolDir={STATE}/spool
SlurmctldPidFile={STATE}/slurmctld.pid
SlurmdPidFile={STATE}/slurmd.pid
MinJobAge=7200
SlurmctldLogFile={STATE}/slurmctld.log
SlurmdLogFile={STATE}/slurmd.log
SlurmUser=root
NodeName={{host}} NodeAddr=127.0.0.1 CPUs={CPUS} RealMemory=64000 Gres={GRES} State=UNKNOWN
PartitionName=gpu Nodes={{host}} Default=YES MaxTime=60 State=UP
"""


def missing() -> str | None:
    """Why a cluster cannot run here, or None."""
    if os.geteuid() != 0:
        return "starting Slurm needs root"
    absent = [name for name in (*DAEMONS, "sbatch") if shutil.which(name) is None]
    if absent:
        return f"{', '.join(absent)} not found: apt-get install {' '.join(PACKAGES)}"
    own = CONFIGURATION / "slurm.conf"
    if own.exists() and MARK not in own.read_text():
        return f"{own} belongs to a cluster of this machine"
    try:
        with tempfile.TemporaryDirectory() as folder:
            os.mknod(Path(folder) / "gpu", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except OSError as error:
        return f"device files cannot be made: {error}"
    return None


def install() -> None:
    """Install Slurm from Debian's packages where that is possible; say why where it is not."""
    if missing() and os.geteuid() == 0 and shutil.which("apt-get"):
        options = ["-qq", "--no-install-recommends"]
        subprocess.run(["apt-get", "update", "-qq"], check=False)
        subprocess.run(
            ["apt-get", "install", "-y", *options, *PACKAGES],
            check=False,
            stdout=subprocess.DEVNULL,
            env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
        )
    if reason := missing():
        print(f"no Slurm here, its tests are skipped: {reason}")  # noqa: T201


def start() -> None:
    """Start the cluster with an empty queue and wait until it takes jobs."""
    if reason := missing():
        raise RuntimeError(reason)
    stop()
    shutil.rmtree(STATE, ignore_errors=True)
    for folder in (STATE / "ctld", STATE / "spool", MUNGE_SOCKET.parent):
        folder.mkdir(parents=True, exist_ok=True)
    for index in range(GPUS):
        os.mknod(STATE / f"gpu{index}", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    host = socket.gethostname().split(".")[0]
    CONFIGURATION.mkdir(exist_ok=True)
    (CONFIGURATION / "slurm.conf").write_text(SLURM_CONF.format(host=host))
    (CONFIGURATION / "gres.conf").write_text(
        "".join(
            f"Name=gpu Type={kind} File={STATE}/gpu[{2 * index}-{2 * index + 1}]\n"
            for index, kind in enumerate(TYPES)
        )
    )
    shutil.chown(MUNGE_SOCKET.parent, "munge", "munge")
    _run("runuser", "-u", "munge", "--", "munged")
    for daemon in ("slurmctld", "slurmd"):
        _run(daemon)
    if not _until(lambda: "idle" in _output("sinfo", "--noheader", "--format=%T"), PATIENCE):
        log = (STATE / "slurmctld.log").read_text()[-2000:]
        raise RuntimeError(f"the node did not come up:\n{log}")


@contextmanager
def running() -> Iterator[None]:
    """The cluster, from start to stop; who else wants it on this machine waits."""
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        start()
        try:
            yield
        finally:
            stop()


def stop() -> None:
    """End every daemon and every job."""
    if MUNGE_SOCKET.exists() and _pids("slurmctld"):
        with suppress(subprocess.SubprocessError):
            user = str(os.geteuid())
            subprocess.run(
                ["scancel", "--user", user], check=False, timeout=PATIENCE, capture_output=True
            )
            _until(lambda: not queue(), 60)
    for daemon in DAEMONS:
        _end(daemon)


def queue() -> list[tuple[str, str]]:
    """Jobs that wait or run: (id, state)."""
    lines = _output("squeue", "--noheader", "--format=%i %T").splitlines()
    return [(line.split()[0], line.split()[1]) for line in lines]


def job(number: str) -> dict[str, str]:
    """What the controller knows about a job."""
    words = _output("scontrol", "show", "job", number).split()
    return dict(word.split("=", 1) for word in words if "=" in word)


def update(number: str, change: str) -> None:
    """Change a job, as its owner or an operator may."""
    _run("scontrol", "update", f"JobId={number}", change)


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stdout}{done.stderr}")


def _pids(daemon: str) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (folder / "comm").read_text().strip() == daemon:
                found.append(int(folder.name))
    return found


def _end(daemon: str) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in _pids(daemon):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        if _until(lambda: not _pids(daemon), 60):
            return


def _until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


if __name__ == "__main__":
    {"install": install, "start": start, "stop": stop}[sys.argv[1]]()
