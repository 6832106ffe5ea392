"""The memory of devices: errors when it has run out, and copies to it."""

import torch
from torch import Tensor

_OUT_OF_MEMORY = (
    "out of memory",  # the driver, and torch's own error inside that of a compiler
    "ALLOC_FAILED",  # cuBLAS, cuDNN
    "ALLOCATION_FAILED",  # cuDNN 9
    # torch's message for a convolution if no algorithm of cuDNN has enough memory.
    "unable to find an engine to execute this computation",
)


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error means that the memory of a device has run out.

    torch has a class for its own failed allocations. Failed allocations of its libraries, of the driver
    and of compiled code differ only in their messages.
    """
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(each in str(error) for each in _OUT_OF_MEMORY)
    )


def copied(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor from the CPU to a device; the CPU does not wait, because the memory is pinned."""
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def first_line(error: Exception) -> str:
    """Return the sentence of an error's message about memory; compilers put it last."""
    lines = str(error).splitlines() or [type(error).__name__]
    reasons = [line for line in lines if any(each in line for each in _OUT_OF_MEMORY)]
    return (reasons or lines)[0].partition(". ")[0]
