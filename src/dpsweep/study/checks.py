"""Checks that the sections of a study agree."""

import itertools
import math
from collections.abc import Collection, Iterator, Sequence

from dpsweep.study.backbones import (
    Backbone,
    Features,
    Pretraining,
    RandomWeights,
    TrainedTokenizer,
)
from dpsweep.study.cells import PARTS, BatchSize, Cell, number
from dpsweep.study.datasets import (
    KINDS,
    Dataset,
    FolderSource,
    HubSource,
    held_out_rows,
    shares_examples,
)
from dpsweep.study.file import StudyFile
from dpsweep.study.messages import LONGEST_JOINED_NAME, unknown
from dpsweep.study.methods import HeadOnly, Method, Scratch
from dpsweep.study.sweeps import Sweep


def disagreements(study: StudyFile) -> Iterator[str]:
    """Yield a line for each disagreement, except those of figures and tables."""
    for name, dataset in study.datasets.items():
        yield from _dataset_mistakes(study, name, dataset)
    for name, backbone in study.backbones.items():
        yield from _backbone_mistakes(study, f"backbones.{name}", backbone)
    yield from _sweep_mistakes(study)
    yield from _shared_cell_mistakes(study)
    yield from _role_mistakes(study)
    yield from _audit_mistakes(study)
    yield from _release_mistakes(study)


def _dataset_mistakes(study: StudyFile, name: str, dataset: Dataset) -> Iterator[str]:
    where = f"datasets.{name}"
    readers = [name for name, each in study.backbones.items() if each.reads_with is not None]
    if dataset.kind not in dataset.source.holds:
        yield (
            f"{where}.kind: found {dataset.kind}; allowed: {', '.join(dataset.source.holds)}, "
            f"which is what source {dataset.source.kind} holds"
        )
    for key, allowed in KINDS[dataset.kind].keys.items():
        if getattr(dataset, key) is None:
            named = f": {', '.join(readers) or 'none is defined'}" if key == "tokenizer" else ""
            yield f"{where}.{key}: missing; allowed: {allowed}{named}"
    if dataset.kind != "text" and dataset.tokenizer is not None:
        yield f"{where}.tokenizer: found {dataset.tokenizer}; allowed: nothing ({dataset.kind}s)"
    elif dataset.tokenizer is not None:
        yield from _unknown(f"{where}.tokenizer", dataset.tokenizer, readers)
    if dataset.crop is not None and not isinstance(dataset.source, HubSource | FolderSource):
        yield (
            f"{where}.crop: found {number(dataset.crop)} with the source {dataset.source.kind}; "
            "allowed: with hub and folder"
        )
    if dataset.train_size < dataset.classes:
        yield (
            f"{where}.train_size: found {dataset.train_size}; allowed: at least {dataset.classes}, "
            "one example of each class"
        )
    counts = dataset.train_counts
    if isinstance(counts, int):
        counts = [counts] * dataset.classes
    if counts is not None and (len(counts), sum(counts)) != (dataset.classes, dataset.train_size):
        yield (
            f"{where}.train_counts: found {len(counts)} numbers, {sum(counts)} in all; allowed: "
            f"{dataset.classes}, the number of classes, and {dataset.train_size} in all, the "
            "training set"
        )
    if study.holdout_share and not 0 < study.holdout_size(name) < dataset.protected:
        yield (
            f"training.holdout_share: found {number(study.holdout_share)}, which leaves no "
            f"example of {name} ({dataset.protected}) to train on or none to select on; "
            "allowed: a share that leaves some of both"
        )


def _backbone_mistakes(study: StudyFile, where: str, backbone: Backbone) -> Iterator[str]:
    weights, tokenizer = backbone.weights, backbone.reads_with
    if backbone.library == "transformers" and tokenizer is None:
        yield (
            f"{where}.tokenizer: missing; allowed: {{kind: hub, id: ...}}, {{kind: file, path: "
            "...}, {kind: train, dataset: ..., vocab_size: ...}"
        )
    if backbone.library != "transformers" and backbone.tokenizer is not None:
        yield f"{where}.tokenizer: found one; allowed: with library transformers only"
    if isinstance(tokenizer, TrainedTokenizer):
        yield from _unknown(f"{where}.tokenizer.dataset", tokenizer.dataset, study.datasets)
        read = study.datasets.get(tokenizer.dataset)
        if read is not None and read.kind != "text":
            yield (
                f"{where}.tokenizer.dataset: found {tokenizer.dataset} ({read.kind}s); allowed: texts"
            )
    if isinstance(weights, Pretraining):
        yield from _unknown(f"{where}.weights.dataset", weights.dataset, study.datasets)
        if weights.dataset in study.datasets:
            yield from _unreadable(study, f"{where}.weights.dataset", backbone, weights.dataset)
    for part, dataset in backbone.made_from.items():
        yield from _private_mistakes(study, f"{where}.{part}.dataset", dataset)


def _private_mistakes(study: StudyFile, where: str, dataset: str) -> Iterator[str]:
    """Refuse data marked private, under any name, for training without noise."""
    shared = [
        name
        for name, each in study.datasets.items()
        if each.private
        and dataset in study.datasets
        and shares_examples(each.source, study.datasets[dataset].source)
    ]
    if shared:
        which = "which is" if dataset in shared else f"which may share examples with {shared[0]},"
        yield (
            f"{where}: found {dataset}, {which} marked private; allowed: public data, because no noise is "
            "added there"
        )


def _unreadable(study: StudyFile, where: str, backbone: Backbone, dataset: str) -> Iterator[str]:
    """Refuse data of another kind, with other tokens, or of another dimension than the backbone reads."""
    section = study.datasets[dataset]
    made_for = section.tokenizer
    if made_for in study.backbones:
        reads = backbone.reads_with == study.backbones[made_for].reads_with
    else:
        reads = section.kind == backbone.reads
    if not reads:
        what = f"texts in the tokens of {made_for}" if made_for else f"{section.kind}s"
        yield f"{where}: found {dataset} ({what}); allowed: what the backbone reads"
    elif section.kind == "embedding" and section.dimension != backbone.arguments.get("dimension"):
        yield (
            f"{where}: found {dataset}, embeddings of dimension {section.dimension}; allowed: as in the "
            f"backbone's arguments, {backbone.arguments.get('dimension', 'which is missing')}"
        )


def _sweep_mistakes(study: StudyFile) -> Iterator[str]:
    for name, sweep in study.sweeps.items():
        where = f"sweeps.{name}"
        for part in PARTS:
            yield from _unknown(f"{where}.{part}", getattr(sweep, part), getattr(study, f"{part}s"))
        yield from _unknown(f"{where}.optimizer", sweep.problem.optimizer, study.every_optimizer)
        backbone, method = study.backbones.get(sweep.backbone), study.methods.get(sweep.method)
        if sweep.dataset in study.datasets:
            size = study.train_size(sweep.dataset)
            what = f"which is the training set of {sweep.dataset}"
            yield from _batch_mistakes(where, sweep.batch_size, size, what)
        if sweep.dataset in study.datasets and backbone is not None:
            yield from _unreadable(study, f"{where}.dataset", backbone, sweep.dataset)
            yield from _public_mistakes(study, where, sweep)
        if backbone is not None and method is not None:
            yield from _method_mistakes(where, sweep, backbone, method)
        if method is not None and method.augmentations and sweep.dataset in study.datasets:
            yield from _augmentation_mistakes(study, f"{where}.method", sweep)
        opacus = method is not None and study.engine(sweep.problem.name) == "opacus"
        if opacus and study.gpus(sweep.problem.name) > 1:
            yield (
                f"{where}: found engine opacus with {study.gpus(sweep.problem.name)} gpus, which it does "
                "not divide a batch among; allowed: another engine, or gpus: 1"
            )
        units = sweep.dataset in study.datasets and study.datasets[sweep.dataset].has_units
        if opacus and (units or (method and method.augmentations)):
            yield (
                f"{where}: found engine opacus with {'units of several rows' if units else 'augmentations'}, "
                "whose gradients it does not average; allowed: another engine"
            )
        if opacus and study.training.precision == "bfloat16":
            yield (
                f"{where}: found engine opacus with training.precision bfloat16; allowed: another "
                "engine, or precision auto or float32"
            )


def _augmentation_mistakes(study: StudyFile, where: str, sweep: Sweep) -> Iterator[str]:
    dataset, method = study.datasets[sweep.dataset], study.methods[sweep.method]
    if dataset.kind != "image" or study.trains_on_vectors(sweep.problem.name):
        yield (
            f"{where}: found {sweep.method} with augmentations, and trials that read no images; allowed: "
            "augmentations of a method that runs a network on images"
        )
    elif method.augmentations and method.augmentations.crop >= min(dataset.input_shape[:2]):
        yield (
            f"{where}: found {sweep.method} with augmentations.crop {method.augmentations.crop}, and images "
            f"of {dataset.input_shape[0]} x {dataset.input_shape[1]} pixels; allowed: fewer pixels"
        )


def _batch_mistakes(
    where: str, batch_sizes: Sequence[BatchSize], size: int, what: str
) -> Iterator[str]:
    for batch in batch_sizes:
        if not isinstance(batch, str) and batch >= size:
            yield (
                f"{where}.batch_size: found {batch}; allowed: below {size}, {what}, or full for all of "
                "it"
            )


def _method_mistakes(where: str, sweep: Sweep, backbone: Backbone, method: Method) -> Iterator[str]:
    """Refuse a method that does not fit the backbone's weights, inputs or features."""
    random = isinstance(backbone.weights, RandomWeights)
    if isinstance(method, Scratch) and not random:
        yield (
            f"{where}.method: found {sweep.method} (from scratch) with the pretrained backbone "
            f"{sweep.backbone}; allowed: a backbone with weights: {{kind: random}}"
        )
    if backbone.reads == "embedding" and not isinstance(method, HeadOnly):
        yield (
            f"{where}.method: found {sweep.method} of kind {method.kind} on embeddings; allowed: kind head, "
            "because nothing but a head can train on them"
        )
    if backbone.features is None:
        return
    if not isinstance(method, HeadOnly) and backbone.features != Features():
        yield (
            f"{where}.method: found one of kind {method.kind} with a backbone that has features; "
            "allowed: kind head, because others train the whole network; or a backbone of its own "
            "without features"
        )
    if random:
        yield (
            f"{where}.backbone: found features of a network without weights, which every trial draws "
            "anew; allowed: features of a network with weights"
        )


def _public_mistakes(study: StudyFile, where: str, sweep: Sweep) -> Iterator[str]:
    """Refuse weights that were pretrained on the private data."""
    if sweep.epsilon == [math.inf]:
        return
    for part, public in study.backbones[sweep.backbone].made_from.items():
        if {public, sweep.dataset} <= study.datasets.keys() and shares_examples(
            study.datasets[public].source, study.datasets[sweep.dataset].source
        ):
            same = (
                "which"
                if public == sweep.dataset
                else f"whose source, like the source of {public},"
            )
            yield (
                f"{where}.dataset: found {sweep.dataset}, {same} went into the {part} of "
                f"{sweep.backbone} without privacy; allowed: another dataset, or epsilon [.inf]"
            )


def _shared_cell_mistakes(study: StudyFile) -> Iterator[str]:
    """Refuse sweeps that disagree about a shared name, cell or problem, and names too long for files."""
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
        for key in ("engine", "physical_batch", "gpus"):
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


def _audit_mistakes(study: StudyFile) -> Iterator[str]:
    audit = study.audit
    if audit is None:
        return
    yield from _unknown("audit.sweep", audit.sweep, study.sweeps)
    sweep = study.sweeps.get(audit.sweep)
    if sweep is not None and sweep.dataset in study.datasets:
        size = study.train_size(sweep.dataset) + audit.canaries
        what = "which is the training set with its canaries"
        yield from _batch_mistakes("audit", audit.batch_size, size, what)


def _release_mistakes(study: StudyFile) -> Iterator[str]:
    release = study.release
    if release is None:
        return
    yield from _unknown("release.sweep", release.sweep, study.sweeps)
    sweep = study.sweeps.get(release.sweep)
    if sweep is None or not all(
        getattr(sweep, part) in getattr(study, f"{part}s") for part in PARTS
    ):
        return
    if study.engine(sweep.problem.name) == "opacus":
        yield (
            f"release.sweep: found {release.sweep}, whose engine is opacus; allowed: another engine, because "
            "the norms of Opacus may be too small by rounding"
        )
    whole = study.datasets[sweep.dataset].protected
    held_out = len(held_out_rows(whole, release.held_out)) if release.held_out else 0
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
    what = "which is what is trained on"
    yield from _batch_mistakes("release", release.batch_size, whole - held_out, what)
    if sweep.epsilon == [math.inf]:
        private = sweep.model_copy(update={"epsilon": [release.epsilon]})
        yield from _public_mistakes(study, f"sweeps.{release.sweep}", private)


def _role_mistakes(study: StudyFile) -> Iterator[str]:
    roles = study.roles
    for part in PARTS:
        section = getattr(study, f"{part}s")
        for role in roles.roles_of(part):
            for name in roles.bound(part, role) or ():
                yield from _unknown(f"roles.{part}s.{role}", name, section)
    for name in roles.neighbours:
        yield from _unknown("roles.neighbours", name, study.methods)


def _unknown(where: str, name: str, allowed: Collection[str]) -> Iterator[str]:
    if name not in allowed:
        yield f"{where}: {unknown(name, allowed)}"
