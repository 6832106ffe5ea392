"""GPUs of one machine: which there are, and that no two jobs get the same. The devices are simulated."""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from dpsweep.base import gpus
from dpsweep.base.gpus import (
    OFFERED,
    SEATS,
    TAKEN,
    Gpu,
    describe,
    offer,
    offered,
    seats,
    visible_gpus,
)
from dpsweep.training.trial import _environment
from tests.waiting import wait_for

GPUS = [Gpu(str(each), f"GPU-{each}0", "H100", 80.0) for each in range(2)]
LISTED = "0, GPU-00, H100, 76294\n1, GPU-10, H100, 76294\n"
JOB = """
import os, sys, time
from pathlib import Path
from dpsweep.base.gpus import taken_gpu
folder, name, seats, seconds = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
with taken_gpu(seats, folder / "locks") as gpu:
    print(gpu.label, os.environ["CUDA_VISIBLE_DEVICES"], time.monotonic(), flush=True)
    time.sleep(seconds)
    print(time.monotonic(), flush=True)
"""


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", OFFERED, TAKEN):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvidia_smi(tmp_path / "bin", LISTED)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)


def fake_nvidia_smi(folder: Path, listed: str, status: int = 0) -> None:
    folder.mkdir()
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat <<END\n{listed}END\nexit {status}\n")
    program.chmod(0o755)


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("visible", "devices"),
    [
        (None, ["GPU-00", "GPU-10"]),
        ("1", ["1"]),
        ("1,0", ["1", "0"]),
        ("GPU-1", ["GPU-1"]),
        ("MIG-7,0", ["MIG-7", "0"]),
        ("", []),
        ("-1", []),
        ("0,7,1", ["0"]),
    ],
)
def test_what_cuda_shows_is_respected(
    visible: str | None, devices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [gpu.device for gpu in visible_gpus()] == devices


def listed(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, status: int = 0) -> list[Gpu]:
    fake_nvidia_smi(folder / "smi", text, status)
    monkeypatch.setenv("PATH", str(folder / "smi"), prepend=os.pathsep)
    return visible_gpus()


@pytest.mark.parametrize(
    ("name", "memory", "gigabytes", "said"),
    [
        ("NVIDIA GB10", "[N/A]", 0.0, "1 x NVIDIA GB10)"),
        ("[Unknown Error]", "[Unknown Error]", 0.0, "1 x [Unknown Error])"),
        ("A card, large", "76294", 80.0, "1 GPU on this machine (1 x A card, large, 80 GB)."),
    ],
)
def test_what_the_driver_does_not_know_stops_nothing(
    name: str,
    memory: str,
    gigabytes: float,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = listed(tmp_path, monkeypatch, f"0, GPU-00, {name}, {memory}\n")
    assert found == [Gpu("0", "GPU-00", name, gigabytes)]
    assert said in describe(found)
    if not gigabytes:  # what fits beside another job is not known
        assert seats(1.0, 0.1, found) == SEATS


@pytest.mark.parametrize(
    ("text", "status", "gpus"),
    [
        (f"{LISTED}WARNING: infoROM is corrupted at gpu 0000:00:1E.0, see the manual\n\n", 14, 2),
        ("No devices were found\n", 6, 0),
    ],
)
def test_words_of_the_driver_are_no_gpu(
    text: str, status: int, gpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = listed(tmp_path, monkeypatch, text, status)
    assert len(found) == gpus
    assert not gpus or describe(found) == "2 GPUs on this machine (2 x H100, 80 GB)."


def test_a_machine_without_a_driver_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert visible_gpus() == []


def start(folder: Path, seats: int, seconds: float) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        # Signals work as in a terminal, whatever the tests were started from (the background of a script).
        [
            *("env", "--default-signal=INT", sys.executable, "-c", JOB),
            *(str(folder), "job", str(seats), str(seconds)),
        ],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_in_line(job: "subprocess.Popen[str]", folder: Path) -> None:
    """Wait until a job has come to the queue for GPUs."""

    def there() -> bool:
        with suppress(FileNotFoundError):  # files are closed while they are listed
            files = Path(f"/proc/{job.pid}/fd").iterdir()
            return any(file.readlink() == folder / "locks" / "queue" for file in files)
        return False

    wait_for(there, "place in the queue", job)
    time.sleep(1)  # it would have its GPU by now, if there were one for it


def begun(job: "subprocess.Popen[str]") -> tuple[str, str, float]:
    assert job.stdout is not None
    label, device, second = job.stdout.readline().split()
    return label, device, float(second)


def test_no_two_jobs_get_the_same_gpu(tmp_path: Path) -> None:
    offer(GPUS)
    assert offered() == GPUS
    jobs = [start(tmp_path, SEATS, 3) for _ in range(5)]
    spans: dict[str, list[tuple[float, float]]] = {}
    for job in jobs:
        output, _ = job.communicate()
        label, device, first, last = output.split()
        assert device == f"GPU-{label}0"
        spans.setdefault(label, []).append((float(first), float(last)))
    assert spans.keys() == {"0", "1"}
    for each in map(sorted, spans.values()):
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(each))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_job_that_dies_gives_its_gpu_back(tmp_path: Path, number: int) -> None:
    offer(GPUS[:1])
    first = start(tmp_path, SEATS, 600)
    assert begun(first)[0] == "0"
    second = start(tmp_path, SEATS, 0)
    wait_in_line(second, tmp_path)
    assert second.poll() is None
    first.send_signal(number)
    assert begun(second)[0] == "0"
    assert first.wait() != 0
    assert second.wait() == 0


def test_jobs_that_fit_share_a_gpu_and_a_long_one_has_its_turn(tmp_path: Path) -> None:
    offer(GPUS[:1])
    short = [start(tmp_path, 1, 600) for _ in range(SEATS)]
    for job in short:
        begun(job)
    long = start(tmp_path, SEATS, 600)
    wait_in_line(long, tmp_path)
    later = start(tmp_path, 1, 0)
    wait_in_line(later, tmp_path)
    for job in short:
        time.sleep(0.5)
        assert long.poll() is None
        assert later.poll() is None
        job.kill()
    begun(long)
    assert later.poll() is None
    long.kill()
    begun(later)
    assert later.wait() == 0


def test_a_trial_names_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "H100")
    cuda = torch.device("cuda")
    assert _environment(cuda)["device"] == "cuda: H100"
    monkeypatch.setenv(TAKEN, "1")
    assert _environment(cuda)["device"] == "cuda: H100 (GPU 1)"


def test_a_seat_is_one_jobs(tmp_path: Path) -> None:
    """Two GPUs of four seats: whoever asks gets those of the emptier one, until there are none."""
    both = [gpus.Gpu(label, f"GPU-{label}", "A100", 80.0) for label in ("0", "1")]
    with contextlib.ExitStack() as held:
        taken = [gpus._take(both, seats, tmp_path, held) for seats in (4, 2, 1, 2, 1, 1)]
        assert [gpu and gpu.label for gpu in taken] == ["0", "1", "1", None, "1", None]
    with contextlib.ExitStack() as again:
        assert gpus._take(both, 4, tmp_path, again) == both[0]


@pytest.mark.parametrize(
    ("seconds", "gigabytes", "seats"),
    [(60, 1, 1), (60, 15, 1), (60, 30, 2), (60, 70, 4), (121, 1, 4), (7200, 1, 4)],
)
def test_short_and_small_jobs_share_a_gpu(seconds: float, gigabytes: float, seats: int) -> None:
    both = [gpus.Gpu("0", "GPU-0", "A100", 80.0), gpus.Gpu("1", "GPU-1", "A100", 60.0)]
    assert gpus.seats(seconds, gigabytes, both) == seats
    assert gpus.seats(seconds, gigabytes, []) == gpus.SEATS
