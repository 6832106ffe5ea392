"""Datasets of the Hugging Face hub, or a local folder with the same layout: images and texts.

Files are read with the `datasets` library as a stream: no copy is made and memory stays bounded.
Nothing that is downloaded is run: `datasets` has no loading scripts since version 4, and images are
decoded from the bytes in the files.
"""

import itertools
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpsweep.base.files import fingerprint
from dpsweep.data.images import Content, EncodedImages, LabelledImages
from dpsweep.data.prepared import DatasetError
from dpsweep.data.shares import stratified_share
from dpsweep.data.texts import LabelColumn, Texts, TextSplit, encode_labels
from dpsweep.study.config import HubSource
from dpsweep.study.messages import brief, shorten

log = logging.getLogger(__name__)

_HUB_TIMEOUT_SECONDS = 10


def load_hub_images(source: HubSource) -> LabelledImages:
    """Read labels now, and images when they are decoded.

    The training splits are concatenated in the order given; ``train_share`` and ``test_share`` keep
    a stratified part.

    Raises:
        DatasetError: the source cannot be read, or lacks a split, a column or a label.
    """
    opened = open_hub(source)
    train, test, classes = _parts(source, opened.splits)
    return LabelledImages(
        train=_encoded(source, opened, train),
        test=_encoded(source, opened, test),
        classes=classes,
        origin=opened.origin,
        revision=opened.revision,
    )


def load_hub_texts(source: HubSource) -> Texts:
    """Read labels now, and texts whenever they are iterated; splits and shares are as for images.

    Raises:
        DatasetError: the source cannot be read, or lacks a split, a column or a label. What is not
            text raises it later, by split and row.
    """
    opened = open_hub(source)
    train, test, classes = _parts(source, opened.splits)
    return Texts(
        train=_texts(source, opened, train),
        test=_texts(source, opened, test),
        classes=classes,
        origin=opened.origin,
        revision=opened.revision,
    )


@dataclass(frozen=True)
class HubFiles:
    """The files of a dataset, as streams."""

    splits: Any
    folder: Path
    origin: str
    revision: str | None
    commit: str | None
    """None for a local copy, whose files can change."""


def open_hub(source: HubSource) -> HubFiles:
    """Open the files of a dataset; they are fetched if needed.

    Raises:
        DatasetError: the source cannot be fetched or read.
    """
    # The library takes a second to import and only the preparation of such a dataset needs it.
    import datasets  # noqa: PLC0415

    if source.path is not None:
        folder, revision = Path(source.path).expanduser(), source.revision
        if not folder.is_dir():
            raise DatasetError(
                f"{folder}: no such folder; put a copy of {source.id} there (its parquet files), "
                f"for example with: {_download_command(source)} --local-dir {folder}"
            )
        origin = f"{source.id}, local copy"
    else:
        folder = _download(source)
        # The hub's cache names a snapshot after its commit.
        origin, revision = source.id, folder.name
        if source.revision is None:
            log.info(
                "%s: the study names no revision; this is commit %s. Add `revision: %s` to its "
                "source to have the same data everywhere", source.id, revision, revision,
            )  # fmt: skip
    try:
        splits = datasets.load_dataset(str(folder), name=source.configuration, streaming=True)
    except (datasets.exceptions.DatasetsError, OSError, ValueError) as error:
        raise DatasetError(
            f"{folder}: cannot be read as a dataset ({brief(error)}). The source's key configuration "
            "chooses one of several"
        ) from error
    commit = None if source.path is not None else revision
    return HubFiles(splits, folder, origin, revision, commit)


@dataclass(frozen=True)
class _Rows:
    """All rows of some splits, one split after the other."""

    source: HubSource
    splits: Sequence[str]
    sizes: Sequence[int]

    def name(self, place: int) -> tuple[str, int]:
        """The split of the row at a place, and its number there."""
        for split, size in zip(self.splits, self.sizes, strict=True):
            if place < size:
                return split, place
            place -= size
        raise IndexError(place)

    def where(self, place: int) -> str:
        """The row at a place, for messages."""
        split, row = self.name(place)
        return f"{self.source.id}, split {split}, row {row}"


@dataclass(frozen=True)
class _Part:
    """The rows that are kept."""

    rows: _Rows
    kept: npt.NDArray[np.int64]
    """places, ascending"""
    labels: npt.NDArray[np.int64]
    """of the kept rows"""

    def where(self, place: int) -> str:
        """The kept row at a place, for messages."""
        return self.rows.where(int(self.kept[place]))


def _parts(source: HubSource, splits: Any) -> tuple[_Part, _Part, list[str]]:
    """Return what to train on, what to test on, and the names of the classes."""
    train, train_labels = _label_columns(source, splits, source.train_splits)
    test, test_labels = _label_columns(source, splits, [source.test_split])
    feature = (splits[source.train_splits[0]].features or {}).get(source.label_column)
    labels, test_numbers, classes = encode_labels(
        train_labels, test_labels, getattr(feature, "names", None)
    )
    # Shares are stratified by the classes of the source: merging them leaves the examples alone.
    kept = stratified_share(labels, train.name, source.train_share, source.seed)
    tested = stratified_share(test_numbers, test.name, source.test_share, source.seed)
    if source.merge_classes is not None:
        coarser = _coarser(source, source.merge_classes, classes)
        labels, test_numbers = coarser[labels], coarser[test_numbers]
        classes = list(source.merge_classes)
    return (
        _Part(train, kept, labels[kept]),
        _Part(test, tested, test_numbers[tested]),
        classes,
    )


def _coarser(
    source: HubSource, merged: Mapping[str, Sequence[str]], classes: Sequence[str]
) -> npt.NDArray[np.int64]:
    """Return the number of the coarser class of every class.

    Args:
        source: of the dataset, for messages.
        merged: the names of the classes by the name of their coarser class.
        classes: names of the classes of the source.
    """
    numbers: dict[str, int] = {}
    for number, (coarser, names) in enumerate(merged.items()):
        for name in names:
            where = f"{source.id}: merge_classes.{coarser}: found {name!r}"
            if name not in classes:
                raise DatasetError(f"{where}; allowed: classes, which are {shorten(classes)}")
            if name in numbers:
                raise DatasetError(f"{where} a second time; allowed: every class once")
            numbers[name] = number
    if missing := [name for name in classes if name not in numbers]:
        raise DatasetError(
            f"{source.id}: merge_classes: found no coarser class for {shorten(missing)}; allowed: "
            "every class once"
        )
    return np.array([numbers[name] for name in classes], dtype=np.int64)


def _label_columns(
    source: HubSource, splits: Any, names: Sequence[str]
) -> tuple[_Rows, LabelColumn]:
    columns = [list(_label_column(source, splits, name)) for name in names]
    rows = _Rows(source, names, [len(column) for column in columns])
    labels = list(itertools.chain.from_iterable(columns))
    return rows, LabelColumn(source.id, source.label_column, labels, rows.where)


def _texts(source: HubSource, opened: HubFiles, part: _Part) -> TextSplit:
    return TextSplit(_HubTexts(source, opened, part), part.labels, part.where)


@dataclass(frozen=True)
class _HubTexts:
    """The kept texts of some splits, in order, read anew by every iteration."""

    source: HubSource
    opened: HubFiles
    part: _Part

    def __iter__(self) -> Iterator[str]:
        column = self.source.input_column
        wanted = set(self.part.kept.tolist())
        position = 0
        for name in self.part.rows.splits:
            for example in self.opened.splits[name].select_columns([column]):
                if position in wanted:
                    if not isinstance(example[column], str):
                        raise DatasetError(
                            f"{self.part.rows.where(position)}, column {column!r}: "
                            f"found {type(example[column]).__name__}; allowed: text"
                        )
                    yield example[column]
                position += 1


def _label_column(source: HubSource, splits: Any, split: str) -> Iterator[Any]:
    if split not in splits:
        raise DatasetError(f"{source.id}: found no split {split!r}; allowed: {shorten(splits)}")
    columns = splits[split].column_names or list(next(iter(splits[split])))
    for column in (source.label_column, source.input_column):
        if column not in columns:
            raise DatasetError(
                f"{source.id}, split {split}: found no column {column!r}; "
                f"allowed: {shorten(columns)}"
            )
    for batch in splits[split].select_columns([source.label_column]).iter(10_000):
        yield from batch[source.label_column]


def _encoded(source: HubSource, opened: HubFiles, part: _Part) -> EncodedImages:
    """Return the kept images of some splits, one after the other."""

    def read(start: int) -> Iterator[tuple[str, Content]]:
        wanted = iter(part.kept[start:].tolist())
        following = next(wanted, None)
        for position, image in enumerate(_images(source, opened.splits, part.rows.splits)):
            if following is None:
                return
            if position == following:
                following = next(wanted, None)
                where = part.rows.where(position)
                yield where, _content(opened, where, image)

    # A commit has one content; the files of a local copy can change.
    found = [] if opened.commit else sorted(opened.folder.rglob("*"))
    files = [each for each in found if each.is_file()]
    return EncodedImages(
        labels=part.labels,
        read=read,
        identity={
            "commit": opened.commit,
            "configuration": source.configuration,
            "files": [(str(each), each.stat().st_size, each.stat().st_mtime_ns) for each in files],
            "columns": [source.input_column, source.label_column],
            "splits": list(part.rows.splits),
            "rows": fingerprint(part.kept.tolist()),
        },
        where=part.where,
    )


def _images(source: HubSource, splits: Any, names: Sequence[str]) -> Iterator[Any]:
    from datasets import Image  # noqa: PLC0415

    column = source.input_column
    for name in names:
        stream = splits[name].select_columns([column])
        encoded = stream.cast_column(column, Image(decode=False))
        for example in encoded:
            yield example[column]


def _content(opened: HubFiles, where: str, image: Any) -> Content:
    """Return an image's bytes, or its file in the dataset's folder; nothing else is opened."""
    if image is None or (image["bytes"] is None and image["path"] is None):
        return b""
    if image["bytes"] is not None:
        return bytes(image["bytes"])
    path = Path(os.path.abspath(image["path"]))  # noqa: PTH100
    folder = opened.folder.absolute()
    if opened.commit is None:
        # A snapshot of the hub's cache consists of links into the cache; a local copy may not.
        path, folder = path.resolve(), folder.resolve()
    if not path.is_relative_to(folder):
        raise DatasetError(
            f"{where}: names the file {image['path']!r}; allowed: bytes, or a file inside "
            f"{str(opened.folder)!r}"
        )
    return path


def _download(source: HubSource) -> Path:
    """Return the folder of a repository's files in the hub's cache, downloaded if needed."""
    from huggingface_hub import HfApi, snapshot_download  # noqa: PLC0415
    from huggingface_hub.errors import LocalEntryNotFoundError  # noqa: PLC0415

    fetch = partial(snapshot_download, source.id, repo_type="dataset", ignore_patterns=["*.py"])
    try:
        # A download retries for half a minute; this fails at once where there is no network.
        found = HfApi().dataset_info(
            source.id, revision=source.revision, timeout=_HUB_TIMEOUT_SECONDS
        )
        return Path(fetch(revision=found.sha))
    except Exception as error:
        try:
            return Path(fetch(revision=source.revision, local_files_only=True))
        except LocalEntryNotFoundError:
            cache = os.environ.get("HF_HOME", "~/.cache/huggingface")
            raise DatasetError(
                f"cannot fetch the dataset {source.id} from https://huggingface.co "
                f"({type(error).__name__}: {error}).\nWhere there is a network, run: "
                f"{_download_command(source)}\nThen copy its cache ({cache}) here, or copy the "
                "files into a folder and set source.path to it"
            ) from error


def _download_command(source: HubSource) -> str:
    revision = f" --revision {source.revision}" if source.revision else ""
    return f"hf download {source.id} --repo-type dataset{revision}"
