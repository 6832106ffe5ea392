import io
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from dpsweep.gradients import GradientSum, make_engine
from dpsweep.study.clipping import AutomaticClipping, Clipping, FlatClipping, NoClipping
from dpsweep.training.optimizer import PrivateOptimizer
from dpsweep.training.randomness import GaussianNoise, PoissonSampler, microbatches

WIDTH, CLASSES, EXAMPLES = 6, 4, 40
HEAD = frozenset({"head.weight", "head.bias"})
MicroBatch = tuple[Tensor, Tensor, Tensor]


class Net(nn.Module):
    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(inputs))
        return logits


def net(dtype: torch.dtype = torch.float64) -> Net:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return Net().to(dtype)


def data(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randn(EXAMPLES, WIDTH, generator=generator, dtype=torch.float64).to(dtype)
    return inputs, torch.randint(CLASSES, (EXAMPLES,), generator=generator)


def private(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    clipping: Clipping | None = None,
    noise_multiplier: float = 0.0,
    batch_size: int = 8,
    stream: str = "noise",
) -> PrivateOptimizer:
    return PrivateOptimizer(
        optimizer,
        make_engine("expanded", model, HEAD),
        clipping or FlatClipping(0.5),
        noise_multiplier=noise_multiplier,
        expected_batch_size=batch_size,
        noise=GaussianNoise(stream),
    )


def sgd(model: nn.Module, rate: float = 1.0) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=rate)


def split(
    indices: np.ndarray, physical_batch: int, dtype: torch.dtype = torch.float64
) -> Iterator[MicroBatch]:
    inputs, labels = data(dtype)
    for padded, mask in microbatches(indices, physical_batch):
        rows = torch.from_numpy(padded)
        yield inputs[rows], labels[rows], torch.from_numpy(mask)


def flat(tensors: Any) -> Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def parameters(model: nn.Module) -> Tensor:
    return flat(model.parameters())


def standard_noise(size: int, step: int) -> Tensor:
    """Return the noise of a step of stream "noise", before it is scaled."""
    noise = torch.zeros(size, dtype=torch.float64)
    GaussianNoise("noise").add_to(noise, step, 1.0)
    return noise


def noise_of_empty_steps(width: int, sigma: float, batch_size: int, steps: int) -> np.ndarray:
    """Return the gradients of steps on empty batches, one row a step."""
    model = Net(width)
    optimizer = private(model, sgd(model), noise_multiplier=sigma, batch_size=batch_size)
    rows = []
    for _ in range(steps):
        optimizer.step([])
        rows.append(flat(parameter.grad for parameter in model.parameters()).numpy().copy())
    return np.stack(rows)


def test_noise_is_normal_with_the_right_deviation() -> None:
    noise = noise_of_empty_steps(2000, sigma=1.7, batch_size=8, steps=2)
    assert stats.kstest(noise.ravel(), "norm", args=(0, 1.7 / 8)).pvalue > 1e-6
    # The test above would not see 2 % less noise; the variance of 24,000 numbers does.
    ratio = noise.var() / (1.7 / 8) ** 2
    assert abs(ratio - 1) < 5 * np.sqrt(2 / noise.size)


def test_noise_is_fresh_in_every_step_and_parameter() -> None:
    noise = noise_of_empty_steps(500, sigma=1.0, batch_size=1, steps=6)
    correlations = np.corrcoef(noise)[np.triu_indices(6, 1)]
    assert np.abs(correlations).max() < 5 / np.sqrt(noise.shape[1])
    norm_weight, norm_bias, head = noise[:, :500], noise[:, 500:1000], noise[:, 1000:1500]
    for first, second in ((norm_weight, norm_bias), (norm_weight, head), (norm_bias, head)):
        assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 5 / np.sqrt(first.size)


@pytest.mark.parametrize("clipping", [FlatClipping(0.5), FlatClipping(1e-5), AutomaticClipping()])
def test_noise_does_not_depend_on_clipping(clipping: Clipping) -> None:
    """Normalised updates: the deviation is sigma / B, whatever the bound."""
    model = net()
    optimizer = private(model, sgd(model), clipping, noise_multiplier=2.0)
    optimizer.step([])
    expected = standard_noise(len(parameters(model)), step=0)
    found = flat(parameter.grad for parameter in model.parameters())
    torch.testing.assert_close(found, 2.0 * expected / 8, rtol=1e-12, atol=0)


@pytest.mark.parametrize("physical_batch", [1, 2, 3, 7, 13, 64])
@pytest.mark.parametrize("sigma", [0.0, 1.3])
def test_any_physical_batch_gives_the_same_update(physical_batch: int, sigma: float) -> None:
    """With noise: it is added once for a step, not once for a micro-batch."""

    def train(size: int) -> Tensor:
        model = net()
        optimizer = private(model, sgd(model), noise_multiplier=sigma)
        for step in range(4):
            optimizer.step(split(PoissonSampler(EXAMPLES, 13, "s").batch(step), size))
        return parameters(model)

    torch.testing.assert_close(train(physical_batch), train(EXAMPLES), rtol=1e-11, atol=1e-13)


class ParallelGradients:
    """An engine whose examples all have the same gradient, of length 1; sums are float32."""

    def __init__(self, model: nn.Module):
        self.parameters = dict(model.named_parameters())
        generator = torch.Generator().manual_seed(3)
        shapes = {name: each.shape for name, each in self.parameters.items()}
        drawn = {name: torch.rand(shape, generator=generator) for name, shape in shapes.items()}
        length = flat(drawn.values()).double().norm()
        self.gradient = {name: (each / length).float() for name, each in drawn.items()}

    def clipped_sum(self, inputs: Tensor, labels: Tensor, mask: Tensor, _: Clipping) -> GradientSum:
        sums = {name: mask.sum() * each for name, each in self.gradient.items()}
        nothing = torch.zeros(len(mask))
        return GradientSum(sums, nothing, nothing, torch.zeros(len(mask), dtype=torch.bool))

    def norms(self, *_: Tensor) -> tuple[Tensor, Tensor]:
        raise AssertionError


def test_one_example_among_many_moves_the_sum_by_its_length() -> None:
    """N of SUN397, all gradients parallel: a sum in float32 would be off by 0.4 %."""

    def total(examples: int) -> Tensor:
        model = net()
        optimizer = PrivateOptimizer(
            sgd(model),
            ParallelGradients(model),
            FlatClipping(1.0),
            noise_multiplier=0.0,
            expected_batch_size=1,
            noise=GaussianNoise("noise"),
        )
        masks = torch.split(torch.ones(examples, dtype=torch.bool), 61)
        optimizer.step((mask, mask, mask) for mask in masks)
        return flat(parameter.grad for parameter in model.parameters())

    difference = total(87_002) - total(87_001)
    assert float(difference.norm()) == pytest.approx(1, abs=1e-6)


OPTIMIZERS: list[Callable[[Any], torch.optim.Optimizer]] = [
    lambda values: torch.optim.Adam(values, lr=0.01),
    lambda values: torch.optim.AdamW(values, lr=0.01, amsgrad=True),
    lambda values: torch.optim.SGD(values, lr=0.1, momentum=0.9, nesterov=True),
    lambda values: torch.optim.RMSprop(values, lr=0.01, centered=True),
    lambda values: torch.optim.NAdam(values, lr=0.01),
]


@pytest.mark.parametrize("make_optimizer", OPTIMIZERS)
def test_resuming_is_bit_identical(
    make_optimizer: Callable[[Any], torch.optim.Optimizer],
) -> None:
    def start() -> tuple[Net, PrivateOptimizer]:
        model = net(torch.float32)
        return model, private(model, make_optimizer(model.parameters()), noise_multiplier=0.7)

    def train(optimizer: PrivateOptimizer, steps: range) -> None:
        sampler = PoissonSampler(EXAMPLES, 8, "s")
        for step in steps:
            optimizer.step(split(sampler.batch(step), 4, torch.float32))

    whole, optimizer = start()
    train(optimizer, range(9))
    first, optimizer = start()
    train(optimizer, range(4))
    file = io.BytesIO()
    torch.save({"model": first.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    resumed, optimizer = start()
    resumed.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    train(optimizer, range(4, 9))
    assert torch.equal(parameters(resumed), parameters(whole))
    assert not torch.equal(parameters(first), parameters(whole))


def test_empty_batch_takes_its_step() -> None:
    model = net()
    adam = torch.optim.Adam(model.parameters())
    before = parameters(model)
    statistics = private(model, adam, noise_multiplier=1.0).step([])
    assert (parameters(model) != before).all()
    assert all(int(state["step"]) == 1 for state in adam.state.values())
    assert int(statistics.sampled_examples) == 0
    assert float(statistics.norm_sum) == 0


def test_statistics() -> None:
    model = net()
    inputs, labels = data()
    norms, _ = make_engine("loop", model, HEAD).norms(
        inputs, labels, torch.ones(EXAMPLES, dtype=torch.bool)
    )
    bound = float(norms[:11].median())
    spoiled = inputs.clone()
    spoiled[3] = torch.nan

    def batches() -> Iterator[MicroBatch]:
        for padded, mask in microbatches(np.arange(11), 4):
            rows = torch.from_numpy(padded)
            yield spoiled[rows], labels[rows], torch.from_numpy(mask)

    found = private(model, sgd(model), FlatClipping(bound)).step(batches())
    kept = [row for row in range(11) if row != 3]
    assert int(found.sampled_examples) == 11
    assert int(found.nonfinite_examples) == 1
    assert int(found.clipped_examples) == int((norms[kept] > bound).sum())
    torch.testing.assert_close(found.norm_sum, norms[kept].sum())
    assert parameters(model).isfinite().all()


@pytest.mark.parametrize("allocated", [0, 1, 4])
def test_a_first_step_that_runs_out_of_memory_can_be_taken_again(
    allocated: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the one that allocates Adam's averages, parameter by parameter."""

    def train(fails: bool) -> Tensor:
        model = net(torch.float32)
        adam = torch.optim.Adam(model.parameters(), lr=0.1, fused=True)
        optimizer = private(model, adam, noise_multiplier=1.0)
        batch = partial(split, np.arange(11), 4, torch.float32)
        optimizer.engine.norms(*next(batch()))
        if fails:
            with monkeypatch.context() as patch:
                original, averages = torch.zeros_like, iter(range(100))

                def allocate(like: Tensor, **options: Any) -> Tensor:
                    if next(averages) == allocated:
                        raise torch.OutOfMemoryError("CUDA out of memory.")
                    return original(like, **options)

                patch.setattr(torch, "zeros_like", allocate)
                with pytest.raises(torch.OutOfMemoryError):
                    optimizer.step(batch())
        for _ in range(3):
            optimizer.step(batch())
        return parameters(model)

    assert torch.equal(train(fails=True), train(fails=False))


def test_optimizer_must_hold_the_trainable_parameters() -> None:
    model = net()
    with pytest.raises(ValueError, match=r"lacks norm\.weight, norm\.bias and"):
        private(model, torch.optim.SGD(model.head.parameters(), lr=1.0))
    model.norm.requires_grad_(False)
    with pytest.raises(ValueError, match="has 2 that do not train"):
        private(model, sgd(model))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        *(({"noise_multiplier": value}, "noise multiplier") for value in (-1.0, np.inf, np.nan)),
        ({"clipping": NoClipping(), "noise_multiplier": 1.0}, "without clipping gives no privacy"),
        ({"batch_size": 0}, "expected batch size 0"),
    ],
)
def test_impossible_settings(settings: dict[str, Any], message: str) -> None:
    model = net()
    with pytest.raises(ValueError, match=message):
        private(model, sgd(model), **settings)


@pytest.mark.parametrize("fused", [False, True])
def test_parameters_may_lie_in_memory_in_another_order(fused: bool) -> None:
    ends = []
    for transposed in (False, True):
        model = net(torch.float32)
        if transposed:
            weight = model.head.weight.detach().t().contiguous().t()
            model.head.weight = nn.Parameter(weight)
        optimizer = private(model, torch.optim.Adam(model.parameters(), lr=0.1, fused=fused))
        for _ in range(3):
            optimizer.step(split(np.arange(EXAMPLES), 8, torch.float32))
        ends.append(parameters(model))
    torch.testing.assert_close(*ends)
