"""Text classifiers of transformers: inputs, trainable parameters, and published weights."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from tests.data.test_texts import PIECES, bert, publish
from tests.models.networks import (
    ALL,
    BERT,
    DISTILBERT,
    GPT2,
    HEAD,
    T5,
    make_backbone,
    network,
)
from torch import nn
from transformers import DistilBertConfig, DistilBertForMaskedLM

from dpsweep.data.prepare import prepare_tokenizer
from dpsweep.data.prepared import DatasetMetadata, PreparedDataset, TokenizerIdentity
from dpsweep.gradients import make_engine
from dpsweep.gradients.engines import GradientSum
from dpsweep.gradients.refusals import UnsupportedModelError
from dpsweep.models.architectures import seeded
from dpsweep.models.backbone import PreparedBackbone
from dpsweep.models.build import (
    apply_method,
    build_model,
    head_parameter_names,
    make_trainable,
    trainable_parameters,
)
from dpsweep.models.prepare import prepare
from dpsweep.models.sequence_classifier import SequenceClassifier, require_length
from dpsweep.study.clipping import NoClipping
from dpsweep.study.networks import AllParameters, Architecture, Backbone, BackboneError, Film
from dpsweep.study.paths import Paths

TWO_LAYERS = BERT | {"num_hidden_layers": 2}
TEXTS = torch.tensor([[2, 5, 7, 3, -1, -1, -1], [2, 6, 3, -1, -1, -1, -1], [2, 9, 9, 8, 11, 4, 3]])


# -- inputs --------------------------------------------------------------------------------------


READERS = {
    "distilbert": DISTILBERT,
    "bert": TWO_LAYERS,
    "roberta": TWO_LAYERS,
    "electra": TWO_LAYERS | {"embedding_size": 8},
    "gpt2": GPT2 | {"pad_token_id": 0},
}


RELATIVE = {"relative_attention": True, "position_biased_input": False}
XLNET = {"d_model": 8, "n_layer": 1, "n_head": 2, "d_inner": 16, "vocab_size": 12}
OPT = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "ffn_dim": 16}
OPT |= {"vocab_size": 12, "word_embed_proj_dim": 8}


@pytest.mark.parametrize(
    ("name", "arguments"),
    [*READERS.items(), ("xlnet", XLNET), ("deberta-v2", BERT | RELATIVE), ("opt", OPT)],
)
def test_padding_has_no_influence(name: str, arguments: dict[str, Any]) -> None:
    """A text has the same logits alone, without padding, and in a padded batch."""
    # With the default weights, logits hardly depend on the texts.
    wide = {"init_std": 0.5} if name == "opt" else {"initializer_range": 0.5}
    model = network(name, arguments | wide).double()
    together = model(TEXTS)
    for row, text in enumerate(TEXTS):
        alone = model(text[text >= 0][None])
        torch.testing.assert_close(together[row], alone[0], rtol=1e-10, atol=1e-12)
    # The texts themselves have an influence.
    assert (together[0] - together[1]).abs().max() > 1e-3
    changed = TEXTS.clone()
    changed[0, 2] = 8
    assert (model(changed)[0] - together[0]).abs().max() > 1e-3
    torch.testing.assert_close(model(changed)[1:], together[1:])


@pytest.mark.parametrize(("name", "arguments"), READERS.items())
def test_batch_without_padding_has_a_mask(
    name: str, arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a mask, an example's last digits would depend on padding of the others."""
    model = network(name, arguments)
    attention = nn.functional.scaled_dot_product_attention
    masks = []

    def spy(*args: Any, attn_mask: torch.Tensor | None = None, **options: Any) -> torch.Tensor:
        masks.append(attn_mask)
        return attention(*args, attn_mask=attn_mask, **options)

    monkeypatch.setattr(nn.functional, "scaled_dot_product_attention", spy)
    full = TEXTS[2].expand(3, -1)
    alone = model(full)
    assert masks and all(mask is not None for mask in masks)
    mixed = full.clone()
    mixed[:2] = TEXTS[:2]
    assert torch.equal(model(mixed)[2], alone[2])


LENGTHS: dict[str, tuple[dict[str, Any], int | None]] = {
    "distilbert": (DISTILBERT, 12),
    "bert": (BERT, 12),
    # Positions start after the id of the padding token, which is 1.
    **dict.fromkeys(("roberta", "ibert", "mpnet"), (BERT, 10)),
    # Relative or rotary positions, and a table with two more rows.
    "xlnet": (XLNET, None),
    "deberta-v2": (BERT | RELATIVE, None),
    "opt": (OPT, 12),
}


@pytest.mark.parametrize("name", LENGTHS)
def test_longest_readable_text(name: str) -> None:
    """The length found on `meta` equals that of passes on the CPU."""
    arguments, longest = LENGTHS[name]
    if longest is not None:
        arguments = arguments | {"max_position_embeddings": 12}
    architecture = Architecture(library="transformers", name=name, arguments=arguments)
    require_length(architecture, longest or 700)
    if longest is None:
        return
    for length in (longest + 1, 30):
        message = rf"have {length} tokens, .* reads at most {longest}: .*max_length"
        with pytest.raises(BackboneError, match=message):
            require_length(architecture, length)
    model = network(name, arguments)
    model(model.made_up(2, longest))
    with pytest.raises((IndexError, RuntimeError)):
        model(model.made_up(2, longest + 1))


BART: dict[str, Any] = {
    **{"d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 12},
    **{"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 16},
    **{"decoder_ffn_dim": 16, "max_position_embeddings": 16},
    **{"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3},
}
WITH_DECODERS = {
    **dict.fromkeys(("bart", "mbart", "bigbird_pegasus"), BART),
    **dict.fromkeys(("t5", "umt5"), T5),
}


@pytest.mark.parametrize("name", WITH_DECODERS)
def test_decoders_read_texts_up_to_the_last_end_token(name: str) -> None:
    model = network(name, WITH_DECODERS[name]).double()
    # The decoder starts with padding, unless the configuration sets another token.
    starts = {"t5": 0, "bart": 2}
    assert name not in starts or model.network.config.decoder_start_token_id == starts[name]
    made_up = model.made_up(3, 6)
    assert model(made_up).shape == (3, 3)
    assert (made_up[:, -1] == 3).all() and (made_up[:, :-1] != 3).all()
    # Texts may have several end tokens: only the last one is read.
    ended, without = TEXTS.clone(), TEXTS.clone()
    ended[0, 1], without[0, 1] = 3, -1
    torch.testing.assert_close(model(ended)[1:], model(TEXTS)[1:])
    torch.testing.assert_close(model(ended), model(without))


def test_data_of_another_tokenizer_are_refused(tmp_path: Path) -> None:
    tokenizer = TokenizerIdentity(vocabulary=12, checksum="abc")
    facts = {"library": "transformers", "kind": "text", "mean": (), "std": ()}
    made = make_backbone(tmp_path, "distilbert", DISTILBERT, tokenizer=tokenizer, **facts)
    backbone = PreparedBackbone.open(made)
    metadata = DatasetMetadata(
        **{"name": "notes", "title": "Notes", "kind": "text", "source": "", "revision": None},
        **{"classes": ("a", "b"), "train_size": 2, "test_size": 2, "train_counts": (1, 1)},
        **{"test_counts": (1, 1), "shape": (7,), "checksum": "", "file_checksums": {}},
        tokenizer=tokenizer,
    )

    def texts(**changes: Any) -> PreparedDataset:
        found = metadata.model_copy(update=changes)
        return PreparedDataset(tmp_path / "notes", found, *[np.zeros(0)] * 4)

    backbone.check_reads(texts())
    others = TokenizerIdentity(vocabulary=12, checksum="def")
    with pytest.raises(BackboneError, match=r"reads text .*abc.*notes is text .*def") as raised:
        backbone.check_reads(texts(tokenizer=others))
    remade = (tmp_path / "notes" / "metadata.json", backbone.folder / "metadata.json")
    assert raised.value.remake == remade
    with pytest.raises(BackboneError, match="notes is image"):
        backbone.check_reads(texts(kind="image", tokenizer=None))


# -- trainable parameters ------------------------------------------------------------------------


def test_training_starts_from_zero_logits_with_gradients() -> None:
    model = network("distilbert", DISTILBERT)
    make_trainable(model, ALL)
    logits = model(TEXTS)
    assert torch.all(logits == 0)
    logits[:, 0].sum().backward()
    # Only the last layer is zero: with two zero layers, gradients would stay zero.
    assert model.get_submodule("network.classifier").weight.grad.abs().sum() > 0
    assert model.get_submodule("network.pre_classifier").weight.abs().sum() > 0


def test_refusal_of_unused_parameters_gives_the_line_that_freezes_them() -> None:
    """With this line the network trains."""
    model = network("big_bird", TWO_LAYERS | {"attention_type": "original_full"})
    apply_method(model, ALL)
    labels, mask = torch.tensor([0, 1, 2]), torch.ones(3, dtype=torch.bool)

    def step() -> GradientSum:
        engine = make_engine("auto", model, head_parameter_names(model))
        return engine.clipped_sum(TEXTS, labels, mask, NoClipping())

    with pytest.raises(UnsupportedModelError, match="no influence") as raised:
        step()
    line = str(raised.value).splitlines()[-1]
    method = AllParameters(kind="all", **yaml.safe_load(line))
    assert method.freeze == [f"network.bert.pooler.{each}" for each in ("bias", "weight")]
    apply_method(model, method)
    assert not any(".pooler." in name for name in step().gradients)


@pytest.mark.parametrize(
    ("freeze", "found"),
    [
        ([], 10),
        (["network.distilbert.embeddings"], 8),
        (["*.layer.0.*"], 6),
        (["*LayerNorm.bias"], 9),
        (["network.classifier"], r"freeze: found network.classifier, which holds the head \(net"),
        (["network.distilbert.embeddings.word_embeddings"], "freeze: found .*word_embeddings"),
    ],
)
def test_names_and_patterns_freeze(freeze: list[str], found: int | str) -> None:
    model, method = network("distilbert", DISTILBERT), Film(kind="film", freeze=freeze)
    if isinstance(found, str):
        with pytest.raises(BackboneError, match=found):
            apply_method(model, method)
        return
    apply_method(model, method)
    assert len(trainable_parameters(model).keys() - head_parameter_names(model)) == found
    # Without frozen parameters, the key stays that of earlier versions.
    assert method.identity() == {"kind": "film"} | ({"freeze": freeze} if freeze else {})


# -- published weights ---------------------------------------------------------------------------


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """Return a repository like those of the hub: a masked language model, configuration, tokenizer."""
    folder = tmp_path / "published"
    folder.mkdir()
    bert(folder)
    publish(folder / "out.json", folder / "tokenizer.json")
    arguments = DISTILBERT | {"vocab_size": len(PIECES), "activation": "relu"}
    with seeded(3):
        DistilBertForMaskedLM(DistilBertConfig(**arguments)).save_pretrained(folder)
    return folder


def prepared(published: Path, **changes: Any) -> PreparedBackbone:
    """Prepare the repository with its tokenizer, and by default with its weights."""
    known = {"title": "Reader", "library": "transformers", "architecture": "distilbert"}
    known |= {"weights": {"kind": "file", "path": str(published / "model.safetensors")}}
    known |= {"tokenizer": {"kind": "file", "path": str(published / "tokenizer.json")}}
    backbone = Backbone.model_validate(known | changes)
    paths = Paths(published.parent / "results")
    prepare_tokenizer("reader", backbone, {}, paths.tokenizer("reader"))
    return prepare("reader", backbone, paths)


def test_published_weights_and_configuration_are_used(published: Path) -> None:
    made = prepared(published)
    # Shapes of weights do not show the activation; only the configuration has it.
    assert made.metadata.architecture.arguments["activation"] == "relu"
    assert made.metadata.kind == "text"
    original = DistilBertForMaskedLM.from_pretrained(published).distilbert.eval()
    model = build_model(made.folder, HEAD, 3, seed=1).eval()
    assert isinstance(model, SequenceClassifier)
    ids, mask = TEXTS.clamp(min=0), (TEXTS >= 0).long()
    with torch.no_grad():
        wanted, found = (
            each(input_ids=ids, attention_mask=mask).last_hidden_state[:, 0]
            for each in (original, model.network.distilbert)
        )
    torch.testing.assert_close(found, wanted)
    assert not any("vocab_" in name or "classifier" in name for name in made.state())


def test_mismatched_weights_and_tokenizers_are_refused(published: Path) -> None:
    for arguments, message in (
        ({"n_layers": 3}, "does not fit distilbert: missing distilbert"),
        ({"hidden_dim": 32}, "does not fit distilbert: .* of another shape"),
    ):
        with pytest.raises(BackboneError, match=message):
            prepared(published, arguments=arguments)
    # A network with a decoder needs a tokenizer that ends texts; [SEP] is 3.
    decoder = {"architecture": "bart", "weights": {"kind": "random"}}
    prepared(published, arguments=BART, **decoder)
    with pytest.raises(BackboneError, match=r"reader: Bart.* ends with token 2, found 3 after"):
        prepared(published, arguments=BART | {"eos_token_id": 2}, **decoder)
    bert(published, [*PIECES, "dog"])
    publish(published / "out.json", published / "tokenizer.json")
    with pytest.raises(BackboneError, match=r"the tokenizer has 13 tokens, .* for 12"):
        prepared(published)
    configuration = json.loads((published / "config.json").read_text())
    (published / "config.json").write_text(json.dumps(configuration | {"model_type": "bert"}))
    with pytest.raises(BackboneError, match=r"config\.json: describes a 'bert'; the study has"):
        prepared(published)


XLM = {"emb_dim": 8, "n_layers": 1, "n_heads": 2, "n_words": 12, "max_position_embeddings": 12}


@pytest.mark.parametrize(
    ("name", "summary", "allowed"),
    [
        ("xlm", "last", "first"),  # on the left, a text would have other positions
        ("flaubert", "last", "first"),
        ("xlm", "mean", "first"),
        ("xlnet", "mean", "first, last"),
        ("xlnet", "cls_index", "first, last"),
    ],
)
def test_a_summary_that_reads_padding_is_refused(name: str, summary: str, allowed: str) -> None:
    arguments = XLNET if name == "xlnet" else XLM | {"pad_token_id": 0}
    with pytest.raises(BackboneError, match=rf"summary_type {summary} .* allowed: {allowed}$"):
        network(name, arguments | {"summary_type": summary})
    model = network(name, arguments | {"summary_type": "first"}).double()
    text = model.made_up(2, 4)
    padded = nn.functional.pad(text, (0, 3), value=-1)
    torch.testing.assert_close(model(padded), model(text))
