"""The wide residual network of De et al. (2022), which trains privately from scratch.

"Unlocking High-Accuracy Differentially Private Image Classification through Scale"
(arXiv:2204.13650): the network of Zagoruyko and Komodakis (2016) with group normalisation,
standardised weights, and the normalisation after the activation. Its reference implementation
(google-deepmind/jax_privacy) has 2,753,818 parameters for depth 16, width 4 and 10 classes.
"""

import math
from typing import cast

import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function

_GROUPS = 16
# It limits the scaling of nearly constant weights. The reference uses the maximum of this and the sum of
# squares; fused normalisations add it, which scales weights by 1 - 5e-5.
SMALLEST_SQUARES = 1e-4


def standardize(weight: Tensor, gain: Tensor) -> Tensor:
    """Standardise the weights of each output channel: mean 0 and sum of squares gain^2.

    Qiao et al. (2019), scaled by the fan-in as in Brock et al. (2021). `dpsweep.gradients` has a rule for
    this function, because per-example gradients go back through it.

    Args:
        weight: shape (out_channels, ...).
        gain: shape (out_channels,).
    """
    if has_torch_function((weight, gain)):
        return handle_torch_function(standardize, (weight, gain), weight, gain)
    fan_in = weight[0].numel()
    standardized = F.batch_norm(
        weight.reshape(1, len(weight), fan_in),
        running_mean=None,
        running_var=None,
        weight=gain / math.sqrt(fan_in),
        training=True,
        eps=SMALLEST_SQUARES / fan_in,
    )
    return standardized.view_as(weight)


class StandardizedConv2d(nn.Conv2d):
    """A convolution with weights standardised per output channel, gain and bias."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1):
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding=kernel_size // 2, bias=True
        )
        self.gain = nn.Parameter(self.weight.new_ones(out_channels))
        nn.init.kaiming_normal_(self.weight, nonlinearity="linear")
        nn.init.zeros_(cast(Tensor, self.bias))

    def forward(self, input: Tensor) -> Tensor:
        """Map (B, in_channels, H, W) to (B, out_channels, H / stride, W / stride)."""
        weight = standardize(self.weight, self.gain)
        return F.conv2d(input, weight, self.bias, self.stride, self.padding)


class _Block(nn.Module):
    """Two (activation, normalisation, convolution) layers and a skip connection."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, *, first: bool):
        super().__init__()
        self.norm1 = nn.GroupNorm(_GROUPS, in_channels)
        self.conv1 = StandardizedConv2d(in_channels, out_channels, 3, stride)
        self.norm2 = nn.GroupNorm(_GROUPS, out_channels)
        self.conv2 = StandardizedConv2d(out_channels, out_channels, 3)
        # The first block of a stage changes the shape, so its skip connection does too.
        self.skip: nn.Module = nn.Identity()
        if first:
            self.skip = nn.Sequential(
                nn.ReLU(),
                nn.GroupNorm(_GROUPS, in_channels),
                StandardizedConv2d(in_channels, out_channels, 1, stride),
            )

    def forward(self, input: Tensor) -> Tensor:
        hidden = self.conv1(self.norm1(F.relu(input)))
        hidden = self.conv2(self.norm2(F.relu(hidden)))
        return cast(Tensor, hidden + self.skip(input))


class WideResNet(nn.Module):
    """WRN-``depth``-``width`` for small images.

    Args:
        num_classes: outputs of the head.
        depth: layers with weights, 6 n + 4.
        width: channels as a multiple of (16, 32, 64).
        in_chans: channels of an image.
    """

    def __init__(self, num_classes: int, depth: int = 16, width: int = 4, in_chans: int = 3):
        super().__init__()
        if depth < 10 or (depth - 4) % 6:
            raise ValueError(f"found depth {depth}; allowed: 10, 16, 22, 28, ...")
        blocks = (depth - 4) // 6
        channels = 16
        self.stem = StandardizedConv2d(in_chans, channels, 3)
        stages: list[nn.Module] = []
        for stage, base in enumerate((16, 32, 64)):
            for index in range(blocks):
                first = index == 0
                stride = 2 if first and stage > 0 else 1
                stages.append(_Block(channels, base * width, stride, first=first))
                channels = base * width
        self.blocks = nn.Sequential(*stages)
        self.norm = nn.GroupNorm(_GROUPS, channels)
        self.head = nn.Linear(channels, num_classes)
        nn.init.kaiming_normal_(self.head.weight, nonlinearity="linear")
        nn.init.zeros_(self.head.bias)

    def get_classifier(self) -> nn.Module:
        """Return the head, like networks of timm."""
        return self.head

    def forward(self, input: Tensor) -> Tensor:
        """Map images (B, in_chans, H, W) to logits (B, num_classes)."""
        hidden = self.norm(F.relu(self.blocks(self.stem(input))))
        return cast(Tensor, self.head(hidden.mean(dim=(2, 3))))
