"""Folders of images: a folder for each split, with a folder for each class inside."""

import logging
import os
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dpsweep.base.litter import is_litter
from dpsweep.config import FolderSource
from dpsweep.config.messages import shorten
from dpsweep.data.examples import LabelledData, Split, cut_test_set, stratified_share
from dpsweep.data.images import EncodedImages
from dpsweep.data.prepared import DatasetError
from dpsweep.data.splits import (
    images_and_masks,
    is_numbered,
    masks_of,
    may_be_class,
    split_uses,
    without_class,
)

_TABLES = frozenset({".csv", ".tsv", ".jsonl", ".json", ".txt", ".xlsx", ".parquet"})
"""Suffixes of files that may have the labels of images."""

log = logging.getLogger(__name__)


def load_folder(source: FolderSource) -> LabelledData:
    """List the images of a folder; they are read and decoded later.

    Classes are the folders of the first training folder, in alphabetical order. All files in them, at any
    depth, are images, except litter (`dpsweep.base.litter`).

    Raises:
        DatasetError: a folder is missing or empty, the folders of classes look like splits, the splits have
            different classes, a symbolic link leads out of the folder, or a share is empty.
    """
    root = Path(source.path)
    if not root.is_dir():
        raise DatasetError(f"{root}: no such folder; put the images there, or correct source.path")
    folder = _Folder(root)
    first = root / source.train_folders[0]
    inside = folder.classes(first)
    why = None if source.folders_are_classes else next(_other_layouts(inside), None)
    if why is not None:
        raise DatasetError(
            f"{first}: {why}; allowed: a folder of images for each class. Correct source.path, "
            "source.train_folders or source.test_folder, or, if these folders are the classes, add "
            "folders_are_classes: true"
        )
    classes = list(inside)
    images = folder.images(source.train_folders, classes)
    if masks := masks_of(image.name for image in images):
        raise DatasetError(
            f"{first}: found {shorten(masks)} beside images of the same names: masks, not examples; allowed: "
            "images alone. Move the masks to a folder of their own, outside of this one"
        )
    labels = np.array([each.label for each in images])
    kept = stratified_share(
        labels, lambda place: [images[place].name], source.train_share, source.seed
    )
    train = [images[place] for place in kept]
    if source.test_from_train is None:
        test = folder.images([source.test_folder], classes)
    else:
        names = [image.name for image in train]
        train, test = (
            [train[place] for place in places]
            for places in cut_test_set(names, labels[kept], source.test_from_train, source.seed)
        )
    if ignored := sorted(folder.ignored):
        log.warning(
            "%s: ignored %d files that are not images, or not in a class: %s",
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
    """Path relative to the root; for messages and for drawing shares."""
    label: int


@dataclass
class _Folder:
    root: Path
    ignored: set[str] = field(default_factory=set)
    """Names of files that are not images, or not in a class."""

    def classes(self, folder: Path) -> dict[str, Path]:
        """Return the folders of a split by class, sorted by the name of the class."""
        if folder != self.root:
            self._check(folder)
        if not folder.is_dir():
            raise DatasetError(
                f"{folder}: no such folder; it holds a folder of images for each class"
            )
        found: dict[str, Path] = {}
        for entry in self._entries(self._unwrapped(folder)):
            # One class may be written in two forms of Unicode (macOS uses NFD), or with outer spaces.
            name = unicodedata.normalize("NFC", entry.name.strip())
            if not entry.is_dir():
                self._ignore(entry)
            elif name in found:
                raise DatasetError(
                    f"{folder}: two folders of the class {name!r}, in different forms of Unicode or with "
                    "spaces around; merge them"
                )
            else:
                found[name] = entry
        if not found:
            tables = [each.name for each in sorted(folder.iterdir()) if each.suffix in _TABLES]
            raise DatasetError(
                f"{folder}: found no folder in it; allowed: one of images for each class"
                + (f". {shorten(tables)} is not read; sort the images by it" if tables else "")
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

    def _unwrapped(self, folder: Path) -> Path:
        """Return the inner folder of an archive that was unpacked into a folder of its own name."""
        names, more = folders_in(folder)
        return folder / folder.name if names == [folder.name] and not more else folder

    def _files(self, folder: Path) -> Iterator[Path]:
        """Yield the files of a folder and of its subfolders, sorted."""
        for entry in self._entries(folder):
            if entry.is_dir():
                yield from self._files(entry)
            elif entry.is_file():
                yield entry
            else:
                raise DatasetError(f"{entry}: neither a file nor a folder; remove it")

    def _entries(self, folder: Path) -> Iterator[Path]:
        """Yield the entries of a folder, sorted, without litter."""
        for entry in sorted(folder.iterdir()):
            if entry.name.startswith(".") and entry.suffix == ".icloud":
                raise DatasetError(
                    f"{entry}: an image that iCloud has not loaded onto this machine; download it"
                )
            if is_litter(entry.name, entry.is_dir()):
                self._ignore(entry)
            else:
                self._check(entry)
                yield entry

    def _ignore(self, entry: Path) -> None:
        name = os.fsencode(entry.relative_to(self.root))
        self.ignored.add(name.decode(errors="replace"))

    def _check(self, entry: Path) -> None:
        """Refuse names that are not UTF-8, links to places outside the root, and links to folders."""
        try:
            entry.name.encode()
        except UnicodeEncodeError:
            raise DatasetError(
                f"{str(entry)!r}: the name is not valid UTF-8; rename it (convmv can, for many files)"
            ) from None
        if not entry.is_symlink():
            return
        try:
            target = entry.resolve(strict=True)
        except (OSError, RuntimeError):  # a missing target, or a loop
            raise DatasetError(
                f"{str(entry)!r}: a symbolic link that leads nowhere; remove it"
            ) from None
        if not (target.is_relative_to(self.root.resolve()) and target.is_file()):
            raise DatasetError(
                f"{str(entry)!r}: a symbolic link to {str(target)!r}; allowed: links to files "
                f"inside {str(self.root)!r}"
            )


def _other_layouts(classes: Mapping[str, Path]) -> Iterator[str]:
    """Yield the reasons why the folders are probably not classes."""
    uses = split_uses(classes)
    if len(set(uses.values())) > 1 or not all(map(may_be_class, uses)):
        yield f"found {_folders(uses)}: words for splits"
    if rest := without_class(classes):
        yield f"found {_folders(rest)}: words for examples without a class"
    if parts := images_and_masks(classes):
        yield f"found {_folders(parts)}: words for parts of an example"
    inside = {name: _folders_inside(path) for name, path in classes.items()}
    for name, inner in inside.items():
        if len(set((uses := split_uses(inner)).values())) > 1:
            yield f"found {_folders(uses)} in {name}: words for splits"
        if again := [each for each in inner if each in classes and each != name]:
            yield f"found {_folders(again)} in {name} too, with the names of other classes"
        if len(classes) == 1 and len(inner) > 1:
            yield f"found the folder {name} alone, which holds {_folders(inner)}"
    # A class may have a folder for each year.
    counts = Counter(each for inner in inside.values() for each in inner if not is_numbered(each))
    if len(shared := [each for each, count in counts.items() if count > 1]) > 1:
        holders = [name for name, inner in inside.items() if set(shared) & set(inner)]
        yield f"found {_folders(shared)} in each of {shorten(holders)}"


def _folders(names: Collection[str]) -> str:
    return f"the folder{'s' * (len(names) > 1)} {shorten(names)}"


def folders_in(folder: Path) -> tuple[list[str], bool]:
    """Return the names of the folders in a folder, sorted, and whether it holds anything else."""
    with os.scandir(folder) as entries:  # links to folders are refused when they are read
        kinds = {each.name: each.is_dir(follow_symlinks=False) for each in entries}
    found = sorted(name for name, is_folder in kinds.items() if not is_litter(name, is_folder))
    names = [name for name in found if kinds[name]]
    return names, len(names) < len(found)


def _folders_inside(folder: Path) -> list[str]:
    """Return the names of the folders in a folder; skip levels that contain only one folder."""
    names, more = folders_in(folder)
    if len(names) == 1 and not more:
        names = _folders_inside(folder / names[0]) or names
    return [unicodedata.normalize("NFC", name) for name in names]


def _split(images: Sequence[_Image]) -> Split:
    encoded = EncodedImages(lambda start: ((each.name, each.path) for each in images[start:]))
    labels = np.array([image.label for image in images], dtype=np.int64)
    return Split(encoded, labels, lambda place: images[place].name)
