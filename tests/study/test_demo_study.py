"""``studies/demo.yaml``: every target of the paper, on small grids that still show something."""

import math
from pathlib import Path

from dpsweep.study import Study, load_study

ROOT = Path(__file__).parents[2]


def test_every_private_sweep_is_drawn(demo: Study) -> None:
    drawn = {
        cell
        for target in (demo.figures | demo.tables).values()
        for selection in target.selections()
        for cell in selection.cells()
    }
    assert drawn == {cell for cell in demo.all_cells() if math.isfinite(cell.epsilon)}


def test_learning_rates_are_tuned_and_trials_repeated(demo: Study) -> None:
    for name, sweep in demo.sweeps.items():
        assert len(sweep.learning_rates) >= 2, name
        assert sweep.seeds >= 2, name


def test_the_demo_has_every_way_of_training(demo: Study) -> None:
    sweeps = demo.sweeps.values()
    assert {demo.methods[sweep.method].kind for sweep in sweeps} == {
        "film", "lora", "all", "scratch",
    }  # fmt: skip
    assert {sweep.optimizer for sweep in sweeps} == {"adam", "sgd"}
    assert {demo.datasets[sweep.dataset].kind for sweep in sweeps} == {"image", "text"}
    automatic = [sweep for sweep in sweeps if sweep.clipping_bound == "automatic"]
    assert len(automatic) == 3
    assert all(len(sweep.epsilon) >= 2 for sweep in automatic)


def test_the_dense_demo_has_larger_grids_for_the_same_problems(demo: Study) -> None:
    dense = load_study(ROOT / "studies" / "demo-dense.yaml")
    assert dense.results != demo.results
    for axis in ("epsilon", "epochs", "batch_size", "clipping_bound"):
        for problem in demo.problems:
            values, fewer = (
                {getattr(cell, axis) for cell in study.all_cells() if cell.problem == problem}
                for study in (dense, demo)
            )
            assert len(values) >= len(fewer), (problem, axis)
    assert len(dense.all_cells()) >= 2 * len(demo.all_cells())
