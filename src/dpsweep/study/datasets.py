"""The section `datasets`: where labelled examples come from, and which part of them is drawn.

Parts are drawn by a hash of each example's own name. With one random generator for all examples, one more
example would change the draws of all others. docs/privacy.md explains what this means for the guarantee.
"""

import hashlib
import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, PositiveInt, model_validator

from dpsweep.base.files import canonical_json
from dpsweep.study import section
from dpsweep.study.messages import CHARACTERS_PATTERN

KindName = Literal["image", "text", "embedding"]
UnitKey = Annotated[str, Field(min_length=1)]
ROWS_PER_UNIT = 4
"""How many rows of a sampled unit a step reads at most."""


@dataclass(frozen=True)
class Kind:
    """The storage format of a kind of data, and the keys that its datasets need."""

    types: tuple[str, ...]
    """NumPy types of stored numbers"""
    axes: tuple[str, ...]
    """axes of a stored input"""
    same: str
    """the parts of an input that are compared to find duplicates"""
    keys: Mapping[str, str]
    """required keys of the section, with the allowed values"""


KINDS: Mapping[str, Kind] = {
    "image": Kind(
        ("uint8",),
        ("height", "width", "channels"),
        "pixels",
        {"image_size": "height and width of images in pixels"},
    ),
    "text": Kind(
        ("int32",),
        ("length",),
        "tokens",
        {
            "max_length": "the number of tokens to keep of a text",
            "tokenizer": "a backbone that reads text",
        },
    ),
    "embedding": Kind(
        ("float32", "float16"),
        ("dimension",),
        "numbers",
        {"dimension": "how many numbers an embedding has"},
    ),
}


def protected_in_words(unit: str | None, rows_per_unit: int | None, kind: str) -> str:
    """Return what epsilon protects: one example, or a unit with all of its rows.

    >>> protected_in_words("patient", 4, "image")
    'one patient: all of their images, at most 4 of them in a step'
    >>> protected_in_words("folder", 4, "text")
    'one unit (folder): all of its texts, at most 4 of them in a step'

    Args:
        unit: the key ``unit`` of a dataset; None or ``row``: each row is a unit.
        rows_per_unit: the most rows of a unit in a step.
        kind: of the data: image, text or embedding.
    """
    if unit in (None, "row"):
        return "one example"
    word = unit != "folder" and re.fullmatch(r"[A-Za-z][\w -]*", unit)
    what = f"one {unit}: all of their" if word else f"one unit ({unit}): all of its"
    return f"{what} {kind}s, at most {rows_per_unit} of them in a step"


class SourceSection(section.Section):
    """Base of all sources."""

    holds: ClassVar[tuple[KindName, ...]] = ("image",)
    """kinds of datasets; the first is the default"""
    grey: ClassVar[bool] = False
    """whether images have one channel; others have three"""

    @property
    def columns(self) -> dict[str, str | None]:
        """The columns or arrays of the inputs' file, by key."""
        # Labels of a separate file may have any name.
        apart = getattr(self, "train_labels", None) is not None
        keys = ["input_column"] if apart else ["input_column", "label_column"]
        return {key: getattr(self, key, None) for key in keys}

    @model_validator(mode="after")
    def _columns_are_disjoint(self) -> Self:
        inputs, labels = self.columns["input_column"], self.columns.get("label_column")
        if inputs is not None:
            section.require_disjoint("input_column", [inputs], "label_column", labels)
        return self


class SampledSource(SourceSection):
    """Base of sources of which a share is drawn."""

    train_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """stratified share of the training set"""
    seed: int = 0
    """of the split, the shares and the transformations"""


class DigitsSource(SampledSource):
    """The 1,797 handwritten digits (8 x 8, grey) that come with scikit-learn, or some of them."""

    grey: ClassVar[bool] = True
    kind: Literal["sklearn-digits"]
    digits: Annotated[
        list[Annotated[int, Field(ge=0, le=9)]],
        Field(min_length=2),
        AfterValidator(section.strictly_increasing),
    ] = list(range(10))
    """the digits that are classes"""
    test_share: Annotated[float, Field(gt=0, lt=1)] = 0.25
    """stratified share of the test set"""
    imbalance: Annotated[float, Field(ge=1)] = 1.0
    """ratio of training examples of the first class to those of the last; sizes between fall geometrically"""


class GlyphsSource(SourceSection):
    """Digits and letters rendered from the fonts that come with matplotlib, randomly transformed."""

    grey: ClassVar[bool] = True
    kind: Literal["glyphs"]
    characters: Annotated[
        str,
        Field(pattern=CHARACTERS_PATTERN, min_length=2),
        AfterValidator(section.each_once),
    ] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    """one class each"""
    train_per_class: PositiveInt = 300
    """training examples of a class"""
    test_per_class: PositiveInt = 30
    """test examples of a class"""
    seed: int = 0
    """of the split, the shares and the transformations"""


class IdxSource(SampledSource):
    """A folder with the four IDX files of MNIST or a similar dataset, plain or compressed (``.gz``)."""

    grey: ClassVar[bool] = True
    kind: Literal["idx"]
    path: section.LocalPath
    """of the folder"""

    def local_folders(self) -> dict[str, str]:
        """Return the folder of the files."""
        return {"path": self.path}


class HubSource(SampledSource):
    """A Hugging Face dataset at a pinned revision, or a local folder with the same parquet layout."""

    holds: ClassVar[tuple[KindName, ...]] = ("image", "text")
    kind: Literal["hub"]
    id: section.HubId
    """owner/name on the Hugging Face hub"""
    revision: section.Commit | None = None
    """a commit"""
    path: section.LocalPath | None = None
    """a local copy, used instead of the hub"""
    configuration: str | None = None
    """for a repository with several configurations"""
    train_splits: Annotated[list[str], Field(min_length=1)] = ["train"]
    """are merged"""
    test_split: str = "test"
    """never trained on"""
    input_column: str = "image"
    """column of images or texts"""
    label_column: str = "label"
    """column of labels"""
    # Excluded by default: studies without it keep their prepared data.
    merge_classes: Annotated[
        dict[str, Annotated[list[str], Field(min_length=1)]] | None,
        Field(exclude_if=lambda merged: merged is None),
    ] = None
    """coarser classes by name, each with the names of the classes that it replaces; every class once"""
    test_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """stratified share of the test set"""

    @model_validator(mode="after")
    def _splits_are_disjoint(self) -> Self:
        section.require_disjoint("train_splits", self.train_splits, "test_split", self.test_split)
        return self

    def local_folders(self) -> dict[str, str]:
        """Return the copy, if there is one."""
        return {} if self.path is None else {"path": self.path}


class FolderSource(SampledSource):
    """A folder of images, ``<path>/<split>/<class>/<image>``; hidden files are ignored."""

    kind: Literal["folder"]
    path: section.LocalPath
    """of the folder"""
    train_folders: Annotated[list[section.FolderName], Field(min_length=1)] = ["train"]
    """are merged; [.] is the folder itself"""
    test_folder: section.FolderName = "test"
    """never trained on"""
    test_from_train: Annotated[float | None, Field(gt=0, lt=1)] = None
    """share of the training images that becomes the test set if there is no test folder; each image is
    drawn independently"""

    @model_validator(mode="after")
    def _folders_are_disjoint(self) -> Self:
        test = self.test_folder if self.test_from_train is None else None
        if test is not None and "." in self.train_folders:
            raise ValueError(
                f"train_folders: found . with the test_folder {test}, which would be a class; allowed: "
                "the names of folders, or . with test_from_train"
            )
        section.require_disjoint("train_folders", self.train_folders, "test_folder", test)
        return self

    def local_folders(self) -> dict[str, str]:
        """Return the folder of images."""
        return {"path": self.path}


class TrainAndTest(SourceSection):
    """Local files for training and testing, or one file that is split into both."""

    train: section.LocalPath
    """a file"""
    test: section.LocalPath | None = None
    """a file of the same form"""
    # Excluded by default: studies without these keep their prepared data.
    test_from_train: Annotated[
        float | None, Field(gt=0, lt=1, exclude_if=lambda share: share is None)
    ] = None
    """share of the rows of the single file that becomes the test set; equal rows stay together"""
    seed: Annotated[int, Field(exclude_if=lambda seed: seed == 0)] = 0
    """of the split, the shares and the transformations"""

    @model_validator(mode="after")
    def _one_test_set(self) -> Self:
        section.require_disjoint("train", [self.train], "test", self.test)
        if (self.test is None) == (self.test_from_train is None):
            raise ValueError(
                f"test: found {'neither' if self.test is None else 'both'} it and test_from_train; allowed: "
                "one of them, a file or a share of the rows of train"
            )
        return self

    def local_files(self) -> dict[str, str]:
        """Return the files."""
        keys = ("train", "test", "train_labels", "test_labels")
        return {key: path for key in keys if (path := getattr(self, key, None)) is not None}


class FilesSource(TrainAndTest):
    """One or two local tables of texts, for training and testing: CSV, TSV, lines of JSON or parquet."""

    holds: ClassVar[tuple[KindName, ...]] = ("text",)
    kind: Literal["files"]
    input_column: str = "text"
    """column of texts"""
    label_column: str = "label"
    """column of labels"""


class ArraysSource(TrainAndTest):
    """One or two local files of embeddings and their labels: .npz, .npy, safetensors or parquet."""

    holds: ClassVar[tuple[KindName, ...]] = ("embedding",)
    kind: Literal["arrays"]
    train_labels: section.LocalPath | None = None
    """a separate file of labels, which .npy needs"""
    test_labels: section.LocalPath | None = None
    """likewise, for testing"""
    input_column: str | None = None
    """the array, tensor or column of embeddings; by default one with a usual name (embeddings, x), or the
    only one"""
    label_column: str | None = None
    """likewise, of labels (labels, y)"""

    @model_validator(mode="after")
    def _labels_of_both(self) -> Self:
        files = [self.train, *filter(None, [self.train_labels])]
        section.require_disjoint("train", files, "test_labels", self.test_labels)
        both = self.test is not None and self.train_labels is not None
        if both != (self.test_labels is not None):
            raise ValueError(
                f"test_labels: found {self.test_labels or 'nothing'} with test {self.test} and train_labels "
                f"{self.train_labels}; allowed: a file of labels for each file, or for none"
            )
        return self


class DocstringsSource(SourceSection):
    """Docstrings of installed Python packages; a class is a module.

    The packages are read and never run. Their names are removed from the texts.
    """

    holds: ClassVar[tuple[KindName, ...]] = ("text",)
    kind: Literal["docstrings"]
    modules: Annotated[
        list[section.ModuleName], Field(min_length=2), AfterValidator(section.each_once)
    ]
    """packages or modules, with all their submodules"""
    train_per_class: PositiveInt
    """training examples of a class"""
    test_per_class: PositiveInt
    """test examples of a class"""
    seed: int = 0
    """of the split, the shares and the transformations"""


Origins = list[list[str]]
"""Places that examples come from: each a kind, and the parts of a path or name."""


def origins(source: "Source") -> Origins:
    """Return where a source's examples come from; shares and subsets of them do not matter.

    Paths are absolute, so that they can be compared with those of other studies.
    """
    local = (source.local_folders() | source.local_files()).values()
    found = [["path", *Path(path).resolve().parts] for path in local]
    match source:
        case HubSource():
            found.append(["hub", source.id])
        case DocstringsSource():
            found += [["module", *module.split(".")] for module in source.modules]
    return found or [[source.kind]]


def overlap(one: Origins, other: Origins) -> bool:
    """Return whether two sources may have examples in common, such as a folder and one inside it."""
    return any(
        all(mine == theirs for mine, theirs in zip(first, second, strict=False))
        for first in one
        for second in other
    )


def shares_examples(one: "Source", other: "Source") -> bool:
    """Return whether two sources may have examples in common, ignoring shares and subsets."""
    return overlap(origins(one), origins(other))


def related_datasets(datasets: Mapping[str, "Dataset"]) -> list[tuple[str, str]]:
    """Return the pairs of datasets, by name, that may share examples."""
    return [
        (one, other)
        for one, other in itertools.combinations(datasets, 2)
        if shares_examples(datasets[one].source, datasets[other].source)
    ]


Source = Annotated[
    DigitsSource
    | GlyphsSource
    | IdxSource
    | HubSource
    | FolderSource
    | FilesSource
    | ArraysSource
    | DocstringsSource,
    Field(discriminator="kind"),
]


def _kind_of(dataset: dict[str, Any]) -> KindName:
    source: SourceSection = dataset["source"]
    return source.holds[0]


class Dataset(section.Section):
    """A labelled dataset, and the sizes that it must have once it is prepared."""

    title: section.Title
    """in figures and tables"""
    source: Source
    """where the examples come from"""
    kind: Annotated[KindName, Field(default_factory=_kind_of)]
    """by default the kind that the source contains; image for sources that can contain several kinds"""
    classes: Annotated[int, Field(ge=2)]
    """number of classes"""
    train_size: PositiveInt
    """N, after merging and subsetting"""
    test_size: PositiveInt
    """examples of the test set"""
    description: str = ""
    """a sentence for the table of datasets"""
    image_size: PositiveInt | None = None
    """height and width, pixels"""
    interpolation: Literal["bicubic", "bilinear", "nearest"] = "bicubic"
    """how images are resized"""
    crop: Annotated[float | None, Field(gt=0, le=1)] = None
    """by default images are resized to a square; a crop resizes the shorter side to image_size /
    crop and keeps the middle (hub and folder only)"""
    corrupt: Literal["refuse", "skip"] = "refuse"
    """for unreadable images, empty texts and embeddings that are not finite; sizes exclude skipped ones"""
    # Excluded by default: studies without it keep their prepared data.
    duplicates: Annotated[
        Literal["warn", "refuse"], Field(exclude_if=lambda value: value == "warn")
    ] = "warn"
    """for test examples that have the same pixels, tokens or numbers as a training example"""
    unit: Annotated[UnitKey | None, Field(exclude_if=lambda value: value is None)] = None
    """what epsilon protects, with all of its rows: a column or an array (files, hub, arrays), for a
    folder of images a regular expression with one group for a file's path in its class, or ``folder`` for
    a folder of each unit in a class; ``row``: each row is a unit"""
    train_units: Annotated[PositiveInt | None, Field(exclude_if=lambda value: value is None)] = None
    """N if there are units of several rows: the number of them in the training set"""
    rows_per_unit: Annotated[
        PositiveInt, Field(exclude_if=lambda value: value == ROWS_PER_UNIT)
    ] = ROWS_PER_UNIT
    """the most rows of a sampled unit in a step"""
    private: Annotated[bool, Field(exclude_if=lambda value: not value)] = False
    """whether its sweeps need ``--unaccounted``, because no epsilon covers all of their trials"""
    train_counts: PositiveInt | list[PositiveInt] | None = None
    """training examples of every class, or a list in the order of classes"""
    tokenizer: str | None = None
    """a backbone's name (text only)"""
    max_length: PositiveInt | None = None
    """tokens (text only)"""
    # Excluded by default: studies without it keep their prepared data.
    dimension: Annotated[PositiveInt | None, Field(exclude_if=lambda value: value is None)] = None
    """d, the length of an embedding (embedding only)"""

    @model_validator(mode="after")
    def _units_are_counted(self) -> Self:
        if self.has_units and not isinstance(
            self.source, FilesSource | ArraysSource | FolderSource | HubSource
        ):
            raise ValueError(
                f"unit: found {self.unit} with the source {self.source.kind}; allowed: with files, arrays, "
                "folder and hub"
            )
        for key, column in self.source.columns.items():
            if self.unit is not None and self.unit == column:
                raise ValueError(
                    f"unit: found {self.unit}, which is the {key}; allowed: another column, which says whose "
                    "row it is"
                )
        if self.has_units and getattr(self.source, "train_share", 1) < 1:
            raise ValueError(
                f"source.train_share: found {self.source.train_share} with unit: {self.unit}; allowed: 1, "  # type: ignore[union-attr]
                "because a share of a class depends on the rows of several units"
            )
        if self.has_units == (self.train_units is None):
            raise ValueError(
                f"train_units: found {self.train_units} with unit: {self.unit}; allowed: the number of units "
                "in the training set, together with a unit of several rows"
            )
        return self

    @property
    def has_units(self) -> bool:
        """Whether epsilon protects units of several rows."""
        return self.unit not in (None, "row")

    @property
    def protected(self) -> int:
        """N of the whole training set: its units, or its rows."""
        return self.train_units or self.train_size

    @property
    def protects(self) -> str:
        """What epsilon protects, in words."""
        return protected_in_words(self.unit, self.rows_per_unit, self.kind)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of a stored input, with 1 for a missing key."""
        match self.kind:
            case "image":
                return (self.image_size or 1, self.image_size or 1, 1 if self.source.grey else 3)
            case "text":
                return (self.max_length or 1,)
            case "embedding":
                return (self.dimension or 1,)


_NUMBERS = 2**64


def draw(*name: str | int) -> int:
    """Return a pseudorandom number from 0 to 2^64 - 1 that depends only on a name.

    Args:
        name: of the purpose and of the example; other purposes give other numbers.
    """
    digest = hashlib.sha256(canonical_json(name).encode()).digest()
    return int.from_bytes(digest[:8], "big")


def is_within(share: float, *name: str | int) -> bool:
    """Return whether an example belongs to a random share of all, independently of other examples.

    Args:
        share: above 0, at most 1 (every example).
        name: as for `draw`.
    """
    return draw(*name) < share * _NUMBERS


@lru_cache(maxsize=64)
def held_out_rows(train_size: int, share: float) -> tuple[int, ...]:
    """Return the rows of a training set that are held out for selection, ascending.

    >>> len(held_out_rows(train_size=1000, share=0.1))
    102

    They do not depend on the data, only on row numbers.

    Args:
        train_size: number of rows.
        share: the share to hold out; 0 holds out none.
    """
    return tuple(row for row in range(train_size) if is_within(share, "holdout", row))
