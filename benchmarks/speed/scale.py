"""Measure studies of many cells: planning, status, and the two pages in a browser.

    python -m benchmarks.speed.scale 4000 20000 50000

The study is synthetic, 2,000 cells a problem and ten trials a cell. Commands are processes of their own;
pages are opened in a headless Chromium, whose processor time counts until cells can be pointed at.

The result goes to benchmarks/results/scale.json.
"""

import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml
from tests.browser import CHROMIUM, chromium
from tests.planning.finished import finish_output
from tests.report.test_explore import write_many_trials
from tests.synthetic import make_study

from benchmarks.common import RESULTS, command_line, environment, snakemake
from benchmarks.speed.workflow import time_command
from dpsweep.base.files import write_json
from dpsweep.planning.outputs import Outputs
from dpsweep.privacy.calibration import calibrate
from dpsweep.privacy.stored import write_calibration
from dpsweep.study import Study
from dpsweep.study.paths import Paths

RESULT = RESULTS / "scale.json"
_CELLS = 2000
_GRID: dict[str, Any] = {
    **{"epsilon": [float(i) for i in range(1, 11)], "epochs": [1, 2, 4, 8]},
    **{"clipping_bound": [float(i) for i in range(1, 11)], "batch_size": [50, 100, 150, 200, 250]},
    **{"learning_rate": [float(i) for i in range(1, 10)], "seeds": 2},
}


def make(cells: int) -> Study:
    """A study of so many cells."""
    names = [f"network{number}" for number in range(cells // _CELLS)]
    sweeps = {f"digits_{name}_film": _GRID | {"backbone": name} for name in names}
    return make_study(sweeps, backbones=names)


def calibrated(study: Study, paths: Paths) -> dict[str, float]:
    """Calibrate the noise of all cells; return the noise multiplier by the name of a cell."""
    dataset, delta = "digits", study.privacy.delta
    found: dict[Path, float] = {}
    of_cell: dict[str, float] = {}
    for cell in study.problem_cells(next(iter(study.problems))):
        file = paths.noise(study, dataset, cell.epsilon, cell.epochs, cell.batch_size)
        if file not in found:
            steps = study.steps(dataset, cell.epochs, cell.batch_size)
            sizes = study.train_size(dataset), study.batch_size(cell), steps
            noise = calibrate(cell.epsilon, delta, *sizes)
            write_calibration(file, noise)
            found[file] = noise.noise_multiplier
        of_cell[cell.name] = found[file]
    return of_cell


def measure(cells: int, folder: Path) -> dict[str, dict[str, float]]:
    """Measure a study in an empty folder."""
    study, paths = make(cells), Paths(folder / "results")
    content = study.model_dump(mode="json", exclude_none=True, by_alias=True)
    (folder / "study.yaml").write_text(yaml.safe_dump(content | {"results": "results"}))
    dpsweep = [sys.executable, "-m", "dpsweep.cli"]
    plan = snakemake(folder, "-n", "--quiet", "--config", "study=study.yaml", "--", "all")
    found = {"snakemake -n all --quiet, nothing there": time_command(plan, folder)}
    tables = {paths.problem(name): study.problem_cells(name) for name in study.problems}

    for output in Outputs(study, paths).every():
        finish_output(output)
        for file in tables.keys() & set(output.files):
            write_many_trials(study, paths, tables[file])
    found["snakemake -n all --quiet, everything there"] = time_command(plan, folder)
    found["dpsweep status"] = time_command([*dpsweep, "status", "study.yaml"], folder)
    # The pages read the tables of problems and the noise; what else is there has a name only.
    noise = calibrated(study, paths)
    for cells_of_one in tables.values():
        write_many_trials(study, paths, cells_of_one, noise)
    for prepared in ("data", "backbones"):
        shutil.rmtree(paths.results / prepared)
    for page, stage in (("explore.html", "explore"), ("report.html", "report")):
        command = [*dpsweep, stage, "--study", "study.yaml"]
        found[f"dpsweep {stage}"] = time_command(command, folder)
        found[f"{page} in a browser"] = _opened(paths.results / page)
    return found


def _opened(file: Path) -> dict[str, float]:
    with chromium(1400, 1000) as page:
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        began = time.monotonic()
        page.goto(file.as_uri())
        page.locator("#plot .mark, main section").first.wait_for()
        seconds = time.monotonic() - began
        metrics = {
            each["name"]: each["value"]
            for each in session.send("Performance.getMetrics")["metrics"]
        }
    return {
        "cpu_seconds": round(metrics["TaskDuration"], 2),
        "wall_seconds": round(seconds, 2),
        "megabytes": round(file.stat().st_size / 1e6, 1),
    }


def main() -> None:
    """Measure and write the result."""
    parser = command_line(__doc__)
    parser.add_argument("cells", type=int, nargs="+", help=f"multiples of {_CELLS}")
    described = environment("snakemake", "pandas")
    assert CHROMIUM, "needs chromium or google-chrome on the PATH"
    found = {}
    for cells in parser.parse_args().cells:
        with tempfile.TemporaryDirectory(prefix="scale-") as folder:
            found[cells] = measure(cells, Path(folder))
        print(cells, found[cells], flush=True)
    write_json(RESULT, {"environment": described, "calls": found})


if __name__ == "__main__":
    main()
