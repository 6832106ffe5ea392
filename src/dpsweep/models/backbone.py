"""Prepared backbones: the description of a network, and its weights without the classification head.

A prepared backbone is a folder::

    metadata.json      the description; written last, so a folder that has it is complete
    model.safetensors  float32 state without the head; empty if the weights are random
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel, ConfigDict

from dpsweep.base import files
from dpsweep.data.prepared import METADATA, PreparedDataset, TokenizerIdentity, opening
from dpsweep.study.networks import Architecture, BackboneError

if TYPE_CHECKING:
    from torch import Tensor

_WEIGHTS = "model.safetensors"


class BackboneMetadata(BaseModel):
    """Facts about a prepared backbone; the content of its ``metadata.json``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    title: str
    kind: str = "image"
    """Kind of its input: image, text or embedding."""
    architecture: Architecture
    mean: tuple[float, ...]
    """Per channel, of images scaled to [0, 1]; empty for a network that does not read images."""
    std: tuple[float, ...]
    tokenizer: TokenizerIdentity | None = None
    """Of a network that reads text."""
    pretraining: dict[str, Any]
    """The origin of the weights; ``{"kind": "random"}`` if there are none."""
    parameters: int
    """Without the head."""
    checksum: str
    """SHA-256 of architecture, mean, std, tokenizer and weights, which determine the network."""

    @property
    def pretrained(self) -> bool:
        """Whether there are weights; otherwise the trial's seed determines the parameters."""
        return bool(self.pretraining["kind"] != "random")


@dataclass(frozen=True)
class PreparedBackbone:
    """A prepared backbone on disk."""

    folder: Path
    metadata: BackboneMetadata

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        """Read the metadata and check the checksum of the weights.

        Raises:
            BackboneError: the folder is missing, incomplete or damaged.
        """
        folder = Path(folder)
        with opening(folder, "backbone", BackboneError):
            content = files.read_checked_json(folder / METADATA)
            metadata = files.parsed(BackboneMetadata, folder / METADATA, content)
            if _checksum(metadata, folder / _WEIGHTS) != metadata.checksum:
                raise ValueError(f"{_WEIGHTS} does not have the checksum of {METADATA}")
        return cls(folder, metadata)

    def check_reads(self, data: PreparedDataset) -> None:
        """Check that the network can read a dataset.

        Raises:
            BackboneError: images for a network that reads text, texts of another tokenizer, texts
                longer than the network can read, or features of another network.
        """
        reads, found = self.metadata, data.metadata
        if found.features is not None:
            if found.features.backbone != reads.checksum:
                raise BackboneError(
                    f"{data.folder}: found features of backbone {found.features.backbone}, expected those "
                    f"of {self.folder}, {reads.checksum}; they must be computed again",
                    (data.folder / METADATA,),
                )
            return
        if (reads.kind, reads.tokenizer) != (found.kind, found.tokenizer):
            raise BackboneError(
                f"{self.folder}: reads {reads.kind} ({reads.tokenizer or 'no tokenizer'}), but "
                f"{data.folder} is {found.kind} ({found.tokenizer or 'no tokenizer'}); both must be "
                "prepared anew",
                (data.folder / METADATA, self.folder / METADATA),
            )
        if reads.architecture.library == "transformers":
            # It imports torch.
            from dpsweep.models.sequence_classifier import require_length  # noqa: PLC0415

            require_length(reads.architecture, found.shape[0])

    @property
    def weights_checksum(self) -> str:
        """SHA-256 of the file of weights."""
        return files.checksum(self.folder / _WEIGHTS)

    def state(self) -> dict[str, "Tensor"]:
        """Return the stored float32 state, without the head; empty if the weights are random."""
        from safetensors.torch import load_file  # noqa: PLC0415

        return load_file(self.folder / _WEIGHTS)


def write_backbone(
    folder: Path, state: "Mapping[str, Tensor]", **metadata: Any
) -> PreparedBackbone:
    """Write a prepared backbone and open it.

    Files are replaced atomically, ``metadata.json`` last.

    Args:
        folder: of the backbone.
        state: without the head; empty if the weights are random.
        metadata: the fields of `BackboneMetadata`, without the checksum.
    """
    from safetensors.torch import save_file  # noqa: PLC0415

    # An interrupted rewrite must not leave old metadata with new weights.
    (folder / METADATA).unlink(missing_ok=True)
    with files.atomic_path(folder / _WEIGHTS) as partial:
        save_file({key: value.contiguous() for key, value in state.items()}, partial)
    known = BackboneMetadata(**metadata, checksum="")
    complete = known.model_copy(update={"checksum": _checksum(known, folder / _WEIGHTS)})
    files.write_checked_json(folder / METADATA, complete.model_dump(mode="json"))
    return PreparedBackbone.open(folder)


def backbone_checksum(
    architecture: Architecture,
    mean: Sequence[float],
    std: Sequence[float],
    tokenizer: TokenizerIdentity | None,
    weights: str,
) -> str:
    """Return the checksum of everything that determines a network.

    Args:
        architecture: the empty network.
        mean: per channel, of images; empty for a network that reads text.
        std: likewise.
        tokenizer: of a network that reads text.
        weights: SHA-256 of the file of weights.
    """
    content: dict[str, Any] = {"mean": mean, "std": std, "weights": weights}
    content["architecture"] = architecture.model_dump()
    if tokenizer is not None:
        content["tokenizer"] = tokenizer.checksum
    return files.fingerprint(content)


def _checksum(metadata: BackboneMetadata, weights: Path) -> str:
    of = metadata.architecture, metadata.mean, metadata.std, metadata.tokenizer
    return backbone_checksum(*of, files.checksum(weights))
