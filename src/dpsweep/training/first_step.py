"""Try the first step of everything that a study trains, with random weights and inputs.

It shows in seconds, and without data, what would otherwise end the first job of a sweep: a network that
does not exist or reads inputs of another size, a method that finds nothing to train in it, or
per-example gradients that the engine does not know.
"""

import time
from collections import defaultdict
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from dpsweep.base.errors import DpsweepError
from dpsweep.base.files import canonical_json
from dpsweep.config import Dataset, Film
from dpsweep.config.clipping import FlatClipping
from dpsweep.config.messages import shorten, told_once
from dpsweep.data.hub_file import UnreachableHubError
from dpsweep.gradients import make_engine
from dpsweep.models.architecture import Architecture, BackboneError
from dpsweep.models.architectures import (
    create,
    described_architecture,
    refuse_unknown_statistics,
    seeded,
)
from dpsweep.models.build import (
    build_head,
    head_parameter_names,
    make_trainable,
    select,
)
from dpsweep.models.normalisation import notes_on_film
from dpsweep.models.outline import Outline, asks_for_values
from dpsweep.models.preprocess import make_preprocess
from dpsweep.models.representation import Representation, represent
from dpsweep.models.sequence_classifier import SequenceClassifier, require_length
from dpsweep.study import Study
from dpsweep.training.features import check_representation

_EXAMPLES = 2


@dataclass
class FirstSteps:
    """Mistakes that were found, and how many networks were tried."""

    mistakes: list[str] = field(default_factory=list)
    """each with the sweeps that it stops"""
    outlined: int = 0
    tried: int = 0
    untried: list[str] = field(default_factory=list)
    """sweeps whose networks fit, but for whose first step there was no time"""
    notes: list[str] = field(default_factory=list)
    """what may not be meant, each with its sweeps"""


def try_first_steps(study: Study, seconds: float) -> FirstSteps:
    """Outline every network that the study trains, then try a step of each, small ones first.

    An outline has shapes and no numbers, which costs next to nothing.

    Args:
        study: the study.
        seconds: how long steps are tried.
    """
    found = FirstSteps()
    sizes: dict[str, int] = {}
    unknown: list[tuple[str, str]] = []
    architectures: dict[str, Architecture] = {}
    wrong: defaultdict[str, list[str]] = defaultdict(list)
    unusual: defaultdict[str, list[str]] = defaultdict(list)
    for name in study.swept_backbones:
        where = f"backbones.{name}.architecture"
        try:
            architectures[name] = described_architecture(study.backbones[name])
        except UnreachableHubError as error:
            unknown.append((where, f"not looked at: {error}"))
        except DpsweepError as error:
            found.mistakes.append(f"{where}: {error}")
    found.notes += [f"{', '.join(names)}: {what}" for what, names in told_once(unknown).items()]
    for sweeps in _alike(study, exclude={"title"}):
        architecture = architectures.get(study.sweeps[sweeps[0]].backbone)
        if architecture is None:
            continue
        try:
            size, notes = _outline(study, sweeps[0], architecture)
        except Exception as error:  # libraries refuse their arguments with all kinds of exceptions
            wrong[str(error) or type(error).__name__] += sweeps
        else:
            for note in notes:
                unusual[note] += sweeps
            found.outlined += 1
            sizes |= dict.fromkeys(sweeps, size)
    started = time.monotonic()
    # The rank of LoRA changes no more than the outline.
    groups = [each for each in _alike(study, exclude={"title", "rank"}) if each[0] in sizes]
    for sweeps in sorted(groups, key=lambda each: sizes[each[0]]):
        if time.monotonic() - started > seconds:
            found.untried += sweeps
            continue
        found.tried += 1
        try:
            _step(study, sweeps[0], architectures[study.sweeps[sweeps[0]].backbone])
        except Exception as error:
            wrong[str(error) or type(error).__name__] += sweeps
    found.mistakes += [_said(sweeps, what) for what, sweeps in wrong.items()]
    found.notes += [_said(sweeps, what) for what, sweeps in unusual.items()]
    return found


def _said(sweeps: list[str], what: str) -> str:
    more = f" and {len(sweeps) - 1} more" if len(sweeps) > 1 else ""
    return f"sweeps.{sweeps[0]}{more}: {what}"


def _alike(study: Study, exclude: set[str]) -> list[list[str]]:
    """Group the sweeps that train the same in the same way, but for some keys of the method."""
    groups: dict[str, list[str]] = {}
    for name, sweep in study.sweeps.items():
        dataset, method = study.datasets[sweep.dataset], study.methods[sweep.method]
        shape = [dataset.kind, *dataset.input_shape]
        engine = study.engine(sweep.problem.name)
        same = [sweep.backbone, method.model_dump(exclude=exclude), shape, engine]
        groups.setdefault(canonical_json(same), []).append(name)
    return list(groups.values())


def _outline(study: Study, sweep: str, architecture: Architecture) -> tuple[int, list[str]]:
    """Build a network without numbers and send inputs through it.

    Returns:
        How many parameters it has, and what of it may not be meant: layers that FiLM leaves out or adds.

    Raises:
        Exception: of any kind, where that is not possible.
    """
    grid = study.sweeps[sweep]
    dataset, backbone = study.datasets[grid.dataset], study.backbones[grid.backbone]
    method = study.methods[grid.method]
    with torch.device("meta"), Outline():
        model = create(architecture, dataset.classes).eval()
        if backbone.weights.kind == "random":
            refuse_unknown_statistics(model)
        size = sum(parameter.numel() for parameter in model.parameters())
        select(model, method)
        notes = notes_on_film(model) if isinstance(method, Film) else []
        preprocess = make_preprocess(*backbone.normalisation)
    features = study.features(grid.problem.name)
    if isinstance(model, SequenceClassifier):
        require_length(architecture, dataset.max_length or 1)
    try:
        with Outline():
            inputs = preprocess(_inputs(dataset, model))
            if features is not None:
                Representation(model, features)(inputs)
                return size, notes
            outputs = model(inputs)
    except RuntimeError as error:
        if asks_for_values(error):  # the step will tell
            return size, notes
        raise
    if tuple(outputs.shape) != (_EXAMPLES, dataset.classes):
        raise BackboneError(
            f"{architecture.name} gives outputs of shape {tuple(outputs.shape)} for {_EXAMPLES} "
            f"examples; allowed: {(_EXAMPLES, dataset.classes)}, a number for each class"
        )
    return size, notes


def _step(study: Study, sweep: str, architecture: Architecture) -> None:
    """Compute the clipped gradients of two random examples.

    Raises:
        BackboneError: adapters have no gradient.
        Exception: of any kind, where a step is not possible.
    """
    grid = study.sweeps[sweep]
    dataset, backbone = study.datasets[grid.dataset], study.backbones[grid.backbone]
    with seeded(1):
        model = create(architecture, dataset.classes)
        make_trainable(model, study.methods[grid.method])
        _leave_zero(model, all_of_it=backbone.weights.kind != "random")
    model.eval()
    inputs = make_preprocess(*backbone.normalisation)(_inputs(dataset, model))
    if (features := study.features(grid.problem.name)) is not None:
        network = Representation(model, features)
        check_representation(network, inputs, inputs.flip(0))
        inputs = represent(network, inputs)
        model = build_head(inputs.shape[1], dataset.classes)
    engine = make_engine(study.engine(grid.problem.name), model, head_parameter_names(model))
    step = engine.clipped_sum(
        inputs,
        torch.arange(_EXAMPLES),
        torch.ones(_EXAMPLES, dtype=torch.bool),
        FlatClipping(1.0),
    )
    # The first factor of an adapter has no gradient before the second one has moved.
    adapters = {name: each for name, each in step.gradients.items() if ".lora_B." in name}
    if adapters and not any(each.any() for each in adapters.values()):
        raise BackboneError(
            f"nothing but the head would train: all gradients of the adapters are zero, at "
            f"{shorten(name.partition('.lora_B.')[0] for name in adapters)}. Random weights that start "
            "at zero, as the last normalisation of a residual block, may hide them; allowed: another "
            "method, pretrained weights, or other target_modules"
        )


def _leave_zero(model: nn.Module, all_of_it: bool) -> None:
    """Give small numbers to the head, and so a gradient to what is below it.

    Args:
        model: as training starts with it, with a head of zeros.
        all_of_it: give them to all that is zero: pretrained weights will not be.
    """
    head = head_parameter_names(model)
    for name, parameter in model.named_parameters():
        if name in head or (all_of_it and ".lora_" not in name and not parameter.any()):
            nn.init.normal_(parameter, std=0.02)


def _inputs(dataset: Dataset, model: nn.Module) -> Tensor:
    random = torch.Generator().manual_seed(0)
    if dataset.kind == "text":
        if not isinstance(model, SequenceClassifier):
            raise BackboneError(f"{type(model).__name__} reads no text, as {dataset.title} is")
        return model.made_up(_EXAMPLES, dataset.max_length or 1)
    shape = (_EXAMPLES, *dataset.input_shape)
    if dataset.kind == "embedding":
        return torch.randn(shape, generator=random)
    return torch.randint(0, 256, shape, generator=random, dtype=torch.uint8)
