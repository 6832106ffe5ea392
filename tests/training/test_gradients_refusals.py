"""What has no exact per-example gradients is refused, by name."""

import pytest
import torch
import torch.nn.functional as F
from tests.training.tiny_models import CLASSES, make
from timm.layers import BatchNormAct2d, LayerScale
from torch import Tensor, nn

from dpsweep.training.clipping import NoClipping
from dpsweep.training.gradients import (
    GradientEngine,
    GradientSum,
    UnsupportedModelError,
    make_engine,
)

ENGINES = ["loop", "expanded", "bookkeeping", "opacus"]
OURS = ["expanded", "bookkeeping"]
HEAD = frozenset({"head.weight", "head.bias"})
TOKENS, WIDTH, EXAMPLES = 3, 4, 5


class Net(nn.Module):
    """A trainable layer on tokens, and a head on their mean."""

    def __init__(self, layer: nn.Module, width: int = WIDTH):
        super().__init__()
        self.layer = layer
        self.head = nn.Linear(width, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layer(tokens).mean(1))
        return logits


def run(engine: GradientEngine, width: int = WIDTH) -> GradientSum:
    mask = torch.ones(EXAMPLES, dtype=torch.bool)
    inputs = torch.linspace(-1, 1, EXAMPLES * TOKENS * width).view(EXAMPLES, TOKENS, width)
    labels = torch.zeros(EXAMPLES, dtype=torch.int64)
    return engine.clipped_sum(inputs, labels, mask, NoClipping())


@pytest.mark.parametrize("engine", [*ENGINES, "auto"])
@pytest.mark.parametrize("layer", [nn.BatchNorm1d(TOKENS), BatchNormAct2d(TOKENS)], ids=type)
def test_batch_norm(engine: str, layer: nn.Module) -> None:
    with pytest.raises(UnsupportedModelError, match=r"'layer'.*mixes the examples"):
        make_engine(engine, Net(layer), HEAD)


@pytest.mark.parametrize("engine", [*ENGINES, "auto"])
@pytest.mark.parametrize("how", ["parameter", "memory"])
def test_tied_weights(engine: str, how: str) -> None:
    layer = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    first, second = layer[0], layer[1]
    assert isinstance(first, nn.Linear)
    assert isinstance(second, nn.Linear)
    if how == "parameter":
        second.weight = first.weight
    else:
        second.weight.data = first.weight.data
    with pytest.raises(UnsupportedModelError, match=r"'layer\.1\.weight' is tied to 'layer\.0"):
        make_engine(engine, Net(layer), HEAD)
    for parameter in layer.parameters():
        parameter.requires_grad_(False)
    run(make_engine(engine, Net(layer), HEAD))


@pytest.mark.parametrize("engine", ENGINES)
def test_unused_parameter(engine: str) -> None:
    net = Net(nn.LayerNorm(WIDTH))
    net.extra = nn.LayerNorm(WIDTH)
    made = make_engine(engine, net, HEAD)
    with pytest.raises(UnsupportedModelError, match=r"'?extra\.(bias|weight)'?"):
        run(made)


class Detached(nn.LayerNorm):
    def forward(self, input: Tensor) -> Tensor:
        return F.layer_norm(input, self.normalized_shape, self.weight.detach(), self.bias)


@pytest.mark.parametrize("engine", OURS)
def test_detached_parameter(engine: str) -> None:
    with pytest.raises(UnsupportedModelError, match=r"'layer\.weight' is used by detach\(\)"):
        run(make_engine(engine, Net(Detached(WIDTH)), HEAD))


class Product(nn.LayerNorm):
    def forward(self, input: Tensor) -> Tensor:
        return input * self.weight + self.bias


@pytest.mark.parametrize("engine", OURS)
def test_unknown_use(engine: str) -> None:
    with pytest.raises(UnsupportedModelError, match=rf"'layer\.weight' is used by mul.*'{engine}'"):
        run(make_engine(engine, Net(Product(WIDTH)), HEAD))


@pytest.mark.parametrize("engine", [*OURS, "auto"])
@pytest.mark.parametrize(
    ("layer", "name"),
    [
        (LayerScale(WIDTH), "gamma"),
        (nn.Conv1d(TOKENS, TOKENS, 1), "weight"),
        (nn.PReLU(WIDTH), "weight"),
    ],
    ids=["LayerScale", "Conv1d", "PReLU"],
)
def test_unknown_layer(engine: str, layer: nn.Module, name: str) -> None:
    with pytest.raises(UnsupportedModelError, match=rf"'layer\.{name}'.*{type(layer).__name__}"):
        make_engine(engine, Net(layer), HEAD)


@pytest.mark.parametrize("engine", [*ENGINES, "auto"])
@pytest.mark.parametrize(
    "layer", [nn.LSTM(WIDTH, WIDTH), nn.MultiheadAttention(WIDTH, 2)], ids=type
)
def test_layer_that_opacus_refuses(engine: str, layer: nn.Module) -> None:
    with pytest.raises(UnsupportedModelError, match=r"'layer'.*refused by Opacus"):
        make_engine(engine, Net(layer), HEAD)


def test_convolution_in_expanded_engine() -> None:
    case = make("convolutions-all")
    with pytest.raises(UnsupportedModelError, match=r"'layers\.0\.weight'.*Conv2d.*'expanded'"):
        make_engine("expanded", case.model, case.head)


class Twice(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(super().forward(input))


@pytest.mark.parametrize("engine", OURS)
def test_layer_used_twice_counts_twice(engine: str) -> None:
    net = Net(Twice(WIDTH, WIDTH))
    wanted = run(make_engine("loop", net, HEAD))
    found = run(make_engine(engine, net, HEAD))
    torch.testing.assert_close(found.norms, wanted.norms)
    torch.testing.assert_close(found.gradients, wanted.gradients)


def test_layer_used_twice_as_factors() -> None:
    """The norm of a sum is not known from the factors of its two terms."""
    with pytest.raises(UnsupportedModelError, match=r"'layer\.weight'.* more than one"):
        run(make_engine("bookkeeping", Net(Twice(40, 40), 40), HEAD), 40)


class HeadTwice(Net):
    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(tokens.mean(1)) + self.head(tokens[:, 0])
        return logits


@pytest.mark.parametrize("engine", OURS)
def test_head_used_twice(engine: str) -> None:
    with pytest.raises(UnsupportedModelError, match=r"'head\.weight'.*(twice|more than one)"):
        run(make_engine(engine, HeadTwice(nn.Identity(), 40), HEAD), 40)


class Flattened(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.flatten(0, 1)).view_as(input)


@pytest.mark.parametrize("engine", OURS)
def test_tokens_in_the_place_of_examples(engine: str) -> None:
    with pytest.raises(UnsupportedModelError, match=r"'layer\.weight' meets an input of shape"):
        run(make_engine(engine, Net(Flattened(WIDTH, WIDTH)), HEAD))


class Spoiled(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        input = input.clone()
        output = super().forward(input)
        input.zero_()
        return output


@pytest.mark.parametrize(
    ("width", "error", "message"),
    [
        (40, UnsupportedModelError, "modified in place"),
        # Where gradients are smaller than the inputs, autograd has these and notices by itself.
        (WIDTH, RuntimeError, "modified by an inplace operation"),
    ],
)
def test_input_modified_in_place(width: int, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        run(make_engine("bookkeeping", Net(Spoiled(width, width), width), HEAD), width)


def test_nothing_to_train() -> None:
    with pytest.raises(UnsupportedModelError, match="no trainable parameter"):
        make_engine("loop", Net(nn.Identity()).requires_grad_(False), frozenset())


def test_head_that_does_not_train() -> None:
    with pytest.raises(UnsupportedModelError, match=r"'head\.scale'.* not trainable"):
        make_engine("loop", Net(nn.Identity()), frozenset({"head.weight", "head.scale"}))


def test_unknown_engine() -> None:
    with pytest.raises(ValueError, match="engine 'ghost': choose one of auto, expanded"):
        make_engine("ghost", Net(nn.Identity()), HEAD)


@pytest.mark.parametrize("engine", ["opacus", "loop"])
def test_autocast_with_norms_of_the_forward_pass(engine: str) -> None:
    with pytest.raises(ValueError, match="use no autocast"):
        make_engine(engine, Net(nn.Identity()), HEAD, autocast=torch.bfloat16)
