"""Which networks train with which methods, and by which engine.

    python -m benchmarks.evidence.backbones                       # five minutes on one core
    python -m benchmarks.evidence.backbones --only convnext_atto  # this network again

Small versions of networks of timm and transformers, with random weights. A step of each with the
engine that `auto` takes is compared with the loop over single examples; a wrong one is an error. The
tests do so for twelve of them.

Results go to benchmarks/results/backbones.json; `python -m benchmarks.tables` writes the table of
docs/your-own-data.md.
"""

import warnings
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.common import RESULTS, command_line
from dpsweep.base.files import read_json, write_json
from dpsweep.gradients import make_engine
from dpsweep.gradients.checks import CheckedEngine
from dpsweep.models.architecture import Architecture, BackboneError
from dpsweep.models.architectures import create, seeded
from dpsweep.models.build import apply_method, head_parameter_names
from dpsweep.study.clipping import FlatClipping
from dpsweep.study.config import AllParameters, Film, HeadOnly, LoRA, Method

RESULT = RESULTS / "backbones.json"
CLASSES, EXAMPLES, LENGTH = 10, 3, 64
METHODS = ("film", "lora", "all", "head")


@dataclass(frozen=True)
class Network:
    """A network of a library, and a small version of it for tests.

    Attributes:
        name: of the architecture.
        targets: linear layers for LoRA, the same in every block.
        size: pixels of an image for the small version.
        small: arguments of the small version.
        library: timm or transformers.
    """

    name: str
    targets: tuple[str, ...] = ("attn.qkv",)
    size: int = 32
    small: dict[str, Any] = field(default_factory=dict)
    library: str = "timm"

    def build(self, *, small: bool) -> nn.Module:
        """The network with random weights."""
        # The study's arguments are single values; here some are tuples, one value for each stage.
        architecture = Architecture.model_construct(
            library=self.library, name=self.name, arguments=self.small if small else {}
        )
        with seeded(0):
            model = create(architecture, CLASSES).eval()
            for module in model.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    # As those of public weights: not those that it starts with.
                    nn.init.normal_(module.running_mean, std=0.3)
                    nn.init.uniform_(module.running_var, 0.5, 1.5)
            return model

    def inputs(self, examples: int, *, small: bool) -> Tensor:
        """Random images, or texts of different lengths."""
        generator = torch.Generator().manual_seed(0)
        if self.library == "transformers":
            length = 12 if small else LENGTH
            texts = torch.randint(5, 30, (examples, length), generator=generator)
            ends = length - torch.arange(examples) % 4
            return texts.masked_fill(torch.arange(length) >= ends[:, None], -1)
        import timm  # noqa: PLC0415

        pixels = self.size if small else timm.get_pretrained_cfg(self.name).input_size[-1]
        return torch.randn(examples, 3, pixels, pixels, generator=generator)

    def method(self, name: str) -> Method:
        """One of the four methods, with this network's targets for LoRA."""
        methods: dict[str, Method] = {
            "film": Film(kind="film"),
            "lora": LoRA(kind="lora", rank=4, target_modules=list(self.targets)),
            "all": AllParameters(kind="all"),
            "head": HeadOnly(kind="head"),
        }
        return methods[name]


def _vit(size: int = 32, **more: int) -> dict[str, Any]:
    return {"img_size": size, "depth": 2, "embed_dim": 48, "num_heads": 2, **more}


STAGES = {"depths": (1, 1, 1, 1), "dims": (16, 32, 48, 64)}
SWIN = {"depths": (2, 1), "embed_dim": 24, "num_heads": (2, 4)}
BERT = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "vocab_size": 30,
}
NETWORKS = [
    Network("vit_tiny_patch16_224", small=_vit()),
    Network("deit_tiny_distilled_patch16_224", small=_vit()),
    Network("deit3_small_patch16_224", small=_vit()),
    Network("beit_base_patch16_224", ("attn.proj",), 64, _vit(64)),
    Network("eva02_tiny_patch14_224", ("attn.proj",), 28, _vit(28)),
    Network("vit_small_patch14_dinov2", size=28, small=_vit(28)),
    Network("vit_small_patch14_reg4_dinov2", size=28, small=_vit(28)),
    Network("vit_small_plus_patch16_dinov3", ("attn.proj",), small=_vit()),
    Network("vit_base_patch32_clip_224", size=64, small=_vit(64)),
    Network("vit_base_patch32_siglip_256", size=64, small=_vit(64)),
    Network("samvit_base_patch16_224", size=64, small=_vit(64)),
    Network("cait_xxs24_224", small=_vit()),
    Network("swin_tiny_patch4_window7_224", size=56, small={"img_size": 56, **SWIN}),
    Network("swinv2_tiny_window8_256", ("attn.proj",), 64, {"img_size": 64, **SWIN}),
    Network("swinv2_cr_tiny_ns_224", size=56, small={"img_size": 56, "window_size": 7, **SWIN}),
    Network(
        "hiera_tiny_224",
        size=64,
        small={"img_size": (64, 64), "stages": (1, 1, 1, 1), "embed_dim": 24},
    ),
    Network(
        "twins_svt_small",
        ("attn.proj",),
        64,
        {"img_size": 64, "depths": (1,) * 4, "embed_dims": (32, 32, 64, 64)},
    ),
    Network("pvt_v2_b0", ("attn.q",), small={"depths": (1, 1, 1, 1)}),
    Network("pit_ti_224", size=64, small={"img_size": 64}),
    Network("crossvit_tiny_240", size=240, small={"depth": ((1, 1, 0),) * 3}),
    Network(
        "davit_tiny", size=64, small={"depths": (1, 1), "embed_dims": (32, 64), "num_heads": (2, 4)}
    ),
    Network("mvitv2_tiny", size=64),
    Network("coat_tiny", ("factoratt_crpe.qkv",), 32, {"img_size": 32}),
    Network("tnt_s_legacy_patch16_224", ("attn_in.qk",), 32, {"img_size": 32, "depth": 2}),
    Network("edgenext_xx_small", ("xca.qkv",), 64, {"depths": (1, 1, 2, 1)}),
    Network("poolformer_s12", size=32),
    Network("caformer_s18", ("token_mixer.qkv",), 32),
    Network("convnext_atto", ("mlp.fc1",), size=32, small=STAGES),
    Network("convnextv2_atto", ("mlp.fc1",), size=32, small=STAGES),
    Network("focalnet_tiny_srf", size=32),
    Network("mambaout_femto", ("fc1",), 32, STAGES),
    Network("rdnet_tiny", size=32),
    Network("resmlp_12_224", ("linear_tokens",), 32, {"img_size": 32}),
    Network("mixer_s32_224", ("mlp_tokens.fc1",), 64, {"img_size": 64}),
    Network("gmlp_ti16_224", ("mlp_channels.fc1",), 32, {"img_size": 32}),
    Network("sequencer2d_s", ("mlp_channels.fc1",), 64, {"layers": (1, 1, 1, 1), "img_size": 64}),
    Network("resnetv2_50x1_bit", ("conv1",)),
    Network("resnet50_gn", ("downsample.0",), 32, {"layers": (1, 1, 1, 1)}),
    Network("nf_resnet26", ("conv1",)),
    Network("resnet18", ("downsample.0",), 32, {"layers": (1, 1, 1, 1)}),
    Network("efficientnet_b0", ("conv_pw",)),
    Network("mobilenetv3_small_100", ("conv_pw",)),
    Network("regnety_002", ("conv1.conv",)),
    Network("xcit_nano_12_p16_224", size=32, small={"img_size": 32, "depth": 1}),
    Network("maxvit_rmlp_pico_rw_256", ("attn.qkv",), 64, {"img_size": 64}),
    Network("volo_d1_224", ("attn.qkv",), 64, {"img_size": 64}),
    Network("bert", ("query", "value"), small=BERT, library="transformers"),
    Network(
        "distilbert",
        ("q_lin", "v_lin"),
        small={"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32, "vocab_size": 30},
        library="transformers",
    ),
    Network("roberta", ("query", "value"), small=BERT, library="transformers"),
    Network(
        "electra", ("query", "value"), small={**BERT, "embedding_size": 8}, library="transformers"
    ),
    Network("mpnet", ("attn.q", "attn.v"), small=BERT, library="transformers"),
    Network(
        "albert", ("query", "value"), small={**BERT, "embedding_size": 8}, library="transformers"
    ),
    Network("deberta-v2", ("query_proj", "value_proj"), small=BERT, library="transformers"),
    Network("modernbert", ("Wqkv",), small={**BERT, "pad_token_id": 0}, library="transformers"),
]


def prepare(network: Network, method: str, *, small: bool) -> nn.Module:
    """The network with what a method trains, and no zeros in its head.

    Raises:
        BackboneError: the method finds nothing to train.
    """
    model = network.build(small=small)
    with seeded(1):
        apply_method(model, network.method(method))
        for name in sorted(head_parameter_names(model)):
            nn.init.normal_(model.get_parameter(name), std=0.02)
    return model


def try_step(network: Network, method: str) -> str:
    """Compare a clipped step of the engine that `auto` takes with the loop's; return its name.

    Raises:
        BackboneError: the method finds nothing to train.
        AssertionError: norms, losses or a parameter's gradient differ.
    """
    model = prepare(network, method, small=True)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:  # layer scales and adapters start near zero
                parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    head = head_parameter_names(model)
    inputs, labels = network.inputs(EXAMPLES, small=True), torch.arange(EXAMPLES) % CLASSES
    mask = torch.arange(EXAMPLES) != 1
    loop, engine = (make_engine(name, model, head) for name in ("loop", "auto"))
    norms, head_norms = loop.norms(inputs, labels, mask)
    bound = FlatClipping(float(norms[mask].mean()))
    wanted, found = (each.clipped_sum(inputs, labels, mask, bound) for each in (loop, engine))
    torch.testing.assert_close(found.norms, wanted.norms, rtol=1e-4, atol=0)
    torch.testing.assert_close(found.losses, wanted.losses, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(engine.norms(inputs, labels, mask)[1], head_norms, rtol=1e-4, atol=0)
    whole = torch.cat([each.flatten() for each in wanted.gradients.values()]).norm()
    assert found.gradients.keys() == wanted.gradients.keys()
    for name, gradient in wanted.gradients.items():
        error = (found.gradients[name] - gradient).norm()
        assert error <= 1e-3 * gradient.norm() + 1e-6 * whole, (name, error, gradient.norm())
    assert isinstance(engine, CheckedEngine)
    return engine.choose(inputs, labels)[0]


def describe(network: Network, method: str) -> dict[str, str]:
    """Return the engine that `auto` takes, or why there is none, for the table."""
    try:
        return {"engine": try_step(network, method)}
    except BackboneError as error:
        return {"reason": str(error)}


def main() -> None:
    """Measure all networks, and write the result after each."""
    parser = command_line(__doc__)
    parser.add_argument("--only", choices=[each.name for each in NETWORKS], nargs="+")
    chosen = parser.parse_args().only
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows = {row["network"]: row for row in read_json(RESULT)["rows"]} if RESULT.exists() else {}
    for network in NETWORKS:
        if chosen is not None and network.name not in chosen:
            continue
        methods = {method: describe(network, method) for method in METHODS}
        rows[network.name] = {
            "network": network.name,
            "library": network.library,
            "parameters": sum(each.numel() for each in network.build(small=False).parameters()),
            "methods": methods,
        }
        print(network.name, methods, flush=True)
        versions = {name: version(name) for name in ("torch", "timm", "transformers")}
        ordered = [rows[each.name] for each in NETWORKS if each.name in rows]
        write_json(RESULT, {"versions": versions, "rows": ordered})


if __name__ == "__main__":
    main()
