"""Trials of the kit: the paper's row of CIFAR-100, and a small trial for the checks of resuming."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common import REPOSITORY
from benchmarks.gpu.kit import Kit
from benchmarks.gpu.synthetic import film_trial, write_images, write_vit
from dpsweep.base.files import read_json
from dpsweep.data.prepared import PreparedDataset
from dpsweep.models.backbone import PreparedBackbone
from dpsweep.privacy.noise import Calibration
from dpsweep.study import Cell, Paths, Study, load_study
from dpsweep.study.cells import optimizer_steps
from dpsweep.study.clipping import NoClipping
from dpsweep.study.networks import Film
from dpsweep.training import trial as trial_module
from dpsweep.training.context import TrialContext
from dpsweep.training.processes import Interrupted, interruption, watched
from dpsweep.training.store import TrialStore, parameters_after
from dpsweep.training.trial import TrialSpec, specify, train_trial

STUDY = REPOSITORY / "studies" / "gpu-cifar100.yaml"
CHECKPOINT_SECONDS = 30.0
REHEARSED = {"epsilon": [8.0], "batch_size": [64], "learning_rate": [0.01]}
_RECORDED = (
    *("accuracy", "macro_accuracy", "loss", "wall_seconds", "evaluation_seconds"),
    *("examples_per_second", "clipped_fraction", "physical_batch", "device"),
)


def _study(kit: Kit) -> Study:
    study = load_study(STUDY)
    if not kit.rehearse:
        return study
    sweeps = {name: each.model_copy(update=REHEARSED) for name, each in study.sweeps.items()}
    return study.model_copy(update={"sweeps": sweeps})


def _noise_file(study: Study, paths: Paths, cell: Cell) -> Path:
    dataset = study.problems[cell.problem].dataset
    return paths.noise(study, dataset, cell.epsilon, cell.epochs, cell.batch_size)


def groups(kit: Kit) -> Iterator[tuple[str, list[Cell], tuple[str, ...]]]:
    """Yield name, cells and needed files of a piece for every epsilon and clipping rule."""
    study, paths = _study(kit), Paths(kit.inputs)
    found: dict[tuple[bool, bool, float], list[Cell]] = {}
    for cell in study.all_cells():
        # The smallest and largest epsilon of the paper's row first, AUTO-S last.
        urgency = cell.clipping_bound == "automatic", cell.epsilon not in (0.5, 8.0), cell.epsilon
        found.setdefault(urgency, []).append(cell)
    for (automatic, _, epsilon), cells in sorted(found.items()):
        problem = study.problems[cells[0].problem]
        data, backbone = paths.dataset(problem.dataset), paths.backbone(problem.backbone)
        arrays = [
            f"{part}_{what}.npy" for part in ("train", "test") for what in ("inputs", "labels")
        ]
        needed = [
            *(data / each for each in (*arrays, "metadata.json")),
            *(backbone / each for each in ("model.safetensors", "metadata.json")),
            *(_noise_file(study, paths, cell) for cell in cells),
        ]
        relative = tuple(str(each.relative_to(kit.inputs)) for each in dict.fromkeys(needed))
        name = f"cifar100_{'automatic' if automatic else 'flat'}_eps{epsilon:g}"
        yield name, cells, () if kit.rehearse else relative


@watched()
def train(kit: Kit, cells: list[Cell]) -> dict[str, Any]:
    """Train some cells with one seed for every learning rate; the best trial is by macro accuracy.

    After a signal the trial saves its state before it stops.
    """
    study, paths = _study(kit), Paths(kit.inputs)
    problem = study.problems[cells[0].problem]
    if kit.rehearse:
        data, backbone = small_inputs(kit)
    else:
        data = PreparedDataset.open(paths.dataset(problem.dataset))
        backbone = PreparedBackbone.open(paths.backbone(problem.backbone))
    context = TrialContext(data, backbone, study.methods[problem.method], device=kit.device)
    store, rows = TrialStore(kit.work / "trials"), list[dict[str, Any]]()
    for cell in cells:
        noise = (
            _rehearsed(data)
            if kit.rehearse
            else Calibration.from_dict(read_json(_noise_file(study, paths, cell)))
        )
        for rate in study.sweeps[study.sweep_of(cell)].learning_rates:
            spec = specify(study, cell, noise, data, backbone, context.device, rate, seed=1)
            stored = store.load(spec.key)
            if stored is None:
                if stop := interruption(saved=bool(rows)):
                    raise stop
                checkpoint = store.checkpoint_path(spec.key)
                stored, _ = train_trial(spec, context, checkpoint, CHECKPOINT_SECONDS)
                store.save(spec.key, stored)
            asked = ("batch_size", "learning_rate", "noise_multiplier", "precision", "compile")
            rows.append(
                {"epsilon": cell.epsilon, "clipping": spec.clipping.kind}
                | {"clipping_bound": getattr(spec.clipping, "bound", None)}
                | {name: getattr(spec, name) for name in asked}
                | {name: stored.record[name] for name in _RECORDED}
            )
            print(rows[-1], flush=True)
    return {"trials": rows, "best": max(rows, key=lambda row: row["macro_accuracy"])}


def _rehearsed(data: PreparedDataset) -> Calibration:
    """Return uncalibrated noise for random images, which need no privacy."""
    size = data.metadata.train_size
    steps = optimizer_steps(size, 64, 2, "round")
    return Calibration(*(8.0, 1e-5, size, 64, steps, 1.0, 8.0, "none", 8.0, None, "a rehearsal"))


# -- a small trial ---------------------------------------------------------------------------


@dataclass(frozen=True)
class SmallTrial:
    """A trial of a few seconds on random images, on a chosen device."""

    spec: TrialSpec
    context: TrialContext
    folder: Path

    def without_noise(self) -> "SmallTrial":
        """Return the same trial without privacy, in float32."""
        spec = replace(self.spec, noise_multiplier=0.0, clipping=NoClipping(), device="any")
        return replace(self, spec=spec)

    def train(
        self, name: str, stop: int | None = None, begin: "SmallTrial | None" = None
    ) -> dict[str, np.ndarray[Any, Any]]:
        """Train to the end; return the parameters after the last epoch.

        Args:
            name: of the checkpoint.
            stop: stop the trial after this step, and resume it from its checkpoint.
            begin: the trial that trains until the stop; by default this one.
        """
        checkpoint = self.folder / f"{name}.checkpoint"
        checkpoint.unlink(missing_ok=True)
        if stop is not None:
            first, calls = begin or self, iter(range(1, 10**6))
            original = trial_module.processes.interruption
            trial_module.processes.interruption = (  # type: ignore[assignment]
                lambda *, saved: Interrupted(1) if saved and next(calls) == stop else None
            )
            try:
                train_trial(first.spec, first.context, checkpoint, 1e9)
                raise ValueError(f"the trial did not stop after step {stop}")
            except Interrupted:
                pass
            finally:
                trial_module.processes.interruption = original
        _, epochs = train_trial(self.spec, self.context, checkpoint, 1e9)
        return parameters_after(self.spec.epochs, epochs)


def small_trial(kit: Kit, device: torch.device) -> SmallTrial:
    """Return a trial of a few steps on random images."""
    data, backbone = small_inputs(kit)
    batches = {"batch_size": 64, "physical_batch": 32}
    spec = film_trial(data, backbone, device, epochs=2, learning_rate=1e-3, **batches)
    return SmallTrial(
        spec, TrialContext(data, backbone, Film(kind="film"), device=device), kit.work
    )


def small_inputs(kit: Kit) -> tuple[PreparedDataset, PreparedBackbone]:
    """Write random images in 100 classes, and a network of two layers with random weights."""
    folder = kit.work / "small"
    data = write_images(folder / "data", {"train": 320, "test": 100, "pixels": 32, "classes": 100})
    arguments = {"img_size": 32, "depth": 2, "embed_dim": 64, "num_heads": 2}
    return data, write_vit(folder / "backbone", arguments)
