"""Private updates: the sum of clipped gradients and noise, divided by B; optimizers and averages."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.study.small import load_small
from tests.training.tiny_net import HEAD, N, data, net, private, split
from tests.training.tiny_net import flat as parameters
from torch import Tensor, nn

from dpsweep.gradients import GradientSum, make_engine
from dpsweep.privacy import Sampling
from dpsweep.study.clipping import AutomaticClipping, Clipping, FlatClipping, NoClipping
from dpsweep.study.optimizers import optimizer_of
from dpsweep.training.optimizer import (
    OptimizerError,
    RunningAverage,
    make_optimizer,
    mistaken_optimizers,
)
from dpsweep.training.randomness import GaussianNoise, PoissonSampler


def flat(tensors: Any) -> Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


@pytest.mark.parametrize("physical_batch", [1, 3, 13, 64])
@pytest.mark.parametrize(
    "clipping", [FlatClipping(0.5), FlatClipping(1e-5), AutomaticClipping(), NoClipping()], ids=str
)
def test_an_update_is_the_sum_and_noise_divided_by_the_expected_batch_size(
    clipping: Clipping, physical_batch: int
) -> None:
    """Noise is added once a step, also to an empty batch; its deviation is sigma / B for every rule."""
    model, (inputs, labels) = net(), data()
    sigma = 0.0 if isinstance(clipping, NoClipping) else 1.7
    optimizer = private(model, clipping=clipping, noise_multiplier=sigma)
    loop, sampler = make_engine("loop", model, HEAD), PoissonSampler(Sampling(N, 13, 4), "s")
    for step in range(4):
        rows = sampler.batch(step)[: 0 if step == 2 else None]
        wanted = torch.zeros(len(parameters(model)), dtype=torch.float64)
        GaussianNoise("noise").add_to(wanted, step, sigma)
        if len(rows):
            mask = torch.ones(len(rows), dtype=torch.bool)
            wanted += flat(
                loop.clipped_sum(inputs[rows], labels[rows], mask, clipping).gradients.values()
            )
        before = parameters(model)
        found = optimizer.step(split(rows, physical_batch))
        assert int(found.sampled_examples) == len(rows)
        moved = before - parameters(model)
        torch.testing.assert_close(moved, wanted / 8, rtol=1e-9, atol=1e-11)


def test_one_example_among_many_moves_the_sum_by_its_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the N of SUN397 and parallel gradients, a sum in float32 would have an error of 0.4 %."""
    generator = torch.Generator().manual_seed(3)
    drawn = {
        name: torch.rand(each.shape, generator=generator) for name, each in net().named_parameters()
    }
    length = flat(drawn.values()).double().norm()

    def clipped_sum(inputs: Tensor, labels: Tensor, mask: Tensor, _: Clipping) -> GradientSum:
        """Sum equal float32 gradients of length 1."""
        sums = {name: mask.sum() * (each / length).float() for name, each in drawn.items()}
        return GradientSum(sums, *torch.zeros(4, 1))

    def total(examples: int) -> Tensor:
        model = net()
        optimizer = private(model, clipping=FlatClipping(1.0), batch_size=1)
        monkeypatch.setattr(optimizer.engine, "clipped_sum", clipped_sum)
        masks = torch.split(torch.ones(examples, dtype=torch.bool), 61)
        optimizer.step((mask, mask, mask) for mask in masks)
        return flat(parameter.grad for parameter in model.parameters())

    difference = total(87_002) - total(87_001)
    assert float(difference.norm()) == pytest.approx(1, abs=1e-6)


def test_statistics() -> None:
    model, (inputs, labels) = net(), data()
    everything = torch.ones(N, dtype=torch.bool)
    norms, _ = make_engine("loop", model, HEAD).norms(inputs, labels, everything)
    bound = float(norms[:11].median())
    inputs[3] = torch.nan
    batches = split(np.arange(11), 4, (inputs, labels))
    found = private(model, clipping=FlatClipping(bound)).step(batches)
    kept = norms[[row for row in range(11) if row != 3]]
    counts = found.sampled_examples, found.nonfinite_examples, found.clipped_examples
    assert [int(each) for each in counts] == [11, 1, int((kept > bound).sum())]
    torch.testing.assert_close(found.norm_sum, kept.sum())
    assert found.norm_sum.untyped_storage().nbytes() < 64  # not a view of the whole sum
    assert parameters(model).isfinite().all()


@pytest.mark.parametrize("allocated", [0, 4])
def test_a_first_step_that_runs_out_of_memory_can_be_repeated(allocated: int) -> None:
    """The first step allocates Adam's averages, parameter by parameter."""
    original, calls, fails = torch.zeros_like, iter(range(100)), True

    def allocate(like: Tensor, **options: Any) -> Tensor:
        if fails and next(calls) == allocated:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return original(like, **options)

    def train() -> Tensor:
        model = net(torch.float32)
        adam = torch.optim.Adam(model.parameters(), lr=0.1, fused=True)
        optimizer = private(model, adam, noise_multiplier=1.0)
        batch = partial(split, np.arange(11), 4, data(dtype=torch.float32))
        optimizer.engine.norms(*next(batch()))
        if fails:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(torch, "zeros_like", allocate)
                with pytest.raises(torch.OutOfMemoryError):
                    optimizer.step(batch())
        for _ in range(3):
            optimizer.step(batch())
        return parameters(model)

    repeated, fails = train(), False
    assert torch.equal(repeated, train())


def test_an_optimizer_must_hold_exactly_the_trainable_parameters() -> None:
    model = net()
    with pytest.raises(ValueError, match=r"lacks norm\.weight, norm\.bias and"):
        private(model, torch.optim.SGD(model.head.parameters(), lr=1.0))
    optimizer = private(model)
    optimizer.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
    with pytest.raises(ValueError, match="has 1 that do not train"):
        optimizer.step([])
    optimizer.optimizer.param_groups.pop()
    model.head.bias.requires_grad_(False)
    with pytest.raises(ValueError, match="has 1 that do not train; after a change of what"):
        optimizer.step([])


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        *(
            (torch.optim.SGD, {"noise_multiplier": each}, "finite")
            for each in (-1.0, np.nan, np.inf)
        ),
        (torch.optim.SGD, {"clipping": NoClipping(), "noise_multiplier": 1.0}, "gives no"),
        (torch.optim.SGD, {"clipping": 1.0}, "clipping: found 1.0; allowed: a rule"),
        (
            torch.optim.SGD,
            {"batch_size": 0},
            "expected_batch_size = 0: it must be finite and at least 1",
        ),
        (torch.optim.LBFGS, {}, "found LBFGS; allowed.*LBFGS"),
        (torch.optim.SparseAdam, {}, "found SparseAdam; allowed.*LBFGS"),
    ],
)
def test_impossible_settings_are_refused(
    kind: type[torch.optim.Optimizer], settings: dict[str, Any], message: str
) -> None:
    model = net()
    with pytest.raises(ValueError, match=message):
        private(model, kind(model.parameters()), **settings)


@pytest.mark.parametrize("fused", [False, True])
def test_parameters_may_be_noncontiguous(fused: bool) -> None:
    ends = []
    for model in (net(), net()):
        if ends:
            weight = model.head.weight.detach().t().contiguous().t()
            model.head.weight = nn.Parameter(weight)
        optimizer = private(model, torch.optim.Adam(model.parameters(), lr=0.1, fused=fused))
        for _ in range(3):
            optimizer.step(split(np.arange(N), 8))
        ends.append(parameters(model))
    torch.testing.assert_close(*ends)


def test_a_step_says_what_it_takes() -> None:
    model = net()
    optimizer, before = private(model), parameters(model)
    for given, found in (
        (data(), "a Tensor"),
        ([data()], f"a tuple of {len(data())}"),
        ([list(data())], "a list"),
    ):
        with pytest.raises(ValueError, match=rf"found {found} in the list; expected"):
            optimizer.step(given)  # type: ignore[arg-type]
    assert torch.equal(parameters(model), before) and optimizer.steps == 0


# -- steps after the noise -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "average", [{"kind": "ema", "decay": 0.9999}, {"kind": "tail", "share": 1}, None]
)
def test_averages_over_many_steps_are_precise(average: dict[str, Any] | None) -> None:
    """In float32, weights of one in ten thousand would be lost; without an average nothing is kept."""
    steps, parameter = 5000, nn.Parameter(torch.zeros(1))
    running = RunningAverage(optimizer_of({"kind": "sgd", "average": average}), steps, {})
    values = 1 + 1e-4 * np.random.default_rng(4).standard_normal(steps).astype(np.float32)
    for step, value in enumerate(values, start=1):
        with torch.no_grad():
            parameter.fill_(float(value))
        running.update(step, {"weight": parameter})
    if average is None:
        assert running.values == {}
        return
    decay = average.get("decay", 1.0)
    wanted = np.average(values.astype(np.float64), weights=decay ** np.arange(steps - 1, -1, -1.0))
    assert float(running.values["weight"]) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("RMSprob", {}, "optimizers.x: RMSprob: torch refuses it"),
        ("RMSprop", {"alhpa": 0.9}, "unexpected keyword argument 'alhpa'"),
        ("RMSprop", {"alpha": -1}, "Invalid alpha value: -1"),
        ("Adam", {"differentiable": True}, "optimizers.x: a leaf"),  # in a step
        *((name, {}, name) for name in ("Muon", "Optimizer", "swa_utils")),
        ("NAdam", {"capturable": True}, None),  # a GPU may train it
        ("SGD", {"capturable": True}, "unexpected keyword argument 'capturable'"),
        *((name, {}, None) for name in ("RMSprop", "Adagrad", "NAdam", "RAdam", "Adamax", "ASGD")),
    ],
)
def test_optimizers_that_torch_refuses_are_reported_before_training(
    tmp_path: Path, name: str, arguments: dict[str, Any], said: str | None
) -> None:
    section = {"kind": "torch", "name": name, "arguments": arguments}
    found = list(mistaken_optimizers(load_small(tmp_path, {"optimizers": {"x": section}})))
    assert len(found) == (said is not None)
    assert all(line.startswith("optimizers.x: ") and str(said) in line for line in found)
    if said and arguments and "differentiable" not in arguments:
        with pytest.raises(OptimizerError, match="torch refuses it"):
            make_optimizer(optimizer_of(section), [nn.Parameter(torch.zeros(2))], 0.1, 0.1)
