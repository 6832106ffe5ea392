"""Outputs of a layer of a frozen network, as one vector per example."""

import pytest
import torch
from tests.models.networks import BERT, network
from torch import Tensor

from dpsweep.data.prepared import PADDING
from dpsweep.models.representation import Representation, represent
from dpsweep.models.sequence_classifier import SequenceClassifier
from dpsweep.study.networks import Features

SMALL = BERT | {"num_hidden_layers": 2, "vocab_size": 50, "max_position_embeddings": 12}


def reader() -> SequenceClassifier:
    return network("bert", SMALL)


def pictures() -> Tensor:
    return torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def texts() -> Tensor:
    tokens = torch.full((3, 8), PADDING)
    for row, length in enumerate((8, 3, 1)):
        tokens[row, :length] = torch.arange(1, length + 1) + 5 * row
    return tokens


def hidden(model: SequenceClassifier, tokens: Tensor) -> Tensor:
    mask = tokens != PADDING
    body = model.network.base_model
    with torch.no_grad():
        return body(  # type: ignore[operator]
            input_ids=tokens.where(mask, 0), attention_mask=mask.long()
        ).last_hidden_state


def test_mean_of_a_text_excludes_padding() -> None:
    model, tokens = reader(), texts()
    wanted = [
        hidden(model, row[None, :length])[0].mean(dim=0)
        for row, length in zip(tokens, (8, 3, 1), strict=True)
    ]
    features = Features(pooling="mean", transformation="unit-norm")
    found = represent(Representation(model, features), tokens)
    lengths = torch.stack(wanted).norm(dim=1, keepdim=True)
    torch.testing.assert_close(found, torch.stack(wanted) / lengths)
    longer = torch.cat([tokens, torch.full((3, 4), PADDING)], dim=1)
    torch.testing.assert_close(represent(Representation(reader(), features), longer), found)


@pytest.mark.parametrize("layer", [None, "network.bert.encoder.layer.1"])
def test_first_token_of_a_text(layer: str | None) -> None:
    model, tokens = reader(), texts()
    wanted = hidden(model, tokens)[:, 0]
    found = represent(Representation(model, Features(layer=layer, pooling="token")), tokens)
    torch.testing.assert_close(found, wanted)


def test_default_features_are_the_inputs_of_the_head() -> None:
    model, tokens = reader(), texts()
    seen: list[Tensor] = []
    head = model.network.get_submodule("classifier")
    hook = head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        model(tokens)
    hook.remove()
    torch.testing.assert_close(represent(Representation(model, Features()), tokens), seen[0])


def test_outputs_of_convolutions_are_averaged_over_pixels() -> None:
    model = network("wide_resnet", {"depth": 10, "width": 1}, "dpsweep")
    (name, first), *_ = model.named_children()
    with torch.no_grad():
        wanted = first(pictures()).mean(dim=(2, 3))
    found = represent(Representation(model, Features(layer=name)), pictures())
    torch.testing.assert_close(found, wanted)


def test_mean_of_an_image_excludes_the_class_token() -> None:
    small = {"img_size": 8, "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2}
    model = network("vit_tiny_patch16_224", small, "timm")
    with torch.no_grad():
        tokens = model.forward_features(pictures())
    assert tokens.shape[1] == 1 + 4
    found = represent(Representation(model, Features(pooling="mean")), pictures())
    torch.testing.assert_close(found, tokens[:, 1:].mean(dim=1))
