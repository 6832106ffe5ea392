"""Preparation of a backbone of the study: its files on disk."""

from pathlib import Path
from typing import Any

from torch import Tensor

from dpsweep.data import PreparedDataset
from dpsweep.data.hub import commit, fetch_file
from dpsweep.data.tokenizer import Tokenizer
from dpsweep.models.architecture import Architecture, BackboneError
from dpsweep.models.architectures import create, seeded, state_without_head
from dpsweep.models.backbone import PreparedBackbone, write_backbone
from dpsweep.models.demo_pretraining import pretrain
from dpsweep.models.described import named_architecture
from dpsweep.models.preprocess import make_preprocess
from dpsweep.models.sequence_classifier import SequenceClassifier
from dpsweep.models.weights import load_weights
from dpsweep.study.backbones import Backbone, FileWeights, HubWeights, NoWeights, Pretraining
from dpsweep.study.paths import Paths


def prepare(name: str, backbone: Backbone, paths: Paths) -> PreparedBackbone:
    """Prepare a backbone of the study: pretrain it, fetch its weights, or describe a random one.

    Args:
        name: its name in the study.
        backbone: its section of the study.
        paths: of its files, and of the public dataset of its pretraining.

    Raises:
        BackboneError: the network cannot be built, or its weights cannot be read or do not fit.
        DatasetError: the public dataset is not prepared.
    """
    architecture = named_architecture(backbone)
    reader = tokenizer = None
    if backbone.reads_with is not None:
        reader = Tokenizer.open(paths.tokenizer(name))
        tokenizer = reader.identity
        # A network without published weights gets an embedding for each token.
        published = isinstance(backbone.weights, FileWeights | HubWeights)
        if backbone.library == "transformers" and not published:
            architecture = architecture.with_defaults(vocab_size=tokenizer.vocabulary)
    # Build the network once with a nominal head, to find wrong names and arguments early.
    with seeded(0):
        model = create(architecture, classes=2)
    empty = state_without_head(model)
    if empty and isinstance(backbone.weights, NoWeights):
        raise BackboneError(
            f"backbones.{name}.weights: found none for {architecture.name}, which has parameters before its "
            "head; allowed: {kind: random}, or weights from a file, the hub or pretraining"
        )
    if isinstance(model, SequenceClassifier) and reader is not None:
        _check_tokens(name, model, reader)
    mean, std = backbone.normalisation
    state, pretraining = _weights(backbone, architecture, paths)
    return write_backbone(
        paths.backbone(name),
        state,
        name=name,
        title=backbone.title,
        kind=backbone.reads,
        architecture=architecture,
        mean=mean,
        std=std,
        tokenizer=tokenizer,
        pretraining={"kind": backbone.weights.kind} | pretraining,
        parameters=sum(value.numel() for value in empty.values()),
    )


def _weights(
    backbone: Backbone, architecture: Architecture, paths: Paths
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the state of the network without its head, and its origin."""
    match backbone.weights:
        case Pretraining() as recipe:
            dataset = PreparedDataset.open(paths.dataset(recipe.dataset))
            stored = dataset.metadata
            preprocess = make_preprocess(*backbone.normalisation, stored.resize, stored.shape)
            result = pretrain(architecture, preprocess, recipe, dataset)
            return result.state, recipe.model_dump(mode="json") | {
                "dataset_checksum": stored.checksum,
                "classes": len(stored.classes),
                "examples": result.examples,
                "accuracy": result.accuracy,
            }
        case FileWeights(path=path, leave_out=modules):
            return load_weights(architecture, Path(path), modules), {"path": path}
        case HubWeights() as weights:
            instead = "weights: {kind: file, path: ...}"
            file = fetch_file(weights.id, "model.safetensors", weights.revision, instead)
            state = load_weights(architecture, file, weights.leave_out)
            return state, {"id": weights.id, "revision": commit(file)}
    return {}, {}  # the seed of each trial determines the weights


def _check_tokens(name: str, model: SequenceClassifier, tokenizer: Tokenizer) -> None:
    if tokenizer.identity.vocabulary > model.vocab_size:
        raise BackboneError(
            f"backbones.{name}: the tokenizer has {tokenizer.identity.vocabulary} tokens, the network "
            f"embeddings for {model.vocab_size}; they do not belong together"
        )
    if model.end is not None and tokenizer.end != model.end:
        raise BackboneError(
            f"backbones.{name}: {model.name} classifies where a text ends with token {model.end}, found "
            f"{'none' if tokenizer.end is None else tokenizer.end} after the texts of the tokenizer; "
            "allowed: a tokenizer that ends texts so, or its token as eos_token_id among the arguments"
        )
