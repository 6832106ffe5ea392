"""Keep what studies/fashion-mnist.yaml and studies/optimizers.yaml have trained, for docs/findings.md.

    python -m benchmarks.findings.fashion            # from results/, then python -m benchmarks.tables
    python -m benchmarks.findings.fashion --numbers  # from the committed trials

Trials of finished cells go to benchmarks/results/fashion/<study>.parquet, numbers to
<study>.json beside them.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.common import REPOSITORY, RESULTS, command_line
from benchmarks.evidence.recommend import Problem
from benchmarks.findings.numbers import collect, gather, keep_trials
from dpsweep.analysis.optimizers import optimizers_table, paired_gains
from dpsweep.base.files import write_json, write_text
from dpsweep.study import Study, load_study
from dpsweep.study.paths import Paths

KEPT = RESULTS / "fashion"
SWEEPS, OPTIMIZERS = "fashion-mnist", "optimizers"
_PUBLISHED = ("published", "momentum")
_ALONG = ("shorter", "longer")
_PLACES = ("quarter", "advised", "fourfold")


def _study(name: str) -> Study:
    return load_study(REPOSITORY / "studies" / f"{name}.yaml")


def keep(study: Study, file: Path) -> None:
    """Keep the trials of all finished cells."""
    paths = Paths(Path(study.results))
    cells = [cell for cell in study.all_cells() if paths.cell_trials(study, cell).exists()]
    if cells:
        keep_trials(gather(study, paths, cells, ["last_macro_accuracy"]), file)


def keep_theory(study: Study) -> None:
    """Keep the numbers behind the figures of the theory that are drawn."""
    for name in ("optimal_clipping", "privacy_effects"):
        drawn = Path(study.results) / "figures" / f"theory_{name}.csv"
        if drawn.exists():
            write_text(KEPT / "theory" / f"{name}.csv", drawn.read_text(encoding="utf-8"))


def _of(study: Study, trials: pd.DataFrame, *sweeps: str) -> pd.DataFrame:
    """Return the trials of some sweeps."""
    cells = {(cell.problem, cell.name) for name in sweeps for cell in study.sweep_cells(name)}
    places = zip(trials["problem"], trials["cell"], strict=True)
    return trials[np.array([place in cells for place in places])]


def _whole(study: Study, trials: pd.DataFrame) -> pd.DataFrame:
    """Return the trials of each epsilon and number of epochs of which every cell is trained."""
    cells = [cell for name in _ALONG for cell in study.sweep_cells(name)]
    asked = Counter((cell.epsilon, cell.epochs) for cell in cells)
    setting = ["epsilon", "epochs"]
    trained = trials.groupby(setting)["cell"].nunique()
    whole = [key for key, count in trained.items() if count == asked[key]]
    return trials[pd.MultiIndex.from_frame(trials[setting]).isin(whole)]


def collect_sweeps(study: Study, trials: pd.DataFrame) -> dict[str, Any]:
    """Return the published settings, and accuracies along C and B."""
    own = _of(study, trials, *_PUBLISHED)
    own = own[own["best"]].sort_values(["optimizer", "seed"])
    columns = ["optimizer", "learning_rate", "wall_seconds"]
    along = _of(study, trials, *_ALONG)
    swept = _whole(study, along)
    found = collect(study, swept) if len(swept) else {}
    return found | {
        "published": [
            dict(zip(columns, key, strict=True)) | {"accuracies": rows["macro_accuracy"].tolist()}
            for key, rows in own.assign(
                wall_seconds=own.groupby("optimizer")["wall_seconds"].transform("median")
            ).groupby(columns)
        ],
        "advice": [
            row
            for level in ("low", "middle", "high")
            if (row := advice(study, trials, swept, [f"{level}-{place}" for place in _PLACES]))
        ],
    }


def advice(
    study: Study, trials: pd.DataFrame, swept: pd.DataFrame, sweeps: list[str]
) -> dict[str, Any] | None:
    """Return what the formula's setting and its small grid lose against a search of the cells around C and B.

    The first seed measures the formula's setting, which no accuracy has chosen; it chooses in the small grid
    and the others measure.

    Args:
        study: the study.
        trials: of its cells.
        swept: those of the search, of each epsilon and number of epochs that is trained as a whole.
        sweeps: those of the small grid, that of the advised B second.

    Returns:
        None where some of the cells are not trained.
    """
    grid = _of(study, trials, *sweeps)
    cells = [cell for sweep in sweeps for cell in study.sweep_cells(sweep)]
    epsilon, epochs = cells[0].epsilon, cells[0].epochs
    searched = swept[(swept["epsilon"] == epsilon) & (swept["epochs"] == epochs)]
    if searched.empty or grid["cell"].nunique() < len(cells):
        return None
    first = grid[grid["seed"] == 1]
    middle = study.sweeps[sweeps[1]].learning_rates[1]
    own = (first["cell"] == cells[1].name) & np.isclose(first["learning_rate"], middle)
    (advised,) = first[own].itertuples()
    chosen = first.loc[first["selection_accuracy"].idxmax()]
    others = grid[
        (grid["seed"] > 1)
        & (grid["cell"] == chosen["cell"])
        & (grid["learning_rate"] == chosen["learning_rate"])
    ]
    columns = ["batch_size", "clipping_bound", "learning_rate"]
    return {
        "epsilon": epsilon,
        "searched": round(100 * Problem(searched, norm=1.0).searched(), 2),
        "advised": [
            *(float(getattr(advised, column)) for column in columns),
            round(100 * advised.macro_accuracy, 2),
        ],
        "chosen": [*map(float, chosen[columns]), round(100 * others["macro_accuracy"].mean(), 2)],
    }


def collect_optimizers(study: Study, trials: pd.DataFrame) -> dict[str, Any]:
    """Return what each optimizer gains over DP-Adam, over all settings and for each epsilon."""
    averaged = [name for name in study.every_optimizer if study.optimizer(name).average]
    last = trials["last_macro_accuracy"].where(trials["optimizer"].isin(averaged))
    trials = trials.assign(last_macro_accuracy=last)
    gains = optimizers_table(paired_gains(trials, "adam"), "adam").round(3)
    titles = {name: study.optimizer_title(name, [1.0]) for name in study.every_optimizer}
    rows = gains.astype(object).where(gains.notna(), None).to_dict("records")
    return {
        "gains": [
            {str(key): value for key, value in row.items()} | {"title": titles[row["optimizer"]]}
            for row in rows
        ]
    }


def main() -> None:
    """Keep trials and write the numbers."""
    parser = command_line(__doc__, prog="python -m benchmarks.findings.fashion")
    parser.add_argument("--numbers", action="store_true", help="from the committed trials")
    options = parser.parse_args()
    KEPT.mkdir(exist_ok=True)
    for name, numbers in ((SWEEPS, collect_sweeps), (OPTIMIZERS, collect_optimizers)):
        study, file = _study(name), KEPT / f"{name}.parquet"
        if not options.numbers:
            keep(study, file)
            keep_theory(study)
        if file.exists():
            write_json(KEPT / f"{name}.json", numbers(study, pd.read_parquet(file)))


if __name__ == "__main__":
    main()
