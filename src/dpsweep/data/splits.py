"""Names of folders and tables that denote splits or parts of examples, not classes."""

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Literal

from dpsweep.data.prepared import DatasetError

Use = Literal["train", "validation", "test"]

_USES: dict[str, Use] = {
    **dict.fromkeys(("train", "training", "trn"), "train"),
    **dict.fromkeys(("validation", "validate", "valid", "val", "dev", "development"), "validation"),
    **dict.fromkeys(("test", "testing", "tst", "eval", "evaluation", "holdout", "heldout"), "test"),
}  # fmt: skip
# Words without meaning for the use of a split: train_images, TestSet, seg_val.
_NEUTRAL = frozenset(
    {
        *("set", "split", "data", "dataset", "sample", "samples", "example", "examples", "part"),
        *("image", "images", "img", "imgs", "picture", "pictures", "photo", "photos", "seg"),
        *("folder", "dir", "files", "raw", "all", "full", "final", "new", "the", "my"),
    }
)
# Names of folders of images, and of folders of masks or labels that belong to these images.
_IMAGES = frozenset({"image", "images", "img", "imgs", "jpegimages", "rgb", "input", "inputs"})
_BESIDE_IMAGES = frozenset(
    {
        *("mask", "masks", "label", "labels", "annotation", "annotations", "annot", "annots"),
        *("groundtruth", "gt", "segmentation", "segmentations", "segmentationclass", "depth"),
        *("segmentationobject", "target", "targets", "output", "outputs", "boxes", "bboxes"),
    }
)
_WITHOUT_CLASS = frozenset({"unlabeled", "unlabelled", "unannotated", "unclassified", "unsup"})
_MASK = re.compile(
    r"(.+?)[ _.-]+(?:mask|segmentation|seg|groundtruth|gt|annotation)s?(?:[ _.-]?\d+)?", re.I
)
_WORD = re.compile(r"[^\W\d_]+")
_INNER_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")


def split_uses(names: Iterable[str]) -> dict[str, Use]:
    """Return the use of each name that denotes a split, by name.

    A name may contain capitals, numbers and neutral words. Names that differ only in a word for a split
    denote splits too:

    >>> split_uses(["Training", "seg_test", "val2017", "train station"])
    {'Training': 'train', 'seg_test': 'test', 'val2017': 'validation'}
    >>> split_uses(["pets_train", "pets_test", "pets"])
    {'pets_train': 'train', 'pets_test': 'test'}
    """
    found: dict[str, Use] = {}
    alike: dict[tuple[str, ...], dict[str, Use]] = defaultdict(dict)
    for name in names:
        words = _words(name)
        use = _USES.get("".join(words)) or _USES.get("".join(_without_neutral(words)))
        if use is not None:
            found[name] = use
        for place, word in enumerate(words):
            if (use := _USES.get(word)) is not None:
                alike[(*words[:place], "", *words[place + 1 :])][name] = use
    for uses in alike.values():
        if len(set(uses.values())) > 1:
            found |= uses
    return found


def choose_splits(names: Iterable[str], where: str) -> tuple[list[str], str | None]:
    """Choose the training splits and the test split by their names.

    Validation data are training data if there is a test split, else they are the test split.
    Among several names for one use, a name that is a single word is preferred.

    Returns:
        Names of the training splits (empty if there is none), and the test split or None.

    Raises:
        DatasetError: several names for one use are equally good.
    """
    of_use: dict[Use, list[str]] = defaultdict(list)
    for name, use in split_uses(names).items():
        of_use[use].append(name)
    chosen: dict[Use, str] = {}
    for use, several in of_use.items():
        best = [name for name in several if name.casefold() in _USES] or several
        if len(best) > 1:
            raise DatasetError(
                f"{where}: found {', '.join(best)}, which are all words for {use} data; allowed: one of "
                "them. Merge or rename them, or name them in the source of a study of your own"
            )
        chosen[use] = best[0]
    train, validation, test = chosen.get("train"), chosen.get("validation"), chosen.get("test")
    if train is None:
        return [], None
    if test is None:
        return [train], validation
    return [train, validation] if validation else [train], test


def images_and_masks(names: Iterable[str]) -> list[str]:
    """Return the names of folders of images and of their masks or labels, if both kinds exist.

    >>> images_and_masks(["images", "Masks", "cat"])
    ['images', 'Masks']
    """
    plain = {name: "".join(_words(name)) for name in names}
    images, beside = (
        [name for name, word in plain.items() if word in kind] for kind in (_IMAGES, _BESIDE_IMAGES)
    )
    return [*images, *beside] if images and beside else []


def masks_of(images: Iterable[str]) -> list[str]:
    """Return the images whose names mark them as masks of other images.

    >>> masks_of(["a/1.png", "a/1_mask.png", "a/1_mask_1.png", "mask/mask (2).jpg", "a/bitmask.png"])
    ['a/1_mask.png', 'a/1_mask_1.png']
    """
    stems = {name.rpartition(".")[0]: name for name in images}
    found = ((name, _MASK.fullmatch(stem)) for stem, name in stems.items())
    return [name for name, match in found if match and match[1] in stems]


def without_class(names: Iterable[str]) -> list[str]:
    """Return the names of folders of examples without a class.

    >>> without_class(["labeled", "Unlabeled", "spam"])
    ['Unlabeled']
    """
    return [name for name in names if _WITHOUT_CLASS & {*_words(name)}]


def may_be_class(name: str) -> bool:
    """Tell whether a word for a split may also be a class, as "train" among vehicles."""
    return name.casefold() in ("train", "training", "valid", "dev", "development")


def is_numbered(name: str) -> bool:
    """Tell whether a name has no letters, such as a year, a date or a number."""
    return not _WORD.search(name)


def _words(name: str) -> list[str]:
    return [each.casefold() for each in _WORD.findall(_INNER_CAPITAL.sub(" ", name))]


def _without_neutral(words: Iterable[str]) -> list[str]:
    """Remove neutral words, and "set", "data" and "images" at the end of words."""
    kept = [each for each in words if each not in _NEUTRAL]
    return [re.sub(r"(?<=.)(set|data|images)$", "", each) for each in kept]
