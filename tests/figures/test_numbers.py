"""Numbers of figures, recomputed from their files by independent code."""

import itertools
import math
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy.stats import norm as normal
from tests.synthetic import (
    make_study,
    write_cells,
    write_dataset,
    write_gradient_norms,
    write_overlaps,
)

from dpsweep.analysis.predictions import FIXED, HINDSIGHT, PREDICTIONS
from dpsweep.analysis.statistics import as_good_as_best
from dpsweep.base.files import UnreadableResultsError
from dpsweep.figures import style
from dpsweep.figures.gradient_norms import _support
from dpsweep.planning.outputs import Outputs
from dpsweep.study import Cell, Study
from dpsweep.study.choice import choose
from dpsweep.study.paths import Paths
from dpsweep.theory import direction_optimal_clipping

GRID = {
    "epsilon": [1.0, 8.0], "epochs": [2, 4], "batch_size": [100, 200, "full"],
    "clipping_bound": [0.1, 1.0], "learning_rate": [0.003, 0.01], "seeds": 3,
}  # fmt: skip
SWEEPS = {
    "film": GRID,
    "automatic": GRID | {"clipping_bound": "automatic"},
    "lora": GRID | {"method": "lora"},
}
TWO_PROBLEMS = [
    {"title": "FiLM", "lines": [{"label": "auto", "clipping_bound": "automatic"}, {"label": "C"}]},
    {"title": "LoRA", "method": "lora", "lines": [{"label": "C"}]},
]  # fmt: skip
"""Two panels, one of them with two lines."""
TWO_PANELS = [{"title": "FiLM"}, {"title": "LoRA", "method": "lora"}]


def outcome(cell: Cell, rate: float, seed: int) -> dict[str, Any]:
    """Return different random numbers for every trial, so that no two statistics agree by chance."""
    random = np.random.default_rng(zlib.crc32(f"{cell}/{rate}/{seed}".encode()))
    steps = 4000 if cell.batch_size == "full" else 1000 * cell.epochs // int(cell.batch_size)
    accuracies = random.uniform(0.2, 0.9, 6)
    return {
        "macro_accuracy": accuracies[0],
        "selection_accuracy": accuracies[1],
        "noise_multiplier": 10 / cell.epsilon * (1 + cell.epochs),
        "per_class_accuracy": list(accuracies[2:]),
        "step_norms": random.uniform(1, 9, cell.epochs if cell.batch_size == "full" else steps),
    }


def numbers_of(study: Study, paths: Paths) -> pd.DataFrame:
    """Compute the numbers of a study's only figure."""
    (target,) = study.figures.values()
    return target.compute(study, paths)


def figure(family: str, **settings: Any) -> dict[str, Any]:
    return {"drawn": {"family": family, "caption": "c", "section": "s"} | settings}


Written = Callable[[dict[str, Any]], tuple[Study, Paths, pd.DataFrame]]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """A function from a figure to its study, results, and trials at the best learning rate of their cell."""
    paths, trained = Paths(tmp_path_factory.mktemp("numbers")), make_study(SWEEPS)
    write_cells(trained, paths, outcome, steps_too=True)
    frames = [
        pd.read_parquet(paths.cell_trials(trained, cell)).assign(
            problem=cell.problem, cell=cell.name
        )
        for cell in trained.all_cells()
    ]
    trials = pd.concat(frames, ignore_index=True)
    best = trials[trials["best"]]
    return lambda target: (make_study(SWEEPS, figures=target), paths, best)


def winners(trials: pd.DataFrame, by: Sequence[str], centre: str = "mean") -> pd.DataFrame:
    """Return the cell with the best mean selection accuracy for every value of some columns."""
    rows = []
    for key, group in trials.groupby(list(by), dropna=False):
        means = group.groupby("cell")["selection_accuracy"].mean()
        own = group[group["cell"] == means.idxmax()].sort_values("seed")
        accuracy = own["macro_accuracy"]
        first = own.iloc[0]
        rows.append(
            dict(zip(by, key, strict=True))
            | {name: first[name] for name in ("batch_size", "clipping_bound", "learning_rate")}
            | {"cell": first["cell"], "trial_key": first["trial_key"], "steps": first["steps"]}
            | {"noise_multiplier": first["noise_multiplier"], "chosen_by": means.max()}
            | {"centre": getattr(accuracy, centre)(), "minimum": accuracy.min()}
            | {"maximum": accuracy.max(), "cross_fitted": cross_fitted(group)}
            | {f"seed_{seed}": value for seed, value in zip(own["seed"], accuracy, strict=True)}
        )
    return pd.DataFrame(rows)


def cross_fitted(group: pd.DataFrame) -> float:
    """Measure the choice of all other seeds by each seed but the first; NaN without another seed."""
    found = [math.nan] if group["seed"].nunique() == 1 else []
    for seed in sorted(group["seed"].unique())[1:]:
        others = group[group["seed"] != seed]
        cell = others.groupby("cell")["selection_accuracy"].mean().idxmax()
        chosen = group[(group["seed"] == seed) & (group["cell"] == cell)]
        found.append(chosen["macro_accuracy"].item())
    return float(np.mean(found))


def same(found: pd.DataFrame, wanted: pd.DataFrame, keys: list[str], values: list[str]) -> None:
    """Compare columns of frames, independent of the order of rows."""
    ours, theirs = (each.set_index(keys)[values].sort_index() for each in (found, wanted))
    assert list(ours.index) == list(theirs.index)
    pd.testing.assert_frame_equal(
        ours.astype(float), theirs.astype(float), check_names=False, check_index_type=False
    )


def of_problem(trials: pd.DataFrame, method: str, clipping: str = "flat") -> pd.DataFrame:
    return trials[(trials["method"] == method) & (trials["clipping"] == clipping)]


SETTING = ["batch_size", "clipping_bound", "learning_rate"]
BAND = ["centre", "minimum", "maximum", "seed_1", "seed_2", "seed_3"]


@pytest.mark.parametrize(
    ("x", "y"), [("clipping_bound", "batch_size"), ("epsilon", "clipping_bound")]
)
def test_heatmap(written: Written, x: str, y: str) -> None:
    settings: dict[str, Any] = {"epochs": 2}
    settings |= {"epsilon": 1.0} if x != "epsilon" else {}
    panels = [each | settings for each in TWO_PANELS]
    target = figure("heatmap", x=x, y=y, panels=panels)
    study, paths, trials = written(target)
    found = numbers_of(study, paths)
    for panel, method in enumerate(("film", "lora")):
        own = of_problem(trials, method)
        own = own[(own["epochs"] == 2) & ((own["epsilon"] == 1) | (x == "epsilon"))]
        wanted = winners(own, [y, x])
        wanted["best"] = wanted["chosen_by"] == wanted["chosen_by"].max()
        cells = choose(own, by=[y, x])
        cells["as_good"] = as_good_as_best(cells, own)
        wanted = wanted.merge(cells[[y, x, "as_good"]])
        here = found[found["panel"] == panel].rename(columns={"macro_accuracy": "centre"})
        values = [
            "centre",
            "minimum",
            "maximum",
            "cross_fitted",
            "learning_rate",
            "best",
            "as_good",
        ]
        same(here, wanted, [y, x], values)
        # The square with the best test accuracy is another one, so the test sees which accuracy chooses.
    on_test = found.loc[found.groupby("panel")["macro_accuracy"].idxmax()]
    assert not on_test["best"].all()


@pytest.mark.parametrize("quantity", ["accuracy", "difference"])
@pytest.mark.parametrize("centre", ["mean", "median"])
def test_clipping_curve(written: Written, quantity: str, centre: str) -> None:
    lines = [
        {"label": f"ε = {epsilon}", "epsilon": epsilon, "epochs": 4, "clipping_bound": [0.1, 1.0]}
        for epsilon in (8.0, 1.0)
    ]
    panels = [{"title": "FiLM", "lines": lines}]
    target = figure("clipping_curve", panels=panels, quantity=quantity, centre=centre)
    study, paths, trials = written(target)
    found = numbers_of(study, paths)
    for line, epsilon in enumerate((8.0, 1.0)):
        own = of_problem(trials, "film")
        own = own[(own["epochs"] == 4) & (own["epsilon"] == epsilon)]
        wanted = winners(own, ["clipping_bound"], centre)
        wanted["best"] = wanted["chosen_by"] == wanted["chosen_by"].max()
        if quantity == "difference":
            wanted[BAND] -= wanted["centre"].max()
            wanted["cross_fitted"] -= cross_fitted(own)
        values = [*BAND, "cross_fitted", "best", "batch_size", "learning_rate"]
        same(found[found["line"] == line], wanted, ["clipping_bound"], values)


def test_method_comparison(written: Written) -> None:
    panels = [each | {"epochs": 2} for each in TWO_PROBLEMS]
    study, paths, trials = written(figure("method_comparison", panels=panels))
    found = numbers_of(study, paths)
    trials = trials[trials["epochs"] == 2]
    rows = []
    for panel, line, method, clipping in (
        (0, 0, "film", "automatic"), (0, 1, "film", "flat"), (1, 0, "lora", "flat"),
    ):  # fmt: skip
        own = winners(of_problem(trials, method, clipping), ["epsilon"])
        rows.append(own.assign(panel=panel, line=line))
    wanted = pd.concat(rows, ignore_index=True)
    wanted["macro_accuracy"] = wanted["centre"]
    best = wanted.groupby(["panel", "epsilon"])[["centre", "cross_fitted"]].transform("max")
    wanted[BAND] = wanted[BAND].sub(best["centre"], axis=0)
    wanted["cross_fitted_difference"] = wanted["cross_fitted"] - best["cross_fitted"]
    values = [*BAND, *SETTING, "macro_accuracy", "cross_fitted", "cross_fitted_difference"]
    same(found, wanted, ["panel", "line", "epsilon"], values)


def test_noise_curve(written: Written) -> None:
    quantities = ["effective", "cumulative", "cumulative_effective"]
    axes = [{"title": each, "quantity": each, "x": "batch_size"} for each in quantities]
    cells = {"clipping_bound": [0.1, 1.0], "epochs": [2, 4]}
    study, paths, trials = written(figure("noise_curve", cells=cells, axes=axes))
    found = numbers_of(study, paths)
    wanted = winners(of_problem(trials, "film"), ["epsilon", "epochs", "batch_size"])
    wanted["macro_accuracy"] = wanted["centre"]
    best = wanted.groupby(["epsilon", "epochs"])["centre"].transform("max")
    wanted["accuracy_difference"] = wanted["centre"] - best
    sigma, steps, size = wanted["noise_multiplier"], wanted["steps"], wanted["batch_size"]
    assert sorted(set(steps)) == [2, 4, 10, 20, 40]  # E N / B
    noises = (sigma / size, sigma * steps**0.5, sigma * steps**0.5 / size)
    keys = ["epsilon", "epochs", "batch_size"]
    values = ["noise", "accuracy_difference", "macro_accuracy", "clipping_bound", "learning_rate"]
    for index, noise in enumerate(noises):
        same(found[found["axes"] == index], wanted.assign(noise=noise), keys, values)


def test_attacker_curves_are_those_of_the_noise(written: Written) -> None:
    """Compare full batches with the closed form, sampled ones with all (epsilon, delta) of dp-accounting."""
    panels = [
        {"epochs": 4, "batch_size": size, "clipping_bound": [0.1, 1.0], "title": str(size)}
        for size in ("full", 200)
    ]
    study, paths, _ = written(figure("attacker_curves", panels=panels, records=[1, 2]))
    found = numbers_of(study, paths)
    assert found.groupby(["panel", "epsilon", "records"]).ngroups == 2 * 2 * 2
    assert {1e-3, 1e-2, 0.05, 0.1} <= set(found["false_positive_rate"].round(12))
    for (panel, epsilon, records), curve in found.groupby(["panel", "epsilon", "records"]):
        sigma, steps = 10 / epsilon * 5, (4, 20)[panel]
        assert (curve["noise_multiplier"] == sigma).all() and (curve["steps"] == steps).all()
        rates, reached = curve["false_positive_rate"], curve["true_positive_rate"]
        mu = records * steps**0.5 / sigma
        closed = normal.cdf(normal.ppf(rates) + mu)
        if panel == 0:
            np.testing.assert_allclose(reached, closed, atol=1e-12)
            assert curve["advantage"].iloc[0] == pytest.approx(2 * normal.cdf(mu / 2) - 1)
            continue
        assert (reached[rates < 1] < closed[rates < 1]).all()  # sampling hides a person
        if records == 1:
            loss = privacy_loss_distribution.from_gaussian_mechanism(
                sigma, sampling_prob=0.2, value_discretization_interval=1e-4
            ).self_compose(steps)
            grid = np.linspace(0, 12, 4000)
            factor, delta = np.exp(grid), np.asarray(loss.get_delta_for_epsilon(grid))
            wanted = [
                min((factor * rate + delta).min(), (1 - (1 - delta - rate).clip(0) / factor).min())
                for rate in rates
            ]
            np.testing.assert_allclose(reached, np.minimum(wanted, 1), rtol=5e-3)
        else:  # two records: more than one
            alone = found[(found["panel"] == panel) & (found["epsilon"] == epsilon)]
            one = alone[alone["records"] == 1]["true_positive_rate"].to_numpy()
            assert (reached.to_numpy() >= one).all() and (reached.to_numpy() > one).any()


def test_optimal_batch_size(written: Written) -> None:
    panels = [each | {"clipping_bound": [0.1, 1.0], "epochs": [2, 4]} for each in TWO_PANELS]
    study, paths, trials = written(figure("optimal_batch_size", panels=panels))
    found = numbers_of(study, paths)
    keys = ["epsilon", "epochs"]
    for panel, method in enumerate(("film", "lora")):
        own = of_problem(trials, method)
        wanted = winners(own, keys)[[*keys, *SETTING]]
        alone = [
            winners(own[own["seed"] == seed], keys)["batch_size"].rename(f"seed_{seed}")
            for seed in (1, 2, 3)
        ]
        by_seed = pd.concat(alone, axis=1)
        wanted = wanted.join(by_seed).assign(
            mean_batch_size=by_seed.mean(axis=1),
            minimum=by_seed.min(axis=1),
            maximum=by_seed.max(axis=1),
        )
        values = [*SETTING, "mean_batch_size", "minimum", "maximum", "seed_1", "seed_2", "seed_3"]
        same(found[found["panel"] == panel], wanted, keys, values)
        of_budgets = found[found["panel"] == panel].set_index(keys)
        for budget, own in of_problem(trials, method).groupby(keys):
            sizes = choose(own, by=["batch_size"])
            good = sizes.loc[as_good_as_best(sizes, own), "batch_size"]
            row = of_budgets.loc[budget]
            assert (row["as_good_smallest"], row["as_good_largest"]) == (good.min(), good.max())
            assert row["as_good_smallest"] <= row["batch_size"] <= row["as_good_largest"]


def test_norm_trace(written: Written) -> None:
    panels = [each | {"clipping_bound": [0.1, 1.0], "epochs": 4} for each in TWO_PANELS]
    study, paths, trials = written(figure("norm_trace", panels=panels))
    found = numbers_of(study, paths)
    for panel, method in enumerate(("film", "lora")):
        own = of_problem(trials, method)
        for _, row in winners(own[own["epochs"] == 4], ["epsilon"]).iterrows():
            cell = Cell.parse(f"digits_small_{method}", row["cell"])
            steps = pd.read_parquet(paths.cell_steps(study, cell))
            steps = steps[steps["trial_key"] == row["trial_key"]]
            here = found[(found["panel"] == panel) & (found["epsilon"] == row["epsilon"])]
            assert here["step"].tolist() == list(range(1, int(row["steps"]) + 1))
            assert here["mean_gradient_norm"].tolist() == steps["mean_gradient_norm"].tolist()
            assert here["batch_size"].unique().tolist() == [row["batch_size"]]


# -- gradient norms, and the figures of the theory -----------------------------------------------


def random_norms(cell: Cell, epoch: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(zlib.crc32(f"{cell}/{epoch}".encode()))
    norms = random.lognormal(0.2 * epoch, 1.0, 300) * float(cell.clipping_bound)
    norms[:3] = [0.0, math.nan, math.inf]
    return random.integers(0, 4, 300), norms


@pytest.mark.parametrize("family", ["gradient_norm_histogram", "gradient_norm_distribution"])
def test_gradient_norms(tmp_path: Path, family: str) -> None:
    panels = [
        {"title": f"C = {bound}", "clipping_bound": bound, "epochs": 2, "epsilon": 1.0}
        for bound in (0.1, 1.0)
    ]
    study = make_study({"film": GRID}, figures=figure(family, panels=panels))
    paths = Paths(tmp_path)
    norms = {}
    for cell in study.all_cells():
        if (cell.batch_size, cell.epochs, cell.epsilon) == (200, 2, 1.0):
            epochs = [random_norms(cell, epoch) for epoch in (1, 2)]
            write_gradient_norms(study, paths, cell, 0.01, epochs)
            norms[cell.clipping_bound] = [each for _, each in epochs]
    found = numbers_of(study, paths)
    for panel, bound in enumerate((0.1, 1.0)):
        here = found[found["panel"] == panel]
        if family == "gradient_norm_histogram":
            assert here["lower"].tolist() == found.loc[found["panel"] == 0, "lower"].tolist()
            last = norms[bound][1]
            # A NaN is not above C, but counts among the examples.
            assert set(here["share_above_bound"]) == {np.sum(last > bound) / 300}
            for _, row in here.iterrows():
                inside = (last >= row["lower"]) & (last < row["upper"])
                assert row["share"] == pytest.approx(inside.sum() / 300)
            assert here["share"].sum() == pytest.approx(297 / 300)
            continue
        for epoch in (1, 2):
            values = norms[bound][epoch - 1]
            known = values[~np.isnan(values)]
            rows = here[here["epoch"] == epoch]
            quantiles = rows[rows["quantity"] == "quantile"]
            for share, norm in zip(quantiles["value"], quantiles["norm"], strict=True):
                assert np.mean(known <= norm) == pytest.approx(share, abs=1 / 150)
            above = rows.loc[rows["quantity"] == "share above C", "value"].item()
            assert above == np.mean(known > bound)


@pytest.mark.parametrize("decade", [-12, 6])
def test_very_small_and_large_norms_are_in_the_density(tmp_path: Path, decade: int) -> None:
    target = figure("gradient_norm_distribution", panels=[{"title": "t"}])
    study, paths = make_study({"s": {}}, figures=target), Paths(tmp_path)
    norms = 10 ** np.random.default_rng(0).normal(decade, 0.3, 200)
    write_gradient_norms(study, paths, study.all_cells()[0], 0.01, [(np.zeros(200), norms)] * 2)
    density = numbers_of(study, paths).query("epoch == 1 and quantity == 'density'")
    logs = np.log10(density["norm"].to_numpy(dtype=float))
    assert np.trapezoid(density["value"], logs) == pytest.approx(1.0, abs=0.02)
    assert np.average(logs, weights=density["value"]) == pytest.approx(decade, abs=0.1)


def test_a_density_is_drawn_up_to_its_last_visible_point() -> None:
    assert _support(np.array([0.0, 0.01, 1.0, 0.5, 0.0])) == slice(2, 4)
    assert _support(np.array([0.0, 1.0])) == slice(1, 2)


DIMENSION, EXAMPLES, DRAWS = 6, 12, 4


def random_gradients(cell: Cell) -> list[list[np.ndarray]]:
    """Return gradients of some draws for every epoch from 0, skewed, so that means differ from medians."""
    random = np.random.default_rng(zlib.crc32(str(cell).encode()))
    return [
        [
            random.normal(0.5, 1, (EXAMPLES, DIMENSION)) * random.lognormal(epoch, 1, (EXAMPLES, 1))
            for _ in range(DRAWS)
        ]
        for epoch in range(cell.epochs + 1)
    ]


def theory_study(family: str, folder: Path, **panel: Any) -> tuple[Study, Paths, dict[Cell, Any]]:
    grid = GRID | {"batch_size": [EXAMPLES], "epochs": [4], "clipping_bound": [0.1, 1.0]}
    target = figure(family, panels=[{"title": "t", "clipping_bound": 1.0} | panel])
    study, paths = make_study({"s": grid}, figures=target), Paths(folder)
    write_cells(study, paths, outcome)
    gradients = {}
    for cell in study.all_cells():
        if cell.clipping_bound == 1.0:
            gradients[cell] = random_gradients(cell)
            write_overlaps(study, paths, cell, 2 / cell.epsilon, gradients[cell], seeds=2)
    return study, paths, gradients


def error(rows: np.ndarray, bound: float, sigma: float) -> tuple[float, float]:
    """Compute bias and noise of a clipped sum over the square of the unclipped sum."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    clipped = rows * np.minimum(1, bound / lengths)
    square = np.square(rows.sum(0)).sum()
    bias = np.square(clipped.sum(0) - rows.sum(0)).sum()
    return bias / square, bound**2 * sigma**2 * DIMENSION / square


def best_bound(rows: np.ndarray, sigma: float) -> float:
    """Search a grid for the bound with the smallest error."""
    bounds = np.geomspace(1e-3, 2 * np.linalg.norm(rows, axis=1).max(), 1500)
    return float(bounds[np.argmin([sum(error(rows, each, sigma)) for each in bounds])])


def best_direction(rows: np.ndarray, sigma: float) -> float:
    """Return the bound with the best direction, which tests/theory compare with brute force."""
    return direction_optimal_clipping(rows, sigma, DIMENSION).clipping_bound


def assert_median_and_range(row: pd.Series, optima: list[float]) -> None:
    found = row[["best_bound", "smallest", "largest"]].tolist()
    assert found == pytest.approx([np.median(optima), min(optima), max(optima)], rel=0.01)


def test_error_decomposition(tmp_path: Path) -> None:
    study, paths, gradients = theory_study("error_decomposition", tmp_path, epsilon=1.0)
    found = numbers_of(study, paths)
    assert set(found["privacy"]) == {"not private"}
    (cell,) = (each for each in gradients if each.epsilon == 1)
    assert sorted(found["epoch"].unique()) == [0, 2, 4]
    for epoch, rows in found.groupby("epoch"):
        draws = gradients[cell][int(epoch)]
        for _, row in rows.iloc[::12].iterrows():
            parts = np.array([error(each, row["clipping_bound"], 2.0) for each in draws])
            assert (row["bias"], row["noise"]) == pytest.approx(tuple(parts.mean(axis=0)))
            whole = parts.sum(axis=1)
            assert row["error"] == pytest.approx(whole.mean())
            assert (row["smallest"], row["largest"]) == pytest.approx((whole.min(), whole.max()))
        optima = [best_bound(each, 2.0) for each in draws]
        assert rows["best_bound"].unique() == pytest.approx([np.mean(optima)], rel=0.01)
        assert set(rows["draws"]) == {DRAWS}


def test_optimal_clipping_trace(tmp_path: Path) -> None:
    study, paths, gradients = theory_study("optimal_clipping_trace", tmp_path)
    found = numbers_of(study, paths)
    assert len(found) == 2 * 5  # two budgets, the start and four epochs
    for _, row in found.iterrows():
        (cell,) = (each for each in gradients if each.epsilon == row["epsilon"])
        draws, sigma = gradients[cell][int(row["epoch"])], 2 / row["epsilon"]
        assert_median_and_range(row, [best_bound(each, sigma) for each in draws])
        norms = [np.median(np.linalg.norm(each, axis=1)) for each in draws]
        assert row["median_norm"] == pytest.approx(np.median(norms))
    assert (found["plateau_lower"] < found["direction_bound"]).all()
    assert (found["direction_bound"] < found["plateau_upper"]).all()


def test_privacy_effects(tmp_path: Path) -> None:
    study, paths, gradients = theory_study("privacy_effects", tmp_path)
    found = numbers_of(study, paths)
    assert set(found["privacy"]) == {"not private"}
    of = {cell.epsilon: each[4] for cell, each in gradients.items()}  # after the last epoch
    sources = {"both": (0, 0), "noise alone": (0, 1), "gradients alone": (1, 0)}
    for epsilon, (effect, (other_noise, other_gradients)) in itertools.product(
        (1.0, 8.0), sources.items()
    ):
        sigma = 2 / (8.0 if other_noise else epsilon)
        for rule, best in (("C*", best_bound), ("scale-free C", best_direction)):
            row = found.set_index(["rule", "epsilon", "effect"]).loc[(rule, epsilon, effect)]
            draws = of[8.0 if other_gradients else epsilon]
            assert_median_and_range(row, [best(each, sigma) for each in draws])


# -- predicted bounds, from gradients with C* in closed form ---------------------------------

SIGMA = {1.0: 8.0, 2.0: 4.0, 8.0: 1.0}
NORM = {1.0: 30.0, 2.0: 20.0, 8.0: 10.0}


def of_equal_gradients(
    folder: Path, family: str, *panels: dict[str, Any], examples: int = 8
) -> pd.DataFrame:
    """Return the numbers of a figure; B is 8, and the gradients of a cell are equal, in 100 dimensions."""
    grid = GRID | {
        **{"epsilon": [1.0, 2.0, 8.0], "epochs": [2], "batch_size": [8], "learning_rate": [0.01]},
        **{"clipping_bound": [0.1, 1.0, 10.0], "seeds": 2},
    }
    study, paths = (
        make_study(
            {"s": grid, "auto": grid | {"clipping_bound": "automatic"}},
            figures=figure(family, panels=list(panels)),
        ),
        Paths(folder),
    )

    def accuracy(cell: Cell, *_: Any) -> dict[str, Any]:
        if cell.clipping_bound == "automatic":
            return {"macro_accuracy": 0.4}
        # At epsilon 1 the largest bound is the best one, otherwise 1 is.
        best = 10.0 if cell.epsilon == 1 else 1.0
        return {"macro_accuracy": 0.9 - 0.1 * abs(np.log10(float(cell.clipping_bound) / best))}

    write_cells(study, paths, accuracy)
    for cell in study.sweep_cells("s"):
        if cell.clipping_bound == 1.0:
            gradients = np.zeros((examples, 100))
            gradients[:, 0] = NORM[cell.epsilon]
            write_overlaps(study, paths, cell, SIGMA[cell.epsilon], [[gradients] * 2] * 3)
    return numbers_of(study, paths)


def closed_form(norm: float, sigma: float, examples: int = 8) -> float:
    return examples**2 * norm / (examples**2 + sigma**2 * 100)


def test_noise_scales_with_the_number_of_measured_examples(tmp_path: Path) -> None:
    panel = {"clipping_bound": 1.0, "title": "t"}
    found = of_equal_gradients(tmp_path, "optimal_clipping_trace", panel, examples=2)
    tight = found[found["epsilon"] == 1.0].iloc[0]
    # Two of eight examples with a quarter of the noise have the same C*.
    assert tight["best_bound"] == pytest.approx(closed_form(30, 8 * 2 / 8, 2))
    assert tight["best_bound"] == pytest.approx(closed_form(30, 8))


def test_predictions_are_compared_with_measured_bounds(tmp_path: Path) -> None:
    panels = {"title": "t"}, {"title": "a", "clipping_bound": "automatic"}
    found = of_equal_gradients(tmp_path, "predicted_clipping", *panels)
    assert set(found["privacy"]) == {"not private"}
    found = found.set_index(["rule", "epsilon"])
    theorem, held, free = PREDICTIONS
    for epsilon, norm in NORM.items():
        predicted = found["predicted"].xs(epsilon, level="epsilon")
        assert predicted[theorem] == pytest.approx(closed_form(norm, SIGMA[epsilon]))
        assert predicted[held] == pytest.approx(closed_form(norm, SIGMA[8.0]))
        assert predicted[free] == pytest.approx(norm)
        assert found.loc[("AUTO-S", epsilon), "lost"] == pytest.approx(0.5)
    # C* is 0.30, 0.77 and 3.9: on the grid 0.1 (log-nearest to 0.30), 1 and 10.
    assert found.loc[theorem, "grid_bound"].to_dict() == {1.0: 0.1, 2.0: 1.0, 8.0: 10.0}
    assert found.loc[theorem, "lost"].tolist() == pytest.approx([0.2, 0.0, 0.1])
    assert found.loc[theorem, "mean_lost"].iloc[0] == pytest.approx(0.1)
    assert found.loc[(theorem, 1.0), "rank_correlation"] < 0
    assert found.loc[(free, 1.0), "rank_correlation"] > 0
    assert found.loc[FIXED, "lost"].tolist() == pytest.approx([0.1, 0.0, 0.0])
    assert found.loc[HINDSIGHT, "predicted"].unique().tolist() == [1.0]
    assert bool(found.loc[(free, 1.0), "measured_on_plateau"])
    # One problem at three epsilons gives no intervals for other problems.
    assert found[["settings", "problems"]].drop_duplicates().to_numpy().tolist() == [[3, 1]]
    assert found[["mean_lost_lower", "rank_correlation_upper"]].isna().all(axis=None)


# -- classes -------------------------------------------------------------------------------

ACCURACIES = {1.0: [0.3, 0.9, 0.5], 0.1: [0.1, 0.8, 0.7]}


def per_class(
    folder: Path, norms_of: int = 200, accuracies: Any = ACCURACIES, **settings: Any
) -> tuple[Study, pd.DataFrame]:
    """Return a study of three classes, and the numbers of its figure."""
    panel = {"title": "Digits", "clipping_bound": [0.1, 1.0]}
    study, paths = (
        make_study(
            {"s": {"clipping_bound": [0.1, 1.0], "batch_size": [100, 200], "seeds": 2}},
            classes=3,
            figures=figure("per_class", baseline=1.0, panels=[panel], **settings),
        ),
        Paths(folder),
    )

    def outcome(cell: Cell, rate: float, seed: int) -> dict[str, Any]:
        if cell.batch_size == 100:
            return {"macro_accuracy": 0.1}
        known = accuracies[float(cell.clipping_bound)]
        of_seed = [each - 0.1 * (seed == 2) for each in known]
        return {"macro_accuracy": 0.5, "per_class_accuracy": of_seed}

    write_cells(study, paths, outcome)
    write_dataset(paths, "digits", [2, 2, 2])
    labels = [0, 0, 1, 1, 2, 2]
    norms = {1.0: [1, 4, 2, 2, 10, 10], 0.1: [1, 1, 0.2, 0.2, 0.1, 0.05]}
    for cell in study.sweep_cells("s"):
        if cell.batch_size == norms_of:
            values = norms[float(cell.clipping_bound)]
            earlier = [5.0] * 6  # after the first epoch: not what is drawn
            write_gradient_norms(study, paths, cell, 0.01, [(labels, earlier), (labels, values)])
    return study, numbers_of(study, paths)


def test_per_class_numbers_by_hand(tmp_path: Path) -> None:
    numbers = per_class(tmp_path)[1].set_index(["clipping_bound", "class_rank"])
    base, small = numbers.loc[1.0], numbers.loc[0.1]
    # By falling accuracy at C = 1 (0.9, 0.5, 0.3), in both lines, of the first seed.
    assert base["class"].tolist() == small["class"].tolist() == [1, 2, 0]
    assert base["class_name"].tolist() == ["one", "two", "zero"]
    assert small["accuracy_difference"].tolist() == pytest.approx([-0.1, 0.2, -0.2])
    assert base["accuracy_difference"].tolist() == [0, 0, 0]
    # Retained at C = 1: (1 + 1/4)/2, 1/2, 1/10; the largest, 0.625, is the unit.
    assert base["retained_weight"].tolist() == pytest.approx([0.5, 0.1, 0.625])
    assert base["relative_retained_weight"].tolist() == pytest.approx([0.8, 0.16, 1.0])
    # Retained at C = 0.1: 0.1, 1/2, 1.
    assert small["relative_retained_weight"].tolist() == pytest.approx([0.8, 1.6, 0.16])
    assert set(numbers["batch_size"]) == {200}

    # The classifier's norms are half of those above: 1/2, 2; 1, 1; 5, 5.
    of_head = per_class(tmp_path, retained_weight_of="classifier")[1].query("clipping_bound == 1.0")
    assert of_head["retained_weight"].tolist() == pytest.approx([1.0, 0.2, 0.75])


def test_a_class_without_test_examples_is_named_but_not_drawn(tmp_path: Path) -> None:
    accuracies = {1.0: [0.3, math.nan, 0.5], 0.1: [0.1, math.nan, 0.7]}
    study, numbers = per_class(tmp_path, accuracies=accuracies)
    of_class = numbers.set_index(["clipping_bound", "class"])
    assert of_class.loc[1.0]["class_rank"].dropna().to_dict() == {2: 1, 0: 2}, "easy to hard"
    assert pd.isna(of_class.loc[(1.0, 1), "class_rank"])
    with style.style():
        drawing = study.figures["drawn"].plot(numbers)
    labels = [each.get_text() for each in drawing.axes[-1].get_xticklabels()]
    assert labels == ["two", "zero"]
    assert "no test example: one." in drawing.get_supxlabel().replace("\n", " ")
    for line in (line for axes in drawing.axes for line in axes.get_lines()):
        assert set(line.get_xdata()) <= {0, 1, 2}


@pytest.mark.parametrize(
    ("rows", "bounds"), [(["retained_weight"], [0.1, 1.0]), (["accuracy_difference"], [])]
)
def test_per_class_needs_norms_of_its_bounds_and_of_the_baseline(
    tmp_path: Path, rows: list[str], bounds: list[float]
) -> None:
    panels = [{"title": "Digits", "clipping_bound": [0.1]}]
    drawn = figure("per_class", baseline=1.0, panels=panels, rows=rows)
    study = make_study({"s": {"clipping_bound": [0.1, 1.0, 10.0]}}, classes=3, figures=drawn)
    norms = Outputs(study, Paths(tmp_path)).drawn_norms(study.figures["drawn"])
    assert sorted(each.clipping_bound for each in norms) == bounds


def test_gradient_norms_of_another_trial_are_refused(tmp_path: Path) -> None:
    said = r"of digits_small_film at C = 0.1 is digits_small_film/eps8_epochs2_B200_C0\.1"
    with pytest.raises(UnreadableResultsError, match=said):
        per_class(tmp_path, norms_of=100)
