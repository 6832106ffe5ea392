"""Text classifiers of Hugging Face's transformers, as functions of one tensor of tokens."""

from typing import Any

import torch
from torch import Tensor, nn

from dpsweep.data.prepared import PADDING
from dpsweep.models.backbone import BackboneError


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
            raise TypeError(f"unknown arguments {', '.join(unknown)}")
        config = AutoConfig.for_model(name, num_labels=classes, **arguments)
        return cls(AutoModelForSequenceClassification.from_config(config))

    @property
    def vocabulary(self) -> int:
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
        # Complete, as attention reads it: from a mask of two dimensions, networks make one only
        # where a text of the batch has padding, and then an example's numbers depend on the others.
        length = tokens.shape[1]
        complete = attention[:, None, None, :].expand(-1, 1, length, length)
        logits: Tensor = self.network(input_ids=numbers, attention_mask=complete).logits
        return logits
