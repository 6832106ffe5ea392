"""Datasets of the Hugging Face hub, or a local folder with the same layout: images and texts.

Files are read with the `datasets` library as a stream: no copy is made and memory stays bounded.
Nothing that is downloaded is run: `datasets` has no loading scripts since version 4, and images are
decoded from the bytes in the files.
"""

import logging
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pyarrow import parquet

from dpsweep.base.files import fingerprint, found_pointer
from dpsweep.base.litter import is_litter, walk
from dpsweep.config import HubSource
from dpsweep.config.messages import brief, shorten
from dpsweep.data.examples import (
    LabelColumn,
    LabelledData,
    Labels,
    Split,
    encode_labels,
    same_kind,
    stratified_share,
)
from dpsweep.data.hub_file import TIMEOUT_SECONDS, cannot_fetch
from dpsweep.data.images import Content, EncodedImages
from dpsweep.data.prepared import DatasetError
from dpsweep.data.tables import column_names, read_table

log = logging.getLogger(__name__)

# A file of a split that is in several: train-00000-of-00002.parquet, with a hash in between in older ones.
_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})(?:-[0-9a-f]+)?\.\w+")


def load_hub(source: HubSource, kind: str) -> LabelledData:
    """Read labels now, and images or texts when they are iterated.

    The training splits are concatenated in the order given; ``train_share`` and ``test_share`` keep
    a stratified part. Tables of text (.csv, .tsv) are read as those of `dpsweep.data.texts`, now: the library
    would guess what quotes mean.

    Args:
        source: what to read.
        kind: of its inputs: image or text.

    Raises:
        DatasetError: the source cannot be read, or lacks a split, a column or a label. What is not
            text raises it later, by split and row.
    """
    files = open_hub(source)
    train, train_labels = _label_columns(files, source.train_splits)
    test, test_labels = _label_columns(files, [source.test_split])
    names = getattr(files.feature(source.train_splits[0]), "names", None)
    labels, test_numbers, classes = encode_labels(train_labels, test_labels, names)
    # Shares are stratified by the classes of the source: merging them leaves the examples alone.
    kept = stratified_share(labels, train.name, source.train_share, source.seed)
    tested = stratified_share(test_numbers, test.name, source.test_share, source.seed)
    if source.merge_classes is not None:
        coarser = _coarser(source, source.merge_classes, classes)
        labels, test_numbers = coarser[labels], coarser[test_numbers]
        classes = list(source.merge_classes)
    return LabelledData(
        train=train.split(kind, kept, labels),
        test=test.split(kind, tested, test_numbers),
        classes=classes,
        origin=files.origin,
        revision=files.revision,
    )


@dataclass(frozen=True)
class HubFiles:
    """The files of a dataset, as streams."""

    source: HubSource
    splits: Any
    """of the library, by name"""
    tables: Mapping[str, Sequence[Path]]
    """tables of text, which are read without it, by the names of splits that consist of such"""
    folder: Path
    origin: str
    revision: str | None

    @property
    def commit(self) -> str | None:
        """Return the commit of the files; None for a local copy, which can change."""
        return self.revision if self.source.path is None else None

    def feature(self, split: str) -> Any:
        """Return the library's type of the labels of a split; None where it is not known."""
        return (self.splits[split].features or {}).get(self.source.label_column)


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
        _refuse_litter(folder)
        for file in walk(folder):
            if pointer := found_pointer(file):
                raise DatasetError(f"{file}: {pointer}")
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
    _refuse_missing_shards(folder)
    try:
        builder = datasets.load_dataset_builder(str(folder), name=source.configuration)
        splits = builder.as_streaming_dataset()
    except MemoryError:
        raise
    # Of any kind: a broken card is an error of YAML, a loading script another.
    except Exception as error:
        if damaged := _damaged_table(folder):
            raise DatasetError(f"{damaged}: cannot be read ({brief(error)})") from error
        raise DatasetError(
            f"{folder}: cannot be read as a dataset ({brief(error)}). The source's key configuration "
            "chooses one of several"
        ) from error
    tables = {
        str(name): list(map(Path, found))
        for name, found in (builder.config.data_files or {}).items()
        if {Path(each).suffix.lower() for each in found} <= {".csv", ".tsv"}
    }
    return HubFiles(source, splits, tables, folder, origin, revision)


def _refuse_litter(folder: Path) -> None:
    """Refuse what the library would take for data: it leaves out only names with a dot or __ in front."""
    found = []
    for place, folders, files in os.walk(folder):
        suffixes = {Path(name).suffix for name in files if not is_litter(name)}
        read = [name for name in folders if is_litter(name, folder=True)]
        read += [name for name in files if is_litter(name) and Path(name).suffix in suffixes]
        found += [str(Path(place, name)) for name in read if not name.startswith((".", "__"))]
        folders[:] = [name for name in folders if name not in read]
    if found:
        raise DatasetError(
            f"{folder}: found {shorten(found)}, which a server or other software has left there and "
            "which would be read as data; remove them"
        )


def _refuse_missing_shards(folder: Path) -> None:
    """Refuse a split of which files are missing: the library would read the others without a word."""
    found: dict[tuple[str, str], set[int]] = defaultdict(set)
    for file in walk(folder):
        if match := _SHARD.fullmatch(str(file.relative_to(folder))):
            found[match[1], match[3]].add(int(match[2]))
    for (name, count), numbers in found.items():
        if missing := sorted({*range(int(count))} - numbers):
            files = [f"{name}-{number:05}-of-{count}" for number in missing]
            raise DatasetError(
                f"{folder}: missing {shorten(files)}; allowed: all {int(count)} files of {name}"
            )


@contextmanager
def _reading(files: HubFiles, split: str) -> Iterator[None]:
    """Name the damaged file in what is raised inside: the library reads files when their rows are asked for.

    Raises:
        DatasetError: in the place of any error of a reader.
    """
    try:
        yield
    except (DatasetError, MemoryError):
        raise
    except Exception as error:  # readers meet broken files with all kinds of exceptions
        where = _damaged_table(files.folder) or f"{files.folder}, split {split}"
        raise DatasetError(f"{where}: cannot be read ({brief(error)})") from error


def _damaged_table(folder: Path) -> Path | None:
    """Find the first parquet file that cannot be read to its end."""
    for file in walk(folder):
        if file.suffix == ".parquet":
            try:
                for _ in parquet.ParquetFile(file).iter_batches():
                    pass
            except Exception:  # as above
                return file
    return None


@dataclass(frozen=True)
class _Rows:
    """Rows of some splits, one split after the other; iterated, their texts."""

    files: HubFiles
    splits: Sequence[str]
    sizes: Sequence[int]
    """of the splits"""
    texts: Sequence[str] | None
    """of all rows, where they are read already"""
    kept: Labels
    """places of those that are kept, ascending"""

    def name(self, place: int) -> tuple[str, int]:
        """Return the split of the row at a place, and its number there."""
        for split, size in zip(self.splits, self.sizes, strict=True):
            if place < size:
                return split, place
            place -= size
        raise IndexError(place)

    def where(self, place: int) -> str:
        """Name the row at a place, for messages."""
        split, row = self.name(place)
        return f"{self.files.source.id}, split {split}, row {row}"

    def split(self, kind: str, kept: Labels, labels: Labels) -> Split:
        """Take the rows at some places; their images or texts are read when they are iterated."""
        rows = replace(self, kept=kept)
        inputs = rows if kind == "text" else EncodedImages(rows.images, rows.identity())
        return Split(inputs, labels, self.where).only(kept, inputs)

    def inputs(self, start: int = 0, cast: Any = None) -> Iterator[tuple[str, Any]]:
        """Yield the name and the input of each row that is kept, from one of them on.

        Args:
            start: the first of the rows.
            cast: the type of `datasets` to read inputs as.
        """
        column = self.files.source.input_column
        kept = iter(self.kept[start:].tolist())
        following, place = next(kept, None), 0
        for name in self.splits:
            stream = self.files.splits[name].select_columns([column])
            with _reading(self.files, name):
                for row in stream if cast is None else stream.cast_column(column, cast):
                    if following is None:
                        return
                    if place == following:
                        yield self.where(place), row[column]
                        following = next(kept, None)
                    place += 1

    def __iter__(self) -> Iterator[str]:
        if self.texts is not None:
            yield from (self.texts[place] for place in self.kept)
            return
        for where, text in self.inputs():
            if not isinstance(text, str):
                column = self.files.source.input_column
                raise DatasetError(
                    f"{where}, column {column!r}: found {type(text).__name__}; allowed: text"
                )
            yield text

    def images(self, start: int) -> Iterator[tuple[str, Content]]:
        """Yield the name and the encoded image of each row, from one of them on."""
        from datasets import Image  # noqa: PLC0415

        for where, image in self.inputs(start, Image(decode=False)):
            yield where, _content(self.files, where, image)

    def identity(self) -> Any:
        """Return plain values that change when the images do."""
        files, source = self.files, self.files.source
        # A commit has one content; the files of a local copy can change.
        found = [] if files.commit else walk(files.folder)
        states = [(str(each), each.stat()) for each in found if each.is_file()]
        return {
            "commit": files.commit,
            "configuration": source.configuration,
            "files": [(name, each.st_size, each.st_mtime_ns) for name, each in states],
            "columns": [source.input_column, source.label_column],
            "splits": list(self.splits),
            "rows": fingerprint(self.kept.tolist()),
        }


def _coarser(
    source: HubSource, merged: Mapping[str, Sequence[str]], classes: Sequence[str]
) -> Labels:
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


def _label_columns(files: HubFiles, splits: Sequence[str]) -> tuple[_Rows, LabelColumn]:
    """Return the rows of some splits, and their labels."""
    source = files.source
    labels: list[Any] = []
    texts: list[str] = []
    sizes = []
    for name in splits:
        if name not in files.splits:
            raise DatasetError(
                f"{source.id}: found no split {name!r}; allowed: {shorten(files.splits)}"
            )
        split, before = files.splits[name], len(labels)
        tables = files.tables.get(name, [])
        with _reading(files, name):
            known = column_names(tables[0]) if tables else split.column_names
            columns = known or list(next(iter(split), {}))
            for each in (source.label_column, source.input_column):
                if each not in columns:
                    raise DatasetError(
                        f"{source.id}, split {name}: found no column {each!r}; allowed: {shorten(columns)}"
                    )
            encode = getattr(files.feature(name), "str2int", None)
            for path in tables:
                more, found = read_table(path, source.input_column, source.label_column)
                texts += more
                labels += map(encode, found) if encode else found
            if not tables:
                for batch in split.select_columns([source.label_column]).iter(10_000):
                    labels += batch[source.label_column]
        sizes.append(len(labels) - before)
    are_read = len(texts) == len(labels)
    rows = _Rows(files, splits, sizes, texts if are_read else None, np.arange(len(labels)))
    column = LabelColumn(source.id, f"column {source.label_column!r}", labels, rows.where)
    return rows, next(same_kind(column)) if are_read else column


def _content(files: HubFiles, where: str, image: Any) -> Content:
    """Return an image's bytes, or its file in the dataset's folder; nothing else is opened."""
    if image is None or (image["bytes"] is None and image["path"] is None):
        return b""
    if image["bytes"] is not None:
        return bytes(image["bytes"])
    path = Path(os.path.abspath(image["path"]))  # noqa: PTH100
    folder = files.folder.absolute()
    if files.commit is None:
        # A snapshot of the hub's cache consists of links into the cache; a local copy may not.
        path, folder = path.resolve(), folder.resolve()
    if not path.is_relative_to(folder):
        raise DatasetError(
            f"{where}: names the file {image['path']!r}; allowed: bytes, or a file inside "
            f"{str(files.folder)!r}"
        )
    return path


def _download(source: HubSource) -> Path:
    """Return the folder of a repository's files in the hub's cache, downloaded if needed."""
    from huggingface_hub import HfApi, snapshot_download  # noqa: PLC0415
    from huggingface_hub.errors import LocalEntryNotFoundError  # noqa: PLC0415

    fetch = partial(snapshot_download, source.id, repo_type="dataset", ignore_patterns=["*.py"])
    try:
        # A download retries for half a minute; this fails at once where there is no network.
        found = HfApi().dataset_info(source.id, revision=source.revision, timeout=TIMEOUT_SECONDS)
        return Path(fetch(revision=found.sha))
    except Exception as error:
        try:
            return Path(fetch(revision=source.revision, local_files_only=True))
        except LocalEntryNotFoundError:
            instead = "copy the files into a folder and set source.path to it"
            message = cannot_fetch(
                f"the dataset {source.id}", error, _download_command(source), instead
            )
            raise DatasetError(message) from error


def _download_command(source: HubSource) -> str:
    revision = f" --revision {source.revision}" if source.revision else ""
    return f"hf download {source.id} --repo-type dataset{revision}"
