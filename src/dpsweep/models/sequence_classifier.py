"""Text classifiers of Hugging Face's transformers with one tensor of tokens as input."""

from bisect import bisect_left
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from dpsweep.data.prepared import PADDING
from dpsweep.study.messages import shorten
from dpsweep.study.networks import Architecture, BackboneError


class SequenceClassifier(nn.Module):
    """A network of ``AutoModelForSequenceClassification``, from tokens to logits.

    Args:
        network: the network.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        config: Any = network.config
        padding = _token(config, "pad_token_id")
        if padding is None:
            raise BackboneError(
                f"{type(network).__name__} has no padding token; allowed: pad_token_id among the backbone's "
                "arguments, or another kind of model"
            )
        self.padding = padding
        self.end = _token(config, "eos_token_id") if config.is_encoder_decoder else None
        """The end token of networks with a decoder, which classify at its only occurrence in a text."""
        summary = getattr(getattr(network, "sequence_summary", None), "summary_type", "first")
        # Padding on the left moves a text to other positions, if the network has a table of them.
        placed = any("position_embeddings" in name for name, _ in network.named_modules())
        allowed = ("first",) if placed else ("first", "last")
        if summary not in allowed:
            raise BackboneError(
                f"{type(network).__name__} with summary_type {summary} reads the padding of a text; set "
                f"summary_type among the backbone's arguments; allowed: {', '.join(allowed)}"
            )
        self.reads_last = summary == "last"
        """Whether the network classifies at the last position, as XLNet does."""
        if config.is_encoder_decoder and _token(config, "decoder_start_token_id") is None:
            config.decoder_start_token_id = padding

    @classmethod
    def create(cls, name: str, arguments: dict[str, Any], classes: int) -> "SequenceClassifier":
        """Return a network with random weights.

        Args:
            name: the kind of model ("distilbert", "bert", ...).
            arguments: of its configuration; others keep the library's defaults.
            classes: number of logits.

        Raises:
            ValueError: an unknown kind of model.
            TypeError: an argument that the configuration does not have.
        """
        # transformers takes seconds to import.
        from transformers import AutoConfig, AutoModelForSequenceClassification  # noqa: PLC0415

        # A configuration accepts unknown arguments silently.
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
    def name(self) -> str:
        """The name of the network's class."""
        return type(self.network).__name__

    @property
    def vocab_size(self) -> int:
        """The number of tokens in the network's vocabulary."""
        try:
            return len(self.network.get_input_embeddings().weight)  # type: ignore[operator]
        except (NotImplementedError, AttributeError):
            raise BackboneError(
                f"{self.name} has no embedding table for tokens; allowed: another kind of model"
            ) from None

    def made_up(self, examples: int, length: int) -> Tensor:
        """Return texts of random tokens, int32 (examples, length), without padding."""
        random = torch.Generator().manual_seed(0)
        special = {self.padding, self.end}
        words = torch.tensor(
            [each for each in range(min(self.vocab_size, 100)) if each not in special]
        )
        texts = words[torch.randint(len(words), (examples, length), generator=random)]
        if self.end is not None:
            texts[:, -1] = self.end
        return texts.to(torch.int32)

    @property
    def head_modules(self) -> list[str]:
        """The names of the layers that transformers adds to the pretrained network, in its order.

        For DistilBERT these are ``pre_classifier`` and ``classifier``. The pretrained weights contain
        neither, so both train with every method, as in peft.
        """
        body = self.network.base_model_prefix
        return [
            f"network.{name}"
            for name, module in self.network.named_children()
            if name != body and any(True for _ in module.parameters())
        ]

    def forward(self, tokens: Tensor) -> Tensor:
        """Map int64 (B, length), -1 after the end of a text, to logits (B, classes).

        A text must not be longer than the network can read (see `require_length`).
        """
        if self.reads_last:
            # Padding goes to the left. Positions of XLNet are relative to each other.
            order = (tokens != PADDING).to(torch.int8).argsort(dim=1, stable=True)
            tokens = tokens.gather(1, order)
        attention = tokens != PADDING
        if self.end is not None:
            # These networks refuse batches of texts with different numbers of end tokens.
            ends = tokens == self.end
            attention = attention & ~(ends & (ends.flip(1).cumsum(1).flip(1) > 1))
        numbers = torch.where(attention, tokens, self.padding)
        logits: Tensor = self.network(
            input_ids=numbers, attention_mask=attention.to(torch.int64)
        ).logits
        return logits


def require_length(architecture: Architecture, length: int) -> None:
    """Refuse texts that are longer than a network can read.

    This runs the network on ``meta``, because its ``max_position_embeddings`` is not reliable: some networks
    count positions before the first token, and for others it is not a limit.

    Args:
        architecture: of library transformers.
        length: of the longest text, in tokens.

    Raises:
        BackboneError: the texts are too long; the message contains the longest readable length.
    """
    with torch.device("meta"), Outline():
        model = SequenceClassifier.create(
            architecture.name, architecture.arguments, classes=2
        ).eval()
    if _can_read(model, length):
        return
    lengths = range(1, length)
    readable = bisect_left(lengths, True, key=lambda each: not _can_read(model, each))
    if readable:  # if 0, it fails for another reason, which the first pass will show
        raise BackboneError(
            f"the texts have {length} tokens, {model.name} reads at most "
            f"{readable}: set the dataset's max_length to that or less"
        )


def _can_read(model: SequenceClassifier, length: int) -> bool:
    """Return whether a network on ``meta`` has positions for a text."""
    try:
        with torch.no_grad(), Outline():
            model(model.made_up(1, length))
    except Exception as error:  # of any kind: networks check their inputs in many ways
        return asks_for_values(error)
    return True


def _token(config: Any, key: str) -> int | None:
    """Return the first id of a special token in a configuration or its part for text, None if absent."""
    for each in (config, config.get_text_config()):
        value = getattr(each, key, None)
        if value is not None:
            return int(value[0] if isinstance(value, list) else value)
    return None


@cache
def _always_masked() -> str:
    """Register torch's attention with a mask in every batch, and return its name.

    By default transformers omits the mask if no text of a batch has padding. Then the last digits of
    an example's gradient would depend on the other examples.
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


_META = torch.device("meta")
_aten: Any = torch.ops.aten
# They set initial values, which a tensor on `meta` does not have. Outlines without them take half the time.
_FILLS = {
    getattr(_aten, name)
    for name in ("normal_", "uniform_", "fill_", "zero_", "mul_", "add_", "clamp_", "erfinv_")
}


class Outline(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode in which a network on ``meta`` takes inputs on the CPU, and checks its look-ups.

    Make the network in this mode too, so that its integer buffers have values.

    Raises:
        IndexError: a look-up of a row that the table does not have.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run an operation on the CPU if none of its tensors is on ``meta``, otherwise on ``meta``."""
        kwargs = kwargs or {}
        leaves, form = tree_flatten((args, kwargs))
        tensors = [each for each in leaves if isinstance(each, Tensor)]
        if not any(each.is_meta for each in tensors):
            if _of_integers(func, tensors, kwargs.get("dtype")):
                leaves = [torch.device("cpu") if each == _META else each for each in leaves]
            args, kwargs = tree_unflatten(leaves, form)
            return func(*args, **kwargs)
        if func.overloadpacket in _FILLS and len(tensors) == 1:
            return args[0]
        if func is _aten.embedding.default:
            _check_rows(len(args[0]), args[1])
        if func is _aten.index.Tensor:
            for size, rows in zip(args[0].shape, args[1], strict=False):
                if rows is not None and rows.dtype is not torch.bool:
                    _check_rows(size, rows, -size)
            leaves, form = tree_flatten(((args[0], _places(args[1])), {}))
        args, kwargs = tree_unflatten(
            [each.to(_META) if isinstance(each, Tensor) else each for each in leaves], form
        )
        return func(*args, **kwargs)


def asks_for_values(error: Exception) -> bool:
    """Return whether a network on ``meta`` failed because it reads a value."""
    return isinstance(error, RuntimeError) and "meta" in str(error).lower()


def _of_integers(func: Any, tensors: list[Tensor], dtype: torch.dtype | None) -> bool:
    """Return whether an operation makes or moves integers, such as positions of tokens."""
    if tensors:
        return not any(each.is_floating_point() for each in tensors)
    counts = dtype is None and func.overloadpacket is _aten.arange
    return counts or (dtype is not None and not dtype.is_floating_point)


def _check_rows(size: int, rows: Tensor, first: int = 0) -> None:
    if not rows.is_meta and rows.numel() and not first <= int(rows.min()) <= int(rows.max()) < size:
        raise IndexError(f"rows {int(rows.min())} to {int(rows.max())} of a table with {size}")


def _places(indices: list[Tensor | None]) -> list[Tensor | None]:
    """Replace masks by the indices that they select, whose number ``meta`` cannot compute."""
    found: list[Tensor | None] = []
    for each in indices:
        if each is None or each.is_meta or each.dtype is not torch.bool:
            found.append(each)
        else:
            found += each.nonzero(as_tuple=True)
    return found
