"""Per-example gradients: one interface, interchangeable engines.

- ``expanded``: for few trainable parameters (FiLM, LoRA, head); no slower than ordinary training.
- ``bookkeeping``: for all parameters; ghost norms, one backward pass.
- ``opacus``: Opacus' ghost and fast gradient clipping, with our factors.
- ``loop``: one example at a time with autograd. Slow; the oracle of all tests.
- ``auto``: ``expanded`` where it supports the model, otherwise ``bookkeeping``.
"""

from functools import partial

import torch
from torch import nn

from dpsweep.training.gradients.bookkeeping import BookkeepingEngine
from dpsweep.training.gradients.checks import check_owners
from dpsweep.training.gradients.expanded import ExpandedEngine, supports
from dpsweep.training.gradients.interface import (
    GradientEngine,
    GradientSum,
    UnsupportedModelError,
)
from dpsweep.training.gradients.loop import LoopEngine

__all__ = [
    "GradientEngine",
    "GradientSum",
    "UnsupportedModelError",
    "make_engine",
]


# Beyond that many numbers, copies of an example's trainable parameters are no longer small.
_FEW_PARAMETERS = 2**20


def make_engine(
    name: str,
    model: nn.Module,
    head_parameters: frozenset[str] = frozenset(),
    *,
    autocast: torch.dtype | None = None,
    compile: bool = False,
) -> GradientEngine:
    """Return an engine for the trainable parameters of a model.

    Args:
        name: ``auto``, ``expanded``, ``bookkeeping``, ``opacus`` or ``loop``.
        model: takes a tensor of inputs and returns logits. The values of its parameters may change
            between calls of the engine; which of them train may not.
        head_parameters: names of the classification head's parameters, for norms of their own.
        autocast: dtype of the forward and backward pass where torch's autocast deems it safe
            (bfloat16, say); norms and sums stay float32. ``loop`` does without.
        compile: let torch compile the forward and backward pass; only ``expanded`` can.

    Raises:
        UnsupportedModelError: the model mixes examples, ties trainable weights, or has trainable
            parameters in layers that the engine does not know. What shows only in use is refused
            at the first call.
        ValueError: there is no such engine.
    """
    match name:
        case "auto" if _suits_expanded(model, head_parameters):
            return ExpandedEngine(model, head_parameters, autocast=autocast, compile=compile)
        case "expanded":
            return ExpandedEngine(model, head_parameters, autocast=autocast, compile=compile)
        case "auto" | "bookkeeping":
            return BookkeepingEngine(model, head_parameters, autocast=autocast)
    if autocast is not None:
        raise ValueError(
            f"engine {name!r} computes norms in the dtype of the forward pass, which must be that "
            "of the model: use no autocast, or engine auto, expanded or bookkeeping"
        )
    match name:
        case "opacus":
            # Opacus sets up logging and takes a second to import.
            from dpsweep.training.gradients.opacus import OpacusEngine  # noqa: PLC0415

            return OpacusEngine(model, head_parameters)
        case "loop":
            return LoopEngine(model, head_parameters)
    raise ValueError(f"engine {name!r}: choose one of auto, expanded, bookkeeping, opacus and loop")


def _suits_expanded(model: nn.Module, head_parameters: frozenset[str]) -> bool:
    try:
        check_owners(model, partial(supports, head_parameters), "expanded")
    except UnsupportedModelError:
        return False
    copied = (
        parameter.numel()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and name not in head_parameters
    )
    return sum(copied) <= _FEW_PARAMETERS
