"""Labelled texts from tables (CSV, TSV, lines of JSON and parquet, in UTF-8), and their tokens.

Every record of a file becomes a row, or the file is refused. pandas is not used, because it fills records
that are too short, cuts those that are too long, and drops quotes.

A prepared tokenizer is one JSON file. Its key ``tokenizer`` has the ``tokenizer.json`` of the `tokenizers`
library (plain data, without code or pickle). Its fingerprint is checked when the file is read.
"""

import csv
import hashlib
import itertools
import json
import logging
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import tokenizers
import xxhash
from pyarrow import parquet
from tokenizers import BertWordPieceTokenizer, models, normalizers, pre_tokenizers, trainers

from dpsweep.base import files
from dpsweep.base.formatting import count
from dpsweep.data import examples
from dpsweep.data.prepared import PADDING, CutTexts, DatasetError, Hashes, Split, TokenizerIdentity
from dpsweep.study.datasets import FilesSource
from dpsweep.study.messages import shorten, value

log = logging.getLogger(__name__)

# Unicode categories of spaces, line ends, control characters and characters of zero width.
_UNSEEN = {"Cc", "Cf", "Zl", "Zp", "Zs"}


# -- tables ----------------------------------------------------------------------------------


def load_files(source: FilesSource, unit: str | None = None) -> examples.LabelledData:
    """Read one or two tables in the format of their suffix; labels are numbers or class names.

    Args:
        source: the tables.
        unit: the column that names the unit of each row; None: each row is a unit.

    Raises:
        DatasetError: a file cannot be read, or lacks a column, a text or a label, or a part is empty.
    """
    tables = [source.train] if source.test is None else [source.train, source.test]
    splits = [_read(source, Path(name), unit) for name in tables]
    (texts, train, units), (test_texts, test, test_units) = splits[0], splits[-1]
    numbers, test_numbers, classes = examples.encode_labels(train, test)
    whole = Split(texts, numbers, train.where, units)
    if source.test_from_train is None:
        tested = Split(test_texts, test_numbers, test.where, test_units)
        return examples.LabelledData(whole, tested, classes, ", ".join(tables))
    # Equal texts, or all rows of a unit, go to the same part.
    names = list(map(_name, texts)) if whole.units is None else whole.units.tolist()
    by_class = whole.units is not None
    parts = examples.cut_test_set(names, numbers, source.test_from_train, source.seed, by_class)
    kept, held_out = (whole.only(part, [texts[place] for place in part]) for part in parts)
    return examples.LabelledData(kept, held_out, classes, source.train)


def _name(text: Any) -> Any:
    """Return what a text is drawn by: itself, or a description of what is none and is left out later."""
    return text if text is None or isinstance(text, str | int | float) else repr(text)


def _read(
    source: FilesSource, path: Path, unit: str | None
) -> tuple[list[str], examples.LabelColumn, npt.NDArray[np.str_] | None]:
    """Return the texts, labels and units of one table."""
    columns = [source.input_column, source.label_column, *([] if unit is None else [unit])]
    texts, labels, *units = read_table(path, *columns)

    def where(place: int) -> str:
        return f"{path}, data row {place + 1}"

    column = examples.LabelColumn(str(path), f"column {source.label_column!r}", labels, where)
    return texts, column, examples.unit_names(units[0], where) if units else None


def read_table(path: Path, *columns: str) -> list[list[Any]]:
    """Return the values of some columns of a table in the format of its suffix; other columns are ignored.

    Raises:
        DatasetError: the file cannot be read, or does not have each column exactly once.
    """
    names, column = examples.read_file(path, _FORMATS)
    with examples.reading(path):
        for name in columns:
            if names.count(name) != 1:
                raise DatasetError(
                    f"{path}: found {count(names.count(name), 'column')} {name!r}; allowed: one, of "
                    f"{shorten(names)} (source.input_column, source.label_column, unit). The first line of a "
                    ".csv names the columns, separated by commas, in a .tsv by tabs"
                )
        return [column(name) for name in columns]


_Table = tuple[list[str], Callable[[str], list[Any]]]
"""The names of all columns, and a function that returns the values of one."""


def _separated(delimiter: str, path: Path) -> _Table:
    """Read records as RFC 4180 defines them; a field with the delimiter, quotes or line ends is in quotes."""
    csv.field_size_limit(sys.maxsize)
    records: list[list[str]] = []
    with path.open(encoding="utf-8-sig", newline="") as stream:
        lines = csv.reader(stream, delimiter=delimiter, strict=True)
        empty = 0
        try:
            for record in lines:
                empty += not record
                if record:
                    records.append(record)
                if len(record) not in (0, len(records[0]) if records else 0):
                    raise csv.Error(f"{count(len(record), 'field')} for {shorten(records[0])}")
                if record and len(records) > 1 and record == records[0]:
                    raise csv.Error("the first line again, as if two files were joined")
        except csv.Error as error:
            raise DatasetError(
                f"{path}, up to line {lines.line_num}: found {error}; allowed: the fields of the first line, "
                'quotes in pairs around a field, and "" for a quote within'
            ) from None
    if lines.line_num > len(records) + empty:
        log.warning(
            "%s: rows have line ends within quotes: %d lines are %d rows",
            path, lines.line_num, len(records) + empty,
        )  # fmt: skip
    header, *rows = records or [[]]
    return header, lambda name: [row[header.index(name)] for row in rows]


def _json_lines(path: Path) -> _Table:
    """Read one object of JSON in each line that is not empty."""
    rows: list[dict[str, Any]] = []
    names: dict[str, None] = {}
    with path.open(encoding="utf-8-sig") as stream:
        for number, line in enumerate(stream, start=1):
            if line.strip():
                with examples.reading(path, f"line {number}"):
                    row = json.loads(line, object_pairs_hook=_object)
                    if not isinstance(row, dict):
                        raise ValueError(f"found {value(row)}; allowed: an object of JSON")
                    rows.append(row)
                    names |= dict.fromkeys(row)
    return list(names), lambda name: [each.get(name) for each in rows]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON; of a key that stands twice, Python would keep the last value in silence."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError(f"a key twice among {shorten(key for key, _ in pairs)}")
    return found


def _parquet(path: Path) -> _Table:
    file = parquet.ParquetFile(path)
    return file.schema_arrow.names, lambda name: file.read([name]).column(0).to_pylist()


_FORMATS: Mapping[str, Callable[[Path], _Table]] = {
    ".csv": partial(_separated, ","),
    ".tsv": partial(_separated, "\t"),
    ".jsonl": _json_lines,
    ".parquet": _parquet,
}


# -- texts -----------------------------------------------------------------------------------


def leave_out_unreadable(data: examples.LabelledData) -> examples.LabelledData:
    """Leave out empty and unreadable texts, and list them in ``skipped`` with the reason.

    The remaining texts can be iterated once.

    Raises:
        DatasetError: no text of a split remains.
    """
    skipped: list[str] = []
    splits = []
    for split in (data.train, data.test):
        wrong = {
            place: found for place, text in enumerate(split.inputs) if (found := _unreadable(text))
        }
        readable = (text for text in split.inputs if not _unreadable(text))
        kept, left_out = examples.leave_out(split, wrong, readable)
        splits.append(kept)
        skipped += left_out
    return replace(data, train=splits[0], test=splits[1], skipped=skipped)


def long_texts(data: examples.LabelledData, max_length: int, of_bytes: bool = False) -> str:
    """Say how many texts are longer than ``max_length`` tokens; empty if none is known.

    A word is at least one token, so at least these texts are cut. It needs no tokenizer.

    Args:
        data: of texts.
        max_length: of the dataset.
        of_bytes: whether its tokens are bytes, of words with a space before each
            (`byte_tokenizer`).
    """

    def length(text: str) -> int:
        if of_bytes:
            return sum(1 + len(word.encode()) for word in text.lower().split())
        return len(text.split(maxsplit=max_length))

    texts = itertools.chain(data.train.inputs, data.test.inputs)
    # A missing text is left out later.
    longer = sum(length(text) > max_length for text in texts if isinstance(text, str))
    if not longer:
        return ""
    return (
        f"at least {longer:,} of {len(data.train.labels) + len(data.test.labels):,} texts are longer than "
        f"max_length ({max_length} {'bytes' if of_bytes else 'tokens'}) and are cut"
    )


def _unreadable(text: Any) -> str | None:
    """Return the reason why a text cannot be used, or None."""
    if not isinstance(text, str):
        return f"no text but {shorten([repr(text)])}"
    if "\0" in text:
        return "a text with a NUL character"
    if any("\ud800" <= character <= "\udfff" for character in text):
        return "a text with half of a character (a surrogate)"
    if all(unicodedata.category(character) in _UNSEEN for character in text):
        return "an empty text" + (" (of characters that cannot be seen)" if text.strip() else "")
    return None


# -- tokens ----------------------------------------------------------------------------------

_BLOCK = 1024
"""Number of texts that are tokenized at a time."""
_UNKNOWN = "[UNK]"
_SPECIAL = ("[PAD]", _UNKNOWN, "[CLS]", "[SEP]")


@dataclass(frozen=True)
class Tokenizer:
    """A prepared tokenizer."""

    identity: TokenizerIdentity
    _library: tokenizers.Tokenizer

    @classmethod
    def open(cls, path: Path) -> Self:
        """Read a prepared tokenizer.

        Raises:
            DatasetError: the file is missing.
            DamagedFileError: it is not as it was written.
        """
        if not path.is_file():
            raise DatasetError(f"{path}: no such tokenizer; it is not prepared", (path,))
        content = files.read_checked_json(path)
        return cls.of(tokenizers.Tokenizer.from_str(json.dumps(content["tokenizer"])))

    @classmethod
    def of(cls, library: tokenizers.Tokenizer) -> Self:
        """Return a tokenizer of the library `tokenizers` as it is when it is prepared."""
        checksum = hashlib.sha256(library.to_str(pretty=True).encode()).hexdigest()
        identity = TokenizerIdentity(vocabulary=vocabulary_size(library), checksum=checksum)
        return cls(identity, library)

    @property
    def end(self) -> int | None:
        """The token that the tokenizer adds at the end of a text, or None."""
        one, two = (self._library.encode(text).ids for text in ("a", "a a"))
        without = self._library.encode("a", add_special_tokens=False).ids
        return one[-1] if one[-1:] == two[-1:] and one[-1:] != without[-1:] else None

    def export(self, path: Path) -> None:
        """Write a ``tokenizer.json`` for the library `tokenizers`; its SHA-256 is ``identity.checksum``."""
        files.write_text(path, self._library.to_str(pretty=True))

    def blocks(self, texts: Iterable[str], max_length: int) -> "TokenBlocks":
        """Return the tokens of texts, in blocks that are iterated once."""
        return TokenBlocks(self._library, texts, max_length)


class TokenBlocks(Iterator[npt.NDArray[np.int32]]):
    """Blocks of tokens, (at most 1024 texts, max_length), with -1 after the end of a text.

    Texts are cut to ``max_length`` tokens, including special tokens. What was cut off is known after the
    last block.

    Raises:
        DatasetError: while iterating, if a text has no token.
    """

    def __init__(
        self, library: tokenizers.Tokenizer, texts: Iterable[str], max_length: int
    ) -> None:
        self._hashes: list[int] = []
        self._cut = self._cut_off = self._tokens = 0
        self._blocks = self._encode(library, texts, max_length)

    def __next__(self) -> npt.NDArray[np.int32]:
        return next(self._blocks)

    @property
    def hashes(self) -> Hashes:
        """A hash of all tokens of each text so far, also of those that were cut off."""
        return np.array(self._hashes, np.uint64)

    @property
    def cut(self) -> CutTexts | None:
        """How much was cut off so far; None if nothing."""
        if not self._cut:
            return None
        return CutTexts(texts=self._cut, share_of_tokens=self._cut_off / self._tokens)

    def _encode(
        self, library: tokenizers.Tokenizer, texts: Iterable[str], max_length: int
    ) -> Iterator[npt.NDArray[np.int32]]:
        library.enable_truncation(max_length)
        library.no_padding()
        special = library.num_special_tokens_to_add(is_pair=False)
        remaining = iter(texts)
        while block := list(itertools.islice(remaining, _BLOCK)):
            tokens = np.full((len(block), max_length), PADDING, np.int32)
            for row, encoded in enumerate(library.encode_batch(block)):
                if not encoded.ids:
                    raise DatasetError(
                        f"text {len(self._hashes)} has no token ({block[row][:40]!r}), so a network "
                        "has nothing to read; remove it"
                    )
                tokens[row, : len(encoded.ids)] = encoded.ids
                # The library cuts a text into parts, each with the special tokens.
                parts = [encoded.ids, *(part.ids for part in encoded.overflowing)]
                lengths = [len(part) - special for part in parts]
                self._cut += len(parts) > 1
                self._cut_off += sum(lengths[1:])
                self._tokens += sum(lengths)
                whole = np.concatenate([np.array(part, np.int32) for part in parts])
                self._hashes.append(xxhash.xxh3_64_intdigest(whole.tobytes()))
            yield tokens


def read_tokenizer(source: Path) -> tokenizers.Tokenizer:
    """Read a ``tokenizer.json``, or build a tokenizer from a vocabulary of BERT's WordPiece.

    Raises:
        DatasetError: the file is missing, or neither of these.
    """
    with examples.reading(source):
        files.require_content(source)
        if source.suffix != ".txt":
            return tokenizers.Tokenizer.from_buffer(source.read_bytes())
        pieces = source.read_text(encoding="utf-8").splitlines()
        if missing := [piece for piece in _SPECIAL if piece not in pieces]:
            raise DatasetError(f"{source}: not a vocabulary of BERT, {', '.join(missing)} missing")
        return _word_pieces(pieces)


def vocabulary_size(library: tokenizers.Tokenizer) -> int:
    """Return the largest token number plus one."""
    return max(library.get_vocab().values(), default=-1) + 1


def save_tokenizer(library: tokenizers.Tokenizer, path: Path) -> None:
    """Write a prepared tokenizer."""
    files.write_checked_json(path, {"tokenizer": json.loads(library.to_str())})


def byte_tokenizer() -> tokenizers.Tokenizer:
    """Return a tokenizer whose tokens are the 256 bytes: of the text in lower case, with single spaces.

    >>> byte_tokenizer().encode("A  b").tokens
    ['Ġ', 'a', 'Ġ', 'b']
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    numbers = {character: number for number, character in enumerate(alphabet)}
    library = tokenizers.Tokenizer(models.BPE(vocab=numbers, merges=[]))
    library.normalizer = normalizers.Sequence(
        [normalizers.Lowercase(), normalizers.Replace(tokenizers.Regex(r"\s+"), " ")]
    )
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False)
    return library


def train_word_pieces(texts: Iterable[Any], vocab_size: int) -> tokenizers.Tokenizer:
    """Train BERT's WordPiece. Equal texts give equal tokenizers on every machine."""
    normalizer = normalizers.BertNormalizer()
    written = map(normalizer.normalize_str, filter(_is_text, texts))
    counts = Counter(itertools.chain.from_iterable(written))
    characters = [each for each in counts if not each.isspace()]
    characters.sort(key=lambda each: (-counts[each], each))
    del characters[vocab_size // 4 :]
    # Among equally frequent pairs, the library chooses by the numbers of their parts. It numbers parts
    # inside words in the order of a random hash, unless they have a number before.
    inside = [f"##{each}" for each in characters]
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=[*_SPECIAL, *inside],
        initial_alphabet=characters,
        limit_alphabet=len(characters),
        show_progress=False,
    )
    library = tokenizers.Tokenizer(models.WordPiece(unk_token=_UNKNOWN))
    library.normalizer = normalizer
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.train_from_iterator(filter(_is_text, texts), trainer)
    return _word_pieces([*_SPECIAL, *sorted(set(library.get_vocab()) - set(_SPECIAL))])


def _is_text(value: Any) -> bool:
    return isinstance(value, str)  # a row of a dataset may lack its text


def _word_pieces(pieces: Sequence[str]) -> tokenizers.Tokenizer:
    """Return BERT's tokenizer for a vocabulary; it lowercases texts if the vocabulary has no capitals."""
    cased = any(piece != piece.lower() for piece in pieces if not piece.startswith("["))
    numbers = {piece: number for number, piece in enumerate(pieces)}
    library: tokenizers.Tokenizer = BertWordPieceTokenizer(numbers, lowercase=not cased)._tokenizer
    return library
