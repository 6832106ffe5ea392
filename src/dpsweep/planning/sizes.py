"""Sizes of networks and stored inputs before anything is prepared: from names, and from one image."""

import io
import math
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from dpsweep.base.files import read_json, visible_files
from dpsweep.config import (
    Backbone,
    Dataset,
    DigitsSource,
    FileWeights,
    FolderSource,
    HubSource,
)

# Width and depth of vision transformers by their names in timm.
_VISION_TRANSFORMERS = {
    "tiny": (192, 12),
    "small": (384, 12),
    "base": (768, 12),
    "large": (1024, 24),
    "huge": (1280, 32),
}
# Convolutional networks at a reference size: multiply-adds, activations and parameters, in 10^6;
# features, and parameters of norm layers.
_CONVOLUTIONAL = {
    "resnetv2_50x1_bit": (224, 4_230, 100, 24, 2048, 41_344),
    "wide_resnet": (32, 390, 4, 3, 256, 4_000),
}
_DIGITS = 8  # height and width of the images of sklearn


# -- networks --------------------------------------------------------------------------------


@dataclass(frozen=True)
class NetworkSize:
    """The size of a network, and of one forward pass of one example."""

    operations: float
    activation_bytes: float
    parameters: float
    width: int
    """the number of inputs of the head"""
    norm_parameters: float


def _transformer(tokens: int, width: int, depth: int) -> NetworkSize:
    """Count a transformer: 12 d^2 weights a layer, and two products of tokens by tokens.

    Activations: 34 values of 16 bits a token, channel and layer (Korthikanti et al. 2022, without
    the attention matrix), here in 32 bits.
    """
    products = depth * (12 * width**2 * tokens + 2 * width * tokens**2)
    return NetworkSize(
        operations=2.0 * products,
        activation_bytes=68.0 * tokens * width * depth,
        parameters=12.0 * width**2 * depth,
        width=width,
        norm_parameters=2.0 * width * (2 * depth + 1),
    )


def count_network(backbone: Backbone, dataset: Dataset) -> NetworkSize:
    """Estimate the size of a backbone for a dataset's inputs.

    An unknown one counts as a ViT-Base, or as a DistilBERT if it reads text.
    """
    arguments = backbone.arguments
    if dataset.kind == "embedding":
        return NetworkSize(0.0, 0.0, 0.0, dataset.dimension or 1, 0.0)
    if dataset.kind == "text":
        # The keys of DistilBERT, then of BERT; without both, the size of DistilBERT.
        if isinstance(backbone.weights, FileWeights):
            arguments = _described(backbone.weights.path) | arguments
        width = arguments.get("dim", arguments.get("hidden_size", 768))
        depth = arguments.get("n_layers", arguments.get("num_hidden_layers", 6))
        return _transformer(dataset.max_length or 512, int(width), int(depth))
    size = dataset.image_size or 224
    if backbone.architecture in _CONVOLUTIONAL:
        reference, products, activations, parameters, width, norms = _CONVOLUTIONAL[
            backbone.architecture
        ]
        area = (size / reference) ** 2
        return NetworkSize(
            2e6 * products * area, 1e6 * activations * area, 1e6 * parameters, width, norms
        )
    words = backbone.architecture.split("_")
    kind = next((word for word in words if word in _VISION_TRANSFORMERS), "base")
    width, depth = _VISION_TRANSFORMERS[kind]
    patch = next((int(word[5:]) for word in words if word[:5] == "patch"), 16)
    patch = int(arguments.get("patch_size", patch))
    width = int(arguments.get("embed_dim", width))
    depth = int(arguments.get("depth", depth))
    return _transformer((size // patch) ** 2 + 1, width, depth)


@cache
def _described(path: str) -> dict[str, Any]:
    """Read the ``config.json`` beside a local file of weights; empty if there is none."""
    try:
        return dict(read_json(Path(path).with_name("config.json")))
    except (OSError, ValueError, TypeError):
        return {}  # the preparation reports the error


# -- inputs ----------------------------------------------------------------------------------


def stored_bytes(dataset: Dataset) -> int:
    """Estimate the bytes of one stored input: of the network's input size, or less for smaller images.

    Images of one smaller size are stored as they are, and resized with their batch. The size comes from one
    image; without an image to read, it is that of the input. Tokens and embeddings have 32 bits a number.
    """
    if dataset.kind != "image":
        return 4 * math.prod(dataset.input_shape)
    side, source = dataset.image_size or 0, dataset.source
    height, width = side, side
    match source:
        case DigitsSource():
            height = width = _DIGITS
        case FolderSource(path=path, train_folders=folders):
            height, width = _size_in_folder(Path(path) / folders[0]) or (side, side)
        case HubSource(path=str(path), input_column=column):
            height, width = _size_in_tables(Path(path), column) or (side, side)
    return min(height * width, side * side) * (1 if source.grey else 3)


@cache
def _size_in_folder(folder: Path) -> tuple[int, int] | None:
    for file in visible_files(folder):
        if file.is_file() and (size := _size(file)) is not None:
            return size
    return None


@cache
def _size_in_tables(folder: Path, column: str) -> tuple[int, int] | None:
    # The import takes half a second.
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    tables = (file for file in visible_files(folder) if file.suffix == ".parquet")
    for file in filter(Path.is_file, tables):
        # The preparation reports these errors. IndexError: there is no such column.
        with suppress(OSError, pa.ArrowException, KeyError, TypeError, IndexError):
            batches = pq.ParquetFile(file).iter_batches(batch_size=1, columns=[column])
            rows = next((batch.column(0) for batch in batches if batch.num_rows), None)
            if rows is not None:
                return _size(io.BytesIO(rows[0].as_py()["bytes"]))
    return None


def _size(image: Path | io.BytesIO) -> tuple[int, int] | None:
    from PIL import Image  # noqa: PLC0415

    try:
        with Image.open(image) as opened:
            return opened.height, opened.width
    except (OSError, ValueError, Image.DecompressionBombError):
        return None  # the preparation reports the error
