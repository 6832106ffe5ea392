"""Preparation of a backbone of the study: weights that are published or pretrained here, in files.

Weights are read from safetensors only: a pickled checkpoint can run code when it is opened.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from dpsweep.base.files import require_content
from dpsweep.data import PreparedDataset
from dpsweep.data.hub import commit, fetch_file
from dpsweep.data.texts import Tokenizer, read_tokenizer, train_word_pieces
from dpsweep.models import architectures
from dpsweep.models.backbone import PreparedBackbone, write_backbone
from dpsweep.models.preprocess import make_preprocess
from dpsweep.models.sequence_classifier import SequenceClassifier
from dpsweep.study import Paths, networks
from dpsweep.study.messages import brief, shorten
from dpsweep.study.networks import BackboneError


def prepare(name: str, backbone: networks.Backbone, paths: Paths) -> PreparedBackbone:
    """Prepare a backbone of the study: pretrain it, fetch its weights, or describe a random one.

    Args:
        name: its name in the study.
        backbone: its section of the study.
        paths: of its files, and of the public dataset of its pretraining.

    Raises:
        BackboneError: the network cannot be built, or its weights cannot be read or do not fit.
        DatasetError: the public dataset is not prepared.
    """
    architecture = architectures.named_architecture(backbone)
    reader = tokenizer = None
    if backbone.reads_with is not None:
        reader = Tokenizer.open(paths.tokenizer(name))
        tokenizer = reader.identity
        # A network without published weights gets an embedding for each token.
        published = isinstance(backbone.weights, networks.FileWeights | networks.HubWeights)
        if backbone.library == "transformers" and not published:
            architecture = architecture.with_defaults(vocab_size=tokenizer.vocabulary)
    # Build the network once with a nominal head, to find wrong names and arguments early.
    with architectures.seeded(0):
        model = architectures.create(architecture, classes=2)
    empty = architectures.state_without_head(model)
    if empty and isinstance(backbone.weights, networks.NoWeights):
        raise BackboneError(
            f"backbones.{name}.weights: found none for {architecture.name}, which has parameters before its "
            "head; allowed: {kind: random}, or weights from a file, the hub or pretraining"
        )
    if isinstance(model, SequenceClassifier) and reader is not None:
        _require_tokens(name, model, reader)
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
    backbone: networks.Backbone, architecture: networks.Architecture, paths: Paths
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the state of the network without its head, and its origin."""
    match backbone.weights:
        case networks.Pretraining() as recipe:
            dataset = PreparedDataset.open(paths.dataset(recipe.dataset))
            stored = dataset.metadata
            preprocess = make_preprocess(*backbone.normalisation, stored.resize, stored.shape)
            state, measured = pretrain(architecture, preprocess, recipe, dataset)
            return state, recipe.model_dump(mode="json") | {
                "dataset_checksum": stored.checksum,
                "classes": len(stored.classes),
                **measured,
            }
        case networks.FileWeights(path=path, leave_out=modules):
            return load_weights(architecture, Path(path), modules), {"path": path}
        case networks.HubWeights() as weights:
            instead = "weights: {kind: file, path: ...}"
            file = fetch_file(weights.id, "model.safetensors", weights.revision, instead)
            state = load_weights(architecture, file, weights.leave_out)
            return state, {"id": weights.id, "revision": commit(file)}
    return {}, {}  # the seed of each trial determines the weights


def check_tokenizer(name: str, backbone: networks.Backbone, model: SequenceClassifier) -> None:
    """Compare a network with its tokenizer, as far as this needs no network and no texts.

    Args:
        name: of the backbone.
        backbone: its section of the study.
        model: its network.

    Raises:
        BackboneError: they do not belong together.
        DatasetError: the file of the tokenizer is none.
    """
    match backbone.reads_with:
        case networks.FileTokenizer(path=path) if Path(path).is_file():
            library = read_tokenizer(Path(path))
        case networks.TrainedTokenizer(vocab_size=size):
            # Its special tokens do not depend on the texts.
            library = train_word_pieces(["a"], size)
        case _:
            return
    _require_tokens(name, model, Tokenizer.of(library))


def _require_tokens(name: str, model: SequenceClassifier, tokenizer: Tokenizer) -> None:
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


def load_weights(
    architecture: networks.Architecture, path: Path, leave_out: Sequence[str] = ()
) -> dict[str, Tensor]:
    """Return the float32 state of a network with the weights of a safetensors file, without head.

    For timm, its own conversions apply (names of older checkpoints, another image size). Each tensor
    must match a parameter and each parameter a tensor; only the head may differ.

    Args:
        architecture: the network.
        path: of the file.
        leave_out: names of modules in the file that the network does not have.

    Raises:
        BackboneError: the file is missing, not safetensors, or does not fit the architecture.
    """
    if path.suffix != ".safetensors":
        raise BackboneError(
            f"{path}: found a {path.suffix or 'nameless'} file; allowed: .safetensors (pickled "
            "checkpoints can run code when they are opened)"
        )
    try:
        require_content(path)
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise BackboneError(f"{path}: cannot be read as safetensors: {brief(error)}") from None
    for module in leave_out:
        left_out = [key for key in tensors if key.startswith(f"{module}.")]
        if not left_out:
            modules = sorted({key.rpartition(".")[0] for key in tensors})
            raise BackboneError(
                f"{path}: leave_out: found {module}; allowed: a module of the file, such as {modules[-1]}"
            )
        for key in left_out:
            del tensors[key]

    with architectures.seeded(0):
        model = architectures.create(architecture, classes=2)
    head = architectures.find_head(model)
    if isinstance(model, SequenceClassifier):
        _load_sequence_classifier(model, tensors, path)
        return _finite(model, path)
    # The file's head, if any, has other classes. Our head replaces it, so loading can be strict.
    tensors = {key: value for key, value in tensors.items() if not head.holds(key)}
    tensors |= {key: value for key, value in model.state_dict().items() if head.holds(key)}
    try:
        if architecture.library == "timm":
            import timm  # noqa: PLC0415

            model = timm.create_model(
                architecture.name,
                pretrained=True,
                pretrained_cfg_overlay={"state_dict": tensors, "num_classes": 2},
                num_classes=2,
                **architecture.arguments,
            )
        else:
            model.load_state_dict(tensors)
    except RuntimeError as error:
        raise BackboneError(f"{path}: does not fit {architecture.name}: {brief(error)}") from None
    return _finite(model, path)


def _load_sequence_classifier(
    model: SequenceClassifier, tensors: dict[str, Tensor], path: Path
) -> None:
    """Load with the conversions of transformers: names of older checkpoints, heads of other tasks."""
    from transformers.utils import logging  # noqa: PLC0415

    network: Any = model.network
    verbosity = logging.get_verbosity()
    # Its report on missing and unexpected tensors is long; errors below contain the relevant part.
    logging.set_verbosity_error()
    try:
        loaded, report = type(network).from_pretrained(
            None,
            config=network.config,
            state_dict=tensors,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    finally:
        logging.set_verbosity(verbosity)
    body = f"{network.base_model_prefix}."
    missing = sorted(key for key in report["missing_keys"] if key.startswith(body))
    unexpected = sorted(key for key in report["unexpected_keys"] if key.startswith(body))
    wrong = sorted(str(key) for key in report["mismatched_keys"])
    if missing or unexpected or wrong:
        raise BackboneError(
            f"{path}: does not fit {network.config.model_type}: missing {shorten(missing)}, unexpected "
            f"{shorten(unexpected)}, of another shape {shorten(wrong)}"
        )
    network.load_state_dict(loaded.state_dict())


def _finite(model: nn.Module, path: Path) -> dict[str, Tensor]:
    state = architectures.state_without_head(model)
    broken = [key for key, value in state.items() if not torch.isfinite(value).all()]
    if broken:
        raise BackboneError(f"{path}: numbers that are not finite in {shorten(broken)}")
    return state


_WARM_UP = 0.1
"""Share of the steps in which the learning rate increases."""
_LABEL_SMOOTHING = 0.1
_TEST_BATCH = 1024


def pretrain(
    architecture: networks.Architecture,
    preprocess: nn.Module,
    recipe: networks.Pretraining,
    dataset: PreparedDataset,
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Train a network on a public dataset, on the CPU, without privacy.

    Use AdamW with a linear warm-up and a cosine decay to zero, and cross-entropy with label smoothing.
    The same arguments give the same weights on the same machine and number of threads.

    Args:
        architecture: of the network; its head has the classes of the dataset.
        preprocess: maps stored images to inputs of the network.
        recipe: epochs, learning rate, seed and other settings.
        dataset: images and labels, both splits.

    Returns:
        The state without the head; ``examples``, the number of training examples (``train_share``), and
        ``accuracy``, a fraction of the public test set, after the last epoch.

    Raises:
        BackboneError: the training diverged.
    """
    random = np.random.default_rng(recipe.seed)
    labels = torch.from_numpy(np.array(dataset.train_labels))
    chosen = _stratified_share(labels, recipe.train_share, random)
    inputs = preprocess(torch.from_numpy(np.array(dataset.train_inputs)))[chosen]
    labels = labels[chosen]

    # Dropout, if any, uses the same random stream as the initial weights.
    with architectures.seeded(recipe.seed):
        model = architectures.create(architecture, len(dataset.metadata.classes))
        batches = math.ceil(len(labels) / recipe.batch_size)
        steps = recipe.epochs * batches
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, steps))
        model.train()
        for _ in range(recipe.epochs):
            order = torch.from_numpy(random.permutation(len(labels)))
            for start in range(0, len(order), recipe.batch_size):
                batch = order[start : start + recipe.batch_size]
                loss = F.cross_entropy(
                    model(inputs[batch]), labels[batch], label_smoothing=_LABEL_SMOOTHING
                )
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                schedule.step()
    if not math.isfinite(loss.item()):
        raise BackboneError(
            f"pretraining on {recipe.dataset} diverged (loss {loss.item()}); lower "
            f"weights.learning_rate, it is {recipe.learning_rate}"
        )
    accuracy = _accuracy(model, preprocess, dataset)
    return architectures.state_without_head(model), {"examples": len(labels), "accuracy": accuracy}


def _rate(step: int, steps: int) -> float:
    """Return the share of the full learning rate after ``step`` of ``steps`` steps."""
    warm_up = max(1, round(_WARM_UP * steps))
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.5 * (1 + math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up)))


def _stratified_share(labels: Tensor, share: float, random: np.random.Generator) -> Tensor:
    """Return indices of about ``share`` of each class, with at least one example of each."""
    chosen = []
    for label in range(int(labels.max()) + 1):
        members = np.flatnonzero(labels.numpy() == label)
        count = max(1, round(share * len(members)))
        chosen.append(random.permutation(members)[:count])
    return torch.from_numpy(np.sort(np.concatenate(chosen)))


@torch.inference_mode()
def _accuracy(model: nn.Module, preprocess: nn.Module, dataset: PreparedDataset) -> float:
    model.eval()
    correct = 0
    for start in range(0, len(dataset.test_labels), _TEST_BATCH):
        part = slice(start, start + _TEST_BATCH)
        logits = model(preprocess(torch.from_numpy(np.array(dataset.test_inputs[part]))))
        labels = torch.from_numpy(np.array(dataset.test_labels[part]))
        correct += int((logits.argmax(dim=1) == labels).sum())
    return correct / len(dataset.test_labels)
