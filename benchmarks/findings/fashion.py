"""Keep the trials of studies/fashion-mnist.yaml and studies/optimizers.yaml for docs/findings.md.

    python -m benchmarks.findings.fashion            # from results/, then python -m benchmarks.tables
    python -m benchmarks.findings.fashion --numbers  # from the committed trials

Trials of finished cells go to benchmarks/results/fashion/<study>.parquet, numbers to
<study>.json beside them.
"""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.common import REPOSITORY, RESULTS, command_line
from benchmarks.findings.numbers import collect, gather, keep_trials
from dpsweep.base.files import write_json
from dpsweep.study import Paths, Study, load_study
from dpsweep.study.choice import choose
from dpsweep.tables.compared_grids import optimizers_table, paired_gains

KEPT = RESULTS / "fashion"


def keep(study: Study, file: Path) -> None:
    """Keep the trials of all finished cells, and the numbers of existing figures of the theory."""
    paths = Paths(Path(study.results))
    cells = [cell for cell in study.all_cells() if paths.cell_trials(study, cell).exists()]
    if cells:
        keep_trials(gather(study, paths, cells, ["last_macro_accuracy"]), file)
    for name in ("optimal_clipping", "privacy_effects"):
        if (drawn := paths.figure(f"theory_{name}", "csv")).exists():
            shutil.copyfile(drawn, KEPT / "theory" / f"{name}.csv")


def _trials_of_sweeps(study: Study, trials: pd.DataFrame, *sweeps: str) -> pd.DataFrame:
    """Return the trials of some sweeps."""
    cells = [(cell.problem, cell.name) for name in sweeps for cell in study.sweep_cells(name)]
    return trials[pd.MultiIndex.from_frame(trials[["problem", "cell"]]).isin(cells)]


def _complete_settings(study: Study, trials: pd.DataFrame, *sweeps: str) -> pd.DataFrame:
    """Return the trials of those epsilons and epochs for which all cells of the sweeps are trained."""
    setting = ["epsilon", "epochs"]
    asked = pd.Series([(c.epsilon, c.epochs) for name in sweeps for c in study.sweep_cells(name)])
    trained = trials.groupby(setting)["cell"].transform("nunique")
    wanted = pd.MultiIndex.from_frame(trials[setting]).map(asked.value_counts())
    return trials[trained == wanted]


def published(trials: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the accuracies of the published setting, by optimizer."""
    best = trials[trials["best"]].sort_values(["optimizer", "seed"])
    return [
        {
            "optimizer": optimizer,
            "learning_rate": float(rows["learning_rate"].iloc[0]),
            "wall_seconds": float(rows["wall_seconds"].median()),
            "accuracies": rows["macro_accuracy"].tolist(),
        }
        for optimizer, rows in best.groupby("optimizer")
    ]


def collect_sweeps(study: Study, trials: pd.DataFrame) -> dict[str, Any]:
    """Return the published settings, and accuracies along C and B."""
    along = _trials_of_sweeps(study, trials, "shorter", "longer")
    swept = _complete_settings(study, along, "shorter", "longer")
    found = collect(study, swept) if len(swept) else {}
    grids = (
        [f"{level}-{place}" for place in ("quarter", "advised", "fourfold")]
        for level in ("low", "middle", "high")
    )
    return found | {
        "published": published(_trials_of_sweeps(study, trials, "published", "momentum")),
        "advice": [row for grid in grids if (row := advice(study, trials, swept, grid))],
    }


def advice(
    study: Study, trials: pd.DataFrame, swept: pd.DataFrame, sweeps: list[str]
) -> dict[str, Any] | None:
    """Return the accuracies of the formula's setting, of its small grid, and of a search over C and B.

    The first seed measures the formula's setting, because no accuracy was used to choose it. In the small
    grid, the first seed chooses and the other seeds measure.

    Args:
        study: the study.
        trials: of its cells.
        swept: trials of the search, for the epsilons and epochs with all cells.
        sweeps: names of the sweeps of the small grid; the second has the advised B.

    Returns:
        None if some of the cells are not trained.
    """
    grid = _trials_of_sweeps(study, trials, *sweeps)
    cells = [cell for sweep in sweeps for cell in study.sweep_cells(sweep)]
    epsilon, epochs = cells[0].epsilon, cells[0].epochs
    searched = swept[(swept["epsilon"] == epsilon) & (swept["epochs"] == epochs)]
    if searched.empty or grid["cell"].nunique() < len(cells):
        return None
    columns = ["batch_size", "clipping_bound", "learning_rate"]
    first, others = grid[grid["seed"] == 1], grid[grid["seed"] > 1]
    middle = study.sweeps[sweeps[1]].learning_rates[1]
    own = (first["cell"] == cells[1].name) & np.isclose(first["learning_rate"], middle)
    advised, chosen = first[own].squeeze(), first.loc[first["selection_accuracy"].idxmax()]
    repeated = others[
        (others[["cell", "learning_rate"]] == chosen[["cell", "learning_rate"]]).all(axis=1)
    ]

    search = choose(searched, by=["problem"])

    def row(trial: pd.Series, accuracy: float) -> list[float]:
        return [*map(float, trial[columns]), round(100 * accuracy, 2)]

    return {
        "epsilon": epsilon,
        "searched": round(100 * float(search["cross_fitted"].iloc[0]), 2),
        "advised": row(advised, advised["macro_accuracy"]),
        "chosen": row(chosen, repeated["macro_accuracy"].mean()),
    }


def collect_optimizers(study: Study, trials: pd.DataFrame) -> dict[str, Any]:
    """Return the gain of each optimizer over DP-Adam, over all settings and for each epsilon."""
    averaged = [name for name in study.every_optimizer if study.optimizer(name).average]
    last = trials["last_macro_accuracy"].where(trials["optimizer"].isin(averaged))
    trials = trials.assign(last_macro_accuracy=last)
    gains = optimizers_table(paired_gains(trials, "adam"), "adam").round(3)
    gains["title"] = [study.optimizer_title(name, [1.0]) for name in gains["optimizer"]]
    return {"gains": gains.astype(object).where(gains.notna(), None).to_dict("records")}


def main() -> None:
    """Keep trials and write the numbers."""
    parser = command_line(__doc__, prog="python -m benchmarks.findings.fashion")
    parser.add_argument("--numbers", action="store_true", help="from the committed trials")
    options = parser.parse_args()
    (KEPT / "theory").mkdir(parents=True, exist_ok=True)
    for name, numbers in (("fashion-mnist", collect_sweeps), ("optimizers", collect_optimizers)):
        study, file = load_study(REPOSITORY / "studies" / f"{name}.yaml"), KEPT / f"{name}.parquet"
        if not options.numbers:
            keep(study, file)
        if file.exists():
            write_json(KEPT / f"{name}.json", numbers(study, pd.read_parquet(file)))


if __name__ == "__main__":
    main()
