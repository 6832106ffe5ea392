"""A real Slurm on this machine: one node, four simulated GPUs, two partitions, no accounting.

Needs root and Debian's slurm-wlm and munge. The GPUs are character devices
made with mknod: Slurm assigns them like real ones, and jobs train on the CPU.

As a script: ``python -m tests.slurm.cluster install``, ``start`` or ``stop``, for manual tests.
"""

import fcntl
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from tests.waiting import called, wait_for

NAME = "dpsweep-test"
GPUS = 4
# Two types of GPU, the second a MIG slice.
TYPES = ("a100-sxm4-80gb", "1g.10gb")
GRES = ",".join(f"gpu:{kind}:{GPUS // 2}" for kind in TYPES)
CPUS = 8
# Slurm assigns priorities downwards from a smaller number.
FIRST = 2**32 - 10
STATE = Path("/var/lib/dpsweep-slurm")
CONFIGURATION = Path("/etc/slurm")  # jobs do not inherit SLURM_CONF
LOCK = Path("/run/lock/dpsweep-slurm")
MUNGE_SOCKET = Path("/run/munge/munge.socket.2")
DAEMONS = ("slurmd", "slurmctld", "munged")
PACKAGES = ("slurm-wlm", "munge")

MARK = "# Written by the tests of dpsweep."
SLURM_CONF = f"""\
{MARK}
ClusterName={NAME}
SlurmctldHost={{host}}(127.0.0.1)
AuthType=auth/munge
# Slurm delays a requeued job until its credentials expire.
AuthInfo=cred_expire=20
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
# Kill a job that uses more memory than requested, even without cgroups.
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherParams=OverMemoryKill
JobAcctGatherFrequency=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
# A node that was set down stays down. Otherwise Slurm would start its requeued jobs there while their
# old processes still end.
ReturnToService=1
MpiDefault=none
GresTypes=gpu
# A busy machine answers late.
MessageTimeout=100
BatchStartTimeout=300
KillWait=300
# Time limits are exact to the second.
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
PartitionName=cpu Nodes={{host}} Default=YES MaxTime=60 OverSubscribe=NO State=UP
PartitionName=gpu Nodes={{host}} MaxTime=60 State=UP
"""


def missing() -> str | None:
    """Return why a cluster cannot run here, or None."""
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
    """Install Slurm from Debian's packages if possible; print the reason if not."""
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
    """Start the cluster with an empty queue, and wait until it accepts jobs."""
    if reason := missing():
        raise RuntimeError(reason)
    stop()
    shutil.rmtree(STATE, ignore_errors=True)
    for folder in (STATE / "ctld", STATE / "spool", MUNGE_SOCKET.parent):
        folder.mkdir(parents=True, exist_ok=True)
    for index in range(GPUS):
        os.mknod(STATE / f"gpu{index}", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    CONFIGURATION.mkdir(exist_ok=True)
    (CONFIGURATION / "slurm.conf").write_text(SLURM_CONF.format(host=_host()))
    (CONFIGURATION / "gres.conf").write_text(
        "".join(
            f"Name=gpu Type={kind} File={STATE}/gpu[{2 * index}-{2 * index + 1}]\n"
            for index, kind in enumerate(TYPES)
        )
    )
    shutil.chown(MUNGE_SOCKET.parent, "munge", "munge")
    called(["runuser", "-u", "munge", "--", "munged"])
    called(["slurmctld"])
    wait_for(lambda: "is UP" in called(["scontrol", "ping"], status=None).stdout, "controller")
    called(["slurmd"])
    _wait_for_node()


@contextmanager
def running() -> Iterator[None]:
    """Run the cluster inside the block; other users of it on this machine wait."""
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        start()
        try:
            yield
        finally:
            stop()


def stop() -> None:
    """End every daemon and every job."""
    _kill_jobs()
    for daemon in ("slurmstepd", *DAEMONS):
        _end(daemon)
    # Without this, `scontrol` of the plugin would wait for the ended controller whenever Snakemake starts.
    (CONFIGURATION / "slurm.conf").unlink(missing_ok=True)


def queue() -> list[tuple[str, str]]:
    """Return the jobs that wait or run: (id, state)."""
    lines = called(["squeue", "--noheader", "--format=%i %T"]).stdout.splitlines()
    return [(line.split()[0], line.split()[1]) for line in lines]


def job(number: str) -> dict[str, str]:
    """Return the controller's record of a job."""
    words = called(["scontrol", "show", "job", number]).stdout.split()
    return dict(word.split("=", 1) for word in words if "=" in word)


def gpus_of(number: str) -> str:
    """Return the GPUs of a job in Slurm's notation: ``gpu:a100:1(IDX:0)``."""
    said = called(["scontrol", "--details", "show", "job", number]).stdout
    found = re.search(r"GRES=(\S+)", said)
    return found[1] if found else ""


def update(*change: str) -> None:
    """Change a job, a node or a partition, as an operator may: ``update("JobId=7", "TimeLimit=60")``."""
    called(["scontrol", "update", *change])


def let_start_first(name: str) -> None:
    """Give priority to waiting jobs with a text in their comment, which is Snakemake's name of the job."""
    listed = ["squeue", "--states=PENDING", "--noheader", "--format=%i %Q %k"]
    for line in called(listed).stdout.splitlines():
        number, priority, comment = line.split(maxsplit=2)
        if name in comment and int(priority) < FIRST:
            # It may start at this moment.
            change = ["scontrol", "update", f"JobId={number}", f"Priority={FIRST}"]
            called(change, status=None)


def lose_node() -> None:
    """Set the node down, and back into service when the processes of its jobs have ended.

    No job starts before the node is completely back, because a job without a step would fail.
    """
    update("PartitionName=gpu", "State=DOWN")
    update(f"NodeName={_host()}", "State=DOWN", "Reason=tests")
    wait_for(lambda: not _processes("slurmstepd"), "end of the jobs of a node that is down")
    _kill_jobs()
    _end("slurmd")
    called(["slurmd"])  # a new one knows nothing of the jobs
    update(f"NodeName={_host()}", "State=RESUME", "Reason=tests")
    _wait_for_node()
    update("PartitionName=gpu", "State=UP")


def _host() -> str:
    return socket.gethostname().split(".")[0]


def _processes(daemon: str) -> list[psutil.Process]:
    return [each for each in psutil.process_iter(["name"]) if each.info["name"] == daemon]


def _kill_jobs() -> None:
    """Kill the processes of jobs: Snakemake may outlive a signal, and its slurmstepd."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("SLURM_CLUSTER_NAME") == NAME:
                process.kill()


def _end(daemon: str) -> None:
    found = _processes(daemon)
    for end in (psutil.Process.terminate, psutil.Process.kill):
        for process in found:
            with suppress(psutil.NoSuchProcess):
                end(process)
        _, found = psutil.wait_procs(found, 60)


def _wait_for_node() -> None:
    # A node that does not answer is "idle*".
    state = ["sinfo", "--noheader", "--format=%T"]
    wait_for(lambda: called(state, status=None).stdout.split()[:1] == ["idle"], "idle node")


if __name__ == "__main__":
    {"install": install, "start": start, "stop": stop}[sys.argv[1]]()
