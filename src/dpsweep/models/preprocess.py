"""From what is stored to what a network takes."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Normalise(nn.Module):
    """Normalise stored images; it runs where its buffers are (``.to(device)``).

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
        channels = len(self.scale)
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[-1] != channels:
            raise ValueError(
                f"found images {images.dtype} {tuple(images.shape)}; allowed: uint8 (B, H, W, "
                f"{channels}), because mean and std have {channels} channels"
            )
        planes = images.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format)
        return planes * self.scale + self.shift


class Tokens(nn.Module):
    """Widen stored tokens to the type in which torch looks them up.

    The length stays: it is the same for all batches, which compiled kernels need, and in a batch
    that fills a device some text is as long as allowed anyhow.
    """

    def forward(self, tokens: Tensor) -> Tensor:
        """Map int32 (B, length) to int64."""
        if tokens.dtype != torch.int32 or tokens.ndim != 2:
            raise ValueError(
                f"found tokens {tokens.dtype} {tuple(tokens.shape)}; allowed: int32 (B, length)"
            )
        return tokens.to(torch.int64)


def make_preprocess(mean: Sequence[float], std: Sequence[float]) -> nn.Module:
    """Return what stands before a network: `Normalise`, or `Tokens` if it has no mean (text)."""
    return Normalise(mean, std) if mean else Tokens()
