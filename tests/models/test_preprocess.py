from typing import Any

import numpy as np
import pytest
import timm.data
import torch
from PIL import Image
from tests.data.pictures import saved
from torchvision.transforms.v2.functional import normalize, to_dtype

from dpsweep.data.images import Transform
from dpsweep.data.prepared import Interpolation, Resize
from dpsweep.models.preprocess import Normalise, make_preprocess


@pytest.mark.parametrize(
    ("mean", "std"), [([0.3], [0.35]), ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])]
)
def test_normalisation_agrees_with_torchvision(mean: list[float], std: list[float]) -> None:
    random = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (5, 6, 7, len(mean)), generator=random, dtype=torch.uint8)
    planes = images.permute(0, 3, 1, 2)
    wanted = normalize(to_dtype(planes, torch.float32, scale=True), mean, std)
    found = Normalise(mean, std)(images)
    assert found.dtype == torch.float32
    assert found.is_contiguous()
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((2, 4, 4, 1), torch.uint8),
        ((2, 3, 4, 4), torch.uint8),
        ((2, 4, 4, 3), torch.float32),
        ((4, 4, 3), torch.uint8),
    ],
)
def test_invalid_images_are_refused(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match=r"allowed: uint8 \(B, H, W, 3\)"):
        Normalise([0.5] * 3, [0.5] * 3)(torch.zeros(shape, dtype=dtype))
    with pytest.raises(ValueError, match="must agree"):
        Normalise([0.5] * 3, [0.5])


@pytest.mark.parametrize("size", [(300, 200), (200, 301), (50, 60), (224, 224), (97, 96)])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
def test_crop_agrees_with_timm(size: tuple[int, int], interpolation: Any) -> None:
    random = np.random.default_rng(0)
    image = Image.fromarray(random.integers(256, size=(*size[::-1], 3), dtype=np.uint8))
    own = {"interpolation": interpolation, "mean": (0, 0, 0), "std": (1, 1, 1), "crop_pct": 0.9}
    wanted = timm.data.create_transform((3, 96, 96), **own)(image)
    found = Transform(Resize(size=96, interpolation=interpolation, crop=0.9))(saved(image))
    assert torch.equal(torch.from_numpy(found.copy()).permute(2, 0, 1) / 255, wanted)


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear", "nearest"])
@pytest.mark.parametrize(
    ("height", "width", "crop"), [(32, 32, None), (20, 32, None), (32, 24, 0.9), (31, 7, 0.875)]
)
def test_resizing_a_batch_agrees_with_resizing_at_preparation(
    height: int, width: int, crop: float | None, interpolation: Interpolation
) -> None:
    random = np.random.default_rng(0)
    images = random.integers(256, size=(20, height, width, 3), dtype=np.uint8)
    images[:10] = images[:10] // 128 * 255  # black and white, where bicubic overshoots most
    resize = Resize(size=96, interpolation=interpolation, crop=crop)
    preprocess = make_preprocess([0.0] * 3, [1 / 255] * 3, resize, images.shape[1:])
    found = preprocess(torch.from_numpy(images)).permute(0, 2, 3, 1).numpy()
    wanted = [Transform(resize)(saved(Image.fromarray(each))) for each in images]
    # Pillow rounds to whole levels at the end.
    np.testing.assert_allclose(found, wanted, rtol=0, atol=0.501)
