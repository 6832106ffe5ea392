"""What has no exact per-example gradients is refused, by name."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from tests.gradients import tiny_models
from tests.gradients.tiny_models import TokensFirst, make
from timm.layers import BatchNormAct2d
from torch import Tensor, nn

from dpsweep.gradients import (
    GradientEngine,
    GradientSum,
    UnsupportedModelError,
    make_engine,
)
from dpsweep.gradients.engines import BookkeepingEngine
from dpsweep.study.clipping import NoClipping

ENGINES = ["loop", "expanded", "bookkeeping", "vmap", "opacus"]
OURS = ["expanded", "bookkeeping", "vmap"]
HEAD = frozenset({"head.weight", "head.bias"})
TOKENS, WIDTH, EXAMPLES = 3, 4, 5


Net = partial(tiny_models.Net, width=WIDTH)


def run(engine: GradientEngine, width: int = WIDTH) -> GradientSum:
    mask = torch.ones(EXAMPLES, dtype=torch.bool)
    inputs = torch.linspace(-1, 1, EXAMPLES * TOKENS * width).view(EXAMPLES, TOKENS, width)
    labels = torch.zeros(EXAMPLES, dtype=torch.int64)
    return engine.clipped_sum(inputs, labels, mask, NoClipping())


@pytest.mark.parametrize("engine", [*ENGINES, "auto"])
@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm1d(TOKENS),
        BatchNormAct2d(TOKENS),
        nn.InstanceNorm1d(TOKENS, affine=True, track_running_stats=True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_statistics_of_other_examples_in_train_mode(engine: str, layer: nn.Module) -> None:
    with pytest.raises(UnsupportedModelError, match=r"'layer'.*train mode.*mixes the examples"):
        make_engine(engine, Net(layer), HEAD)


@pytest.mark.parametrize("engine", [*ENGINES, "auto"])
def test_batch_norm_without_running_statistics(engine: str) -> None:
    layer = nn.BatchNorm1d(TOKENS, track_running_stats=False)
    with pytest.raises(UnsupportedModelError, match=r"'layer'.*no running statistics.*mixes"):
        make_engine(engine, Net(layer).eval(), HEAD)


@pytest.mark.parametrize("engine", [*OURS, "loop", "auto"])
def test_batch_norm_that_is_put_in_train_mode_later(engine: str) -> None:
    net = Net(nn.BatchNorm1d(TOKENS)).eval()
    made = make_engine(engine, net, HEAD)
    run(made)
    before = net.layer.running_mean.clone()
    net.train()
    with pytest.raises(UnsupportedModelError, match="BatchNorm1d is in train mode"):
        run(made)
    assert torch.equal(net.layer.running_mean, before)


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(TOKENS), BatchNormAct2d(TOKENS)], ids=type)
def test_opacus_would_put_batch_norm_in_train_mode(layer: nn.Module) -> None:
    net = Net(layer).eval()
    with pytest.raises(UnsupportedModelError, match=r"'layer'.*hooks of Opacus"):
        make_engine("opacus", net, HEAD)


def two_layers() -> tuple[nn.Linear, nn.Linear]:
    return nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)


@pytest.mark.parametrize("engine", [*ENGINES, "auto"])
def test_two_parameters_in_one_memory(engine: str) -> None:
    first, second = two_layers()
    second.weight.data = first.weight.data
    layer = nn.Sequential(first, second)
    with pytest.raises(UnsupportedModelError, match=r"'layer\.1\.weight' is tied to 'layer\.0"):
        make_engine(engine, Net(layer), HEAD)
    first.weight.requires_grad_(False)
    with pytest.raises(UnsupportedModelError, match=r"'layer\.1\.weight' is tied to 'layer\.0"):
        make_engine(engine, Net(layer), HEAD)
    layer.requires_grad_(False)
    run(make_engine(engine, Net(layer), HEAD))


def test_opacus_does_not_know_that_one_parameter_has_two_names() -> None:
    first, second = two_layers()
    second.weight = first.weight
    with pytest.raises(UnsupportedModelError, match=r"'layer\.1\.weight' is tied to 'layer\.0"):
        make_engine("opacus", Net(nn.Sequential(first, second)), HEAD)


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


@pytest.mark.parametrize("engine", [*OURS, "auto"])
def test_detached_parameter(engine: str) -> None:
    with pytest.raises(UnsupportedModelError, match=r"'layer\.weight' have no influence"):
        run(make_engine(engine, Net(Detached(WIDTH)), HEAD))


@pytest.mark.parametrize("engine", ["expanded", "bookkeeping"])
@pytest.mark.parametrize(
    ("layer", "use"),
    [(nn.Conv1d(TOKENS, TOKENS, 1), "conv1d"), (nn.PReLU(TOKENS), "prelu")],
    ids=["Conv1d", "PReLU"],
)
def test_unknown_use(engine: str, layer: nn.Module, use: str) -> None:
    kind = type(layer).__name__
    with pytest.raises(
        UnsupportedModelError, match=rf"'layer\.weight' of a {kind} is used by {use}\(\).*{engine}"
    ):
        run(make_engine(engine, Net(layer), HEAD))


@pytest.mark.parametrize(
    "layer", [nn.LSTM(WIDTH, WIDTH), nn.MultiheadAttention(WIDTH, 2)], ids=type
)
def test_layer_that_opacus_refuses(layer: nn.Module) -> None:
    with pytest.raises(UnsupportedModelError, match=r"'layer'.*refused by Opacus"):
        make_engine("opacus", Net(layer), HEAD)


class Centred(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input - input.mean(0, keepdim=True))


@pytest.mark.parametrize("engine", [*OURS, "auto"])
def test_model_that_mixes_examples(engine: str) -> None:
    with pytest.raises(UnsupportedModelError, match="Net mixes the examples of a batch"):
        run(make_engine(engine, Net(Centred(WIDTH, WIDTH)), HEAD))


class Weakly(nn.Linear):
    """Adds a little of the other examples, as does a scale for the whole batch."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input + 1e-3 * input.mean(0, keepdim=True))


class Quantised(nn.Linear):
    """Rounds to 255 levels up to the largest number of the batch; gradients pass."""

    def forward(self, input: Tensor) -> Tensor:
        step = input.abs().max() / 127
        return super().forward(input + ((input / step).round() * step - input).detach())


@pytest.mark.parametrize("engine", [*ENGINES, "auto"])
@pytest.mark.parametrize("layer", [Weakly, Quantised])
def test_model_that_mixes_examples_weakly(engine: str, layer: type[nn.Linear]) -> None:
    with pytest.raises(UnsupportedModelError, match="Net mixes the examples of a batch"):
        run(make_engine(engine, Net(layer(WIDTH, WIDTH)), HEAD))


class CentredTokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(20, WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        rows = self.table(tokens).flatten(1)[:, -WIDTH:]
        logits: Tensor = self.head(rows - rows.mean(0, keepdim=True))
        return logits


@pytest.mark.parametrize(
    "tokens",
    [[[7], [3], [5], [9]], [[1, 1, 1, 1], [2, 3, 4, 5]], [[7, 7, 7]], [7, 7]],
    ids=["one place", "a constant text", "a batch of one constant text", "no places"],
)
def test_model_that_mixes_examples_whose_order_says_nothing(tokens: list[list[int]]) -> None:
    """In another order such texts are the same, and nothing would tell that they are mixed."""
    inputs = torch.tensor(tokens)
    labels = torch.zeros(len(inputs), dtype=torch.int64)
    with pytest.raises(UnsupportedModelError, match="CentredTokens mixes the examples"):
        make_engine("auto", CentredTokens()).norms(inputs, labels, labels == 0)


@pytest.mark.parametrize("engine", [*OURS, "loop", "auto"])
def test_layer_without_parameters_that_is_replaced_later(engine: str) -> None:
    net = Net(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()))
    made = make_engine(engine, net, HEAD)
    run(made)
    net.layer[1] = nn.BatchNorm1d(TOKENS, affine=False, track_running_stats=False)
    with pytest.raises(UnsupportedModelError, match=r"BatchNorm1d.*mixes"):
        run(made)


def test_convolution_in_expanded_engine() -> None:
    case = make("convolutions-all")
    with pytest.raises(
        UnsupportedModelError, match=r"'layers\.0\.weight' of a Conv2d .*'expanded'"
    ):
        make_engine("expanded", case.model, case.head).norms(case.inputs, case.labels, case.mask)


class Twice(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(super().forward(input))


@pytest.mark.parametrize("engine", OURS)
def test_layer_used_twice_counts_twice(engine: str) -> None:
    net = Net(Twice(WIDTH, WIDTH))
    wanted = run(make_engine("loop", net, HEAD))
    found = run(make_engine(engine, net, HEAD))
    torch.testing.assert_close(found.norms, wanted.norms)
    torch.testing.assert_close(found.gradients, wanted.gradients, check_dtype=False)


def test_layer_used_twice_as_factors() -> None:
    """The norm of a sum is not known from the factors of its two terms."""
    with pytest.raises(UnsupportedModelError, match=r"'layer\.weight'.* more than once"):
        run(make_engine("bookkeeping", Net(Twice(40, 40), width=40), HEAD), 40)


class HeadTwice(tiny_models.Net):
    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(tokens.mean(1)) + self.head(tokens[:, 0])
        return logits


@pytest.mark.parametrize("engine", ["expanded", "bookkeeping"])
def test_head_used_twice(engine: str) -> None:
    with pytest.raises(UnsupportedModelError, match=r"'head\.weight'.*(twice|more than once)"):
        run(make_engine(engine, HeadTwice(nn.Identity(), 40), HEAD), 40)


@pytest.mark.parametrize("engine", ["expanded", "bookkeeping"])
@pytest.mark.parametrize("width", [WIDTH, 40])
def test_rows_in_another_order(engine: str, width: int) -> None:
    """Nothing in the shapes tells that an engine would mix examples; the comparison does."""
    net = Net(TokensFirst(width, width), width=width)
    with pytest.raises(
        UnsupportedModelError, match=rf"{engine}' does not give the gradient of .*'layer\.weight'"
    ):
        run(make_engine(engine, net, HEAD), width)


class Spoiled(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        input = input.clone()
        output = super().forward(input)
        input.zero_()
        return output


def test_input_modified_in_place() -> None:
    """Under autocast, training without privacy does not notice: it keeps a copy of the input."""
    engine = BookkeepingEngine(Net(Spoiled(40, 40), width=40), HEAD)
    with pytest.raises(UnsupportedModelError, match="modified in place"):
        run(engine, 40)


@pytest.mark.parametrize(
    ("trains", "head", "problem"),
    [
        (False, frozenset(), "no trainable parameter"),
        (True, frozenset({"head.weight", "head.scale"}), r"found head\.scale; allowed: names of"),
    ],
)
def test_parameters_that_do_not_train(trains: bool, head: frozenset[str], problem: str) -> None:
    with pytest.raises(UnsupportedModelError, match=problem):
        make_engine("loop", Net(nn.Identity()).requires_grad_(trains), head)


def test_unknown_engine() -> None:
    with pytest.raises(ValueError, match="engine 'ghost': choose one of auto, linear, expanded"):
        make_engine("ghost", Net(nn.Identity()), HEAD)


def test_autocast_with_norms_of_the_forward_pass() -> None:
    with pytest.raises(ValueError, match="use no autocast"):
        make_engine("opacus", Net(nn.Identity()), HEAD, autocast=torch.bfloat16)


@pytest.mark.parametrize(
    ("model", "found"),
    [
        (nn.Sequential(nn.Linear(2, 2)), "found Sequential"),
        (nn.Linear(2, 2, bias=False), "found Linear with weight that"),
    ],
    ids=["Sequential", "without bias"],
)
def test_other_models_than_a_linear_layer(model: nn.Module, found: str) -> None:
    inputs = torch.ones(2, 2), torch.tensor([0, 1]), torch.ones(2, dtype=torch.bool)
    with pytest.raises(UnsupportedModelError, match=found):
        make_engine("linear", model).norms(*inputs)
