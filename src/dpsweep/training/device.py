"""The device of a training job: a GPU, or the CPU."""

import logging
import os

import torch

from dpsweep.base.errors import DpsweepError
from dpsweep.study.commands import is_true

log = logging.getLogger(__name__)

_VISIBLE_DEVICES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
REQUIRE_GPU = "DPSWEEP_REQUIRE_GPU"
"""Environment variable: true if a job needs a GPU. By default true if Slurm gave it one."""
_GIVEN_BY_SLURM = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")


class GpuError(DpsweepError):
    """A required GPU that this process cannot use."""


def default_device() -> torch.device:
    """Return the first GPU, or the CPU if there is none.

    Raises:
        GpuError: there is none, and the job requires one (`REQUIRE_GPU`).
        DpsweepError: that variable is neither true nor false.
    """
    if torch.cuda.is_available():
        return torch.device("cuda")
    given = any(name in os.environ for name in _GIVEN_BY_SLURM)
    if is_true(REQUIRE_GPU, os.environ.get(REQUIRE_GPU, str(given))):
        built = torch.version.cuda or torch.version.hip
        visible = {name: os.environ.get(name) for name in _VISIBLE_DEVICES if name in os.environ}
        raise GpuError(
            f"this job has asked for a GPU and cannot use one on {os.uname().nodename}: "
            + (
                f"torch {torch.__version__} finds no device that works (driver, container or "
                f"devices of the job: {visible or 'none is set'}). Try `nvidia-smi` or `rocm-smi` in a job"
                if built
                else f"torch {torch.__version__} is a build for CPUs. Install one for CUDA or ROCm"
            )
            + f"; to train on the CPU on purpose, set {REQUIRE_GPU}=0"
        )
    if gpu := os.environ.get("CUDA_VISIBLE_DEVICES"):
        log.warning(
            "torch %s cannot use GPU %s: training on the CPU. For as many jobs at once as there are "
            "cores, set CUDA_VISIBLE_DEVICES to nothing",
            torch.__version__,
            gpu,
        )
    return torch.device("cpu")
