"""`auto` takes the fastest engine that gives the gradients of the loop with the model at hand."""

import logging
import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.gradients.tiny_models import CLASSES, Net, TokensFirst, make
from timm.layers import LayerScale
from torch import Tensor, nn

from dpsweep.gradients import GradientSum, UnsupportedModelError, make_engine
from dpsweep.gradients.checks import CheckedEngine
from dpsweep.gradients.engines import ExpandedEngine
from dpsweep.study.clipping import FlatClipping

HEAD = frozenset({"head.weight", "head.bias"})
TOKENS, WIDTH, EXAMPLES = 4, 40, 5


class Scale(nn.Module):
    """All ways to write a scale and a bias."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("plain", "in_place", "swapped", "affine", "one", "shaped", "shift"):
            setattr(self, name, nn.Parameter(torch.ones(1 if name == "one" else WIDTH)))

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.plain + self.shift
        x = (1 * x).mul_(self.in_place)
        x = torch.addcmul(self.affine, self.swapped, x)
        x = self.one * x.square() - self.one
        return x / self.shaped.view(1, 1, -1)


class Positions(nn.Module):
    """A class token, positions and a register, broadcast in different ways."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.register = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.positions = nn.Parameter(torch.randn(1, TOKENS + 2, WIDTH))
        self.first = nn.Parameter(torch.randn(1, TOKENS + 2, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        tokens = [self.token.expand(len(x), -1, -1), self.register.repeat(len(x), 1, 1), x]
        x = torch.cat(tokens, dim=1)
        x = x + self.positions
        x += self.first[:, :1]
        return x.tanh()


class Windows(nn.Module):
    """Attention in two windows, with a table of relative positions and biases in parts."""

    bias_values: Tensor
    places: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.q_bias = nn.Parameter(torch.randn(WIDTH))
        self.v_bias = nn.Parameter(torch.randn(WIDTH))
        self.table = nn.Parameter(torch.randn(3, 2))
        self.scale = nn.Parameter(torch.randn(2, 1, 1))
        self.norm = nn.LayerNorm(WIDTH)
        self.register_buffer("bias_values", torch.zeros(WIDTH))
        self.register_buffer("places", torch.tensor([[0, 1], [2, 0]]))

    def forward(self, x: Tensor) -> Tensor:
        windows = self.norm(x.reshape(-1, 2, WIDTH))
        bias = torch.cat([self.q_bias, self.bias_values, self.v_bias])
        qkv = F.linear(windows, self.qkv.weight, bias)
        q, k, v = qkv.view(len(windows), 2, 3, 2, WIDTH // 2).permute(2, 0, 3, 1, 4)
        table = self.table[self.places.view(-1)].view(2, 2, 2).permute(2, 0, 1).unsqueeze(0)
        scores = q @ k.mT * self.scale.clamp(max=2).exp() + 16 * table.sigmoid()
        y = scores.softmax(-1) @ v + F.scaled_dot_product_attention(q, k, v, attn_mask=table)
        return y.transpose(1, 2).reshape_as(x)


class Networked(nn.Module):
    """A bias that a small network makes of constants (Swin V2)."""

    coordinates: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(inplace=True), nn.Linear(8, WIDTH))
        self.register_buffer("coordinates", torch.randn(1, TOKENS, 2))

    def forward(self, x: Tensor) -> Tensor:
        positions: Tensor = self.net(self.coordinates)
        return (x + positions).tanh()


class Shared(nn.Module):
    """One parameter under two names."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.one, self.two = nn.Linear(width, width), nn.Linear(width, width)
        self.two.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        part, rest = x.split([self.width, WIDTH - self.width], dim=2)
        return torch.cat([self.two(self.one(part).tanh()), rest], dim=2)


class Again(nn.Module):
    """One layer under two names."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.one = nn.Linear(width, width)
        self.two = nn.Sequential(self.one, nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        part, rest = x.split([self.width, WIDTH - self.width], dim=2)
        return torch.cat([self.one(self.two(part)), rest], dim=2)


class Flattened(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.flatten(0, 1)).view_as(input)


class Recurrent(nn.LSTM):
    def forward(self, input: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(input)[0]


class Asking(nn.Linear):
    """Looks at values, which no vectorised function can."""

    def forward(self, input: Tensor) -> Tensor:
        assert not input.isnan().any()
        return F.conv1d(input.mT, self.weight[:, :, None], self.bias).mT


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(x, scale)
        return x * scale

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        x, scale = ctx.saved_tensors
        return gradient * scale, (gradient * x).sum((0, 1))


class OfAutograd(nn.Module):
    """A function with a backward pass of its own, which only autograd sees."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = Scaled.apply(x, self.scale)
        return y


LAYERS: dict[str, tuple[nn.Module, str]] = {
    "scales": (Scale(), "bookkeeping"),
    "LayerScale": (LayerScale(WIDTH), "expanded"),
    "LayerScale in place": (nn.Sequential(nn.Tanh(), LayerScale(WIDTH, inplace=True)), "expanded"),
    "RMSNorm": (nn.RMSNorm(WIDTH), "expanded"),
    "positions": (Positions(), "bookkeeping"),
    "windows": (Windows(), "bookkeeping"),
    "network of constants": (Networked(), "bookkeeping"),
    "rows of tokens": (Flattened(WIDTH, WIDTH), "expanded"),
    "two names, few tokens": (Shared(4), "expanded"),
    "two names, factors": (Shared(WIDTH), "expanded"),
    "a layer at two places, few tokens": (Again(4), "expanded"),
    "a layer at two places, factors": (Again(WIDTH), "expanded"),
    "tokens first": (TokensFirst(WIDTH, WIDTH), "vmap"),
    "Conv1d": (nn.Conv1d(TOKENS, TOKENS, 1), "vmap"),
    "PReLU": (nn.PReLU(TOKENS), "vmap"),
    "attention": (nn.TransformerEncoderLayer(WIDTH, 2, 8, batch_first=True), "vmap"),
    "LSTM": (Recurrent(WIDTH, WIDTH, batch_first=True), "loop"),
    "looks at values": (Asking(WIDTH, WIDTH), "loop"),
    "function of autograd": (OfAutograd(), "loop"),
}


def batch() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(EXAMPLES, TOKENS, WIDTH, generator=generator, dtype=torch.float64)
    return inputs, torch.arange(EXAMPLES) % CLASSES, torch.arange(EXAMPLES) < EXAMPLES - 1


def assert_equal(found: GradientSum, wanted: GradientSum) -> None:
    torch.testing.assert_close(found.norms, wanted.norms, rtol=1e-9, atol=0)
    for name, gradient in wanted.gradients.items():
        torch.testing.assert_close(found.gradients[name], gradient, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("few", [True, False], ids=["few", "many"])
@pytest.mark.parametrize("name", LAYERS)
def test_auto_gives_the_gradients_of_the_loop(
    name: str, few: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, expected = LAYERS[name]
    net = Net(layer, WIDTH).double().eval()
    if not few:
        monkeypatch.setattr("dpsweep.gradients._FEW_PARAMETERS", 0)
        expected = "bookkeeping" if expected == "expanded" else expected
        # The norm of a sum is not known from the factors of its terms.
        expected = "vmap" if name.endswith("factors") else expected
    engine = make_engine("auto", net, HEAD)
    assert isinstance(engine, CheckedEngine)
    inputs, labels, mask = batch()
    assert engine.choose(inputs, labels)[0] == expected
    wanted = make_engine("loop", net, HEAD)
    bound = FlatClipping(float(wanted.norms(inputs, labels, mask)[0].median()))
    found = engine.clipped_sum(inputs, labels, mask, bound)
    assert_equal(found, wanted.clipped_sum(inputs, labels, mask, bound))
    assert all(type(each) is nn.Parameter for each in net.parameters())
    for ours, theirs in zip(
        engine.norms(inputs, labels, mask), wanted.norms(inputs, labels, mask), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=0)


@pytest.mark.parametrize(
    ("name", "expected"), [("vit-film", "expanded"), ("vit-all", "bookkeeping")]
)
def test_the_choice_leaves_model_and_random_state_alone(name: str, expected: str) -> None:
    case = make(name)
    engine = make_engine("auto", case.model, case.head)
    assert isinstance(engine, CheckedEngine)
    values = {key: each.clone() for key, each in case.model.state_dict().items()}
    before = torch.get_rng_state()
    assert engine.choose(case.inputs, case.labels)[0] == expected
    assert torch.equal(torch.get_rng_state(), before)
    for key, each in case.model.state_dict().items():
        assert torch.equal(each, values[key])


@pytest.mark.parametrize("value", [0.0, float("nan"), float("inf"), 1e30])
def test_the_choice_does_not_depend_on_values(value: float) -> None:
    """A diverged trial that is continued takes the engine that it had."""
    case = make("vit-all")
    for parameter in case.model.parameters():
        nn.init.constant_(parameter, value)
    engine = make_engine("auto", case.model, case.head)
    assert isinstance(engine, CheckedEngine)
    assert engine.choose(case.inputs * value, case.labels)[0] == "bookkeeping"


def test_an_engine_that_is_slow_says_what_it_costs(caplog: pytest.LogCaptureFixture) -> None:
    inputs, labels, mask = batch()
    with caplog.at_level(logging.WARNING):
        made = make_engine("auto", Net(LAYERS["Conv1d"][0], WIDTH).double(), HEAD)
        made.norms(inputs, labels, mask)
        made.norms(inputs, labels, mask)
    (record,) = caplog.records
    assert "engine 'vmap': a step takes" in record.getMessage()
    assert "times as long as one without privacy" in record.getMessage()
    assert "'layer.weight' of a Conv1d is used by conv1d()" in record.getMessage()


SLOW = [
    ("tokens first", True, "'layer.weight'"),
    ("PReLU", True, "'layer.weight' of a PReLU"),
    ("attention", True, "'layer.self_attn.in_proj_weight' of a MultiheadAttention"),
    ("LSTM", True, "'layer.weight_ih_l0' of a Recurrent is used by lstm()"),
    ("looks at values", True, "'layer.weight' of a Asking is used by conv1d()"),
    ("function of autograd", True, "'layer.scale' are used where this engine does not look"),
    ("two names, factors", False, "'layer.one.weight'"),
    ("a layer at two places, factors", False, "'layer.one.weight'"),
]


@pytest.mark.parametrize(("name", "few", "found"), SLOW)
def test_one_line_names_the_layer_and_the_engine_that_computes_it(
    name: str,
    few: bool,
    found: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And how much slower it is; it does not advise to ask for auto, which was asked for."""
    if not few:
        monkeypatch.setattr("dpsweep.gradients._FEW_PARAMETERS", 0)
    layer, expected = LAYERS[name]
    with caplog.at_level(logging.WARNING):
        make_engine("auto", Net(layer, WIDTH).double().eval(), HEAD).norms(*batch())
    (record,) = caplog.records
    said = record.getMessage()
    engine = "vmap" if name.endswith("factors") else expected
    assert re.match(rf"engine '{engine}': a step takes [\d.]+ times as long as one without", said)
    assert found in said and "auto" not in said
    assert len(said) < 300 and "\n" not in said


def test_an_engine_that_is_asked_for_by_name_says_that_it_cannot() -> None:
    """What torch says of a vectorised pass names neither an engine nor a network."""
    net = Net(LAYERS["LSTM"][0], WIDTH).double().eval()
    with pytest.raises(UnsupportedModelError, match=r"^engine 'vmap' cannot compute Net \(.+\)"):
        make_engine("vmap", net, HEAD).norms(*batch())


def test_no_warning_where_the_fast_engines_serve(caplog: pytest.LogCaptureFixture) -> None:
    case = make("vit-all")
    with caplog.at_level(logging.WARNING):
        make_engine("auto", case.model, case.head).norms(case.inputs, case.labels, case.mask)
    assert not caplog.records


def test_an_engine_without_memory_is_not_one_that_does_not_know_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_memory(*_: object) -> None:
        raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`")

    case = make("vit-film", torch.float32)
    made = make_engine("auto", case.model, case.head)
    with monkeypatch.context() as patch:
        patch.setattr(ExpandedEngine, "_per_example", no_memory)
        with pytest.raises(RuntimeError, match="ALLOC_FAILED"):
            made.norms(case.inputs, case.labels, case.mask)
    assert isinstance(made, CheckedEngine)
    assert made.choose(case.inputs, case.labels)[0] == "expanded"


def test_chunks_of_vmap_are_one_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    case = make("convolutions-all")
    wanted = make_engine("vmap", case.model, case.head)
    bound = FlatClipping(float(wanted.norms(case.inputs, case.labels, case.mask)[0].median()))
    whole = wanted.clipped_sum(case.inputs, case.labels, case.mask, bound)
    norms = wanted.norms(case.inputs, case.labels, case.mask)
    size = sum(each.numel() for each in case.model.parameters())
    monkeypatch.setattr("dpsweep.gradients.engines._AT_ONCE", (4 * size + 1, 1))
    cut = make_engine("vmap", case.model, case.head)
    assert_equal(cut.clipped_sum(case.inputs, case.labels, case.mask, bound), whole)
    torch.testing.assert_close(cut.norms(case.inputs, case.labels, case.mask), norms)


@pytest.mark.parametrize("features", [13, 192, 384, 1024])
def test_a_linear_layer_takes_its_own_whatever_the_label_of_the_first_example_is(
    features: int,
) -> None:
    for label in range(20):
        engine = make_engine("auto", nn.Linear(features, 20), frozenset({"weight", "bias"}))
        assert isinstance(engine, CheckedEngine)
        inputs, labels = torch.zeros(2, features), torch.full((2,), label)
        assert engine.choose(inputs, labels)[0] == "linear"
