"""Keep the trials of studies/units.yaml for docs/findings.md.

    python -m benchmarks.findings.units            # from results/, then the tables
    python -m benchmarks.findings.units --numbers  # from the committed trials

Trials go to benchmarks/results/units/units.parquet, numbers to units.json beside it.
"""

from pathlib import Path
from typing import Any

import pandas as pd
from scipy.stats import t as student

from benchmarks.common import REPOSITORY, RESULTS, command_line
from benchmarks.findings.numbers import gather, keep_trials
from benchmarks.tables import write_tables
from dpsweep.base.files import write_json
from dpsweep.privacy.accountants import pld_interval, privacy_loss
from dpsweep.study import Paths, Study, load_study
from dpsweep.study.choice import repeats

KEPT = RESULTS / "units"
TRIALS = KEPT / "units.parquet"
GROUP = 4
"""Posts of an author at most, in the part of the data whose epsilon is that of a group."""


def keep(study: Study) -> None:
    """Keep the trials of all finished cells, with the accuracies of units."""
    paths, frames = Paths(Path(study.results)), []
    for name, problem in study.problems.items():
        cells = [c for c in study.problem_cells(name) if paths.cell_trials(study, c).exists()]
        also = ["unit_accuracy"] if study.datasets[problem.dataset].has_units else []
        if cells:
            frames.append(gather(study, paths, cells, ["accuracy", "sampling_rate", *also]))
    KEPT.mkdir(parents=True, exist_ok=True)
    keep_trials(pd.concat(frames, ignore_index=True), TRIALS)


def _of_seeds(values: pd.Series) -> dict[str, float]:
    """Return the mean over the seeds but the first, which tuned the rate, and its 95 % t interval."""
    reach = student.ppf(0.975, len(values) - 1) * values.sem()
    return {
        "mean": round(100 * values.mean(), 2),
        "lower": round(100 * (values.mean() - reach), 2),
        "upper": round(100 * (values.mean() + reach), 2),
    }


def _rows(trials: pd.DataFrame) -> list[dict[str, Any]]:
    tuned = repeats(trials)
    by = ["dataset", "method", "epsilon"]
    return [
        {
            **dict(zip(by, key, strict=True)),
            "learning_rate": float(rows["learning_rate"].iloc[0]),
            "noise": round(float(rows["noise_multiplier"].iloc[0]), 3),
            "noise_of_mean": round(
                float((rows["noise_multiplier"] / rows["batch_size"]).iloc[0]), 5
            ),
            "train_size": int(rows["train_size"].iloc[0]),
            "steps": int(rows["steps"].iloc[0]),
            "batch_size": int(rows["batch_size"].iloc[0]),
            "seeds": len(rows),
            "accuracy": _of_seeds(rows["accuracy"][rows["seed"] > 1]),
            **(
                {"unit_accuracy": _of_seeds(rows["unit_accuracy"][rows["seed"] > 1])}
                if rows["unit_accuracy"].notna().all()
                else {}
            ),
        }
        for key, rows in tuned.groupby(by)
    ]


def epsilon_of_group(row: dict[str, Any]) -> float:
    """Return an upper bound on the epsilon of a group of posts together, by dp-accounting."""
    rate = row["batch_size"] / row["train_size"]
    mesh = pld_interval(GROUP * row["epsilon"], row["steps"])
    loss = privacy_loss(row["noise"], rate, row["steps"], mesh, records=GROUP)
    return round(float(loss.get_epsilon_for_delta(1e-5)), 3)


def numbers_of(study: Study, trials: pd.DataFrame) -> dict[str, Any]:
    """Return the numbers of the tables."""
    rows = _rows(trials)
    for row in rows:
        if row["dataset"] in ("posts", "posts-limited"):
            row["group_epsilon"] = epsilon_of_group(row)
    once = trials.drop_duplicates("trial_key")
    return {
        "titles": {name: study.datasets[name].title for name in study.datasets},
        "methods": {name: study.methods[name].title for name in study.methods},
        "hours": round(float(once["wall_seconds"].sum()) / 3600, 2),
        "trials": len(once),
        "rows": rows,
    }


def main() -> None:
    """Keep trials, and write numbers and tables."""
    parser = command_line(__doc__, prog="python -m benchmarks.findings.units")
    parser.add_argument("--numbers", action="store_true", help="from the committed trials")
    options = parser.parse_args()
    study = load_study(REPOSITORY / "studies" / "units.yaml")
    if not options.numbers:
        keep(study)
    write_json(KEPT / "units.json", numbers_of(study, pd.read_parquet(TRIALS)))
    write_tables()


if __name__ == "__main__":
    main()
