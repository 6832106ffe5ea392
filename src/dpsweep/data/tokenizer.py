"""Tokenizers of backbones that read text, and their training.

A prepared tokenizer is one JSON file. Its key ``tokenizer`` has the ``tokenizer.json`` of the `tokenizers`
library (plain data, without code or pickle). Its fingerprint is checked when the file is read.
"""

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import tokenizers
import xxhash
from tokenizers import BertWordPieceTokenizer, models, normalizers, pre_tokenizers, trainers

from dpsweep.base import files
from dpsweep.data.examples import reading
from dpsweep.data.prepared import PADDING, CutTexts, DatasetError, Hashes, TokenizerIdentity

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
    with reading(source):
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
