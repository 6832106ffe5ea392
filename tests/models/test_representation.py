"""What a layer of a frozen network says of an example, as one vector."""

import pytest
import torch
from torch import Tensor

from dpsweep.data.prepared import PADDING
from dpsweep.models.architecture import Architecture, BackboneError
from dpsweep.models.architectures import create, seeded
from dpsweep.models.representation import Representation, represent
from dpsweep.models.sequence_classifier import SequenceClassifier
from dpsweep.models.transformation import transform
from dpsweep.study.config import Features, GroupNorm

SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "vocab_size": 50,
    "max_position_embeddings": 12,
}


def reader() -> SequenceClassifier:
    with seeded(3):
        network = create(Architecture(library="transformers", name="bert", arguments=SMALL), 2)
    assert isinstance(network, SequenceClassifier)
    return network.eval()


def texts() -> Tensor:
    tokens = torch.full((3, 8), PADDING)
    for row, length in enumerate((8, 3, 1)):
        tokens[row, :length] = torch.arange(1, length + 1) + 5 * row
    return tokens


def hidden(network: SequenceClassifier, tokens: Tensor) -> Tensor:
    mask = tokens != PADDING
    body = network.network.base_model
    with torch.no_grad():
        return body(  # type: ignore[operator]
            input_ids=tokens.where(mask, 0), attention_mask=mask.long()
        ).last_hidden_state


def test_the_mean_of_a_text_leaves_padding_out_as_sentence_encoders_do() -> None:
    network, tokens = reader(), texts()
    wanted = [
        hidden(network, row[None, :length])[0].mean(dim=0)
        for row, length in zip(tokens, (8, 3, 1), strict=True)
    ]
    features = Features(pooling="mean", transformation="unit-norm")
    found = represent(Representation(network, features), tokens)
    lengths = torch.stack(wanted).norm(dim=1, keepdim=True)
    torch.testing.assert_close(found, torch.stack(wanted) / lengths)
    longer = torch.cat([tokens, torch.full((3, 4), PADDING)], dim=1)
    torch.testing.assert_close(represent(Representation(reader(), features), longer), found)


@pytest.mark.parametrize("layer", [None, "network.bert.encoder.layer.1"])
def test_the_first_token_of_a_text(layer: str | None) -> None:
    network, tokens = reader(), texts()
    wanted = hidden(network, tokens)[:, 0]
    found = represent(Representation(network, Features(layer=layer, pooling="token")), tokens)
    torch.testing.assert_close(found, wanted)


def test_the_head_of_a_network_reads_what_it_reads_by_default() -> None:
    network, tokens = reader(), texts()
    seen: list[Tensor] = []
    head = network.network.get_submodule("classifier")
    hook = head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        network(tokens)
    hook.remove()
    torch.testing.assert_close(represent(Representation(network, Features()), tokens), seen[0])


def test_a_layer_of_tokens_needs_a_pooling_where_the_network_has_none() -> None:
    network = reader()
    features = Features(layer="network.bert.encoder.layer.0")
    with pytest.raises(BackboneError, match="found nothing for outputs of shape"):
        represent(Representation(network, features), texts())


def test_a_convolutional_network_is_averaged_over_places() -> None:
    arguments = {"depth": 10, "width": 1, "in_chans": 3}
    with seeded(0):
        network = create(
            Architecture(library="dpsweep", name="wide_resnet", arguments=arguments), 2
        )
    images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    names = [name for name, _ in network.named_children()]
    with torch.no_grad():
        wanted = network.get_submodule(names[0])(images).mean(dim=(2, 3))
    found = represent(Representation(network.eval(), Features(layer=names[0])), images)
    torch.testing.assert_close(found, wanted)


def test_a_transformation_of_one_example_does_not_depend_on_the_others() -> None:
    features = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
    for name in (None, "layer-norm", "unit-norm", GroupNorm(kind="group-norm", groups=2)):
        alone = torch.cat([transform(row[None], name) for row in features])
        torch.testing.assert_close(transform(features, name), alone)


def test_groups_of_features_are_those_of_channels() -> None:
    maps = torch.randn(3, 6, 2, 2, generator=torch.Generator().manual_seed(0))
    found = transform(maps.flatten(1), GroupNorm(kind="group-norm", groups=3))
    torch.testing.assert_close(found, torch.nn.GroupNorm(3, 6)(maps).flatten(1))
    for groups in (5, 24):
        with pytest.raises(
            BackboneError, match=f"groups: found {groups}; allowed: a divisor of the 24"
        ):
            transform(maps.flatten(1), GroupNorm(kind="group-norm", groups=groups))


def test_the_mean_of_an_image_leaves_the_class_token_out() -> None:
    arguments = {"img_size": 8, "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2}
    with seeded(3):
        network = create(
            Architecture(library="timm", name="vit_tiny_patch16_224", arguments=arguments), 2
        ).eval()
    images = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        tokens = network.forward_features(images)  # type: ignore[operator]
    assert tokens.shape[1] == 1 + 4
    found = represent(Representation(network, Features(pooling="mean")), images)
    torch.testing.assert_close(found, tokens[:, 1:].mean(dim=1))
