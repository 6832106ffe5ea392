"""Labelled examples of a source, the encoding of labels as numbers, and random shares of examples."""

import math
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt

from dpsweep.base.errors import DpsweepError
from dpsweep.base.files import require_content
from dpsweep.base.formatting import count
from dpsweep.data.prepared import DatasetError, Labels, Split
from dpsweep.study.datasets import draw, is_within
from dpsweep.study.messages import brief, shorten

T = TypeVar("T")

_WHOLE_NUMBER = re.compile(r"0|-?[1-9][0-9]{0,18}")
# What a missing unit becomes as a text, and a whole number in a column with missing ones.
_NO_UNIT = re.compile(r"|nan|-?\d+\.0*")
# A number of 20 digits is no label, and Python reads none of more than 4,300.
_OTHER_NUMBER = re.compile(
    r"[-+]?(\d+\.\d*|\.\d+|\d+e[-+]?\d+|[1-9]\d{19,}|nan|inf)", re.IGNORECASE
)


@dataclass(frozen=True)
class LabelledData:
    """Both splits of a source, with labels in memory; inputs are read when they are needed."""

    train: Split
    test: Split
    classes: list[str]
    """names, in the order of the labels"""
    origin: str
    """description of the source, for users"""
    revision: str | None = None
    """commit or version of the source, if it has one"""
    skipped: Sequence[str] = ()
    """unreadable examples that were left out, each with the reason"""
    ignored: Sequence[str] = ()
    """files of the source that are not examples"""

    def __post_init__(self) -> None:
        """Refuse a single class, and units with rows in both splits: the test would measure what was learnt.

        Raises:
            DatasetError: there are some, or see `refuse_units`.
        """
        if len(self.classes) == 1:
            raise DatasetError(
                f"{self.origin}: found one class, {self.classes[0]}; allowed: two or more"
            )
        if self.train.units is None or self.test.units is None:
            return
        refuse_units(self.train.units, self.train.labels)
        both = np.intersect1d(self.train.units, self.test.units).tolist()
        if both:
            raise DatasetError(
                f"unit: found {count(len(both), 'unit')} in the training and in the test set, "
                f"{shorten(both)}; allowed: all rows of a unit in one of them, as source.test_from_train does"
            )


# -- labels ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class LabelColumn:
    """The labels of one split as the source has them."""

    table: str
    """name of the source, for messages"""
    name: str
    """name of the labels, such as column 'label'; empty for a file of labels only"""
    values: Sequence[Any]
    where: Callable[[int], str]
    """returns the name of the row at a position"""
    typed: bool = False
    """whether a text is a name even if it looks like a number"""

    def labels(self) -> list[int | str]:
        """Return the labels as whole numbers and names of classes.

        Outer spaces are removed and Unicode is normalised (NFC), so each class has one name. Whole numbers
        that are written as texts become numbers, because some formats have only texts.

        Raises:
            DatasetError: there is no row, or a label is neither a whole number nor a name.
        """
        if not self.values:
            raise DatasetError(f"{self.table}: found no row; allowed: one or more")
        found: list[int | str] = []
        for place, value in enumerate(self.values):
            label = str(value) if isinstance(value, bool) else value
            if isinstance(label, str):
                label = unicodedata.normalize("NFC", label.strip())
                if not self.typed and _WHOLE_NUMBER.fullmatch(label):
                    label = int(label)
            other = not self.typed and isinstance(label, str) and _OTHER_NUMBER.fullmatch(label)
            if label == "" or other or type(label) not in (int, str):
                self.refuse(place, value, "whole numbers from 0, or names of classes")
            found.append(label)
        return found

    def refuse(self, place: int, label: Any, allowed: str) -> NoReturn:
        """Raise an error that names the row of an invalid label.

        Raises:
            DatasetError: always.
        """
        raise DatasetError(
            f"{self.where(place)}{self.named}: found the label {shorten([repr(label)])}; "
            f"allowed: {allowed}"
        )

    @property
    def named(self) -> str:
        """The name of the labels as a suffix for messages."""
        return f", {self.name}" if self.name else ""


def encode_labels(
    train: LabelColumn, test: LabelColumn, names: Sequence[str] | None = None
) -> tuple[Labels, Labels, list[str]]:
    """Return training labels, test labels and the names of the classes.

    Whole numbers are not changed. Other labels are names of classes, numbered in alphabetical order.

    Args:
        train: labels of the training split.
        test: labels of the test split.
        names: of the classes, if the source lists them; then labels must be whole numbers.

    Raises:
        DatasetError: a label is missing or has another type, the numbers are not 0 to K - 1, or a test
            label is not among the training labels.
    """
    columns = [(train, train.labels()), (test, test.labels())]
    found = set(columns[0][1])
    numbers: dict[int | str, int]
    # A single number is a name, so that it is refused as the only class.
    if names is not None or (len(found) > 1 and all(isinstance(label, int) for label in found)):
        if names is None and found != set(range(len(found))):
            raise DatasetError(
                f"{train.table}{train.named}: found the labels {shorten(sorted(found, key=int))}; allowed: 0 "
                f"to {len(found) - 1} for {len(found)} classes, without a gap; an example without a label "
                "cannot be used. Number them anew, or write names of classes"
            )
        names = list(map(str, range(len(found)))) if names is None else names
        numbers = {number: number for number in range(len(names))}
        allowed = f"0 to {len(names) - 1}; an example without a label cannot be used"
    else:
        columns = [(column, [str(label) for label in labels]) for column, labels in columns]
        names = sorted(map(str, found))
        numbers = {name: number for number, name in enumerate(names)}
        allowed = f"the classes of the training examples: {shorten(names)}"
    encoded = []
    for column, labels in columns:
        for place, label in enumerate(labels):
            if label not in numbers:
                column.refuse(place, label, allowed)
        encoded.append(np.array([numbers[label] for label in labels], dtype=np.int64))
    return encoded[0], encoded[1], list(names)


# -- units -----------------------------------------------------------------------------------


def unit_names(values: Sequence[Any], where: Callable[[int], str]) -> npt.NDArray[np.str_]:
    """Return the names of units; whole numbers and texts are names.

    Args:
        values: of the column or array of units.
        where: returns the name of the row at a position.

    Raises:
        DatasetError: a value is missing or is something else.
    """
    for place, value in enumerate(values):
        missing = _NO_UNIT.fullmatch(str(value).strip())
        if not isinstance(value, int | str) or isinstance(value, bool) or missing:
            raise DatasetError(
                f"{where(place)}: found the unit {shorten([repr(value)])}; allowed: a whole number or a name "
                "of the person or thing that the row belongs to"
            )
    return np.array(list(map(unit_name, values)), dtype=np.str_)


def unit_name(value: int | str) -> str:
    """Return the name of a unit: without outer spaces, in one form of Unicode (NFC), as those of classes."""
    return unicodedata.normalize("NFC", str(value).strip())


def refuse_units(units: Sequence[str] | npt.NDArray[np.str_], labels: Labels) -> None:
    """Refuse training data in which all rows, or all rows of each class, are one unit.

    Args:
        units: the name of each row's unit, (rows,).
        labels: (rows,).

    Raises:
        DatasetError: there is one unit, or one of each class.
    """
    names, numbers = np.unique(np.asarray(units), return_inverse=True)
    classes, of_rows = np.unique(labels, return_inverse=True)
    pairs = len(set(zip(numbers.tolist(), of_rows.tolist(), strict=True)))
    found = shorten(names.tolist())
    if len(names) == 1:
        raise DatasetError(
            f"unit: found {found} in all {len(numbers)} rows; allowed: at least two units, because epsilon "
            "hides one among the others"
        )
    if len(names) == len(classes) == pairs:
        raise DatasetError(
            f"unit: found one unit of each class, {found}; allowed: what says whose row it is, not its label"
        )


# -- examples that cannot be used -------------------------------------------------------------


def leave_out(
    split: Split, wrong: Mapping[int, str], inputs: Any = None
) -> tuple[Split, list[str]]:
    """Return a split without some examples, and each of them with its reason.

    Args:
        split: of all examples.
        wrong: the reason for each position of an example to leave out.
        inputs: of the remaining examples; by default those at their places of an array.

    Raises:
        DatasetError: no example remains.
    """
    skipped = [f"{split.where(place)}: {reason}" for place, reason in wrong.items()]
    if len(wrong) == len(split.labels):
        raise DatasetError(
            f"{skipped[-1]}, and no row of its split can be used; allowed: one or more"
        )
    return split.without(list(wrong), inputs) if wrong else split, skipped


# -- shares ----------------------------------------------------------------------------------


def stratified_share(
    labels: Labels, name: Callable[[int], Sequence[str | int]], share: float, seed: int
) -> Labels:
    """Return the ascending indices of a random share of the examples of each class.

    From every class it keeps the examples with the smallest `draw`: ``share`` of them (rounded half up,
    at least one). So an additional example replaces at most one other example, of its own class.

    Args:
        labels: (examples,).
        name: returns the name of the example at an index.
        share: above 0, at most 1.
        seed: of the draws.
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


def usual_classes(groups: npt.NDArray[np.int64], labels: Labels) -> Labels:
    """Return the class that most examples of each group have, the first one of equally many.

    >>> usual_classes(np.array([0, 0, 0, 1]), np.array([2, 1, 2, 0]))
    array([2, 0])

    Args:
        groups: of the examples, shape (N,): numbers from 0 on, without a gap.
        labels: of the examples, shape (N,).
    """
    counts = np.zeros((int(groups.max()) + 1, int(labels.max()) + 1), np.int64)
    np.add.at(counts, (groups, labels), 1)
    usual: Labels = counts.argmax(axis=1)
    return usual


def cut_test_set(
    names: Sequence[str], labels: Labels, share: float, seed: int, by_class: bool = False
) -> tuple[list[int], list[int]]:
    """Split training examples into a training and a test set; each example is drawn by its name.

    A class whose examples are all drawn for testing keeps one for training.

    Args:
        names: of the examples; examples of the same name go to the same part.
        labels: of the examples.
        share: of the test set, above 0 and below 1.
        seed: of the draws.
        by_class: draw the share of the names of each class, which is that of most of a name's examples; see
            `stratified_share`. By default each name is drawn independently of the others.

    Returns:
        Positions of the training examples and of the test examples, ascending.

    Raises:
        DatasetError: a part is empty, or see `refuse_units`.
    """
    if by_class:
        refuse_units(names, labels)
        found, positions = np.unique(np.asarray(names), return_inverse=True)
        drawn = stratified_share(
            usual_classes(positions, labels), lambda place: ("test", str(found[place])), share, seed
        )
        tested = set(found[drawn].tolist())
    else:
        tested = {name for name in names if is_within(share, seed, "test", name)}
    untrained = set(labels.tolist()) - {
        label for name, label in zip(names, labels.tolist(), strict=True) if name not in tested
    }
    for each in untrained:
        of_class = {name for name, label in zip(names, labels, strict=True) if label == each}
        tested.discard(max(of_class, key=lambda name: (draw(seed, "test", name), name)))
    parts: tuple[list[int], list[int]] = [], []
    for place, name in enumerate(names):
        parts[name in tested].append(place)
    for part, use in zip(parts, ("train", "test"), strict=True):
        if not part:
            raise DatasetError(
                f"source.test_from_train: found {share:g} of {len(names)} examples of "
                f"{count(len(set(labels)), 'class', 'classes')}, which leaves none to {use} on (each is "
                "drawn by itself, by a hash of its name, and each class keeps one to train on); allowed: a "
                "share or a source.seed that leaves some of both, or test examples of their own instead"
            )
    return parts


# -- files ------------------------------------------------------------------------------------


@contextmanager
def reading(path: Path, part: str = "") -> Iterator[None]:
    """Replace errors of reading a file or folder by an error that names it.

    Args:
        path: of the file or folder.
        part: of it, for the message.

    Raises:
        DatasetError: instead of any error in the block.
    """
    try:
        yield
    except (DpsweepError, MemoryError):
        raise
    except FileNotFoundError:
        raise DatasetError(f"{path}: no such file; put it there") from None
    except Exception as error:  # readers raise many types for broken files
        hint = ". Save it as UTF-8" if isinstance(error, UnicodeDecodeError) else ""
        what = ", ".join(filter(None, [str(path), part]))
        raise DatasetError(f"{what}: cannot be read ({brief(error)}){hint}") from error


def read_file(path: Path, formats: Mapping[str, Callable[[Path], T]]) -> T:
    """Read a file in the format of its suffix.

    Args:
        path: of the file.
        formats: readers by suffix, such as ``.csv``.

    Raises:
        DatasetError: the file is missing, damaged, or of another format.
    """
    suffix = path.suffix.lower()
    if suffix not in formats:
        what = "folder" if path.is_dir() else f"{suffix or 'nameless'} file"
        raise DatasetError(f"{path}: found a {what}; allowed: {', '.join(formats)}")
    with reading(path):
        require_content(path)
        return formats[suffix](path)
