"""How many numbers a model holds, for tests of what trains."""

from typing import NamedTuple

from torch import nn

from dpsweep.models.build import head_parameter_names, trainable_parameters


class ParameterCounts(NamedTuple):
    total: int
    trainable: int  # the head's among them
    head: int


def parameter_counts(model: nn.Module) -> ParameterCounts:
    sizes = {name: value.numel() for name, value in model.named_parameters()}
    return ParameterCounts(
        total=sum(sizes.values()),
        trainable=sum(value.numel() for value in trainable_parameters(model).values()),
        head=sum(sizes[name] for name in head_parameter_names(model)),
    )
