"""Labelled texts from tables, and checks for empty or unreadable texts."""

import itertools
import unicodedata
from dataclasses import replace
from pathlib import Path

from dpsweep.config import FilesSource
from dpsweep.config.messages import shorten
from dpsweep.data.examples import (
    LabelColumn,
    LabelledData,
    Split,
    cut_test_set,
    encode_labels,
    same_kind,
)
from dpsweep.data.prepared import DatasetError
from dpsweep.data.tables import read_table

# Unicode categories of spaces, line ends, control characters and characters of zero width.
_UNSEEN = {"Cc", "Cf", "Zl", "Zp", "Zs"}


# -- texts -----------------------------------------------------------------------------------


def leave_out_unreadable(data: LabelledData) -> LabelledData:
    """Leave out empty and unreadable texts, and list them in ``skipped`` with the reason.

    The remaining texts can be iterated once.
    """
    skipped: list[str] = []
    splits = []
    for split in (data.train, data.test):
        wrong = {
            place: found for place, text in enumerate(split.inputs) if (found := _unreadable(text))
        }
        skipped += [f"{split.where(place)}: {found}" for place, found in wrong.items()]
        readable = (text for text in split.inputs if not _unreadable(text))
        splits.append(split.without(list(wrong), readable))
    return replace(data, train=splits[0], test=splits[1], skipped=skipped)


def long_texts(data: LabelledData, max_length: int) -> str:
    """Say how many texts have more words than ``max_length`` tokens; empty if none.

    A word is at least one token, so at least these texts are cut. It needs no tokenizer.
    """
    texts = itertools.chain(data.train.inputs, data.test.inputs)
    longer = sum(len(text.split(maxsplit=max_length)) > max_length for text in texts)
    if not longer:
        return ""
    return (
        f"at least {longer:,} of {len(data.train.labels) + len(data.test.labels):,} texts are longer than "
        f"max_length ({max_length} tokens) and are cut"
    )


def _unreadable(text: str) -> str | None:
    """Return the reason why a text cannot be used, or None."""
    if "\0" in text:
        return "a text with a NUL character"
    if any("\ud800" <= character <= "\udfff" for character in text):
        return "a text with half of a character (a surrogate)"
    if all(unicodedata.category(character) in _UNSEEN for character in text):
        return "an empty text" + (" (of characters that cannot be seen)" if text.strip() else "")
    return None


# -- tables ----------------------------------------------------------------------------------


def load_files(source: FilesSource) -> LabelledData:
    """Read one or two tables in the format of their suffix; labels are numbers or class names.

    Raises:
        DatasetError: a file cannot be read, or lacks a column, a text or a label, or a part is empty.
    """
    files = [source.train] if source.test is None else [source.train, source.test]
    splits = [_read(source, Path(name)) for name in files]
    (texts, train), (test_texts, test) = splits[0], splits[-1]
    train, test = same_kind(train, test)
    numbers, test_numbers, classes = encode_labels(train, test)
    whole = Split(texts, numbers, train.where)
    if source.test_from_train is None:
        return LabelledData(
            whole, Split(test_texts, test_numbers, test.where), classes, ", ".join(files)
        )
    # Equal texts go to the same part.
    parts = cut_test_set(texts, numbers, source.test_from_train, source.seed)
    kept, held_out = (whole.only(part, [texts[place] for place in part]) for part in parts)
    return LabelledData(kept, held_out, classes, source.train)


def _read(source: FilesSource, path: Path) -> tuple[list[str], LabelColumn]:
    """Return the texts and labels of one table."""
    texts, labels = read_table(path, source.input_column, source.label_column)

    def where(place: int) -> str:
        return f"{path}, data row {place + 1}"

    for place, text in enumerate(texts):
        if not isinstance(text, str):
            raise DatasetError(
                f"{where(place)}, column {source.input_column!r}: found {shorten([repr(text)])}; "
                "allowed: text"
            )
    return texts, LabelColumn(str(path), f"column {source.label_column!r}", labels, where)
