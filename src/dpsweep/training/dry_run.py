"""Trial of the first step of every sweep, with random weights and inputs.

It finds in seconds, and without data, mistakes that would end the first job of a sweep: a network that
does not exist or needs inputs of another size, a method with nothing to train in it, or a layer whose
per-example gradients the engine cannot compute.
"""

import time
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from dpsweep.base.errors import DpsweepError
from dpsweep.base.files import canonical_json
from dpsweep.data.hub import UnreachableHubError
from dpsweep.gradients import make_engine
from dpsweep.models import architectures, build, sequence_classifier
from dpsweep.models.featurisers import HashedNgrams
from dpsweep.models.prepare import check_tokenizer
from dpsweep.models.preprocess import make_preprocess
from dpsweep.models.representation import Representation, represent
from dpsweep.study import Study
from dpsweep.study.clipping import FlatClipping
from dpsweep.study.datasets import Dataset
from dpsweep.study.messages import group_by_message, shorten
from dpsweep.study.networks import Architecture, BackboneError, Film
from dpsweep.training.features import check_representation

_EXAMPLES = 2


@dataclass
class DryRun:
    """Mistakes that were found, and the number of networks that were tried."""

    mistakes: list[str] = field(default_factory=list)
    """each with the sweeps that it would stop"""
    outlined: int = 0
    tried: int = 0
    untried: list[str] = field(default_factory=list)
    """sweeps with a valid outline that were not tried for lack of time"""
    notes: list[str] = field(default_factory=list)
    """possible mistakes, each with its sweeps"""


def dry_run(study: Study, seconds: float) -> DryRun:
    """Outline every network of the study, then try a step of each, small networks first.

    An outline computes shapes without numbers, which is fast.

    Args:
        study: the study.
        seconds: no further step begins after this time.
    """
    found = DryRun()
    sizes: dict[str, int] = {}
    described: dict[str, Architecture] = {}
    # Pairs of a place and a sentence.
    unknown, wrong, unusual = (list[tuple[str, str]]() for _ in range(3))
    for name in study.swept_backbones:
        where = f"backbones.{name}.architecture"
        try:
            described[name] = architectures.described_architecture(study.backbones[name])
        except UnreachableHubError as error:
            unknown.append((where, f"not looked at: {error}"))
        except DpsweepError as error:
            found.mistakes.append(f"{where}: {error}")
    for sweeps in _alike(study, exclude={"title"}):
        architecture = described.get(study.sweeps[sweeps[0]].backbone)
        if architecture is None:
            continue
        try:
            size, notes = _outline(study, sweeps[0], architecture)
        except Exception as error:  # libraries raise all kinds of exceptions for wrong arguments
            wrong += [(each, str(error) or type(error).__name__) for each in sweeps]
        else:
            unusual += [(each, note) for note in notes for each in sweeps]
            found.outlined += 1
            sizes |= dict.fromkeys(sweeps, size)
    started = time.monotonic()
    # Steps of networks that differ only in the rank of LoRA are alike.
    groups = [each for each in _alike(study, exclude={"title", "rank"}) if each[0] in sizes]
    for sweeps in sorted(groups, key=lambda each: sizes[each[0]]):
        if time.monotonic() - started > seconds:
            found.untried += sweeps
            continue
        found.tried += 1
        try:
            _step(study, sweeps[0], described[study.sweeps[sweeps[0]].backbone])
        except Exception as error:
            wrong += [(each, str(error) or type(error).__name__) for each in sweeps]
    found.mistakes += [_line(sweeps, what) for what, sweeps in group_by_message(wrong).items()]
    found.notes += [
        f"{', '.join(names)}: {what}" for what, names in group_by_message(unknown).items()
    ]
    found.notes += [_line(sweeps, what) for what, sweeps in group_by_message(unusual).items()]
    return found


def _line(sweeps: list[str], what: str) -> str:
    more = f" and {len(sweeps) - 1} more" if len(sweeps) > 1 else ""
    return f"sweeps.{sweeps[0]}{more}: {what}"


def _alike(study: Study, exclude: set[str]) -> list[list[str]]:
    """Group the sweeps that train alike, ignoring some keys of the method."""
    groups: dict[str, list[str]] = {}
    for name, sweep in study.sweeps.items():
        dataset, method = study.datasets[sweep.dataset], study.methods[sweep.method]
        shape = [dataset.kind, *dataset.input_shape]
        engine = study.engine(sweep.problem.name)
        same = [sweep.backbone, method.model_dump(exclude=exclude), shape, engine]
        groups.setdefault(canonical_json(same), []).append(name)
    return list(groups.values())


def _outline(study: Study, sweep: str, architecture: Architecture) -> tuple[int, list[str]]:
    """Build a network without numbers and pass inputs through it.

    Returns:
        The number of its parameters, and notes on layers that FiLM leaves out.

    Raises:
        Exception: of any kind, if a part of this fails.
    """
    grid = study.sweeps[sweep]
    dataset, backbone = study.datasets[grid.dataset], study.backbones[grid.backbone]
    method = study.methods[grid.method]
    with torch.device("meta"), sequence_classifier.Outline():
        model = architectures.create(architecture, dataset.classes).eval()
        if backbone.weights.kind == "random":
            architectures.refuse_unknown_statistics(model)
        size = sum(parameter.numel() for parameter in model.parameters())
        build.select(model, method)
        notes = build.notes_on_film(model) if isinstance(method, Film) else []
        preprocess = make_preprocess(*backbone.normalisation)
    features = study.features(grid.problem.name)
    if isinstance(model, sequence_classifier.SequenceClassifier):
        sequence_classifier.require_length(architecture, dataset.max_length or 1)
        check_tokenizer(grid.backbone, backbone, model)
    try:
        with sequence_classifier.Outline():
            inputs = preprocess(_inputs(dataset, model))
            if features is not None:
                Representation(model, features)(inputs)
                return size, notes
            outputs = model(inputs)
    except Exception as error:
        if sequence_classifier.asks_for_values(error):  # only the step can test this
            return size, notes
        _refuse_size(dataset, architecture, model, error)
        raise
    if tuple(outputs.shape) != (_EXAMPLES, dataset.classes):
        raise BackboneError(
            f"{architecture.name} gives outputs of shape {tuple(outputs.shape)} for {_EXAMPLES} "
            f"examples; allowed: {(_EXAMPLES, dataset.classes)}, a number for each class"
        )
    return size, notes


def _refuse_size(
    dataset: Dataset, architecture: Architecture, model: nn.Module, error: Exception
) -> None:
    """Refuse images of another size than a network of timm was built for, which the error is about."""
    settings = getattr(model, "default_cfg", None) or {}
    if dataset.kind != "image" or not settings.get("fixed_input_size"):
        return
    reads = architecture.arguments.get("img_size", settings["input_size"][-1])
    if reads != dataset.image_size:
        raise BackboneError(
            f"{architecture.name} reads images of {reads} x {reads} pixels, and {dataset.title} has "
            f"{dataset.image_size}; allowed: image_size: {reads} of the dataset, or of the backbone "
            f"arguments: {{img_size: {dataset.image_size}}}"
        ) from error


def _step(study: Study, sweep: str, architecture: Architecture) -> None:
    """Compute the clipped gradients of two random examples.

    Raises:
        BackboneError: the adapters' gradients are all zero.
        Exception: of any kind, if the step fails.
    """
    grid = study.sweeps[sweep]
    dataset, backbone = study.datasets[grid.dataset], study.backbones[grid.backbone]
    with architectures.seeded(1):
        model = architectures.create(architecture, dataset.classes)
        build.make_trainable(model, study.methods[grid.method])
        _replace_zeros(model, all_of_it=backbone.weights.kind != "random")
    model.eval()
    inputs = make_preprocess(*backbone.normalisation)(_inputs(dataset, model))
    if (features := study.features(grid.problem.name)) is not None:
        network = Representation(model, features)
        check_representation(network, inputs, inputs.flip(0))
        inputs = represent(network, inputs)
        model = build.build_head(inputs.shape[1], dataset.classes)
    engine = make_engine(study.engine(grid.problem.name), model, build.head_parameter_names(model))
    step = engine.clipped_sum(
        inputs, torch.arange(_EXAMPLES), torch.ones(_EXAMPLES, dtype=torch.bool), FlatClipping(1.0)
    )
    # The gradient of an adapter's first factor is zero until the second one has changed.
    adapters = {name: each for name, each in step.gradients.items() if ".lora_B." in name}
    if adapters and not any(each.any() for each in adapters.values()):
        raise BackboneError(
            f"nothing but the head would train: all gradients of the adapters are zero, at "
            f"{shorten(name.partition('.lora_B.')[0] for name in adapters)}. Random weights that start "
            "at zero, as the last normalisation of a residual block, may hide them; allowed: another "
            "method, pretrained weights, or other target_modules"
        )


def _replace_zeros(model: nn.Module, all_of_it: bool) -> None:
    """Replace zeros by small random numbers, so that no gradient is zero because of them.

    Args:
        model: in its initial state, with a head of zeros.
        all_of_it: whether to replace zeros outside the head too, because pretrained weights are not zero.
    """
    head = build.head_parameter_names(model)
    for name, parameter in model.named_parameters():
        if name in head or (all_of_it and ".lora_" not in name and not parameter.any()):
            nn.init.normal_(parameter, std=0.02)


def _inputs(dataset: Dataset, model: nn.Module) -> Tensor:
    random = torch.Generator().manual_seed(0)
    if dataset.kind == "text":
        if not isinstance(model, sequence_classifier.SequenceClassifier | HashedNgrams):
            raise BackboneError(f"{type(model).__name__} reads no text, as {dataset.title} is")
        return model.made_up(_EXAMPLES, dataset.max_length or 1)
    shape = (_EXAMPLES, *dataset.input_shape)
    if dataset.kind == "embedding":
        return torch.randn(shape, generator=random)
    return torch.randint(0, 256, shape, generator=random, dtype=torch.uint8)
