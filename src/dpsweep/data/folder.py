"""A folder of images: a folder for each class, inside one for each split."""

import logging
import os
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dpsweep.data.examples import LabelledData, Split, stratified_share
from dpsweep.data.images import Content, EncodedImages
from dpsweep.data.prepared import DatasetError
from dpsweep.study.config import FolderSource
from dpsweep.study.messages import shorten
from dpsweep.study.shares import is_within

log = logging.getLogger(__name__)

# What desktops leave behind, beside hidden files.
_LITTER = {"thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r", "__macosx"}


def load_folder(source: FolderSource) -> LabelledData:
    """List the images of a folder; they are read and decoded later.

    Classes are the folders of the first training folder, in alphabetical order. What is in them,
    at any depth, is an image; hidden files and those of a desktop are ignored.

    Raises:
        DatasetError: a folder is missing or empty, the splits have other classes, a symbolic link
            leads out of the folder, or a share leaves nothing.
    """
    root = Path(source.path).expanduser()
    if not root.is_dir():
        raise DatasetError(f"{root}: no such folder; put the images there, or correct source.path")
    folder = _Folder(root)
    classes = list(folder.classes(root / source.train_folders[0]))
    images = folder.images(source.train_folders, classes)
    labels = np.array([each.label for each in images])
    kept = stratified_share(
        labels, lambda place: [images[place].name], source.train_share, source.seed
    )
    train = [images[place] for place in kept]
    if source.test_from_train is None:
        test = folder.images([source.test_folder], classes)
    else:
        train, test = _cut(train, source.test_from_train, source.seed)
    ignored = sorted(folder.ignored)
    if ignored:
        log.warning(
            "%s: ignored %d files that are no images, or in no class: %s",
            root, len(ignored), shorten(ignored),
        )  # fmt: skip
    return LabelledData(
        train=_split(train),
        test=_split(test),
        classes=classes,
        origin=f"folder {root.name}",
        ignored=ignored,
    )


@dataclass(frozen=True)
class _Image:
    path: Path
    name: str
    """Its path below the root: what it is called, and what shares are drawn by."""
    label: int


@dataclass
class _Folder:
    root: Path
    ignored: set[str] = field(default_factory=set)
    """Names of the files that are no images, or in no class."""

    def classes(self, folder: Path) -> dict[str, Path]:
        """Return the folders of a split by the names of their classes, in order."""
        if folder != self.root:
            self._check(folder)
        if not folder.is_dir():
            raise DatasetError(
                f"{folder}: no such folder; it holds a folder of images for each class"
            )
        found: dict[str, Path] = {}
        for entry in self._entries(folder):
            # The same word in two forms of Unicode (macOS writes its own) is one class.
            name = unicodedata.normalize("NFC", entry.name)
            if not entry.is_dir():
                self._ignore(entry)
            elif name in found:
                raise DatasetError(
                    f"{folder}: two folders of the class {name!r}, in different forms of Unicode; "
                    "merge them"
                )
            else:
                found[name] = entry
        if not found:
            raise DatasetError(
                f"{folder}: found no folder in it; allowed: one of images for each class"
            )
        return dict(sorted(found.items()))

    def images(self, folders: Iterable[str], classes: Sequence[str]) -> list[_Image]:
        """Return the images of some splits, split by split and class by class."""
        found: list[_Image] = []
        for split in (self.root / folder for folder in folders):
            inside = self.classes(split)
            if unknown := sorted(set(inside) - set(classes)):
                raise DatasetError(
                    f"{split}: found the classes {shorten(unknown)}; allowed: those of the first "
                    f"training folder, {shorten(classes)}"
                )
            found += [
                _Image(path, str(path.relative_to(self.root)), classes.index(name))
                for name, folder in inside.items()
                for path in self._files(folder)
            ]
        if not found:
            raise DatasetError(
                f"{self.root}: found no image in {shorten(folders)}; allowed: one or more"
            )
        return found

    def _files(self, folder: Path) -> Iterator[Path]:
        """Yield the files of a folder and of those inside it, sorted."""
        for entry in self._entries(folder):
            if entry.is_dir():
                yield from self._files(entry)
            elif entry.is_file():
                yield entry
            else:
                raise DatasetError(f"{entry}: neither a file nor a folder; remove it")

    def _entries(self, folder: Path) -> Iterator[Path]:
        """Yield what is in a folder, sorted, without what is ignored."""
        for entry in sorted(folder.iterdir()):
            if entry.name.startswith(".") or entry.name.lower() in _LITTER:
                self._ignore(entry)
            else:
                self._check(entry)
                yield entry

    def _ignore(self, entry: Path) -> None:
        name = os.fsencode(entry.relative_to(self.root))
        self.ignored.add(name.decode(errors="replace"))

    def _check(self, entry: Path) -> None:
        """Refuse names that cannot be written, links that leave the folder, and links to folders."""
        try:
            entry.name.encode()
        except UnicodeEncodeError:
            raise DatasetError(
                f"{str(entry)!r}: the name is no valid UTF-8; rename it (convmv can, for many files)"
            ) from None
        if not entry.is_symlink():
            return
        try:
            target = entry.resolve(strict=True)
        except (OSError, RuntimeError):  # it leads nowhere, or to itself
            raise DatasetError(
                f"{str(entry)!r}: a symbolic link that leads nowhere; remove it"
            ) from None
        if not (target.is_relative_to(self.root.resolve()) and target.is_file()):
            raise DatasetError(
                f"{str(entry)!r}: a symbolic link to {str(target)!r}; allowed: links to files "
                f"inside {str(self.root)!r}"
            )


def _cut(images: Sequence[_Image], share: float, seed: int) -> tuple[list[_Image], list[_Image]]:
    """Cut a test set out of training images: each is drawn by itself, by its name."""
    parts: tuple[list[_Image], list[_Image]] = [], []
    for image in images:
        parts[is_within(share, seed, "test", image.name)].append(image)
    for part, use in zip(parts, ("train", "test"), strict=True):
        if not part:
            raise DatasetError(
                f"source.test_from_train: found {share:g} of {len(images)} images, which leaves "
                f"none to {use} on (each is drawn by itself, by a hash of its name); allowed: a "
                "share or a source.seed that leaves some of both, or a test_folder instead"
            )
    return parts


def _split(images: Sequence[_Image]) -> Split:
    states = [(image.name, image.path.stat()) for image in images]

    def read(start: int) -> Iterator[tuple[str, Content]]:
        yield from ((image.name, image.path) for image in images[start:])

    return Split(
        EncodedImages(read, [(name, each.st_size, each.st_mtime_ns) for name, each in states]),
        np.array([image.label for image in images], dtype=np.int64),
        lambda place: images[place].name,
    )
