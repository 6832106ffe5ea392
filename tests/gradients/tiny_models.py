"""Small networks of every kind, with random weights and inputs, and layers that are used in strange ways."""

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
from dpsweep.models.build import head_parameter_names
from dpsweep.models.sequence_classifier import SequenceClassifier
from dpsweep.models.wide_resnet import WideResNet

CLASSES = 5
TOKENS = 7
VOCABULARY = 11
FEATURES = 9


@dataclass(frozen=True)
class Case:
    """A model with the parameters that train, and a batch for it."""

    model: nn.Module
    head: frozenset[str]
    inputs: Tensor
    labels: Tensor
    mask: Tensor

    @property
    def batch(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.inputs, self.labels, self.mask


class ConvolutionalNet(nn.Module):
    """Convolutions in all their settings, with group normalisation."""

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
    arguments = {
        "vocab_size": VOCABULARY,
        "max_position_embeddings": TOKENS,
        "n_layers": 2,
        "n_heads": 2,
        "dim": 8,
        "hidden_dim": 16,
    }
    return SequenceClassifier.create("distilbert", arguments, CLASSES)


def vit() -> nn.Module:
    model: nn.Module = timm.create_model(
        "vit_tiny_patch16_224",
        img_size=16,
        patch_size=8,
        embed_dim=16,
        depth=2,
        num_heads=2,
        num_classes=CLASSES,
    )
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
    """Give batch normalisation statistics as public pretraining leaves them."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.running_mean = 0.3 * torch.randn_like(module.running_mean)
            module.running_var = 0.5 + torch.rand_like(module.running_var)


def train_only(model: nn.Module, *parts: str) -> None:
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(any(part in name for part in parts))


def add_lora(model: nn.Module, targets: list[str]) -> None:
    inject_adapter_in_model(LoraConfig(r=3, lora_alpha=3, target_modules=targets), model)


def _vit_lora() -> nn.Module:
    model = vit()
    add_lora(model, ["qkv"])
    train_only(model, "lora_", "head")
    return model


def _text_lora() -> nn.Module:
    model = distilbert()
    add_lora(model, ["q_lin", "k_lin"])
    train_only(model, "lora_", "classifier")
    return model


def _selected(build: Callable[[], nn.Module], *parts: str) -> nn.Module:
    model = build()
    train_only(model, *parts)
    return model


_BUILDERS: dict[str, Callable[[], nn.Module]] = {
    "linear-head": partial(nn.Linear, FEATURES, CLASSES),
    "vit-film": partial(_selected, vit, "norm", "head"),
    "vit-lora": _vit_lora,
    "vit-head": partial(_selected, vit, "head"),
    "vit-all": vit,
    "bit-film": partial(_selected, bit, "norm", "head"),
    "bit-all": bit,
    "resnet-film": partial(_selected, resnet, "bn", "fc"),
    "resnet-all": resnet,
    "convolutions-all": ConvolutionalNet,
    "wide_resnet-all": partial(WideResNet, CLASSES, depth=10, width=1),
    "distilbert-lora": _text_lora,
    "distilbert-film": partial(_selected, distilbert, "norm", "Norm", "classifier"),
    "distilbert-head": partial(_selected, distilbert, "classifier"),
    "distilbert-all": distilbert,
}
CASES = tuple(_BUILDERS)
# One case for each way in which an engine handles gradients.
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


def make(name: str, dtype: torch.dtype = torch.float64, examples: int = 6) -> Case:
    """Build a case; its last example is masked."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = _BUILDERS[name]().to(dtype).eval()
        for parameter in model.parameters():
            # No zeros (LoRA, heads) and ones (normalisation) that would hide an error.
            parameter.data += 0.2 * torch.randn_like(parameter)
        set_statistics(model)
        if name.startswith("distilbert"):
            inputs = torch.randint(VOCABULARY, (examples, TOKENS))
            # Tokens occur twice in an example.
            inputs[:, 1] = inputs[:, 0]
            # The first text has the full length, the others end earlier.
            lengths = torch.tensor([TOKENS, 5, 2, 6, 4, 3]).repeat(examples // 6 + 1)[:examples]
            inputs[torch.arange(TOKENS) >= lengths[:, None]] = PADDING
        elif name == "linear-head":
            inputs = torch.randn(examples, FEATURES, dtype=dtype)
        else:
            inputs = torch.randn(examples, 3, 16, 16, dtype=dtype)
        labels = torch.randint(CLASSES, (examples,))
    head = (
        head_parameter_names(model)
        if name.startswith("distilbert")
        else frozenset(
            key
            for key, value in model.named_parameters()
            if value.requires_grad and (key.startswith(("head", "fc")) or name == "linear-head")
        )
    )
    return Case(model, head, inputs, labels, torch.arange(examples) < examples - 1)


# -- a layer on tokens, and a head on their mean ---------------------------------------------------

WIDTH, FEW_TOKENS = 40, 4
HEAD = frozenset({"head.weight", "head.bias"})


class Net(nn.Module):
    """A layer on tokens of some width, and a head on their mean."""

    def __init__(self, layer: nn.Module, width: int):
        super().__init__()
        self.layer = layer
        self.head = nn.Linear(width, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layer(tokens).mean(1))
        return logits


class Scale(nn.Module):
    """All ways to write a scale and a bias."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("plain", "in_place", "swapped", "affine", "one", "shaped", "shift"):
            setattr(self, name, nn.Parameter(torch.ones(1 if name == "one" else WIDTH)))

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.plain + self.shift
        x = (1 * x).mul_(self.in_place)
        x = torch.addcmul(self.affine, self.swapped, x)
        x = self.one * x.square() - self.one
        return x / self.shaped.view(1, 1, -1)


class Positions(nn.Module):
    """A class token, positions and a register, broadcast in different ways."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.register = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.positions = nn.Parameter(torch.randn(1, FEW_TOKENS + 2, WIDTH))
        self.first = nn.Parameter(torch.randn(1, FEW_TOKENS + 2, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        tokens = [self.token.expand(len(x), -1, -1), self.register.repeat(len(x), 1, 1), x]
        x = torch.cat(tokens, dim=1)
        x = x + self.positions
        x += self.first[:, :1]
        return x.tanh()


class Windows(nn.Module):
    """Attention in two windows, with a table of relative positions and biases in parts."""

    bias_values: Tensor
    places: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.q_bias = nn.Parameter(torch.randn(WIDTH))
        self.v_bias = nn.Parameter(torch.randn(WIDTH))
        self.table = nn.Parameter(torch.randn(3, 2))
        self.scale = nn.Parameter(torch.randn(2, 1, 1))
        self.norm = nn.LayerNorm(WIDTH)
        self.register_buffer("bias_values", torch.zeros(WIDTH))
        self.register_buffer("places", torch.tensor([[0, 1], [2, 0]]))

    def forward(self, x: Tensor) -> Tensor:
        windows = self.norm(x.reshape(-1, 2, WIDTH))
        bias = torch.cat([self.q_bias, self.bias_values, self.v_bias])
        qkv = F.linear(windows, self.qkv.weight, bias)
        q, k, v = qkv.view(len(windows), 2, 3, 2, WIDTH // 2).permute(2, 0, 3, 1, 4)
        table = self.table[self.places.view(-1)].view(2, 2, 2).permute(2, 0, 1).unsqueeze(0)
        scores = q @ k.mT * self.scale.clamp(max=2).exp() + 16 * table.sigmoid()
        y = scores.softmax(-1) @ v + F.scaled_dot_product_attention(q, k, v, attn_mask=table)
        return y.transpose(1, 2).reshape_as(x)


class Networked(nn.Module):
    """A bias that a small network makes of constants (Swin V2)."""

    coordinates: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(inplace=True), nn.Linear(8, WIDTH))
        self.register_buffer("coordinates", torch.randn(1, FEW_TOKENS, 2))

    def forward(self, x: Tensor) -> Tensor:
        positions: Tensor = self.net(self.coordinates)
        return (x + positions).tanh()


class Twice(nn.Module):
    """On a part of every token, one layer at two places, or one weight in two layers."""

    def __init__(self, width: int, *, layer: bool) -> None:
        super().__init__()
        self.one = nn.Linear(width, width)
        two = self.one if layer else nn.Linear(width, width)
        two.weight = self.one.weight
        self.two = nn.Sequential(two, nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        part, rest = x.tensor_split([self.one.in_features], dim=2)
        return torch.cat([self.one(self.two(part)), rest], dim=2)


class Flattened(nn.Linear):
    """Takes the tokens of all examples for rows."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.flatten(0, 1)).view_as(input)


class TokensFirst(nn.Linear):
    """Computes the first token of all examples, then the second one, and so on."""

    def forward(self, input: Tensor) -> Tensor:
        tokens = input.transpose(0, 1)
        return super().forward(tokens.flatten(0, 1)).view_as(tokens).transpose(0, 1)


class Recurrent(nn.LSTM):
    def forward(self, input: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(input)[0]


class Asking(nn.Linear):
    """Looks at values, which no vectorised function can."""

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


class OfAutograd(nn.Module):
    """A function with a backward pass of its own, which only autograd sees."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = Scaled.apply(x, self.scale)
        return y


# Each with the engine that `auto` takes for few parameters, and for many where that is another one.
LAYERS: dict[str, tuple[Callable[[], nn.Module], str, str]] = {
    "scales": (Scale, "bookkeeping", ""),
    "LayerScale": (partial(LayerScale, WIDTH), "expanded", "bookkeeping"),
    "LayerScale in place": (
        lambda: nn.Sequential(nn.Tanh(), LayerScale(WIDTH, inplace=True)),
        *("expanded", "bookkeeping"),
    ),
    "RMSNorm": (partial(nn.RMSNorm, WIDTH), "expanded", "bookkeeping"),
    "positions": (Positions, "bookkeeping", ""),
    "windows": (Windows, "bookkeeping", ""),
    "network of constants": (Networked, "bookkeeping", ""),
    "rows of tokens": (partial(Flattened, WIDTH, WIDTH), "expanded", "bookkeeping"),
    "two names": (partial(Twice, 4, layer=False), "expanded", "bookkeeping"),
    "a layer at two places": (partial(Twice, 4, layer=True), "expanded", "bookkeeping"),
    # The norm of a sum is not known from the factors of its terms.
    "two names, factors": (partial(Twice, WIDTH, layer=False), "expanded", "vmap"),
    "a layer at two places, factors": (partial(Twice, WIDTH, layer=True), "expanded", "vmap"),
    "tokens first": (partial(TokensFirst, WIDTH, WIDTH), "vmap", ""),
    "Conv1d": (partial(nn.Conv1d, FEW_TOKENS, FEW_TOKENS, 1), "vmap", ""),
    "PReLU": (partial(nn.PReLU, FEW_TOKENS), "vmap", ""),
    "attention": (
        partial(nn.TransformerEncoderLayer, WIDTH, 2, 8, batch_first=True),
        *("vmap", ""),
    ),
    "LSTM": (partial(Recurrent, WIDTH, WIDTH, batch_first=True), "loop", ""),
    "looks at values": (partial(Asking, WIDTH, WIDTH), "loop", ""),
    "function of autograd": (OfAutograd, "loop", ""),
}


def on_layer(name: str) -> Case:
    """Build a case of one of `LAYERS`."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Net(LAYERS[name][0](), WIDTH).double().eval()
        inputs = torch.randn(5, FEW_TOKENS, WIDTH, dtype=torch.float64)
    return Case(model, HEAD, inputs, torch.arange(5) % CLASSES, torch.arange(5) < 4)
