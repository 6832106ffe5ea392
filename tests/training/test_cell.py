"""A cell's outputs say what it was trained for."""

from pathlib import Path

from tests.training.tiny_study import N, prepare, tiny_study

from dpsweep.files import write_json
from dpsweep.planning.status import Status
from dpsweep.privacy import calibrate
from dpsweep.training.cell import run_cell


def test_a_trained_cell_is_done_until_its_seeds_change(tmp_path: Path) -> None:
    study = tiny_study({}, {"kind": "film"})
    paths = prepare(study, tmp_path)[0]
    (cell,) = study.sweep_cells("digits")
    noise = calibrate(8.0, study.privacy.delta, N, N, 1)
    write_json(paths.noise("digits", 8.0, 1, "full"), {"calibration": noise.to_dict()})
    run_cell(study, paths, cell)
    assert Status(study, paths).states[cell] == "done"
    sweep = study.sweeps["digits"].model_copy(update={"seeds": 2})
    edited = study.model_copy(update={"sweeps": {"digits": sweep}})
    assert Status(edited, paths).states[cell] == "waiting"
