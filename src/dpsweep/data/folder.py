"""A folder of images: a folder for each class, inside one for each split."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dpsweep.data.images import Content, EncodedImages, LabelledImages
from dpsweep.data.prepared import DatasetError
from dpsweep.data.shares import stratified_share
from dpsweep.study.config import FolderSource


def load_folder(source: FolderSource) -> LabelledImages:
    """List the images of a folder; they are read and decoded later.

    Classes are the folders of the first training folder, in alphabetical order. What is in them,
    at any depth, is an image; hidden files are left out.

    Raises:
        DatasetError: a folder is missing or empty, the splits have other classes, or a symbolic
            link leads out of the folder.
    """
    root = Path(source.path).expanduser()
    if not root.is_dir():
        raise DatasetError(f"{root}: no such folder; put the images there, or correct source.path")
    classes = _classes(root, root / source.train_folders[0])
    files, labels = _images(root, source.train_folders, classes)
    kept = stratified_share(labels, source.train_share, source.seed)
    if source.test_from_train is None:
        test_files, test_labels = _images(root, [source.test_folder], classes)
        test = np.arange(len(test_labels))
    else:
        test_files, test_labels = files, labels
        test = kept[stratified_share(labels[kept], source.test_from_train, source.seed)]
        kept = np.setdiff1d(kept, test)
    return LabelledImages(
        train=_encoded(root, files, labels, kept),
        test=_encoded(root, test_files, test_labels, test),
        classes=classes,
        origin=f"folder {root.name}",
        revision=None,
    )


def _classes(root: Path, folder: Path) -> list[str]:
    _check_link(root, folder)
    if not folder.is_dir():
        raise DatasetError(f"{folder}: no such folder; it holds a folder of images for each class")
    return [entry.name for entry in _entries(root, folder) if entry.is_dir()]


def _images(
    root: Path, folders: Iterable[str], classes: list[str]
) -> tuple[list[Path], npt.NDArray[np.int64]]:
    """Return the files of some splits and their labels, class by class."""
    files: list[Path] = []
    labels: list[int] = []
    for folder in folders:
        found = _classes(root, root / folder)
        if unknown := sorted(set(found) - set(classes)):
            raise DatasetError(
                f"{root / folder}: found the classes {unknown}, which the first training folder "
                "has not"
            )
        for name in found:
            inside = list(_files(root, root / folder / name))
            files += inside
            labels += [classes.index(name)] * len(inside)
    if not files:
        raise DatasetError(f"{root}: no image in {', '.join(folders)}")
    return files, np.array(labels, dtype=np.int64)


def _files(root: Path, folder: Path) -> Iterator[Path]:
    """Yield the files of a folder and of those inside it, sorted."""
    for entry in _entries(root, folder):
        if entry.is_dir():
            yield from _files(root, entry)
        else:
            yield entry


def _entries(root: Path, folder: Path) -> list[Path]:
    """Return what is in a folder, sorted, without hidden entries."""
    entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    for entry in entries:
        _check_link(root, entry)
    return entries


def _check_link(root: Path, entry: Path) -> None:
    """Refuse links that leave the folder, and links to folders, which can form a circle."""
    inside = entry.resolve().is_relative_to(root.resolve())
    if entry.is_symlink() and not (inside and entry.is_file()):
        raise DatasetError(
            f"{str(entry)!r}: a symbolic link to {str(entry.resolve())!r}; allowed: links to files "
            f"inside {str(root)!r}"
        )


def _encoded(
    root: Path, files: list[Path], labels: npt.NDArray[np.int64], kept: npt.NDArray[np.int64]
) -> EncodedImages:
    chosen = [files[place] for place in kept]
    names = [str(path.relative_to(root)) for path in chosen]
    states = [path.stat() for path in chosen]

    def read(start: int) -> Iterator[tuple[str, Content]]:
        yield from zip(names[start:], chosen[start:], strict=True)

    return EncodedImages(
        labels=labels[kept],
        read=read,
        identity=[
            (name, state.st_size, state.st_mtime_ns)
            for name, state in zip(names, states, strict=True)
        ],
    )
