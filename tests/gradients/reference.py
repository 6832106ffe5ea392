"""The reference: per-example gradients by definition, one after the other with autograd in float64.

It shares no code with the engines.
"""

import copy
from typing import Any

import torch
import torch.nn.functional as F
from tests.gradients.tiny_models import Case
from torch import Tensor

from dpsweep.gradients import GradientEngine, make_engine
from dpsweep.gradients.engines import ENGINES
from dpsweep.gradients.opacus import OpacusEngine
from dpsweep.study.clipping import AutomaticClipping, Clipping, FlatClipping, NoClipping

GAMMA = 0.3


def one_by_one(case: Case) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of each example, and its gradients by parameter, shape (examples, *shape)."""
    wide = next(case.model.parameters()).dtype == torch.float64
    model = case.model if wide else copy.deepcopy(case.model).double()
    parameters = {name: each for name, each in model.named_parameters() if each.requires_grad}
    inputs = case.inputs.double() if case.inputs.is_floating_point() else case.inputs
    losses, gradients = [], []
    for x, y in zip(inputs, case.labels, strict=True):
        losses.append(F.cross_entropy(model(x[None]), y[None]))
        # A loss of parts that do not train has no gradient.
        loss = losses[-1] + 0 * next(iter(parameters.values())).sum()
        gradients.append(
            torch.autograd.grad(loss, list(parameters.values()), materialize_grads=True)
        )
    rows = [
        torch.stack([each.to_dense() for each in column]) for column in zip(*gradients, strict=True)
    ]
    return torch.stack(losses).detach(), dict(zip(parameters, rows, strict=True))


def shares(ids: list[int], mask: Tensor) -> Tensor:
    """Return the share of each row that counts in the mean of its unit, shape (units, rows)."""
    places = torch.tensor([list(dict.fromkeys(ids)).index(each) for each in ids])
    counts = F.one_hot(places).T.double() * mask
    return counts / counts.sum(1, keepdim=True).clamp(min=1)


def lengths(rows: dict[str, Tensor], like: Tensor) -> Tensor:
    squares = [each.flatten(1).square().sum(1) for each in rows.values()]
    return torch.stack([torch.zeros_like(like), *squares]).sum(0).sqrt()


def factors(norms: Tensor, bound: float) -> dict[Clipping, Tensor]:
    """Return the factors of every clipping rule."""
    return {
        FlatClipping(bound): torch.minimum(torch.full_like(norms, 1 / bound), 1 / norms),
        AutomaticClipping(GAMMA): 1 / (norms + GAMMA),
        NoClipping(): torch.ones_like(norms),
    }


def build(case: Case, engine: str, **options: Any) -> GradientEngine:
    """Make an engine; only `auto` checks the network and compares engines with the loop."""
    if engine == "auto":
        return make_engine(engine, case.model, case.head, **options)
    return (ENGINES | {"opacus": OpacusEngine})[engine](case.model, case.head, **options)


def check(
    case: Case,
    engine: str = "auto",
    tolerance: float = 1e-10,
    made: GradientEngine | None = None,
    units: list[int] | None = None,
    **options: Any,
) -> GradientEngine:
    """Check losses, norms, sums and gradients of an engine against the reference; return the engine.

    Args:
        case: the network and a batch with some masked examples.
        engine: its name.
        tolerance: relative to the largest number of a parameter's gradient.
        made: the engine, if it has been made.
        units: whose row each is; None: each row is a unit.
        options: of the engine.
    """
    losses, rows = one_by_one(case)
    ids = list(range(len(case.mask))) if units is None else units
    counted, every = shares(ids, case.mask), shares(ids, torch.ones_like(case.mask))
    means = {name: torch.tensordot(counted, each, 1) for name, each in rows.items()}
    losses, mask = counted @ losses, counted.sum(1) > 0
    before = {name: each.clone() for name, each in case.model.state_dict().items()}
    random = torch.get_rng_state()
    made = made or build(case, engine, **options)
    norms, head = lengths(means, losses), lengths({name: means[name] for name in case.head}, losses)
    # Some gradients are longer than this bound, and others not; most of sparse networks are 0.
    bound = float(norms[mask].median()) or float(norms[mask].max()) / 2

    def same(found: Tensor, wanted: Tensor, scale: float, name: str) -> None:
        torch.testing.assert_close(
            found.double(),
            wanted,
            rtol=0,
            atol=tolerance * scale,
            msg=lambda message: f"{name}: {message}",
        )

    for clipping, factor in factors(norms, bound).items():
        found = made.clipped_sum(*case.batch, clipping, units)
        assert found.gradients.keys() == means.keys()
        used = torch.where(mask, factor, 0)
        sums = {name: torch.tensordot(used, each, 1) for name, each in means.items()}
        # The loss does not depend on the bias of attention keys: its gradients are rounding errors.
        share = 1e-4 if tolerance < 1e-8 else 1e-2
        least = share * max(float(each.abs().max()) for each in sums.values())
        for name, wanted in sums.items():
            same(found.gradients[name], wanted, max(float(wanted.abs().max()), least), name)
        same(found.norms, norms, float(norms.max()), "norms")
        same(found.losses, losses, 1 + float(losses.max()), "losses")
        assert not found.nonfinite.any()
    for found_norms, wanted in zip(made.norms(*case.batch, units), (norms, head), strict=True):
        torch.testing.assert_close(found_norms.double(), wanted, rtol=tolerance, atol=0)
    written, nonfinite = made.gradients(case.inputs, case.labels, units)
    wanted = every @ torch.cat([each.flatten(1) for each in rows.values()], dim=1)
    same(written, wanted, float(wanted.abs().max()), "gradients")
    assert not nonfinite.any()
    torch.testing.assert_close(case.model.state_dict(), before, rtol=0, atol=0, equal_nan=True)
    assert all(type(each) is torch.nn.Parameter for each in case.model.parameters())
    assert all(each.grad is None for each in case.model.parameters())
    assert torch.equal(torch.get_rng_state(), random)
    return made
