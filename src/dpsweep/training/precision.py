"""The number format of forward and backward passes.

Only what torch's autocast deems safe (matrix products, convolutions) leaves float32, and nothing is
TF32. In every precision the sum over a batch and its noise are float64; parameters, per-example norms,
updates and the evaluation are float32.
"""

from typing import Literal

import torch

Precision = Literal["float32", "bfloat16"]


def resolve_precision(
    setting: Literal["auto", "float32", "bfloat16"], engine: str, device: torch.device
) -> Precision:
    """Return the precision that a setting of the study means on a device.

    ``auto`` is bfloat16 on GPUs that compute in it and for engines that can, otherwise float32. A
    trial's key holds what this returns, never ``auto``.
    """
    if setting != "auto":
        return setting
    # The norms of Opacus are in the precision of the forward pass.
    if engine == "opacus" or device.type != "cuda":
        return "float32"
    with torch.cuda.device(device):
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    return "bfloat16" if native else "float32"


def autocast_dtype(precision: Precision) -> torch.dtype | None:
    """Return what engines take as ``autocast``."""
    return torch.bfloat16 if precision == "bfloat16" else None
