"""Conversion of stored inputs to inputs of a network."""

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from dpsweep.data.prepared import Resize

# The precision of Pillow's arithmetic on 8-bit images.
_WEIGHT_BITS = 22


class Normalise(nn.Module):
    """A module that normalises stored images on the device of its buffers (``.to(device)``).

    Args:
        mean: per channel, of images scaled to [0, 1].
        std: per channel, likewise.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float]):
        super().__init__()
        centre = torch.tensor(mean, dtype=torch.float32).view(-1, 1, 1)
        spread = torch.tensor(std, dtype=torch.float32).view(-1, 1, 1)
        if centre.shape != spread.shape:
            raise ValueError(f"mean has {len(mean)} channels, std {len(std)}; they must agree")
        self.scale: Tensor
        self.shift: Tensor
        self.register_buffer("scale", 1 / (255 * spread), persistent=False)
        self.register_buffer("shift", -centre / spread, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Map uint8 (B, H, W, C) to float32 (B, C, H, W), ``(image / 255 - mean) / std``."""
        return self.normalised(self.planes(images))

    def planes(self, images: Tensor) -> Tensor:
        """Map uint8 (B, H, W, C) to float32 (B, C, H, W) with the same values.

        Raises:
            ValueError: images of another type or number of channels.
        """
        channels = len(self.scale)
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[-1] != channels:
            raise ValueError(
                f"found images {images.dtype} {tuple(images.shape)}; allowed: uint8 (B, H, W, "
                f"{channels}), because mean and std have {channels} channels"
            )
        return images.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format)

    def normalised(self, planes: Tensor) -> Tensor:
        """Normalise numbers from 0 to 255."""
        return planes * self.scale + self.shift


class ResizeAndNormalise(Normalise):
    """A module that resizes stored images as Pillow does, then normalises them.

    Pillow resizes rows, rounds, resizes columns, and rounds again. Both steps are products with a matrix
    of weights. The last rounding is omitted, so a pixel differs by less than one of 255 levels.

    Args:
        mean: per channel, of images scaled to [0, 1].
        std: per channel, likewise.
        resize: to the size that the network reads.
        height: of stored images.
        width: of stored images.
    """

    def __init__(
        self,
        mean: Sequence[float],
        std: Sequence[float],
        resize: Resize,
        height: int,
        width: int,
    ):
        super().__init__(mean, std)
        to_height, to_width, top, left = resize.geometry(height, width)
        vertical = _resampling(height, to_height, resize)[top : top + resize.size]
        horizontal = _resampling(width, to_width, resize)[left : left + resize.size]
        self.vertical: Tensor
        self.horizontal: Tensor
        self.register_buffer("vertical", vertical.float(), persistent=False)
        self.register_buffer("horizontal", horizontal.T.contiguous(), persistent=False)
        self.black: Tensor
        self.white: Tensor
        self.register_buffer("black", self.shift.clone(), persistent=False)
        self.register_buffer("white", self.normalised(torch.tensor(255.0)), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Map uint8 (B, H, W, C) to float32 (B, C, size, size)."""
        # In float64 these products are exact, so they round as Pillow's integers do.
        exact = self.planes(images).double() @ self.horizontal
        rows = exact.add_(0.5).floor_().clamp_(0, 255).float()
        # The weights of a pixel sum to 1, so normalising commutes with resizing: do it on fewer pixels.
        return (self.vertical @ self.normalised(rows)).clamp_(self.black, self.white)


def _resampling(stored: int, length: int, resize: Resize) -> Tensor:
    """Return the weight of each stored pixel in each resized pixel of a line, float64 (length, stored)."""
    # Pillow's weights are multiples of 2^-22: it resizes lines in which one pixel is 2^22.
    lines = Image.fromarray(np.eye(stored, dtype=np.int32) << _WEIGHT_BITS)
    weights = lines.resize((length, stored), Image.Resampling[resize.interpolation.upper()])
    return torch.from_numpy(np.asarray(weights).T / 2.0**_WEIGHT_BITS)


class Widen(nn.Module):
    """A module that converts stored tokens and embeddings to the dtypes in which torch computes.

    It does not shorten padded texts. Compiled kernels need batches of one length, and most large batches
    contain a text of the maximum length.
    """

    def forward(self, stored: Tensor) -> Tensor:
        """Map int32 (B, length) to int64, and float16 or float32 (B, dimension) to float32."""
        return stored.to(_WIDE[stored.dtype])


_WIDE = {torch.int32: torch.int64, torch.float16: torch.float32, torch.float32: torch.float32}


def make_preprocess(
    mean: Sequence[float],
    std: Sequence[float],
    resize: Resize | None = None,
    shape: Sequence[int] = (),
) -> nn.Module:
    """Return the module that prepares stored inputs for a network.

    Args:
        mean: of the network's inputs, per channel; empty for a network that does not read images.
        std: likewise.
        resize: for stored images that are smaller than the network's input.
        shape: of a stored input; only needed with ``resize``.
    """
    if not mean:
        return Widen()
    if resize is None:
        return Normalise(mean, std)
    height, width, _ = shape
    return ResizeAndNormalise(mean, std, resize, height, width)
