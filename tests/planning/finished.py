"""Outputs of a study with placeholder content, for tests of plans and status."""

from typing import Any

from dpsweep.base.files import write_json
from dpsweep.planning.cost import GPU, CellCost, Device, ProblemCost
from dpsweep.planning.outputs import Output, Outputs
from dpsweep.study import Cell, Study
from dpsweep.study.paths import Paths

AUDIT: dict[str, Any] = {
    **{"sweep": "digits_vit_film", "epsilon": [8.0], "epochs": 2, "batch_size": [128]},
    **{"clipping_bound": 1.0, "learning_rate": 0.01, "canaries": 100, "guesses": 20},
}
"""An audit of the study of tests/workflow/chain.py."""


def cell_cost(
    study: Study, problem: str, epochs: int, device: Device = GPU, trials: int | None = None
) -> CellCost:
    """Estimate a cell of a problem."""
    return ProblemCost(study, problem, device).cell(epochs, trials)


def finish_output(output: Output) -> None:
    """Write the files of an output."""
    for file in output.files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(output.name)


def finish_all(study: Study, paths: Paths) -> None:
    """Write every output of a study, each after its inputs."""
    for output in Outputs(study, paths).every():
        finish_output(output)


def finish_cell(
    study: Study, paths: Paths, cell: Cell, seconds: float = 1.0, gpus: int = 1
) -> None:
    """Write a cell, and those of its inputs that are missing."""
    makers = {file: output for output in Outputs(study, paths).every() for file in output.files}

    def finish(output: Output) -> None:
        for maker in {makers[file].name: makers[file] for file in output.inputs}.values():
            if maker.missing():
                finish(maker)
        finish_output(output)

    finish(Outputs(study, paths).cell(cell))
    write_json(paths.cell_timing(study, cell), {"trial_seconds": seconds, "gpus": gpus})
