"""A plan counts exactly the missing outputs."""

import copy
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.described import study_of
from tests.planning.finished import finish_cell, finish_output
from tests.workflow.chain import STUDY

from dpsweep.base.errors import DpsweepError
from dpsweep.base.files import write_json
from dpsweep.base.units import duration
from dpsweep.planning.cost import ProblemCost
from dpsweep.planning.outputs import NormsKey, Outputs
from dpsweep.planning.plan import CostEstimate, Plan
from dpsweep.planning.status import Status
from dpsweep.study import Study
from dpsweep.study.paths import Paths

SWEEP, OTHER = "digits_vit_film", "digits_vit_film_sgd"


def content() -> dict[str, Any]:
    """Return the study of the workflow tests with a second sweep and an audit."""
    content = copy.deepcopy(STUDY)
    content["sweeps"][SWEEP]["clipping_bound"] = [0.1, 1.0, 10.0]
    other = {"optimizer": "sgd", "epochs": [2, 64], "seeds": 4}
    content["sweeps"][OTHER] = content["sweeps"][SWEEP] | other
    content["figures"]["heatmap"]["panels"][0]["clipping_bound"] = [0.1, 1.0]
    content["audit"] = {
        **{"sweep": SWEEP, "epsilon": [1.0, 8.0], "epochs": 2, "batch_size": [128]},
        **{"clipping_bound": 1.0, "learning_rate": 0.01, "canaries": 100, "guesses": 20},
    }
    return content


@pytest.fixture(scope="module")
def study() -> Study:
    return study_of(content())


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(tmp_path / "results")


def test_everything_is_planned_once(study: Study, paths: Paths) -> None:
    estimates = Plan(study, paths).estimates()
    # 2 batch sizes and 3 bounds; 3 trials a cell, 5 with four seeds.
    assert (estimates[SWEEP].cells, estimates[SWEEP].trials) == (6, 18)
    assert (estimates[OTHER].cells, estimates[OTHER].trials) == (12, 60)
    assert estimates["audit (2)"].trials == 2
    norms = ProblemCost(study, SWEEP).seconds("gradient_norms", 2)
    assert estimates["gradient norms (1)"] == CostEstimate(
        seconds=norms, longest=norms, bytes=estimates["gradient norms (1)"].bytes
    )
    costs = {epochs: ProblemCost(study, OTHER).cell(epochs).seconds for epochs in (2, 64)}
    assert estimates[OTHER].seconds == pytest.approx(6 * sum(costs.values()))
    assert estimates[OTHER].longest == pytest.approx(costs[64])
    assert Plan(study, paths, ["all"]).estimates() == estimates
    assert Plan(study, paths, [str(paths.report)]).estimates() == estimates


def test_finished_outputs_are_subtracted(study: Study, paths: Paths) -> None:
    before = Plan(study, paths).estimates()
    done = study.sweep_cells(SWEEP)[1]
    finish_cell(
        study, paths, done, seconds=ProblemCost(study, SWEEP).cell(2).seconds
    )  # as estimated
    after = Plan(study, paths).estimates()
    assert after[SWEEP].cells == 5
    assert after[SWEEP].seconds == pytest.approx(before[SWEEP].seconds * 5 / 6)
    assert after[SWEEP].bytes == pytest.approx(
        before[SWEEP].bytes - ProblemCost(study, SWEEP).bytes("train", done)
    )
    outputs = Outputs(study, paths)
    finish_output(outputs.audited(study.audit_cells()[0]))
    left = Plan(study, paths).estimates()
    assert set(left) == {SWEEP, OTHER, "gradient norms (1)", "theory (1)", "audit (1)"}
    for cell in (*study.sweep_cells(SWEEP), *study.sweep_cells(OTHER)):
        finish_cell(study, paths, cell)
    assert set(Plan(study, paths).estimates()) == {"gradient norms (1)", "theory (1)", "audit (1)"}
    finish_output(outputs.gradient_norms(NormsKey(SWEEP, 8.0, 2, 1.0)))
    (cell,) = outputs.drawn_theory()
    finish_output(outputs.theory(cell))
    assert set(Plan(study, paths).estimates()) == {"audit (1)"}
    plan = Plan(study, paths, [SWEEP, OTHER])
    assert plan.estimates() == {}
    assert next(plan.lines()).startswith("18 of 18 cells are done")


def test_a_widened_grid_plans_only_the_new_trials(study: Study, paths: Paths) -> None:
    grid = study.sweeps[SWEEP]
    kept = [(rate, 1) for rate in grid.learning_rates] + [(grid.learning_rates[0], 2)]
    for number, cell in enumerate(study.sweep_cells(SWEEP)):
        keys = [[*trial, f"{number}{place}"] for place, trial in enumerate(kept)]
        for *_, key in keys:
            paths.trial(key).parent.mkdir(parents=True, exist_ok=True)
            paths.trial(key).touch()
        write_json(paths.cell_timing(study, cell), {"trial_seconds": 3.0, "keys": keys})

    def planned(privacy: dict[str, Any] | None = None) -> CostEstimate:
        edited = content()
        edited["sweeps"][SWEEP] |= {"learning_rate": [*grid.learning_rates, 1.0], "seeds": 3}
        edited["privacy"] = edited.get("privacy", {}) | (privacy or {})
        return Plan(study_of(edited), paths, [SWEEP]).estimates()[SWEEP]

    widened = planned()
    # A cell has 3 rates with the first seed, and 2 further seeds: 2 of these 5 trials are new.
    assert (widened.cells, widened.trials) == (6, 12)
    other = planned({"delta": 1e-6})
    assert other.trials == 30 and widened.seconds == pytest.approx(0.4 * other.seconds)
    shutil.rmtree(paths.trials)
    assert planned().trials == 30


def test_measured_times_correct_the_estimate(study: Study, paths: Paths) -> None:
    first = study.sweep_cells(SWEEP)[0]
    finish_cell(study, paths, first, seconds=3 * ProblemCost(study, SWEEP).cell(2).seconds)
    estimates = Plan(study, paths).estimates()
    assert estimates[SWEEP].seconds == pytest.approx(
        5 * 3 * ProblemCost(study, SWEEP).cell(2).seconds
    )
    assert estimates[OTHER].longest == pytest.approx(3 * ProblemCost(study, OTHER).cell(64).seconds)
    assert estimates["gradient norms (1)"].seconds == pytest.approx(
        3 * ProblemCost(study, SWEEP).seconds("gradient_norms", 2)
    )


def test_the_gpu_hours_of_a_trial_on_several_gpus(study: Study, paths: Paths) -> None:
    """The work is divided; every GPU has the start of the job and the overhead of each step."""
    training = study.training.model_copy(update={"gpus": 4})
    several = study.model_copy(update={"training": training})
    cells = study.all_cells()
    one, four = (
        Plan(each, paths, [f"{cells[0].problem}/{cells[0].name}"]) for each in (study, several)
    )
    (alone,), (together,) = (
        [each for name, each in plan.estimates().items() if name == cells[0].problem]
        for plan in (one, four)
    )
    assert alone.longest / 4 < together.longest < alone.longest
    assert together.seconds == pytest.approx(4 * together.longest)
    norms = Plan(several, paths, ["norms"]).estimates()["gradient norms (1)"]
    assert norms.seconds == pytest.approx(4 * norms.longest)
    # What was measured on several GPUs is time of each of them.
    finish_cell(several, paths, cells[0], seconds=100.0, gpus=4)
    assert Status(several, paths).of(cells[:1]).spent == 400.0


@pytest.mark.parametrize(
    ("target", "cells"),
    [
        ("heatmap", 4),
        ("{R}/figures/heatmap.pdf", 4),
        ("norms", 2),
        ("{R}/cells/digits_vit_film/eps8_epochs2_Bfull_C10/trials.parquet", 1),
        (f"{{R}}/problems/{OTHER}.parquet", 12),
        ("grid", 0),
        ("heatmap norms heatmap", 4),  # which share cells
    ],
)
def test_targets_need_their_own_cells(study: Study, paths: Paths, target: str, cells: int) -> None:
    plan = Plan(study, paths, target.replace("{R}", str(paths.results)).split())
    assert sum(estimate.cells for estimate in plan.estimates().values()) == cells
    assert ("gradient norms (1)" in plan.estimates()) == ("norms" in target)


@pytest.mark.parametrize(
    "target", ["heatmaps", "{R}/figures/none.pdf", f"{OTHER}/eps8_epochs3_B128_C1", "{R}"]
)
def test_unknown_targets_are_refused_by_name(study: Study, paths: Paths, target: str) -> None:
    with pytest.raises(DpsweepError, match="allowed: "):
        Plan(study, paths, [target.replace("{R}", str(paths.results))])


def test_wall_time_has_two_limits(study: Study, paths: Paths) -> None:
    cost = ProblemCost(study, OTHER).cell(64).seconds
    plan = Plan(study, paths, [f"{OTHER}/eps8_epochs64_B128_C{bound}" for bound in (0.1, 1, 10)])
    wall = next(line for line in plan.lines([1, 2, 3, 50]) if line.startswith("Wall time"))
    times = [duration(cost * share) for share in (3, 1.5, 1, 1)]
    assert len(set(times)) == 3
    assert wall.endswith(f"{times[0]} at 1, {times[1]} at 2, {times[2]} at 3, {times[3]} at 50.")


def test_a_plan_has_the_release_in_the_place_of_sweeps_that_are_refused(paths: Paths) -> None:
    settings = {"epsilon": 4.0, "epochs": [2], "batch_size": ["full"], "clipping_bound": [1.0]}
    tuned = settings | {"learning_rate": [0.01, 0.1], "selection": "private", "mean_trials": 3.5}
    study = study_of(content() | {"release": {"sweep": SWEEP} | tuned})
    release = Plan(study, paths, refused={SWEEP}).estimates()["release"]
    one = ProblemCost(study, SWEEP).cell(2, trials=1).seconds
    assert (release.cells, release.trials) == (0, 4)
    assert release.seconds == pytest.approx(3.5 * one)
    everything = Plan(study, paths).estimates()
    assert "release" not in everything
    left = Plan(study, paths, refused={SWEEP}).estimates()
    assert SWEEP not in left and left[OTHER] == everything[OTHER]
    assert set(Plan(study, paths, ["release"]).estimates()) == {"release"}
    text = "\n".join(Plan(study, paths, refused={SWEEP, OTHER}).lines())
    assert "cells are done" not in text and "release" in text
    paths.release.mkdir(parents=True)
    assert "release" not in Plan(study, paths, refused={SWEEP}).estimates()
