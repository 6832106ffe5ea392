"""Architectures as a study and published ``config.json`` files describe them."""

import logging
from pathlib import Path
from typing import Any

from dpsweep.base.files import read_json, require_content
from dpsweep.data.hub import UnreachableHubError, fetch_file
from dpsweep.study.backbones import (
    Architecture,
    Backbone,
    BackboneError,
    FileWeights,
    HubWeights,
    TrainedTokenizer,
)
from dpsweep.study.messages import shorten

log = logging.getLogger(__name__)

# Keys of a config.json that do not describe the architecture.
_NOT_ARCHITECTURE = {
    *("_name_or_path", "architectures", "dtype", "id2label", "label2id", "model_type"),
    *("num_labels", "torch_dtype", "transformers_version"),
}


def described_architecture(backbone: Backbone) -> Architecture:
    """Return the architecture of a backbone before its tokenizer is prepared, as far as it is known.

    Raises:
        HubError: see `named_architecture`.
        BackboneError: likewise.
    """
    try:
        architecture = named_architecture(backbone)
    except UnreachableHubError:
        if backbone.library != "transformers":
            raise
        # The library's defaults, until the hub's config.json is read.
        architecture = Architecture(
            library=backbone.library, name=backbone.architecture, arguments=dict(backbone.arguments)
        )
    if isinstance(backbone.reads_with, TrainedTokenizer):
        return architecture.with_defaults(vocab_size=backbone.reads_with.vocab_size)
    return architecture


def named_architecture(backbone: Backbone) -> Architecture:
    """Return the architecture in the section of a backbone.

    A network of timm may be given by a repository or folder (``hf-hub:...``, ``local-dir:...``); the
    ``config.json`` there has its name and arguments. timm itself would contact the hub every time it
    builds the network, and load the weights there instead of those of the study. Published weights of
    transformers come with a ``config.json`` too.

    Raises:
        HubError: the hub does not have this file, or cannot be reached.
        BackboneError: the file does not describe a network of timm.
    """
    name, arguments = backbone.architecture, dict(backbone.arguments)
    if backbone.described_at is not None:
        name, published = _published(*backbone.described_at)
        arguments = published | arguments
    try:
        architecture = Architecture(library=backbone.library, name=name, arguments=arguments)
    except ValueError as error:
        raise BackboneError(
            f"{backbone.architecture}: found arguments that are not plain values ({error})"
        ) from None
    file = _beside_the_weights(backbone) if backbone.library == "transformers" else None
    return configured(architecture, file) if file else architecture


def _beside_the_weights(backbone: Backbone) -> Path | None:
    """Return the ``config.json`` of published weights, which contains more than shapes."""
    match backbone.weights:
        case HubWeights(id=repository, revision=revision):
            instead = "weights: {kind: file, path: ...}, with the file beside the weights"
            return fetch_file(repository, "config.json", revision, instead, ["model.safetensors"])
        case FileWeights(path=path):
            if not Path(path).is_file():  # the library's width would be taken in silence
                raise BackboneError(f"{path}: no such file; put the weights there")
            file = Path(path).with_name("config.json")
            return file if file.is_file() else None
    return None


def _published(source: str, place: str) -> tuple[str, dict[str, Any]]:
    """Return timm's name and arguments of a network from its ``config.json``."""
    file = Path(place) / "config.json"
    if source != "local-dir":
        repository, _, revision = place.partition("@")
        instead = "architecture: local-dir:..., with the folder of the copy"
        file = fetch_file(repository, "config.json", revision or None, instead)
    try:
        require_content(file)
        found = read_json(file)
        return found["architecture"], found.get("model_args") or {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BackboneError(f"{file}: not a config.json of timm ({error!r})") from None


def configured(architecture: Architecture, path: Path) -> Architecture:
    """Return an architecture with the arguments of a ``config.json`` of transformers.

    Its own arguments take precedence. Only plain values are used; no code of the file is run.

    Raises:
        BackboneError: the file is not readable, or describes another kind of model.
    """
    from transformers import AutoConfig  # noqa: PLC0415

    try:
        require_content(path)
        found = read_json(path)
        kind = found["model_type"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        what = getattr(error, "strerror", None) or error
        raise BackboneError(f"{path}: not a config.json of transformers ({what})") from error
    if kind != architecture.name:
        raise BackboneError(f"{path}: describes a {kind!r}; the study has {architecture.name!r}")
    default = AutoConfig.for_model(kind).to_dict()
    described = {key: value for key, value in found.items() if key not in _NOT_ARCHITECTURE}
    arguments = {
        key: value
        for key, value in described.items()
        if key in default and isinstance(value, bool | int | float | str)
    }
    left_out = sorted(
        key
        for key in described.keys() - arguments.keys()
        if key not in default or default[key] != described[key]
    )
    if left_out:
        log.warning(
            "%s: ignored keys %s: not arguments of %s with plain values; check that the network is the "
            "one that you mean", path, shorten(left_out), kind,
        )  # fmt: skip
    return architecture.with_defaults(**arguments)
