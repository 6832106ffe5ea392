"""Post-processing of noisy gradients, by a study's `optimizers`: torch's optimizer and the average.

It never reads private data: see docs/privacy.md, "What comes after the noise".
"""

from collections.abc import Callable, Iterable, Mapping
from pkgutil import resolve_name
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter

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
    constructor, arguments = section.torch_class()
    if section.needs_noise_variance:
        arguments["noise_variance"] = noise_deviation**2
    try:
        made = resolve_name(constructor)
        optimizer = made(parameters, lr=learning_rate, **arguments)
    except Exception as error:  # classes raise all kinds of exceptions for wrong arguments
        raise OptimizerError(f"{section.full_title()}: torch refuses it: {brief(error)}") from None
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


class AdamBC(torch.optim.Optimizer):
    """Adam that subtracts the known noise variance from its second moment.

    The second moment of a noised gradient is that of the gradient, plus the variance of the noise. Adam
    divides by its root, so noise shortens all steps alike. With the bias-corrected moments m and v of
    Adam, a step here is ``lr m / (sqrt(max(v - variance, floor variance)) + eps)``.

    >>> weight = torch.nn.Parameter(torch.zeros(1))
    >>> optimizer = AdamBC([weight], lr=1.0, noise_variance=3.0, eps=1e-12)
    >>> weight.grad = torch.tensor([4.0])  # 4 / sqrt(16 - 3)
    >>> optimizer.step()
    >>> round(float(weight.detach()), 3)
    -1.109

    Args:
        parameters: to train.
        lr: learning rate.
        noise_variance: of each number of a gradient. For `dpsweep.PrivateOptimizer` it is (sigma / B)^2
            for any C, because it divides gradients by C; for others it is (sigma C / B)^2.
        betas: decay of the first and of the second moment.
        eps: added to the root of the second moment.
        floor: the smallest second moment, in units of the noise variance.
    """

    def __init__(
        self,
        parameters: Iterable[Parameter],
        lr: float,
        *,
        noise_variance: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        floor: float = 1.0,
    ) -> None:
        defaults = {
            "lr": lr, "noise_variance": noise_variance, "betas": betas, "eps": eps, "floor": floor,
            "steps": 0,
        }  # fmt: skip
        super().__init__(parameters, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Take one step.

        Raises:
            ValueError: there is a closure: private gradients are computed once.
        """
        if closure is not None:
            raise ValueError("closure: found one; allowed: none, because gradients are given")
        for group in self.param_groups:
            parameters = [each for each in group["params"] if each.grad is not None]
            if not parameters:
                continue
            gradients: list[Any] = [each.grad for each in parameters]
            for each in parameters:
                if not self.state[each]:
                    self.state[each].update(
                        first=torch.zeros_like(each), second=torch.zeros_like(each)
                    )
            first = [self.state[each]["first"] for each in parameters]
            second = [self.state[each]["second"] for each in parameters]
            beta1, beta2 = group["betas"]
            # Allocate all memory of the step here, before any state changes.
            root = torch._foreach_mul(second, beta2)
            torch._foreach_addcmul_(root, gradients, gradients, 1 - beta2)
            steps = group["steps"] + 1
            torch._foreach_lerp_(first, gradients, 1 - beta1)
            torch._foreach_copy_(second, root)
            variance = group["noise_variance"]
            torch._foreach_div_(root, 1 - beta2**steps)
            torch._foreach_sub_(root, variance)
            torch._foreach_clamp_min_(root, group["floor"] * variance)
            torch._foreach_sqrt_(root)
            torch._foreach_add_(root, group["eps"])
            rate = group["lr"] / (1 - beta1**steps)
            torch._foreach_addcdiv_(parameters, first, root, -rate)
            group["steps"] = steps
