"""Networks by name: as a study and published files describe them, empty, and their classification heads."""

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from dpsweep.base.files import read_json, require_content
from dpsweep.data.hub import UnreachableHubError, fetch_file
from dpsweep.models.featurisers import HashedNgrams, Identity, Scattering
from dpsweep.models.sequence_classifier import SequenceClassifier
from dpsweep.models.wide_resnet import WideResNet
from dpsweep.study import networks
from dpsweep.study.messages import brief, shorten
from dpsweep.study.networks import Architecture, BackboneError

OWN: dict[str, Callable[..., nn.Module]] = {
    "hashed_ngrams": HashedNgrams,
    "identity": Identity,
    "scattering": Scattering,
    "wide_resnet": WideResNet,
}
"""The networks of library dpsweep, by name."""


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed all initialisation inside with ``seed``, and restore the global random state afterwards.

    Networks are initialised on the CPU, so the same seed gives the same network on every device.
    """
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        # torch.manual_seed would also reseed every GPU, which fork_rng does not restore here.
        torch.default_generator.manual_seed(seed)
        yield


def _refuse_names_and_arguments(name: str, arguments: Mapping[str, Any]) -> None:
    """Refuse names and arguments with which timm reads files or the hub, or builds another model.

    Raises:
        ValueError: the message contains what is allowed.
    """
    import timm  # noqa: PLC0415
    from timm.models import build_model_with_cfg  # noqa: PLC0415

    if not timm.is_model(name):
        raise ValueError(f"Unknown model ({name}); allowed: a name of timm.list_models()")
    signatures = map(inspect.signature, (timm.create_model, build_model_with_cfg))
    own = {each for signature in signatures for each in signature.parameters}
    own |= {"features_only", "feature_cls", "out_indices", "pruned"}
    if found := sorted(own & arguments.keys()):
        raise ValueError(f"found {', '.join(found)}; allowed: arguments of the network itself")


def create(architecture: Architecture, classes: int) -> nn.Module:
    """Return a network with its library's standard initialisation (see `seeded`).

    Libraries never read files or contact the hub, whatever the name and the arguments.

    Raises:
        BackboneError: an unknown name or argument.
    """
    try:
        if architecture.library == "timm":
            import timm  # noqa: PLC0415

            _refuse_names_and_arguments(architecture.name, architecture.arguments)
            model = timm.create_model(
                architecture.name, pretrained=False, num_classes=classes, **architecture.arguments
            )
        elif architecture.library == "transformers":
            model = SequenceClassifier.create(architecture.name, architecture.arguments, classes)
        elif architecture.library == "dpsweep" and architecture.name in OWN:
            model = OWN[architecture.name](num_classes=classes, **architecture.arguments)
        else:
            raise BackboneError(
                f"found architecture {architecture.name!r} of library {architecture.library!r}; "
                f"allowed: any name of library timm, any kind of model of library transformers, and "
                f"{', '.join(OWN)} of library dpsweep"
            )
    except BackboneError:
        raise
    except Exception as error:  # of any kind: libraries check their arguments in many ways
        raise BackboneError(
            f"{architecture.library} cannot build {architecture.name!r} with "
            f"{architecture.arguments}: {brief(error)}"
        ) from error
    return cast(nn.Module, model)


@dataclass(frozen=True)
class Head:
    """A network's classification head, as names in ``model.named_modules()``."""

    modules: tuple[str, ...]
    """All modules that are new for a dataset."""
    outputs: tuple[str, ...]
    """The layers that compute the logits; several if a network averages its heads."""

    def holds(self, name: str) -> bool:
        """Return whether a parameter or buffer of this name belongs to the head."""
        return name.startswith(tuple(f"{module}." for module in self.modules))


def find_head(model: nn.Module) -> Head:
    """Return the classification head of a model.

    Raises:
        BackboneError: the library of the model does not define one.
    """
    if isinstance(model, SequenceClassifier):
        # Its layers are applied one after the other: only the last one computes the logits.
        modules = tuple(model.head_modules)
        outputs = [layer for name in modules for layer in _layers(model, name)][-1:]
    elif hasattr(model, "get_classifier"):
        # Networks of timm and ours; a network with several heads averages them.
        classifier: nn.Module | tuple[nn.Module, ...] = cast(Any, model).get_classifier()
        parts = classifier if isinstance(classifier, tuple) else (classifier,)
        names = {module: name for name, module in model.named_modules() if name}
        modules = tuple(names[part] for part in parts if part in names)
        # Parallel heads: each one computes logits.
        heads = [
            head
            for name in modules
            for head in (
                [f"{name}.{each}" for each, _ in model.get_submodule(name).named_children()]
                if isinstance(model.get_submodule(name), nn.ModuleList)
                else [name]
            )
        ]
        outputs = [layer for head in heads for layer in _layers(model, head)[-1:]]
    else:
        modules, outputs = (), []
    if not outputs:
        raise BackboneError(
            f"{type(model).__name__} has no classification head that its library defines"
        )
    return Head(modules, tuple(outputs))


def _layers(model: nn.Module, name: str) -> list[str]:
    """Return the names of the layers with weights in a module of a model, in its order."""
    return [
        f"{name}.{inside}".rstrip(".")
        for inside, module in model.get_submodule(name).named_modules()
        if isinstance(module, nn.Linear | nn.Conv2d)
    ]


def state_without_head(model: nn.Module) -> dict[str, Tensor]:
    """Return a model's state in the form of stored backbones: float32, on the CPU, without head."""
    head = find_head(model)
    return {
        key: value.detach().to("cpu", torch.float32 if value.is_floating_point() else value.dtype)
        for key, value in model.state_dict().items()
        if not head.holds(key)
    }


def has_statistics(module: nn.Module) -> bool:
    """Return whether a layer normalises with statistics of other examples, as batch normalisation does."""
    return isinstance(module, nn.modules.batchnorm._BatchNorm) or (
        isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats
    )


def public_statistics(model: nn.Module) -> int:
    """Return how many layers normalise with fixed statistics, which are public."""
    return sum(has_statistics(module) for module in model.modules())


def refuse_unknown_statistics(model: nn.Module) -> None:
    """Refuse a network without public weights whose layers need statistics from them.

    Raises:
        BackboneError: the network has batch normalisation or the like.
    """
    for name, module in model.named_modules():
        if has_statistics(module):
            raise BackboneError(
                f"{type(model).__name__} has batch normalisation ({name}: {type(module).__name__}), "
                "whose statistics would be estimated on the private examples; allowed: pretrained "
                "weights, which have public statistics, or group or layer normalisation"
            )


log = logging.getLogger(__name__)

# Keys of a config.json that do not describe the architecture.
_NOT_ARCHITECTURE = {
    *("_name_or_path", "architectures", "dtype", "id2label", "label2id", "model_type"),
    *("num_labels", "torch_dtype", "transformers_version"),
}


def described_architecture(backbone: networks.Backbone) -> Architecture:
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
    if isinstance(backbone.reads_with, networks.TrainedTokenizer):
        return architecture.with_defaults(vocab_size=backbone.reads_with.vocab_size)
    return architecture


def named_architecture(backbone: networks.Backbone) -> Architecture:
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


def _beside_the_weights(backbone: networks.Backbone) -> Path | None:
    """Return the ``config.json`` of published weights, which contains more than shapes."""
    match backbone.weights:
        case networks.HubWeights(id=repository, revision=revision):
            instead = "weights: {kind: file, path: ...}, with the file beside the weights"
            return fetch_file(repository, "config.json", revision, instead, ["model.safetensors"])
        case networks.FileWeights(path=path):
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
    found = _read_config(file, "timm", "architecture")
    return found["architecture"], found.get("model_args") or {}


def _read_config(file: Path, library: str, key: str) -> dict[str, Any]:
    """Return the content of a ``config.json`` that has a key."""
    try:
        require_content(file)
        found: dict[str, Any] = read_json(file)
        return found | {key: found[key]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        what = getattr(error, "strerror", None) or repr(error)
        raise BackboneError(f"{file}: not a config.json of {library} ({what})") from None


def configured(architecture: Architecture, path: Path) -> Architecture:
    """Return an architecture with the arguments of a ``config.json`` of transformers.

    Its own arguments take precedence. Only plain values are used; no code of the file is run.

    Raises:
        BackboneError: the file is not readable, or describes another kind of model.
    """
    from transformers import AutoConfig  # noqa: PLC0415

    found = _read_config(path, "transformers", "model_type")
    kind = found["model_type"]
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
