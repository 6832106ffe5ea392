import pytest
import torch
from torchvision.transforms.v2.functional import normalize, to_dtype

from dpsweep.models.preprocess import Normalise


@pytest.mark.parametrize(
    ("mean", "std"), [([0.3], [0.35]), ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])]
)
def test_agrees_with_torchvision(mean: list[float], std: list[float]) -> None:
    random = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (5, 6, 7, len(mean)), generator=random, dtype=torch.uint8)
    planes = images.permute(0, 3, 1, 2)
    wanted = normalize(to_dtype(planes, torch.float32, scale=True), mean, std)
    found = Normalise(mean, std)(images)
    assert found.dtype == torch.float32
    assert found.is_contiguous()
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "images",
    [
        torch.zeros(2, 4, 4, 1, dtype=torch.uint8),
        torch.zeros(2, 3, 4, 4, dtype=torch.uint8),
        torch.zeros(2, 4, 4, 3),
        torch.zeros(4, 4, 3, dtype=torch.uint8),
    ],
)
def test_other_images_are_refused(images: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"allowed: uint8 \(B, H, W, 3\)"):
        Normalise([0.5] * 3, [0.5] * 3)(images)


def test_mean_and_std_have_the_same_channels() -> None:
    with pytest.raises(ValueError, match="must agree"):
        Normalise([0.5] * 3, [0.5])
