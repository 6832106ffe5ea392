"""Checks that the sections of a study agree."""

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from dpsweep.study import datasets, networks
from dpsweep.study.cells import PARTS, BatchSize, number
from dpsweep.study.datasets import KINDS, Dataset, FolderSource, HubSource
from dpsweep.study.messages import LONGEST_JOINED_NAME, unknown
from dpsweep.study.networks import Backbone, Method
from dpsweep.study.sweeps import Sweep

if TYPE_CHECKING:
    from dpsweep.study.file import Study


def disagreements(study: "Study") -> Iterator[str]:
    """Yield a line for each disagreement, except those of figures and tables."""
    for name, dataset in study.datasets.items():
        yield from _dataset_mistakes(study, name, dataset)
    for name, backbone in study.backbones.items():
        yield from _backbone_mistakes(study, f"backbones.{name}", backbone)
    yield from _sweep_mistakes(study)
    yield from _shared_cell_mistakes(study)
    yield from _role_mistakes(study)
    yield from _reference_mistakes(study)
    yield from _audit_mistakes(study)
    yield from _release_mistakes(study)


def _wrong(where: str, found: object, allowed: str) -> str:
    return f"{where}: found {found}; allowed: {allowed}"


def _dataset_mistakes(study: "Study", name: str, dataset: Dataset) -> Iterator[str]:
    where, source = f"datasets.{name}", dataset.source
    readers = [name for name, each in study.backbones.items() if each.reads_with is not None]
    if dataset.kind not in source.holds:
        allowed = f"{', '.join(source.holds)}, which is what source {source.kind} holds"
        yield _wrong(f"{where}.kind", dataset.kind, allowed)
    for key, allowed in KINDS[dataset.kind].keys.items():
        if getattr(dataset, key) is None:
            named = f": {', '.join(readers) or 'none is defined'}" if key == "tokenizer" else ""
            yield f"{where}.{key}: missing; allowed: {allowed}{named}"
    if dataset.kind != "text" and dataset.tokenizer is not None:
        yield _wrong(f"{where}.tokenizer", dataset.tokenizer, f"nothing ({dataset.kind}s)")
    elif dataset.tokenizer is not None:
        yield from _unknown(f"{where}.tokenizer", dataset.tokenizer, readers)
    if dataset.crop is not None and not isinstance(source, HubSource | FolderSource):
        found = f"{number(dataset.crop)} with the source {source.kind}"
        yield _wrong(f"{where}.crop", found, "with hub and folder")
    if dataset.train_size < dataset.classes:
        allowed = f"at least {dataset.classes}, one example of each class"
        yield _wrong(f"{where}.train_size", dataset.train_size, allowed)
    counts = dataset.train_counts
    if isinstance(counts, int):
        counts = [counts] * dataset.classes
    if counts is not None and (len(counts), sum(counts)) != (dataset.classes, dataset.train_size):
        yield _wrong(
            f"{where}.train_counts",
            f"{len(counts)} numbers, {sum(counts)} in all",
            f"{dataset.classes}, one for each class, and {dataset.train_size} in all",
        )
    if study.holdout_share and not 0 < study.holdout_size(name) < dataset.protected:
        yield _wrong(
            "training.holdout_share",
            number(study.holdout_share),
            f"a share that leaves some of the {dataset.protected} examples of {name} and holds out some",
        )


def _backbone_mistakes(study: "Study", where: str, backbone: Backbone) -> Iterator[str]:
    weights, tokenizer = backbone.weights, backbone.reads_with
    if backbone.library == "transformers" and tokenizer is None:
        yield f"{where}.tokenizer: missing; allowed: a mapping of kind hub, file or train"
    if backbone.library != "transformers" and backbone.tokenizer is not None:
        yield _wrong(f"{where}.tokenizer", "one", "with library transformers only")
    if isinstance(tokenizer, networks.TrainedTokenizer):
        yield from _unknown(f"{where}.tokenizer.dataset", tokenizer.dataset, study.datasets)
        read = study.datasets.get(tokenizer.dataset)
        if read is not None and read.kind != "text":
            found = f"{tokenizer.dataset} ({read.kind}s)"
            yield _wrong(f"{where}.tokenizer.dataset", found, "texts")
    if isinstance(weights, networks.Pretraining):
        yield from _unknown(f"{where}.weights.dataset", weights.dataset, study.datasets)
        if weights.dataset in study.datasets:
            yield from _unreadable(study, f"{where}.weights.dataset", backbone, weights.dataset)
    for part, dataset in backbone.made_from.items():
        yield from _private_mistakes(study, f"{where}.{part}.dataset", dataset)


def _private_mistakes(study: "Study", where: str, dataset: str) -> Iterator[str]:
    """Refuse data marked private, under any name, for training without noise."""
    shared = [
        name
        for name, each in study.datasets.items()
        if each.private
        and dataset in study.datasets
        and datasets.shares_examples(each.source, study.datasets[dataset].source)
    ]
    if shared:
        which = "which is" if dataset in shared else f"which may share examples with {shared[0]},"
        found = f"{dataset}, {which} marked private"
        yield _wrong(where, found, "public data, because no noise is added there")


def _unreadable(study: "Study", where: str, backbone: Backbone, dataset: str) -> Iterator[str]:
    """Refuse data of another kind, with other tokens, or of another dimension than the backbone reads."""
    section = study.datasets[dataset]
    tokenizer = section.tokenizer
    if tokenizer in study.backbones:
        reads = backbone.reads_with == study.backbones[tokenizer].reads_with
    else:
        reads = section.kind == backbone.reads
    dimension = backbone.arguments.get("dimension")
    if not reads:
        what = f"texts in the tokens of {tokenizer}" if tokenizer else f"{section.kind}s"
        yield _wrong(where, f"{dataset} ({what})", "what the backbone reads")
    elif section.kind == "embedding" and section.dimension != dimension:
        found = f"{dataset}, embeddings of dimension {section.dimension}"
        yield _wrong(
            where, found, f"as in the backbone's arguments, {dimension or 'which is missing'}"
        )


def _sweep_mistakes(study: "Study") -> Iterator[str]:
    for name, sweep in study.sweeps.items():
        where, problem = f"sweeps.{name}", sweep.problem.name
        for part in PARTS:
            yield from _unknown(f"{where}.{part}", getattr(sweep, part), getattr(study, f"{part}s"))
        yield from _unknown(f"{where}.optimizer", sweep.problem.optimizer, study.every_optimizer)
        if len(problem) > LONGEST_JOINED_NAME:
            found = f"names of dataset, backbone and method with {len(problem)} characters together"
            yield _wrong(where, found, f"at most {LONGEST_JOINED_NAME}, for names of files")
        dataset, backbone, method = (
            getattr(study, f"{part}s").get(getattr(sweep, part)) for part in PARTS
        )
        if dataset is not None:
            what = f"which is the training set of {sweep.dataset}"
            yield from _batch_mistakes(
                where, sweep.batch_size, study.train_size(sweep.dataset), what
            )
        if dataset is not None and backbone is not None:
            yield from _unreadable(study, f"{where}.dataset", backbone, sweep.dataset)
            yield from _public_mistakes(study, where, sweep)
        if backbone is not None and method is not None:
            yield from _method_mistakes(where, sweep, backbone, method)
        if None not in (dataset, backbone, method):
            yield from _augmentation_mistakes(study, f"{where}.method", sweep)
            if study.engine(problem) == "opacus":
                yield from _opacus_mistakes(study, where, sweep)


def _opacus_mistakes(study: "Study", where: str, sweep: Sweep) -> Iterator[str]:
    """Refuse what the engine opacus cannot do."""
    gpus, method = study.gpus(sweep.problem.name), study.methods[sweep.method]
    for found in (
        f"{gpus} gpus" if gpus > 1 else "",
        "units of several rows" if study.datasets[sweep.dataset].has_units else "",
        "augmentations" if method.augmentations else "",
        "training.precision bfloat16" if study.training.precision == "bfloat16" else "",
    ):
        if found:
            yield _wrong(
                where, f"engine opacus with {found}, which it does not support", "another engine"
            )


def _augmentation_mistakes(study: "Study", where: str, sweep: Sweep) -> Iterator[str]:
    dataset, views = study.datasets[sweep.dataset], study.methods[sweep.method].augmentations
    if views is None:
        return
    if dataset.kind != "image" or study.trains_on_vectors(sweep.problem.name):
        found = f"{sweep.method} with augmentations, and trials that read no images"
        yield _wrong(where, found, "augmentations of a method that runs a network on images")
    elif views.crop >= min(dataset.input_shape[:2]):
        height, width, _ = dataset.input_shape
        found = f"{sweep.method} with augmentations.crop {views.crop}"
        yield _wrong(where, found, f"fewer pixels than the images have, {height} x {width}")


def _batch_mistakes(
    where: str, batch_sizes: Sequence[BatchSize], size: int, what: str
) -> Iterator[str]:
    for batch in batch_sizes:
        if not isinstance(batch, str) and batch >= size:
            allowed = f"below {size}, {what}, or full for all of it"
            yield _wrong(f"{where}.batch_size", batch, allowed)


def _method_mistakes(where: str, sweep: Sweep, backbone: Backbone, method: Method) -> Iterator[str]:
    """Refuse a method that does not fit the backbone's weights, inputs or features."""
    random, head = (
        isinstance(backbone.weights, networks.RandomWeights),
        isinstance(method, networks.HeadOnly),
    )
    if isinstance(method, networks.Scratch) and not random:
        found = f"{sweep.method} (from scratch) with the pretrained backbone {sweep.backbone}"
        yield _wrong(f"{where}.method", found, "a backbone with weights: {kind: random}")
    if backbone.reads == "embedding" and not head:
        found = f"{sweep.method} of kind {method.kind} on embeddings"
        yield _wrong(f"{where}.method", found, "kind head, because nothing else can train on them")
    if backbone.features not in (None, networks.Features()) and not head:
        found = f"one of kind {method.kind} with a backbone that has features"
        yield _wrong(f"{where}.method", found, "kind head, or a backbone without features")
    if backbone.features is not None and random:
        found = "features of a network without weights, which every trial draws anew"
        yield _wrong(f"{where}.backbone", found, "features of a network with weights")


def _public_mistakes(study: "Study", where: str, sweep: Sweep) -> Iterator[str]:
    """Refuse weights that were pretrained on the private data."""
    if sweep.epsilon == [math.inf]:
        return
    for part, public in study.backbones[sweep.backbone].made_from.items():
        if {public, sweep.dataset} <= study.datasets.keys() and datasets.shares_examples(
            study.datasets[public].source, study.datasets[sweep.dataset].source
        ):
            alike = f"whose source, like the source of {public},"
            which = "which" if public == sweep.dataset else alike
            yield _wrong(
                f"{where}.dataset",
                f"{sweep.dataset}, {which} went into the {part} of {sweep.backbone} without privacy",
                "another dataset, or epsilon [.inf]",
            )


def _shared_cell_mistakes(study: "Study") -> Iterator[str]:
    """Refuse sweeps that disagree about a shared name, cell or problem."""
    for (first, other), (name, sweep) in itertools.combinations(study.sweeps.items(), 2):
        if other.problem.name != sweep.problem.name:
            continue
        if other.problem != sweep.problem:
            yield (
                f"sweeps.{name}: its cells would lie in {sweep.problem.name}/, as those of sweeps.{first}, "
                "which trains something else; allowed: other names"
            )
            continue
        keys = ["engine", "physical_batch", "gpus"]
        if all(
            set(ours) & set(theirs)
            for ours, theirs in zip(sweep.axes.values(), other.axes.values(), strict=True)
        ):
            keys += ["learning_rates", "seeds"]
        for key in keys:
            ours, theirs = getattr(sweep, key), getattr(other, key)
            if ours != theirs:
                yield _wrong(
                    f"sweeps.{name}.{key.replace('rates', 'rate')}",
                    ours or "nothing",
                    f"{theirs or 'nothing'}, as in sweeps.{first}, which trains the same",
                )


def _audit_mistakes(study: "Study") -> Iterator[str]:
    audit = study.audit
    if audit is None:
        return
    yield from _unknown("audit.sweep", audit.sweep, study.sweeps)
    sweep = study.sweeps.get(audit.sweep)
    if sweep is not None and sweep.dataset in study.datasets:
        size = study.train_size(sweep.dataset) + audit.canaries
        what = "which is the training set with its canaries"
        yield from _batch_mistakes("audit", audit.batch_size, size, what)


def _release_mistakes(study: "Study") -> Iterator[str]:
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
        found = f"{release.sweep}, whose engine is opacus"
        yield _wrong(
            "release.sweep",
            found,
            "another engine, because norms of Opacus may be too small by rounding",
        )
    whole = study.datasets[sweep.dataset].protected
    held_out = len(datasets.held_out_rows(whole, release.held_out)) if release.held_out else 0
    if release.held_out and not 0 < held_out < whole:
        found = f"{number(release.holdout_share)}, which holds out {held_out} of {whole} examples"
        yield _wrong(
            "release.holdout_share", found, "a share that leaves some to train and to score on"
        )
        return
    if study.privacy.delta * whole >= 1:
        found = f"{number(study.privacy.delta)} with the section release"
        allowed = f"below 1/{whole}, because publishing single examples has such a delta"
        yield _wrong("privacy.delta", found, allowed)
    what = "which is what is trained on"
    yield from _batch_mistakes("release", release.batch_size, whole - held_out, what)
    if sweep.epsilon == [math.inf]:
        private = sweep.model_copy(update={"epsilon": [release.epsilon]})
        yield from _public_mistakes(study, f"sweeps.{release.sweep}", private)


def _role_mistakes(study: "Study") -> Iterator[str]:
    roles = study.roles
    for part in PARTS:
        section = getattr(study, f"{part}s")
        for role in roles.roles_of(part):
            for name in roles.bound(part, role) or ():
                yield from _unknown(f"roles.{part}s.{role}", name, section)
    for name in roles.neighbours:
        yield from _unknown("roles.neighbours", name, study.methods)


def _reference_mistakes(study: "Study") -> Iterator[str]:
    """Refuse two numbers of a paper for the same cells."""
    places: dict[tuple[object, ...], int] = {}
    for place, each in enumerate(study.reference_values):
        cells = tuple(each.model_dump(exclude={"value", "minimum", "maximum"}).values())
        if (first := places.setdefault(cells, place)) != place:
            found = f"a number for the cells of references[{first}]"
            yield _wrong(f"references[{place}]", found, "one number for each")


def _unknown(where: str, name: str, allowed: Collection[str]) -> Iterator[str]:
    if name not in allowed:
        yield f"{where}: {unknown(name, allowed)}"
