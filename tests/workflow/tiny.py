"""A study that runs in seconds on generated images."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tests.workflow.chain import Chain, vit_study

SWEEP = "pets_vit_film"
CLASSES, SIZE = 3, 8
SPLITS = {"pets": {"train": 32, "test": 8}, "toys": {"train": 8, "test": 2}}


def _dataset(name: str) -> dict[str, Any]:
    train, test = (CLASSES * each for each in SPLITS[name].values())
    return {
        "title": name.title(),
        "source": {"kind": "folder", "path": f"images/{name}"},
        "image_size": SIZE,
        "classes": CLASSES,
        "train_size": train,
        "test_size": test,
    }


STUDY = vit_study(
    "Tiny",
    {name: _dataset(name) for name in SPLITS},
    {
        "weights": {"kind": "pretrain", "dataset": "toys", "epochs": 1},
        "mean": [0.5, 0.5, 0.5],
        "std": [0.5, 0.5, 0.5],
    },
    batch_size=[32, "full"],
    clipping_bound=[1.0],
) | {
    "privacy": {"delta": 1e-3},
    # Even the shortest trial writes checkpoints.
    "training": {"physical_batch": 128, "checkpoint_minutes": 0.001},
}


def make_images(folder: Path) -> None:
    """Write the images of both datasets: noise around a colour for each class."""
    draw = np.random.default_rng(0)
    for name, splits in SPLITS.items():
        for split, count in splits.items():
            for label in range(CLASSES):
                place = folder / "images" / name / split / f"class{label}"
                place.mkdir(parents=True)
                for index in range(count):
                    pixels = draw.integers(0, 128, (SIZE, SIZE, 3), dtype=np.uint8)
                    pixels[..., label] += 100
                    Image.fromarray(pixels).save(place / f"{index}.png")


class TinyChain(Chain):
    """The tiny study in its own folder."""

    def __init__(self, folder: Path, study: dict[str, Any] = STUDY) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "images").exists():
            make_images(folder)
        super().__init__(folder, copy.deepcopy(study))
