"""The Hugging Face hub: datasets of images and texts (or local folders with their layout), and single files.

The `datasets` library streams the files, without a copy and with bounded memory. No downloaded code is run:
`datasets` has no loading scripts since version 4, and images are decoded from the bytes in the files.
"""

import itertools
import logging
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpsweep.base.errors import DpsweepError
from dpsweep.base.files import found_pointer, visible_files
from dpsweep.data import examples
from dpsweep.data.images import Content, EncodedImages
from dpsweep.data.prepared import DatasetError, Labels, Split
from dpsweep.study.datasets import HubSource
from dpsweep.study.messages import brief, pick, shorten

log = logging.getLogger(__name__)

TIMEOUT_SECONDS = 10
_ROWS_AT_ONCE = 100  # of parquet, which may have images

# A shard of a split: train-00000-of-00002.parquet; older ones have a hash before the suffix.
_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})(?:-[0-9a-f]+)?\.\w+")


def load_hub(source: HubSource, kind: str, unit: str | None = None) -> examples.LabelledData:
    """Read the labels; images and texts are read later, when they are iterated.

    The training splits are concatenated in the given order. ``train_share`` and ``test_share`` keep a
    stratified part.

    Args:
        source: to read.
        kind: of its inputs: image or text.
        unit: the column that names the unit of each row; None: each row is a unit.

    Raises:
        DatasetError: the source cannot be read, or lacks a split, a column or a label.
    """
    files = open_hub(source)
    train, train_labels = _label_columns(files, source.train_splits, unit)
    test, test_labels = _label_columns(files, [source.test_split], unit)
    names = getattr(files.feature(source.train_splits[0]), "names", None)
    labels, test_numbers, classes = examples.encode_labels(train_labels, test_labels, names)
    # Shares are stratified by the classes of the source, so merging classes keeps the same examples.
    kept = examples.stratified_share(labels, train.name, source.train_share, source.seed)
    tested = examples.stratified_share(test_numbers, test.name, source.test_share, source.seed)
    if source.merge_classes is not None:
        coarser = _coarser(source, source.merge_classes, classes)
        labels, test_numbers = coarser[labels], coarser[test_numbers]
        classes = list(source.merge_classes)
    return examples.LabelledData(
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
    """streams of the library, by name"""
    folder: Path
    origin: str
    revision: str | None

    def feature(self, split: str) -> Any:
        """Return the library's type of the labels of a split; None if unknown."""
        return (self.splits[split].features or {}).get(self.source.label_column)


def open_hub(source: HubSource) -> HubFiles:
    """Open the files of a dataset; download them if needed.

    Raises:
        DatasetError: the source cannot be fetched or read.
    """
    # Importing the library takes a second, and only such datasets need it.
    import datasets  # noqa: PLC0415

    if source.path is not None:
        folder, revision = Path(source.path), source.revision
        if not folder.is_dir():
            raise DatasetError(
                f"{folder}: no such folder; put a copy of {source.id} there (its parquet files), "
                f"for example with: {_download_command(source)} --local-dir {folder}"
            )
        for file in visible_files(folder):
            if pointer := found_pointer(file):
                raise DatasetError(f"{file}: {pointer}")
        origin = f"{source.id}, local copy"
    else:
        folder = _download(source)
        # The folder of a snapshot in the hub's cache has the name of its commit.
        origin, revision = source.id, folder.name
        if source.revision is None:
            log.info(
                "%s: the study names no revision; this is commit %s. Add `revision: %s` to its "
                "source to have the same data everywhere", source.id, revision, revision,
            )  # fmt: skip
    _refuse_missing_shards(folder)
    try:
        builder = datasets.load_dataset_builder(str(folder), name=source.configuration)
        if hasattr(builder.config, "batch_size"):  # by default 0 for a file of parquet without rows
            builder.config.batch_size = _ROWS_AT_ONCE
        splits = builder.as_streaming_dataset()
    except MemoryError:
        raise
    except Exception as error:  # of many types: a broken card raises an error of YAML
        raise DatasetError(
            f"{folder}: cannot be read as a dataset ({brief(error)}). The source's key configuration "
            "chooses one of several"
        ) from error
    _refuse_shared_files(source, builder.config.data_files or {})
    return HubFiles(source, splits, folder, origin, revision)


def _refuse_shared_files(source: HubSource, files: Mapping[str, Sequence[str]]) -> None:
    """Refuse a file in two splits: the library reads a folder ``train/test`` as test images too."""
    found: dict[str, str] = {}
    for split in dict.fromkeys([*source.train_splits, source.test_split]):
        for file in files.get(split, ()):
            if file in found:
                raise DatasetError(
                    f"{file}: found in the splits {found[file]} and {split}; allowed: one. The folder of "
                    "a class that is named as a split is read as this split; rename it"
                )
            found[file] = split


def _refuse_missing_shards(folder: Path) -> None:
    """Refuse a split with missing shards: the library would read the others without a warning."""
    found: dict[tuple[str, str], set[int]] = defaultdict(set)
    for file in visible_files(folder):
        if match := _SHARD.fullmatch(str(file.relative_to(folder))):
            found[match[1], match[3]].add(int(match[2]))
    for (name, count), numbers in found.items():
        if missing := sorted({*range(int(count))} - numbers):
            files = [f"{name}-{number:05}-of-{count}" for number in missing]
            raise DatasetError(
                f"{folder}: missing {shorten(files)}; allowed: all {int(count)} files of {name}"
            )


@dataclass(frozen=True)
class _Rows:
    """Rows of some splits, one split after the other. Iterating yields their texts."""

    files: HubFiles
    splits: Sequence[str]
    sizes: Sequence[int]
    """of the splits"""
    kept: Labels
    """positions of the kept rows, ascending"""
    units: npt.NDArray[np.str_] | None = None
    """the name of each row's unit; None: each row is a unit"""

    def name(self, place: int) -> tuple[str, int]:
        """Return the split of the row at a position, and its number in this split."""
        ends = np.cumsum(self.sizes)
        at = int(np.searchsorted(ends, place, side="right"))
        return self.splits[at], place - int(ends[at]) + self.sizes[at]

    def where(self, place: int) -> str:
        """Return the name of the row at a position, for messages."""
        split, row = self.name(place)
        return f"{self.files.source.id}, split {split}, row {row}"

    def split(self, kind: str, kept: Labels, labels: Labels) -> Split:
        """Return the rows at some positions; images and texts are read when they are iterated."""
        rows = replace(self, kept=kept)
        inputs = rows if kind == "text" else EncodedImages(rows.images)
        return Split(inputs, labels, self.where, self.units).only(kept, inputs)

    def inputs(self, cast: Any = None) -> Iterator[tuple[str, Any]]:
        """Yield name and input of each kept row.

        Args:
            cast: the type of `datasets` for the inputs.
        """
        column, places = self.files.source.input_column, itertools.count()
        kept = np.zeros(sum(self.sizes), dtype=bool)
        kept[self.kept] = True
        for name in self.splits:
            stream = self.files.splits[name].select_columns([column])
            rows = stream if cast is None else stream.cast_column(column, cast)
            with examples.reading(self.files.folder, f"split {name}"):
                for row, place in zip(rows, places, strict=False):
                    if kept[place]:
                        yield self.where(place), row[column]

    def __iter__(self) -> Iterator[Any]:
        return (text for _, text in self.inputs())

    def images(self) -> Iterator[tuple[str, Content]]:
        """Yield name and encoded image of each kept row."""
        from datasets import Image  # noqa: PLC0415

        for where, image in self.inputs(Image(decode=False)):
            yield where, _content(self.files, where, image)


def _coarser(
    source: HubSource, merged: Mapping[str, Sequence[str]], classes: Sequence[str]
) -> Labels:
    """Return the number of the coarser class for every class.

    Args:
        source: of the dataset, for messages.
        merged: for each coarser class, the names of its classes.
        classes: names of the classes of the source.
    """
    named = [name for names in merged.values() for name in names]
    if sorted(named) != sorted(classes):
        wrong = set(named) ^ set(classes) or {name for name in named if named.count(name) > 1}
        raise DatasetError(
            f"{source.id}: merge_classes: found {shorten(sorted(wrong))} in no class or in two; allowed: "
            f"every class once, of {shorten(classes)}"
        )
    numbers = {name: at for at, names in enumerate(merged.values()) for name in names}
    return np.array([numbers[name] for name in classes], dtype=np.int64)


def _label_columns(
    files: HubFiles, splits: Sequence[str], unit: str | None
) -> tuple[_Rows, examples.LabelColumn]:
    """Return the rows of some splits with their units, and their labels."""
    source = files.source
    read = [source.label_column, *([] if unit is None else [unit])]
    labels: list[Any] = []
    units: list[Any] = []
    sizes = []
    for name in splits:
        split, before = pick(f"{source.id}, split", name, files.splits), len(labels)
        with examples.reading(files.folder, f"split {name}"):
            columns = split.column_names or list(next(iter(split), {}))
            for each in (*read, source.input_column):
                pick(f"{source.id}, split {name}, column", each, dict.fromkeys(columns))
            for batch in split.select_columns(list(dict.fromkeys(read))).iter(10_000):
                labels += batch[source.label_column]
                units += [] if unit is None else batch[unit]
        sizes.append(len(labels) - before)
    rows = _Rows(files, splits, sizes, np.arange(len(labels)))
    rows = replace(rows, units=None if unit is None else examples.unit_names(units, rows.where))
    column = f"column {source.label_column!r}"
    table = f"{source.id}, split {shorten(splits)}"
    return rows, examples.LabelColumn(table, column, labels, rows.where, typed=True)


def _content(files: HubFiles, where: str, image: Any) -> Content:
    """Return an image's bytes, or its file; refuse files outside the dataset's folder."""
    if image is None or (image["bytes"] is None and image["path"] is None):
        return b""
    if image["bytes"] is not None:
        return bytes(image["bytes"])
    path = Path(os.path.abspath(image["path"]))  # noqa: PTH100
    folder = files.folder.absolute()
    if files.source.path is not None:
        # Links may leave a snapshot of the hub's cache, but not a local copy.
        path, folder = path.resolve(), folder.resolve()
    if not path.is_relative_to(folder):
        raise DatasetError(
            f"{where}: names the file {image['path']!r}; allowed: bytes, or a file inside "
            f"{str(files.folder)!r}"
        )
    return path


def _download(source: HubSource) -> Path:
    """Return the folder of a repository in the hub's cache; download its files if needed."""
    from huggingface_hub import HfApi, snapshot_download  # noqa: PLC0415
    from huggingface_hub.errors import LocalEntryNotFoundError  # noqa: PLC0415

    fetch = partial(snapshot_download, source.id, repo_type="dataset", ignore_patterns=["*.py"])
    try:
        # A download retries for half a minute; this call fails at once without a network.
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


# -- single files ---------------------------------------------------------------------------


class HubError(DpsweepError):
    """A file that the hub does not provide; the message contains the command that fetches it."""


class UnreachableHubError(HubError):
    """A hub that does not answer, so it is unknown whether it has the file."""


def fetch_file(
    repository: str, file: str, revision: str | None, instead: str, others: Sequence[str] = ()
) -> Path:
    """Return the local copy of a file of a model repository, downloaded if needed.

    Args:
        repository: owner/name.
        file: its path in the repository.
        revision: a commit, or None for the newest.
        instead: the setting of the study that uses a local copy of the file, for the message.
        others: files of the repository that are needed next, for the command in the message.

    Raises:
        HubError: the cache has no copy, and the hub cannot be reached or does not have the file.
    """
    from huggingface_hub import HfApi, hf_hub_download  # noqa: PLC0415
    from huggingface_hub.errors import LocalEntryNotFoundError  # noqa: PLC0415

    try:
        return Path(hf_hub_download(repository, file, revision=revision, local_files_only=True))
    except LocalEntryNotFoundError:
        pass
    try:
        # A download retries for half a minute; this call fails at once without a network.
        HfApi().model_info(repository, revision=revision, timeout=TIMEOUT_SECONDS)
        return Path(hf_hub_download(repository, file, revision=revision))
    except Exception as error:
        command = f"hf download {' '.join([repository, file, *others])}"
        command += f" --revision {revision}" if revision else ""
        what = f"{file} of {repository_named(repository, revision)}"
        message = cannot_fetch(what, error, command, f"copy the file and set {instead}")
        raise (HubError if _refuses(error) else UnreachableHubError)(message) from error


def repository_named(repository: str, revision: str | None) -> str:
    """Return the name of a repository, with the revision if there is one.

    >>> repository_named("timm/vit", "0123"), repository_named("timm/vit", None)
    ('timm/vit at revision 0123', 'timm/vit')
    """
    return f"{repository} at revision {revision}" if revision else repository


def require_file(repository: str, file: str, revision: str | None) -> None:
    """Check that a file of a model repository exists, without a download.

    Raises:
        UnreachableHubError: the hub does not answer; the message is one line, without the file.
        HubError: the hub does not have this repository, revision or file.
    """
    from huggingface_hub import HfApi, try_to_load_from_cache  # noqa: PLC0415

    if isinstance(try_to_load_from_cache(repository, file, revision=revision), str):
        return
    what = repository_named(repository, revision)
    try:
        found = HfApi().model_info(repository, revision=revision, timeout=TIMEOUT_SECONDS)
    except Exception as error:
        if _refuses(error):
            raise HubError(f"found {what}, which the hub refuses ({brief(error)})") from error
        raise UnreachableHubError(
            f"https://huggingface.co does not answer ({type(error).__name__})"
        ) from error
    files = [each.rfilename for each in found.siblings or []]
    if file not in files:
        raise HubError(f"found {what}, which has no {file}; it has {shorten(files)}")


def _refuses(error: Exception) -> bool:
    """Tell whether the hub answered that something is missing or forbidden (not: busy or broken)."""
    from huggingface_hub.errors import HfHubHTTPError  # noqa: PLC0415

    return isinstance(error, HfHubHTTPError) and error.response.status_code in (400, 401, 403, 404)


def cannot_fetch(what: str, error: Exception, command: str, instead: str) -> str:
    """Return the message for a failed download, with the remedy.

    Args:
        what: noun for the requested files.
        error: of the download.
        command: that fetches the files into the hub's cache.
        instead: another way to use a copy of the files.
    """
    cache = os.environ.get("HF_HOME", "~/.cache/huggingface")
    return (
        f"cannot fetch {what} from https://huggingface.co ({type(error).__name__}: {error}).\n"
        f"Where there is a network, run: {command}\nThen copy its cache ({cache}) here, or {instead}"
    )


def commit(path: Path) -> str:
    """Return the commit of a file in the hub's cache, from its path ``snapshots/<commit>/<file>``."""
    parts = path.parts
    return parts[len(parts) - parts[::-1].index("snapshots")]
