"""Post-processing of noisy gradients, by a study's `optimizers`: torch's optimizer and the average.

It never reads private data: see docs/privacy.md, "What comes after the noise".
"""

from collections.abc import Iterable, Mapping
from pkgutil import resolve_name

import torch
from torch import Tensor, nn

from dpsweep.base.errors import DpsweepError
from dpsweep.study import Study
from dpsweep.study.messages import brief
from dpsweep.study.optimizers import OptimizerSection


class OptimizerError(DpsweepError):
    """An optimizer that torch does not have, or with wrong arguments."""


def make_optimizer(
    section: OptimizerSection,
    parameters: Iterable[nn.Parameter],
    learning_rate: float,
    noise_deviation: float,
) -> torch.optim.Optimizer:
    """Construct an optimizer.

    Args:
        section: of a study.
        parameters: to train.
        learning_rate: of a step with schedule factor 1.
        noise_deviation: sigma / B, the standard deviation of each number of a noised gradient.

    Raises:
        OptimizerError: torch has no such class, or refuses the arguments.
    """
    constructor, arguments = section.made_by()
    if section.knows_noise:
        arguments["noise_variance"] = noise_deviation**2
    try:
        made = resolve_name(constructor)
        optimizer = made(parameters, lr=learning_rate, **arguments)
    except Exception as error:  # classes raise all kinds of exceptions for wrong arguments
        raise OptimizerError(f"{section.called()}: torch refuses it: {brief(error)}") from None
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise OptimizerError(f"{constructor}: found no optimizer; allowed: a class of torch.optim")
    return optimizer


def mistaken_optimizers(study: Study) -> Iterable[str]:
    """Try a step with every optimizer of a study's section, and yield a line for each that fails."""
    for name, section in study.optimizers.items():
        parameter = nn.Parameter(torch.zeros(2))
        try:
            optimizer = make_optimizer(section, [parameter], 0.1, 0.1)
            parameter.grad = torch.ones(2)
            optimizer.step()
        except Exception as error:
            yield f"optimizers.{name}: {brief(error)}"


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of an optimizer's next step."""
    for group in optimizer.param_groups:
        group["lr"] = rate


class RunningAverage:
    """The average of parameters over steps, in float64.

    Args:
        section: of the optimizer; without an average, nothing is kept.
        steps: T.
        values: the average so far by name, from the attribute `values`; empty at the start.
    """

    def __init__(self, section: OptimizerSection, steps: int, values: dict[str, Tensor]) -> None:
        self._average, self._steps = section.average, steps
        self.values = values

    def update(self, step: int, parameters: Mapping[str, nn.Parameter]) -> None:
        """Add the parameters after a step (from 1) to the average."""
        if self._average is None:
            return
        weight = self._average.weight(step, self._steps)
        for name, parameter in parameters.items():
            new = parameter.detach().double()
            if name in self.values:
                self.values[name].lerp_(new, weight)
            else:
                self.values[name] = new.clone()
