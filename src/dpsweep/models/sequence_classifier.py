"""Text classifiers of Hugging Face's transformers, as functions of one tensor of tokens."""

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from dpsweep.data.prepared import PADDING
from dpsweep.models.backbone import BackboneError
from dpsweep.study.messages import shorten


class SequenceClassifier(nn.Module):
    """A network of ``AutoModelForSequenceClassification``, from tokens to logits.

    Args:
        network: the network.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        config: Any = network.config
        if config.pad_token_id is None:
            raise BackboneError(
                f"{type(network).__name__} has no padding token; set pad_token_id among the "
                "backbone's arguments"
            )
        self.padding: int = config.pad_token_id
        self.longest: int | None = getattr(config, "max_position_embeddings", None)

    @classmethod
    def create(cls, name: str, arguments: dict[str, Any], classes: int) -> "SequenceClassifier":
        """Return a network with random weights.

        Args:
            name: the kind of model ("distilbert", "bert", ...).
            arguments: of its configuration; the others keep the library's defaults.
            classes: number of logits.

        Raises:
            ValueError: an unknown kind of model.
            TypeError: an argument that the configuration does not know.
        """
        # transformers takes seconds to import.
        from transformers import AutoConfig, AutoModelForSequenceClassification  # noqa: PLC0415

        # A configuration takes any argument without a word.
        default = AutoConfig.for_model(name)
        known = default.to_dict().keys() | default.attribute_map.keys()
        if unknown := sorted(arguments.keys() - known):
            raise TypeError(
                f"unknown arguments {shorten(unknown)}; allowed: {shorten(sorted(known))}"
            )
        config = AutoConfig.for_model(name, num_labels=classes, **arguments)
        network = AutoModelForSequenceClassification.from_config(config)
        if network.config._attn_implementation == "sdpa":
            network.set_attn_implementation(_always_masked())
        return cls(network)

    @property
    def vocab_size(self) -> int:
        """How many tokens the network knows."""
        size: int = self.network.get_input_embeddings().num_embeddings  # type: ignore[operator]
        return size

    @property
    def head_modules(self) -> list[str]:
        """Names of the layers that transformers adds to the pretrained network, in its order.

        For DistilBERT these are ``pre_classifier`` and ``classifier``; the pretrained weights have
        neither, so both train with every method, as they do in peft.
        """
        body = self.network.base_model_prefix
        return [
            f"network.{name}"
            for name, module in self.network.named_children()
            if name != body and any(True for _ in module.parameters())
        ]

    def forward(self, tokens: Tensor) -> Tensor:
        """Map int64 (B, length), -1 after the end of a text, to logits (B, classes).

        Raises:
            BackboneError: the network has no positions for that length.
        """
        if self.longest is not None and tokens.shape[1] > self.longest:
            raise BackboneError(
                f"the texts have {tokens.shape[1]} tokens, {type(self.network).__name__} reads at "
                f"most {self.longest}: set the dataset's max_length to that or less"
            )
        attention = tokens != PADDING
        numbers = torch.where(attention, tokens, self.padding)
        logits: Tensor = self.network(
            input_ids=numbers, attention_mask=attention.to(torch.int64)
        ).logits
        return logits


@cache
def _always_masked() -> str:
    """Register torch's attention with a mask in every batch, and return its name.

    By default transformers leaves the mask away where no text of a batch has padding. Then the last
    digits of one example's gradient would depend on the other examples.
    """
    from transformers import AttentionInterface, AttentionMaskInterface  # noqa: PLC0415
    from transformers.integrations.sdpa_attention import sdpa_attention_forward  # noqa: PLC0415
    from transformers.masking_utils import sdpa_mask  # noqa: PLC0415

    def mask(*args: Any, **kwargs: Any) -> Tensor:
        never = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
        made: Tensor = sdpa_mask(*args, **{**kwargs, **never})
        return made

    AttentionInterface.register("sdpa_always_masked", sdpa_attention_forward)
    AttentionMaskInterface.register("sdpa_always_masked", mask)
    return "sdpa_always_masked"
