"""The device of estimates, and its effect on them."""

from dataclasses import replace
from pathlib import Path

import pytest

from dpsweep.base.gpus import visible_gpus
from dpsweep.planning.cost import GPU, device_of
from dpsweep.planning.plan import Plan
from dpsweep.study import load_study
from dpsweep.study.paths import Paths

ROOT = Path(__file__).parents[2]


def test_the_speed_of_a_cpu_is_measured_but_not_of_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = device_of(0.0, visible_gpus())
    assert "CPU" in found.name
    assert found.unit == "core"
    assert 0.0001 < found.teraflops < GPU.teraflops / 2
    assert found.start_seconds < GPU.start_seconds
    assert found.step_seconds < GPU.step_seconds
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 0, GPU-0, H100, 80000\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert device_of(0.0, visible_gpus()) == GPU


def test_times_follow_the_device(tmp_path: Path) -> None:
    whole, name = load_study(ROOT / "config.yaml", figures=False), "cifar100_vit-base_film"
    study = whole.model_copy(update={"sweeps": {name: whole.sweeps[name]}})
    gpu = Plan(study, Paths(tmp_path))
    slow = replace(GPU, name="a CPU", unit="core", teraflops=GPU.teraflops / 100)
    cpu = Plan(study, Paths(tmp_path), device=slow)
    assert cpu.estimates()[name].seconds > 20 * gpu.estimates()[name].seconds
    lines = list(cpu.lines([2]))
    assert any("a CPU at 0.2 Tflop/s" in line for line in lines)
    assert any("by number of cores" in line for line in lines)
    assert not any("GPU" in line for line in lines)
