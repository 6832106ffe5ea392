"""Per-example gradients: one interface, interchangeable engines.

- ``expanded``: for few trainable parameters (FiLM, LoRA, head); no slower than ordinary training.
- ``bookkeeping``: for all parameters; ghost norms, one backward pass.
- ``vmap``: torch's vectorised per-example gradients; for models that these two do not support.
- ``loop``: one example at a time with autograd. Slow; the reference of all tests.
- ``opacus``: Opacus' ghost and fast gradient clipping, with our factors; for comparison.
- ``linear``: for a linear layer alone (a head on cached features); in closed form.
- ``auto``: the first of ``linear`` (for a linear layer), ``expanded`` (for few parameters),
  ``bookkeeping``, ``vmap`` and ``loop`` that supports the model.

``expanded`` and ``bookkeeping`` support functions that have a rule in `dpsweep.gradients.rules`. Before
the first step, each other engine is compared with ``loop`` on the model. All engines refuse a model that
stores data of the examples during a pass.

The modules: ``engines`` clip and sum. ``rules`` has the rules for the functions of torch, which
``tracked_parameters`` applies. ``per_example`` stores gradients, and ``units`` averages those of a unit.
``refusals`` has what is refused without a pass, ``checks`` what passes of made-up examples show, and
``data_dependence`` the operations that treat rows of a batch by their content.
"""

import torch
from torch import nn

from dpsweep.gradients.checks import ValidatingEngine
from dpsweep.gradients.engines import ENGINES, GradientEngine, GradientSum
from dpsweep.gradients.refusals import UnsupportedModelError, check_model

__all__ = ["GradientEngine", "GradientSum", "UnsupportedModelError", "make_engine"]

# Up to this many numbers for each example, copies of the trainable parameters are small.
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

    >>> from dpsweep.study.clipping import FlatClipping
    >>> layer = nn.Linear(2, 2)
    >>> layer.load_state_dict({"weight": torch.zeros(2, 2), "bias": torch.zeros(2)})
    <All keys matched successfully>
    >>> inputs, labels = torch.tensor([[3.0, 4.0], [0.0, 1.0]]), torch.tensor([0, 1])
    >>> found = make_engine("auto", layer).clipped_sum(inputs, labels, labels >= 0, FlatClipping(1.0))
    >>> found.norms
    tensor([3.6056, 1.0000])
    >>> found.gradients["bias"]
    tensor([ 0.3613, -0.3613], dtype=torch.float64)

    Args:
        name: ``auto``, ``linear``, ``expanded``, ``bookkeeping``, ``vmap``, ``loop`` or ``opacus``.
        model: maps a tensor of inputs to logits. The values of its parameters may change between
            calls of the engine; the set of parameters that train may not.
        head_parameters: names of the classification head's parameters; ``norms`` returns their norm too.
        autocast: dtype of the forward and backward pass where torch's autocast considers it safe
            (such as bfloat16); norms and sums stay float32 or float64. ``opacus`` does not support it.
        compile: let torch compile the forward and backward pass; only ``expanded`` can.

    Raises:
        UnsupportedModelError: the model ties trainable weights. The first call raises it for a model that
            mixes examples, and for one that the engine does not support.
        ValueError: the name is not an engine.
    """
    engines: dict[str, type[GradientEngine]] = {}
    if name == "opacus":
        if autocast is not None:
            raise ValueError(
                "engine 'opacus' computes norms in the dtype of the forward pass, which must be "
                "the dtype of the model: use no autocast, or another engine"
            )
        # Opacus sets up logging and takes a second to import.
        from dpsweep.gradients.opacus import OpacusEngine  # noqa: PLC0415

        engines = {name: OpacusEngine}
    elif name == "auto":
        parameters = check_model(model, head_parameters)
        copied = sum(parameters[key].numel() for key in parameters.keys() - head_parameters)
        many = copied > _FEW_PARAMETERS
        unfit = {"linear": not isinstance(model, nn.Linear), "expanded": many}
        engines = {key: kind for key, kind in ENGINES.items() if not unfit.get(key)}
    elif name in ENGINES:
        engines = {name: ENGINES[name]}
    else:
        raise ValueError(f"engine {name!r}: choose one of auto, {', '.join(ENGINES)} and opacus")
    return ValidatingEngine(model, head_parameters, engines, autocast=autocast, compile=compile)
