"""From a dataset of the study to its prepared files."""

import logging
import re
import time
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dpsweep.data import digits, glyphs, unfinished
from dpsweep.data.folder import load_folder
from dpsweep.data.hub import load_hub_images, load_hub_texts
from dpsweep.data.images import LabelledImages, decode_images, first_corrupt, make_transform
from dpsweep.data.prepared import DatasetError, PreparedDataset
from dpsweep.data.resize import Resize
from dpsweep.data.sources import load_texts
from dpsweep.data.texts import TextSplit
from dpsweep.data.tokenizer import Tokenizer
from dpsweep.data.write import Split, write_prepared
from dpsweep.study.config import (
    Dataset,
    DigitsSource,
    DocstringsSource,
    FilesSource,
    FolderSource,
    GlyphsSource,
    HubSource,
)
from dpsweep.study.messages import shorten

log = logging.getLogger(__name__)

_MOST_NAMED = 20
_FEW_COUNTS = 5


def prepare(
    name: str, dataset: Dataset, folder: Path, tokenizer: Path | None = None
) -> PreparedDataset:
    """Prepare a dataset of the study and check it against what the study declares.

    Args:
        name: its name in the study.
        dataset: its section of the study.
        folder: where the files go.
        tokenizer: the prepared tokenizer that a dataset of texts is read with.

    Raises:
        DatasetError: the source cannot be read, or is not what the study declares.
    """
    if dataset.kind == "text":
        return _prepare_texts(name, dataset, folder, tokenizer)
    return _prepare_images(name, dataset, folder)


def inspect(name: str, dataset: Dataset) -> list[str] | None:
    """Compare labels with what the study declares, and decode one image of each class of a folder.

    Returns:
        The names of the classes; None for a source that is not on this machine.

    Raises:
        DatasetError: the source cannot be read, or is not what the study declares.
    """
    source = dataset.source
    labels: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
    skipped: list[str] = []
    corrupt: list[str] = []
    with _named(name):
        if isinstance(source, FilesSource):
            texts = load_texts(name, dataset)
            (train, empty), (test, empty_test) = (
                split.readable() for split in (texts.train, texts.test)
            )
            skipped = [*empty, *empty_test]
            classes, labels = texts.classes, (train.labels, test.labels)
        elif isinstance(source, FolderSource):
            images = load_folder(source)
            classes, labels = images.classes, (images.train.labels, images.test.labels)
            corrupt = first_corrupt(images.train, resize_of(name, dataset))
        elif isinstance(source, HubSource) and source.path is not None:
            load = load_hub_images if dataset.kind == "image" else load_hub_texts
            found = load(source)
            classes, labels = found.classes, (found.train.labels, found.test.labels)
        elif isinstance(source, DigitsSource | GlyphsSource | DocstringsSource):
            classes, labels = _made_labels(name, dataset, source)
        else:
            return None
    if dataset.corrupt == "refuse" or isinstance(source, FilesSource):
        _refuse_or_warn(name, dataset, skipped)
        _compare(name, dataset, classes, *labels, skipped)
        _refuse_or_warn(name, dataset, corrupt)
    return classes


def _made_labels(
    name: str, dataset: Dataset, source: DigitsSource | GlyphsSource | DocstringsSource
) -> tuple[list[str], tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Return classes, and training and test labels, of what is made here; nothing is drawn for it."""
    if isinstance(source, DigitsSource):
        _require_size(name, dataset, digits.SIZE)
        train, test = _digits(source)
        return list(map(str, source.digits)), (train.labels, test.labels)
    classes = list(source.characters if isinstance(source, GlyphsSource) else source.modules)
    numbers = np.arange(len(classes))
    return classes, (
        np.repeat(numbers, source.train_per_class),
        np.repeat(numbers, source.test_per_class),
    )


def _digits(source: DigitsSource) -> tuple[Split, Split]:
    return digits.load_digits_splits(
        source.test_share,
        source.seed,
        digits=source.digits,
        train_share=source.train_share,
        imbalance=source.imbalance,
    )


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Begin the messages of a source with the dataset that it belongs to."""
    try:
        yield
    except DatasetError as error:
        key = "." if str(error).startswith("source.") else ": "
        raise DatasetError(f"datasets.{name}{key}{error}", error.remake) from error
    except OSError as error:
        what = f"{error.filename}: cannot be read: {error.strerror}" if error.filename else error
        raise DatasetError(f"datasets.{name}: {what}") from error


def _prepare_images(name: str, dataset: Dataset, folder: Path) -> PreparedDataset:
    match dataset.source:
        case DigitsSource() | GlyphsSource() as source:
            return _prepare_drawn(name, dataset, folder, source)
        case HubSource() as source:
            with _named(name):
                images = load_hub_images(source)
        case FolderSource() as source:
            with _named(name):
                images = load_folder(source)
        case source:
            raise DatasetError(f"datasets.{name}.source: {source.kind} holds texts; set kind: text")
    decoded = unfinished.claim(folder / "unfinished")
    started = time.time()
    train, test, skipped, resize = _decode(name, dataset, images, decoded)
    prepared = _finished_by_another(folder, started)
    if prepared is None:
        _compare(name, dataset, images.classes, train.labels, test.labels, skipped)
        prepared = write_prepared(
            folder,
            name=name,
            title=dataset.title,
            source=images.origin,
            revision=images.revision,
            classes=images.classes,
            train=train,
            test=test,
            skipped=skipped,
            ignored=images.ignored,
            resize=resize,
            refuse_duplicates=dataset.duplicates == "refuse",
        )
    unfinished.release(decoded)
    return prepared


def _prepare_drawn(
    name: str, dataset: Dataset, folder: Path, source: DigitsSource | GlyphsSource
) -> PreparedDataset:
    """Prepare images that come with a library or are made here."""
    if isinstance(source, GlyphsSource):
        train, test = glyphs.render_glyph_splits(
            source.characters,
            _image_size(name, dataset),
            source.train_per_class,
            source.test_per_class,
            source.seed,
        )
        classes = list(source.characters)
        origin, revision = "rendered from the fonts of matplotlib", version("matplotlib")
    else:
        _require_size(name, dataset, digits.SIZE)
        train, test = _digits(source)
        classes = [str(digit) for digit in source.digits]
        origin, revision = "scikit-learn, load_digits", version("scikit-learn")
    _compare(name, dataset, classes, train.labels, test.labels)
    return write_prepared(
        folder,
        name=name,
        title=dataset.title,
        source=origin,
        revision=revision,
        classes=classes,
        train=train,
        test=test,
        refuse_duplicates=dataset.duplicates == "refuse",
    )


def _finished_by_another(folder: Path, started: float) -> PreparedDataset | None:
    """The dataset if another process has finished it meanwhile: jobs may be reading it already."""
    try:
        if (folder / "metadata.json").stat().st_mtime < started:
            return None
    except FileNotFoundError:
        return None
    log.info("%s: another process has prepared it", folder)
    return PreparedDataset.open(folder)


def _prepare_texts(
    name: str, dataset: Dataset, folder: Path, tokenizer: Path | None
) -> PreparedDataset:
    if dataset.max_length is None or tokenizer is None:
        raise DatasetError(f"datasets.{name}: texts need a tokenizer and a max_length, in tokens")
    with _named(name):
        texts = load_texts(name, dataset)
        (train, empty), (test, empty_test) = (
            split.readable() for split in (texts.train, texts.test)
        )
    skipped = [*empty, *empty_test]
    _refuse_or_warn(name, dataset, skipped)
    _compare(name, dataset, texts.classes, train.labels, test.labels, skipped)
    reader, length = Tokenizer.open(tokenizer), dataset.max_length

    def tokens(split: TextSplit) -> Split:
        return Split(reader.blocks(split.texts, length), split.labels, split.where)

    return write_prepared(
        folder,
        name=name,
        title=dataset.title,
        source=texts.origin,
        revision=texts.revision,
        classes=texts.classes,
        train=tokens(train),
        test=tokens(test),
        kind="text",
        skipped=skipped,
        tokenizer=reader.identity,
        refuse_duplicates=dataset.duplicates == "refuse",
    )


def _decode(
    name: str, dataset: Dataset, images: LabelledImages, decoded: Path
) -> tuple[Split, Split, list[str], Resize | None]:
    """Decode both splits.

    Returns:
        Both, what was wrong with the images that are left out, and how those that are stored as
        they are have to be resized.
    """
    if dataset.corrupt == "refuse":
        # What the labels tell is known before hours of decoding.
        _compare(name, dataset, images.classes, images.train.labels, images.test.labels)
    resize = resize_of(name, dataset)
    transform = make_transform(resize, images.train, images.test)
    train, corrupt = decode_images(images.train, transform, decoded, "train")
    test, corrupt_test = decode_images(images.test, transform, decoded, "test")
    found = [*corrupt, *corrupt_test]
    _refuse_or_warn(name, dataset, found)
    return train, test, found, None if transform.stored is None else resize


def resize_of(name: str, dataset: Dataset) -> Resize:
    """Return how images of a dataset become as large as the network's input.

    Raises:
        DatasetError: the dataset has no size of images.
    """
    return Resize(
        size=_image_size(name, dataset), interpolation=dataset.interpolation, crop=dataset.crop
    )


def _refuse_or_warn(name: str, dataset: Dataset, corrupt: Sequence[str]) -> None:
    """Say what of a dataset cannot be used; by default that ends its preparation."""
    if corrupt and dataset.corrupt == "refuse":
        raise DatasetError(
            f"datasets.{name}: {_listed(corrupt)}\nReplace or remove them, or set corrupt: skip to do "
            "without them"
        )
    if corrupt:
        log.warning("%s: left out %s", name, _listed(corrupt))


def _listed(corrupt: Sequence[str]) -> str:
    more = f"\n  and {len(corrupt) - _MOST_NAMED} more" if len(corrupt) > _MOST_NAMED else ""
    named = "".join(f"\n  {each}" for each in corrupt[:_MOST_NAMED])
    return f"corrupt examples ({len(corrupt)}):{named}{more}"


def _require_size(name: str, dataset: Dataset, size: int) -> None:
    if _image_size(name, dataset) != size:
        raise DatasetError(
            f"datasets.{name}.image_size: found {dataset.image_size}, allowed: {size}, the size "
            f"of the images of {dataset.source.kind}"
        )


def _image_size(name: str, dataset: Dataset) -> int:
    if dataset.image_size is None:
        raise DatasetError(f"datasets.{name}.image_size: missing; images need a size in pixels")
    return dataset.image_size


def _compare(
    name: str,
    dataset: Dataset,
    classes: Sequence[str],
    train: npt.NDArray[np.int64],
    test: npt.NDArray[np.int64],
    skipped: Sequence[str] = (),
) -> None:
    """Compare classes and labels with what the study declares.

    Raises:
        DatasetError: naming everything that differs.
    """
    found = {"classes": len(classes), "train_size": len(train), "test_size": len(test)}
    wrong = [
        f"datasets.{name}.{key}: the study says {getattr(dataset, key)}, {value} found"
        for key, value in found.items()
        if getattr(dataset, key) != value
    ]
    if dataset.classes != len(classes):
        wrong.append(f"  the classes are: {shorten(classes)}{_alike(classes)}")
    outside = False
    for split, labels in (("training", train), ("test", test)):
        if len(labels) and not 0 <= labels.min() <= labels.max() < len(classes):
            outside = True
            wrong.append(
                f"datasets.{name}: {split} labels from {labels.min()} to {labels.max()} found, allowed: "
                f"0 to {len(classes) - 1}; an example without a label cannot be used"
            )
    if not outside:
        counts = _wrong_counts(name, dataset, classes, train)
        more = len(counts) - _FEW_COUNTS
        wrong += counts[:_FEW_COUNTS] + [f"  and so of {more} more classes"] * (more > 0)
        if untested := [classes[label] for label in _missing(test, classes)]:
            log.warning("%s: no test example of %s", name, shorten(untested))
    if wrong and skipped:
        wrong.append(f"left out: {_listed(skipped)}")
    if wrong:
        raise DatasetError("\n".join(wrong))


def _wrong_counts(
    name: str, dataset: Dataset, classes: Sequence[str], train: npt.NDArray[np.int64]
) -> list[str]:
    """Say which classes have no training example, or another number than the study says."""
    wrong = [
        f"datasets.{name}: class {classes[label]!r} has no training example"
        for label in _missing(train, classes)
    ]
    declared = dataset.train_counts
    if wrong or declared is None or dataset.classes != len(classes):
        return wrong
    counts = np.bincount(train, minlength=len(classes)).tolist()
    per_class = declared if isinstance(declared, list) else [declared] * len(classes)
    return [
        f"datasets.{name}.train_counts: the study says {wanted} of class {label!r}, {count} found"
        for label, wanted, count in zip(classes, per_class, counts, strict=True)
        if wanted != count
    ]


def _missing(labels: npt.NDArray[np.int64], classes: Sequence[str]) -> list[int]:
    return np.flatnonzero(np.bincount(labels, minlength=len(classes)) == 0).tolist()


def _alike(classes: Sequence[str]) -> str:
    """Name classes that differ in capitals, spaces or punctuation only: often a slip."""
    first: dict[str, str] = {}
    pairs = []
    for each in classes:
        plain = re.sub(r"[\W_]+", "", unicodedata.normalize("NFKC", each).casefold())
        if plain in first:
            pairs.append(f"{first[plain]!r} and {each!r}")
        first.setdefault(plain, each)
    return f"; nearly the same: {shorten(pairs)}" if pairs else ""
