"""A first study of a new dataset: facts from the readers of `prepare`, and a YAML file with comments."""

import itertools
import math
import os
import re
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pydantic import ValidationError

from dpsweep.base.files import write_text
from dpsweep.data.hub import open_hub
from dpsweep.data.prepare import alike_classes, load, warn_of_untested
from dpsweep.data.prepared import DatasetError
from dpsweep.data.texts import leave_out_unreadable, long_texts
from dpsweep.recommend import rule
from dpsweep.study import Study, StudyError, load_study
from dpsweep.study.datasets import Dataset, HubSource
from dpsweep.study.load import IN_CLONE, PROJECT, home, named_study, packaged_studies, yaml_line
from dpsweep.study.messages import explain, pick, shorten
from dpsweep.study.networks import IDENTITY, Backbone, BytesTokenizer

_IMAGE_SIZE = 224  # where the base study has no images for a network
_EPSILONS, _EPOCHS = [1, 8], 8
MAX_LENGTH = 128
"""Tokens that a new study of texts keeps of each."""
_MAX_BYTES = 8 * MAX_LENGTH  # of a network that reads bytes
_BOUNDS = (1, 4)  # in units of the recommended C; both below most norms
_EMBEDDING = "embedding"
_FEATURES = {"transformation": "layer-norm"}
# The mean of the tokens' outputs separates texts better than a pooler that was trained for another task.
_TEXT_FEATURES = {"pooling": "mean"} | _FEATURES
_CUT = {"test_from_train": 0.2, "seed": 0}
"""Keys of a source without test data."""


@dataclass(frozen=True)
class FoundDataset:
    """Facts about a new dataset."""

    kind: str
    """image, text or embedding"""
    source: dict[str, Any]
    """the keys of ``source`` in its section"""
    classes: list[str]
    train_counts: list[int]
    """training examples of each class"""
    test_counts: list[int]
    left_out: int = 0
    """the number of examples that cannot be used"""
    notes: tuple[str, ...] = ()
    """what is odd about it, in words"""
    cut: tuple[str, str] = ("", "")
    """how many texts are cut, in words: for a network that reads tokens, and for one that reads bytes"""
    unit: str | None = None
    """what epsilon protects, with all of its rows: the key ``unit``"""
    rows_of_units: tuple[list[int], ...] = ()
    """rows of each unit of the training set and of the test set, if units have several rows"""
    dimension: int | None = None
    """of embeddings"""

    @property
    def train_size(self) -> int:
        """The number of training examples."""
        return sum(self.train_counts)

    @property
    def test_size(self) -> int:
        """The number of test examples."""
        return sum(self.test_counts)

    @property
    def train_units(self) -> int | None:
        """The number of training units, if they have several rows."""
        return len(self.rows_of_units[0]) if self.rows_of_units else None

    @property
    def protected(self) -> int:
        """N: the number of training units, or of rows."""
        return self.train_units or self.train_size

    def seen_from(self, folder: Path) -> Self:
        """Return the dataset with relative paths that start at a folder, not at the current one."""
        paths = {
            key: os.path.relpath(place, folder)
            for key, place in self.source.items()
            if key in ("path", "train", "test") and not place.startswith(("/", "~", "$"))
        }
        return self if folder == Path.cwd() else replace(self, source=self.source | paths)

    def lines(self, of_bytes: bool) -> Iterator[str]:
        """Yield its counts, and what is odd about it.

        Args:
            of_bytes: whether the network reads bytes of texts, not tokens.
        """
        counts = zip(self.classes, self.train_counts, self.test_counts, strict=True)
        listed = shorten(f"{name} {train:,} + {test:,}" for name, train, test in counts)
        yield f"training + test examples: {listed}"
        if self.rows_of_units:
            units = " + ".join(f"{len(each):,}" for each in self.rows_of_units)
            rows = sorted(itertools.chain(*self.rows_of_units))
            yield (
                f"training + test units ({self.unit}): {units}; rows in a unit: smallest {rows[0]:,}, "
                f"median {statistics.median(rows):,g}, largest {rows[-1]:,}"
            )
        notes = (*self.notes, self.cut[of_bytes])
        yield from (f"note: {note}" for note in notes if note)


# -- facts -----------------------------------------------------------------------------------


def look_at(
    what: str,
    place: str,
    test: Path | None = None,
    input_column: str | None = None,
    label_column: str | None = None,
    unit: str | None = None,
) -> FoundDataset:
    """Read the labels of a dataset with the reader that prepares it.

    Args:
        what: images, hub, texts or embeddings.
        place: a folder of images, a dataset of the hub, or a file.
        test: the second file of texts or embeddings; without it, a share of the rows is the test set.
        input_column: column or array of the inputs; by default that of the source.
        label_column: likewise, of the labels.
        unit: the key ``unit`` of the dataset: the column, array or regular expression that names the unit of
            each row, folder, or row.

    Raises:
        DatasetError: the place cannot be read as such a dataset, or a study must not have it.
    """
    columns = {"input_column": input_column, "label_column": label_column}
    asked = {key: column for key, column in columns.items() if column is not None}
    kind = {"images": "image", "texts": "text"}.get(what, "embedding")
    match what:
        case "images":
            source = {"kind": "folder", "path": place, **_splits_of_folder(Path(place))}
        case "hub":
            kind, source = _hub_source({"kind": "hub", "id": place}, asked)
        case _:
            files = {"train": place, **(_CUT if test is None else {"test": str(test)})}
            source = {"kind": "files" if what == "texts" else "arrays", **files, **asked}
    content: dict[str, Any] = {"title": "New", "kind": kind, "source": source, "unit": unit}
    # Of a valid section; `load` compares no counts.
    content |= {"classes": 2, "train_size": 1, "test_size": 1}
    content |= {} if unit in (None, "row") else {"train_units": 1}
    data = load(_valid(Dataset, content))
    alike, notes = alike_classes(data), list[str]()
    if what == "images" and unit is None:
        splits = (data.train, data.test)
        names = [each.where(row) for each in splits for row in range(len(each.labels))]
        notes += filter(None, [names_of_several_rows(names)])
    notes += [f"found classes that are {alike}"] if alike else []
    cut = ("", "")
    if kind == "text":
        cut = long_texts(data, MAX_LENGTH), long_texts(data, _MAX_BYTES, of_bytes=True)
        data = leave_out_unreadable(data)
    train_counts, test_counts = (
        np.bincount(split.labels, minlength=len(data.classes)).tolist()
        for split in (data.train, data.test)
    )
    if empty := [name for name, size in zip(data.classes, train_counts, strict=True) if not size]:
        raise DatasetError(
            f"{place}: found no training example of {shorten(empty)}; allowed: one or more of each class"
        )
    warn_of_untested(place, data.classes, test_counts)
    rows_of_units = tuple(
        np.unique(split.units, return_counts=True)[1].tolist()
        for split in (data.train, data.test)
        if split.units is not None
    )
    if rows_of_units and max(map(max, rows_of_units)) == 1:
        notes.append(
            f"each unit ({unit}) has one row, so epsilon protects a row, as unit: row says"
        )
    if data.skipped:
        notes.append(f"left out {len(data.skipped)}: {shorten(data.skipped)}")
    return FoundDataset(
        kind=kind,
        source=source,
        classes=data.classes,
        train_counts=train_counts,
        test_counts=test_counts,
        left_out=len(data.skipped),
        notes=tuple(notes),
        cut=cut,
        unit=unit,
        rows_of_units=rows_of_units,
        dimension=data.train.inputs.shape[1] if kind == "embedding" else None,
    )


def _valid(section: type[Dataset | HubSource], content: dict[str, Any]) -> Any:
    """Return a section of a study with some content; refuse it as a `DatasetError`."""
    try:
        return section.model_validate(content)
    except ValidationError as error:
        raise DatasetError("\n".join(explain(error, content))) from None


def choose_splits(names: Collection[str]) -> tuple[list[str], str | None]:
    """Return the training splits and the test split among some names.

    Validation data are training data if there is a test split, else they are the test split.

    >>> choose_splits(["test", "train", "val"]), choose_splits(["train", "validation"])
    ((['train', 'val'], 'test'), (['train'], 'validation'))
    """
    known = {"train": "train", **dict.fromkeys(("validation", "val", "dev"), "val"), "test": "test"}
    found = {use: name for name, use in known.items() if name in names}
    if "train" not in found:
        return [], None
    test = found.pop("test", None) or found.pop("val", None)
    return list(found.values()), test


def names_of_several_rows(paths: Iterable[str]) -> str:
    """Say that names of files look like several rows of one thing; empty if they do not.

    Names do if they end in a number behind a separator, and there are several things in a class, most of
    them with several files.

    >>> names_of_several_rows(["cat/ann_1.png", "cat/ann_2.png", "cat/bob_1.png", "cat/bob_2.png"])[:61]
    'names look like several rows of one thing, such as cat/ann_1.'
    >>> names_of_several_rows(["cat/img_1.png", "cat/img_2.png", "cat/img_3.png"])
    ''
    """
    things: dict[tuple[str, str], list[str]] = {}
    for path in sorted(paths):
        folder, _, name = path.rpartition("/")
        if match := re.fullmatch(r"(.*[^\W_].*?)[-_. ]+\d+\.\w+", name):
            things.setdefault((folder, match[1]), []).append(path)
    of_class = Counter(folder for folder, _ in things)
    several = [
        files for (folder, _), files in things.items() if len(files) > 1 and of_class[folder] > 1
    ]
    if 2 * len(several) <= len(things):
        return ""
    return (
        f"names look like several rows of one thing, such as {several[0][0]} and {several[0][1]}; "
        "if one person has several rows, name the unit: --unit"
    )


def _splits_of_folder(folder: Path) -> dict[str, Any]:
    inside = sorted(folder.iterdir()) if folder.is_dir() else []
    names = [each.name for each in inside if each.is_dir()]
    train, test = choose_splits(names)
    # Train beside other names is a class.
    written = choose_splits([each.lower() for each in names])
    if written != (train, test) and (written[1] or len(names) == 1):
        raise DatasetError(
            f"{folder}: found the folders {shorten(names)}; allowed: train, and test, validation, val or "
            "dev, in small letters"
        )
    return {"train_folders": train or ["."], **({"test_folder": test} if test else _CUT)}


def _hub_source(keys: dict[str, Any], asked: dict[str, str]) -> tuple[str, dict[str, Any]]:
    """Return the kind and the keys of a dataset of the hub; columns are chosen by their types."""
    opened = open_hub(_valid(HubSource, keys))
    train, test = choose_splits(opened.splits)
    if test is None:
        raise DatasetError(
            f"{opened.source.id}: found the splits {shorten(opened.splits)}; allowed: train, and test or "
            "validation"
        )
    types = {
        name: type(each).__name__ for name, each in (opened.splits[train[0]].features or {}).items()
    }
    images = [name for name, each in types.items() if each == "Image"]
    labels = [name for name, each in types.items() if each == "ClassLabel"]
    columns = {
        "input_column": images[0] if len(images) == 1 else "text",
        "label_column": labels[0] if len(labels) == 1 else "label",
        **asked,
    }
    splits = {"revision": opened.revision, "train_splits": train, "test_split": test}
    return "image" if columns["input_column"] in images else "text", keys | splits | columns


# -- the study -------------------------------------------------------------------------------


def new_study(
    file: Path,
    extends: str,
    found: FoundDataset,
    backbone: str | None = None,
    head: bool = False,
    release_epsilon: float | None = None,
) -> Study:
    """Write a study of one dataset, with the base study's main method or a head on features.

    Args:
        file: of the study; the dataset gets the same name.
        extends: the base study: its file, or the name of one that comes with dpsweep.
        found: the dataset.
        backbone: of the base study; by default the one that its roles name.
        head: whether only a head trains, on features of the frozen backbone, which needs no GPU.
        release_epsilon: for private data: the study then releases a model, and runs no sweep.

    Raises:
        StudyError: the study is not valid (then no file is left), the backbone is unknown, or the base study
            binds no role for this kind of data.
    """
    base_file = named_study(extends, Path())
    base = load_study(base_file)
    name = file.stem
    text = found.kind == "text"
    identity = _identity(found)
    if found.kind == "embedding":
        method, network, image_size = "head", _EMBEDDING, None
        section = Backbone.model_validate(identity)
    else:
        if backbone is None and text and release_epsilon is not None:
            backbone = _hashed_ngrams(base)
        method, network = _chosen(base_file, base, text, backbone)
        section, image_size = base.backbones[network], _image_size(base, network)
        head = head or section.weights.kind == "none"  # nothing else could train
    hashed = isinstance(section.reads_with, BytesTokenizer)
    method = "head" if head else method
    size, delta = found.protected, _delta(base, found.protected)
    epochs = rule.enough_epochs(size, _EPOCHS)
    private = release_epsilon is not None
    epsilons = _EPSILONS if release_epsilon is None else [release_epsilon]
    facts = rule.facts_of_first_sweep(
        section,
        *(len(found.classes), size, delta, epsilons, epochs, method == "head"),
    )
    made = [rule.recommend(each) for each in facts]
    environment = Environment(  # noqa: S701 (YAML)
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.filters["yaml"] = yaml_line
    draft = environment.get_template("new.yaml.j2").render(
        title=re.sub(r"[-_.]+", " ", name).strip().capitalize(),
        name=name,
        file=file,
        release=os.path.relpath(home(file) / "results" / name / "release"),
        extends=_extended(base_file, file),
        base=base,
        delta=delta,
        found=found,
        image_size=image_size,
        max_length=_MAX_BYTES if hashed else MAX_LENGTH,
        hashed=hashed,
        head=head,
        features=_TEXT_FEATURES if text and not hashed else _FEATURES,
        network=network,
        grid=rule.one_setting(facts[0], made[0]) if private else _first_grid(made, size),
        identity=identity,
        keeps_datasets=bool(section.made_from),
        method=method,
        epsilons=epsilons,
        private=private,
        epochs=epochs,
        roles={
            "datasets": {"text" if text else "main": name},
            "backbones": {"text" if text else "weak": network},
            "methods": {"text" if text else "main": method},
        },
    )
    write_text(file, draft)
    try:
        return load_study(file)
    except StudyError:
        file.unlink()
        raise


def _identity(found: FoundDataset) -> dict[str, Any]:
    """Return the section of the network that reads embeddings.

    It normalises each embedding, so that the norm of the gradient is known.
    """
    library, architecture = IDENTITY
    return {
        **{"title": "Embedding", "library": library, "architecture": architecture},
        # Normalising a single number gives 0.
        "arguments": {"dimension": found.dimension}
        | ({"transformation": "layer-norm"} if found.dimension != 1 else {}),
        "weights": {"kind": "none"},
    }


def _extended(base_file: Path, file: Path) -> str:
    """Return the value of ``extends``: the path of the base study, or its name outside of a clone."""
    if not (IN_CLONE and file.resolve().is_relative_to(PROJECT)):
        for name, packaged in packaged_studies().items():
            if base_file == packaged:
                return name
    return Path(os.path.relpath(base_file, file.parent)).as_posix()


def _chosen(base_file: Path, base: Study, text: bool, backbone: str | None) -> tuple[str, str]:
    """Return the method and the backbone; by default that of the base study's roles."""
    roles = base.roles
    chosen = backbone or (roles.backbones.text if text else roles.backbones.weak)
    method = roles.methods.text if text else roles.methods.main
    if method is None or not chosen:
        part = "text" if text else "main method and weak backbone"
        raise StudyError(
            f"{base_file}: roles: nothing is bound to {part}; bind it, or extend another"
        )
    pick("--backbone", chosen, base.backbones)
    return method, chosen


def _hashed_ngrams(base: Study) -> str | None:
    """Return the backbone of the base study that reads texts without a download, or None."""
    found = (
        name for name, each in base.backbones.items() if isinstance(each.reads_with, BytesTokenizer)
    )
    return next(found, None)


def _image_size(base: Study, backbone: str) -> int:
    """Return the image size of a backbone's arguments, or of its first sweep in the base study."""
    arguments = base.backbones[backbone].arguments
    if own := arguments.get("image_size", arguments.get("img_size")):
        return int(own)
    sweeps = sorted(base.sweeps.values(), key=lambda each: each.backbone != backbone)
    sizes = (base.datasets[each.dataset].image_size for each in sweeps)
    return next(filter(None, sizes), _IMAGE_SIZE)


def _delta(base: Study, train_size: int) -> float:
    """Return the base study's delta, or a smaller one if it is not below 1/N, which gives no protection."""
    if base.privacy.delta * train_size < 1:
        return base.privacy.delta
    return float(10.0 ** -(math.floor(math.log10(train_size)) + 1))


def _first_grid(made: Sequence[rule.Recommendation], train_size: int) -> dict[str, Any]:
    """Join the small grids of all epsilons, with batch sizes at least a factor of three apart."""
    sizes: list[int] = []
    for each in sorted(set().union(*(one.small_grid for one in made))):
        if not sizes or each >= 3 * sizes[-1] or each == train_size:
            sizes.append(each)
    rates = [rate for one in made for found in one.small_grid.values() for rate in found]
    first, last = map(rule.two_digits, (min(rates), max(rates)))
    count = math.ceil(math.log2(last / first) - 0.1) + 1  # about a factor of two apart
    spread = [first * (last / first) ** (index / (count - 1)) for index in range(count)]
    return {
        "batch_size": ["full" if each == train_size else each for each in sizes],
        "clipping_bound": [rule.two_digits(made[0].clipping_bound * each) for each in _BOUNDS],
        # A list, so that a wider one keeps the trials of these rates.
        "learning_rate": [rule.two_digits(rate) for rate in spread],
    }
