"""Compare per-example gradients of networks with a loop in float64, for every method.

    python -m benchmarks.evidence.gradients                 # all of networks.yaml; half an hour on one core
    python -m benchmarks.evidence.gradients --only convnext # these cases again

The loop is plain autograd over single examples, in float32 for the few networks with functions without
float64. `auto` chooses the engine. Norms and the clipped sum of a masked batch are compared. A case agrees,
is refused with a reason, or is wrong; then the command ends with an error.

A stopped run resumes. Results go to benchmarks/results/gradients.csv; `python -m benchmarks.tables` writes
the table of docs/your-own-data.md.
"""

import copy
import sys
import warnings
from collections import Counter
from collections.abc import Callable

import pandas as pd
import torch
from torch import Tensor, nn

from benchmarks.common import RESULTS, command_line
from benchmarks.evidence.backbones import networks
from dpsweep.base.errors import DpsweepError
from dpsweep.base.files import write_text
from dpsweep.gradients import make_engine
from dpsweep.gradients.checks import ValidatingEngine
from dpsweep.models.architectures import seeded
from dpsweep.study.clipping import FlatClipping

RESULT = RESULTS / "gradients.csv"
_COLUMNS = ["case", "outcome", "engine", "detail"]
_LONGEST = 240
# Some networks compute parts in float32 for every type of input.
_RELATIVE, _ABSOLUTE = 1e-3, 1e-6


def loop(
    model: nn.Module, inputs: Tensor, labels: Tensor, names: list[str]
) -> list[dict[str, Tensor]]:
    """Return the gradients of every example, by plain autograd."""
    found = []
    for x, y in zip(inputs, labels, strict=True):
        loss = nn.functional.cross_entropy(model(x[None]), y[None])
        parameters = [model.get_parameter(name) for name in names]
        gradients = torch.autograd.grad(loss, parameters)  # those of an embedding may be sparse
        found.append({name: g.to_dense() for name, g in zip(names, gradients, strict=True)})
    return found


def as_exact(model: nn.Module, inputs: Tensor) -> tuple[nn.Module, Tensor]:
    """Return network and inputs in float64, or unchanged if the network does not support float64."""
    exact = copy.deepcopy(model).double()
    numbers = inputs.double() if inputs.is_floating_point() else inputs
    try:
        with (
            torch.no_grad()
        ):  # with gradients, computed weights are not leaves and cannot be copied
            exact(numbers)
    except RuntimeError:
        return model, inputs
    return exact, numbers


def try_case(model: nn.Module, inputs: Tensor) -> str:
    """Compare the results of `auto` with the loop; return the name of the engine.

    Raises:
        DpsweepError: the network is refused.
        AssertionError: norms or a parameter's sum differ.
    """
    model, inputs = as_exact(model.eval(), inputs)
    labels, mask = torch.arange(len(inputs)) % 2, torch.arange(len(inputs)) != 1
    reference = copy.deepcopy(model)
    engine = make_engine("auto", model)
    norms, _ = engine.norms(inputs, labels, mask)
    bound = FlatClipping(float(norms[mask].mean()))
    found = engine.clipped_sum(inputs, labels, mask, bound)
    gradients = loop(reference, inputs, labels, list(found.gradients))
    lengths = [float(torch.cat([g.flatten() for g in each.values()]).norm()) for each in gradients]
    wanted_norms = torch.tensor(lengths).where(mask, 0).to(norms)
    torch.testing.assert_close(norms, wanted_norms, rtol=_RELATIVE, atol=0)
    factors = mask / torch.tensor(lengths).clamp(min=bound.bound)
    wanted = {
        name: sum(f * each[name] for f, each in zip(factors, gradients, strict=True))
        for name in found.gradients
    }
    whole = torch.cat([each.flatten() for each in wanted.values()]).norm()
    assert set(wanted) == {n for n, each in reference.named_parameters() if each.requires_grad}
    for name, each in wanted.items():
        error = (found.gradients[name] - each).norm()
        assert error <= _RELATIVE * each.norm() + _ABSOLUTE * whole, (name, float(error))
    assert isinstance(engine, ValidatingEngine)
    return engine.choose(inputs)[0]


def describe(build: Callable[[], tuple[nn.Module, Tensor]]) -> tuple[str, str, str]:
    """Try a case; return outcome, engine and detail."""
    try:
        with seeded(0):
            return "agrees", try_case(*build()), ""
    except DpsweepError as error:
        return "refused", "", _short(error)
    except Exception as error:  # of any type: all are bugs
        return "wrong", "", f"{type(error).__name__}: {_short(error)}"


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:_LONGEST]


def main() -> None:
    """Try all cases without a result, and count outcomes."""
    parser = command_line(__doc__)
    parser.add_argument("--only", nargs="+", default=[], help="try cases with these prefixes again")
    again = tuple(parser.parse_args().only)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    found = pd.read_csv(RESULT, keep_default_na=False) if RESULT.exists() else pd.DataFrame()
    rows = {row[0]: row for row in found.itertuples(index=False, name=None)}
    for case, build in networks():
        if case.startswith(again) if again else case not in rows:
            rows[case] = (case, *describe(build))
            print(*rows[case], flush=True)
            table = pd.DataFrame(list(rows.values()), columns=_COLUMNS)
            write_text(RESULT, table.to_csv(index=False, lineterminator="\n"))
    outcomes = Counter(outcome for _, outcome, *_ in rows.values())
    print(dict(outcomes))
    if outcomes["wrong"]:
        sys.exit("some cases are wrong")


if __name__ == "__main__":
    main()
