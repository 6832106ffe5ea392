"""Check that the sections of a study agree."""

import itertools
import math
from collections.abc import Iterator

from dpsweep.study.cells import Cell, number
from dpsweep.study.config.backbones import (
    Backbone,
    Features,
    Pretraining,
    RandomWeights,
    TrainedTokenizer,
)
from dpsweep.study.config.datasets import FolderSource, HubSource, shares_examples
from dpsweep.study.config.methods import HeadOnly, Method, Scratch
from dpsweep.study.config.study import StudyFile
from dpsweep.study.config.sweeps import Sweep
from dpsweep.study.messages import LONGEST_JOINED_NAME, unknown
from dpsweep.study.selections import PARTS
from dpsweep.study.shares import held_out_rows


def disagreements(study: StudyFile) -> Iterator[str]:
    """Yield a line for each disagreement, those of figures and tables aside."""
    yield from _data_problems(study)
    yield from _sweep_problems(study)
    yield from _shared_cell_problems(study)
    yield from _role_problems(study)
    yield from _audit_problems(study)
    yield from _release_problems(study)


def _data_problems(study: StudyFile) -> Iterator[str]:
    readers = [name for name, each in study.backbones.items() if each.reads_with is not None]
    for name, dataset in study.datasets.items():
        where = f"datasets.{name}"
        if dataset.kind not in dataset.source.holds:
            yield (
                f"{where}.kind: found {dataset.kind}; allowed: {', '.join(dataset.source.holds)}, "
                f"which is what source {dataset.source.kind} holds"
            )
        if dataset.kind == "image" and dataset.image_size is None:
            yield f"{where}.image_size: missing; allowed: height and width of images in pixels"
        if dataset.crop is not None and not isinstance(dataset.source, HubSource | FolderSource):
            yield (
                f"{where}.crop: found {number(dataset.crop)} with the source "
                f"{dataset.source.kind}; allowed: with hub and folder"
            )
        if dataset.train_size < dataset.classes:
            yield (
                f"{where}.train_size: found {dataset.train_size}; allowed: at least {dataset.classes}, "
                "one example of each class"
            )
        counts = dataset.train_counts
        if isinstance(counts, int):
            counts = [counts] * dataset.classes
        if counts is not None and (
            len(counts) != dataset.classes or sum(counts) != dataset.train_size
        ):
            yield (
                f"{where}.train_counts: found {len(counts)} numbers, {sum(counts)} in all; allowed: "
                f"{dataset.classes}, the number of classes, and {dataset.train_size} in all, the "
                "training set"
            )
        if study.holdout_share and not 0 < study.holdout_size(name) < dataset.train_size:
            yield (
                f"training.holdout_share: found {number(study.holdout_share)}, which leaves no "
                f"example of {name} ({dataset.train_size}) to train on or none to select on; "
                "allowed: a share that leaves some of both"
            )
        if dataset.kind == "text" and dataset.max_length is None:
            yield f"{where}.max_length: missing; allowed: the number of tokens to keep of a text"
        if dataset.kind == "text" and dataset.tokenizer is None:
            yield (
                f"{where}.tokenizer: missing; allowed: a backbone that reads text: "
                f"{', '.join(readers) or 'none is defined'}"
            )
        if dataset.kind == "image" and dataset.tokenizer is not None:
            yield f"{where}.tokenizer: found {dataset.tokenizer}; allowed: nothing (images)"
        elif dataset.tokenizer is not None and dataset.tokenizer not in readers:
            yield f"{where}.tokenizer: {unknown(dataset.tokenizer, readers)}"
    for name, backbone in study.backbones.items():
        yield from _backbone_problems(study, f"backbones.{name}", backbone)


def _backbone_problems(study: StudyFile, where: str, backbone: Backbone) -> Iterator[str]:
    weights, tokenizer = backbone.weights, backbone.reads_with
    if backbone.library == "transformers" and tokenizer is None:
        yield (
            f"{where}.tokenizer: missing; allowed: {{kind: hub, id: ...}}, {{kind: file, path: "
            "...}, {kind: train, dataset: ..., vocab_size: ...}"
        )
    if backbone.library != "transformers" and tokenizer is not None:
        yield f"{where}.tokenizer: found one; allowed: with library transformers only"
    if isinstance(tokenizer, TrainedTokenizer):
        if tokenizer.dataset not in study.datasets:
            yield f"{where}.tokenizer.dataset: {unknown(tokenizer.dataset, study.datasets)}"
        elif study.datasets[tokenizer.dataset].kind != "text":
            yield f"{where}.tokenizer.dataset: found {tokenizer.dataset} (images); allowed: texts"
    if isinstance(weights, Pretraining):
        if weights.dataset not in study.datasets:
            yield f"{where}.weights.dataset: {unknown(weights.dataset, study.datasets)}"
        elif not _reads(study, backbone, weights.dataset):
            yield f"{where}.weights.dataset: {_unreadable(study, weights.dataset)}"


def _feature_problems(where: str, backbone: Backbone, method: Method) -> Iterator[str]:
    """Refuse what does not go with a section for features."""
    features = backbone.features
    if features is None:
        return
    if not isinstance(method, HeadOnly) and features != Features():
        yield (
            f"{where}.method: found one of kind {method.kind} with a backbone that has features; "
            "allowed: kind head, because others train the whole network; or a backbone of its own "
            "without features"
        )
    if isinstance(backbone.weights, RandomWeights):
        yield (
            f"{where}.backbone: found features of a network without weights, which every trial draws "
            "anew; allowed: features of a network with weights"
        )


def _reads(study: StudyFile, backbone: Backbone, dataset: str) -> bool:
    """Whether a backbone reads a dataset: images, or texts in the tokens that it knows."""
    made_for = study.datasets[dataset].tokenizer
    if made_for not in study.backbones:
        return (study.datasets[dataset].kind == "text") == (backbone.reads_with is not None)
    return backbone.reads_with == study.backbones[made_for].reads_with


def _unreadable(study: StudyFile, dataset: str) -> str:
    tokenizer = study.datasets[dataset].tokenizer
    made_for = f"texts in the tokens of {tokenizer}" if tokenizer else "images"
    return f"found {dataset} ({made_for}); allowed: what the backbone reads"


def _sweep_problems(study: StudyFile) -> Iterator[str]:
    for name, sweep in study.sweeps.items():
        where = f"sweeps.{name}"
        if sweep.dataset in study.datasets:
            size = study.train_size(sweep.dataset)
            for batch in sweep.batch_size:
                if not isinstance(batch, str) and batch >= size:
                    yield (
                        f"{where}.batch_size: found {batch}; allowed: below {size}, which is the "
                        f"training set of {sweep.dataset}, or full for all of it"
                    )
        else:
            yield f"{where}.dataset: {unknown(sweep.dataset, study.datasets)}"
        if sweep.backbone not in study.backbones:
            yield f"{where}.backbone: {unknown(sweep.backbone, study.backbones)}"
        elif sweep.dataset in study.datasets:
            backbone = study.backbones[sweep.backbone]
            if not _reads(study, backbone, sweep.dataset):
                yield f"{where}.dataset: {_unreadable(study, sweep.dataset)}"
            yield from _public_problems(study, where, sweep, backbone)
        if sweep.method not in study.methods:
            yield f"{where}.method: {unknown(sweep.method, study.methods)}"
        elif (
            isinstance(study.methods[sweep.method], Scratch)
            and sweep.backbone in study.backbones
            and not isinstance(study.backbones[sweep.backbone].weights, RandomWeights)
        ):
            yield (
                f"{where}.method: found {sweep.method} (from scratch) with the pretrained "
                f"backbone {sweep.backbone}; allowed: a backbone with weights: {{kind: random}}"
            )
        if sweep.method in study.methods and sweep.backbone in study.backbones:
            yield from _feature_problems(
                where, study.backbones[sweep.backbone], study.methods[sweep.method]
            )
        if (
            study.training.precision == "bfloat16"
            and sweep.method in study.methods
            and study.engine(sweep.problem.name) == "opacus"
        ):
            yield (
                f"{where}: found engine opacus with training.precision bfloat16; allowed: another "
                "engine, or precision auto or float32"
            )


def _public_problems(
    study: StudyFile, where: str, sweep: Sweep, backbone: Backbone
) -> Iterator[str]:
    """Refuse weights that were pretrained on the private data."""
    if sweep.epsilon == [math.inf]:
        return
    for part, section in (("tokenizer", backbone.reads_with), ("weights", backbone.weights)):
        if not isinstance(section, TrainedTokenizer | Pretraining):
            continue
        public = section.dataset
        if {public, sweep.dataset} <= study.datasets.keys() and shares_examples(
            study.datasets[public].source, study.datasets[sweep.dataset].source
        ):
            same = "which" if public == sweep.dataset else f"whose source, as that of {public},"
            yield (
                f"{where}.dataset: found {sweep.dataset}, {same} went into the {part} of "
                f"{sweep.backbone} without privacy; allowed: another dataset, or epsilon [.inf]"
            )


def _shared_cell_problems(study: StudyFile) -> Iterator[str]:
    """Sweeps that share a name, a cell or a problem, and disagree about it; names too long for a file."""
    for name, sweep in study.sweeps.items():
        if len(sweep.problem.name) > LONGEST_JOINED_NAME:
            yield (
                f"sweeps.{name}: the names of its dataset, backbone and method have "
                f"{len(sweep.problem.name)} characters together; allowed: at most {LONGEST_JOINED_NAME}, "
                "because they are joined to names of files"
            )
    for (first, other), (name, sweep) in itertools.combinations(study.sweeps.items(), 2):
        where = f"sweeps.{name}"
        if other.problem.name != sweep.problem.name:
            continue
        if other.problem != sweep.problem:
            yield (
                f"{where}: its cells would lie in {sweep.problem.name}/, as those of sweeps.{first}, "
                "which trains something else; allowed: names of datasets, backbones and methods "
                "that do not read the same when they are joined with _"
            )
            continue
        for key in ("engine", "physical_batch"):
            ours, theirs = getattr(sweep, key), getattr(other, key)
            if ours != theirs:
                yield (
                    f"{where}.{key}: found {ours or 'nothing'}; allowed: {theirs or 'nothing'}, as "
                    f"in sweeps.{first}, which trains the same"
                )
        shared = [
            [value for value in ours if value in theirs]
            for ours, theirs in zip(sweep.axes.values(), other.axes.values(), strict=True)
        ]
        if not all(shared):
            continue
        cell = Cell(sweep.problem.name, *(values[0] for values in shared))
        for key, ours, theirs in (
            ("learning_rate", sweep.learning_rates, other.learning_rates),
            ("seeds", sweep.seeds, other.seeds),
        ):
            if ours != theirs:
                yield (
                    f"{where}.{key}: found {ours}, and {theirs} in sweeps.{first}, which has the cell "
                    f"{cell.problem}/{cell.name} too; allowed: the same in both, or grids that share "
                    "no cell"
                )


def _audit_problems(study: StudyFile) -> Iterator[str]:
    if study.audit is None:
        return
    if study.audit.sweep not in study.sweeps:
        yield f"audit.sweep: {unknown(study.audit.sweep, study.sweeps)}"
    elif study.sweeps[study.audit.sweep].dataset in study.datasets:
        size = study.train_size(study.sweeps[study.audit.sweep].dataset) + study.audit.canaries
        for batch in study.audit.batch_size:
            if not isinstance(batch, str) and batch >= size:
                yield (
                    f"audit.batch_size: found {batch}; allowed: below {size}, which is the "
                    "training set with its canaries, or full for all of it"
                )
    if 2 * study.audit.canaries * study.privacy.delta > 1:
        yield (
            f"audit.canaries: found {study.audit.canaries}; allowed: at most "
            f"{0.5 / study.privacy.delta:.0f}, because more prove nothing about delta "
            f"{number(study.privacy.delta)}"
        )


def _release_problems(study: StudyFile) -> Iterator[str]:
    release = study.release
    if release is None:
        return
    if release.sweep not in study.sweeps:
        yield f"release.sweep: {unknown(release.sweep, study.sweeps)}"
        return
    sweep = study.sweeps[release.sweep]
    if not all(getattr(sweep, part) in getattr(study, f"{part}s") for part in PARTS):
        return
    if study.features(sweep.problem.name) not in (None, Features()):
        yield (
            f"release.sweep: found {release.sweep}, whose head reads other features than the network's "
            f"own head would; allowed: a sweep whose backbone has features: {{}} or none, because a "
            "released model is the whole network"
        )
    if study.engine(sweep.problem.name) == "opacus":
        yield (
            f"release.sweep: found {release.sweep}, whose engine is opacus; allowed: another engine, because "
            "the norms of Opacus may be too small by rounding"
        )
    whole = study.datasets[sweep.dataset].train_size
    held_out = len(held_out_rows(whole, release.held_out)) if release.held_out else 0
    size = whole - held_out
    if release.held_out and not 0 < held_out < whole:
        yield (
            f"release.holdout_share: found {number(release.holdout_share)}, which holds out {held_out} "
            f"of {whole} examples; allowed: a share that leaves some to train on and some to score on"
        )
        return
    if study.privacy.delta * whole >= 1:
        yield (
            f"privacy.delta: found {number(study.privacy.delta)} with the section release; allowed: below "
            f"1/{whole}, one over the training set, because a mechanism that publishes single examples "
            "has such a delta"
        )
    for batch in release.batch_size:
        if not isinstance(batch, str) and batch >= size:
            yield (
                f"release.batch_size: found {batch}; allowed: below {size}, the examples that are "
                "trained on, or full for all of them"
            )
    if sweep.epsilon == [math.inf]:
        yield from _public_problems(
            study,
            f"sweeps.{release.sweep}",
            sweep.model_copy(update={"epsilon": [release.epsilon]}),
            study.backbones[sweep.backbone],
        )


def _role_problems(study: StudyFile) -> Iterator[str]:
    for part in PARTS:
        section = getattr(study, f"{part}s")
        for role in study.roles.roles_of(part):
            for name in study.roles.bound(part, role) or ():
                if name not in section:
                    yield f"roles.{part}s.{role}: {unknown(name, section)}"
    for name in study.roles.neighbours:
        if name not in study.methods:
            yield f"roles.neighbours: {unknown(name, study.methods)}"
    named = {**study.datasets, **study.backbones, **study.methods}
    for name in study.roles.target_names:
        if name not in named:
            yield f"roles.target_names: {unknown(name, named)}"
