"""Fixed featurisers with a linear head: embeddings of another network, hashed n-grams, scattering.

None has weights that were learned from data, so a private model of them needs no download.

**Hashed n-grams.** Weinberger et al. (2009), "Feature Hashing for Large Scale Multitask Learning": each
n-gram of the bytes of a text adds +1 or -1 to one of a fixed number of features, both by its hash. This is a
random projection of all counts of n-grams, whose inner products are those of the counts in the mean. N-grams
of bytes keep parts of words, as in Bojanowski et al. (2017), "Enriching Word Vectors with Subword
Information".

**Scattering.** Bruna and Mallat (2013), "Invariant Scattering Convolution Networks", with the Morlet
wavelets and the order of channels of Kymatio (Andreux et al. 2020). Tramèr and Boneh (2021), "Differentially
Private Learning Needs Better Features (or Much More Data)", train a linear layer on it privately.
"""

import math
from collections.abc import Iterable
from typing import Literal, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from dpsweep.data.prepared import PADDING
from dpsweep.study.networks import BackboneError, GroupNorm

Transformation = Literal["layer-norm", "unit-norm", "group-norm"]


class Identity(nn.Module):
    """A linear head on vectors, which may be normalised one by one.

    Args:
        num_classes: outputs of the head.
        dimension: of the vectors.
        transformation: layer-norm: to mean 0 and variance 1 over the numbers of a vector; unit-norm: to
            length 1; group-norm: like layer-norm, over each of ``groups`` parts.
        groups: of neighbouring numbers, for group-norm.

    Raises:
        ValueError: an argument is out of its range.

    >>> network = Identity(num_classes=10, dimension=4, transformation="unit-norm")
    >>> network.normalised(torch.tensor([[0.0, 3.0, 4.0, 0.0]]))
    tensor([[0.0000, 0.6000, 0.8000, 0.0000]])
    """

    def __init__(
        self,
        num_classes: int,
        dimension: int,
        transformation: Transformation | None = None,
        groups: int | None = None,
    ):
        super().__init__()
        known = (None, "layer-norm", "unit-norm", "group-norm")
        if transformation not in known or (groups is None) == (transformation == "group-norm"):
            raise ValueError(
                f"found transformation {transformation!r} with groups {groups}; allowed: layer-norm, "
                "unit-norm, or group-norm with groups"
            )
        self._transformation = (
            GroupNorm(kind="group-norm", groups=groups) if groups is not None else transformation
        )
        transform(torch.zeros(1, dimension), self._transformation)  # refuses other parts
        self.head = nn.Linear(dimension, num_classes)

    def get_classifier(self) -> nn.Module:
        """Return the head, like networks of timm."""
        return self.head

    def forward(self, input: Tensor) -> Tensor:
        """Map vectors (B, dimension) to logits (B, num_classes)."""
        return cast(Tensor, self.head(self.normalised(input)))

    def normalised(self, vectors: Tensor) -> Tensor:
        """Return the inputs of the head, shape (B, dimension)."""
        return transform(vectors, self._transformation)


def transform(features: Tensor, transformation: str | GroupNorm | None) -> Tensor:
    """Apply a transformation of a study to float32 (N, features), one example at a time.

    Raises:
        BackboneError: the features cannot be divided into that many groups of two or more.
    """
    if transformation is None:
        return features
    if transformation == "unit-norm":
        return functional.normalize(features, dim=1)
    groups = transformation.groups if isinstance(transformation, GroupNorm) else 1
    width = features.shape[1]
    if width % groups or width == groups:
        raise BackboneError(
            f"groups: found {groups}; allowed: a divisor of the {width} features, and fewer than these: a "
            "number in a group of its own would become 0"
        )
    apart = features.reshape(-1, groups, width // groups)
    return functional.layer_norm(apart, apart.shape[2:]).flatten(1)


# -- hashed n-grams ----------------------------------------------------------------------------

# The generator splitmix64 (Steele, Lea and Flood 2014); torch has signed integers, which wrap around.
_STEP, _FIRST, _SECOND = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15


class HashedNgrams(nn.Module):
    """Features of the n-grams of a text's bytes, and a linear head on them.

    A feature is the signed root of the sum of the signs of its n-grams, because the tenth occurrence of a
    word says less than the first.

    Args:
        num_classes: outputs of the head.
        dimension: number of features.
        shortest: bytes of the shortest n-grams.
        longest: bytes of the longest n-grams.

    Raises:
        ValueError: an argument is out of its range.

    >>> network = HashedNgrams(num_classes=4, dimension=512)
    >>> network.count(torch.tensor([list(b" refund"), list(b" error ")])).shape
    torch.Size([2, 512])
    """

    def __init__(
        self, num_classes: int, dimension: int = 1024, shortest: int = 3, longest: int = 5
    ):
        super().__init__()
        if dimension < 2 or not 1 <= shortest <= longest:
            raise ValueError(
                f"found dimension {dimension}, shortest {shortest}, longest {longest}; allowed: dimension "
                "from 2, 1 <= shortest <= longest"
            )
        self._lengths = range(shortest, longest + 1)
        self.head = nn.Linear(dimension, num_classes)

    def get_classifier(self) -> nn.Module:
        """Return the head, like networks of timm."""
        return self.head

    def forward(self, tokens: Tensor) -> Tensor:
        """Map int64 (B, length), -1 after the end of a text, to logits (B, classes)."""
        return cast(Tensor, self.head(self.count(tokens)))

    def count(self, tokens: Tensor) -> Tensor:
        """Return the inputs of the head, float32 (B, dimension)."""
        texts, dimension = len(tokens), self.head.in_features
        features = torch.zeros(texts, dimension, device=tokens.device)
        for length in self._lengths:
            if tokens.shape[1] < length:
                break
            ngrams = tokens.long().unfold(1, length, 1)
            hashes = torch.full_like(ngrams[..., 0], length)
            for each in range(length):
                hashes = _mixed(hashes + ngrams[..., each])
            inside = ngrams[..., -1] != PADDING
            signs = (1 - 2 * (hashes & 1)) * inside
            features.scatter_add_(1, (hashes >> 1) % dimension, signs.to(features.dtype))
        return features.sign() * features.abs().sqrt()

    def made_up(self, examples: int, length: int) -> Tensor:
        """Return texts of random bytes, int32 (examples, length), without padding."""
        random = torch.Generator().manual_seed(0)
        return torch.randint(256, (examples, length), generator=random, dtype=torch.int32)


def _mixed(numbers: Tensor) -> Tensor:
    """Return hashes of 64-bit integers, not negative."""
    numbers = numbers + _STEP
    numbers = (numbers ^ (numbers >> 30 & (1 << 34) - 1)) * _FIRST
    numbers = (numbers ^ (numbers >> 27 & (1 << 37) - 1)) * _SECOND
    return (numbers ^ (numbers >> 31 & (1 << 33) - 1)) & (1 << 63) - 1


# -- scattering --------------------------------------------------------------------------------

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
        channels = in_chans * (1 + scales * angles + angles**2 * (scales * (scales - 1) // 2))
        small = min(scales, angles, in_chans) < 1 or groups < 0 or image_size < 2 * step
        if small or image_size % step or (groups and channels % groups):
            raise ValueError(
                f"found image_size {image_size}, scales {scales}, angles {angles}, in_chans {in_chans}, "
                f"groups {groups}; allowed: an image_size of 2 or more times {step}, groups 0 or a divisor "
                f"of {channels} channels, and the others from 1"
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
        padded = functional.pad(images, (margin,) * 4, mode="reflect")
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
