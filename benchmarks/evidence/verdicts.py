"""Simulate studies with known effects, and measure the errors of intervals and verdicts, and their power.

    python -m benchmarks.evidence.verdicts

The grids are those of real studies (the paper, the demo, frozen features) and of a study with very unequal
datasets. Accuracies follow the worlds below (see `benchmarks.evidence.worlds`).
`dpsweep.analysis` computes choices, effects, intervals and verdicts.

The results are, for each design, world and rule, the coverage of 95 % intervals for the gain without noise;
and, for each design and world, the share of studies with a wrong verdict about any rule. A verdict is wrong
if it is not true of the mean effect, or not true of most problems. Without an effect, only the verdict "no
difference" is right.

The result goes to benchmarks/results/verdicts.json (ten minutes on one core).
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.common import REPOSITORY, RESULTS, command_line
from benchmarks.evidence.worlds import OddWorld
from dpsweep.analysis.evidence import RULES, Evidence, compare, gather
from dpsweep.analysis.power import design, prospects, ruled_cells
from dpsweep.analysis.statistics import AccuracyGrid
from dpsweep.base.files import write_json
from dpsweep.study import Cell, Study, load_study
from dpsweep.study.datasets import related_datasets

RESULT = RESULTS / "verdicts.json"
Related = list[tuple[str, str]]
STUDIES = {
    "the paper's study": "config.yaml",
    "its core": "studies/paper-core.yaml",
    "the demo": "studies/demo.yaml",
    "frozen features": "studies/frozen-features.yaml",
}
WITHOUT_EFFECT = OddWorld(
    small_bound_cost=0, batch_by_epsilon=0, batch_by_epochs=0, rate_by_batch=0, between_datasets=0
)
"""Every C below the norms gives the same accuracy; only the level depends on the condition."""
COSTLY = replace(WITHOUT_EFFECT, constant_cost=3)
NULL_WORLDS = {
    "plateau below the norms": WITHOUT_EFFECT,
    "small C costs the same everywhere": COSTLY,
    "harder problems are flatter": replace(COSTLY, shrinkage=0.7),
    "harder problems are flat": replace(COSTLY, shrinkage=0.3),
    "the plateau narrows with difficulty": replace(WITHOUT_EFFECT, narrowing=0.5),
    "the optimum lies beyond the grid": replace(COSTLY, norms=1.1),
    "seeds scatter 2.5 times as much": replace(COSTLY, scatter=0.9, unequal_scatter=0.6),
    "scatter differs between cells": replace(COSTLY, cell_scatter=0.8),
    "seeds share the noise of a test set": replace(COSTLY, test_noise=0.8),
    "accuracies near a ceiling": replace(COSTLY, ceiling=88),
    "accuracies near chance": replace(COSTLY, chance=70),
    "few learning rates": replace(COSTLY, rates=0.3),
    "C and B trade off": replace(WITHOUT_EFFECT, ridge=0.3),
    "accuracy grows with C": replace(WITHOUT_EFFECT, slope=1, large_bound_cost=0),
    "accuracy falls with C": replace(WITHOUT_EFFECT, slope=-1, large_bound_cost=0),
    "one outlier in every grid": replace(COSTLY, outlier=20),
    "3 % of the trials diverge": replace(COSTLY, diverging=0.03, chance=2),
    "a plateau with a cliff": replace(WITHOUT_EFFECT, cliff=30, large_bound_cost=0),
}
WORLDS = NULL_WORLDS | {
    "effects of the paper's size": OddWorld(),
    "the same, all datasets alike": OddWorld(between_datasets=0, between_problems=0),
    "the same, datasets very different": OddWorld(between_datasets=0.8, unequal_scatter=0.8),
    "the same, two families of datasets": OddWorld(between_datasets=0, families=1.0),
    "the same, 3 % of the trials diverge": OddWorld(diverging=0.03, chance=2),
    "one problem has it all": OddWorld(one_problem=20),
}


def designs(
    cells: Callable[[Study], Iterable[Cell]] = Study.all_cells,
) -> dict[str, tuple[list[AccuracyGrid], Related]]:
    """Return the grids of every simulated study, and its pairs of datasets that share examples.

    Args:
        cells: returns the cells of a study's grids.
    """
    found = {}
    for name, file in STUDIES.items():
        study = load_study(REPOSITORY / file)
        found[name] = design(study, cells(study)), related_datasets(study.datasets)
    return found | {"unequal datasets": (_unequal([12, 6, 4, 2, 1]), [])}


def _unequal(counts: Sequence[int]) -> list[AccuracyGrid]:
    """Return grids of datasets with very different numbers of problems, for three epsilons and two epochs."""
    sizes, bounds = (256, 512, 1024, 2048, 4096), (0.01, 0.1, 1.0, 4.0, 16.0)
    empty = np.full((len(sizes), len(bounds), 3), np.nan)
    tuning = np.broadcast_to(np.linspace(-10, -5, 8), (len(sizes), len(bounds), 8))
    return [
        AccuracyGrid(
            f"d{d}", f"b{p % 2}", f"m{p // 2}", "adam", epsilon, epochs, sizes, bounds, empty, empty, tuning
        )
        for d, count in enumerate(counts)
        for p in range(count)
        for epsilon in (1.0, 2.0, 8.0)
        for epochs in (2, 8)
    ]  # fmt: skip


def rate(
    grids: Sequence[AccuracyGrid],
    related: Related,
    world: OddWorld,
    null: bool,
    studies: int,
    seed: int,
) -> list[dict[str, Any]]:
    """Return coverage and verdicts of every rule in one world, and the share of wrong studies."""
    rows, wrong = [], np.zeros(studies, dtype=bool)
    found: dict[str, tuple[list[Evidence], list[Evidence]]] = {}
    for scope in ("here", "elsewhere"):
        random = np.random.default_rng(seed)
        simulated = world.simulate(grids, studies, random, scope == "here")
        measured, level = gather(compare(simulated.measured), related)
        exact, _ = gather(compare(simulated.exact, corrected=False), related)
        found[scope] = measured, exact
    for number, rule in enumerate(RULES):
        here = found["here"][0][number]
        row: dict[str, Any] = {
            "rule": rule.key, "comparisons": len(here.comparisons), "units": len(here.groups),
        }  # fmt: skip
        for scope, every in found.items():
            evidence = every[0][number]
            mean, true = (getattr(each[number], scope) for each in every)
            if mean is None or true is None:
                continue
            truth = float(true.effect.mean())
            lower, upper = mean.interval(0.05)
            row[f"truth_{scope}"] = round(truth, 4)
            row[f"bias_{scope}"] = round(float(mean.effect.mean()) - truth, 4)
            row[f"covers_{scope}"] = round(float(((lower <= truth) & (truth <= upper)).mean()), 3)
            verdicts = mean.verdict(rule.margin, evidence.threshold, level)
            typical = float(np.median(true.units.mean(axis=0)))
            truths = (0.0, 0.0) if null and rule.changes else (truth, typical)
            wrong |= _wrong(verdicts, *truths, rule.margin)
            for name in ("supported", "contradicted", "no difference"):
                row[f"{name}_{scope}"] = round(float((verdicts == name).mean()), 3)
            if scope == "here":
                visible = mean.smallest_visible(evidence.threshold, level)
                row["smallest_visible"] = round(float(np.median(visible)), 3)
        rows.append(row)
    return [row | {"wrong_studies": round(float(wrong.mean()), 3)} for row in rows]


def _wrong(
    verdicts: npt.NDArray[np.str_], truth: float, typical: float, margin: float
) -> npt.NDArray[np.bool_]:
    """Tell which verdicts are wrong about the mean effect or about the effect of most units."""
    said: npt.NDArray[np.bool_] = (
        ((verdicts == "supported") & (min(truth, typical) <= margin))
        | ((verdicts == "contradicted") & (max(truth, typical) >= -margin))
        | ((verdicts == "no difference") & (abs(truth) >= margin))
    )
    return said


def power() -> list[dict[str, Any]]:
    """Return the power of each study, with the simulated studies of ``dpsweep plan``."""

    def rounded(value: float) -> float | None:
        return None if np.isnan(value) else round(value, 3)

    return [
        {"design": name, "rule": key, "power": round(found.power, 3), "truth": rounded(found.truth)}
        | {"smallest_visible": rounded(found.smallest_visible), "needs": found.evidence.needs[0]}
        for name, (grids, related) in designs(ruled_cells).items()
        for key, found in prospects(grids, related).items()
    ]


def run(studies: int) -> dict[str, Any]:
    """Rate all designs in all worlds."""
    started = time.process_time()
    rows = []
    for name, (grids, related) in designs().items():
        # The paper's core has the same questions as the whole study, with a tenth of its cells.
        worlds = {} if name == "the paper's study" else WORLDS
        for number, (world, law) in enumerate(worlds.items()):
            rated = rate(grids, related, law, world in NULL_WORLDS, studies, number)
            rows += [{"design": name, "world": world} | row for row in rated]
        print(f"{name}: {time.process_time() - started:.0f} s", flush=True)
    seconds = round(time.process_time() - started, 1)
    return {"studies": studies, "cpu_seconds": seconds, "rows": rows, "power": power()}


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("--studies", type=int, default=100, help="simulated studies per world")
    write_json(RESULT, run(parser.parse_args().studies))
    print(RESULT)
