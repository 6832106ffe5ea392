"""Per-example gradients of networks, layers, adapters and text classifiers against a loop in float64.

    python -m benchmarks.evidence.gradients                 # all kinds; half an hour on one core
    python -m benchmarks.evidence.gradients layers adapters # these kinds
    python -m benchmarks.evidence.gradients --only llama    # these cases again

The loop is plain autograd over single examples, written here (in float32 for the few networks that have
functions without float64). The engine is what `auto` takes. Norms and
the clipped sum of a masked batch are compared. A case agrees, is refused with a reason, or is wrong: then
the command ends with an error. What the other library cannot build is no case.

- ``networks``: networks of networks.yaml, with every method;
- ``layers``: layers of torch and timm in many settings (layers.yaml), with everything that trains;
- ``adapters``: methods of peft in small networks of linear layers, convolutions and tokens (adapters.yaml);
- ``texts``: every kind of text classifier in transformers, in a small version, with every method.

A stopped run goes on where it was. Results go to benchmarks/results/gradients.csv; `python -m
benchmarks.tables` writes the tables of docs/your-own-data.md.
"""

import copy
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pandas as pd
import torch
import yaml
from torch import Tensor, nn

from benchmarks.common import RESULTS, command_line
from benchmarks.evidence.backbones import networks
from benchmarks.evidence.layers import adapters, layers
from benchmarks.evidence.texts import texts
from dpsweep.base.errors import DpsweepError
from dpsweep.base.files import write_text
from dpsweep.config.clipping import FlatClipping
from dpsweep.gradients import make_engine
from dpsweep.gradients.checks import CheckedEngine
from dpsweep.models.architectures import seeded

RESULT = RESULTS / "gradients.csv"
KINDS = {"networks": networks, "layers": layers, "adapters": adapters, "texts": texts}
OUTCOMES = ("agrees", "refused", "wrong")
"""What is not built, because another library has no such network, is no case."""
_COLUMNS = ["kind", "case", "outcome", "engine", "detail"]
_LONGEST, _SECONDS = 240, 300
# Some networks compute parts in float32, whatever they are given.
_RELATIVE, _ABSOLUTE = 1e-3, 1e-6


class TooSlowError(Exception):
    """A case takes longer than a case may."""


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """End what takes longer."""

    def stop(*_: object) -> None:
        raise TooSlowError(f"takes more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def loop(
    model: nn.Module, inputs: Tensor, labels: Tensor, names: list[str]
) -> list[dict[str, Tensor]]:
    """Return the gradients of every example, by plain autograd."""
    found = []
    for x, y in zip(inputs, labels, strict=True):
        loss = nn.functional.cross_entropy(model(x[None]), y[None])
        parameters = [model.get_parameter(name) for name in names]
        gradients = torch.autograd.grad(loss, parameters)  # those of a table may be sparse
        found.append({name: g.to_dense() for name, g in zip(names, gradients, strict=True)})
    return found


def as_exact(model: nn.Module, inputs: Tensor) -> tuple[nn.Module, Tensor]:
    """Return a network and inputs in float64, or as they are where it has no function for that."""
    exact = copy.deepcopy(model).double()
    numbers = inputs.double() if inputs.is_floating_point() else inputs
    try:
        with torch.no_grad():  # a weight that is computed would be no leaf, which cannot be copied
            exact(numbers)
    except RuntimeError:
        return model, inputs
    return exact, numbers


def try_case(model: nn.Module, inputs: Tensor) -> str:
    """Compare what `auto` gives with the loop; return the name of the engine.

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
    assert isinstance(engine, CheckedEngine)
    return engine.choose(inputs, labels)[0]


def describe(
    kind: str, build: Callable[[list[str]], tuple[nn.Module, Tensor]]
) -> tuple[str, str, str]:
    """Try a case; return outcome, engine and detail.

    Parameters without influence are frozen, as the refusal says.
    """
    freeze = list[str]()
    try:
        with at_most(_SECONDS), seeded(0):
            try:
                model, inputs = build(freeze)
            except (DpsweepError, TooSlowError):
                raise
            except Exception as error:  # of any kind: libraries refuse with all kinds
                return "not built", "", _short(error)
            try:
                engine = try_case(model, inputs)
            except DpsweepError as error:
                if kind != "texts" or "have no influence" not in str(error):
                    raise
                freeze = yaml.safe_load(str(error).splitlines()[-1])["freeze"]
                engine = try_case(*build(freeze))
    except TooSlowError as error:
        return "not built", "", str(error)
    except DpsweepError as error:
        return "refused", "", _short(error)
    except Exception as error:  # of any kind: none may be
        return "wrong", "", _short(error)
    return "agrees", engine, f"with {len(freeze)} parameters frozen" if freeze else ""


def _short(error: Exception) -> str:
    name = "" if isinstance(error, DpsweepError) else f"{type(error).__name__}: "
    return name + " ".join(str(error).split())[:_LONGEST]


def main() -> None:
    """Try all cases that were not tried before, and print how many of each kind agree."""
    parser = command_line(__doc__)
    parser.add_argument("kinds", nargs="*", help=", ".join(KINDS))
    parser.add_argument("--only", nargs="+", help="cases that begin so, again")
    words = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    found = (
        pd.read_csv(RESULT, keep_default_na=False)[_COLUMNS] if RESULT.exists() else pd.DataFrame()
    )
    rows = {(row[0], row[1]): row for row in found.itertuples(index=False, name=None)}
    for kind in words.kinds or KINDS:
        for case, build in KINDS[kind]():
            chosen = words.only and case.startswith(tuple(words.only))
            if chosen or (not words.only and (kind, case) not in rows):
                started = time.monotonic()
                rows[kind, case] = (kind, case, *describe(kind, build))
                print(*rows[kind, case], f"{time.monotonic() - started:.1f} s", flush=True)
                table = pd.DataFrame(list(rows.values()), columns=_COLUMNS)
                write_text(RESULT, table.to_csv(index=False, lineterminator="\n"))
    outcomes = pd.DataFrame(list(rows.values()), columns=_COLUMNS)
    print(pd.crosstab(outcomes["kind"], outcomes["outcome"]))
    if (outcomes["outcome"] == "wrong").any():
        sys.exit("some cases are wrong")


if __name__ == "__main__":
    main()
