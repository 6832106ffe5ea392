"""Stateless networks are supported; a network that starts to store data, or changes, is refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from tests.gradients.reference import check
from tests.gradients.test_refusals import Keeping, Texts, batch, statistics, write
from tests.gradients.tiny_models import CLASSES, HEAD, Case, Net
from torch import Tensor, nn
from torch.nn.utils import parametrizations, weight_norm

from dpsweep.gradients import UnsupportedModelError, make_engine
from dpsweep.models.representation import Representation
from dpsweep.models.wide_resnet import WideResNet
from dpsweep.study.backbones import BackboneError, Features
from dpsweep.study.clipping import FlatClipping, NoClipping
from dpsweep.training.features import check_representation
from dpsweep.training.optimizer import PrivateOptimizer
from dpsweep.training.randomness import GaussianNoise

WIDTH, TOKENS, VOCABULARY = 4, 3, 50


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.attention(x, x, x, need_weights=False)[0]
        return y


def fill_cache(self: Keeping, x: Tensor) -> None:
    """Store a constant that does not depend on the examples."""
    self.cache.setdefault(x.shape[1], torch.arange(x.shape[1]))


def adapted() -> nn.Module:
    """Return a model with adapters that peft merges into the weights of attention, and removes again.

    An engine that fails halfway must not leave merged weights for the next engine.
    """
    model = Net(Attention(), WIDTH)
    configuration = LoraConfig(r=2, target_modules=["attention"], init_lora_weights=False)
    inject_adapter_in_model(configuration, model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name or "head" in name)
    return model


nan = float("nan")
HARMLESS: dict[str, Callable[[], nn.Module]] = {
    "cache of constants": lambda: Net(Keeping(fill_cache, cache={}), WIDTH),
    "NaN": lambda: Net(Keeping(lambda *_: None, unknown=torch.full((2,), nan), level=nan), WIDTH),
    "statistics of train mode": lambda: statistics(
        lambda self, x: self.training and write(self, x)
    ).eval(),
    **{
        name: lambda build=build: Net(build(), WIDTH).eval()
        for name, build in {
            "batch normalisation": lambda: nn.BatchNorm1d(TOKENS),
            "spectral norm": lambda: parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)),
            "weight norm": lambda: parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)),
            "weights that a hook computes": lambda: weight_norm(nn.Linear(WIDTH, WIDTH)),
            "dropout": lambda: nn.Dropout(0.5),
        }.items()
    },
    "embedding": lambda: Texts(nn.Embedding(VOCABULARY, WIDTH)),
    "sparse embedding": lambda: Texts(nn.Embedding(VOCABULARY, WIDTH, sparse=True)),
    "adapters of attention": adapted,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", HARMLESS)
def test_stateless_models_have_the_reference_gradients(case: str) -> None:
    model = HARMLESS[case]().double()
    inputs, labels, mask = batch(model)
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    check(Case(model, HEAD, inputs, labels, mask))


# -- later changes -----------------------------------------------------------------------------


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


HEADS = "what trains has changed.*" + ", ".join(rf"'head\.{each}'" for each in ("weight", "bias"))
CHANGES: dict[str, tuple[Callable[[Any], object], str]] = {
    "frozen": (lambda net: net.head.bias.requires_grad_(False), r"changed.*: 'head\.bias' no"),
    "unfrozen": (lambda net: net.layer[0].weight.requires_grad_(), r"changed.*'layer\.0\.weight'"),
    "replaced": (lambda net: setattr(net, "head", nn.Linear(WIDTH, CLASSES)), HEADS),
    "added": (
        lambda net: net.head.register_parameter("new", nn.Parameter(torch.ones(1))),
        r"'head\.new'",
    ),
    "another shape": (change_shape, r"changed.*: 'head\.weight' no"),
    "another dtype": (lambda net: net.double(), HEADS),
    "another device": (lambda net: net.to("meta"), HEADS),
    "a layer without parameters": (normalise, r"BatchNorm1d.*mixes"),
    "batch normalisation": (lambda net: net.train(), "BatchNorm1d is in train mode"),
    "statistics": (lambda net: net.layer[3].train(), r"layer\.3\.mean"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_models_are_refused(change: str) -> None:
    written = statistics(lambda self, x: self.training and write(self, x)).layer
    layers = nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.BatchNorm1d(TOKENS), written
    model = Net(nn.Sequential(*layers).requires_grad_(False), WIDTH).eval()
    made = make_engine("auto", model)
    made.norms(*batch(model))
    means = layers[2].running_mean.clone(), written.mean.clone()
    make_change, message = CHANGES[change]
    make_change(model)
    with pytest.raises(UnsupportedModelError, match=message):
        made.clipped_sum(*batch(Net(nn.Identity(), WIDTH)), NoClipping())
    if not written.mean.is_meta:
        assert torch.equal(layers[2].running_mean.float(), means[0])
        assert torch.equal(written.mean.float(), means[1])


# -- features of frozen networks ---------------------------------------------------------------


class Centred(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0, keepdim=True)


@pytest.mark.parametrize(
    ("layer", "problem"),
    [
        (Keeping(lambda self, x: self.mean.add_(x.mean()), mean=torch.zeros(())), r"writes.*mean"),
        (Centred(), "mixes the examples"),
    ],
    ids=["writes", "mixes"],
)
def test_features_that_depend_on_other_examples_are_refused(layer: nn.Module, problem: str) -> None:
    images, others = torch.randn(2, 3, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    model, other = (WideResNet(CLASSES, depth=10, width=1).eval() for _ in range(2))
    check_representation(Representation(other, Features()), images, others)
    first = next(name for name, each in model.named_children() if isinstance(each, nn.Conv2d))
    setattr(model, first, nn.Sequential(layer, model.get_submodule(first)))
    with pytest.raises(BackboneError, match=problem):
        check_representation(Representation(model, Features()), images, others)
