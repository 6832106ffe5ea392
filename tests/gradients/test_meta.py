"""A step without a GPU that mixes no devices, and waits for none.

Tensors of torch's device ``meta`` have no numbers, so whoever asks for one gets an error. Most functions
refuse to mix them with tensors of the CPU; `OneDevice` looks at the others. So a step that passes here would
do neither on a GPU.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from tests.gradients.tiny_models import (
    CLASSES,
    FEATURES,
    TOKENS,
    VOCABULARY,
    bit,
    distilbert,
    resnet,
    vit,
)
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dpsweep.data.prepared import PADDING
from dpsweep.gradients import GradientEngine
from dpsweep.gradients.checks import CheckedEngine
from dpsweep.gradients.engines import (
    BookkeepingEngine,
    ExpandedEngine,
    LinearEngine,
    VmapEngine,
)
from dpsweep.gradients.loop import LoopEngine
from dpsweep.models.build import apply_method, head_parameter_names
from dpsweep.models.sequence_classifier import SequenceClassifier
from dpsweep.models.wide_resnet import WideResNet
from dpsweep.study.clipping import AutomaticClipping, Clipping, FlatClipping, NoClipping
from dpsweep.study.config import AllParameters, Film, HeadOnly, LoRA, Method
from dpsweep.training.optimizer import PrivateOptimizer

ENGINES: dict[str, type[GradientEngine]] = {
    "expanded": ExpandedEngine,
    "bookkeeping": BookkeepingEngine,
    "vmap": VmapEngine,
    "loop": LoopEngine,
}
# With targets for LoRA: linear layers, convolutions of single pixels, or none.
NETWORKS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "vit": (vit, "qkv"),
    "bit": (bit, "conv1"),
    "resnet": (resnet, "downsample.0"),
    "wide_resnet": (partial(WideResNet, CLASSES, depth=10, width=1), ""),
    "distilbert": (distilbert, "q_lin"),
}
METHODS = ("all", "film", "lora", "head")


def computes(engine: str, network: str, method: str) -> bool:
    """Whether there is such a step: `expanded` is for few parameters, and has no rules for convolutions."""
    target = NETWORKS[network][1]
    if engine == "expanded" and (
        method == "all" or (method == "lora" and target in ("conv1", "downsample.0"))
    ):
        return False
    return method != "lora" or bool(target)


STEPS = [
    (engine, network, method)
    for engine in ENGINES
    for network in NETWORKS
    for method in METHODS
    if computes(engine, network, method)
]


def method_of(kind: str, target: str) -> Method:
    methods: dict[str, Method] = {
        "all": AllParameters(kind="all"),
        "film": Film(kind="film"),
        "lora": LoRA(kind="lora", rank=2, target_modules=[target]),
        "head": HeadOnly(kind="head"),
    }
    return methods[kind]


class OneDevice(TorchDispatchMode):
    """Refuses functions of tensors of two devices; a single number of the CPU may go with any."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        devices = {each.device for each in tensors if each.dim()}
        if len(devices) > 1 and func.overloadpacket is not torch.ops.aten.copy_:
            raise RuntimeError(f"{func} of tensors on device {devices}")
        return func(*args, **(kwargs or {}))


class Noise:
    """A stand-in: the generators of a device without numbers have no state."""

    def add_to(self, total: Tensor, step: int, standard_deviation: float) -> None:
        total.add_(torch.randn(total.shape, dtype=total.dtype, device=total.device))


@pytest.fixture(autouse=True)
def no_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Autocast knows no such device, even where it is off."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())


def step(
    engine: tuple[str, type[GradientEngine]],
    model: nn.Module,
    clipping: Clipping | None = None,
    noise: Any = None,
) -> None:
    """Take a step of a network on ``meta``, and look at norms.

    The engine has been chosen already: only the first call may look at numbers.
    """
    name, kind = engine
    examples = 1 if kind is LoopEngine else 2
    text = isinstance(model, SequenceClassifier)
    model = model.to("meta").eval()
    head = frozenset() if isinstance(model, Own) else head_parameter_names(model)
    made = CheckedEngine(model, head, {}, (name, kind(model, head)))
    made._layers, made._classes = [(each, each.training) for each in model.modules()], CLASSES
    with torch.device("meta"):
        if text:
            inputs = torch.randint(VOCABULARY, (examples, TOKENS)).fill_(PADDING)
        elif isinstance(model, nn.Linear | Own):
            inputs = torch.randn(examples, FEATURES)
        else:
            inputs = torch.randn(examples, 3, 16, 16)
        batch = inputs, torch.randint(CLASSES, (examples,)), torch.ones(examples).bool()
    optimizer = PrivateOptimizer(
        torch.optim.Adam(made.parameters.values()),
        made,
        clipping or FlatClipping(1.0),
        noise_multiplier=0.0 if isinstance(clipping, NoClipping) else 1.0,
        expected_batch_size=4,
        noise=noise or Noise(),
    )
    with OneDevice():
        statistics = optimizer.step([batch])
        norms = made.norms(*batch)
    assert all(each.is_meta for each in (*statistics, *norms))


@pytest.mark.parametrize(("engine", "network", "method"), STEPS)
def test_a_step_mixes_no_devices_and_waits_for_none(engine: str, network: str, method: str) -> None:
    build, target = NETWORKS[network]
    with torch.device("meta"):
        model = build()
        apply_method(model, method_of(method, target))
    step((engine, ENGINES[engine]), model)


@pytest.mark.parametrize(
    "engine", {**ENGINES, "linear": LinearEngine}.items(), ids=lambda each: each[0]
)
@pytest.mark.parametrize(
    "clipping", [FlatClipping(1.0), AutomaticClipping(), NoClipping()], ids=lambda each: each.kind
)
def test_so_does_a_linear_layer_with_every_rule(
    engine: tuple[str, type[GradientEngine]], clipping: Clipping
) -> None:
    step(engine, nn.Linear(FEATURES, CLASSES), clipping)


# -- the test fails where a step does mix devices, or waits ----------------------------------


class Own(nn.Module):
    """A network that does something with its features."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.function(x))
        return logits


WRONG: dict[str, Callable[[Tensor], Tensor]] = {
    "a tensor of the CPU": lambda x: x + torch.ones(FEATURES),
    "indices of the CPU": lambda x: x.index_select(1, torch.arange(FEATURES)),
    "a number": lambda x: x / x.max().item(),
    "a branch": lambda x: x if x.sum() > 0 else -x,
    "a copy on the CPU": lambda x: x.cpu().to(x.device),
    "a list": lambda x: x * len(x.tolist()),
    "a number of rows": lambda x: x * len(x.nonzero()),
}


def test_right_networks_pass() -> None:
    for kind in ENGINES.items():
        step(kind, Own(torch.tanh))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("wrong", WRONG)
def test_a_network_that_does_either_is_found(wrong: str, engine: str) -> None:
    with pytest.raises((RuntimeError, NotImplementedError), match=r"(?i)meta|vmap|device"):
        step((engine, ENGINES[engine]), Own(WRONG[wrong]))


class WaitingRule(FlatClipping):
    def factors(self, norms: Tensor) -> Tensor:
        return super().factors(norms) if float(norms.max()) > 0 else norms


class NoiseOfTheCPU:
    def add_to(self, total: Tensor, step: int, standard_deviation: float) -> None:
        total.add_(torch.randn(total.shape, dtype=total.dtype))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_rule_that_waits_and_noise_of_another_device_are_found(engine: str) -> None:
    with pytest.raises(RuntimeError, match="meta"):
        step((engine, ENGINES[engine]), Own(torch.tanh), WaitingRule(1.0))
    with pytest.raises(RuntimeError, match="device"):
        step((engine, ENGINES[engine]), Own(torch.tanh), noise=NoiseOfTheCPU())
