"""Recognise errors that say that the memory of a device has run out."""

import torch

_OUT_OF_MEMORY = (
    "out of memory",  # the driver, and torch's own error inside that of a compiler
    "ALLOC_FAILED",  # cuBLAS, cuDNN
    "ALLOCATION_FAILED",  # cuDNN 9
    # What torch says of a convolution when there is no memory for any of cuDNN's algorithms.
    "unable to find an engine to execute this computation",
)


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error says that the memory of a device has run out.

    Torch has a class for what it cannot allocate itself. What its libraries, the driver and compiled
    code cannot allocate shows in words only.
    """
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(each in str(error) for each in _OUT_OF_MEMORY)
    )


def first_line(error: Exception) -> str:
    """Return the part of an error's message that says why memory has run out; compilers put it last."""
    lines = str(error).splitlines() or [type(error).__name__]
    reasons = [line for line in lines if any(each in line for each in _OUT_OF_MEMORY)]
    return (reasons or lines)[0].partition(". ")[0]
