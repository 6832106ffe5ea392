"""Measure what a head on cached features costs: a trial, a cell, and a step against others.

    python -m benchmarks.speed.features

Features, images and labels are random: no accuracy comes out of it. Steps alternate in one process, so that
the load of the machine is the same for all of them. Results go to benchmarks/results/features.json.
"""

import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.common import RESULTS, command_line, environment
from benchmarks.speed.synthetic import small_study
from dpsweep.base.files import write_json
from dpsweep.data import Split, write_prepared
from dpsweep.data.prepared import FeatureIdentity
from dpsweep.gradients import make_engine
from dpsweep.models.architecture import Architecture
from dpsweep.models.backbone import write_backbone
from dpsweep.models.build import build_head, build_model, head_parameter_names
from dpsweep.privacy.calibration import calibrate
from dpsweep.privacy.stored import write_calibration
from dpsweep.study import Study
from dpsweep.study.clipping import FlatClipping
from dpsweep.study.config import HeadOnly
from dpsweep.study.paths import Paths
from dpsweep.training.cell import OpenCell, run_cell
from dpsweep.training.features import VERSION
from dpsweep.training.optimizer import PrivateOptimizer
from dpsweep.training.randomness import GaussianNoise, PoissonSampler

RESULT = RESULTS / "features.json"
TRAIN, TEST, WIDTH, CLASSES, EPOCHS = 50_000, 10_000, 192, 100, 8
BATCH_SIZES = [256, 4096, "full"]
STEP = 256
PIXELS = 96
REPEATS = 5
SAMPLING = "sampling of its batch alone"
NOISE = "noise for all parameters alone"
PRODUCTS = "the two float64 products alone"
"""of the features with the weights, and with the residuals"""


def study(results: Path) -> Study:
    """A cell of 12 trials for every batch size."""
    content = small_study(
        {"train": TRAIN, "test": TEST, "pixels": PIXELS, "classes": CLASSES},
        {"img_size": PIXELS},
        {"kind": "head"},
        epsilon=[1.0],
        epochs=[EPOCHS],
        batch_size=BATCH_SIZES,
        learning_rate={"first": 0.001, "last": 0.128, "count": 8},
        seeds=5,
    )
    content["backbones"]["vit"] |= {
        "weights": {"kind": "file", "path": "model.safetensors"},
        "features": {},
    }
    training = {"physical_batch": 2048}
    return Study.model_validate(content | {"results": str(results), "training": training})


def prepare(chosen: Study, paths: Paths) -> None:
    """Write random images' metadata, a random network and random features."""
    random = np.random.default_rng(0)

    def split(count: int, shape: tuple[int, ...], dtype: type) -> Split:
        labels = np.arange(count) % CLASSES
        inputs = (
            random.standard_normal((count, *shape))
            if dtype is np.float32
            else np.zeros((count, *shape))
        )
        return Split(inputs.astype(dtype), labels)

    common = {"name": "synthetic", "title": "Synthetic", "source": "random", "revision": None}
    classes = [str(each) for each in range(CLASSES)]
    # Nothing reads these images but their metadata.
    small = (1, 1, 3)
    data = write_prepared(
        paths.dataset("synthetic"),
        **common,
        classes=classes,
        train=split(TRAIN, small, np.uint8),
        test=split(TEST, small, np.uint8),
    )
    folder = paths.backbone("vit")
    architecture = Architecture(
        library="timm", name="vit_tiny_patch16_224", arguments={"img_size": PIXELS}
    )
    metadata: dict[str, Any] = {"name": "vit", "title": "ViT-Tiny", "architecture": architecture}
    metadata |= {"mean": (0.5,) * 3, "std": (0.5,) * 3, "parameters": 0}
    write_backbone(folder, {}, pretraining={"kind": "random"}, **metadata)
    network = build_model(folder, HeadOnly(kind="head"), CLASSES, seed=0)
    state = {key: each for key, each in network.state_dict().items() if not key.startswith("head.")}
    backbone = write_backbone(folder, state, pretraining={"kind": "file"}, **metadata)
    section = chosen.backbones["vit"].features
    assert section is not None  # it is the study of above
    write_prepared(
        paths.features("synthetic", "vit"),
        **common,
        classes=classes,
        train=split(TRAIN, (WIDTH,), np.float32),
        test=split(TEST, (WIDTH,), np.float32),
        kind="features",
        features=FeatureIdentity(
            dataset=data.metadata.checksum,
            backbone=backbone.metadata.checksum,
            features=section.model_dump(),
            version=VERSION,
        ),
    )


def cells(chosen: Study, paths: Paths) -> list[dict[str, Any]]:
    """Train a cell of 12 trials for every batch size."""
    rows = []
    for cell in chosen.all_cells():
        size, steps = chosen.batch_size(cell), chosen.steps("synthetic", EPOCHS, cell.batch_size)
        noise = calibrate(1.0, 1e-5, TRAIN, size, steps)
        file = paths.noise(study, "synthetic", cell.epsilon, EPOCHS, cell.batch_size)
        write_calibration(file, noise)
        timing: dict[str, Any] = {}
        started, processor = time.perf_counter(), time.process_time()
        opened = OpenCell.open(chosen, paths, cell)
        run_cell(opened, paths, chosen, progress=timing.update)
        wall = time.perf_counter() - started
        rows.append(
            {
                "batch_size": cell.batch_size,
                "steps": steps,
                "trials": timing["trials"],
                "trial_seconds": timing["trial_seconds"] / timing["trials"],
                "cell_seconds": wall,
                "processor_seconds": time.process_time() - processor,
            }
        )
        print(rows[-1], flush=True)
    return rows


def contender(name: str, model: nn.Module, inputs: Tensor) -> Callable[[], object]:
    """A private step of DP-Adam with an engine on some inputs."""
    model.eval()
    engine = make_engine(name, model, head_parameter_names(model))
    optimizer = PrivateOptimizer(
        torch.optim.Adam(engine.parameters.values(), lr=1e-3, fused=True),
        engine,
        FlatClipping(1.0),
        noise_multiplier=1.0,
        expected_batch_size=STEP,
        noise=GaussianNoise("benchmark", secret=b""),
    )
    labels = torch.arange(STEP) % CLASSES
    mask = torch.ones(STEP, dtype=torch.bool)
    return lambda: optimizer.step([(inputs, labels, mask)])


def steps(paths: Paths) -> dict[str, float]:
    """Median seconds of a step of 256 examples, and of what no private step can do without, in turn."""
    images = torch.randn(STEP, 3, PIXELS, PIXELS)
    features = torch.randn(STEP, WIDTH)
    head = HeadOnly(kind="head")
    sampler, noise = (
        PoissonSampler(TRAIN, STEP, "benchmark", secret=b""),
        GaussianNoise("benchmark", secret=b""),
    )
    total = torch.zeros(CLASSES * (WIDTH + 1), dtype=torch.float64)
    wide, weights = features.double(), torch.randn(CLASSES, WIDTH, dtype=torch.float64)
    contenders: dict[str, Callable[[], object]] = {
        "cached features": contender("linear", build_head(WIDTH, CLASSES), features),
        "Opacus on the same features": contender("opacus", build_head(WIDTH, CLASSES), features),
        "network in the loop": contender(
            "auto", build_model(paths.backbone("vit"), head, CLASSES, 0), images
        ),
        SAMPLING: lambda: sampler.batch(0),
        NOISE: lambda: noise.add_to(total, 0, 1.0),
        PRODUCTS: lambda: (wide @ weights.T).T @ wide,
    }
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for repeat in range(REPEATS + 1):
        for name, step in contenders.items():
            times = 1 if name == "network in the loop" else 20
            started = time.perf_counter()
            for _ in range(times):
                step()
            if repeat:  # the first one sets things up
                seconds[name].append((time.perf_counter() - started) / times)
    return {name: statistics.median(values) for name, values in seconds.items()}


def main() -> None:
    """Measure and write the result."""
    command_line(__doc__).parse_args()
    torch.set_num_threads(1)
    packages = ("torch", "timm", "opacus", "numpy")
    before = environment(*packages, device=f"one core, {platform.machine()}")
    with tempfile.TemporaryDirectory() as folder:
        chosen, paths = study(Path(folder)), Paths(Path(folder))
        prepare(chosen, paths)
        step = steps(paths)
        print(step, flush=True)
        content = {
            "size": {"train": TRAIN, "features": WIDTH, "classes": CLASSES, "epochs": EPOCHS},
            "step": {"examples": STEP, "pixels": PIXELS, "seconds": step},
            "cells": cells(chosen, paths),
            "environment": before,
        }
    write_json(RESULT, content)


if __name__ == "__main__":
    main()
