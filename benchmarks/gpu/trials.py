"""Trials of the kit: the paper's row of CIFAR-100, and a small one that shows that all goes on."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common import REPOSITORY
from benchmarks.gpu.kit import Kit
from benchmarks.speed.synthetic import film_trial, write_images, write_vit
from dpsweep.base.files import read_json
from dpsweep.data.prepared import PreparedDataset
from dpsweep.models.backbone import PreparedBackbone
from dpsweep.privacy.record import Calibration
from dpsweep.study import Cell, Study, load_study
from dpsweep.study.cells import optimizer_steps
from dpsweep.study.clipping import NoClipping
from dpsweep.study.config import Film
from dpsweep.study.paths import Paths
from dpsweep.training import trial as trial_module
from dpsweep.training.checkpoint import parameters_after
from dpsweep.training.context import TrialContext
from dpsweep.training.job import Interrupted, interruption, watched
from dpsweep.training.specification import TrialSpec, specify
from dpsweep.training.store import TrialStore
from dpsweep.training.trial import train_trial

STUDY = REPOSITORY / "studies" / "gpu-cifar100.yaml"
CHECKPOINT_SECONDS = 30.0
_RECORDED = (
    *("accuracy", "macro_accuracy", "loss", "wall_seconds", "evaluation_seconds"),
    *("examples_per_second", "clipped_fraction", "physical_batch", "device"),
)


def _study(kit: Kit) -> Study:
    study = load_study(STUDY)
    if kit.rehearse:
        sweeps = {
            name: sweep.model_copy(
                update={"epsilon": [8.0], "batch_size": [64], "learning_rate": [0.01]}
            )
            for name, sweep in study.sweeps.items()
        }
        study = study.model_copy(update={"sweeps": sweeps})
    return study


def groups(kit: Kit) -> Iterator[tuple[str, list[Cell], tuple[str, ...]]]:
    """A piece for every epsilon and rule of clipping: its name, its cells, and the files it needs."""
    study = _study(kit)
    found: dict[str, list[Cell]] = {}
    for cell in study.all_cells():
        rule = "automatic" if cell.clipping_bound == "automatic" else "flat"
        found.setdefault(f"cifar100_{rule}_eps{cell.epsilon:g}", []).append(cell)
    paths = Paths(kit.inputs)
    # The ends of the paper's row first.
    for name in sorted(found, key=lambda name: ("automatic" in name, *_urgency(name))):
        cells = found[name]
        problem = study.problems[cells[0].problem]
        parts = (
            f"{part}_{what}.npy" for part in ("train", "test") for what in ("inputs", "labels")
        )
        needed = [
            *(paths.dataset(problem.dataset) / each for each in (*parts, "metadata.json")),
            *(
                paths.backbone(problem.backbone) / each
                for each in ("model.safetensors", "metadata.json")
            ),
            *(
                paths.noise(study, problem.dataset, c.epsilon, c.epochs, c.batch_size)
                for c in cells
            ),
        ]
        relative = [str(each.relative_to(kit.inputs)) for each in dict.fromkeys(needed)]
        yield name, cells, () if kit.rehearse else tuple(relative)


def _urgency(name: str) -> tuple[bool, float]:
    epsilon = float(name.split("eps")[1])
    return epsilon not in (0.5, 8.0), epsilon


@watched()
def train(kit: Kit, cells: list[Cell]) -> dict[str, Any]:
    """Train some cells, every learning rate with one seed; the best is by macro accuracy.

    A signal lets the trial save its state first.
    """
    study, paths = _study(kit), Paths(kit.inputs)
    problem = study.problems[cells[0].problem]
    if kit.rehearse:
        data, backbone = small_inputs(kit)
    else:
        data = PreparedDataset.open(paths.dataset(problem.dataset))
        backbone = PreparedBackbone.open(paths.backbone(problem.backbone))
    context = TrialContext(data, backbone, study.methods[problem.method], device=kit.device)
    store = TrialStore(kit.work / "trials")
    rows = []
    for cell in cells:
        if kit.rehearse:
            noise = _rehearsed(len(data.train_labels), 64)
        else:
            noise = Calibration.from_dict(
                read_json(
                    paths.noise(study, problem.dataset, cell.epsilon, cell.epochs, cell.batch_size)
                )
            )
        for rate in study.sweeps[study.sweep_of(cell)].learning_rates:
            spec = specify(study, cell, noise, data, backbone, context.device, rate, seed=1)
            stored = store.load(spec.key)
            if stored is None:
                if stop := interruption(saved=bool(rows)):
                    raise stop
                stored, _ = train_trial(
                    spec, context, store.checkpoint_path(spec.key), CHECKPOINT_SECONDS
                )
                store.save(spec.key, stored)
            rows.append(
                {
                    "epsilon": cell.epsilon,
                    "batch_size": spec.batch_size,
                    "clipping": spec.clipping.kind,
                    "clipping_bound": getattr(spec.clipping, "bound", None),
                    "learning_rate": rate,
                    "noise_multiplier": spec.noise_multiplier,
                    "precision": spec.precision,
                    "compile": spec.compile,
                }
                | {name: stored.record[name] for name in _RECORDED}
            )
            print(rows[-1], flush=True)
    return {"trials": rows, "best": max(rows, key=lambda row: row["macro_accuracy"])}


# -- a small trial ---------------------------------------------------------------------------


@dataclass(frozen=True)
class SmallTrial:
    """A trial of seconds on random images, on a device of its choice."""

    spec: TrialSpec
    context: TrialContext
    folder: Path

    def without_noise(self) -> "SmallTrial":
        """The same without privacy, in float32."""
        spec = replace(self.spec, noise_multiplier=0.0, clipping=NoClipping(), device="any")
        return replace(self, spec=spec)

    def train(
        self, name: str, stop: int | None = None, begin: "SmallTrial | None" = None
    ) -> dict[str, np.ndarray[Any, Any]]:
        """Train to the end; return the parameters after the last epoch.

        Args:
            name: of the checkpoint.
            stop: after this step the trial is stopped, and goes on from its checkpoint.
            begin: what trains until then; by default this.
        """
        checkpoint = self.folder / f"{name}.checkpoint"
        checkpoint.unlink(missing_ok=True)
        if stop is not None:
            first, calls = begin or self, iter(range(1, 10**6))
            original = trial_module.interruption
            trial_module.interruption = (  # type: ignore[assignment]
                lambda *, saved: Interrupted(1) if saved and next(calls) == stop else None
            )
            try:
                train_trial(first.spec, first.context, checkpoint, 1e9)
                raise ValueError(f"the trial did not stop after step {stop}")
            except Interrupted:
                pass
            finally:
                trial_module.interruption = original
        _, epochs = train_trial(self.spec, self.context, checkpoint, 1e9)
        return parameters_after(self.spec.epochs, epochs)


def small_trial(kit: Kit, device: torch.device) -> SmallTrial:
    """A trial of a few steps on random images."""
    data, backbone = small_inputs(kit)
    noise = _rehearsed(len(data.train_labels), 64)
    spec = film_trial(
        data,
        backbone,
        device,
        epsilon=noise.epsilon,
        delta=noise.delta,
        noise_multiplier=noise.noise_multiplier,
        train_size=noise.train_size,
        batch_size=noise.batch_size,
        epochs=2,
        steps=noise.steps,
        learning_rate=1e-3,
        physical_batch=32,
    )
    return SmallTrial(
        spec, TrialContext(data, backbone, Film(kind="film"), device=device), kit.work
    )


def small_inputs(kit: Kit) -> tuple[PreparedDataset, PreparedBackbone]:
    """Random images in 100 classes, and a network of two layers with random weights."""
    folder = kit.work / "small"
    data = write_images(folder / "data", {"train": 320, "test": 100, "pixels": 32, "classes": 100})
    arguments = {"img_size": 32, "depth": 2, "embed_dim": 64, "num_heads": 2}
    return data, write_vit(folder / "backbone", arguments)


def _rehearsed(train_size: int, batch_size: int) -> Calibration:
    """Noise for random images, which need no privacy: nothing is claimed for it."""
    steps = optimizer_steps(train_size, batch_size, 2, "round")
    return Calibration(
        *(8.0, 1e-5, train_size, batch_size, steps, 1.0, 8.0, "none", 8.0, None, "a rehearsal")
    )
