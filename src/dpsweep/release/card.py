"""The model card of a release, made from its certificate and from nothing else."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from dpsweep.data.resize import Resize
from dpsweep.release import CERTIFICATE, FROZEN, TOKENIZER, TRAINED
from dpsweep.release.certificate import Certificate, Network
from dpsweep.study.config import LoRA


def model_card(certificate: Certificate) -> str:
    """Return the card as Markdown."""
    environment = Environment(  # noqa: S701 (Markdown)
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.filters["short"] = _short
    template = environment.get_template("card.md.j2")
    network = certificate.network
    return template.render(
        it=certificate, loading=loading_code(network), reading=reading_code(network)
    )


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def loading_code(network: Network) -> str:
    """Return Python that loads the model where the files of the release are."""
    arguments = "".join(f", {name}={value!r}" for name, value in network.arguments.items())
    classes = len(network.classes)
    match network.library:
        case "timm":
            lines = [
                "import timm",
                "from safetensors.torch import load_file",
                "",
                f"model = timm.create_model({network.architecture!r}, num_classes={classes}{arguments})",
            ]
        case "transformers":
            lines = [
                "from safetensors.torch import load_file",
                "from transformers import AutoConfig, AutoModelForSequenceClassification",
                "",
                f"config = AutoConfig.for_model({network.architecture!r}, num_labels={classes}{arguments})",
                "model = AutoModelForSequenceClassification.from_config(config)",
            ]
        case _:
            lines = [
                "from safetensors.torch import load_file",
                "",
                "from dpsweep.models.wide_resnet import WideResNet",
                "",
                f"model = WideResNet(num_classes={classes}{arguments})",
            ]
    if isinstance(network.method, LoRA):
        rank = network.method.rank
        lines.insert(0, "from peft import LoraConfig, inject_adapter_in_model")
        lines += [
            f"adapters = LoraConfig(r={rank}, lora_alpha={rank}, lora_dropout=0.0, "
            f"target_modules={network.method.target_modules!r}, "
            f"exclude_modules={network.head_layers!r})",
            "inject_adapter_in_model(adapters, model)",
        ]
    return "\n".join(
        [
            *lines,
            f'model.load_state_dict({{**load_file("{FROZEN}"), **load_file("{TRAINED}")}})',
            "model.eval()",
        ]
    )


def reading_code(network: Network) -> str:
    """Return Python that prepares an input as those of the training were, and names its class."""
    if network.resize is None:
        imports, prepare, call = _reading_texts(network.shape[0])
    else:
        imports, prepare, call = _reading_images(network, network.resize)
    return "\n".join(
        [
            "import json",
            "",
            *imports,
            "",
            *prepare,
            "",
            f'classes = json.load(open("{CERTIFICATE}"))["network"]["classes"]',
            "with torch.no_grad():",
            f"    print(classes[{call}.argmax().item()])",
        ]
    )


def _reading_texts(tokens: int) -> tuple[list[str], list[str], str]:
    imports = ["import torch", "from tokenizers import Tokenizer"]
    prepare = [
        f'tokenizer = Tokenizer.from_file("{TOKENIZER}")',
        f"tokenizer.enable_truncation({tokens})",
        "tokenizer.no_padding()",
        "",
        "def prepare(text):",
        "    return torch.tensor([tokenizer.encode(text).ids])",
    ]
    return imports, prepare, 'model(prepare("Some text.")).logits'


def _reading_images(network: Network, resize: Resize) -> tuple[list[str], list[str], str]:
    imports = ["import numpy as np", "import torch", "from PIL import Image, ImageOps"]
    size, channels = resize.size, len(network.mean)
    mode = "L" if channels == 1 else "RGB"
    method = f"Image.Resampling.{resize.interpolation.upper()}"
    if resize.crop is None:
        resized = [f"    image = image.resize(({size}, {size}), {method})"]
    else:
        shorter = int(size / resize.crop)
        resized = [
            f"    width, height = (int({shorter} * side / min(image.size)) for side in image.size)",
            f"    left, top = (round((side - {size}) / 2) for side in (width, height))",
            f"    image = image.resize((width, height), {method})",
            f"    image = image.crop((left, top, left + {size}, top + {size}))",
        ]
    prepare = [
        "def prepare(file):",
        f'    image = ImageOps.exif_transpose(Image.open(file)).convert("{mode}")',
        *resized,
        f"    pixels = torch.from_numpy(np.array(image)).view({size}, {size}, {channels}) / 255",
        f"    pixels = (pixels - torch.tensor({network.mean})) / torch.tensor({network.std})",
        "    return pixels.permute(2, 0, 1)[None]",
    ]
    return imports, prepare, 'model(prepare("image.png"))'
