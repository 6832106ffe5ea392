"""Which layers does each library clip rightly?

    python -m benchmarks.peers.layers     # half a minute of processor time

Per-example gradients by plain autograd in float64, one example after the other, are the reference. Each
library computes norms and the clipped sum of the same batch in float32, as its users call it. The
contribution of an example is what the sum changes by when the example is left out; privacy needs that none is
longer than the bound. Every layer is followed by a frozen linear map to classes: only the layer trains.

Results go to benchmarks/results/peers/layers.json; `python -m benchmarks.tables` writes docs/peers.md.
"""

import logging
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from opacus import PrivacyEngine
from opacus.layers import DPLSTM, DPMultiheadAttention
from peft import IA3Config, LoraConfig, VeraConfig, get_peft_model
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset
from transformers.pytorch_utils import Conv1D

from benchmarks.common import RESULTS, command_line, environment
from dpsweep.base.files import write_json
from dpsweep.gradients import make_engine
from dpsweep.models.architectures import seeded
from dpsweep.study.clipping import FlatClipping

RESULT = RESULTS / "peers" / "layers.json"
EXAMPLES, CLASSES, WIDTH, TOKENS, WORDS = 5, 3, 4, 5, 9
Model = Callable[[], nn.Module]
Measured = tuple[Tensor, Tensor]
"""Norms of the examples, and the clipped sum of all parameters, flat."""


class Layer(nn.Module):
    """A layer with a given forward function; ``state`` are its parameters and layers."""

    def __init__(self, function: Callable[[Any, Tensor], Tensor], **state: Any) -> None:
        super().__init__()
        self.function = function
        for name, value in state.items():
            setattr(self, name, value)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the function."""
        return self.function(self, x)


class Classifier(nn.Module):
    """A layer that trains, and a frozen linear map from its outputs to classes."""

    def __init__(self, layer: nn.Module, inputs: Tensor) -> None:
        super().__init__()
        self.layer = layer
        self.head = nn.Linear(self._outputs(inputs).shape[1], CLASSES).requires_grad_(False)

    def _outputs(self, inputs: Tensor) -> Tensor:
        outputs = self.layer(inputs)
        return (outputs[0] if isinstance(outputs, tuple) else outputs).flatten(1)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits."""
        logits: Tensor = self.head(self._outputs(inputs).tanh())
        return logits


# -- layers ---------------------------------------------------------------------------------------


def _first_of(layer: nn.Module) -> nn.Module:
    """Return attention of a sequence to itself."""
    return Layer(lambda self, x: self.layer(x, x, x)[0], layer=layer)


def _tokens_first(layer: nn.Module) -> nn.Module:
    """Return attention that takes tokens in the first dimension, as is torch's default."""
    return Layer(
        lambda self, x: self.layer(*[x.transpose(0, 1)] * 3)[0].transpose(0, 1), layer=layer
    )


def _one_weight() -> nn.Module:
    one, two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    two.weight = one.weight
    return nn.Sequential(one, nn.Tanh(), two)


def _twice() -> nn.Module:
    return Layer(lambda self, x: self.layer(self.layer(x).tanh()), layer=nn.Linear(WIDTH, WIDTH))


def _also_by_a_function() -> nn.Module:
    return Layer(
        lambda self, x: F.linear(self.layer(x).tanh(), self.layer.weight),
        layer=nn.Linear(WIDTH, WIDTH),
    )


def _checkpointed() -> nn.Module:
    block = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
    return Layer(lambda self, x: checkpoint(self.block, x, use_reentrant=False), block=block)


def _adapted(config: Any) -> nn.Module:
    layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
    model: nn.Module = get_peft_model(layers, config(target_modules=["0", "2"]))  # type: ignore[arg-type]
    for parameter in model.parameters():
        # Adapters that begin at zero or one would hide errors.
        parameter.data += 0.3 * torch.randn_like(parameter)
    return model


def _beside_dropout() -> nn.Module:
    block = Layer(
        lambda self, x: self.dropout(x * self.scale), scale=_random(WIDTH), dropout=nn.Dropout(0.0)
    )
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), block)


def _random(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape))


def _positions() -> nn.Module:
    def function(self: Any, x: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.positions
        result: Tensor = self.layer(x.tanh())
        return result

    return Layer(
        function,
        token=_random(1, 1, WIDTH),
        positions=_random(1, TOKENS + 1, WIDTH),
        layer=nn.Linear(WIDTH, WIDTH),
    )


def _frozen_statistics() -> nn.Module:
    norm = nn.BatchNorm2d(WIDTH)
    norm.running_mean, norm.running_var = torch.randn(WIDTH), 0.5 + torch.rand(WIDTH)
    return norm.eval()


VECTORS, SEQUENCES, GRIDS = (WIDTH,), (TOKENS, WIDTH), (2, TOKENS, WIDTH)
IMAGES, VOLUMES = (WIDTH, 6, 6), (2, 4, 4, 4)
TEXTS = ()
_conv = partial(nn.Conv2d, WIDTH, WIDTH, 3)
_attention = partial(nn.MultiheadAttention, WIDTH, 2)

LAYERS: dict[str, tuple[Model, tuple[int, ...]]] = {
    "linear, 2 dimensions": (partial(nn.Linear, WIDTH, 3), VECTORS),
    "linear, 3 dimensions": (partial(nn.Linear, WIDTH, 3), SEQUENCES),
    "linear, 4 dimensions": (partial(nn.Linear, WIDTH, 3), GRIDS),
    "linear without bias": (partial(nn.Linear, WIDTH, 3, bias=False), VECTORS),
    "bilinear": (
        lambda: Layer(lambda self, x: self.layer(x, x), layer=nn.Bilinear(WIDTH, WIDTH, 3)),
        VECTORS,
    ),
    "GPT-2's linear (Conv1D)": (partial(Conv1D, 3, WIDTH), SEQUENCES),
    "convolution, 1-d": (partial(nn.Conv1d, TOKENS, 3, 2), SEQUENCES),
    "convolution, 2-d": (partial(_conv, padding=1), IMAGES),
    "convolution, stride, groups, dilation": (
        partial(_conv, stride=2, groups=2, dilation=2),
        IMAGES,
    ),
    "convolution, padding same": (partial(_conv, padding="same"), IMAGES),
    "convolution, circular padding": (partial(_conv, padding=1, padding_mode="circular"), IMAGES),
    "convolution, reflecting padding": (partial(_conv, padding=1, padding_mode="reflect"), IMAGES),
    "convolution, 3-d": (partial(nn.Conv3d, 2, 3, 2), VOLUMES),
    "transposed convolution": (partial(nn.ConvTranspose2d, WIDTH, 2, 3, stride=2), IMAGES),
    "embedding": (partial(nn.Embedding, WORDS, WIDTH), TEXTS),
    "embedding with padding row": (partial(nn.Embedding, WORDS, WIDTH, padding_idx=0), TEXTS),
    "embedding scaled by frequency": (
        partial(nn.Embedding, WORDS, WIDTH, scale_grad_by_freq=True),
        TEXTS,
    ),
    "embedding bag, sum": (partial(nn.EmbeddingBag, WORDS, WIDTH, mode="sum"), TEXTS),
    "embedding bag, mean": (partial(nn.EmbeddingBag, WORDS, WIDTH, mode="mean"), TEXTS),
    "LayerNorm": (partial(nn.LayerNorm, WIDTH), SEQUENCES),
    "LayerNorm without bias": (partial(nn.LayerNorm, WIDTH, bias=False), SEQUENCES),
    "RMSNorm": (partial(nn.RMSNorm, WIDTH), SEQUENCES),
    "GroupNorm": (partial(nn.GroupNorm, 2, WIDTH), IMAGES),
    "InstanceNorm": (partial(nn.InstanceNorm2d, WIDTH, affine=True), IMAGES),
    "BatchNorm with fixed statistics": (_frozen_statistics, IMAGES),
    "PReLU": (partial(nn.PReLU, WIDTH), IMAGES),
    "attention, batch first": (lambda: _first_of(_attention(batch_first=True)), SEQUENCES),
    "attention, tokens first": (lambda: _tokens_first(_attention()), SEQUENCES),
    "Opacus' attention, batch first": (
        lambda: _first_of(DPMultiheadAttention(WIDTH, 2, batch_first=True)),
        SEQUENCES,
    ),
    "Opacus' attention, tokens first": (
        lambda: _tokens_first(DPMultiheadAttention(WIDTH, 2)),
        SEQUENCES,
    ),
    "transformer layer": (
        partial(nn.TransformerEncoderLayer, WIDTH, 2, 8, dropout=0.0, batch_first=True),
        SEQUENCES,
    ),
    "LSTM": (partial(nn.LSTM, WIDTH, 3, batch_first=True), SEQUENCES),
    "GRU": (partial(nn.GRU, WIDTH, 3, batch_first=True), SEQUENCES),
    "Opacus' LSTM": (partial(DPLSTM, WIDTH, 3, batch_first=True), SEQUENCES),
    "two layers with one weight": (_one_weight, SEQUENCES),
    "a layer used twice": (_twice, SEQUENCES),
    "a weight that a function uses too": (_also_by_a_function, SEQUENCES),
    "weight norm": (lambda: parametrizations.weight_norm(nn.Linear(WIDTH, 3)), SEQUENCES),
    "checkpointed block": (_checkpointed, SEQUENCES),
    "class token and positions": (_positions, SEQUENCES),
    "a parameter beside dropout": (_beside_dropout, SEQUENCES),
    "LoRA": (lambda: _adapted(partial(LoraConfig, r=2)), SEQUENCES),
    "DoRA": (lambda: _adapted(partial(LoraConfig, r=2, use_dora=True)), SEQUENCES),
    "VeRA": (lambda: _adapted(partial(VeraConfig, r=2)), SEQUENCES),
    "IA3": (lambda: _adapted(partial(IA3Config, feedforward_modules=[])), SEQUENCES),
}
"""How each layer is made, and the shape of an example; texts have none."""


def make(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    """Return a classifier with the layer, inputs and labels, the same at every call."""
    build, shape = LAYERS[name]
    with seeded(0):
        if shape:
            # Examples of different sizes: some gradients are longer than the bound, others are not.
            inputs = torch.randn(EXAMPLES, *shape) * torch.linspace(0.3, 2, EXAMPLES).view(
                -1, *[1] * len(shape)
            )
        else:
            inputs = torch.randint(WORDS, (EXAMPLES, TOKENS))
            inputs[:, 1] = inputs[:, 0]  # repeats
            inputs[:, -1] = 0  # padding
        model = Classifier(build(), inputs)
    return model, inputs, torch.arange(EXAMPLES) % CLASSES


# -- what computes clipped sums ---------------------------------------------------------------------


def trained(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that train."""
    return [each for each in model.parameters() if each.requires_grad]


def reference(name: str) -> Tensor:
    """Return the gradients of all examples in float64 by plain autograd, shape (examples, numbers)."""
    model, inputs, labels = make(name)
    model, rows = model.double(), []
    for x, y in zip(inputs, labels, strict=True):
        given = x.double() if x.is_floating_point() else x
        loss = F.cross_entropy(model(given[None]), y[None])
        found = torch.autograd.grad(loss, trained(model), materialize_grads=True)
        rows.append(torch.cat([each.to_dense().flatten() for each in found]))
    return torch.stack(rows)


def dpsweep(name: str, rows: Tensor, bound: float) -> Measured:
    """Return the results of dpsweep's engine ``auto``."""
    model, inputs, labels = make(name)
    found = make_engine("auto", model.eval()).clipped_sum(
        inputs[rows],
        labels[rows],
        torch.ones(len(rows), dtype=torch.bool),
        FlatClipping(bound),
    )
    sums = [found.gradients[key] for key, each in model.named_parameters() if each.requires_grad]
    # The factors of dpsweep are 1 / max(norm, bound); Opacus' sums are bound times as large.
    return found.norms, bound * torch.cat([each.flatten() for each in sums])


def opacus(mode: str, name: str, rows: Tensor, bound: float) -> Measured:
    """Return the results of Opacus before it adds noise."""
    model, inputs, labels = make(name)
    private, optimizer, *criterion, _ = PrivacyEngine().make_private(
        module=model.train(),
        optimizer=torch.optim.SGD(trained(model), lr=1.0),
        criterion=nn.CrossEntropyLoss(),
        data_loader=DataLoader(TensorDataset(inputs), batch_size=EXAMPLES),
        noise_multiplier=0.0,
        max_grad_norm=bound,
        poisson_sampling=False,
        grad_sample_mode=mode,
    )
    loss = (criterion or [nn.CrossEntropyLoss()])[0](private(inputs[rows]), labels[rows])
    loss.backward()
    if mode == "ghost":
        optimizer.accumulate()
        norms = private.per_sample_gradient_norms
    else:
        norms = torch.cat([each.flatten(1) for each in optimizer.grad_samples], dim=1).norm(dim=1)
        optimizer.clip_and_accumulate()
    return norms, torch.cat([each.summed_grad.flatten() for each in trained(model)])


LIBRARIES: dict[str, Callable[[str, Tensor, float], Measured]] = {
    "Opacus, hooks": partial(opacus, "hooks"),
    "Opacus, ghost": partial(opacus, "ghost"),
    "Opacus, functorch": partial(opacus, "functorch"),
    "dpsweep": dpsweep,
}


def compare(name: str, library: str) -> dict[str, Any]:
    """Return the errors of a library on a layer, or why it computes nothing."""
    rows = reference(name)
    lengths = rows.norm(dim=1)
    bound = float(lengths.median())
    wanted = (rows * (bound / lengths).clamp(max=1)[:, None]).sum(0)
    everyone = torch.arange(EXAMPLES)
    try:
        norms, total = LIBRARIES[library](name, everyone, bound)
    except Exception as error:  # of any type: its sentence is the result
        return {"refused": _sentence(error)}
    found = {
        "norms": float(((norms - lengths) / lengths).abs().max()),
        "sum": float((total - wanted).norm() / wanted.norm()),
    }
    longest = 0.0
    for left_out in everyone:
        try:
            _, others = LIBRARIES[library](name, everyone[everyone != left_out], bound)
        except Exception as error:
            return found | {"with_another_batch": _sentence(error)}
        longest = max(longest, float((total - others).norm()) / bound)
    return found | {"contribution": longest}


def _sentence(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split()).split('. ')[0]}"


def main() -> None:
    """Compare every library on every layer, and write the result."""
    command_line(__doc__).parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable()
    described = environment("opacus", "torch", "peft", "transformers", "dpsweep", load=False)
    found = []
    for name in LAYERS:
        found.append({"layer": name, **{each: compare(name, each) for each in LIBRARIES}})
        print(found[-1], flush=True)
    write_json(RESULT, {"environment": described, "rows": found})


if __name__ == "__main__":
    main()
