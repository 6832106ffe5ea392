"""Outputs of a study, written by hand: their content matters to nobody who only plans."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dpsweep.planning.outputs import Output, Outputs
from dpsweep.planning.provenance import making
from dpsweep.study import Cell, Study
from dpsweep.study.paths import Paths

AUDIT: dict[str, Any] = {
    **{"sweep": "digits_vit_film", "epsilon": [8.0], "epochs": 2, "batch_size": [128]},
    **{"clipping_bound": 1.0, "learning_rate": 0.01, "canaries": 100, "guesses": 20},
}
"""An audit of the study of tests/workflow/chain.py."""


def write_name(output: Output, file: Path) -> None:
    """Write the name of an output."""
    file.write_text(output.name)


def finish_output(
    paths: Paths,
    output: Output,
    write: Callable[[Output, Path], None] = write_name,
    **timing: Any,
) -> None:
    """Write an output's files and what a job says of them."""
    with making(paths, output) as job:
        for file in output.files:
            file.parent.mkdir(parents=True, exist_ok=True)
            write(output, file)
        job.timing = timing


def finish_all(
    study: Study,
    paths: Paths,
    seconds: float = 1.0,
    write: Callable[[Output, Path], None] = write_name,
) -> list[Output]:
    """Write every output of a study, each at the same price."""
    outputs = list(Outputs(study, paths).every())
    for output in outputs:
        finish_output(paths, output, write, trial_seconds=seconds)
    return outputs


def finish_cell(study: Study, paths: Paths, cell: Cell, seconds: float = 1.0) -> None:
    """Write a cell and all that it is made from."""
    makers = {file: output for output in Outputs(study, paths).every() for file in output.files}

    def finish(output: Output, **timing: Any) -> None:
        for maker in {makers[file].name: makers[file] for file in output.inputs}.values():
            finish(maker)
        finish_output(paths, output, **timing)

    finish(Outputs(study, paths).cell(cell), trial_seconds=seconds)
