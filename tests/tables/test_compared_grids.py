"""The table of optimizers: paired gains at the same epsilon, compared with direct computations."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t as student
from tests.study.small import load_small
from tests.synthetic import write_cells

from dpsweep.study import Cell, Study
from dpsweep.study.paths import Paths
from dpsweep.tables.compared_grids import optimizers_table, paired_gains
from dpsweep.tables.text import write

SEEDS = 4
RANDOM = np.random.default_rng(5)
LUCK: dict[tuple[Any, ...], float] = {}
AVERAGED = {"kind": "adam", "average": {"kind": "ema", "decay": 0.9}}


def luck(*key: Any) -> float:
    return LUCK.setdefault(key, float(0.01 * RANDOM.standard_normal()))


def accuracy(cell: Cell, rate: float, seed: int) -> dict[str, Any]:
    """Return an accuracy: best at B = 256 and a small rate, with shared and separate noise of each seed."""
    optimizer = cell.problem.rpartition("_")[2]
    gain = {"momentum": 0.02, "averaged": 0.01}.get(optimizer, 0.0) * math.sqrt(cell.epsilon)
    own = luck(optimizer, cell.epsilon, cell.epochs, seed) / 4
    found = 0.5 + gain + luck(seed) + own + 0.1 * (cell.batch_size == 256) - rate / 1e3
    last = {"last_macro_accuracy": found - 0.03 - own} if optimizer == "averaged" else {}
    return {"macro_accuracy": found, **last}


def study(folder: Path) -> Study:
    optimizers = {"momentum": {"kind": "sgd", "momentum": 0.9}, "averaged": AVERAGED}
    edits: dict[str, Any] = {
        "optimizers": optimizers,
        "sweeps/flat/optimizer": ["adam", "momentum", "averaged"],
        "sweeps/flat/seeds": SEEDS,
        "sweeps/flat/batch_size": [64, 256],
        "sweeps/flat/clipping_bound": [1.0],
        "figures": {},
        "tables": {"t": {"family": "optimizers", "section": "Main", "caption": "Optimizers."}},
    }
    return load_small(folder, edits)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> Paths:
    folder = tmp_path_factory.mktemp("optimizers")
    paths, made = Paths(folder / "results"), study(folder)
    write_cells(made, paths, accuracy)
    write(made, paths, "t")
    return paths


def gains_by_hand(optimizer: str, epsilons: tuple[float, ...]) -> Any:
    """Return gains in points, shape (settings, measuring seeds)."""
    rows = []
    for epsilon in epsilons:
        for epochs in (2, 4):
            ends = [
                [
                    accuracy(Cell(f"d_b_m_{name}", epsilon, epochs, 256, 1.0), 0.001, seed)
                    for seed in range(2, SEEDS + 1)
                ]
                for name in (optimizer, "film")
            ]
            own, base = ([each["macro_accuracy"] for each in end] for end in ends)
            rows.append(100 * np.subtract(own, base))
    return np.array(rows)


def t_interval(values: Any) -> list[float]:
    mean, error = np.mean(values), np.std(values, ddof=1) / math.sqrt(len(values))
    reach = student.ppf(0.975, len(values) - 1) * error
    return [mean, mean - reach, mean + reach]


@pytest.mark.parametrize("optimizer", ["momentum", "averaged"])
@pytest.mark.parametrize("epsilons", [(1.0,), (8.0,), (1.0, 8.0)])
def test_gains_are_paired_by_seed(
    paths: Paths, optimizer: str, epsilons: tuple[float, ...]
) -> None:
    numbers = pd.read_csv(paths.table("t", "csv"))
    of_all = len(epsilons) > 1
    row = numbers[
        (numbers["optimizer"] == optimizer)
        & (numbers["epsilon"].isna() if of_all else numbers["epsilon"] == epsilons[0])
    ].iloc[0]
    by_hand = gains_by_hand(optimizer, epsilons)
    wanted = t_interval(by_hand.mean(axis=0))
    assert row[["gain", "lower", "upper"]].tolist() == pytest.approx(wanted)
    intervals = [t_interval(setting) for setting in by_hand]
    assert row["settings"] == len(by_hand)
    assert row["better"] == sum(lower > 0 for _, lower, _ in intervals)
    assert row["worse"] == sum(upper < 0 for _, _, upper in intervals)
    assert (row["problems"], math.isnan(row["lower_elsewhere"])) == (1, True)


def test_an_average_is_compared_with_the_last_parameters(paths: Paths) -> None:
    numbers = pd.read_csv(paths.table("t", "csv")).set_index("optimizer")
    assert numbers.loc["momentum", "last_gain"].isna().all()
    found = numbers.loc["averaged", ["last_gain", "last_lower", "last_upper"]].iloc[0]
    own = [
        [luck("averaged", 1.0, epochs, seed) / 4 for seed in range(2, SEEDS + 1)]
        for epochs in (2, 4)
    ]
    assert found.tolist() == pytest.approx(t_interval(100 * (0.03 + np.mean(own, axis=0))))


def test_the_interval_over_problems_is_that_of_their_means() -> None:
    gains = [0.01, 0.03, 0.08]
    rows = [
        {"dataset": f"d{place}", "seed": seed, "gain": gain}
        for place, gain in enumerate(gains)
        for seed in (2, 3)
    ]
    known = {"backbone": "b", "method": "m", "clipping": "flat", "epsilon": 1.0, "epochs": 1}
    frame = pd.DataFrame(rows).assign(optimizer="sgd", accuracy=0.5, over_last=np.nan, **known)
    (row,) = optimizers_table(frame, "adam").to_dict("records")
    wanted = t_interval(100 * np.array(gains))
    assert [row["gain"], row["lower_elsewhere"], row["upper_elsewhere"]] == pytest.approx(wanted)
    # The two seeds agree exactly, which does not tell how far seeds scatter.
    assert np.isnan([row["lower"], row["upper"]]).all()


def test_a_seed_measures_what_other_seeds_chose() -> None:
    lucky = {64: [0.5, 0.9, 0.5], 256: [0.6, 0.5, 0.6]}
    rows = [
        {"optimizer": optimizer, "problem": optimizer, "seed": seed, "batch_size": size}
        | {"cell": f"B{size}", "trial_key": f"{optimizer}{size}{seed}"}
        | {"macro_accuracy": accuracy, "selection_accuracy": accuracy}
        for optimizer, cells in (("adam", {64: [0.5] * 3}), ("sgd", lucky))
        for size, accuracies in cells.items()
        for seed, accuracy in enumerate(accuracies, start=1)
    ]
    known = {"dataset": "d", "backbone": "b", "method": "m", "clipping": "flat", "epsilon": 1.0}
    trials = pd.DataFrame(rows).assign(epochs=1, clipping_bound=1.0, best=True, **known)
    gains = paired_gains(trials, "adam").set_index(["optimizer", "seed"])["gain"]
    # The others choose B = 256 for seed 2, which measures 0.5, and B = 64 for seed 3, also 0.5.
    assert gains["sgd"].to_dict() == {2: 0.0, 3: 0.0}
