"""Tests of the list of GPUs, and that no two jobs share one. The devices are simulated."""

import contextlib
import itertools
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from dpsweep.base import gpus
from dpsweep.base.gpus import Gpu, taken_gpus, visible_gpus
from tests.waiting import wait_for

LISTED = "0, GPU-00, H100, 76294\n1, GPU-10, H100, 76294\n"
JOB = """
import os, sys, time
from pathlib import Path
from dpsweep.base.gpus import taken_gpus
print("ready", flush=True)
with taken_gpus(int(sys.argv[3]), Path(sys.argv[1])) as taken:
    print(taken[0].label, os.environ["CUDA_VISIBLE_DEVICES"], time.monotonic(), flush=True)
    time.sleep(float(sys.argv[2]))
    print(time.monotonic(), flush=True)
"""


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvidia_smi(tmp_path / "bin", LISTED)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)


def fake_nvidia_smi(folder: Path, listed: str) -> None:
    folder.mkdir()
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat <<END\n{listed}END\n")
    program.chmod(0o755)


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("visible", "devices"),
    [
        (None, ["GPU-00", "GPU-10"]),
        ("1", ["GPU-10"]),
        ("1,0", ["GPU-10", "GPU-00"]),
        ("GPU-1", ["GPU-10"]),
        ("MIG-7,0", ["MIG-7", "GPU-00"]),
        ("", []),
        ("-1", []),
        ("0,7,1", ["GPU-00"]),
    ],
)
def test_visible_gpus_follow_cuda_visible_devices(
    visible: str | None, devices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [gpu.device for gpu in visible_gpus()] == devices


def test_machine_without_driver_has_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert visible_gpus() == []


def start(folder: Path, seconds: float) -> "subprocess.Popen[str]":
    job = subprocess.Popen(
        [sys.executable, "-c", JOB, str(folder / "locks"), str(seconds), "1"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert job.stdout is not None
    assert job.stdout.readline() == "ready\n"
    return job


def open_files(pid: int) -> set[str]:
    return {Path(each.path).name for each in psutil.Process(pid).open_files()}


def begun(job: "subprocess.Popen[str]") -> tuple[str, str, float]:
    assert job.stdout is not None
    label, device, second = job.stdout.readline().split()
    return label, device, float(second)


@pytest.mark.usefixtures("two_gpus")
def test_killed_job_releases_its_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    first = start(tmp_path, 600)
    assert begun(first)[0] == "0"
    second = start(tmp_path, 0)
    # With its turn to look, it would take a GPU if one were free.
    wait_for(lambda: gpus._COLLECTING in open_files(second.pid), "look at the GPUs")
    signalled = time.monotonic()
    first.kill()
    label, _, second_begins = begun(second)
    assert label == "0" and second_begins > signalled
    assert first.wait() != 0
    assert second.wait() == 0


def test_each_request_gets_a_free_gpu_until_none_is_left(tmp_path: Path) -> None:
    both = [Gpu(label, f"GPU-{label}", "A100", 80.0) for label in ("0", "1")]
    with contextlib.ExitStack() as held:
        taken = [gpus._take(both, tmp_path, held) for _ in range(3)]
        assert taken == [*both, None]
        other = Gpu("0", "GPU-2", "A100", 80.0)  # the same number, another GPU
        assert gpus._take([other], tmp_path, held) == other
    with contextlib.ExitStack() as again:
        assert gpus._take(both, tmp_path, again) == both[0]


@pytest.mark.usefixtures("two_gpus")
def test_a_job_takes_its_gpus_together_and_all_visible_ones_if_they_are_fewer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    assert gpus.describe(visible_gpus()) == "2 GPUs on this machine (2 x H100, 80 GB)."
    for count, devices in [(2, "GPU-00,GPU-10"), (1, "GPU-00"), (4, "GPU-00,GPU-10")]:
        with taken_gpus(count, tmp_path) as taken:
            assert ",".join(gpu.device for gpu in taken) == devices
            assert os.environ["CUDA_VISIBLE_DEVICES"] == devices
    assert caplog.messages[:2] == ["on GPU 0 (H100), 1 (H100)", "on GPU 0 (H100)"]


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("before", [None, "1"])
def test_gpus_are_visible_again_after_the_job(
    before: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if before is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", before)
    with contextlib.suppress(RuntimeError), taken_gpus(1, tmp_path / "locks"):
        assert os.environ["CUDA_VISIBLE_DEVICES"].startswith("GPU-")
        raise RuntimeError
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == before


@pytest.mark.usefixtures("two_gpus")
def test_jobs_that_need_several_gpus_do_not_wait_for_each_other(tmp_path: Path) -> None:
    command = [sys.executable, "-c", JOB, str(tmp_path), "0.1", "2"]
    jobs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    spans = sorted(tuple(map(float, each.communicate()[0].split()[3:])) for each in jobs)
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(spans))
