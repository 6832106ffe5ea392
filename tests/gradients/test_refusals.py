"""What has no private gradient is refused by name, and left as it was: networks, their state, and outputs."""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.gradients.tiny_models import CLASSES, HEAD, Net, TokensFirst
from timm.layers import BatchNormAct2d
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from dpsweep.config.clipping import NoClipping
from dpsweep.gradients import UnsupportedModelError, make_engine
from dpsweep.gradients.engines import BookkeepingEngine

WIDTH, TOKENS, EXAMPLES, VOCABULARY = 4, 3, 6, 50
FAST = ("expanded", "bookkeeping", "vmap")
WITH_RULES = ("expanded", "bookkeeping")
ALL = (*FAST, "loop", "opacus", "auto")


class Refused(NamedTuple):
    """A network, what its refusal says, and by which engines."""

    build: Callable[[], nn.Module]
    said: str
    engines: tuple[str, ...] = ("auto",)


def on(layer: Callable[[], nn.Module], width: int = WIDTH) -> Callable[[], nn.Module]:
    return lambda: Net(layer(), width)


def evaluating(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: build().eval()


# -- networks whose examples have no gradient of their own ------------------------------------------


class Function(nn.Module):
    """A linear layer of what some function makes of a batch."""

    def __init__(self, function: Callable[[Tensor], Tensor], width: int = WIDTH) -> None:
        super().__init__()
        self.function, self.linear = function, nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(self.function(x))
        return y


def quantised(x: Tensor) -> Tensor:
    """Round to 255 levels up to the largest number of the batch; gradients pass."""
    step = x.abs().max() / 127
    return x + ((x / step).round() * step - x).detach()


def tied(*, parameter: bool = False, frozen: bool = False) -> nn.Module:
    """Two layers that share a parameter, or the memory of two."""
    first, second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    if parameter:
        second.weight = first.weight
    else:
        second.weight.data = first.weight.data
    first.weight.requires_grad_(not frozen)
    return Net(nn.Sequential(first, second), WIDTH)


SEEN = [0.0]


def elsewhere(x: Tensor) -> Tensor:
    """Keep something where nobody looks."""
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


MIXING = {
    **{
        f"{layer.func.__name__} in train mode": Refused(
            on(layer), r"'layer'.*train mode.*mixes the examples", ALL
        )
        for layer in (
            partial(nn.BatchNorm1d, TOKENS),
            partial(BatchNormAct2d, TOKENS),
            partial(nn.InstanceNorm1d, TOKENS, affine=True, track_running_stats=True),
        )
    },
    "without running statistics": Refused(
        evaluating(on(partial(nn.BatchNorm1d, TOKENS, track_running_stats=False))),
        r"'layer'.*no running statistics.*mixes",
        ALL,
    ),
    **{
        f"examples {how}": Refused(
            on(partial(Function, function)), "Net mixes the examples of a batch", ALL
        )
        for how, function in {
            "centred": lambda x: x - x.mean(0, keepdim=True),
            # As does a scale for the whole batch.
            "a little of each other": lambda x: x + 1e-3 * x.mean(0, keepdim=True),
            "quantised": quantised,
        }.items()
    },
    # Nothing in the shapes tells that an engine would mix examples; the comparison does.
    **{
        f"rows in another order, {width}": Refused(
            on(partial(TokensFirst, width, width), width),
            r"(expanded|bookkeeping)' does not give the gradient of .*'layer\.weight'",
            WITH_RULES,
        )
        for width in (WIDTH, 40)
    },
    "one memory": Refused(tied, r"'layer\.1\.weight' is tied to 'layer\.0", ALL),
    "one memory, half of it frozen": Refused(
        partial(tied, frozen=True), r"'layer\.1\.weight' is tied to 'layer\.0", ALL
    ),
    "unused": Refused(with_unused, r"'?extra\.(bias|weight)'?", ALL),
    "detached": Refused(
        on(partial(Detached, WIDTH)), r"'layer\.weight' have no influence", (*FAST, "auto")
    ),
    "nothing trains": Refused(
        lambda: Net(nn.Identity(), WIDTH).requires_grad_(False), "no trainable parameter"
    ),
    "a function": Refused(lambda: lambda x: x, "found a function; allowed: a torch"),
    "lazy layer": Refused(on(partial(nn.LazyLinear, WIDTH)), r"'layer' \(LazyLinear\)"),
}
UNKNOWN = {
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
        r"'1\.weight' of a Conv2d .*'expanded'",
        ("expanded",),
    ),
    "twice as factors": Refused(
        on(partial(Twice, 40, 40), 40), r"'layer\.weight'.* more than once", ("bookkeeping",)
    ),
    "a head that is used twice": Refused(
        lambda: HeadTwice(nn.Identity(), 40), r"'head\.weight'.*(twice|more than once)", WITH_RULES
    ),
    "Sequential": Refused(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(TOKENS * WIDTH, CLASSES)),
        "found Sequential",
        ("linear",),
    ),
    "without bias": Refused(
        lambda: nn.Linear(WIDTH, CLASSES, bias=False), "found Linear with weight that", ("linear",)
    ),
    **{
        f"{layer.func.__name__} by Opacus": Refused(
            on(layer), r"'layer'.*refused by Opacus", ("opacus",)
        )
        for layer in (partial(nn.LSTM, WIDTH, WIDTH), partial(nn.MultiheadAttention, WIDTH, 2))
    },
    # Its hooks would put them in train mode.
    **{
        f"{layer.__name__} by Opacus": Refused(
            evaluating(on(partial(layer, TOKENS))), r"'layer'.*hooks of Opacus", ("opacus",)
        )
        for layer in (nn.BatchNorm1d, BatchNormAct2d)
    },
    "one parameter under two names": Refused(
        partial(tied, parameter=True), r"'layer\.1\.weight' is tied to 'layer\.0", ("opacus",)
    ),
}


# -- networks that keep something of the examples ---------------------------------------------------


class Keeping(nn.Module):
    """Does something with its inputs, and gives them on."""

    def __init__(
        self, keep: Callable[[Any, Tensor], object], *, persistent: bool = True, **state: Any
    ) -> None:
        super().__init__()
        self.keep = keep
        for name, value in state.items():
            if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
                self.register_buffer(name, value, persistent=persistent)
            else:
                setattr(self, name, value)

    def forward(self, x: Tensor) -> Tensor:
        self.keep(self, x)
        return x


class Sharing(Keeping):
    """Has an attribute that all layers of its kind share."""

    seen: ClassVar[list[Tensor]] = []


class Counting(nn.Module):
    """Has its counter in the state, and nowhere else where one would look."""

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


def replace_mean(self: Any, x: Tensor) -> None:
    self.mean = moved(self, x)


def write(self: Any, x: Tensor) -> None:
    self.mean.copy_(moved(self, x))


def initialise(self: Any, x: Tensor) -> None:
    """Note the mean of the first batch, for all later ones (ActNorm)."""
    if not self.done:
        [*self.parameters(), *self.buffers(), *vars(self).get("kept", [])][0].data.copy_(
            x.mean((0, 1))
        )
        self.done = True


def statistics(keep: Callable[[Any, Tensor], object] = write, **options: Any) -> nn.Module:
    return Net(Keeping(keep, mean=torch.zeros(WIDTH), **options), WIDTH)


def keeping(
    attribute: str, first: Any, new: Callable[[Any, Tensor], Any]
) -> Callable[[], nn.Module]:
    """Build a network one of whose layers changes an attribute with every batch."""

    def keep(self: Any, x: Tensor) -> None:
        setattr(self, attribute, new(getattr(self, attribute), x))

    return lambda: Net(Keeping(keep, **{attribute: first}), WIDTH)


def hooked(kind: str) -> nn.Module:
    layer = nn.Linear(WIDTH, WIDTH)
    layer.register_buffer("seen", torch.zeros(()))
    seen: Tensor = layer.seen  # type: ignore[assignment]
    if kind == "backward":
        layer.register_full_backward_hook(lambda module, *_: module.seen.add_(1) and None)
    else:  # knows the layer itself, also on a copy of it
        layer.register_forward_hook(lambda *found: seen.add_(found[2].detach().sum()) and None)
    return layer


class Texts(nn.Module):
    def __init__(self, table: nn.Module) -> None:
        super().__init__()
        self.table, self.head = table, nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        rows = self.table(tokens)
        logits: Tensor = self.head(rows if rows.dim() == 2 else rows.mean(1))
        return logits


class LookUp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(VOCABULARY, WIDTH))

    def forward(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self.weight, None, 1e6)


def texts(layer: Callable[..., nn.Module], largest: float, *, frozen: bool = False) -> nn.Module:
    return Texts(layer(VOCABULARY, WIDTH, max_norm=largest).requires_grad_(not frozen))


KEEPING = {
    **{
        f"statistics that are {how}, {'' if kept else 'not '}persistent": Refused(
            partial(statistics, keep, persistent=kept), r"layer\.mean"
        )
        for how, keep in {
            "written": write,
            "written behind torch's back": lambda self, x: self.mean.data.copy_(moved(self, x)),
            "replaced": replace_mean,
        }.items()
        for kept in (True, False)
    },
    "statistics in train mode": Refused(
        partial(statistics, lambda self, x: self.training and write(self, x)),
        r"layer\.mean.*eval\(\)",
    ),
    "statistics in eval mode": Refused(
        evaluating(partial(statistics, lambda self, x: self.training or write(self, x))),
        r"layer\.mean",
    ),
    "statistics without gradients": Refused(
        evaluating(partial(statistics, lambda self, x: torch.is_grad_enabled() or write(self, x))),
        r"layer\.mean",
    ),
    "counter": Refused(
        on(lambda: Keeping(lambda self, _: self.count.add_(1), count=torch.tensor(0))),
        r"layer\.count",
        ("auto", "loop"),
    ),
    "frozen counter": Refused(
        on(
            lambda: Keeping(
                lambda self, _: self.count.add_(1),
                count=nn.Parameter(torch.zeros(()), requires_grad=False),
            )
        ),
        r"layer\.count",
    ),
    "counter of Python": Refused(keeping("count", 0, lambda count, _: count + 1), r"layer\.count"),
    "extra state": Refused(on(Counting), r"layer\._extra_state"),
    "bank": Refused(
        keeping("bank", [], lambda bank, x: [*bank, x.detach()]),
        r"layer\.bank\[0\]",
        ("auto", "vmap"),
    ),
    "last batch": Refused(keeping("last", None, lambda _, x: x.detach()), r"layer\.last"),
    "last graph": Refused(keeping("last", None, lambda _, x: [2 * x]), r"layer\.last\[0\]"),
    "attribute of a class": Refused(
        on(lambda: Sharing(lambda self, x: self.seen.append(x.detach()))), r"Sharing\.seen"
    ),
    "numpy": Refused(
        keeping("sum", np.zeros(1), lambda sum, x: sum + float(x.sum())), r"layer\.sum"
    ),
    "number": Refused(keeping("last", 0.0, lambda _, x: float(x.sum())), r"layer\.last"),
    "tokens": Refused(
        keeping("bank", set(), lambda bank, x: bank | {float(x.sum())}), r"layer\.bank"
    ),
    "object": Refused(
        keeping("bank", None, lambda _, x: SimpleNamespace(items={"last": x.detach().sum()})),
        r"layer\.bank\.items\['last'\]",
    ),
    **{
        f"first batch in {place}": Refused(
            on(lambda state=state: Keeping(initialise, done=False, **state())), r"layer\.kept"
        )
        for place, state in {
            "a parameter": lambda: {"kept": nn.Parameter(torch.zeros(WIDTH))},
            "a buffer": lambda: {"kept": torch.zeros(WIDTH)},
            "an attribute": lambda: {"kept": [torch.zeros(WIDTH)]},
        }.items()
    },
    "layer in a list": Refused(
        on(lambda: Keeping(lambda self, x: self.blocks[0](x), blocks=[statistics().layer])),
        r"layer\.blocks\[0\]",
    ),
    "backward hook": Refused(on(partial(hooked, "backward")), r"layer\.seen"),
    "hook that knows the layer": Refused(on(partial(hooked, "forward")), r"layer\.seen"),
    "spectral norm": Refused(
        on(lambda: parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH))),
        r"parametrizations\.weight\.0\._[uv]",
    ),
    "embedding": Refused(partial(texts, nn.Embedding, 1.0), r"table\.weight", ("auto", "opacus")),
    "embedding whose rows are short": Refused(
        partial(texts, nn.Embedding, 1e6), r"table\.weight.*max_norm"
    ),
    "frozen embedding": Refused(partial(texts, nn.Embedding, 1.0, frozen=True), r"table\.weight"),
    "bag": Refused(partial(texts, nn.EmbeddingBag, 1.0), r"table\.weight"),
    "look-up": Refused(lambda: Texts(LookUp()), r"table\.weight.*max_norm"),
    "inputs": Refused(
        on(lambda: Keeping(lambda _, x: x.mul_(2))), r"changes its inputs in place.*clone"
    ),
    "nothing that can be seen": Refused(
        on(partial(Function, elsewhere)),
        "other outputs when it sees the same inputs",
        ("loop",),
    ),
}


# -- outputs that are no logits, and dropout --------------------------------------------------------


class Outputs(nn.Module):
    def __init__(self, change: Callable[[Tensor], Any], classes: int = CLASSES) -> None:
        super().__init__()
        self.head, self.change = nn.Linear(WIDTH, classes), change

    def forward(self, x: Tensor) -> Any:
        return self.change(self.head(x.mean(1)))


OUTPUTS = {
    name: Refused(partial(Outputs, change, classes), said, ("auto", "loop"))
    for name, change, classes, said in (
        ("one logit", lambda y: y, 1, "found 1 for each example.*two or more"),
        ("no classes", lambda y: y[:, 0], CLASSES, r"outputs: found float32 of shape \(3,\)"),
        ("another dimension", lambda y: y[..., None], CLASSES, r"\(3, 5, 1\) for 3 examples"),
        ("pairs", lambda y: (y, y), CLASSES, "outputs: found a tuple"),
        ("a dictionary", lambda y: {"logits": y}, CLASSES, "outputs: found a dict"),
        (
            *("an output of transformers", lambda y: SimpleNamespace(logits=y), CLASSES),
            "outputs: found a SimpleNamespace.*return its logits",
        ),
        ("classes", lambda y: y.argmax(1), CLASSES, "outputs: found int64"),
        ("fewer rows", lambda y: y[:1], CLASSES, r"\(1, 5\) for 3 examples"),
    )
} | {
    "dropout": Refused(
        on(lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5))),
        r"random numbers in 'layer\.1' \(Dropout\).*eval\(\)",
        ("auto", "expanded", "vmap"),
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
def test_refused_by_name(case: str, engine: str) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)  # of other weights, spectral norms may have converged already
        model = REFUSED[case].build()
    before, given = state(model), batch(model)
    inputs = given[0].clone()
    with pytest.raises(UnsupportedModelError, match=REFUSED[case].said):
        make_engine(engine, model).clipped_sum(*given, NoClipping())
    torch.testing.assert_close(state(model), before, rtol=0, atol=0)
    assert torch.equal(given[0], inputs)


@pytest.mark.parametrize(
    ("engine", "head", "options", "said"),
    [
        ("ghost", HEAD, {}, "engine 'ghost': choose one of auto, linear, expanded"),
        ("opacus", HEAD, {"autocast": torch.bfloat16}, "use no autocast"),
        ("loop", HEAD | {"head.scale"}, {}, r"found head\.scale; allowed: names of"),
    ],
)
def test_engines_that_cannot_be_made(
    engine: str, head: frozenset[str], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        make_engine(engine, Net(nn.Identity(), WIDTH), head, **options)


class Spoiled(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        input = input.clone()
        output = super().forward(input)
        input.zero_()
        return output


def test_input_modified_in_place() -> None:
    """Under autocast, training without privacy does not notice: it keeps a copy of the input."""
    model = Net(Spoiled(40, 40), 40)
    with pytest.raises(UnsupportedModelError, match="modified in place"):
        BookkeepingEngine(model, HEAD).clipped_sum(*batch(model), NoClipping())


# -- texts that say little ---------------------------------------------------------------------


class FewTokens(nn.Module):
    """Mixes examples, or keeps the last batch."""

    def __init__(self, *, mixes: bool) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(20, WIDTH), nn.Linear(WIDTH, 3)
        self.mixes, self.last = mixes, None

    def forward(self, tokens: Tensor) -> Tensor:
        rows = self.table(tokens).flatten(1)[:, -WIDTH:]
        if not self.mixes:
            self.last = tokens
        logits: Tensor = self.head(rows - rows.mean(0, keepdim=True) if self.mixes else rows)
        return logits


@pytest.mark.parametrize(
    "tokens",
    [
        *([[7], [3], [5], [9]], [[1, 1, 1, 1], [2, 3, 4, 5]], [[7, 7, 7]]),
        *([7, 7], [[4, 5, 6]], [4, 5, 6], [[3], [3]]),
    ],
    ids=str,
)
@pytest.mark.parametrize("mixes", [True, False])
def test_texts_that_are_the_same_in_another_order(tokens: list[Any], mixes: bool) -> None:
    """Nothing would tell that they are mixed, or that what is kept of them is no cache of constants."""
    inputs = torch.tensor(tokens)
    labels = torch.zeros(len(inputs), dtype=torch.int64)
    said = "FewTokens mixes the examples" if mixes else "'last'"
    with pytest.raises(UnsupportedModelError, match=said):
        make_engine("auto", FewTokens(mixes=mixes)).norms(inputs, labels, labels == 0)
