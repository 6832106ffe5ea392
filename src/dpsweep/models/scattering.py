"""The scattering transform, a fixed network of wavelets, with a linear head.

Bruna and Mallat (2013), "Invariant Scattering Convolution Networks", with the Morlet wavelets and the order
of channels of Kymatio (Andreux et al. 2020). Tramèr and Boneh (2021), "Differentially Private Learning Needs
Better Features (or Much More Data)", train a linear layer on it privately. It has no weights that were
learned from data.
"""

import math
from collections.abc import Iterable
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpsweep.models.identity import transform
from dpsweep.study.backbones import GroupNorm

# The mother wavelet: width of its envelope in pixels, frequency in radians per pixel.
_WIDTH, _FREQUENCY = 0.8, 3 * math.pi / 4
# A filter is summed over this many periods of the image on each side.
_PERIODS = 2

Filter = npt.NDArray[np.complex128]


class Scattering(nn.Module):
    """The scattering transform of order 2, and a linear head on all its coefficients.

    Its 1 + scales * angles + angles^2 * scales * (scales - 1) / 2 channels for each channel of an image have
    ``image_size / 2^scales`` pixels to a side.

    Args:
        num_classes: outputs of the head.
        image_size: height and width, pixels; a multiple of ``2^scales``.
        scales: of wavelets; the largest averages over ``2^scales`` pixels.
        angles: of wavelets of a scale.
        in_chans: channels of an image.
        groups: of neighbouring channels, normalised to mean 0 and variance 1 in each example before the
            head (Tramèr and Boneh use 27 for 81 channels); 0 for no normalisation.

    Raises:
        ValueError: an argument is out of its range.

    >>> network = Scattering(num_classes=10)
    >>> network.scatter(torch.rand(2, 1, 28, 28)).shape
    torch.Size([2, 81, 7, 7])
    """

    def __init__(
        self,
        num_classes: int,
        image_size: int = 28,
        scales: int = 2,
        angles: int = 8,
        in_chans: int = 1,
        groups: int = 0,
    ):
        super().__init__()
        step = 2**scales
        if scales < 1 or angles < 1 or in_chans < 1:
            raise ValueError(
                f"found scales {scales}, angles {angles}, in_chans {in_chans}; allowed: from 1"
            )
        if image_size % step or image_size < 2 * step:
            raise ValueError(
                f"found image_size {image_size} with scales {scales}; allowed: a multiple of {step} from "
                f"{2 * step}"
            )
        self._scales = scales
        size = image_size + 2 * step  # a margin of one output pixel on each side
        for scale in range(scales):
            self.register_buffer(
                f"wavelets_{scale}",
                _spectra(_wavelet(size, scale, turn, angles) for turn in range(angles)),
                persistent=False,
            )
        self.register_buffer(
            "average",
            _spectra([_gabor(size, _WIDTH * step / 2, 0.0, 0.0, 1.0)])[0],
            persistent=False,
        )
        channels = in_chans * (1 + scales * angles + angles**2 * (scales * (scales - 1) // 2))
        if groups < 0 or (groups and channels % groups):
            raise ValueError(
                f"found groups {groups}; allowed: 0, or a divisor of {channels} channels"
            )
        self._transformation = GroupNorm(kind="group-norm", groups=groups) if groups else None
        self.head = nn.Linear(channels * (image_size // step) ** 2, num_classes)

    def get_classifier(self) -> nn.Module:
        """Return the head, like networks of timm."""
        return self.head

    def forward(self, input: Tensor) -> Tensor:
        """Map images (B, in_chans, H, W) to logits (B, num_classes)."""
        read = transform(self.scatter(input).flatten(1), self._transformation)
        return cast(Tensor, self.head(read))

    def scatter(self, images: Tensor) -> Tensor:
        """Return the coefficients of images.

        Args:
            images: (B, in_chans, H, W).

        Returns:
            (B, in_chans * channels, H / 2^scales, W / 2^scales): the mean; then order 1 by scale and angle;
            then order 2 by scale and angle of the first and of the second wavelet.
        """
        margin = 2**self._scales
        padded = F.pad(images, (margin,) * 4, mode="reflect")
        spectrum = torch.fft.fft2(padded)
        zero = self._averaged(spectrum, 0).unsqueeze(2)
        first: list[Tensor] = []
        second: list[Tensor] = []
        for scale in range(self._scales):
            waves = self._modulus(spectrum.unsqueeze(2), scale, 0)  # (B, C, angle, m, m)
            first.append(self._averaged(waves, scale))
            finer = [
                self._averaged(self._modulus(waves.unsqueeze(3), other, scale), other)
                for other in range(scale + 1, self._scales)
            ]  # each (B, C, angle, other angle, h, w)
            if finer:
                second.append(torch.cat(finer, dim=3).flatten(2, 3))
        return torch.cat([zero, *first, *second], dim=2).flatten(1, 2)

    def _modulus(self, spectrum: Tensor, scale: int, resolution: int) -> Tensor:
        """Return the spectrum of the modulus of wavelets, at the resolution of their scale.

        Args:
            spectrum: of their inputs.
            scale: of the wavelets.
            resolution: how many times ``spectrum`` has been subsampled by 2.
        """
        filters = _cropped(getattr(self, f"wavelets_{scale}"), 2**resolution)
        waves = _subsampled(spectrum * filters, 2 ** (scale - resolution))
        modulus: Tensor = torch.fft.fft2(torch.fft.ifft2(waves).abs())
        return modulus

    def _averaged(self, spectrum: Tensor, resolution: int) -> Tensor:
        """Return local averages, without margin, of a spectrum subsampled ``resolution`` times by 2."""
        average = _cropped(cast(Tensor, self.average), 2**resolution)
        smooth = _subsampled(spectrum * average, 2 ** (self._scales - resolution))
        averages: Tensor = torch.fft.ifft2(smooth).real
        return averages[..., 1:-1, 1:-1]


def _subsampled(spectrum: Tensor, factor: int) -> Tensor:
    """Return the spectrum of every ``factor``-th pixel, which is the mean over aliases."""
    size = spectrum.shape[-1] // factor
    aliases = spectrum.reshape(*spectrum.shape[:-2], factor, size, factor, size)
    return aliases.mean(dim=(-4, -2))


def _cropped(spectrum: Tensor, factor: int) -> Tensor:
    """Return the spectrum of a filter for a subsampled image: its lowest frequencies."""
    half = spectrum.shape[-1] // factor // 2
    kept = torch.arange(-half, half, device=spectrum.device).roll(half)
    return spectrum[..., kept, :][..., kept]


# Filters are computed without torch, which would import its compiler on the device "meta".
def _gabor(size: int, width: float, angle: float, frequency: float, slant: float) -> Filter:
    """Return a Gaussian envelope times a plane wave, periodic in ``size``; (size, size), sum about 1.

    Args:
        size: height and width, pixels.
        width: of the envelope along the wave, pixels.
        angle: of the wave, radians.
        frequency: of the wave, radians per pixel.
        slant: ratio of the widths along and across the wave.
    """
    line = np.arange(size) + np.arange(-_PERIODS, _PERIODS + 1)[:, None] * size
    down, right = line[:, :, None, None], line[None, None, :, :]
    along = down * math.cos(angle) + right * math.sin(angle)
    across = right * math.cos(angle) - down * math.sin(angle)
    envelope = np.exp(-(along**2 + (slant * across) ** 2) / (2 * width**2))
    wave: Filter = envelope * np.exp(1j * frequency * along)
    total: Filter = wave.sum(axis=(0, 2)) * slant / (2 * math.pi * width**2)
    return total


def _wavelet(size: int, scale: int, turn: int, angles: int) -> Filter:
    """Return a Morlet wavelet (size, size): a Gabor filter minus a multiple of its envelope, with mean 0."""
    angle = (int(angles / 2 - 1) - turn) * math.pi / angles
    shape = (_WIDTH * 2**scale, angle)
    wave = _gabor(size, *shape, _FREQUENCY / 2**scale, 4 / angles)
    envelope = _gabor(size, *shape, 0.0, 4 / angles)
    morlet: Filter = wave - wave.sum() / envelope.sum() * envelope
    return morlet


def _spectra(filters: Iterable[Filter]) -> Tensor:
    """Return the spectra of filters that are symmetric up to conjugation: (filters, size, size)."""
    return torch.tensor(np.fft.fft2(np.stack(list(filters))).real, dtype=torch.float32)
