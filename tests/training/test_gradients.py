"""Every engine gives the per-example gradients of the loop over single examples."""

from functools import partial

import pytest
import torch
from tests.training.tiny_models import CASES, FEW_PARAMETERS, Case, make

from dpsweep.clipping import FlatClipping
from dpsweep.training.gradients import GradientEngine, GradientSum, make_engine
from dpsweep.training.gradients.loop import LoopEngine

PAIRS = [
    *(("expanded", name) for name in FEW_PARAMETERS),
    *(("bookkeeping", name) for name in CASES),
    *(("vmap", name) for name in CASES),
    *(("opacus", name) for name in CASES if name not in ("distilbert-all", "convolutions-all")),
]
each_pair = pytest.mark.parametrize(("engine", "name"), PAIRS)
# One case for each way in which an engine handles gradients.
each_engine = pytest.mark.parametrize(
    ("engine", "name"),
    [
        ("loop", "vit-film"),
        ("expanded", "vit-lora"),
        ("expanded", "bit-film"),
        ("bookkeeping", "vit-all"),
        ("bookkeeping", "bit-all"),
        ("bookkeeping", "convolutions-all"),
        ("bookkeeping", "distilbert-all"),
        ("vmap", "vit-lora"),
        ("vmap", "convolutions-all"),
        ("opacus", "vit-film"),
        ("opacus", "bit-all"),
    ],
)


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
    torch.testing.assert_close(found.norms, wanted.norms, rtol=tolerance, atol=0)
    torch.testing.assert_close(found.losses, wanted.losses, rtol=tolerance, atol=tolerance)
    assert torch.equal(found.nonfinite, wanted.nonfinite)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)], ids=["64", "32"]
)
@each_pair
def test_engine_equals_loop(engine: str, name: str, dtype: torch.dtype, tolerance: float) -> None:
    if name == "wide_resnet-all":
        tolerance *= 2  # gradients go on through standardised weights
    case = make(name, dtype)
    bound = middle_norm(case)
    wanted = clipped_sum(build("loop", case), case, bound)
    found = clipped_sum(build(engine, case), case, bound)
    assert_close(found, wanted, tolerance)


@each_pair
def test_norms_equal_loop(engine: str, name: str) -> None:
    case = make(name)
    wanted, wanted_head = build("loop", case).norms(case.inputs, case.labels, case.mask)
    norms, head_norms = build(engine, case).norms(case.inputs, case.labels, case.mask)
    torch.testing.assert_close(norms, wanted, rtol=1e-10, atol=0)
    torch.testing.assert_close(head_norms, wanted_head, rtol=1e-10, atol=0)
    assert (norms == 0).tolist() == [False] * 5 + [True]
    if not name.endswith("-head"):
        assert (head_norms[:-1] < norms[:-1]).all()


@each_pair
def test_written_out_gradients_equal_loop(engine: str, name: str) -> None:
    case = make(name, torch.float64)
    loop = build("loop", case)
    wanted, _ = loop.gradients(case.inputs, case.labels)
    alone = [
        torch.cat([gradients[each].flatten() for each in loop.parameters])
        for _, gradients in LoopEngine(case.model, case.head)._per_example(case.inputs, case.labels)
    ]
    torch.testing.assert_close(wanted, torch.stack(alone))
    found, nonfinite = build(engine, case).gradients(case.inputs, case.labels)
    assert not nonfinite.any()
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-10 * float(wanted.abs().max()))


@each_engine
def test_gradients_that_are_not_finite_are_zero_and_told(engine: str, name: str) -> None:
    case = make(name, torch.float32)
    if not case.inputs.is_floating_point():
        pytest.skip("tokens are always finite")
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
    losses = torch.nn.functional.cross_entropy(
        case.model(case.inputs), case.labels, reduction="none"
    )
    torch.testing.assert_close(torch.where(case.mask, losses, 0), first.losses)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name.startswith("distilbert") else ())
        for name in FEW_PARAMETERS
    ],
)
def test_expanded_engine_is_one_graph(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The forward pass can be captured as a whole, which is what compiling it needs."""
    case = make(name)
    bound = middle_norm(case)
    wanted = clipped_sum(build("expanded", case), case, bound)
    torch.compiler.reset()
    # Without generating code, which takes half a minute.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    engine = make_engine("expanded", case.model, case.head, compile=True)
    assert_close(clipped_sum(engine, case, bound), wanted, 1e-10)
    # On a CPU, batches have as many rows as they have examples.
    fewer = [each[:3] for each in (case.inputs, case.labels, case.mask)]
    alone = build("expanded", case).clipped_sum(*fewer, FlatClipping(bound))
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
