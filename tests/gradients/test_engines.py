"""Every engine gives the per-example gradients of the loop over single examples."""

from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from tests.gradients.tiny_models import CASES, EACH_ENGINE, ENGINES_ON_IMAGES, Case, make
from torch import nn

from dpsweep.gradients import GradientEngine, GradientSum, make_engine
from dpsweep.gradients.engines import LinearEngine
from dpsweep.gradients.loop import LoopEngine
from dpsweep.study.clipping import FlatClipping, NoClipping

UNKNOWN = {
    "expanded": {name for name in CASES if name.endswith("-all")},
    "opacus": {"distilbert-all", "convolutions-all", "resnet-film", "resnet-all"},
}
PAIRS = [
    ("linear", "linear-head"),
    *(
        (engine, name)
        for engine in ("expanded", "bookkeeping", "vmap", "opacus")
        for name in CASES
        if name not in UNKNOWN.get(engine, ())
    ),
]
each_engine = pytest.mark.parametrize(("engine", "name"), EACH_ENGINE)


def build(engine: str, case: Case) -> GradientEngine:
    return make_engine(engine, case.model, case.head)


def clipped_sum(engine: GradientEngine, case: Case, bound: float) -> GradientSum:
    return engine.clipped_sum(case.inputs, case.labels, case.mask, FlatClipping(bound))


def middle_norm(case: Case) -> float:
    """Return a clipping bound that clips some examples and not others."""
    norms, _ = build("loop", case).norms(case.inputs, case.labels, case.mask)
    return float(norms[case.mask].median())


def assert_close(found: GradientSum, wanted: GradientSum, tolerance: float) -> None:
    assert found.gradients.keys() == wanted.gradients.keys()
    largest = max(float(gradient.abs().max()) for gradient in wanted.gradients.values())
    for name, gradient in wanted.gradients.items():
        assert found.gradients[name].shape == gradient.shape
        # The loss does not depend on the bias of attention keys: their gradients are rounding.
        least = 1e-4 if gradient.dtype == torch.float64 else 1e-2
        scale = max(float(gradient.abs().max()), least * largest)
        torch.testing.assert_close(
            found.gradients[name].double(),
            gradient.double(),
            rtol=0,
            atol=tolerance * scale,
            msg=name,
        )
    for ours, theirs in ((found.norms, wanted.norms), (found.losses, wanted.losses)):
        torch.testing.assert_close(ours.to(theirs), theirs, rtol=tolerance, atol=tolerance * 1e-3)
    assert torch.equal(found.nonfinite, wanted.nonfinite)


@pytest.mark.parametrize(("engine", "name"), PAIRS)
def test_engine_equals_loop(engine: str, name: str) -> None:
    """In float64 with its precision; a linear layer's norms are float32 in any case."""
    tolerance = 1e-5 if engine == "linear" else 1e-10
    case = make(name)
    # Opacus leaves its hooks on a model.
    loop, made = build("loop", case), build(engine, make(name))
    wanted_norms, wanted_head = loop.norms(case.inputs, case.labels, case.mask)
    norms, head_norms = (
        each.to(wanted_norms) for each in made.norms(case.inputs, case.labels, case.mask)
    )
    torch.testing.assert_close(norms, wanted_norms, rtol=tolerance, atol=0)
    torch.testing.assert_close(head_norms, wanted_head, rtol=tolerance, atol=0)
    assert (norms == 0).tolist() == [False] * 5 + [True]
    if not name.endswith("-head"):
        assert (head_norms[:-1] < norms[:-1]).all()
    bound = middle_norm(case)
    wanted = clipped_sum(loop, case, bound)
    assert_close(clipped_sum(made, case, bound), wanted, tolerance)
    rows, _ = loop.gradients(case.inputs, case.labels)
    found, nonfinite = made.gradients(case.inputs, case.labels)
    assert not nonfinite.any()
    atol = tolerance * float(rows.abs().max())
    torch.testing.assert_close(found.to(rows), rows, rtol=0, atol=atol)


@pytest.mark.parametrize(("engine", "name"), [*EACH_ENGINE, ("bookkeeping", "wide_resnet-all")])
def test_engine_equals_loop_in_float32(engine: str, name: str) -> None:
    case = make(name, torch.float32)
    bound = middle_norm(case)
    # Gradients go on through standardised weights.
    tolerance = 2e-5 if name == "wide_resnet-all" else 1e-5
    wanted = clipped_sum(build("loop", case), case, bound)
    assert_close(clipped_sum(build(engine, case), case, bound), wanted, tolerance)


def test_the_loop_writes_out_the_gradients_of_autograd() -> None:
    case = make("vit-lora")
    found, _ = build("loop", case).gradients(case.inputs, case.labels)
    parameters = [each for each in case.model.parameters() if each.requires_grad]
    for row, x, y in zip(found, case.inputs, case.labels, strict=True):
        loss = F.cross_entropy(case.model(x[None]), y[None])
        alone = torch.autograd.grad(loss, parameters)
        torch.testing.assert_close(row, torch.cat([each.flatten() for each in alone]))


@pytest.mark.parametrize(("engine", "name"), ENGINES_ON_IMAGES)
def test_gradients_that_are_not_finite_are_zero_and_told(engine: str, name: str) -> None:
    case = make(name, torch.float32)
    inputs = case.inputs.clone()
    inputs[1] = float("nan")
    found, nonfinite = build(engine, case).gradients(inputs, case.labels)
    assert nonfinite.nonzero().flatten().tolist() == [1]
    assert not found[1].any()
    assert found.isfinite().all()


@each_engine
def test_example_leaves_others_alone(engine: str, name: str) -> None:
    """With example j replaced, the sum over the others and their norms are the same."""
    case = make(name)
    mask = torch.tensor([True, True, False, True, True, True])
    bound = middle_norm(case)
    made = build(engine, case)
    before = made.clipped_sum(case.inputs, case.labels, mask, FlatClipping(bound))
    inputs, labels = case.inputs.clone(), case.labels.clone()
    inputs[2] = inputs[2].roll(1, dims=-1)
    labels[2] = (labels[2] + 1) % 5
    after = made.clipped_sum(inputs, labels, mask, FlatClipping(bound))
    assert_close(after, before, 1e-12)
    alone, _ = made.norms(case.inputs, case.labels, torch.ones_like(mask))
    changed, _ = made.norms(inputs, labels, torch.ones_like(mask))
    assert (alone - changed).abs()[2] > 1e-3
    torch.testing.assert_close(alone[mask], changed[mask], rtol=1e-12, atol=0)


@each_engine
def test_mask_is_the_same_as_leaving_out(engine: str, name: str) -> None:
    case = make(name)
    bound = middle_norm(case)
    made = build(engine, case)
    masked = clipped_sum(made, case, bound)
    kept = case.mask
    alone = made.clipped_sum(
        case.inputs[kept], case.labels[kept], case.mask[kept], FlatClipping(bound)
    )
    for key, gradient in masked.gradients.items():
        torch.testing.assert_close(gradient, alone.gradients[key], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(masked.norms[kept], alone.norms, rtol=1e-12, atol=0)


@each_engine
def test_model_is_left_as_it_was(engine: str, name: str) -> None:
    case = make(name)
    before = {key: value.clone() for key, value in case.model.state_dict().items()}
    made = build(engine, case)
    first = clipped_sum(made, case, 1.0)
    again = clipped_sum(build(engine, case), case, 1.0)
    assert_close(again, first, 1e-14)
    assert all(parameter.grad is None for parameter in case.model.parameters())
    assert not case.model.training
    for key, value in case.model.state_dict().items():
        assert torch.equal(value, before[key])
    losses = F.cross_entropy(case.model(case.inputs), case.labels, reduction="none")
    losses = torch.where(case.mask, losses, 0)
    torch.testing.assert_close(losses.to(first.losses), first.losses)


class EveryRule(nn.Module):
    """What few parameters are used for: copies, a head that has none, and numbers that they meet."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 8, stride=8).requires_grad_(False)
        self.group_norm = nn.GroupNorm(2, 8)
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.norm, self.adapter, self.rms = nn.LayerNorm(8), nn.Linear(8, 8), nn.RMSNorm(8)
        self.head = nn.Conv2d(8, 5, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = F.relu_(self.group_norm(self.stem(images))).flatten(2).mT
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1)
        x = x + self.adapter(self.norm(x))
        return self.head(self.rms(x).mean(1)[:, :, None, None]).flatten(1)


@pytest.mark.parametrize(
    "name",
    ["rules", *(pytest.param(name, marks=pytest.mark.slow) for name in ("vit-lora", "bit-film"))],
)
def test_expanded_engine_is_one_graph(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The forward pass can be captured as a whole, which is what compiling it needs."""
    case = make("vit-film" if name == "rules" else name)
    if name == "rules":
        head = frozenset({"head.weight", "head.bias"})
        case = replace(case, model=EveryRule().double(), head=head)
    bound = middle_norm(case)
    wanted = clipped_sum(build("loop", case), case, bound)
    torch.compiler.reset()
    # Without generating code, which takes half a minute.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    engine = make_engine("expanded", case.model, case.head, compile=True)
    assert_close(clipped_sum(engine, case, bound), wanted, 1e-10)
    # On a CPU, batches have as many rows as they have examples.
    fewer = [each[:3] for each in (case.inputs, case.labels, case.mask)]
    alone = build("loop", case).clipped_sum(*fewer, FlatClipping(bound))
    assert_close(engine.clipped_sum(*fewer, FlatClipping(bound)), alone, 1e-10)


@pytest.mark.parametrize(
    ("engine", "name"),
    [
        ("expanded", "vit-film"),
        ("bookkeeping", "vit-all"),
        ("vmap", "vit-all"),
        ("loop", "vit-all"),
    ],
)
def test_autocast_keeps_norms_and_sums_in_float32(engine: str, name: str) -> None:
    case = make(name, torch.float32)
    bound = middle_norm(case)
    exact = clipped_sum(build(engine, case), case, bound)
    made = make_engine(engine, case.model, case.head, autocast=torch.bfloat16)
    half = clipped_sum(made, case, bound)
    assert half.norms.dtype == half.losses.dtype == torch.float32
    assert not torch.equal(half.norms, exact.norms)
    torch.testing.assert_close(half.norms, exact.norms, rtol=0.03, atol=0)
    alone = [
        made.clipped_sum(
            case.inputs[[row]], case.labels[[row]], case.mask[[row]], FlatClipping(1e-5)
        )
        for row in range(5)
    ]
    for each in alone:
        wide = torch.float64 if engine == "expanded" else torch.float32
        assert {gradient.dtype for gradient in each.gradients.values()} == {wide}
        flat = torch.cat([gradient.float().flatten() for gradient in each.gradients.values()])
        # A norm taken from numbers in bfloat16 would miss by 1e-3.
        torch.testing.assert_close(flat.norm(), torch.tensor(1.0), rtol=0, atol=2e-5)


@pytest.mark.parametrize("bound", [None, 0.5, 5.0])
def test_under_autocast_the_linear_engines_gradients_are_those_of_the_loop_to_its_precision(
    bound: float | None,
) -> None:
    """Of a layer whose bias is as large as its weights."""
    case, head = make("linear-head", torch.float32, examples=40), frozenset({"weight", "bias"})
    layer, inputs, labels, mask = case.model, case.inputs, case.labels, case.mask
    assert isinstance(layer, nn.Linear)
    with torch.no_grad():
        layer.bias.copy_(torch.tensor([3.0, -2.0, 0.5, -1.0, 0.0]))
    clipping = NoClipping() if bound is None else FlatClipping(bound)
    engine = LinearEngine(layer, autocast=torch.bfloat16)
    found = engine.clipped_sum(inputs, labels, mask, clipping)
    wanted = LoopEngine(layer, head).clipped_sum(inputs, labels, mask, clipping)
    # bfloat16 has 8 bits: logits differ by a share of 2^-8 of their largest term.
    torch.testing.assert_close(found.losses, wanted.losses, rtol=0.05, atol=0.05)
    torch.testing.assert_close(found.norms, wanted.norms, rtol=0.05, atol=0.05)
    for name in head:
        difference = found.gradients[name].float() - wanted.gradients[name]
        assert difference.norm() < 0.05 * wanted.gradients[name].norm()
    # What is left of the example without its bias is another gradient.
    rows, _ = engine.gradients(inputs, labels)
    exact, _ = LoopEngine(layer, head).gradients(inputs, labels)
    assert (rows - exact).norm() < 0.05 * exact.norm()
    with torch.no_grad():
        layer.bias.zero_()
    without, _ = LoopEngine(layer, head).gradients(inputs, labels)
    assert (without - exact).norm() > 0.25 * exact.norm()
