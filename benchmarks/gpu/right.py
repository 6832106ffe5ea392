"""Checks that a GPU computes private steps correctly. A wrong result is an error."""

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.gpu import trials
from benchmarks.gpu.kit import Kit
from benchmarks.speed.steps import Row
from dpsweep.gradients import GradientEngine, GradientSum, make_engine
from dpsweep.models.build import head_parameter_names
from dpsweep.study.clipping import FlatClipping
from dpsweep.training.randomness import GaussianNoise

EXAMPLES = 6
CLIPPING = FlatClipping(1.0)
# Largest relative errors of sums and norms; TF32 would have 1e-3.
ALLOWED = {"float64": 1e-6, "float32": 2e-4, "bfloat16": 0.05}
# A deep network with random weights amplifies rounding: its errors may be this multiple of the loop's errors
# in the same precision. The loop in float32 runs without TF32, on the CPU and on this device.
OF_THE_LOOP = 5
# Where the loop itself is further off (bfloat16 in deep networks with random weights), nothing is compared.
LARGEST_ALLOWED = 0.5
_FLOAT32 = tuple((name, "float32") for name in ("loop", "auto", "expanded", "bookkeeping", "vmap"))
_EAGER = (*_FLOAT32, ("auto", "float64"), ("loop", "bfloat16"), ("auto", "bfloat16"))
_COMPILED = tuple((name, each) for each in ("float32", "bfloat16") for name in ("loop", "auto"))
_NEEDED = ("loop", "auto")
"""Engines that must support every network."""
_FLOAT32_LARGEST = 5.768  # of a normal float32 draw of torch, see docs/privacy.md
Sums = tuple[GradientSum, GradientSum]
"""Sums of all examples, and of some examples while the others are not finite."""


class WrongNumberError(Exception):
    """A computed value is wrong."""


@dataclass(frozen=True)
class Problem:
    """A network and a batch of random examples on the CPU."""

    title: str
    model: nn.Module
    inputs: Tensor


def network_problem(row: Row) -> Problem:
    """Return the problem of a row of the timed steps."""
    return Problem(row.title, row.model(), row.inputs(EXAMPLES))


def linear_problem() -> Problem:
    """Return the problem of a head on cached features."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(EXAMPLES, 192, generator=generator)
    return Problem("a linear layer", nn.Linear(192, 100), inputs)


class _Reference:
    """A problem on a device, and its results by the loop in float64."""

    def __init__(self, problem: Problem, device: torch.device) -> None:
        self._head = head_parameter_names(problem.model)
        model, inputs = copy.deepcopy(problem.model).to(device), problem.inputs.to(device)
        wide = inputs.double() if inputs.is_floating_point() else inputs
        self._given = {"float64": (copy.deepcopy(model).double(), wide)}
        self._given["float32"] = self._given["bfloat16"] = (model, inputs)
        exact = make_engine("loop", self._given["float64"][0], self._head)
        labels, everything, some = (each.to(device) for each in _batch())
        self._wanted = [
            exact.clipped_sum(wide, labels, mask, CLIPPING) for mask in (everything, some)
        ]
        here_and_on_the_cpu = [
            _errors(_sums(make_engine("loop", each, self._head), given), self._wanted)
            for each, given in ((model, inputs), (problem.model, problem.inputs))
        ]
        self.rounding = {
            name: max(each[name] for each in here_and_on_the_cpu) for name in here_and_on_the_cpu[0]
        }
        """Relative errors of the loop in float32 without TF32, the larger of this device's and the CPU's."""

    def compare(self, name: str, precision: str, compiled: bool) -> tuple[dict[str, float], str]:
        """Return the relative errors of an engine, and the name of the engine that `auto` chooses.

        Raises:
            WrongNumberError: a result has too little precision, or examples were counted wrongly.
        """
        model, inputs = self._given[precision]
        autocast = torch.bfloat16 if precision == "bfloat16" else None
        engine = make_engine(name, model, self._head, autocast=autocast, compile=compiled)
        # torch 2.10 does not compile while TF32 is on.
        with nullcontext() if compiled else _tf32():
            found = _errors(_sums(engine, inputs), self._wanted)
            found["contribution"] = _contribution(engine, inputs)
        if name != "auto":
            return found, name
        return found, engine.choose(inputs)[0]  # type: ignore[attr-defined]


def _batch() -> tuple[Tensor, Tensor, Tensor]:
    """Return labels, and the masks of all examples and of some examples."""
    labels = torch.arange(EXAMPLES)
    return labels, labels >= 0, labels % 2 == 0


def check_engines(kit: Kit, make: Callable[[], Problem], compiled: bool = False) -> dict[str, Any]:
    """Compare every engine with the loop in float64, on this device.

    A failure of an engine of `_NEEDED` is an error; failures of other engines are recorded.

    Raises:
        WrongNumberError: a sum or a norm is wrong or missing.
    """
    problem = make()
    reference = _Reference(problem, kit.device)
    rounding = {"float32": reference.rounding}
    errors: dict[str, dict[str, float]] = {}
    taken: dict[str, str] = {}
    failures: dict[str, str] = {}
    wrong = []
    for name, precision in _COMPILED if compiled else _EAGER:
        setting = f"{name}, {precision}" + (", compiled" if compiled and name != "loop" else "")
        try:
            found, taken[setting] = reference.compare(name, precision, compiled)
        except WrongNumberError as error:
            wrong.append(f"{setting}: {error}")
            continue
        except Exception as error:  # of any type: the other engines must be checked too
            failures[setting] = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
            print(f"{problem.title}, {setting}: {failures[setting]}", flush=True)
            if name in _NEEDED:
                wrong.append(f"{setting}: not computed")
            continue
        errors[setting] = found
        allowed = _allowed(
            precision, rounding.setdefault(precision, found if name == "loop" else {})
        )
        if not all(error <= allowed[each] for each, error in found.items()):
            wrong.append(f"{setting}: {found}; allowed: {allowed}")
    if wrong:
        raise WrongNumberError(
            f"{problem.title}: wrong {wrong}, found {errors}, failures {failures}"
        )
    not_compared = {
        precision: far
        for precision, of_the_loop in rounding.items()
        if (far := [name for name, error in of_the_loop.items() if error > LARGEST_ALLOWED])
    }
    found_here = {"relative_errors": errors, "engines": taken, "failures": failures}
    return {"title": problem.title, "not_compared": not_compared} | found_here


def _allowed(precision: str, of_the_loop: dict[str, float]) -> dict[str, float]:
    """Return the largest allowed relative errors; infinity where the loop itself is too far off."""
    allowed = {}
    for each in ("sum", "norms", "masked"):
        of_this = of_the_loop.get(each, 0)
        largest = min(max(ALLOWED[precision], OF_THE_LOOP * of_this), LARGEST_ALLOWED)
        allowed[each] = math.inf if of_this > LARGEST_ALLOWED else largest
    # Lengths have full precision with every engine.
    return allowed | {"contribution": ALLOWED["float32"]}


def _sums(engine: GradientEngine, inputs: Tensor) -> Sums:
    """Return the sum of all examples, and of some; masked examples and one unmasked example are infinite."""
    labels, everything, some = (each.to(inputs.device) for each in _batch())
    whole = engine.clipped_sum(inputs, labels, everything, CLIPPING)
    for name, each in {**whole.gradients, "norms": whole.norms}.items():
        if each.dtype not in (torch.float32, torch.float64):
            raise WrongNumberError(f"{name} is {each.dtype}; allowed: float32, float64")
    if not inputs.is_floating_point():
        return whole, engine.clipped_sum(inputs, labels, some, CLIPPING)
    spoilt = inputs.clone()
    spoilt[~some] = torch.inf
    some[1] = True  # not masked and not finite: the engine must count it and leave it out
    part = engine.clipped_sum(spoilt, labels, some, CLIPPING)
    if (count := int(part.nonfinite.sum())) != 1:
        raise WrongNumberError(f"found {count} examples that are not finite, not 1")
    return whole, part


def _errors(found: Sums, wanted: list[GradientSum]) -> dict[str, float]:
    norms = wanted[0].norms.to(found[0].norms.device)
    sums = [_relative(_flat(one), _flat(two)) for one, two in zip(found, wanted, strict=True)]
    furthest = float(((found[0].norms - norms) / norms).abs().max())
    return {"sum": sums[0], "norms": furthest, "masked": sums[1]}


@contextmanager
def _tf32() -> Iterator[None]:
    """Switch TF32 on, as a user may have done; engines must switch it off for their computations."""
    settings = torch.backends.cuda.matmul, torch.backends.cudnn.conv  # type: ignore[attr-defined]
    before = [each.fp32_precision for each in settings]
    try:
        for each in settings:
            each.fp32_precision = "tf32"
        yield
    finally:
        for each, precision in zip(settings, before, strict=True):
            each.fp32_precision = precision


def _contribution(engine: GradientEngine, inputs: Tensor) -> float:
    """Return the largest relative error of the length of a clipped gradient."""
    labels, errors = _batch()[0].to(inputs.device), []
    for alone in torch.eye(len(labels), dtype=torch.bool, device=labels.device):
        found = engine.clipped_sum(inputs, labels, alone, CLIPPING)
        wanted = found.norms.double().sum().clamp(max=CLIPPING.bound)
        errors.append((_flat(found).norm() / wanted - 1).abs())
    return float(torch.stack(errors).max())


def _flat(found: GradientSum) -> Tensor:
    return torch.cat([found.gradients[name].double().flatten() for name in sorted(found.gradients)])


def _relative(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted.to(found.device)).norm() / wanted.norm())


def check_noise(kit: Kit) -> dict[str, Any]:
    """Check that noise is float64, standard normal with tails, new in every step, and repeatable."""
    size, steps = (2**20, 4) if kit.rehearse else (2**28, 8)
    stream = GaussianNoise("gpu kit", secret=b"")
    first = torch.zeros(size, dtype=torch.float64, device=kit.device)
    stream.add_to(first, 0, 1.0)
    drawn, beyond, largest, moments = torch.zeros_like(first), 0, 0.0, []
    for step in range(steps):
        drawn.zero_()
        stream.add_to(drawn, step, 1.0)
        if torch.equal(first, drawn) != (step == 0):
            raise WrongNumberError(
                f"step {step} has the noise of step 0, or step 0 two kinds of it"
            )
        beyond += int((drawn.abs() > _FLOAT32_LARGEST).sum())
        largest = max(largest, float(drawn.abs().max()))
        moments.append([float(drawn.mean()), float(drawn.var())])
    deviation = 6 / size**0.5
    if not all(abs(mean) < deviation and abs(var - 1) < 2 * deviation for mean, var in moments):
        raise WrongNumberError(f"means and variances: {moments}")
    draws = size * steps
    expected = draws * 8.0e-9
    if expected > 10 and not 0.2 * expected < beyond < 5 * expected:
        found = f"{beyond} of {draws} draws beyond {_FLOAT32_LARGEST}, expected {expected:.0f}"
        raise WrongNumberError(found)
    counted = {"draws": draws, "beyond_float32": beyond, "expected_beyond": expected}
    return counted | {"largest": largest}


def check_resume(kit: Kit) -> dict[str, Any]:
    """Compare a trial with a repetition, a resumed one, and ones that move between CPU and GPU."""
    here, there = (trials.small_trial(kit, device) for device in (kit.device, torch.device("cpu")))
    whole = here.train("whole")
    found = {
        "twice": _furthest(whole, here.train("again")),
        "stopped": _furthest(whole, here.train("stopped", stop=5)),
    }
    # Without noise, which differs between devices, both devices give the same parameters.
    quiet_here, quiet_there = here.without_noise(), there.without_noise()
    wanted = quiet_there.train("quiet")
    found["to the GPU"] = _furthest(wanted, quiet_here.train("moved", stop=5, begin=quiet_there))
    found["to the CPU"] = _furthest(wanted, quiet_there.train("back", stop=5, begin=quiet_here))
    allowed = 0.0 if kit.rehearse else 1e-2
    if not max(found.values()) <= allowed:
        raise WrongNumberError(
            f"largest relative differences of parameters: {found}; allowed: {allowed}"
        )
    return {"largest_relative_differences": found}


def _furthest(one: dict[str, Any], other: dict[str, Any]) -> float:
    return max(
        float(abs(other[name] - value).max() / max(1e-6, abs(value).max()))
        for name, value in one.items()
    )
