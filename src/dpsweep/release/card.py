"""The model card of a release, made from its certificate and from nothing else."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from dpsweep.release import FROZEN, TRAINED
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
    return template.render(it=certificate, code=loading_code(certificate.network))


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
