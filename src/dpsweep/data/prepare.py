"""Preparation of datasets and tokenizers of the study: reading, checks, and writing of the prepared files."""

import logging
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from dpsweep.base.errors import DpsweepError
from dpsweep.base.files import folder_beside
from dpsweep.data import demo, embeddings, examples, hub, images, prepared, texts
from dpsweep.data.prepared import DatasetError
from dpsweep.study import datasets as sections
from dpsweep.study import networks
from dpsweep.study.messages import shorten

log = logging.getLogger(__name__)

_MOST_NAMED = 20
_INDENTED = "\n  "


def prepare(
    name: str, dataset: sections.Dataset, folder: Path, tokenizer: Path | None = None
) -> prepared.PreparedDataset:
    """Prepare a dataset of the study, and check it against the numbers in the study.

    Args:
        name: of the dataset in the study.
        dataset: its section of the study.
        folder: for the prepared files.
        tokenizer: the prepared tokenizer, for a dataset of texts.

    Raises:
        DatasetError: the source cannot be read, or differs from the study.
    """
    with named(name):
        data = load(dataset)
        if dataset.kind == "text":
            data = texts.leave_out_unreadable(data)
    _refuse_or_warn(name, dataset, data.skipped)
    # Compare labels before hours of decoding, unless decoding may leave out images.
    known = dataset.kind != "image" or dataset.corrupt == "refuse"
    if known:
        _compare(name, dataset, data)
    resize = identity = None
    with folder_beside(folder) as decoded:
        if dataset.kind == "text":
            data, identity = _tokenized(dataset, data, cast(Path, tokenizer))
        elif isinstance(data.train.inputs, images.EncodedImages):
            data, resize = _decoded(name, dataset, data, decoded)
        if not known:
            _compare(name, dataset, data)
        made = prepared.write_prepared(
            folder,
            name=name,
            title=dataset.title,
            source=data.origin,
            revision=data.revision,
            classes=data.classes,
            train=data.train,
            test=data.test,
            kind=dataset.kind,
            skipped=data.skipped,
            ignored=data.ignored,
            tokenizer=identity,
            resize=resize,
            refuse_duplicates=dataset.duplicates == "refuse",
        )
    warn_of_cut_texts(name, dataset, made.metadata)
    return made


def prepare_tokenizer(
    name: str, backbone: networks.Backbone, datasets: Mapping[str, sections.Dataset], path: Path
) -> texts.Tokenizer:
    """Write the tokenizer of a backbone that reads text, and open it.

    Args:
        name: of the backbone in the study.
        backbone: its section of the study.
        datasets: of the study.
        path: of the file to write.

    Raises:
        DatasetError: the backbone does not read text, or its tokenizer or training texts cannot be read.
        HubError: the hub cannot be reached.
    """
    match backbone.reads_with:
        case networks.HubTokenizer() as source:
            instead = f"backbones.{name}.tokenizer: {{kind: file, path: ...}}"
            others = ["config.json", "model.safetensors"] if backbone.tokenizer is None else []
            file = hub.fetch_file(source.id, "tokenizer.json", source.revision, instead, others)
            library = texts.read_tokenizer(file)
        case networks.TrainedTokenizer() as recipe:
            public = load(datasets[recipe.dataset]).train.inputs
            library = texts.train_word_pieces(public, recipe.vocab_size)
        case networks.FileTokenizer(path=local):
            library = texts.read_tokenizer(Path(local))
        case networks.BytesTokenizer():
            library = texts.byte_tokenizer()
        case None:
            raise DatasetError(f"backbones.{name}: reads no text, so it has no tokenizer")
    texts.save_tokenizer(library, path)
    return texts.Tokenizer.open(path)


def inspect(name: str, dataset: sections.Dataset, of_bytes: bool = False) -> list[str] | None:
    """Compare the labels with the study, and check those inputs that can be read in seconds.

    These are one image of each class of a folder, the texts of tables, and all embeddings, for which it also
    searches test examples that duplicate training examples.

    Args:
        name: of the dataset.
        dataset: its section.
        of_bytes: whether the tokens of its texts are bytes.

    Returns:
        The names of the classes; None for a source that is not on this machine.

    Raises:
        DatasetError: the source cannot be read, or differs from the study.
    """
    source = dataset.source
    if isinstance(source, sections.HubSource) and source.path is None:
        return None
    with named(name):
        data = load(dataset)
        if isinstance(source, sections.FilesSource):
            if dataset.max_length and (cut := texts.long_texts(data, dataset.max_length, of_bytes)):
                log.warning("%s: %s", name, cut)
            data = texts.leave_out_unreadable(data)
    if dataset.corrupt == "refuse" or isinstance(source, sections.TrainAndTest):
        _refuse_or_warn(name, dataset, data.skipped)
        _compare(name, dataset, data)
    train, test = data.train, data.test
    if dataset.kind == "embedding":
        hashes = prepared.hash_rows(train.inputs), prepared.hash_rows(test.inputs)
        found = prepared.find_duplicates(*hashes, train.where, test.where)
        refuse = dataset.duplicates == "refuse"
        prepared.say_duplicates(name, dataset.kind, found, len(test.labels), refuse)
    if dataset.corrupt == "refuse" and isinstance(source, sections.FolderSource):
        _refuse_or_warn(
            name, dataset, images.first_corrupt(data.train, prepared.Resize.of(dataset))
        )
    return data.classes


def _tokenized(
    dataset: sections.Dataset, data: examples.LabelledData, tokenizer: Path
) -> tuple[examples.LabelledData, prepared.TokenizerIdentity]:
    reader, length = texts.Tokenizer.open(tokenizer), cast(int, dataset.max_length)
    train, test = (
        replace(split, inputs=reader.blocks(split.inputs, length))
        for split in (data.train, data.test)
    )
    return replace(data, train=train, test=test), reader.identity


def _decoded(
    name: str, dataset: sections.Dataset, data: examples.LabelledData, folder: Path
) -> tuple[examples.LabelledData, prepared.Resize | None]:
    """Decode both splits; also return how batches must be resized, if images are stored in their own size."""
    resize = prepared.Resize.of(dataset)
    transform = images.make_transform(resize, data.train, data.test)
    train, corrupt = images.decode_images(data.train, transform, folder / "train.npy")
    test, corrupt_test = images.decode_images(data.test, transform, folder / "test.npy")
    skipped = [*corrupt, *corrupt_test]
    _refuse_or_warn(name, dataset, skipped)
    decoded = replace(data, train=train, test=test, skipped=skipped)
    return decoded, None if transform.stored is None else resize


def warn_of_cut_texts(
    name: str, dataset: sections.Dataset, metadata: prepared.DatasetMetadata
) -> None:
    """Warn of texts that are longer than the dataset's ``max_length``."""
    for key, size in (("train", metadata.train_size), ("test", metadata.test_size)):
        if cut := metadata.cut.get(key):
            log.warning(
                "%s: %d of %d %s texts are longer than max_length (%d tokens) and are cut, by %.2g %% of "
                "all tokens",
                name, cut.texts, size, key, dataset.max_length, 100 * cut.share_of_tokens,
            )  # fmt: skip


# -- reading ----------------------------------------------------------------------------------


def load(dataset: sections.Dataset) -> examples.LabelledData:
    """Read the classes and labels of a dataset; inputs are read when they are needed.

    Raises:
        DpsweepError: the source cannot be read.
    """
    source = dataset.source
    unit = dataset.unit if dataset.has_units else None
    match source:
        case sections.DigitsSource():
            data = demo.load_digits(source, prepared.Resize.of(dataset).size)
        case sections.GlyphsSource():
            data = demo.load_glyphs(source, prepared.Resize.of(dataset).size)
        case sections.DocstringsSource():
            data = demo.load_docstrings(source)
        case sections.IdxSource():
            data = images.load_idx(source, prepared.Resize.of(dataset).size)
        case sections.FilesSource():
            data = texts.load_files(source, unit)
        case sections.ArraysSource():
            data = embeddings.load_embeddings(source, dataset.dimension, unit)
        case sections.FolderSource():
            data = images.load_folder(source, unit)
        case sections.HubSource():
            data = hub.load_hub(source, dataset.kind, unit)
    return data


@contextmanager
def named(name: str) -> Iterator[None]:
    """Prefix the messages of errors in the block with the name of the dataset.

    Raises:
        DatasetError: instead of any DpsweepError or OSError.
    """
    try:
        yield
    except (DpsweepError, OSError) as error:
        begins_with = str(error).partition(":")[0].partition(".")[0]
        dot = "." if begins_with in sections.Dataset.model_fields else ": "
        raise DatasetError(f"datasets.{name}{dot}{error}", getattr(error, "remake", ())) from error


# -- comparison with the study ---------------------------------------------------------------


def _refuse_or_warn(name: str, dataset: sections.Dataset, corrupt: Sequence[str]) -> None:
    """Refuse corrupt examples, or warn of them, depending on the dataset's key ``corrupt``."""
    if not corrupt:
        return
    more = [f"and {len(corrupt) - _MOST_NAMED} more"] * (len(corrupt) > _MOST_NAMED)
    lines = [f"corrupt examples ({len(corrupt)}):", *corrupt[:_MOST_NAMED], *more]
    if dataset.corrupt == "refuse":
        raise DatasetError(
            f"datasets.{name}: {_INDENTED.join(lines)}\nReplace or remove them, or set corrupt: skip to do "
            "without them"
        )
    log.warning("%s: left out %s", name, _INDENTED.join(lines))


def _compare(name: str, dataset: sections.Dataset, data: examples.LabelledData) -> None:
    """Compare classes and labels with the study.

    Raises:
        DatasetError: something differs; the message lists all differences.
    """
    classes, train, test = data.classes, data.train.labels, data.test.labels
    counts, tested = (np.bincount(each, minlength=len(classes)).tolist() for each in (train, test))
    found: dict[str, Any] = {
        "classes": len(classes),
        "train_size": len(train),
        "test_size": len(test),
    }
    if data.train.units is not None:
        found["train_units"] = len(np.unique(data.train.units))
    if isinstance(declared := dataset.train_counts, list):
        found["train_counts"] = counts
    elif declared is not None:
        found["train_counts"] = counts[0] if len(set(counts)) == 1 else counts
    wrong = [
        f"datasets.{name}.{key}: the study says {shorten([getattr(dataset, key)])}, {shorten([value])} found"
        for key, value in found.items()
        if getattr(dataset, key) != value
    ]
    alike = alike_classes(data)
    if dataset.classes != len(classes):
        wrong.append("; ".join(filter(None, [f"  the classes are: {shorten(classes)}", alike])))
    elif alike:
        log.warning("%s: found classes that are %s", name, alike)
    if empty := [each for each, count in zip(classes, counts, strict=True) if not count]:
        wrong.append(f"datasets.{name}: no training example of {shorten(empty)}")
    warn_of_untested(name, classes, tested)
    if wrong and data.skipped:
        wrong.append(f"left out {len(data.skipped)}: {shorten(data.skipped)}")
    if wrong:
        raise DatasetError("\n".join(wrong))


def warn_of_untested(name: str, classes: Sequence[str], test_counts: Sequence[int]) -> None:
    """Warn of classes without a test example; macro accuracy is the mean over the others."""
    if untested := [each for each, count in zip(classes, test_counts, strict=True) if not count]:
        log.warning(
            "%s: no test example of %s; macro accuracy leaves them out", name, shorten(untested)
        )


def alike_classes(data: examples.LabelledData) -> str:
    """Name classes that differ only in their notation, which is often a mistake.

    It is capitals, inner punctuation, leading zeros (1 and 01), or truth values and numbers (true and 1).

    Returns:
        ``nearly the same: 'Cat' and 'cat' (20 and 3 training examples)``; empty if there are none.
    """
    counts = np.bincount(data.train.labels, minlength=len(data.classes)).tolist()
    first: dict[str, int] = {}
    pairs = []
    for number, each in enumerate(data.classes):
        plain = re.sub(r"(?<=\w)[\W_]+(?=\w)", "", unicodedata.normalize("NFKC", each).casefold())
        plain = re.sub(r"^0+(?=\d)", "", {"true": "1", "false": "0"}.get(plain, plain))
        other = first.setdefault(plain, number)
        if other != number:
            pairs.append(
                f"{data.classes[other]!r} and {each!r} ({counts[other]:,} and {counts[number]:,} training "
                "examples)"
            )
    return f"nearly the same: {shorten(pairs)}" if pairs else ""
