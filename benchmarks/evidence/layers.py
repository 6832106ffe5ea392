"""Layers in many settings, and adapters of peft, each in a small network with everything that trains."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import timm
import timm.layers as tl
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

CLASSES, EXAMPLES = 3, 4
WIDTH, LENGTH, PIXELS = 8, 5, 6
Build = Callable[[list[str]], tuple[nn.Module, Tensor]]


class _Net(nn.Module):
    """A layer between a linear one and a head, so that gradients flow through it and from it."""

    def __init__(self, layer: nn.Module, inputs: Tensor) -> None:
        super().__init__()
        self.first: nn.Module = nn.Linear(inputs.shape[-1], inputs.shape[-1])
        if not inputs.is_floating_point():
            self.first = nn.Identity()
        self.layer = layer
        with torch.no_grad():
            outputs = _tensor(layer(self.first(inputs)))
        self.head = nn.Linear(outputs.flatten(1).shape[1], CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(_tensor(self.layer(self.first(x))).flatten(1))
        return logits


def _tensor(outputs: Any) -> Tensor:
    while isinstance(outputs, tuple | list):
        outputs = outputs[0]
    assert isinstance(outputs, Tensor)
    return outputs


class _Itself(nn.Module):
    """Attention of tokens among themselves."""

    def __init__(self, attention: nn.Module, arguments: int = 3) -> None:
        super().__init__()
        self.attention, self.arguments = attention, arguments

    def forward(self, x: Tensor) -> Tensor:
        return _tensor(self.attention(*[x] * self.arguments))


class _Twice(nn.Module):
    """A layer at two places."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.layer(self.layer(x).tanh())
        return outputs


class _Tied(nn.Module):
    """One weight in two layers."""

    def __init__(self, one: nn.Module, two: nn.Module) -> None:
        super().__init__()
        self.one, self.two = one, two
        self.two.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.two(self.one(x).tanh())
        return outputs


class _Scaled(nn.Module):
    """A parameter of somebody's own."""

    def __init__(
        self, shape: tuple[int, ...], function: Callable[[Tensor, Tensor], Tensor]
    ) -> None:
        super().__init__()
        self.weight, self.function = nn.Parameter(torch.rand(shape) + 0.5), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.weight)


Layer = Callable[[], nn.Module]
VECTORS, TOKENS = (WIDTH,), (LENGTH, WIDTH)
IMAGES, VOLUMES = (WIDTH, PIXELS, PIXELS), (WIDTH, 4, 4, 4)
SEQUENCES = (WIDTH, LENGTH)
NUMBERS = "numbers"


def _linear() -> Iterator[tuple[str, Layer, Any]]:
    for bias in (True, False):
        for shape in (VECTORS, TOKENS, (2, LENGTH, WIDTH)):
            yield f"Linear bias={bias} of {shape}", partial(nn.Linear, WIDTH, 6, bias=bias), shape
    yield "Linear wide", partial(nn.Linear, WIDTH, 64), TOKENS
    yield "Linear many tokens", partial(nn.Linear, WIDTH, 4), (64, WIDTH)
    yield "Linear at two places", lambda: _Twice(nn.Linear(WIDTH, WIDTH)), TOKENS
    yield "Linear tied", lambda: _Tied(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)), TOKENS
    yield "Bilinear", lambda: _Itself(nn.Bilinear(WIDTH, WIDTH, 5), 2), TOKENS


def _convolutions() -> Iterator[tuple[str, Layer, Any]]:
    kinds: dict[int, tuple[Any, Any, tuple[int, ...]]] = {
        1: (nn.Conv1d, nn.ConvTranspose1d, SEQUENCES),
        2: (nn.Conv2d, nn.ConvTranspose2d, IMAGES),
        3: (nn.Conv3d, nn.ConvTranspose3d, VOLUMES),
    }
    settings: list[dict[str, Any]] = [
        {"kernel_size": 1},
        {"kernel_size": 3, "padding": 1},
        {"kernel_size": 2, "stride": 2},
        {"kernel_size": 3, "padding": "same", "bias": False},
        {"kernel_size": 2, "dilation": 2},
        {"kernel_size": 3, "padding": 1, "groups": 2},
        {"kernel_size": 3, "padding": 1, "groups": WIDTH},
        {"kernel_size": 3, "stride": 2, "padding": 1, "groups": 4, "bias": False},
        {"kernel_size": 3, "padding": 1, "padding_mode": "circular"},
        {"kernel_size": 3, "padding": 1, "padding_mode": "reflect"},
        {"kernel_size": 3, "padding": 1, "padding_mode": "replicate"},
    ]
    transposed: list[dict[str, Any]] = [
        {"kernel_size": 2},
        {"kernel_size": 3, "stride": 2, "padding": 1, "output_padding": 1},
        {"kernel_size": 2, "groups": 2, "bias": False},
    ]
    for dimensions, (plain, back, shape) in kinds.items():
        for each in settings:
            if dimensions == 3 and each.get("padding_mode") == "reflect":
                continue
            yield f"{plain.__name__} {_words(each)}", partial(plain, WIDTH, WIDTH, **each), shape
        for each in transposed:
            yield f"{back.__name__} {_words(each)}", partial(back, WIDTH, WIDTH, **each), shape
    yield "Conv2d at two places", lambda: _Twice(nn.Conv2d(WIDTH, WIDTH, 3, padding=1)), IMAGES
    yield "Conv2d of many channels", partial(nn.Conv2d, WIDTH, 64, 3), IMAGES


def _normalisation() -> Iterator[tuple[str, Layer, Any]]:
    yield "LayerNorm", partial(nn.LayerNorm, WIDTH), TOKENS
    yield "LayerNorm of vectors", partial(nn.LayerNorm, WIDTH), VECTORS
    yield "LayerNorm without bias", partial(nn.LayerNorm, WIDTH, bias=False), TOKENS
    yield "LayerNorm of two dimensions", partial(nn.LayerNorm, TOKENS), TOKENS
    yield "LayerNorm without weight", partial(nn.LayerNorm, WIDTH, elementwise_affine=False), TOKENS
    yield "RMSNorm", partial(nn.RMSNorm, WIDTH), TOKENS
    for groups in (1, 2, WIDTH):
        yield f"GroupNorm {groups}", partial(nn.GroupNorm, groups, WIDTH), IMAGES
    yield "GroupNorm of sequences", partial(nn.GroupNorm, 2, WIDTH), SEQUENCES
    kinds = (
        ((nn.InstanceNorm1d, nn.BatchNorm1d), SEQUENCES),
        ((nn.InstanceNorm2d, nn.BatchNorm2d), IMAGES),
        ((nn.InstanceNorm3d, nn.BatchNorm3d), VOLUMES),
    )
    for (instance, batch), shape in kinds:
        yield instance.__name__, partial(instance, WIDTH, affine=True), shape
        yield f"{batch.__name__}", partial(batch, WIDTH), shape
        yield (
            f"{batch.__name__} without statistics",
            partial(batch, WIDTH, track_running_stats=False),
            shape,
        )
    yield "BatchNorm1d of vectors", partial(nn.BatchNorm1d, WIDTH), VECTORS
    yield "LocalResponseNorm", partial(nn.LocalResponseNorm, 3), IMAGES


def _lookups() -> Iterator[tuple[str, Layer, Any]]:
    yield "Embedding", partial(nn.Embedding, 12, WIDTH), NUMBERS
    yield "Embedding with padding", partial(nn.Embedding, 12, WIDTH, padding_idx=3), NUMBERS
    yield "Embedding sparse", partial(nn.Embedding, 12, WIDTH, sparse=True), NUMBERS
    yield "Embedding max_norm", partial(nn.Embedding, 12, WIDTH, max_norm=1.0), NUMBERS
    yield (
        "Embedding scale_grad_by_freq",
        partial(nn.Embedding, 12, WIDTH, scale_grad_by_freq=True),
        NUMBERS,
    )
    for mode in ("sum", "mean", "max"):
        yield f"EmbeddingBag {mode}", partial(nn.EmbeddingBag, 12, WIDTH, mode=mode), NUMBERS


def _sequences() -> Iterator[tuple[str, Layer, Any]]:
    for kind in (nn.RNN, nn.LSTM, nn.GRU):
        for each in (
            {},
            {"num_layers": 2},
            {"bidirectional": True},
            {"bias": False},
        ):
            made = partial(kind, WIDTH, 6, batch_first=True, **each)  # type: ignore[arg-type]
            yield f"{kind.__name__} {_words(each)}".strip(), made, TOKENS
    yield "LSTM with projections", partial(nn.LSTM, WIDTH, 6, batch_first=True, proj_size=3), TOKENS
    attention: list[dict[str, Any]] = [
        {},
        {"bias": False},
        {"add_bias_kv": True},
        {"add_zero_attn": True},
        {"kdim": WIDTH, "vdim": WIDTH},
    ]
    for each in attention:
        yield (
            f"MultiheadAttention {_words(each)}".strip(),
            lambda each=each: _Itself(nn.MultiheadAttention(WIDTH, 2, batch_first=True, **each)),
            TOKENS,
        )
    blocks: list[dict[str, Any]] = [
        {},
        {"norm_first": True},
        {"activation": "gelu"},
        {"bias": False},
    ]
    for each in blocks:
        encoder = partial(nn.TransformerEncoderLayer, WIDTH, 2, 16, batch_first=True, **each)
        yield f"TransformerEncoderLayer {_words(each)}".strip(), encoder, TOKENS
    yield (
        "TransformerDecoderLayer",
        lambda: _Itself(nn.TransformerDecoderLayer(WIDTH, 2, 16, batch_first=True), 2),
        TOKENS,
    )
    yield (
        "TransformerEncoder",
        lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True), 2
        ),
        TOKENS,
    )


def _parametrized() -> Iterator[tuple[str, Layer, Any]]:
    for name, function in (
        ("weight_norm", parametrizations.weight_norm),
        ("spectral_norm", parametrizations.spectral_norm),
        ("orthogonal", parametrizations.orthogonal),
        ("former weight_norm", nn.utils.weight_norm),
        ("former spectral_norm", nn.utils.spectral_norm),
    ):
        yield f"Linear {name}", lambda f=function: f(nn.Linear(WIDTH, WIDTH)), TOKENS
        if name != "orthogonal":
            yield f"Conv2d {name}", lambda f=function: f(nn.Conv2d(WIDTH, WIDTH, 3)), IMAGES
    yield "PReLU", nn.PReLU, TOKENS
    yield "PReLU of channels", partial(nn.PReLU, WIDTH), IMAGES
    own: dict[str, tuple[tuple[int, ...], Callable[[Tensor, Tensor], Tensor], Any]] = {
        "scale": ((WIDTH,), torch.mul, TOKENS),
        "scale of tokens": ((LENGTH, 1), torch.mul, TOKENS),
        "one number": ((1,), torch.mul, TOKENS),
        "shift": ((1, LENGTH, WIDTH), torch.add, TOKENS),
        "quotient": ((WIDTH,), torch.div, TOKENS),
        "power": ((WIDTH,), lambda x, w: x.abs() ** w, TOKENS),
        "matrix": ((WIDTH, WIDTH), torch.matmul, TOKENS),
        "matrix on the left": ((LENGTH, LENGTH), lambda x, w: w @ x, TOKENS),
        "einsum": ((WIDTH, 4), lambda x, w: torch.einsum("btw,wf->btf", x, w), TOKENS),
        "token in front": (
            (1, 1, WIDTH),
            lambda x, w: torch.cat([w.expand(len(x), -1, -1), x], 1),
            TOKENS,
        ),
        "softmax of a table": ((LENGTH, LENGTH), lambda x, w: w.softmax(-1) @ x, TOKENS),
        "bounded": ((1,), lambda x, w: x * w.exp().clamp(max=3), TOKENS),
        "temperature": ((1, 1, 1), lambda x, w: (w * x).softmax(-1), TOKENS),
        "channels": ((WIDTH, 1, 1), torch.mul, IMAGES),
        "in place": ((WIDTH,), lambda x, w: (1 * x).mul_(w), TOKENS),
        "addcmul": ((WIDTH,), lambda x, w: torch.addcmul(x, x, w), TOKENS),
        "where": ((WIDTH,), lambda x, w: torch.where(x > 0, x * w, x), TOKENS),
        "lerp": ((WIDTH,), lambda x, w: torch.lerp(x, x.tanh(), w), TOKENS),
    }
    for name, (shape, function, inputs) in own.items():
        yield f"a parameter: {name}", partial(_Scaled, shape, function), inputs


def _activations() -> Iterator[tuple[str, Layer, Any]]:
    for kind in (nn.GELU, nn.SiLU, nn.ELU, nn.Hardswish, nn.Softplus, nn.Mish, nn.Tanh):
        yield (
            f"Linear, {kind.__name__}",
            lambda k=kind: nn.Sequential(nn.Linear(WIDTH, WIDTH), k(), nn.Linear(WIDTH, 4)),
            TOKENS,
        )
    yield "Linear, GLU", lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GLU()), TOKENS
    for kind, arguments in (
        (nn.MaxPool2d, (2,)),
        (nn.AvgPool2d, (2,)),
        (nn.AdaptiveAvgPool2d, (1,)),
        (nn.PixelShuffle, (2,)),
        (nn.Upsample, (9,)),
        (nn.Dropout2d, (0.5,)),
        (nn.ZeroPad2d, (1,)),
    ):
        yield (
            f"Conv2d, {kind.__name__}",
            lambda k=kind, a=arguments: nn.Sequential(nn.Conv2d(WIDTH, 4, 3), k(*a), nn.Flatten()),
            IMAGES,
        )
    yield (
        "Unfold",
        lambda: nn.Sequential(nn.Unfold(3), nn.Linear(16, 4)),
        IMAGES,
    )


def _of_timm() -> Iterator[tuple[str, Layer, Any]]:
    images: dict[str, Layer] = {
        "StdConv2d": partial(tl.StdConv2d, WIDTH, WIDTH, 3),
        "StdConv2dSame": partial(tl.StdConv2dSame, WIDTH, WIDTH, 3),
        "ScaledStdConv2d": partial(tl.ScaledStdConv2d, WIDTH, WIDTH, 3),
        "Conv2dSame": partial(tl.Conv2dSame, WIDTH, WIDTH, 3, stride=2),
        "MixedConv2d": partial(tl.MixedConv2d, WIDTH, WIDTH, [3, 5]),
        "LayerNorm2d": partial(tl.LayerNorm2d, WIDTH),
        "GroupNormAct": partial(tl.GroupNormAct, WIDTH, num_groups=2),
        "BatchNormAct2d": partial(tl.BatchNormAct2d, WIDTH),
        "RmsNorm2d": partial(tl.RmsNorm2d, WIDTH),
        "EvoNorm2dS0": partial(tl.EvoNorm2dS0, WIDTH, group_size=4),
        "FilterResponseNormTlu2d": partial(tl.FilterResponseNormTlu2d, WIDTH),
        "GlobalResponseNorm": partial(
            timm.layers.grn.GlobalResponseNorm, WIDTH, channels_last=False
        ),
        "SqueezeExcite": partial(tl.SqueezeExcite, WIDTH),
        "EffectiveSEModule": partial(tl.EffectiveSEModule, WIDTH),
        "EcaModule": partial(tl.EcaModule, WIDTH),
        "CbamModule": partial(timm.layers.cbam.CbamModule, WIDTH),
        "GatherExcite": partial(tl.GatherExcite, WIDTH, extent=2, extra_params=True),
        "LayerScale2d": partial(tl.LayerScale2d, WIDTH, init_values=0.5),
        "ConvMlp": partial(tl.ConvMlp, WIDTH, 12),
        "PatchEmbed": lambda: tl.PatchEmbed(PIXELS, 2, WIDTH, 5),
    }
    tokens: dict[str, Layer] = {
        "LayerScale": partial(tl.LayerScale, WIDTH, init_values=0.5),
        "Mlp": partial(tl.Mlp, WIDTH, 12),
        "GluMlp": partial(tl.GluMlp, WIDTH, 12),
        "SwiGLU": partial(tl.SwiGLU, WIDTH, 12),
        "GatedMlp": partial(tl.GatedMlp, WIDTH, 12),
        "RmsNorm": partial(tl.RmsNorm, WIDTH),
        "SimpleNorm": partial(tl.SimpleNorm, WIDTH),
        "Attention": partial(tl.Attention, WIDTH, 2),
        "AttentionPoolLatent": partial(tl.AttentionPoolLatent, WIDTH, num_heads=2),
        "Affine": partial(timm.models.mlp_mixer.Affine, WIDTH),
    }
    for name, layer in images.items():
        yield f"timm {name}", layer, IMAGES
    for name, layer in tokens.items():
        yield f"timm {name}", layer, TOKENS


def _words(settings: dict[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in settings.items())


def _built(layer: Layer, shape: Any, _: list[str]) -> tuple[nn.Module, Tensor]:
    inputs = (
        torch.randint(12, (EXAMPLES, LENGTH)) if shape == NUMBERS else torch.randn(EXAMPLES, *shape)
    )
    model = _Net(layer().eval(), inputs).eval()
    _spread(model)
    return model, inputs


def _spread(model: nn.Module) -> None:
    """Leave no parameter or statistics at 0 or 1, which would hide an error."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn(parameter.shape))
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.track_running_stats:
                nn.init.normal_(module.running_mean, std=0.3)
                nn.init.uniform_(module.running_var, 0.5, 1.5)


def layers() -> Iterator[tuple[str, Build]]:
    """Layers of torch and timm by name, each with what builds its network and inputs."""
    kinds = (_linear, _convolutions, _normalisation, _lookups, _sequences, _parametrized)
    for cases in (*kinds, _activations, _of_timm):
        for name, layer, shape in cases():
            yield name, partial(_built, layer, shape)


class _Convolutional(nn.Module):
    """Convolutions and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(WIDTH, WIDTH, 3, padding=1)
        self.two = nn.Conv2d(WIDTH, WIDTH, 1)
        self.three = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.two(self.one(x).relu()).mean((2, 3))
        outputs: Tensor = self.three(pooled)
        return outputs


class _Tokens(nn.Module):
    """A table of tokens and linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(12, WIDTH)
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.two(self.one(self.table(x)).tanh()).mean(1)
        return outputs


class _Linear(nn.Module):
    """Two linear layers and a normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm, self.two = (
            nn.Linear(WIDTH, WIDTH),
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, WIDTH),
        )

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.two(self.norm(self.one(x)).tanh()).mean(1)
        return outputs


class _Attending(nn.Module):
    """Attention of torch, whose projection peft adapts in a way of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.attention(x, x, x, need_weights=False)[0].mean(1)
        return outputs


ADAPTED: dict[str, tuple[type[nn.Module], Any, list[str]]] = {
    "linear": (_Linear, TOKENS, ["one", "two"]),
    "convolutions": (_Convolutional, IMAGES, ["one", "two"]),
    "tokens": (_Tokens, NUMBERS, ["table", "one"]),
    "attention": (_Attending, TOKENS, ["attention"]),
}


def _configurations() -> dict[str, Callable[[list[str]], Any]]:
    import peft  # noqa: PLC0415

    def of(name: str, **settings: Any) -> Callable[[list[str]], Any]:
        return lambda targets: getattr(peft, name)(target_modules=targets, **settings)

    return {
        "LoRA": of("LoraConfig", r=2),
        "LoRA rslora": of("LoraConfig", r=2, use_rslora=True),
        "LoRA bias": of("LoraConfig", r=2, bias="lora_only"),
        "LoRA DoRA": of("LoraConfig", r=2, use_dora=True),
        "LoRA lora_bias": of("LoraConfig", r=2, lora_bias=True),
        "LoRA pissa": of("LoraConfig", r=2, init_lora_weights="pissa"),
        "AdaLoRA": of("AdaLoraConfig", init_r=2, target_r=1, total_step=10),
        "IA3": of("IA3Config", feedforward_modules=[]),
        "LoHa": of("LoHaConfig", r=2),
        "LoKr": of("LoKrConfig", r=2),
        "OFT": of("OFTConfig", r=0, oft_block_size=4),
        "BOFT": of("BOFTConfig", boft_block_size=4),
        "VeRA": of("VeraConfig", r=2),
        "VBLoRA": of("VBLoRAConfig", r=2, num_vectors=8, vector_length=4),
        "FourierFT": of("FourierFTConfig", n_frequency=10),
        "HRA": of("HRAConfig", r=2),
        "RandLora": of("RandLoraConfig", r=2),
        "MiSS": of("MissConfig", r=2),
        "SHiRA": of("ShiraConfig", r=2),
        "RoAd": of("RoadConfig", group_size=4),
        "WaveFT": of("WaveFTConfig", n_frequency=10),
        "C3A": of("C3AConfig", block_size=4),
        "DeLoRA": of("DeloraConfig", r=2),
        "LN tuning": lambda _: peft.LNTuningConfig(target_modules=["norm"]),
    }


def _adapter(
    configuration: Callable[[list[str]], Any], network: str, _: list[str]
) -> tuple[nn.Module, Tensor]:
    from peft import get_peft_model  # noqa: PLC0415

    kind, shape, targets = ADAPTED[network]
    body = get_peft_model(kind(), configuration(targets))
    inputs = (
        torch.randint(12, (EXAMPLES, LENGTH)) if shape == NUMBERS else torch.randn(EXAMPLES, *shape)
    )
    model = _Net(body.eval(), inputs).eval()
    model.first = nn.Identity()
    _spread(model)
    return model, inputs


def adapters() -> Iterator[tuple[str, Build]]:
    """Methods of peft in small networks, as far as peft knows the layers."""
    for name, configuration in _configurations().items():
        for network in ADAPTED:
            yield f"{name} in {network}", partial(_adapter, configuration, network)
