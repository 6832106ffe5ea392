"""A study with trials of a tenth of a second, for tests of the trainer."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from dpsweep.data.prepare import prepare as prepare_dataset
from dpsweep.data.prepared import PreparedDataset
from dpsweep.models.backbone import PreparedBackbone
from dpsweep.models.prepare import prepare as prepare_backbone
from dpsweep.privacy import calibration
from dpsweep.privacy.noise import write_calibration
from dpsweep.study import Cell, Study
from dpsweep.study.clipping import FlatClipping
from dpsweep.study.paths import Paths
from dpsweep.training import trial as trial_module
from dpsweep.training.context import TrialContext
from dpsweep.training.processes import Interrupted
from dpsweep.training.store import Arrays
from dpsweep.training.trial import TrialSpec, specify, train_trial

N = 269
CPU = torch.device("cpu")
# Tests share a few calibrations, each of which takes half a second.
calibrate = lru_cache(calibration.calibrate)
SPEC = TrialSpec(
    data="digits",
    classes="classes",
    backbone="vit",
    method={"kind": "film"},
    optimizer="adam",
    epsilon=8.0,
    delta=1e-5,
    noise_multiplier=1.5,
    train_size=100,
    batch_size=10,
    epochs=1,
    steps=20,
    clipping=FlatClipping(1.0),
    learning_rate=0.1,
    seed=1,
    engine="auto",
    physical_batch=8,
    threads=1,
)
"""A trial without a study; tests replace fields of it."""


def tiny_sections(training: dict[str, Any], method: dict[str, Any], **sweep: Any) -> dict[str, Any]:
    """Return the YAML sections of a study: a fifth of the digits, a transformer of one block, one cell."""
    return {
        "title": "Tiny",
        "training": training,
        "datasets": {
            "digits": {
                "title": "Digits",
                "source": {"kind": "sklearn-digits", "test_share": 0.85},
                "image_size": 8,
                "classes": 10,
                "train_size": N,
                "test_size": 1528,
            }
        },
        "backbones": {
            "vit": {
                "title": "Transformer",
                "architecture": "vit_tiny_patch16_224",
                "arguments": {"img_size": 8, "patch_size": 4, "in_chans": 1, "embed_dim": 32}
                | {"depth": 1, "num_heads": 2},
                "weights": {"kind": "random"},
                "mean": [0.5],
                "std": [0.5],
            }
        },
        "methods": {"method": method},
        "sweeps": {
            "digits": {
                "dataset": "digits",
                "backbone": "vit",
                "method": "method",
                "epsilon": [8.0],
                "epochs": [1],
                "batch_size": ["full"],
                "clipping_bound": [1.0],
                "learning_rate": [0.003],
                "seeds": 1,
            }
            | sweep
        },
    }


def tiny_study(training: dict[str, Any], method: dict[str, Any], **sweep: Any) -> Study:
    """Validate `tiny_sections`."""
    return Study.model_validate(tiny_sections(training, method, **sweep))


class Prepared(NamedTuple):
    """A study, and its prepared dataset and backbone."""

    study: Study
    paths: Paths
    data: PreparedDataset
    backbone: PreparedBackbone

    def of(self, training: dict[str, Any], method: dict[str, Any], **sweep: Any) -> "Prepared":
        """Return another study of the same dataset and backbone; see `tiny_sections`."""
        return self._replace(study=tiny_study(training, method, **sweep))

    def copied(self, folder: Path) -> "Prepared":
        """Return the same study with a separate folder of results."""
        for part in ("data", "backbones"):
            (folder / part).symlink_to(self.paths.results / part)
        return self._replace(paths=Paths(folder))

    def ready(self, folder: Path) -> "Prepared":
        """Return the same study with a separate folder of results, which has its noise."""
        made, study = self.copied(folder), self.study
        for cell in study.all_cells():
            setting = "digits", cell.epsilon, cell.epochs, cell.batch_size
            sizes = study.train_size("digits"), study.batch_size(cell)
            noise = calibrate(cell.epsilon, 1e-5, *sizes, study.steps("digits", *setting[2:]))
            write_calibration(made.paths.noise(study, *setting), noise)
        return made

    def context(self, device: torch.device = CPU) -> TrialContext:
        """Return a context for trials of the study."""
        return TrialContext(
            self.data, self.backbone, self.study.methods["method"], self.study.holdout_share, device
        )

    def specs(self, steps: int, cell: Cell | None = None) -> dict[tuple[float, int], TrialSpec]:
        """Return the trials of a cell on the CPU, with noise for so many steps."""
        if cell is None:
            (cell,) = self.study.all_cells()
        size, batch_size = self.study.train_size("digits"), self.study.batch_size(cell)
        noise = calibrate(cell.epsilon, 1e-5, size, batch_size, steps)
        grid, given = self.study.sweeps[self.study.sweep_of(cell)], (self.data, self.backbone, CPU)
        return {
            (rate, seed): specify(self.study, cell, noise, *given, rate, seed)
            for rate in grid.learning_rates
            for seed in range(1, grid.seeds + 1)
        }

    def spec(self, steps: int) -> TrialSpec:
        """Return the only trial of the only cell."""
        (spec,) = self.specs(steps).values()
        return spec


def prepare(study: Study, folder: Path) -> Prepared:
    """Prepare the study's dataset and backbone; set torch to one thread."""
    torch.set_num_threads(1)
    paths = Paths(folder)
    prepare_dataset("digits", study.datasets["digits"], paths.dataset("digits"))
    prepare_backbone("vit", study.backbones["vit"], paths)
    data = PreparedDataset.open(paths.dataset("digits"))
    return Prepared(study, paths, data, PreparedBackbone.open(paths.backbone("vit")))


def end(spec: TrialSpec, context: TrialContext, checkpoint: Path | None = None) -> Arrays:
    """Train a trial; return its parameters after every epoch, and the statistics of its steps."""
    trial, epochs = train_trial(spec, context, checkpoint, 1e9)
    return {name: np.asarray(value) for name, value in (epochs | trial.steps).items()}


def assert_equal(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Compare arrays by name, bit for bit."""
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@contextmanager
def stopped_after(steps: int) -> Iterator[None]:
    """Interrupt the trial that is trained in this context after some steps."""
    calls = iter(range(1000))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            trial_module.processes,
            "interruption",
            lambda saved: Interrupted(75) if next(calls) == steps - 1 else None,
        )
        with pytest.raises(Interrupted):
            yield
