"""No example contributes more than 1 to a sum, whatever its inputs."""

import math

import pytest
import torch
from tests.gradients.reference import build
from tests.gradients.tiny_models import ENGINES_ON_IMAGES, Case, make
from timm.layers import StdConv2d
from torch import Tensor, nn

from dpsweep.gradients import GradientEngine, GradientSum, make_engine
from dpsweep.gradients.per_example import Convolutions, Lookups, OuterProducts
from dpsweep.models.architectures import seeded
from dpsweep.models.wide_resnet import StandardizedConv2d
from dpsweep.study.clipping import AutomaticClipping, FlatClipping, NoClipping

each_engine = pytest.mark.parametrize(("engine", "name"), ENGINES_ON_IMAGES)
of_any_model = pytest.mark.parametrize(
    "engine", ["loop", "expanded", "bookkeeping", "vmap", "opacus"]
)
RULES = FlatClipping(1e-5), FlatClipping(1e4), AutomaticClipping()


def flat(result: GradientSum) -> Tensor:
    return torch.cat([gradient.flatten().double() for gradient in result.gradients.values()])


def longest(made: GradientEngine, inputs: Tensor, labels: Tensor, bound: float) -> float:
    """Return the largest length of an example's contribution."""
    rule, examples = FlatClipping(bound), torch.eye(len(labels), dtype=torch.bool)
    sums = [flat(made.clipped_sum(inputs, labels, alone, rule)) for alone in examples]
    return float(torch.stack([each.norm() for each in sums]).max())  # NaN if any is


def with_example(case: Case, row: Tensor) -> Tensor:
    """Return the inputs with example 1 replaced."""
    inputs = case.inputs.clone()
    inputs[1] = row
    return inputs


@each_engine
def test_contribution_is_at_most_one(engine: str, name: str) -> None:
    case = make(name, torch.float32, examples=2)
    made = build(case, engine)
    alone = torch.tensor([False, True])
    for scale in (0.0, 1e-30, 1e-3, 1.0, 1e10, 1e30, math.inf):
        inputs = with_example(case, case.inputs[1] * scale)
        for clipping in RULES:
            result = flat(made.clipped_sum(inputs, case.labels, alone, clipping))
            assert result.isfinite().all(), (scale, clipping)
            assert float(result.norm()) <= 1 + 2e-6, (scale, clipping)


@pytest.mark.parametrize("scale", [math.nan, 1e38])
@each_engine
def test_nonfinite_examples_are_zeroed_and_counted(engine: str, name: str, scale: float) -> None:
    """The sum equals that of the other examples, although all are computed together."""
    case = make(name, torch.float32, examples=4)
    made = build(case, engine)
    inputs = with_example(case, case.inputs[1] * scale)
    result = made.clipped_sum(inputs, case.labels, case.mask, FlatClipping(1.0))
    norms, _ = made.norms(inputs, case.labels, torch.ones_like(case.mask))
    bad = ~norms.isfinite()
    if scale != 1e38:
        assert bad.tolist() == [False, True, False, False]
    others = case.mask & ~bad
    wanted = made.clipped_sum(case.inputs, case.labels, others, FlatClipping(1.0))
    for key, gradient in wanted.gradients.items():
        if scale != 1e38:
            torch.testing.assert_close(result.gradients[key], gradient, rtol=1e-5, atol=1e-6)
        assert result.gradients[key].isfinite().all()
    assert torch.equal(result.nonfinite, bad & case.mask)
    assert (result.norms[bad] == 0).all()
    # Masked examples are not counted.
    hidden = made.clipped_sum(inputs, case.labels, case.mask & ~bad, FlatClipping(1.0))
    assert not hidden.nonfinite.any()
    rows, nonfinite = made.gradients(inputs, case.labels)
    assert rows.isfinite().all() and not rows[nonfinite].any()
    assert scale == 1e38 or nonfinite.tolist() == bad.tolist()


@each_engine
def test_diverged_model_gives_zero(engine: str, name: str) -> None:
    case = make(name, torch.float32)
    for parameter in case.model.parameters():
        if parameter.requires_grad:
            nn.init.constant_(parameter, math.nan)
    result = build(case, engine).clipped_sum(*case.batch, FlatClipping(1.0))
    assert (flat(result) == 0).all()
    assert torch.equal(result.nonfinite, case.mask)


@of_any_model
def test_zero_gradient_stays_zero(engine: str) -> None:
    made = make_engine(engine, nn.Linear(3, 4, bias=False), frozenset({"weight"}))
    batch = torch.tensor([[0.0], [1.0]]).expand(2, 3), torch.arange(2), torch.tensor([True, False])
    for clipping in RULES:
        result = made.clipped_sum(*batch, clipping)
        assert (result.gradients["weight"] == 0).all()
        assert not result.nonfinite.any()
    assert made.norms(*batch)[0][0] == 0


@pytest.mark.parametrize("name", ["expanded", "linear"])
def test_sum_does_not_depend_on_micro_batches(name: str) -> None:
    """An added example moves all later ones to other places; the sum changes only by its gradient."""
    generator = torch.Generator().manual_seed(0)
    examples, width = 1000, 30
    head = nn.Linear(width, 4)
    nn.init.normal_(head.weight, std=0.1, generator=generator)
    nn.init.zeros_(head.bias)
    engine = make_engine(
        name, head if name == "linear" else nn.Sequential(nn.LayerNorm(width), head)
    )
    inputs = torch.randn(width, generator=generator) + 1e-3 * torch.randn(
        examples, width, generator=generator
    )

    def total(rows: Tensor) -> Tensor:
        parts = [
            engine.clipped_sum(inputs[some], torch.zeros_like(some), some >= 0, FlatClipping(1e-3))
            for some in torch.split(rows, 64)
        ]
        return torch.stack([flat(part) for part in parts]).sum(0)

    whole = torch.arange(examples)
    for left_out in (0, 434):
        difference = total(whole) - total(whole[whole != left_out])
        assert float(difference.norm()) == pytest.approx(1, abs=2e-6)
        # Gradients in other micro-batches are the same except for rounding.
        alone = total(whole[whole == left_out])
        torch.testing.assert_close(difference, alone, rtol=0, atol=2e-6)


@pytest.mark.parametrize("engine", ["loop", "expanded", "bookkeeping", "vmap"])
def test_norms_of_many_parameters(engine: str) -> None:
    """torch's norm of a long vector is 2e-4 too small at this size, so its factor is too large."""
    model = nn.Sequential(nn.Linear(2000, 2000, bias=False), nn.Linear(2000, 2, bias=False))
    made = make_engine(engine, model, frozenset({"1.weight"}))
    inputs = torch.randn(2, 2000, generator=torch.Generator().manual_seed(0))
    assert longest(made, inputs, torch.arange(2), 1e-5) == pytest.approx(1, abs=2e-6)


class PrecisionSpy(NoClipping):
    """A rule that records the precision of a GPU's multiplications at every call."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def note(self, *_: object) -> None:
        settings = torch.backends.cuda.matmul, torch.backends.cudnn.conv
        self.found.extend(each.fp32_precision for each in settings)

    def factors(self, norms: Tensor) -> Tensor:
        self.note()
        return super().factors(norms)


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
@of_any_model
def test_sums_are_not_in_reduced_precision(engine: str, autocast: torch.dtype | None) -> None:
    """Forward passes are not in reduced precision either, as a hook records."""
    if engine == "opacus" and autocast is not None:
        pytest.skip("refuses autocast")
    case = make("vit-film", torch.float32)
    before = torch.backends.cudnn.allow_tf32
    made = make_engine(engine, case.model, case.head, autocast=autocast)
    spy, forward = PrecisionSpy(), PrecisionSpy()
    hook = case.model.register_forward_pre_hook(forward.note)
    made.clipped_sum(case.inputs, case.labels, case.mask, spy)
    made.norms(case.inputs, case.labels, case.mask)
    hook.remove()
    assert set(spy.found) == set(forward.found) == {"ieee"}
    assert torch.backends.cudnn.allow_tf32 == before


@pytest.mark.parametrize("difference", [0.0, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1.0])
@pytest.mark.parametrize("kind", ["linear", "convolution", "embedding"])
def test_norms_of_tokens_that_cancel(kind: str, difference: float) -> None:
    """Norms from factors are not too small when a gradient is a small difference of large terms."""
    generator = torch.Generator().manual_seed(0)
    g = torch.randn(20, 4, 96, generator=generator)
    a = torch.randn(20, 4, 96, generator=generator)
    noise = torch.randn(20, 4, 96, generator=generator)
    outputs = torch.cat([g, -g + difference * noise], dim=1)
    inputs = torch.cat([a, a], dim=1)
    gradients: OuterProducts | Convolutions | Lookups
    if kind == "linear":
        gradients = OuterProducts("w", torch.Size((96, 96)), inputs, outputs)
        exact = outputs.double().mT @ inputs.double()
    elif kind == "convolution":
        pixels = (inputs.mT[..., None], outputs.mT[..., None])
        gradients = Convolutions(
            "w", torch.Size((96, 96, 1, 1)), *pixels, (1, 1), (0, 0), (1, 1), 1
        )
        exact = outputs.double().mT @ inputs.double()
    else:
        indices = torch.arange(4).repeat(20, 2)
        gradients = Lookups("w", torch.Size((4, 96)), indices, outputs)
        exact = outputs.double()[:, :4] + outputs.double()[:, 4:]
    norms = gradients.squared_norms().sqrt()
    lengths = exact.flatten(1).norm(dim=1)
    contributions = FlatClipping(1e-5).factors(norms).double() * lengths
    assert float(contributions.max()) <= 1.02
    if difference >= 1e-2:
        torch.testing.assert_close(norms.double(), lengths, rtol=1e-2, atol=0)


@pytest.mark.parametrize("amplitude", [1.0, 1e-3])
@pytest.mark.parametrize(
    ("padding", "stride", "size"), [(0, 1, 8), (1, 1, 8), (0, 1, 32), (1, 2, 32)]
)
def test_standardised_convolutions_on_nearly_uniform_images(
    padding: int, stride: int, size: int, amplitude: float
) -> None:
    """Standardisation removes the mean of the images, which is nearly all of a gradient."""
    generator = torch.Generator().manual_seed(0)
    with seeded(0):
        convolution, head = StandardizedConv2d(3, 16, 3, stride), nn.Linear(16, 10)
    convolution.padding = (padding, padding)
    pooled = nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    model = nn.Sequential(convolution, *pooled, head).requires_grad_(False)
    for trained in (convolution.weight, convolution.gain):
        trained.requires_grad_()
    levels = 2 * torch.rand(10, 1, 1, 1, generator=generator)
    images = levels + amplitude * torch.randn(10, 3, size, size, generator=generator)
    assert longest(make_engine("bookkeeping", model), images, torch.arange(10), 1e-5) < 1 + 1e-6


@pytest.mark.parametrize("amplitude", [1e-2, 1.0, 1e2])
def test_norms_along_standardised_weights_are_at_least_their_rounding_error(
    amplitude: float,
) -> None:
    """If images equal the standardised kernels, standardisation removes nearly all of a gradient."""
    with seeded(0):
        convolution, head = StdConv2d(3, 16, 3, padding=0), nn.Linear(16, 10)
    model = nn.Sequential(convolution, nn.ReLU(), nn.Flatten(), head.requires_grad_(False))
    weight = convolution.weight.detach().flatten(1)
    kernels = (weight - weight.mean(1, keepdim=True)) / weight.std(1, keepdim=True)
    images, labels = amplitude * kernels.view(-1, 3, 3, 3), torch.arange(16) % 10
    engine = make_engine("bookkeeping", model)
    assert longest(engine, images, labels, 1e-12) < 1 + 1e-3
    assert all(each.isfinite().all() for each in engine.norms(images, labels, labels >= 0))
