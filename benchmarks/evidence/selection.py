"""Measure what `selection: bracket` saves and loses, on cells that were trained exhaustively.

    python -m benchmarks.evidence.selection

Trains benchmarks/evidence/selection.yaml (every learning rate with every seed; about 15 minutes on two
cores, and what is there already is kept), then lets each seed in turn choose a learning rate as
`repeat-best` and as `bracket` do. A choice is judged by the mean accuracy of all seeds at the chosen
rate, against the rate with the best mean of all.

The result goes to benchmarks/results/selection.json.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.common import REPOSITORY, RESULTS, command_line
from dpsweep.analysis.frames import load_trials
from dpsweep.base.files import write_json
from dpsweep.study import load_study
from dpsweep.study.paths import Paths
from dpsweep.study.trials import bracket_maximum

STUDY = REPOSITORY / "benchmarks" / "evidence" / "selection.yaml"
RESULT = RESULTS / "selection.json"


def choices(accuracy: pd.DataFrame) -> list[dict[str, Any]]:
    """Choice of each seed in a cell.

    Args:
        accuracy: a row a learning rate (ascending), a column a seed.
    """
    means = accuracy.mean(axis=1)
    found = []
    for seed in accuracy:
        scores = accuracy[seed].tolist()
        looked_at: list[int] = []

        def score(position: int, scores: list[float] = scores, seen: Any = looked_at) -> float:
            seen.append(position)
            return scores[position]

        searched = bracket_maximum(len(scores), score)
        tuned = max(range(len(scores)), key=scores.__getitem__)
        found.append(
            {
                "repeat_best_trials": len(scores),
                "repeat_best_loss": means.max() - means.iloc[tuned],
                "bracket_trials": len(looked_at),
                "bracket_loss": means.max() - means.iloc[searched],
            }
        )
    return found


def summary(rows: pd.DataFrame, seeds: int) -> dict[str, float]:
    """Trials of a cell (tuning, and the other seeds) and accuracy lost, in points."""
    result: dict[str, float] = {"choices": len(rows)}
    for rule in ("repeat_best", "bracket"):
        loss = 100 * rows[f"{rule}_loss"]
        result |= {
            f"{rule}_trials_of_a_cell": round(rows[f"{rule}_trials"].mean() + seeds - 1, 2),
            f"{rule}_mean_loss": round(loss.mean(), 3),
            f"{rule}_largest_loss": round(loss.max(), 3),
        }
    return result


def main() -> None:
    """Train, choose, write."""
    study = load_study(STUDY)
    problems = [str(Paths(Path(study.results)).problem(name)) for name in study.problems]
    subprocess.run(
        [
            *(sys.executable, "-m", "snakemake", "--cores", "all"),
            *("--config", f"study={STUDY.relative_to(REPOSITORY)}", "--", *problems),
        ],
        cwd=REPOSITORY,
        check=True,
    )
    paths = Paths(REPOSITORY / study.results)
    rows = []
    for name in study.problems:
        trials = load_trials(study, paths, study.problem_cells(name))
        for cell, group in trials.groupby("cell"):
            table = group.pivot_table(
                index="learning_rate", columns="seed", values="macro_accuracy"
            )
            rows += [{"problem": name, "cell": cell} | each for each in choices(table)]
    found = pd.DataFrame(rows)
    seeds = max(sweep.seeds for sweep in study.sweeps.values())
    by_problem = {str(name): summary(group, seeds) for name, group in found.groupby("problem")}
    write_json(RESULT, {"all": summary(found, seeds), "problems": by_problem})
    print(RESULT.read_text())


if __name__ == "__main__":
    command_line(__doc__).parse_args()
    main()
