"""The number format of forward and backward passes.

Only operations that torch's autocast considers safe (matrix products, convolutions) leave float32. TF32 is
never used. In every precision the sum over a batch and its noise are float64; parameters, per-example
norms, updates and the evaluation are float32.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor

from dpsweep.study.section import Precision


def resolve_precision(
    setting: Literal["auto", "float32", "bfloat16"], engine: str, device: torch.device
) -> Precision:
    """Return the precision that a setting of the study means on a device.

    ``auto`` is bfloat16 on GPUs and with engines that support it, otherwise float32. A trial's key
    contains the returned value, never ``auto``.

    >>> resolve_precision("auto", "expanded", torch.device("cpu"))
    'float32'
    """
    if setting != "auto":
        return setting
    # Opacus computes norms in the precision of the forward pass.
    if engine == "opacus" or device.type != "cuda":
        return "float32"
    with torch.cuda.device(device):
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    return "bfloat16" if native else "float32"


def autocast_dtype(precision: Precision) -> torch.dtype | None:
    """Return the argument ``autocast`` of engines."""
    return torch.bfloat16 if precision == "bfloat16" else None


def sum_dtype(tensor: Tensor) -> torch.dtype:
    """Return the dtype in which the numbers of a tensor are summed."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


@contextmanager
def full_precision() -> Iterator[None]:
    """Make GPUs multiply float32 numbers exactly, not as TF32 with a mantissa of 10 bits.

    TF32, torch's default for convolutions, changes norms and sums, and so the sensitivity, by 1e-3.
    Autocast is not affected.
    """
    # torch's type stubs lack the second one.
    settings = torch.backends.cuda.matmul, torch.backends.cudnn.conv  # type: ignore[attr-defined]
    before = [each.fp32_precision for each in settings]
    try:
        for each in settings:
            each.fp32_precision = "ieee"
        yield
    finally:
        for each, precision in zip(settings, before, strict=True):
            each.fp32_precision = precision
