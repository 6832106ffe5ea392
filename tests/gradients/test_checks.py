"""Before the first step, networks and micro-batches are computed rightly or refused with one sentence."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from peft import LoraConfig, inject_adapter_in_model
from tests.gradients.reference import check
from tests.gradients.tiny_models import (
    CLASSES,
    HEAD,
    Case,
    Layer,
    Net,
    ReadsValues,
    TokensFirst,
    make,
    random,
)
from torch import Tensor, nn
from torch.nn.utils import parametrizations, weight_norm

from dpsweep.gradients import GradientSum, UnsupportedModelError, make_engine
from dpsweep.gradients.checks import ValidatingEngine
from dpsweep.gradients.engines import BookkeepingEngine, LoopEngine
from dpsweep.gradients.refusals import check_model
from dpsweep.models.representation import Representation
from dpsweep.models.wide_resnet import WideResNet
from dpsweep.study.clipping import FlatClipping, NoClipping
from dpsweep.study.networks import BackboneError, Features
from dpsweep.training.features import check_representation
from dpsweep.training.optimizer import PrivateOptimizer
from dpsweep.training.randomness import GaussianNoise

WIDTH, TOKENS, EXAMPLES, VOCABULARY = 4, 3, 6, 50

Build = Callable[[], Any]
Keep = Callable[[Any, Tensor], object]


def on(layer: Build, width: int = WIDTH, *, train: bool = True) -> Build:
    return lambda: Net(layer(), width).train(train)


def of(function: Keep, kind: type[Layer] = Layer, width: int = WIDTH, **state: Build) -> Build:
    """Return a builder of a layer with a function, and with state that other functions make."""
    return on(lambda: kind(function, **{name: made() for name, made in state.items()}), width)


def square(width: int = WIDTH) -> nn.Linear:
    return nn.Linear(width, width)


def linear_of(function: Callable[[Tensor], Tensor]) -> Build:
    """Return a builder of a linear layer on a function of the batch."""
    return of(lambda self, x: self.linear(function(x)), linear=square)


class Texts(nn.Module):
    def __init__(self, table: nn.Module) -> None:
        super().__init__()
        self.table, self.head = table, nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        rows = self.table(tokens)
        logits: Tensor = self.head(rows if rows.dim() == 2 else rows.mean(1))
        return logits


def batch(model: Any) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    if isinstance(model, Texts):
        inputs = torch.randint(VOCABULARY // 2, (EXAMPLES, TOKENS), generator=generator)
    else:
        width = model.head.in_features if hasattr(model, "head") else WIDTH
        tokens = [] if isinstance(model, nn.Linear) else [TOKENS]
        inputs = torch.randn(EXAMPLES, *tokens, width, generator=generator)
    return inputs, torch.arange(EXAMPLES) % CLASSES, torch.arange(EXAMPLES) != 2


# -- networks without per-example gradients ---------------------------------------------------------


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
    first, second = square(), square()
    if parameter:
        second.weight = first.weight
    else:
        second.weight.data = first.weight.data
    first.weight.requires_grad_(not frozen)
    return Net(nn.Sequential(first, second), WIDTH)


def without_influence(self: Any, x: Tensor) -> Tensor:
    return F.layer_norm(x, (WIDTH,), self.used.weight.detach(), self.used.bias)


def read_by_hook() -> nn.Module:
    """Return a layer whose hook reads its weight, by less than the comparison with the loop allows."""
    layer = square()
    layer.register_forward_hook(lambda self, _, x: x * (1 + 1e-3 * self.weight.mean()))
    return layer


TRAIN_MODE = r"'layer'.*train mode.*mixes the examples", "auto", "loop", "opacus"
MIXES = "Net mixes the examples of a batch", "auto", "loop", "opacus"
READ_OUTSIDE = r"'layer\.\w*\.?\w+' is read outside of its layer, by \w+\(\)", "opacus"
WITH_RULES = "expanded", "bookkeeping"
# A network, the message of its refusal, and the engines that refuse it (none: auto).
UNCOMPUTED: dict[str, tuple[Any, ...]] = {
    "batch normalisation in train mode": (on(partial(nn.BatchNorm1d, TOKENS)), *TRAIN_MODE),
    "statistics of instances": (
        on(partial(nn.InstanceNorm1d, TOKENS, affine=True, track_running_stats=True)),
        *TRAIN_MODE,
    ),
    "without running statistics": (
        on(partial(nn.BatchNorm1d, TOKENS, track_running_stats=False), train=False),
        r"'layer'.*no running statistics.*mixes",
    ),
    "fails on one example": (
        linear_of(several),
        *(r"Net cannot compute one example alone \(not one\)", "auto", "vmap"),
    ),
    "a little of each other": (linear_of(lambda x: x + 1e-3 * x.mean(0, keepdim=True)), *MIXES),
    "a scale for the whole batch": (linear_of(quantised), *MIXES),
    # Shapes do not show that an engine would mix examples; the comparison does.
    "rows in another order": (
        on(partial(TokensFirst, WIDTH, WIDTH)),
        r"(expanded|bookkeeping)' does not give the gradient of .*'layer\.weight'",
        *WITH_RULES,
    ),
    "rows in another order, by Opacus": (
        of(lambda self, x: self.one(x.transpose(0, 1)).transpose(0, 1), one=square),
        *(r"'opacus' does not give the gradient of parameter", "opacus"),
    ),
    "one memory": (tied, r"'layer\.1\.weight' is tied to 'layer\.0"),
    "one memory, half of it frozen": (partial(tied, frozen=True), r"\.1\.weight' is tied to 'lay"),
    "one parameter under two names": (partial(tied, parameter=True), *READ_OUTSIDE),
    "detached and unused": (
        of(without_influence, used=partial(nn.LayerNorm, WIDTH), extra=square),
        r"'layer\.extra\.bias', 'layer\.extra\.weight', 'layer\.used\.weight' have no influence",
        *(*WITH_RULES, "vmap", "opacus"),
    ),
    "nothing trains": (lambda: tied().requires_grad_(False), "no trainable parameter"),
    "padding of an embedding": (
        lambda: Texts(nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)),
        *(r"'table' \(Embedding\) has padding_idx", "opacus"),
    ),
    "frequencies of an embedding": (
        lambda: Texts(nn.Embedding(VOCABULARY, WIDTH, scale_grad_by_freq=True)),
        *(r"'table' \(Embedding\) has scale_grad_by_freq", "opacus"),
    ),
    # The norm of its gradient differs by less than the comparison with the loop allows.
    "a weight that a factor uses too": (
        of(lambda self, x: self.one(x) * (1 + 1e-3 * self.one.weight.mean()), one=square),
        *READ_OUTSIDE,
    ),
    "a bias that an offset uses too": (
        of(lambda self, x: self.one(x) + 1e-3 * self.one.bias.sum(), one=square),
        *READ_OUTSIDE,
    ),
    "a weight that a hook of its layer uses too": (on(read_by_hook), *READ_OUTSIDE),
    "an error of Opacus": (
        on(partial(nn.LayerNorm, WIDTH, bias=False)),
        *("'opacus' cannot compute Net", "opacus"),
    ),
    # The message of torch for a vectorised pass names neither the engine nor the network.
    "an error of vmap": (
        on(partial(ReadsValues, WIDTH, WIDTH)),
        *(r"^engine 'vmap' cannot compute Net \(.+\)", "vmap"),
    ),
    "a convolution": (
        lambda: nn.Sequential(nn.Unflatten(1, (1, TOKENS)), nn.Conv2d(1, 1, 2), nn.Flatten()),
        *(r"'1\.weight' of a Conv2d .*'expanded'", "expanded"),
    ),
    "twice as factors": (
        of(lambda self, x: self.one(self.one(x)), width=40, one=partial(square, 40)),
        *(r"'layer\.one\.weight'.* more than once", "bookkeeping"),
    ),
    "a head that is used twice": (
        lambda: Layer(
            lambda self, x: self.head(x.mean(1)) + self.head(x[:, 0]), head=nn.Linear(40, CLASSES)
        ),
        r"'head\.weight'.*(twice|more than once)",
        *WITH_RULES,
    ),
    "Sequential": (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(TOKENS * WIDTH, CLASSES)),
        *("found Sequential", "linear"),
    ),
    "without bias": (
        lambda: nn.Linear(WIDTH, CLASSES, bias=False),
        *("found Linear with weight that", "linear"),
    ),
}


# -- networks that store data of the examples -------------------------------------------------------


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


SEEN = [0.0]


def elsewhere(x: Tensor) -> Tensor:
    """Store a number outside the network."""
    SEEN[0] += 0.1
    return x * (1 + SEEN[0])


def moved(self: Any, x: Tensor) -> Tensor:
    mean: Tensor = 0.99 * self.mean + 0.01 * x.detach().mean((0, 1))
    return mean


def write(self: Any, x: Tensor) -> None:
    self.mean.copy_(moved(self, x))


def write_in_train_mode(self: Any, x: Tensor) -> None:
    if self.training:
        write(self, x)


def statistics(keep: Keep = write, **options: Any) -> nn.Module:
    return Net(Keeping(keep, mean=torch.zeros(WIDTH), **options), WIDTH)


def initialise(self: Any, x: Tensor) -> None:
    """Store the mean of the first batch (ActNorm)."""
    if not self.done:
        kept = self.kept[0] if isinstance(self.kept, list) else self.kept
        kept.data.copy_(x.mean((0, 1)))
        self.done = True


def hooked() -> nn.Module:
    """Return a layer with a hook that writes to the original layer, even from a copy."""
    layer = square()
    layer.register_buffer("seen", torch.zeros(()))
    seen: Tensor = layer.seen  # type: ignore[assignment]
    layer.register_forward_hook(lambda *found: seen.add_(found[2].detach().sum()) and None)
    return layer


keeping = partial(of, kind=Keeping)
KEEPING: dict[str, tuple[Any, ...]] = {
    "statistics": (partial(statistics, persistent=False), r"layer\.mean"),
    "statistics written behind torch's back": (
        partial(statistics, lambda self, x: self.mean.data.copy_(moved(self, x))),
        r"layer\.mean",
    ),
    "statistics that are replaced": (
        partial(statistics, lambda self, x: setattr(self, "mean", moved(self, x))),
        r"layer\.mean",
    ),
    "statistics in train mode": (partial(statistics, write_in_train_mode), r"r\.mean.*eval\(\)"),
    "statistics in eval mode": (
        lambda: statistics(lambda self, x: self.training or write(self, x)).eval(),
        r"layer\.mean",
    ),
    "statistics without gradients": (
        lambda: statistics(lambda self, x: torch.is_grad_enabled() or write(self, x)).eval(),
        r"layer\.mean",
    ),
    "counter": (
        keeping(lambda self, _: self.count.add_(1), count=partial(torch.tensor, 0)),
        *(r"layer\.count", "auto", "loop"),
    ),
    "extra state": (on(Counting), r"layer\._extra_state"),
    "last batch without gradients": (
        keeping(lambda self, x: torch.is_grad_enabled() or setattr(self, "last", x)),
        r"layer\.last",
    ),
    "bank": (keeping(lambda self, x: self.kept.append(x.detach()), kept=list), r"layer\.kept\[0\]"),
    "last graph": (keeping(lambda self, x: setattr(self, "kept", [2 * x])), r"layer\.kept\[0\]"),
    "numpy": (
        keeping(lambda self, x: self.kept.__iadd__(float(x.sum())), kept=partial(np.zeros, 1)),
        r"layer\.kept",
    ),
    "object": (
        keeping(lambda self, x: setattr(self, "kept", SimpleNamespace(last={"sum": x.sum()}))),
        r"layer\.kept\.last\['sum'\]",
    ),
    "attribute of a class": (
        on(lambda: Sharing(lambda self, x: self.seen.append(x.detach()))),
        r"Sharing\.seen",
    ),
    **{
        f"first batch in {place}": (
            keeping(initialise, done=lambda: False, kept=made),
            r"layer\.kept",
        )
        for place, made in {
            "a parameter": partial(random, WIDTH),
            "a buffer": partial(torch.zeros, WIDTH),
            "an attribute": lambda: [torch.zeros(WIDTH)],
        }.items()
    },
    "layer in a list": (
        keeping(lambda self, x: self.blocks[0](x), blocks=lambda: [statistics().layer]),
        r"layer\.blocks\[0\]",
    ),
    "hook": (on(hooked), r"layer\.seen"),
    "spectral norm": (
        on(lambda: parametrizations.spectral_norm(square())),
        r"parametrizations\.weight\.0\._[uv]",
    ),
    "embedding": (
        lambda: Texts(nn.Embedding(VOCABULARY, WIDTH, max_norm=1.0)),
        *(r"table\.weight", "auto", "opacus"),
    ),
    "embedding whose rows are short": (
        lambda: Texts(nn.Embedding(VOCABULARY, WIDTH, max_norm=1e6)),
        r"table\.weight",
    ),
    "bag": (lambda: Texts(nn.EmbeddingBag(VOCABULARY, WIDTH, max_norm=1.0)), r"table\.weight"),
    "inputs": (keeping(lambda _, x: x.mul_(2)), r"changes its inputs in place.*clone"),
    "state outside the network": (
        linear_of(elsewhere),
        *("other outputs when it sees the same inputs", "loop"),
    ),
}


# -- outputs that are not logits, and dropout -------------------------------------------------------


def outputs(change: Callable[[Tensor], Any], classes: int = CLASSES) -> nn.Module:
    return Layer(lambda self, x: change(self.head(x.mean(1))), head=nn.Linear(WIDTH, classes))


OUTPUTS: dict[str, tuple[Any, ...]] = {
    "one class": (lambda: outputs(lambda y: y, 1), r"\(3, 1\) for 3 examples.*two classes or more"),
    "numbers": (lambda: outputs(lambda y: y[:, 0]), r"outputs: found float32 of shape \(3,\)"),
    "maps": (lambda: outputs(lambda y: y[..., None]), r"\(3, 5, 1\) for 3 examples"),
    "tuple": (lambda: outputs(lambda y: (y, y)), "outputs: found a tuple"),
    "object with logits": (
        lambda: outputs(lambda y: SimpleNamespace(logits=y)),
        "outputs: found a SimpleNamespace .*allowed: logits",
    ),
    "predictions": (lambda: outputs(lambda y: y.argmax(1)), "outputs: found int64"),
    "first example": (lambda: outputs(lambda y: y[:1]), r"\(1, 5\) for 3 examples", "auto", "loop"),
    "dropout": (linear_of(nn.Dropout(0.5)), *(r"draws random numbers.*eval\(\)", "auto", "vmap")),
}
REFUSED = UNCOMPUTED | KEEPING | OUTPUTS


def state(model: nn.Module) -> dict[str, Tensor]:
    return {
        name: each.clone() for name, each in [*model.named_parameters(), *model.named_buffers()]
    }


@pytest.mark.parametrize(
    ("case", "engine"),
    [(name, e) for name, (_, _, *engines) in REFUSED.items() for e in engines or ["auto"]],
)
def test_models_are_refused_by_name(case: str, engine: str) -> None:
    """They do not change."""
    build, message, *_ = REFUSED[case]
    with torch.random.fork_rng():
        torch.manual_seed(0)  # with other weights, spectral norms may have converged already
        model = build()
    before, given = state(model), batch(model)
    inputs = given[0].clone()
    with pytest.raises(UnsupportedModelError, match=message):
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


def spoil(self: Any, x: Tensor) -> Tensor:
    x = x.clone()
    y: Tensor = self.one(x)
    x.zero_()
    return y


def test_input_modified_in_place_is_refused() -> None:
    """Under autocast, training without privacy does not fail, because it keeps a copy of the input."""
    model = Net(Layer(spoil, one=square(40)), 40)
    with pytest.raises(UnsupportedModelError, match="modified in place"):
        BookkeepingEngine(model, HEAD).clipped_sum(*batch(model), NoClipping())


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
    ([[7], [3], [5], [9]], [[1, 1, 1, 1], [2, 3, 4, 5]], [[7, 7, 7]], [7, 7], [4, 5, 6]),
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


# -- networks that are computed ---------------------------------------------------------------------


def fill_cache(self: Keeping, x: Tensor) -> None:
    """Store a constant that does not depend on the examples."""
    self.cache.setdefault(x.shape[1], torch.arange(x.shape[1]))


def adapted() -> nn.Module:
    """Return a model with adapters that peft merges into the weights of attention, and removes again.

    An engine that fails halfway must not leave merged weights for the next engine.
    """
    attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
    attend = Layer(lambda self, x: self.one(x, x, x, need_weights=False)[0], one=attention)
    model = Net(attend, WIDTH)
    configuration = LoraConfig(r=2, target_modules=["one"], init_lora_weights=False)
    inject_adapter_in_model(configuration, model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name or "head" in name)
    return model


nan = float("nan")
COMPUTED: dict[str, Build] = {
    "cache of constants": keeping(fill_cache, cache=dict),
    "NaN": on(lambda: Keeping(lambda *_: None, unknown=torch.full((2,), nan), level=nan)),
    "statistics of train mode": partial(statistics, write_in_train_mode),
    "batch normalisation": on(partial(nn.BatchNorm1d, TOKENS)),
    "spectral norm": on(lambda: parametrizations.spectral_norm(square())),
    "weight norm": on(lambda: parametrizations.weight_norm(square())),
    "weights that a hook computes": on(lambda: weight_norm(square())),
    "dropout": on(partial(nn.Dropout, 0.5)),
    "embedding": lambda: Texts(nn.Embedding(VOCABULARY, WIDTH)),
    "sparse embedding": lambda: Texts(nn.Embedding(VOCABULARY, WIDTH, sparse=True)),
    "adapters of attention": adapted,
    "logarithms": of(lambda _, x: x.log()),
    "probabilities": of(lambda _, x: torch.distributions.Bernoulli(probs=x).entropy()),
    "categories": of(lambda _, x: torch.eye(WIDTH, dtype=x.dtype)[x[..., 0].long()] + x),
    "integers of one dimension": lambda: Texts(nn.Embedding(20, WIDTH)),
}
NUMBERS = batch(None)[0].double().sigmoid()
# Networks that read only certain numbers.
RESTRICTED = {
    "logarithms": 2 * NUMBERS,
    "probabilities": NUMBERS,
    "categories": 3 * NUMBERS,
    "integers of one dimension": torch.tensor([3, 4, 3, 7, 1, 9]),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", COMPUTED)
def test_stateless_models_have_the_reference_gradients(name: str) -> None:
    model = COMPUTED[name]().double().eval()
    inputs, labels, mask = batch(model)
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    check(Case(model, HEAD, RESTRICTED.get(name, inputs), labels, mask))


# -- the choice of an engine ------------------------------------------------------------------------


def chosen(model: nn.Module, head: frozenset[str], inputs: Tensor) -> str:
    made = make_engine("auto", model, head)
    assert isinstance(made, ValidatingEngine)
    return made.choose(inputs)[0]


@pytest.mark.parametrize("value", [0.0, nan, float("inf"), 1e30])
def test_choice_does_not_depend_on_parameter_values(value: float) -> None:
    """A diverged trial uses the same engine when it is continued."""
    case = make("vit-all")
    for parameter in case.model.parameters():
        nn.init.constant_(parameter, value)
    assert chosen(case.model, case.head, case.inputs * value) == "bookkeeping"


def test_linear_layers_use_the_linear_engine() -> None:
    head = frozenset({"weight", "bias"})
    assert chosen(nn.Linear(1024, 20), head, torch.zeros(2, 1024)) == "linear"


def with_faulty_engine(
    fault: Callable[[GradientSum], GradientSum],
) -> tuple[Case, ValidatingEngine]:
    """Return a network whose head is zero, and an engine that prefers one with a fault to the loop."""

    class Faulty(LoopEngine):
        def compute(self, *args: Any) -> GradientSum:
            return fault(super().compute(*args))

    case = make("vit-film", torch.float32)
    nn.init.zeros_(case.model.head.weight)
    engines = {"bookkeeping": Faulty, "loop": LoopEngine}
    return case, ValidatingEngine(case.model, case.head, engines)


def longer(found: GradientSum, part: str, error: float) -> GradientSum:
    if part == "norms":
        return replace(found, norms=found.norms * (1 + error))
    first = next(name for name in found.gradients if "norm" in name)
    return replace(found, gradients=found.gradients | {first: found.gradients[first] * (1 + error)})


@pytest.mark.parametrize("error", [0.004, 0.015])
@pytest.mark.parametrize("part", ["gradients", "norms"])
def test_comparison_allows_an_error_of_one_per_cent(part: str, error: float) -> None:
    """Training starts with a head of zero, which makes the gradients of all layers before it zero."""
    case, made = with_faulty_engine(partial(longer, part=part, error=error))
    assert made.choose(case.inputs)[0] == ("bookkeeping" if error < 0.01 else "loop")


def test_out_of_memory_does_not_change_the_choice() -> None:
    messages = ["CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"]

    def fails_once(found: GradientSum) -> GradientSum:
        if messages:
            raise RuntimeError(messages.pop())
        return found

    case, made = with_faulty_engine(fails_once)
    with pytest.raises(RuntimeError, match="ALLOC_FAILED"):
        made.norms(*case.batch)
    assert made.choose(case.inputs)[0] == "bookkeeping"


# -- micro-batches ----------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["auto", "loop"])
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("labels", torch.tensor([0, 1, 2, -100, 3, 4]), "found one that is not a c.*allowed: 0 to 4"),
        ("labels", torch.tensor([0, 1, 2, CLASSES, 3, 4]), "found one that is not .*allowed: 0 to 4"),
        ("labels", torch.eye(EXAMPLES), r"found float32 of shape \(6, 6\).*argmax"),
        ("labels", torch.zeros(EXAMPLES, 1).long(), r"found int64 of shape \(6, 1\).*\(6,\)"),
        ("labels", torch.ones(EXAMPLES, dtype=torch.int32), "found int32"),
        ("labels", [0, 1, 2, 3, 4, 0], "found a list"),
        ("labels", torch.zeros(4).long(), r"found .*shape \(4,\).*\(6,\)"),
        ("mask", torch.ones(EXAMPLES), "found float32"),
        ("mask", torch.ones(2, dtype=torch.bool), r"found .*\(2,\).*\(6,\)"),
        ("inputs", {"input_ids": torch.zeros(6, 3)}, "found a dict"),
        ("inputs", torch.tensor(1.0), r"found float32 of shape \(\)"),
        ("inputs", torch.nested.nested_tensor(list(torch.zeros(6, 3, 4))), "found a nested tensor"),
        ("inputs", torch.zeros(6, 3, 4).to_sparse(), "found a tensor of layout sp"),
        # The network cannot read them.
        ("inputs", torch.zeros(6, 3, 4).double(), "found float64 .*Net cannot read"),
        ("inputs", torch.zeros(6, 3, 7), r"found float32 of shape \(3, 3, 7\).*cannot be multiplied"),
    ],
)  # fmt: skip
def test_invalid_micro_batches_are_refused(
    name: str, value: Any, message: str, engine: str
) -> None:
    model = on(square)()
    made = make_engine(engine, model)
    valid = dict(zip(("inputs", "labels", "mask"), batch(model), strict=True))
    # At a later call, inputs that the network cannot read are an error of the network.
    again = "cannot" not in message
    for _ in range(1 + again):
        with pytest.raises(UnsupportedModelError, match=f"^{name}: {message}"):
            made.clipped_sum(**(valid | {name: value}), clipping=NoClipping())
        made.clipped_sum(**valid, clipping=NoClipping())


def test_invalid_labels_of_a_linear_layer_are_refused() -> None:
    """Without the check torch would crash. Labels of masked examples are ignored."""
    made = make_engine("auto", nn.Linear(WIDTH, CLASSES))
    labels, mask = torch.tensor([0, -100]), torch.ones(2, dtype=torch.bool)
    with pytest.raises(UnsupportedModelError, match=r"labels: .*allowed: 0 to 4"):
        made.norms(torch.ones(2, WIDTH), labels, mask)
    norms, _ = made.norms(torch.ones(2, WIDTH), labels, torch.tensor([True, False]))
    assert norms[0] > 0 and norms[1] == 0


@pytest.mark.parametrize("engine", ["auto", "loop", "opacus"])
def test_empty_micro_batch_contributes_nothing(engine: str) -> None:
    model = on(square)()
    made, given = make_engine(engine, model), batch(model)
    empty = [each[:0] for each in given]
    for _ in range(2):
        found = made.clipped_sum(*empty, NoClipping())
        assert found.norms.shape == found.losses.shape == found.nonfinite.shape == (0,)
        assert all(not each.any() for each in found.gradients.values())
        assert made.norms(*empty)[0].shape == (0,)
        made.clipped_sum(*given, NoClipping())


# -- networks that change after the first step ------------------------------------------------------


@pytest.mark.parametrize("engine", ["auto", "vmap"])
def test_model_that_starts_to_write_later_is_not_updated(engine: str) -> None:
    begun: list[bool] = []
    model = statistics(lambda self, x: begun and write(self, x))
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
    begun.append(True)
    # Some functions of torch refuse the write first, with their own message.
    with pytest.raises(
        (UnsupportedModelError, RuntimeError), match=r"layer\.mean|in-place|inplace"
    ):
        private.step([batch(model)])
    assert torch.equal(model.head.weight, before)


def change_shape(model: Any) -> None:
    model.head.weight.data = torch.zeros(CLASSES + 1, WIDTH)


def normalise(model: Any) -> None:
    model.layer[1] = nn.BatchNorm1d(TOKENS, affine=False, track_running_stats=False)


ALL_OF_THE_HEAD = r"what trains has changed.*'head\.weight', 'head\.bias'"
CHANGES: dict[str, tuple[Callable[[Any], object], str]] = {
    "frozen": (lambda net: net.head.bias.requires_grad_(False), r"changed.*: 'head\.bias' no"),
    "unfrozen": (lambda net: net.layer[0].weight.requires_grad_(), r"changed.*'layer\.0\.weight'"),
    "replaced": (lambda net: setattr(net, "head", nn.Linear(WIDTH, CLASSES)), ALL_OF_THE_HEAD),
    "added": (lambda net: setattr(net.head, "new", random(1)), r"'head\.new'"),
    "another shape": (change_shape, r"changed.*: 'head\.weight' no"),
    "another dtype": (lambda net: net.double(), ALL_OF_THE_HEAD),
    "another device": (lambda net: net.to("meta"), ALL_OF_THE_HEAD),
    "a layer without parameters": (normalise, r"BatchNorm1d.*mixes"),
    "batch normalisation": (lambda net: net.train(), "BatchNorm1d is in train mode"),
    "statistics": (lambda net: net.layer[3].train(), r"layer\.3\.mean"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_models_are_refused(change: str) -> None:
    written = statistics(write_in_train_mode).layer
    layers = square(), nn.ReLU(), nn.BatchNorm1d(TOKENS), written
    model = Net(nn.Sequential(*layers).requires_grad_(False), WIDTH).eval()
    made, given = make_engine("auto", model), batch(model)
    made.norms(*given)
    means = layers[2].running_mean.clone(), written.mean.clone()
    make_change, message = CHANGES[change]
    make_change(model)
    with pytest.raises(UnsupportedModelError, match=message):
        made.clipped_sum(*given, NoClipping())
    if not written.mean.is_meta:
        assert torch.equal(layers[2].running_mean.float(), means[0])
        assert torch.equal(written.mean.float(), means[1])


# -- features of frozen networks --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "problem"),
    [
        (Keeping(lambda self, x: self.mean.add_(x.mean()), mean=torch.zeros(())), r"writes.*mean"),
        (Layer(lambda _, x: x - x.mean(0, keepdim=True)), "mixes the examples"),
    ],
    ids=["writes", "mixes"],
)
def test_features_that_depend_on_other_examples_are_refused(layer: nn.Module, problem: str) -> None:
    images, others = torch.randn(2, 3, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    model, other = (WideResNet(CLASSES, depth=10, width=1).eval() for _ in range(2))
    check_representation(Representation(other, Features()), images, others)
    model.stem = nn.Sequential(layer, model.stem)  # type: ignore[assignment]
    with pytest.raises(BackboneError, match=problem):
        check_representation(Representation(model, Features()), images, others)
