"""Every kind of text classifier in transformers, in a small version, with every method."""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.evidence.backbones import METHODS, method
from dpsweep.models.architectures import find_head
from dpsweep.models.build import apply_method
from dpsweep.models.sequence_classifier import SequenceClassifier

EXAMPLES, LENGTH = 4, 12
# What a number of a configuration is called in one network or another, and its small value.
_SMALL = {
    16: "hidden_size d_model dim n_embd emb_dim embedding_size word_embed_proj_dim true_hidden_size "
    "intra_bottleneck_size q_lora_rank kv_lora_rank v_head_dim qk_nope_head_dim entity_emb_size",
    1: "num_hidden_layers n_layers n_layer num_layers encoder_layers decoder_layers num_decoder_layers "
    "num_blocks attn_layer_period",
    2: "num_attention_heads n_heads n_head num_heads encoder_attention_heads decoder_attention_heads "
    "num_key_value_heads num_local_experts num_experts n_routed_experts num_experts_per_tok coordinate_size",
    32: "intermediate_size hidden_dim d_ff d_inner encoder_ffn_dim decoder_ffn_dim n_inner ffn_dim "
    "moe_intermediate_size shared_expert_intermediate_size",
    40: "vocab_size entity_vocab_size",
    8: "head_dim d_kv d_head image_size patch_size qk_rope_head_dim rotary_dim",
    24: "max_position_embeddings n_positions",
    4: "shape_size",
    0: "attn_layer_offset",
}
_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_ADAPTED = ("query", "q_proj", "q_lin", "q", "query_key_value", "Wqkv", "qkv_proj", "wqkv")


def small(default: dict[str, Any]) -> dict[str, Any]:
    """Return arguments that make a network small, for the keys that its configuration has."""
    found: dict[str, Any] = {
        key: value for value, keys in _SMALL.items() for key in keys.split() if key in default
    }
    if default.get("max_position_embeddings") in (-1, None):  # no limit
        found.pop("max_position_embeddings", None)
    found |= {
        key: value
        for key, value in _TOKENS.items()
        if key in default and not (isinstance(default[key], int) and 0 <= default[key] < 40)
    }
    if isinstance(default.get("layer_types"), list):
        found["layer_types"] = default["layer_types"][:1]
    for key, value in default.items():
        if isinstance(value, dict) and (key.endswith("_config") or key in ("encoder", "decoder")):
            found[key] = {**value, **small(value)}
    if "channel_shrink_ratio" in default:  # lilt joins six sixths
        found["hidden_size"] = 24
    return found


def adapted(model: SequenceClassifier) -> str:
    """The name that most linear layers beside the head end with."""
    head = find_head(model)
    names = [
        name.rpartition(".")[2]
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and not head.holds(f"{name}.weight")
    ]
    known = [name for name in _ADAPTED if name in names]
    return (known or [each for each, _ in Counter(names).most_common()] or ["query"])[0]


def built(kind: str, name: str, freeze: list[str]) -> tuple[nn.Module, Tensor]:
    """A network with what a method trains, no weight 0 or 1, and texts of different lengths."""
    from transformers import AutoConfig  # noqa: PLC0415

    arguments = small(AutoConfig.for_model(kind).to_dict())
    model = SequenceClassifier.create(kind, arguments, 3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape))
        apply_method(model, method(name, [adapted(model)], freeze))
        for key, parameter in model.named_parameters():
            if ".lora_" in key:
                parameter.add_(0.05 * torch.randn(parameter.shape))
    texts = model.made_up(EXAMPLES, LENGTH)
    if model.end is None:
        ends = LENGTH - torch.arange(EXAMPLES)
        texts = texts.masked_fill(torch.arange(LENGTH) >= ends[:, None], -1)
    return model, texts


def texts() -> Iterator[tuple[str, Callable[[list[str]], tuple[nn.Module, Tensor]]]]:
    """Every kind of network with every method."""
    from transformers.models.auto.modeling_auto import (  # noqa: PLC0415
        MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    )

    for kind in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES:
        for name in METHODS:
            yield f"{kind} {name}", partial(built, kind, name)
