"""Small networks of every kind with random weights and inputs, and unusual layers."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import timm
import torch
import torch.nn.functional as F
from peft import LoraConfig, inject_adapter_in_model
from timm.layers import GroupNormAct, LayerScale, StdConv2d
from timm.models.resnetv2 import ResNetV2
from torch import Tensor, nn

from dpsweep.data.prepared import PADDING
from dpsweep.models.sequence_classifier import SequenceClassifier
from dpsweep.models.wide_resnet import WideResNet

CLASSES = 5
TOKENS = 7
VOCABULARY = 11
FEATURES = 9


@dataclass(frozen=True)
class Case:
    """A model, the names of its head parameters, and a batch."""

    model: nn.Module
    head: frozenset[str]
    inputs: Tensor
    labels: Tensor
    mask: Tensor

    @property
    def batch(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.inputs, self.labels, self.mask


class ConvolutionalNet(nn.Module):
    """A network of convolutions in all settings, with group normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding="same"),
            nn.GroupNorm(2, 8),
            nn.ReLU(inplace=True),
            nn.Conv2d(8, 12, (3, 2), stride=2, padding=(1, 0), groups=4),
            nn.GroupNorm(3, 12),
            nn.ReLU(inplace=True),
            nn.Conv2d(12, 16, 2, dilation=2, bias=False, padding_mode="circular", padding=1),
            # 32 channels on few pixels: factors are cheaper than rows here.
            nn.Conv2d(16, 32, 3, stride=2),
            nn.ReLU(inplace=True),
            nn.Conv2d(32, 32, 1, groups=2),
        )
        self.head = nn.Linear(32, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layers(images).mean(dim=(2, 3)))
        return logits


def distilbert() -> nn.Module:
    arguments = {"vocab_size": VOCABULARY, "max_position_embeddings": TOKENS}
    arguments |= {"n_layers": 2, "n_heads": 2, "dim": 8, "hidden_dim": 16}
    return SequenceClassifier.create("distilbert", arguments, CLASSES)


def vit() -> nn.Module:
    size = {"img_size": 16, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2}
    model: nn.Module = timm.create_model("vit_tiny_patch16_224", **size, num_classes=CLASSES)
    return model


def bit() -> nn.Module:
    return ResNetV2(
        layers=(1, 1),
        channels=(16, 32),
        stem_chs=8,
        stem_type="fixed",
        num_classes=CLASSES,
        conv_layer=partial(StdConv2d, eps=1e-8),
        norm_layer=partial(GroupNormAct, num_groups=4),
    )


def resnet() -> nn.Module:
    return timm.create_model(  # type: ignore[no-any-return]
        "resnet18", layers=(1, 1, 1, 1), channels=(4, 4, 8, 8), stem_width=4, num_classes=CLASSES
    )


def set_statistics(model: nn.Module) -> None:
    """Give batch normalisation statistics like those of public pretraining."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.running_mean = 0.3 * torch.randn_like(module.running_mean)
            module.running_var = 0.5 + torch.rand_like(module.running_var)


# A network, parts of the names of its trainable parameters (none: all), and the layers with adapters.
_NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[str, ...], list[str]]] = {
    "linear-head": (partial(nn.Linear, FEATURES, CLASSES), (), []),
    "vit-film": (vit, ("norm", "head"), []),
    "vit-lora": (vit, ("lora_", "head"), ["qkv"]),
    "vit-all": (vit, (), []),
    "bit-film": (bit, ("norm", "head"), []),
    "bit-all": (bit, (), []),
    "resnet-film": (resnet, ("bn", "fc"), []),
    "resnet-all": (resnet, (), []),
    "convolutions-all": (ConvolutionalNet, (), []),
    "wide_resnet-all": (partial(WideResNet, CLASSES, depth=10, width=1), (), []),
    "distilbert-lora": (distilbert, ("lora_", "classifier"), ["q_lin", "k_lin"]),
    "distilbert-film": (distilbert, ("norm", "Norm", "classifier"), []),
    "distilbert-all": (distilbert, (), []),
}
CASES = tuple(_NETWORKS)
# One case for each way in which an engine stores gradients.
ENGINES_ON_IMAGES = [
    ("loop", "vit-film"),
    ("linear", "linear-head"),
    ("expanded", "vit-lora"),
    ("expanded", "bit-film"),
    ("bookkeeping", "vit-all"),
    ("bookkeeping", "bit-all"),
    ("bookkeeping", "convolutions-all"),
    ("vmap", "vit-lora"),
    ("vmap", "convolutions-all"),
    ("opacus", "vit-film"),
    ("opacus", "bit-all"),
]
EACH_ENGINE = [*ENGINES_ON_IMAGES, ("bookkeeping", "distilbert-all")]


def build(name: str) -> nn.Module:
    """Build one of the networks and set its trainable parameters."""
    network, parts, adapted = _NETWORKS[name]
    model = network()
    if adapted:
        inject_adapter_in_model(LoraConfig(r=3, lora_alpha=3, target_modules=adapted), model)
    for key, parameter in model.named_parameters():
        parameter.requires_grad_(not parts or any(part in key for part in parts))
    return model


def make(name: str, dtype: torch.dtype = torch.float64, examples: int = 6) -> Case:
    """Build a case; its last example is masked."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build(name).to(dtype).eval()
        for parameter in model.parameters():
            # Zeros (LoRA, heads) and ones (normalisation) would hide errors.
            parameter.data += 0.2 * torch.randn_like(parameter)
        set_statistics(model)
        if name.startswith("distilbert"):
            inputs = torch.randint(VOCABULARY, (examples, TOKENS))
            # Some tokens occur twice in an example.
            inputs[:, 1] = inputs[:, 0]
            # The first text has the full length, the others end earlier.
            lengths = torch.tensor([TOKENS, 5, 2, 6, 4, 3]).repeat(examples // 6 + 1)[:examples]
            inputs[torch.arange(TOKENS) >= lengths[:, None]] = PADDING
        else:
            shape = [FEATURES] if name == "linear-head" else [3, 16, 16]
            inputs = torch.randn(examples, *shape, dtype=dtype)
        labels = torch.randint(CLASSES, (examples,))
    # Only heads have parameters whose full names start with these.
    places = ("head", "fc", "network.pre_classifier", "network.classifier", "weight", "bias")
    trained = [key for key, value in model.named_parameters() if value.requires_grad]
    head = frozenset(key for key in trained if key.startswith(places))
    return Case(model, head, inputs, labels, torch.arange(examples) < examples - 1)


# -- a layer on tokens with a head on their mean ---------------------------------------------------

WIDTH, FEW_TOKENS = 40, 4
HEAD = frozenset({"head.weight", "head.bias"})


class Net(nn.Module):
    """A layer on tokens, and a head on their mean."""

    def __init__(self, layer: nn.Module, width: int):
        super().__init__()
        self.layer = layer
        self.head = nn.Linear(width, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layer(tokens).mean(1))
        return logits


class Layer(nn.Module):
    """A layer with a given forward function.

    Args:
        function: maps the layer and its inputs to its outputs.
        persistent: whether buffers are part of the layer's state.
        state: parameters, layers, tensors that become buffers, and other attributes.
    """

    def __init__(
        self, function: Callable[[Any, Tensor], Any], *, persistent: bool = True, **state: Any
    ) -> None:
        super().__init__()
        self.function = function
        for name, value in state.items():
            if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
                self.register_buffer(name, value, persistent=persistent)
            else:
                setattr(self, name, value)

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def random(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape))


def scales() -> nn.Module:
    """Return a layer with all ways to write a scale and a bias."""

    def function(self: Any, x: Tensor) -> Tensor:
        x = x * self.plain + self.shift
        x = (1 * x).mul_(self.in_place)
        x = torch.addcmul(self.affine, self.swapped, x)
        x = self.one * x.square() - self.one
        return x / self.shaped.view(1, 1, -1)

    names = "plain", "in_place", "swapped", "affine", "one", "shaped", "shift"
    return Layer(
        function,
        **{name: nn.Parameter(torch.ones(1 if name == "one" else WIDTH)) for name in names},
    )


def positions() -> nn.Module:
    """Return a layer with a class token, positions and a register, broadcast in different ways."""

    def function(self: Any, x: Tensor) -> Tensor:
        tokens = [self.token.expand(len(x), -1, -1), self.register.repeat(len(x), 1, 1), x]
        x = torch.cat(tokens, dim=1)
        x = x + self.positions
        x += self.first[:, :1]
        return x.tanh()

    one, all_of_them = (1, 1, WIDTH), (1, FEW_TOKENS + 2, WIDTH)
    places = {"positions": random(*all_of_them), "first": random(*all_of_them)}
    return Layer(function, token=random(*one), register=random(*one), **places)


def table_of_positions() -> nn.Module:
    """Return a layer that adds rows of tables, whose numbers it makes itself or keeps (GPT)."""

    def function(self: Any, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        x = x + self.positions(places) + self.kinds(torch.zeros(x.shape[1], dtype=torch.long))
        x = x * self.positions(places.to(torch.int32)).unsqueeze(0)
        return (x + self.kinds(self.kept[: x.shape[1]])).tanh()

    return Layer(
        function,
        positions=nn.Embedding(FEW_TOKENS + 2, WIDTH),
        kinds=nn.Embedding(2, WIDTH),
        kept=torch.tensor([0, 1] * FEW_TOKENS),
    )


def places_of_words() -> nn.Module:
    """Return a layer whose indices look like positions, but have been written by the examples."""

    def function(self: Any, x: Tensor) -> Tensor:
        places = torch.zeros(len(x), dtype=torch.long)
        places += (x[:, 0, 0] > 0).long()
        return (x + self.table(places)[:, None]).tanh()

    return Layer(function, table=nn.Embedding(2, WIDTH))


def windows() -> nn.Module:
    """Return attention in two windows, with a table of relative positions and a concatenated bias."""

    def function(self: Any, x: Tensor) -> Tensor:
        windows = self.norm(x.reshape(-1, 2, WIDTH))
        bias = torch.cat([self.q_bias, self.k_bias, self.v_bias])
        qkv = F.linear(windows, self.qkv.weight, bias)
        q, k, v = qkv.view(len(windows), 2, 3, 2, WIDTH // 2).permute(2, 0, 3, 1, 4)
        table = self.table[self.places.view(-1)].view(2, 2, 2).permute(2, 0, 1).unsqueeze(0)
        scores = q @ k.mT * self.scale.clamp(max=2).exp() + 16 * table.sigmoid()
        y = scores.softmax(-1) @ v + F.scaled_dot_product_attention(q, k, v, attn_mask=table)
        return y.transpose(1, 2).reshape_as(x)

    return Layer(
        function,
        qkv=nn.Linear(WIDTH, 3 * WIDTH, bias=False),
        q_bias=random(WIDTH),
        k_bias=torch.zeros(WIDTH),
        v_bias=random(WIDTH),
        table=random(3, 2),
        scale=random(2, 1, 1),
        norm=nn.LayerNorm(WIDTH),
        places=torch.tensor([[0, 1], [2, 0]]),
    )


def networked() -> nn.Module:
    """Return a layer with a bias that a small network computes from constants (Swin V2)."""
    net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(inplace=True), nn.Linear(8, WIDTH))
    places = torch.randn(1, FEW_TOKENS, 2)
    return Layer(lambda self, x: (x + self.net(self.places)).tanh(), net=net, places=places)


def twice(width: int, *, layer: bool) -> nn.Module:
    """Return one layer used twice, or two layers with one weight, on a part of every token."""

    def function(self: Any, x: Tensor) -> Tensor:
        part, rest = x.tensor_split([width], dim=2)
        return torch.cat([self.one(self.two(part)), rest], dim=2)

    one = nn.Linear(width, width)
    two = one if layer else nn.Linear(width, width)
    two.weight = one.weight
    return Layer(function, one=one, two=nn.Sequential(two, nn.Tanh()))


class Flattened(nn.Linear):
    """A linear layer with the tokens of all examples as rows."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.flatten(0, 1)).view_as(input)


class TokensFirst(nn.Linear):
    """A linear layer on the first token of all examples, then the second one, and so on."""

    def forward(self, input: Tensor) -> Tensor:
        tokens = input.transpose(0, 1)
        return super().forward(tokens.flatten(0, 1)).view_as(tokens).transpose(0, 1)


class Recurrent(nn.LSTM):
    def forward(self, input: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(input)[0]


class ReadsValues(nn.Linear):
    """A layer that reads values, which vectorised functions cannot do."""

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


# Each with the engine that `auto` chooses for few parameters, and for many if that differs.
LAYERS: dict[str, tuple[Callable[[], nn.Module], str, str]] = {
    "scales": (scales, "bookkeeping", ""),
    "LayerScale": (partial(LayerScale, WIDTH), "expanded", "bookkeeping"),
    "LayerScale in place": (
        lambda: nn.Sequential(nn.Tanh(), LayerScale(WIDTH, inplace=True)),
        *("expanded", "bookkeeping"),
    ),
    "RMSNorm": (partial(nn.RMSNorm, WIDTH), "expanded", "bookkeeping"),
    "positions": (positions, "bookkeeping", ""),
    "table of positions": (table_of_positions, "bookkeeping", ""),
    "places of words": (places_of_words, "loop", ""),
    "windows": (windows, "bookkeeping", ""),
    "network of constants": (networked, "bookkeeping", ""),
    "rows of tokens": (partial(Flattened, WIDTH, WIDTH), "expanded", "bookkeeping"),
    "two names": (partial(twice, 4, layer=False), "expanded", "bookkeeping"),
    "a layer at two places": (partial(twice, 4, layer=True), "expanded", "bookkeeping"),
    # The factors of two terms do not give the norm of their sum.
    "two names, factors": (partial(twice, WIDTH, layer=False), "expanded", "vmap"),
    "a layer at two places, factors": (partial(twice, WIDTH, layer=True), "expanded", "vmap"),
    "tokens first": (partial(TokensFirst, WIDTH, WIDTH), "vmap", ""),
    "Conv1d": (partial(nn.Conv1d, FEW_TOKENS, FEW_TOKENS, 1), "vmap", ""),
    "PReLU": (partial(nn.PReLU, FEW_TOKENS), "vmap", ""),
    "attention": (
        partial(nn.TransformerEncoderLayer, WIDTH, 2, 8, batch_first=True),
        *("vmap", ""),
    ),
    "LSTM": (partial(Recurrent, WIDTH, WIDTH, batch_first=True), "loop", ""),
    "reads values": (partial(ReadsValues, WIDTH, WIDTH), "loop", ""),
    # It has its own backward pass, which only autograd uses.
    "function of autograd": (
        lambda: Layer(lambda self, x: Scaled.apply(x, self.scale), scale=random(WIDTH)),
        *("loop", ""),
    ),
}


def on_layer(name: str) -> Case:
    """Build a case of one of `LAYERS`."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Net(LAYERS[name][0](), WIDTH).double().eval()
        inputs = torch.randn(5, FEW_TOKENS, WIDTH, dtype=torch.float64)
    return Case(model, HEAD, inputs, torch.arange(5) % CLASSES, torch.arange(5) < 4)
