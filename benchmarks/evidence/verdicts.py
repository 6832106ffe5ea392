"""Simulate studies whose effects are known: are intervals and verdicts right, and what do they find?

    python -m benchmarks.evidence.verdicts

The grids are those of real studies (the paper's, the demo's, the frozen features') and of a user's with very
unequal datasets. Accuracies follow the worlds below (`dpsweep.analysis.power.World` has the law). Choices,
effects, intervals and verdicts are those of `dpsweep.analysis`.

For each design, world and rule: how many 95 % intervals contain the gain that there would be without any
noise; and for each design and world the share of studies with a wrong verdict about any rule. A verdict is
wrong if what it says of the mean effect and the margin is not true, or not true of most problems; without an
effect, every verdict but "no difference" is wrong.

The same worlds also rate other effects that could decide table 1 (`OTHER_EFFECTS`).

The result goes to benchmarks/results/verdicts.json (ten minutes on one core).
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.common import REPOSITORY, RESULTS, command_line
from dpsweep.analysis.evidence import Evidence, compare, gather, mean_here
from dpsweep.analysis.grids import Grid, alike, at, mean_without, with_common
from dpsweep.analysis.power import World, design, prospects, ruled_cells, simulate
from dpsweep.analysis.rules import RULES, slope_weights
from dpsweep.base.files import write_json
from dpsweep.study import Cell, Study, load_study
from dpsweep.study.config.datasets import related_datasets

RESULT = RESULTS / "verdicts.json"
Array = npt.NDArray[np.float64]
Related = list[tuple[str, str]]

WITHOUT_EFFECT = World(
    small_bound_cost=0, batch_by_epsilon=0, batch_by_epochs=0, rate_by_batch=0, between_datasets=0
)
"""Every C below the norms trains alike; nothing depends on the condition but the level."""
NULL_WORLDS = {
    "plateau below the norms": WITHOUT_EFFECT,
    "small C costs the same everywhere": replace(WITHOUT_EFFECT, constant_cost=3),
    "harder problems are flatter": replace(WITHOUT_EFFECT, constant_cost=3, shrinkage=0.7),
    "harder problems are flat": replace(WITHOUT_EFFECT, constant_cost=3, shrinkage=0.3),
    "the plateau narrows with difficulty": replace(WITHOUT_EFFECT, narrowing=0.5),
    "the optimum lies beyond the grid": replace(WITHOUT_EFFECT, constant_cost=3, norms=1.1),
    "seeds scatter 2.5 times as much": replace(
        WITHOUT_EFFECT, constant_cost=3, scatter=0.9, unequal_scatter=0.6
    ),
    "scatter differs between cells": replace(WITHOUT_EFFECT, constant_cost=3, cell_scatter=0.8),
    "seeds share the noise of a test set": replace(WITHOUT_EFFECT, test_noise=0.8),
    "accuracies near a ceiling": replace(WITHOUT_EFFECT, constant_cost=3, ceiling=88),
    "accuracies near chance": replace(WITHOUT_EFFECT, constant_cost=3, chance=70),
    "few learning rates": replace(WITHOUT_EFFECT, constant_cost=3, rates=0.3),
    "C and B trade off": replace(WITHOUT_EFFECT, ridge=0.3),
    "accuracy grows with C": replace(WITHOUT_EFFECT, slope=1, large_bound_cost=0),
    "accuracy falls with C": replace(WITHOUT_EFFECT, slope=-1, large_bound_cost=0),
    "one outlier in every grid": replace(WITHOUT_EFFECT, constant_cost=3, outlier=20),
    "3 % of the trials diverge": replace(WITHOUT_EFFECT, constant_cost=3, diverging=0.03, chance=2),
    "a plateau with a cliff": replace(WITHOUT_EFFECT, cliff=30, large_bound_cost=0),
}
WORLDS = NULL_WORLDS | {
    "effects of the paper's size": World(),
    "the same, all datasets alike": World(between_datasets=0, between_problems=0),
    "the same, datasets very different": World(between_datasets=0.8, unequal_scatter=0.8),
    "the same, two families of datasets": World(between_datasets=0, families=1.0),
    "the same, 3 % of the trials diverge": World(diverging=0.03, chance=2),
    "one problem has it all": World(one_problem=20),
}


def designs(
    cells: Callable[[Study], Iterable[Cell]] = Study.all_cells,
) -> dict[str, tuple[list[Grid], Related]]:
    """Return the grids of every study that is simulated, and its pairs of datasets that share examples.

    Args:
        cells: which cells of a study have a place in its grids.
    """
    found = {}
    for name, file in {
        "the paper's study": "config.yaml",
        "its core": "studies/paper-core.yaml",
        "the demo": "studies/demo.yaml",
        "frozen features": "studies/frozen-features.yaml",
    }.items():
        study = load_study(REPOSITORY / file)
        found[name] = design(study, cells(study)), related_datasets(study.datasets)
    return found | {"unequal datasets": (_unequal([12, 6, 4, 2, 1]), [])}


def _unequal(counts: Sequence[int]) -> list[Grid]:
    """Grids of datasets with very different numbers of problems, each at three epsilons and two epochs."""
    sizes, bounds = (256, 512, 1024, 2048, 4096), (0.01, 0.1, 1.0, 4.0, 16.0)
    empty = np.full((len(sizes), len(bounds), 3), np.nan)
    tuning = np.broadcast_to(np.linspace(-10, -5, 8), (len(sizes), len(bounds), 8))
    return [
        Grid(f"d{d}", f"b{p % 2}", f"m{p // 2}", "adam", epsilon, epochs, sizes, bounds, empty, empty, tuning)
        for d, count in enumerate(counts)
        for p in range(count)
        for epsilon in (1.0, 2.0, 8.0)
        for epochs in (2, 8)
    ]  # fmt: skip


def rate(
    grids: Sequence[Grid], related: Related, world: World, null: bool, studies: int, seed: int
) -> list[dict[str, Any]]:
    """Return coverage and verdicts of every rule in one world, and the share of wrong studies."""
    rows, wrong = [], np.zeros(studies, dtype=bool)
    found: dict[bool, list[Evidence]] = {}
    exact: dict[bool, list[Evidence]] = {}
    for same_problems in (True, False):
        random = np.random.default_rng(seed)
        simulated = simulate(grids, world, studies, random, same_problems)
        found[same_problems], level = gather(compare(simulated.measured), related)
        exact[same_problems], _ = gather(compare(simulated.exact, corrected=False), related)
    for number, rule in enumerate(RULES):
        here, elsewhere = found[True][number], found[False][number]
        row: dict[str, Any] = {
            "rule": rule.key, "comparisons": len(here.comparisons), "units": len(here.groups),
        }  # fmt: skip
        for scope, evidence in (("here", here), ("elsewhere", elsewhere)):
            mean, true = getattr(evidence, scope), getattr(exact[scope == "here"][number], scope)
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
    """Whether verdicts are wrong about the mean effect or about that of most units."""
    said: npt.NDArray[np.bool_] = (
        ((verdicts == "supported") & (min(truth, typical) <= margin))
        | ((verdicts == "contradicted") & (max(truth, typical) >= -margin))
        | ((verdicts == "no difference") & (abs(truth) >= margin))
    )
    return said


# -- other effects -------------------------------------------------------------------------


def argmax_growth(series: Sequence[Grid]) -> Array:
    """Return the growth of the best C per halving of epsilon, in decades."""
    best = [np.log10(grid.clipping_bound)[grid.choice()[1]] for grid in series]
    return _slope(series, best)


def good_region(series: Sequence[Grid]) -> Array:
    """Return the growth per halving of log C weighted by exp(accuracy / 2 points)."""
    centres = []
    for grid in series:
        mean = 100 * grid.selection.mean(axis=-1)
        weights = np.exp((mean - mean.max(axis=(-2, -1), keepdims=True)) / 2).sum(axis=-2)
        centres.append((weights * np.log10(grid.clipping_bound)).sum(-1) / weights.sum(-1))
    return _slope(series, centres)


def difference_of_differences(series: Sequence[Grid]) -> Array:
    """Return what exchanging the C of the two ends costs in both of them, signed; points per halving."""
    gains = []
    for seed in range(1, series[0].seeds):
        profiles, chosen = [], []
        for grid in (series[0], series[-1]):
            seen = mean_without(grid.selection, seed)
            columns = np.arange(seen.shape[-1])
            rows = seen.argmax(axis=-2)
            held_out = 100 * grid.accuracy[..., seed]
            profiles.append(
                np.stack(
                    [at(held_out, rows[..., c], np.full(rows.shape[:-1], c)) for c in columns], -1
                )
            )
            chosen.append(seen.max(axis=-2).argmax(axis=-1))
        (low, high), (c_low, c_high) = profiles, chosen
        pick = [
            np.take_along_axis(profile, c[..., np.newaxis], -1)[..., 0]
            for profile, c in ((low, c_low), (low, c_high), (high, c_high), (high, c_low))
        ]
        gains.append(np.sign(c_low - c_high) * (pick[0] - pick[1] + pick[2] - pick[3]))
    span = np.log2(series[-1].epsilon / series[0].epsilon)
    mean: Array = np.mean(gains, axis=0) / span
    return mean


OTHER_EFFECTS: dict[str, Callable[[Sequence[Grid]], Array]] = {
    "growth of the best C": argmax_growth,
    "good region of C": good_region,
    "difference of differences": difference_of_differences,
}


def rate_effects(
    grids: Sequence[Grid], worlds: dict[str, World], studies: int
) -> list[dict[str, Any]]:
    """Return, for "lower epsilon: increase C", how often each effect finds one at a level of 5 %."""
    rows = []
    for name, world in worlds.items():
        simulated = simulate(grids, world, studies, np.random.default_rng(0)).measured
        groups = alike(simulated, "epsilon")
        series = [
            each for each in (with_common(group, "clipping_bound") for group in groups) if each
        ]
        datasets = [each[0].dataset for each in series]
        units = [datasets.index(dataset) for dataset in datasets]
        effects = {
            label: np.stack([effect(each) for each in series], axis=-1)
            for label, effect in OTHER_EFFECTS.items()
        }
        (rule,) = (rule for rule in RULES if rule.key == "lower_epsilon_larger_bound")
        effects["gain of adapting"] = np.stack(
            [each.effect for each in rule.compare(simulated)], axis=-1
        )
        for label, values in effects.items():
            mean = mean_here(values, units)
            if mean is not None:
                lower, upper = mean.interval(0.05)
                rows.append(
                    {
                        "world": name,
                        "effect": label,
                        "mean": round(float(mean.effect.mean()), 4),
                        "for": round(float((lower > 0).mean()), 3),
                        "against": round(float((upper < 0).mean()), 3),
                    }
                )
    return rows


def _slope(series: Sequence[Grid], values: Sequence[Array]) -> Array:
    halvings = -np.log2([grid.epsilon for grid in series])
    centred = halvings - halvings.mean()
    slope: Array = np.tensordot(slope_weights(centred), np.stack(values), axes=1)
    return slope


def _rounded(value: float) -> float | None:
    return None if np.isnan(value) else round(value, 3)


def power(studies: int) -> list[dict[str, Any]]:
    """Rate what each study can find, from the cells that ``dpsweep plan`` and ``dpsweep check`` simulate."""
    return [
        {
            "design": name,
            "rule": key,
            "power": round(prospect.power, 3),
            "truth": _rounded(prospect.truth),
            "smallest_visible": _rounded(prospect.smallest_visible),
            "needs": prospect.evidence.needs[0],
        }
        for name, (grids, related) in designs(ruled_cells).items()
        for key, prospect in prospects(grids, World(), related, studies).items()
    ]


def run(studies: int) -> dict[str, Any]:
    """Rate all designs in all worlds."""
    started = time.process_time()
    rows = []
    for name, (grids, related) in designs().items():
        # The paper's core asks the same as the whole study, with a tenth of its cells.
        worlds = {} if name == "the paper's study" else WORLDS
        for number, (world, law) in enumerate(worlds.items()):
            rated = rate(grids, related, law, world in NULL_WORLDS, studies, number)
            rows += [{"design": name, "world": world} | row for row in rated]
        print(f"{name}: {time.process_time() - started:.0f} s", flush=True)
    grids, _ = designs()["its core"]
    return {
        "studies": studies,
        "cpu_seconds": round(time.process_time() - started, 1),
        "rows": rows,
        "power": power(studies),
        "effects": rate_effects(grids, WORLDS, studies),
    }


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("--studies", type=int, default=100, help="simulated studies per world")
    write_json(RESULT, run(parser.parse_args().studies))
    print(RESULT)
