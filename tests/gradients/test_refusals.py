"""Networks without private gradients are refused by name and not changed."""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from tests.gradients.tiny_models import CLASSES, HEAD, Layer, Net, TokensFirst, random
from timm.layers import BatchNormAct2d
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from dpsweep.gradients import UnsupportedModelError, make_engine
from dpsweep.gradients.engines import BookkeepingEngine
from dpsweep.gradients.refusals import check_model
from dpsweep.study.clipping import NoClipping

WIDTH, TOKENS, EXAMPLES, VOCABULARY = 4, 3, 6, 50
WITH_RULES = ("expanded", "bookkeeping")


class Refused(NamedTuple):
    """A network, the message of its refusal, and the engines that refuse it."""

    build: Callable[[], nn.Module]
    message: str
    engines: tuple[str, ...] = ("auto",)


def on(
    layer: Callable[[], nn.Module], width: int = WIDTH, *, train: bool = True
) -> Callable[[], nn.Module]:
    return lambda: Net(layer(), width).train(train)


# -- networks without per-example gradients ---------------------------------------------------------


def linear_of(function: Callable[[Tensor], Tensor]) -> Callable[[], nn.Module]:
    """Return a builder of a linear layer on a function of the batch."""
    return on(
        lambda: Layer(lambda self, x: self.linear(function(x)), linear=nn.Linear(WIDTH, WIDTH))
    )


def quantised(x: Tensor) -> Tensor:
    """Round to 255 levels up to the largest number of the batch; the gradient is the identity."""
    step = x.abs().max() / 127
    return x + ((x / step).round() * step - x).detach()


def several(x: Tensor) -> Tensor:
    if len(x) == 1:
        raise ValueError("not one")
    return x


def tied(*, parameter: bool = False, frozen: bool = False) -> nn.Module:
    """Return a network with two layers that share a parameter, or only its memory."""
    first, second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    if parameter:
        second.weight = first.weight
    else:
        second.weight.data = first.weight.data
    first.weight.requires_grad_(not frozen)
    return Net(nn.Sequential(first, second), WIDTH)


SEEN = [0.0]


def elsewhere(x: Tensor) -> Tensor:
    """Store a number outside the network."""
    SEEN[0] += 0.1
    return x * (1 + SEEN[0])


def with_unused() -> nn.Module:
    net = Net(nn.LayerNorm(WIDTH), WIDTH)
    net.extra = nn.LayerNorm(WIDTH)
    return net


class Detached(nn.LayerNorm):
    def forward(self, input: Tensor) -> Tensor:
        return F.layer_norm(input, self.normalized_shape, self.weight.detach(), self.bias)


class Twice(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(super().forward(input))


class HeadTwice(Net):
    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(tokens.mean(1)) + self.head(tokens[:, 0])
        return logits


def square() -> nn.Module:
    return nn.Linear(WIDTH, WIDTH)


def with_hook() -> nn.Module:
    """Return a layer whose hook reads its weight, by less than the comparison with the loop allows."""
    layer = square()
    layer.register_forward_hook(lambda self, _, x: x * (1 + 1e-3 * self.weight.mean()))
    return layer


class Texts(nn.Module):
    def __init__(self, table: nn.Module) -> None:
        super().__init__()
        self.table, self.head = table, nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        rows = self.table(tokens)
        logits: Tensor = self.head(rows if rows.dim() == 2 else rows.mean(1))
        return logits


MIXING = {
    **{
        f"{layer.func.__name__} in train mode": Refused(
            on(layer), r"'layer'.*train mode.*mixes the examples", ("auto", "loop", "opacus")
        )
        for layer in (
            partial(nn.BatchNorm1d, TOKENS),
            partial(BatchNormAct2d, TOKENS),
            partial(nn.InstanceNorm1d, TOKENS, affine=True, track_running_stats=True),
        )
    },
    "without running statistics": Refused(
        on(partial(nn.BatchNorm1d, TOKENS, track_running_stats=False), train=False),
        r"'layer'.*no running statistics.*mixes",
    ),
    "fails on one example": Refused(
        linear_of(several), r"Net cannot compute one example alone \(not one\)", ("auto", "vmap")
    ),
    **{
        name: Refused(
            linear_of(function), "Net mixes the examples of a batch", ("auto", "loop", "opacus")
        )
        for name, function in {
            "a little of each other": lambda x: x + 1e-3 * x.mean(0, keepdim=True),
            "a scale for the whole batch": quantised,
        }.items()
    },
    # Shapes do not show that an engine would mix examples; the comparison does.
    "rows in another order": Refused(
        on(partial(TokensFirst, WIDTH, WIDTH)),
        r"(expanded|bookkeeping)' does not give the gradient of .*'layer\.weight'",
        WITH_RULES,
    ),
    "one memory": Refused(tied, r"'layer\.1\.weight' is tied to 'layer\.0"),
    "one memory, half of it frozen": Refused(
        partial(tied, frozen=True), r"'layer\.1\.weight' is tied to 'layer\.0"
    ),
    "unused": Refused(with_unused, r"extra\.(bias|weight)", (*WITH_RULES, "vmap", "opacus")),
    "detached": Refused(
        on(partial(Detached, WIDTH)), r"'layer\.weight' have no influence", (*WITH_RULES, "vmap")
    ),
    "nothing trains": Refused(
        lambda: Net(nn.Identity(), WIDTH).requires_grad_(False), "no trainable parameter"
    ),
    "a function": Refused(lambda: lambda x: x, "found a function; allowed: a torch"),
    "lazy layer": Refused(on(partial(nn.LazyLinear, WIDTH)), r"'layer' \(LazyLinear\)"),
}
UNKNOWN = {
    **{
        f"embedding with {option} by Opacus": Refused(
            lambda option=option: Texts(nn.Embedding(VOCABULARY, WIDTH, **option)),
            *(rf"'table' \(Embedding\) has {next(iter(option))}", ("opacus",)),
        )
        for option in ({"padding_idx": 0}, {"scale_grad_by_freq": True})
    },
    **{
        f"a weight that {name} uses too, by Opacus": Refused(
            on(lambda function=function: Layer(function, one=square())),
            *(r"'layer\.one\.\w+' is read outside of its layer, by \w+\(\)", ("opacus",)),
        )
        for name, function in {
            "a layer": lambda self, x: F.linear(self.one(x), self.one.weight),
            # The norm of its gradient differs by less than the comparison with the loop allows.
            "a factor": lambda self, x: self.one(x) * (1 + 1e-3 * self.one.weight.mean()),
            "an offset": lambda self, x: self.one(x) + 1e-3 * self.one.bias.sum(),
        }.items()
    },
    "a weight that a hook of its layer uses too, by Opacus": Refused(
        on(with_hook), r"'layer\.weight' is read outside of its layer, by mean\(\)", ("opacus",)
    ),
    "rows in another order, by Opacus": Refused(
        on(
            lambda: Layer(lambda self, x: self.one(x.transpose(0, 1)).transpose(0, 1), one=square())
        ),
        *(r"'opacus' does not give the gradient of parameter", ("opacus",)),
    ),
    "an error of Opacus": Refused(
        on(partial(nn.LayerNorm, WIDTH, bias=False)), "'opacus' cannot compute Net", ("opacus",)
    ),
    **{
        f"{layer.func.__name__} by {engine}": Refused(
            on(layer),
            rf"'layer\.weight' of a {layer.func.__name__} is used by .*{engine}",
            (engine,),
        )
        for layer in (partial(nn.Conv1d, TOKENS, TOKENS, 1), partial(nn.PReLU, TOKENS))
        for engine in WITH_RULES
    },
    "a convolution": Refused(
        lambda: nn.Sequential(nn.Unflatten(1, (1, TOKENS)), nn.Conv2d(1, 1, 2), nn.Flatten()),
        *(r"'1\.weight' of a Conv2d .*'expanded'", ("expanded",)),
    ),
    "twice as factors": Refused(
        on(partial(Twice, 40, 40), 40), r"'layer\.weight'.* more than once", ("bookkeeping",)
    ),
    "a head that is used twice": Refused(
        lambda: HeadTwice(nn.Identity(), 40), r"'head\.weight'.*(twice|more than once)", WITH_RULES
    ),
    "Sequential": Refused(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(TOKENS * WIDTH, CLASSES)),
        *("found Sequential", ("linear",)),
    ),
    "without bias": Refused(
        lambda: nn.Linear(WIDTH, CLASSES, bias=False), "found Linear with weight that", ("linear",)
    ),
    "one parameter under two names": Refused(
        partial(tied, parameter=True), r"'layer\.1\.weight' is read outside", ("opacus",)
    ),
}


# -- networks that store data of the examples -------------------------------------------------------

Keep = Callable[[Any, Tensor], object]


class Keeping(Layer):
    """A layer that calls a function with its inputs, and returns the inputs."""

    def forward(self, x: Tensor) -> Tensor:
        self.function(self, x)
        return x


class Sharing(Keeping):
    """A layer with an attribute of its class."""

    seen: ClassVar[list[Tensor]] = []


class Counting(nn.Module):
    """A layer with a counter in its extra state and in a closure only."""

    def __init__(self) -> None:
        super().__init__()
        count = [0]
        self.tick, self.read = lambda: count.__setitem__(0, count[0] + 1), lambda: count[0]

    def forward(self, x: Tensor) -> Tensor:
        self.tick()
        return x

    def get_extra_state(self) -> int:
        return self.read()

    def set_extra_state(self, state: Any) -> None:
        pass


def moved(self: Any, x: Tensor) -> Tensor:
    mean: Tensor = 0.99 * self.mean + 0.01 * x.detach().mean((0, 1))
    return mean


def write(self: Any, x: Tensor) -> None:
    self.mean.copy_(moved(self, x))


def initialise(self: Any, x: Tensor) -> None:
    """Store the mean of the first batch (ActNorm)."""
    if not self.done:
        kept = self.kept[0] if isinstance(self.kept, list) else self.kept
        kept.data.copy_(x.mean((0, 1)))
        self.done = True


def kept_in(keep: Keep, message: str, *engines: str, **state: Callable[[], Any]) -> Refused:
    """Return the case of a layer that stores data in its state, whose parts are made by functions."""

    def build() -> nn.Module:
        return Net(Keeping(keep, **{name: make() for name, make in state.items()}), WIDTH)

    return Refused(build, message, engines or ("auto",))


def changing(first: Callable[[], Any], new: Callable[[Any, Tensor], Any], message: str) -> Refused:
    """Return the case of a layer that changes an attribute with every batch."""
    return kept_in(lambda self, x: setattr(self, "kept", new(self.kept, x)), message, kept=first)


def statistics(keep: Keep = write, **options: Any) -> nn.Module:
    return Net(Keeping(keep, mean=torch.zeros(WIDTH), **options), WIDTH)


def hooked() -> nn.Module:
    """Return a layer with a hook that writes to the original layer, even from a copy."""
    layer = nn.Linear(WIDTH, WIDTH)
    layer.register_buffer("seen", torch.zeros(()))
    seen: Tensor = layer.seen  # type: ignore[assignment]
    layer.register_forward_hook(lambda *found: seen.add_(found[2].detach().sum()) and None)
    return layer


def texts(layer: Callable[..., nn.Module], largest: float) -> nn.Module:
    return Texts(layer(VOCABULARY, WIDTH, max_norm=largest))


KEEPING = {
    **{
        f"statistics that are {how}": Refused(
            partial(statistics, keep, persistent=False), r"layer\.mean"
        )
        for how, keep in {
            "written": write,
            "written behind torch's back": lambda self, x: self.mean.data.copy_(moved(self, x)),
            "replaced": lambda self, x: setattr(self, "mean", moved(self, x)),
        }.items()
    },
    "statistics in train mode": Refused(
        partial(statistics, lambda self, x: self.training and write(self, x)),
        r"layer\.mean.*eval\(\)",
    ),
    **{
        f"statistics {when}": Refused(lambda keep=keep: statistics(keep).eval(), r"layer\.mean")
        for when, keep in {
            "in eval mode": lambda self, x: self.training or write(self, x),
            "without gradients": lambda self, x: torch.is_grad_enabled() or write(self, x),
        }.items()
    },
    "counter": kept_in(
        lambda self, _: self.count.add_(1),
        *(r"layer\.count", "auto", "loop"),
        count=lambda: torch.tensor(0),
    ),
    "extra state": Refused(on(Counting), r"layer\._extra_state"),
    "last batch without gradients": kept_in(
        lambda self, x: torch.is_grad_enabled() or setattr(self, "last", x),
        *(r"layer\.last", "auto"),
        last=lambda: None,
    ),
    "bank": changing(list, lambda bank, x: [*bank, x.detach()], r"layer\.kept\[0\]"),
    "last graph": changing(lambda: None, lambda _, x: [2 * x], r"layer\.kept\[0\]"),
    "numpy": changing(lambda: np.zeros(1), lambda sum, x: sum + float(x.sum()), r"layer\.kept"),
    "object": changing(
        lambda: None,
        lambda _, x: SimpleNamespace(items={"last": x.detach().sum()}),
        r"layer\.kept\.items\['last'\]",
    ),
    "attribute of a class": Refused(
        on(lambda: Sharing(lambda self, x: self.seen.append(x.detach()))), r"Sharing\.seen"
    ),
    **{
        f"first batch in {place}": kept_in(
            initialise, r"layer\.kept", done=lambda: False, kept=make
        )
        for place, make in {
            "a parameter": lambda: random(WIDTH),
            "a buffer": lambda: torch.zeros(WIDTH),
            "an attribute": lambda: [torch.zeros(WIDTH)],
        }.items()
    },
    "layer in a list": kept_in(
        lambda self, x: self.blocks[0](x),
        r"layer\.blocks\[0\]",
        blocks=lambda: [statistics().layer],
    ),
    "hook": Refused(on(hooked), r"layer\.seen"),
    "spectral norm": Refused(
        on(lambda: parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH))),
        r"parametrizations\.weight\.0\._[uv]",
    ),
    "embedding": Refused(partial(texts, nn.Embedding, 1.0), r"table\.weight", ("auto", "opacus")),
    "embedding whose rows are short": Refused(partial(texts, nn.Embedding, 1e6), r"table\.weight"),
    "bag": Refused(partial(texts, nn.EmbeddingBag, 1.0), r"table\.weight"),
    "inputs": kept_in(lambda _, x: x.mul_(2), r"changes its inputs in place.*clone"),
    "state outside the network": Refused(
        linear_of(elsewhere), "other outputs when it sees the same inputs", ("loop",)
    ),
}


# -- outputs that are not logits, and dropout -------------------------------------------------------


def outputs(change: Callable[[Tensor], Any], classes: int = CLASSES) -> nn.Module:
    return Layer(lambda self, x: change(self.head(x.mean(1))), head=nn.Linear(WIDTH, classes))


OUTPUTS = {
    message: Refused(partial(outputs, change, classes), message, ("auto", "loop"))
    for change, classes, message in (
        (lambda y: y, 1, r"\(3, 1\) for 3 examples.*two classes or more"),
        (lambda y: y[:, 0], CLASSES, r"outputs: found float32 of shape \(3,\)"),
        (lambda y: y[..., None], CLASSES, r"\(3, 5, 1\) for 3 examples"),
        (lambda y: (y, y), CLASSES, "outputs: found a tuple"),
        (
            lambda y: SimpleNamespace(logits=y),
            *(CLASSES, "outputs: found a SimpleNamespace .*allowed: logits"),
        ),
        (lambda y: y.argmax(1), CLASSES, "outputs: found int64"),
        (lambda y: y[:1], CLASSES, r"\(1, 5\) for 3 examples"),
    )
} | {
    "dropout": Refused(
        on(lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5))),
        r"draws random numbers.*eval\(\)",
        ("auto", "vmap"),
    )
}
REFUSED = MIXING | UNKNOWN | KEEPING | OUTPUTS


def batch(model: nn.Module) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    if isinstance(model, Texts):
        inputs = torch.randint(VOCABULARY // 2, (EXAMPLES, TOKENS), generator=generator)
    else:
        width = model.head.in_features if isinstance(model, Net) else WIDTH
        tokens = [] if isinstance(model, nn.Linear) else [TOKENS]
        inputs = torch.randn(EXAMPLES, *tokens, width, generator=generator)
    return inputs, torch.arange(EXAMPLES) % CLASSES, torch.arange(EXAMPLES) != 2


def state(model: nn.Module) -> dict[str, Tensor]:
    if "LazyLinear" in repr(model) or not isinstance(model, nn.Module):
        return {}
    return {
        name: each.clone() for name, each in [*model.named_parameters(), *model.named_buffers()]
    }


@pytest.mark.parametrize(
    ("case", "engine"),
    [(name, engine) for name, each in REFUSED.items() for engine in each.engines],
)
def test_models_are_refused_by_name(case: str, engine: str) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)  # with other weights, spectral norms may have converged already
        model = REFUSED[case].build()
    before, given = state(model), batch(model)
    inputs = given[0].clone()
    with pytest.raises(UnsupportedModelError, match=REFUSED[case].message):
        make_engine(engine, model).clipped_sum(*given, NoClipping())
    if "hook" not in case:  # a hook may write to the model from a copy, too
        torch.testing.assert_close(state(model), before, rtol=0, atol=0)
    assert torch.equal(given[0], inputs)


@pytest.mark.parametrize(
    ("engine", "head", "options", "message"),
    [
        ("ghost", HEAD, {}, "engine 'ghost': choose one of auto, linear, expanded"),
        ("opacus", HEAD, {"autocast": torch.bfloat16}, "use no autocast"),
        ("loop", HEAD | {"head.scale"}, {}, r"found head\.scale; allowed: names of"),
    ],
)
def test_invalid_engine_options_are_refused(
    engine: str, head: frozenset[str], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make_engine(engine, Net(nn.Identity(), WIDTH), head, **options)


class Spoiled(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        input = input.clone()
        output = super().forward(input)
        input.zero_()
        return output


def test_input_modified_in_place_is_refused() -> None:
    """Under autocast, training without privacy does not fail, because it keeps a copy of the input."""
    model = Net(Spoiled(40, 40), 40)
    with pytest.raises(UnsupportedModelError, match="modified in place"):
        BookkeepingEngine(model, HEAD).clipped_sum(*batch(model), NoClipping())


# -- inputs with few tokens --------------------------------------------------------------------


def few_tokens(*, mixes: bool) -> nn.Module:
    """Return a network that mixes examples, or stores the last batch."""

    def function(self: Any, tokens: Tensor) -> Tensor:
        rows = self.table(tokens).flatten(1)[:, -WIDTH:]
        if not mixes:
            self.last = tokens
        logits: Tensor = self.head(rows - rows.mean(0, keepdim=True) if mixes else rows)
        return logits

    return Layer(function, table=nn.Embedding(20, WIDTH), head=nn.Linear(WIDTH, 3), last=None)


@pytest.mark.parametrize(
    "tokens",
    [
        *([[7], [3], [5], [9]], [[1, 1, 1, 1], [2, 3, 4, 5]], [[7, 7, 7]], [7, 7], [4, 5, 6]),
    ],
    ids=str,
)
@pytest.mark.parametrize("mixes", [True, False])
def test_few_tokens_show_mixing_and_state(tokens: list[Any], mixes: bool) -> None:
    """A permutation may equal the text itself, and then shows neither mixing nor stored examples."""
    inputs = torch.tensor(tokens)
    labels = torch.zeros(len(inputs), dtype=torch.int64)
    message = "Layer mixes the examples" if mixes else "'last'"
    with pytest.raises(UnsupportedModelError, match=message):
        make_engine("auto", few_tokens(mixes=mixes)).norms(inputs, labels, labels == 0)


# -- caches ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["levit_128s", "efficientformerv2_s0"])
def test_attention_biases_in_a_cache_are_refused_by_name(name: str) -> None:
    with torch.device("meta"):
        model = timm.create_model(name, num_classes=CLASSES).eval()
    with pytest.raises(
        UnsupportedModelError, match=r"layers \(\w*Att[\w, ]*\) cache their attention biases"
    ):
        check_model(model, frozenset())
    for each, parameter in model.named_parameters():
        parameter.requires_grad_(not each.endswith("attention_biases"))
    assert check_model(model, frozenset())
