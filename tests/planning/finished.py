"""Outputs of a study with placeholder content, for tests of plans and status."""

from dpsweep.base.files import write_json
from dpsweep.planning.outputs import Output, Outputs
from dpsweep.study import Cell, Study
from dpsweep.study.paths import Paths


def finish_output(output: Output) -> None:
    """Write the files of an output."""
    for file in output.files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(output.name)


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
