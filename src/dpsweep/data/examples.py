"""Labelled examples as a source gives them, how their labels become numbers, and shares of them."""

import math
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from dpsweep.config.messages import shorten
from dpsweep.config.shares import draw, is_within
from dpsweep.data.prepared import DatasetError

Labels = npt.NDArray[np.int64]

_WHOLE_NUMBER = re.compile(r"0|-?[1-9][0-9]*")
_OTHER_NUMBER = re.compile(r"[-+]?(\d+\.\d*|\.\d+|\d+e[-+]?\d+|nan|inf)", re.IGNORECASE)


@dataclass(frozen=True)
class Split:
    """Inputs and labels of one split, in order."""

    inputs: Any
    """From a source: texts (iterable as often as needed), `dpsweep.data.images.EncodedImages`, or rows as
    a network reads them. `write_prepared` takes rows, (examples, *shape): an array, blocks of rows
    (iterated once), or a .npy file, which is moved."""
    labels: Labels
    """(examples,)"""
    where: Callable[[int], str] = "row {}".format
    """what the example at a place is called, for messages"""

    def only(self, places: Sequence[int] | Labels, inputs: Any) -> "Split":
        """Take some examples.

        Args:
            places: of those, ascending.
            inputs: of those.
        """
        kept = np.asarray(places, dtype=np.int64)
        return Split(inputs, self.labels[kept], lambda row: self.where(int(kept[row])))

    def without(self, places: Sequence[int], inputs: Any) -> "Split":
        """Leave out some examples.

        Args:
            places: of those.
            inputs: of the others.
        """
        return self.only(np.delete(np.arange(len(self.labels)), list(places)), inputs)


@dataclass(frozen=True)
class LabelledData:
    """Both splits of a source; labels are known, inputs are read when they are needed."""

    train: Split
    test: Split
    classes: list[str]
    """names, in the order of the labels"""
    origin: str
    """where the examples are from, for people"""
    revision: str | None = None
    """the commit or version that was read, where there is one"""
    skipped: Sequence[str] = ()
    """examples that cannot be read and were left out, each with the reason"""
    ignored: Sequence[str] = ()
    """files that were found and are no examples"""


# -- labels ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class LabelColumn:
    """The labels of one split as they were found."""

    table: str
    """where they were found, for messages"""
    name: str
    """what they are called there, as column 'label'; empty for a file of labels alone"""
    values: Sequence[Any]
    where: Callable[[int], str]
    """what the row at a place is called"""

    def labels(self) -> list[int | str]:
        """Return whole numbers and names of classes.

        Names lose outer spaces and take one form of Unicode, so that one class has one name.

        Raises:
            DatasetError: there is no row, or a label is missing or neither of the two.
        """
        if not self.values:
            raise DatasetError(f"{self.table}: found no row; allowed: at least one example")
        found: list[int | str] = []
        for place, value in enumerate(self.values):
            label = str(value) if isinstance(value, bool) else value
            if isinstance(label, str):
                label = unicodedata.normalize("NFC", label.strip())
            if label == "" or type(label) not in (int, str):
                self.refuse(place, value, "whole numbers from 0, or names of classes")
            found.append(label)
        return found

    def refuse(self, place: int, label: Any, allowed: str) -> NoReturn:
        """Name the row of a label that cannot be used.

        Raises:
            DatasetError: always.
        """
        raise DatasetError(
            f"{self.where(place)}{self.named}: found the label {shorten([repr(label)])}; "
            f"allowed: {allowed}"
        )

    @property
    def named(self) -> str:
        """Return the name behind a place, for messages."""
        return f", {self.name}" if self.name else ""


def encode_labels(
    train: LabelColumn, test: LabelColumn, names: Sequence[str] | None = None
) -> tuple[Labels, Labels, list[str]]:
    """Return training labels, test labels and the names of the classes.

    Whole numbers stay as they are; other labels are names of classes, numbered in alphabetical order.

    Args:
        train: the labels of the training split.
        test: of the test split.
        names: of the classes, where the source knows them; labels are then whole numbers.

    Raises:
        DatasetError: a label that is missing or of another kind, numbers that do not count from 0,
            or a test label that training has not.
    """
    columns = [(train, train.labels()), (test, test.labels())]
    numbers: dict[int | str, int]
    if names is not None or all(isinstance(label, int) for label in columns[0][1]):
        if names is None:
            names = list(map(str, range(_count_classes(train, columns[0][1]))))
        numbers = {number: number for number in range(len(names))}
        allowed = f"0 to {len(names) - 1}; an example without a label cannot be used"
    else:
        columns = [(column, [str(label) for label in labels]) for column, labels in columns]
        names = sorted({str(label) for label in columns[0][1]})
        numbers = {name: number for number, name in enumerate(names)}
        allowed = f"the classes of the training examples: {shorten(names)}"
    encoded = []
    for column, labels in columns:
        for place, label in enumerate(labels):
            if label not in numbers:
                column.refuse(place, label, allowed)
        encoded.append(np.array([numbers[label] for label in labels], dtype=np.int64))
    return encoded[0], encoded[1], list(names)


def same_kind(*columns: LabelColumn) -> Iterator[LabelColumn]:
    """Read labels alike in files of all kinds: whole numbers and truth values may be text in some.

    Raises:
        DatasetError: a label is another kind of number.
    """
    for column in columns:
        for place, label in enumerate(column.values):
            if isinstance(label, str) and _OTHER_NUMBER.fullmatch(label.strip()):
                column.refuse(place, label, "whole numbers from 0, or names of classes")
    truth = any(isinstance(label, bool) for column in columns for label in column.values)
    numbers = all(map(_is_whole, columns[0].values))
    for column in columns:
        yield replace(column, values=[_plain(each, numbers, truth) for each in column.values])


def _plain(label: Any, number: bool, truth: bool) -> Any:
    if number and _is_whole(label):
        return int(label)
    if truth and isinstance(label, str) and label.strip().lower() in ("true", "false"):
        return label.strip().capitalize()
    return label


def _is_whole(label: Any) -> bool:
    if isinstance(label, str):
        return _WHOLE_NUMBER.fullmatch(label.strip()) is not None
    return type(label) is int


def _count_classes(column: LabelColumn, labels: Sequence[Any]) -> int:
    """Return K for labels that are 0 to K - 1, all of them."""
    where = f"{column.table}{column.named}"
    found = sorted(set(labels))
    if found[0] < 0:
        column.refuse(
            labels.index(found[0]), found[0], "from 0; an example without a label cannot be used"
        )
    if found[0] > 0 and found[-1] - found[0] == len(found) - 1:
        raise DatasetError(
            f"{where}: labels start at {found[0]}: found {found[0]} to {found[-1]}; allowed: 0 to "
            f"{len(found) - 1}. Subtract {found[0]}, or write names of classes"
        )
    if found[-1] != len(found) - 1:
        raise DatasetError(
            f"{where}: found the labels {shorten(found)}; allowed: 0 to {len(found) - 1} for "
            f"{len(found)} classes, without a gap. Number them anew, or write names of classes"
        )
    return len(found)


# -- shares ----------------------------------------------------------------------------------


def stratified_share(
    labels: Labels, name: Callable[[int], Sequence[str | int]], share: float, seed: int
) -> Labels:
    """Return the indices of a share of the examples, ascending.

    Of every class it is the examples with the smallest `draw`, ``share`` of them (rounded half up,
    at least one). So one more example moves at most one other: it may take the place of another one
    of its class.

    Args:
        labels: (examples,).
        name: what the example at an index is called.
        share: above 0, at most 1.
        seed: another one is another part.
    """
    if share == 1:
        return np.arange(len(labels))
    drawn = np.array([draw(seed, *name(place)) for place in range(len(labels))], np.uint64)
    kept = []
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        size = max(1, math.floor(share * len(members) + 0.5))
        kept.append(members[np.argsort(drawn[members], kind="stable")[:size]])
    return np.sort(np.concatenate(kept)) if kept else np.arange(0)


def cut_test_set(names: Sequence[str], share: float, seed: int) -> tuple[list[int], list[int]]:
    """Cut a test set out of training examples: each is drawn by itself, by its name.

    Args:
        names: of the examples; those of the same name stay together.
        share: for testing, above 0 and below 1.
        seed: another one is another part.

    Returns:
        Places to train on, and to test on, ascending.

    Raises:
        DatasetError: one of them is empty.
    """
    parts: tuple[list[int], list[int]] = [], []
    for place, name in enumerate(names):
        parts[is_within(share, seed, "test", name)].append(place)
    for part, use in zip(parts, ("train", "test"), strict=True):
        if not part:
            raise DatasetError(
                f"source.test_from_train: found {share:g} of {len(names)} examples, which leaves "
                f"none to {use} on (each is drawn by itself, by a hash of its name); allowed: a "
                "share or a source.seed that leaves some of both, or test examples of their own instead"
            )
    return parts
