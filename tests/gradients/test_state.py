"""No pass leaves something of its examples in the network: what would is refused by name."""

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from peft import LoraConfig, inject_adapter_in_model
from tests.gradients.tiny_models import CLASSES, Net
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from dpsweep.gradients import UnsupportedModelError, make_engine
from dpsweep.models.architecture import BackboneError
from dpsweep.models.representation import Representation
from dpsweep.models.wide_resnet import WideResNet
from dpsweep.study.clipping import FlatClipping, NoClipping
from dpsweep.study.config import Features
from dpsweep.training.features import check_representation
from dpsweep.training.optimizer import PrivateOptimizer
from dpsweep.training.randomness import GaussianNoise

WIDTH, TOKENS, EXAMPLES, VOCABULARY = 4, 3, 6, 50


class Statistics(nn.Module):
    """Keeps a mean of its inputs."""

    mean: Tensor

    def __init__(self, how: str, when: str = "always", persistent: bool = True) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH), persistent=persistent)
        self.how, self.when = how, when

    def forward(self, x: Tensor) -> Tensor:
        now = {"train": self.training, "eval": not self.training, "always": True}
        if now.get(self.when, not torch.is_grad_enabled()):
            mean = 0.99 * self.mean + 0.01 * x.detach().mean((0, 1))
            if self.how == "written":
                self.mean.copy_(mean)
            elif self.how == "data":
                self.mean.data.copy_(mean)
            else:
                self.mean = mean
        return x


class Counter(nn.Module):
    def __init__(self, count: Any) -> None:
        super().__init__()
        if isinstance(count, nn.Parameter):
            self.count = count
        elif isinstance(count, Tensor):
            self.register_buffer("count", count)
        else:
            self.count = count

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.count, Tensor):
            with torch.no_grad():
                self.count.add_(1)
        else:
            self.count += 1
        return x


class Extra(Counter):
    """Has its counter in the state, and nowhere else where one would look."""

    def __init__(self) -> None:
        super().__init__(0)
        count = [0]
        self.tick, self.read = lambda: count.__setitem__(0, count[0] + 1), lambda: count[0]

    def forward(self, x: Tensor) -> Tensor:
        self.tick()
        return x

    def get_extra_state(self) -> int:
        return self.read()

    def set_extra_state(self, state: Any) -> None:
        pass


class Bank(nn.Module):
    """Keeps its inputs in an attribute."""

    def __init__(self, bank: Any, keep: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.bank, self.keep = bank, keep

    def forward(self, x: Tensor) -> Tensor:
        self.bank = self.keep(self.bank, x)
        return x


class OfAClass(nn.Module):
    """Keeps its inputs in an attribute that all layers of its kind share."""

    seen: ClassVar[list[Tensor]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x.detach())
        return x


class Memory:
    def __init__(self) -> None:
        self.items: dict[str, Tensor] = {}


def remember(bank: Memory, x: Tensor) -> Memory:
    bank.items["last"] = x.detach().sum()
    return bank


class Initialised(nn.Module):
    """Shifts its first batch to zero, and all others alike (ActNorm)."""

    shift: Tensor

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.done = kind, False
        if kind == "parameter":
            self.shift = nn.Parameter(torch.zeros(WIDTH))
        elif kind == "buffer":
            self.register_buffer("shift", torch.zeros(WIDTH))
        else:
            self.shift = torch.zeros(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        if not self.done:
            with torch.no_grad():
                self.shift.copy_(x.mean((0, 1)))
            self.done = True
        return x - self.shift


class Unregistered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = [Statistics("written")]

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks[0](x)
        return x


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


def frozen(module: nn.Module) -> nn.Module:
    return module.requires_grad_(False)


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    **{
        f"statistics that are {how}, {'' if kept else 'not '}persistent": (
            lambda how=how, kept=kept: Net(Statistics(how, persistent=kept), WIDTH),
            r"layer\.mean",
        )
        for how in ("written", "data", "replaced")
        for kept in (True, False)
    },
    "statistics in train mode": (
        lambda: Net(Statistics("written", "train"), WIDTH),
        r"layer\.mean.*eval\(\)",
    ),
    "statistics in eval mode": (
        lambda: Net(Statistics("written", "eval"), WIDTH).eval(),
        r"layer\.mean",
    ),
    "statistics without gradients": (
        lambda: Net(Statistics("written", "never trained"), WIDTH).eval(),
        r"layer\.mean",
    ),
    "counter": (lambda: Net(Counter(torch.tensor(0)), WIDTH), r"layer\.count"),
    "frozen counter": (
        lambda: Net(Counter(nn.Parameter(torch.zeros(()), requires_grad=False)), WIDTH),
        r"layer\.count",
    ),
    "counter of Python": (lambda: Net(Counter(0), WIDTH), r"layer\.count"),
    "extra state": (lambda: Net(Extra(), WIDTH), r"layer\._extra_state"),
    "bank": (
        lambda: Net(Bank([], lambda bank, x: [*bank, x.detach()]), WIDTH),
        r"layer\.bank\[0\]",
    ),
    "last batch": (lambda: Net(Bank(None, lambda _, x: x.detach()), WIDTH), r"layer\.bank"),
    "last graph": (lambda: Net(Bank(None, lambda _, x: [2 * x]), WIDTH), r"layer\.bank\[0\]"),
    "attribute of a class": (lambda: Net(OfAClass(), WIDTH), r"OfAClass\.seen"),
    "numpy": (
        lambda: Net(Bank(np.zeros(1), lambda bank, x: bank + float(x.sum())), WIDTH),
        r"layer\.bank",
    ),
    "number": (lambda: Net(Bank(0.0, lambda _, x: float(x.sum())), WIDTH), r"layer\.bank"),
    "tokens": (
        lambda: Net(Bank(set(), lambda bank, x: bank | {float(x.sum())}), WIDTH),
        r"layer\.bank",
    ),
    "object": (lambda: Net(Bank(Memory(), remember), WIDTH), r"layer\.bank\.items\['last'\]"),
    **{
        f"first batch in a {kind}": (
            lambda kind=kind: Net(Initialised(kind), WIDTH),
            r"layer\.shift",
        )
        for kind in ("parameter", "buffer", "attribute")
    },
    "layer in a list": (lambda: Net(Unregistered(), WIDTH), r"layer\.blocks\[0\]"),
    "backward hook": (lambda: Net(hooked("backward"), WIDTH), r"layer\.seen"),
    "hook that knows the layer": (lambda: Net(hooked("forward"), WIDTH), r"layer\.seen"),
    "spectral norm": (
        lambda: Net(parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)), WIDTH),
        r"parametrizations\.weight\.0\._[uv]",
    ),
    "embedding": (lambda: Texts(nn.Embedding(VOCABULARY, WIDTH, max_norm=1.0)), r"table\.weight"),
    "embedding whose rows are short": (
        lambda: Texts(nn.Embedding(VOCABULARY, WIDTH, max_norm=1e6)),
        r"table\.weight.*max_norm",
    ),
    "frozen embedding": (
        lambda: Texts(frozen(nn.Embedding(VOCABULARY, WIDTH, max_norm=1.0))),
        r"table\.weight",
    ),
    "bag": (lambda: Texts(nn.EmbeddingBag(VOCABULARY, WIDTH, max_norm=1.0)), r"table\.weight"),
    "look-up": (lambda: Texts(LookUp()), r"table\.weight.*max_norm"),
    "lazy layer": (lambda: Net(nn.LazyLinear(WIDTH), WIDTH), r"'layer' \(LazyLinear\)"),
}


def batch(model: nn.Module) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    if isinstance(model, Texts):
        inputs = torch.randint(VOCABULARY // 2, (EXAMPLES, TOKENS), generator=generator)
    else:
        inputs = torch.randn(EXAMPLES, TOKENS, WIDTH, generator=generator)
    return inputs, torch.arange(EXAMPLES) % CLASSES, torch.arange(EXAMPLES) != 2


def state(model: nn.Module) -> dict[str, Any]:
    return {
        name: each.clone() if isinstance(each, Tensor) else each
        for name, each in {**model.state_dict(), **dict(model.named_buffers())}.items()
    }


@pytest.mark.parametrize(
    ("case", "engine"),
    [
        *((case, "auto") for case in REFUSED),
        ("counter", "loop"),
        ("embedding", "opacus"),
        ("bank", "vmap"),
    ],
)
def test_what_keeps_something_of_the_examples_is_refused_by_name(case: str, engine: str) -> None:
    build, name = REFUSED[case]
    with torch.random.fork_rng():
        torch.manual_seed(0)  # of other weights, spectral norms may have converged already
        model = build()
    lazy = case == "lazy layer"
    before = {} if lazy else state(model)
    with pytest.raises(UnsupportedModelError, match=name):
        make_engine(engine, model).clipped_sum(*batch(model), NoClipping())
    if (
        not lazy and case != "extra state"
    ):  # nothing can take back what a function of the user counts
        torch.testing.assert_close(state(model), before, rtol=0, atol=0)


class LastTokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head, self.last = nn.Embedding(9, WIDTH), nn.Linear(WIDTH, CLASSES), None

    def forward(self, tokens: Tensor) -> Tensor:
        self.last = tokens
        logits: Tensor = self.head(self.table(tokens.view(len(tokens), -1)).mean(1))
        return logits


@pytest.mark.parametrize("tokens", [[[4, 5, 6]], [4, 5, 6], [[3], [3]]])
def test_few_tokens_show_what_is_kept(tokens: list[Any]) -> None:
    """With other examples that are the same, the last batch would look like a cache of constants."""
    inputs = torch.tensor(tokens)
    labels = torch.zeros(len(inputs), dtype=torch.int64)
    with pytest.raises(UnsupportedModelError, match="'last'"):
        make_engine("auto", LastTokens()).norms(inputs, labels, labels == 0)


class Cache(nn.Module):
    """Fills a cache that is the same whatever the examples are."""

    def __init__(self) -> None:
        super().__init__()
        self.cache: dict[int, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        places = self.cache.setdefault(x.shape[1], torch.arange(x.shape[1], dtype=x.dtype))
        return x + places[:, None]


class NotANumber(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("unknown", torch.full((2,), float("nan")))
        self.level = float("nan")

    def forward(self, x: Tensor) -> Tensor:
        return x


HARMLESS: dict[str, Callable[[], nn.Module]] = {
    "cache of constants": lambda: Net(Cache(), WIDTH),
    "NaN": lambda: Net(NotANumber(), WIDTH),
    "statistics in train mode, in eval mode": lambda: Net(
        Statistics("written", "train"), WIDTH
    ).eval(),
    "batch normalisation in eval mode": lambda: Net(nn.BatchNorm1d(TOKENS), WIDTH).eval(),
    "spectral norm in eval mode": lambda: Net(
        parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)), WIDTH
    ).eval(),
    "weight norm": lambda: Net(parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)), WIDTH),
    "weights that a hook computes": lambda: Net(
        torch.nn.utils.weight_norm(nn.Linear(WIDTH, WIDTH)), WIDTH
    ),
    "dropout": lambda: Net(nn.Dropout(0.5), WIDTH).eval(),
    "embedding": lambda: Texts(nn.Embedding(VOCABULARY, WIDTH)),
    "sparse embedding": lambda: Texts(nn.Embedding(VOCABULARY, WIDTH, sparse=True)),
}


def by_hand(model: nn.Module, inputs: Tensor, labels: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """Clip and sum the gradients of single examples in float64."""
    parameters = dict(model.named_parameters())
    total = {name: torch.zeros_like(each) for name, each in parameters.items()}
    for x, y in zip(inputs[mask], labels[mask], strict=True):
        model.zero_grad()
        F.cross_entropy(model(x[None]), y[None]).backward()
        gradients = {name: torch.zeros_like(each) + each.grad for name, each in parameters.items()}
        norm = sum(float(each.square().sum()) for each in gradients.values()) ** 0.5
        for name, each in gradients.items():
            total[name] += each * min(1 / 0.5, 1 / norm)
    return total


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", HARMLESS)
def test_what_keeps_nothing_gives_the_gradients_of_single_examples(case: str) -> None:
    model = HARMLESS[case]().double()
    inputs, labels, mask = batch(model)
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    found = make_engine("auto", model).clipped_sum(inputs, labels, mask, FlatClipping(0.5))
    wanted = by_hand(model, inputs, labels, mask)
    torch.testing.assert_close(found.gradients, wanted, rtol=1e-8, atol=1e-10)


class Later(nn.Module):
    """Begins to write long after the first pass."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))
        begun = self.begun = [False]
        self.write = lambda: begun[0]
        del self.begun
        self.begin = lambda: begun.__setitem__(0, True)

    def forward(self, x: Tensor) -> Tensor:
        if self.write():
            with torch.no_grad():
                self.mean.add_(x.mean((0, 1)))
        return x


@pytest.mark.parametrize("engine", ["auto", "loop", "vmap"])
def test_what_begins_to_write_later_updates_nothing(engine: str) -> None:
    model = Net(Later(), WIDTH)
    private = PrivateOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0),
        make_engine(engine, model),
        FlatClipping(1.0),
        noise_multiplier=1.0,
        expected_batch_size=4,
        noise=GaussianNoise("later", secret=b""),
    )
    private.step([batch(model)])
    before = model.head.weight.clone()
    model.layer.begin()  # type: ignore[operator, union-attr]
    # Functions of torch's own refuse to write, in words of their own.
    with pytest.raises(
        (UnsupportedModelError, RuntimeError), match=r"layer\.mean|in-place|inplace"
    ):
        private.step([batch(model)])
    assert torch.equal(model.head.weight, before)


def test_a_layer_that_is_put_in_train_mode_later() -> None:
    model = Net(Statistics("written", "train"), WIDTH).eval()
    engine = make_engine("auto", model)
    engine.norms(*batch(model))
    model.train()
    with pytest.raises(UnsupportedModelError, match=r"layer\.mean"):
        engine.norms(*batch(model))
    model.eval()
    engine.norms(*batch(model))


SEEN = [0.0]


class Elsewhere(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        SEEN[0] += 0.1
        return x * (1 + SEEN[0])


def test_state_outside_of_the_network() -> None:
    model = Net(Elsewhere(), WIDTH)
    with pytest.raises(UnsupportedModelError, match="other outputs when it sees the same inputs"):
        make_engine("loop", model).norms(*batch(model))


def test_inputs_that_are_changed_in_place() -> None:
    class Doubled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mul_(2)

    model = Net(Doubled(), WIDTH)
    inputs, labels, mask = batch(model)
    before = inputs.clone()
    with pytest.raises(UnsupportedModelError, match=r"changes its inputs in place.*clone"):
        make_engine("auto", model).norms(inputs, labels, mask)
    assert torch.equal(inputs, before)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.attention(x, x, x, need_weights=False)[0]
        return y


def test_an_engine_that_fails_halfway_leaves_nothing_to_the_next() -> None:
    """peft merges its adapters into the weights of attention, and takes them out again."""
    model = Net(Attention(), WIDTH)
    configuration = LoraConfig(r=2, target_modules=["attention"], init_lora_weights=False)
    inject_adapter_in_model(configuration, model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name or "head" in name)
    model.double()
    inputs, labels, mask = batch(model)
    engine = make_engine("auto", model)
    found = engine.clipped_sum(inputs.double(), labels, mask, FlatClipping(0.5))
    names = set(found.gradients)
    model.requires_grad_(False)
    model.zero_grad()
    for name in names:
        model.get_parameter(name).requires_grad_()
    wanted = make_engine("loop", model).clipped_sum(
        inputs.double(), labels, mask, FlatClipping(0.5)
    )
    torch.testing.assert_close(found.gradients, wanted.gradients, rtol=1e-8, atol=1e-10)


def replace_head(model: nn.Module) -> None:
    model.head = nn.Linear(WIDTH, CLASSES)


def add_parameter(model: nn.Module) -> None:
    model.head.added = nn.Parameter(torch.zeros(()))


def change_shape(model: nn.Module) -> None:
    model.head.weight.data = torch.zeros(CLASSES + 1, WIDTH)


CHANGES: dict[str, tuple[Callable[[nn.Module], object], str]] = {
    "frozen": (lambda model: model.head.bias.requires_grad_(False), r"'head\.bias'"),
    "unfrozen": (lambda model: model.layer.weight.requires_grad_(), r"'layer\.weight'"),
    "replaced": (replace_head, r"'head\.weight', 'head\.bias'"),
    "added": (add_parameter, r"'head\.added'"),
    "another shape": (change_shape, r"'head\.weight'"),
    "another dtype": (lambda model: model.double(), r"'head\.weight', 'head\.bias'"),
    "another device": (lambda model: model.to("meta"), r"'head\.weight', 'head\.bias'"),
}


@pytest.mark.parametrize("engine", ["auto", "loop"])
@pytest.mark.parametrize("change", CHANGES)
def test_what_trains_must_stay_the_same(change: str, engine: str) -> None:
    model = Net(frozen(nn.Linear(WIDTH, WIDTH)), WIDTH)
    made = make_engine(engine, model)
    made.norms(*batch(model))
    make_change, names = CHANGES[change]
    make_change(model)
    with pytest.raises(UnsupportedModelError, match=rf"what trains has changed.*{names}"):
        made.clipped_sum(*batch(model), NoClipping())


def network() -> WideResNet:
    return WideResNet(CLASSES, depth=10, width=1).eval()


class Centred(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0, keepdim=True)


class Running(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.mean += x.mean()
        return x - self.mean


@pytest.mark.parametrize(
    ("layer", "problem"),
    [(Running(), r"writes.*mean"), (Centred(), "mixes the examples")],
    ids=type,
)
def test_features_of_an_example_depend_on_no_other(layer: nn.Module, problem: str) -> None:
    images, others = torch.randn(2, 3, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    model = network()
    check_representation(Representation(model, Features()), images, others)
    model = network()
    first = next(name for name, each in model.named_children() if isinstance(each, nn.Conv2d))
    setattr(model, first, nn.Sequential(layer, model.get_submodule(first)))
    with pytest.raises(BackboneError, match=problem):
        check_representation(Representation(model, Features()), images, others)
