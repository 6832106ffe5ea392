"""Each family's numbers, from sweeps whose answers are known."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.synthetic import make_study, write_cells, write_dataset, write_gradient_norms

from dpsweep.analysis.frames import UnreadableResultsError
from dpsweep.figures import draw
from dpsweep.study import Cell, Study
from dpsweep.study.paths import Paths

nan = math.nan


def figure(family: str, **settings: Any) -> dict[str, Any]:
    return {"drawn": {"family": family, "caption": "c", "section": "s"} | settings}


def drawn(study: Study, paths: Paths) -> pd.DataFrame:
    draw(study, paths, "drawn")
    return pd.read_csv(paths.figure("drawn", "csv"))


def accuracies(table: dict[Any, list[float]], *axes: str) -> Any:
    """Outcomes from a table: the cell's values on the axes -> accuracy of every seed."""

    def outcome(cell: Cell, rate: float, seed: int) -> dict[str, Any]:
        key = tuple(getattr(cell, axis) for axis in axes)
        return {"macro_accuracy": table[key if len(axes) > 1 else key[0]][seed - 1]}

    return outcome


# -- heatmap -------------------------------------------------------------------------------


def test_heatmap_squares_are_means_and_the_best_is_marked(tmp_path: Path) -> None:
    study = make_study(
        {"s": {"batch_size": [100, "full"], "clipping_bound": [0.1, 1.0], "seeds": 2}},
        figures=figure("heatmap", panels=[{"title": "Digits"}, {"title": "Again"}]),
    )
    table = {
        (100, 0.1): [0.1, 0.3], (100, 1.0): [0.7, 0.5],  # tie: the smaller batch is marked
        ("full", 0.1): [0.6, 0.6], ("full", 1.0): [0.4, nan],
    }  # fmt: skip
    write_cells(study, Paths(tmp_path), accuracies(table, "batch_size", "clipping_bound"))
    squares = drawn(study, Paths(tmp_path))
    assert squares["panel"].tolist() == [0] * 4 + [1] * 4
    squares = squares[squares["panel"] == 0].set_index(["batch_size", "clipping_bound"])
    assert squares["macro_accuracy"].round(6).to_dict() == pytest.approx(
        {(100, 0.1): 0.2, (100, 1.0): 0.6, (1000, 0.1): 0.6, (1000, 1.0): nan}, nan_ok=True
    )
    assert squares.index[squares["best"]].tolist() == [(100, 1.0)]
    assert squares["full_batch"].tolist() == [False, False, True, True]


def test_heatmap_and_curve_mark_the_same_clipping_bound(tmp_path: Path) -> None:
    # The first seed alone would choose C = 1, as curves once did, and heatmaps not.
    table = {0.1: [0.70, 0.90], 1.0: [0.80, 0.60]}
    study = make_study(
        {"s": {"clipping_bound": [0.1, 1.0], "seeds": 2}},
        figures={
            "squares": figure("heatmap", panels=[{"batch_size": 100}])["drawn"],
            "curve": figure(
                "clipping_curve",
                panels=[{"title": "Digits", "lines": [{"label": "s"}]}],
            )["drawn"],
        },
    )
    paths = Paths(tmp_path)
    write_cells(study, paths, accuracies(table, "clipping_bound"))
    for name, value in (("squares", "macro_accuracy"), ("curve", "centre")):
        draw(study, paths, name)
        drawn = pd.read_csv(paths.figure(name, "csv"))
        best = drawn[drawn["best"]]
        assert best["clipping_bound"].tolist() == [0.1]
        assert best[value].tolist() == pytest.approx([0.8])
        assert best["cross_fitted"].tolist() == pytest.approx([0.9])


def test_held_out_examples_mark_the_best_square_and_point(tmp_path: Path) -> None:
    study = make_study(
        {"s": {"clipping_bound": [0.1, 1.0]}},
        figures=figure("heatmap", panels=[{"batch_size": 100}]),
    )
    on_test = {0.1: 0.9, 1.0: 0.5}

    def outcome(cell: Cell, rate: float, seed: int) -> dict[str, Any]:
        accuracy = on_test[float(cell.clipping_bound)]
        return {"macro_accuracy": accuracy, "selection_accuracy": 1 - accuracy}

    write_cells(study, Paths(tmp_path), outcome)
    squares = drawn(study, Paths(tmp_path)).set_index("clipping_bound")
    assert squares["best"].to_dict() == {0.1: False, 1.0: True}
    assert squares["macro_accuracy"].to_dict() == on_test


def test_heatmap_over_epsilon_tunes_the_batch_size(tmp_path: Path) -> None:
    study = make_study(
        {"s": {"epsilon": [1.0, 8.0], "batch_size": [100, 200], "clipping_bound": [0.1, 1.0]}},
        figures=figure("heatmap", x="epsilon", y="clipping_bound", panels=[{"title": "Digits"}]),
    )
    table = {
        (epsilon, size, bound): [0.1 * epsilon - 0.001 * size * (1 if bound == 1 else -1)]
        for epsilon in (1.0, 8.0)
        for size in (100, 200)
        for bound in (0.1, 1.0)
    }
    axes = ("epsilon", "batch_size", "clipping_bound")
    write_cells(study, Paths(tmp_path), accuracies(table, *axes))
    squares = drawn(study, Paths(tmp_path)).set_index(["epsilon", "clipping_bound"])
    assert len(squares) == 4
    assert squares["batch_size"].to_dict() == {
        (1.0, 0.1): 200, (8.0, 0.1): 200, (1.0, 1.0): 100, (8.0, 1.0): 100
    }  # fmt: skip
    assert squares.loc[(8.0, 0.1), "macro_accuracy"] == pytest.approx(1.0)


# -- clipping curve ------------------------------------------------------------------------


@pytest.mark.parametrize("centre", ["mean", "median"])
def test_clipping_curve_differences_are_to_the_best_centre_of_the_line(
    tmp_path: Path, centre: str
) -> None:
    lines = [
        {"epsilon": 8.0, "label": "ε = 8", "difficulty": "easy"},
        {"epsilon": 1.0, "label": "ε = 1", "difficulty": "hard"},
    ]
    study = make_study(
        {
            "s": {
                "epsilon": [1.0, 8.0],
                "batch_size": [100, 200],
                "clipping_bound": [0.1, 1.0],
                "seeds": 3,
            }
        },
        figures=figure(
            "clipping_curve",
            quantity="difference",
            centre=centre,
            panels=[{"title": "Digits", "lines": lines}],
        ),
    )
    table = {
        (8.0, 100, 0.1): [
            0.80,
            0.82,
            0.90,
        ],  # the first seed prefers this B at C = 0.1, the mean not
        (8.0, 200, 0.1): [0.70, 0.99, 0.99],
        (8.0, 100, 1.0): [0.50, 0.50, 0.50],
        (8.0, 200, 1.0): [0.60, 0.70, 0.71],
        (1.0, 100, 0.1): [0.20, 0.20, 0.20],
        (1.0, 200, 0.1): [0.10, 0.10, 0.10],
        (1.0, 100, 1.0): [0.30, 0.40, 0.80],
        (1.0, 200, 1.0): [0.20, 0.90, 0.90],
    }
    axes = ("epsilon", "batch_size", "clipping_bound")
    write_cells(study, Paths(tmp_path), accuracies(table, *axes))
    points = drawn(study, Paths(tmp_path)).set_index(["label", "clipping_bound"])
    easy, hard = ("ε = 8", 0.1), ("ε = 1", 1.0)
    best = {"mean": (0.68 / 3 + 2 / 3, 2 / 3), "median": (0.99, 0.90)}[centre]
    other = {"mean": 0.67, "median": 0.70}[centre]
    assert points.loc[easy, ["centre", "minimum", "maximum"]].tolist() == pytest.approx(
        [0.0, 0.70 - best[0], 0.99 - best[0]]
    )
    assert points.loc[hard, ["centre", "minimum", "maximum"]].tolist() == pytest.approx(
        [0.0, 0.20 - best[1], 0.90 - best[1]]
    )
    assert points.loc[("ε = 8", 1.0), "centre"] == pytest.approx(other - best[0])
    assert points.index[points["best"]].tolist() == [easy, hard]
    assert points["batch_size"].tolist() == [200, 200, 100, 200]
    # Epsilon 8, C = 0.1: seeds 1 and 3 choose 100, and seed 2 says 0.82 there; seeds 1 and 2 choose
    # 200, and seed 3 says 0.99. At C = 1 all choose 200. The line's own choice is always C = 0.1.
    assert points.loc[easy, "cross_fitted"] == pytest.approx(0.0)
    assert points.loc[("ε = 8", 1.0), "cross_fitted"] == pytest.approx(
        (0.70 + 0.71) / 2 - (0.82 + 0.99) / 2
    )


def test_clipping_curve_of_accuracies_is_absolute(tmp_path: Path) -> None:
    line = {"label": "ε = 8"}
    study = make_study(
        {"s": {"clipping_bound": [0.1, 1.0]}},
        figures=figure("clipping_curve", panels=[{"title": "Digits", "lines": [line]}]),
    )
    write_cells(study, Paths(tmp_path), accuracies({0.1: [0.4], 1.0: [0.7]}, "clipping_bound"))
    assert drawn(study, Paths(tmp_path))["centre"].tolist() == [0.4, 0.7]


# -- gradient norms ------------------------------------------------------------------------


def norms_study(family: str) -> Study:
    return make_study(
        {"s": {"epochs": [2], "clipping_bound": [1.0, 10.0]}},
        figures=figure(
            family,
            panels=[
                {"title": "C = 1", "clipping_bound": 1.0},
                {"title": "C = 10", "clipping_bound": 10.0},
            ],
        ),
    )


def write_norms(study: Study, paths: Paths) -> None:
    for cell in study.sweep_cells("s"):
        bound = float(cell.clipping_bound)
        first = np.array([0.5, 0.5, 2.0, 8.0]) * bound
        last = np.array([0.0, 0.2, 0.4, nan, 3.0]) * bound
        write_gradient_norms(
            study, paths, cell, 0.01, [([0, 1, 2, 3], first), ([0, 1, 2, 3, 0], last)]
        )


def test_distributions_have_a_density_quartiles_and_the_share_above_c(tmp_path: Path) -> None:
    study, paths = norms_study("gradient_norm_distribution"), Paths(tmp_path)
    write_norms(study, paths)
    numbers = drawn(study, paths).set_index(["panel", "epoch", "quantity"]).sort_index()
    quartiles = numbers.loc[(1, 1, "quantile"), "norm"]
    assert quartiles.tolist() == pytest.approx([5.0, 12.5, 35.0])
    # Of the finite norms 0, 0.2, 0.4 and 3 times C one is above C.
    assert numbers.loc[(0, 2, "share above C"), "value"].item() == 0.25
    density = numbers.loc[(1, 1, "density")]
    logs = np.log10(density["norm"].to_numpy())
    assert np.trapezoid(density["value"], logs) == pytest.approx(1.0, abs=0.02)
    assert np.average(logs, weights=density["value"]) == pytest.approx(
        np.log10([5, 5, 20, 80]).mean(), abs=0.03
    )


@pytest.mark.parametrize("decade", [-12, 6])
def test_very_small_and_large_norms_are_in_the_density(tmp_path: Path, decade: int) -> None:
    study, paths = norms_study("gradient_norm_distribution"), Paths(tmp_path)
    norms = 10 ** np.random.default_rng(0).normal(decade, 0.3, 200)
    for cell in study.sweep_cells("s"):
        write_gradient_norms(study, paths, cell, 0.01, [(np.zeros(200), norms)] * 2)
    numbers = drawn(study, paths).query("panel == 0 and epoch == 1 and quantity == 'density'")
    logs = np.log10(numbers["norm"])
    assert np.trapezoid(numbers["value"], logs) == pytest.approx(1.0, abs=0.02)
    assert np.average(logs, weights=numbers["value"]) == pytest.approx(decade, abs=0.1)


def test_histograms_are_of_the_last_epoch_in_shares_of_all_examples(tmp_path: Path) -> None:
    study, paths = norms_study("gradient_norm_histogram"), Paths(tmp_path)
    write_norms(study, paths)
    bins = drawn(study, paths)
    assert (bins["upper"] > bins["lower"]).all()
    for panel, bound in ((0, 1.0), (1, 10.0)):
        here = bins[bins["panel"] == panel]
        filled = here[here["share"] > 0]
        assert filled["share"].tolist() == pytest.approx([0.2] * 3)  # of 5, one zero and one NaN
        for low, high, norm in zip(filled["lower"], filled["upper"], (0.2, 0.4, 3.0), strict=True):
            assert low <= norm * bound * (1 + 1e-9)
            assert norm * bound < high
        assert set(here["share_above_bound"]) == {0.2}
    assert bins.groupby("panel")["lower"].apply(tuple).nunique() == 1  # the same bins


# -- per class -----------------------------------------------------------------------------


def per_class_study(**settings: Any) -> Study:
    panel = {"title": "Digits", "clipping_bound": [0.1, 1.0]}
    return make_study(
        {"s": {"epochs": [2], "clipping_bound": [0.1, 1.0], "batch_size": [100, 200], "seeds": 2}},
        classes=3,
        figures=figure("per_class", baseline=1.0, panels=[panel], **settings),
    )


def write_per_class(study: Study, paths: Paths, norms_of: int = 200) -> None:
    def outcome(cell: Cell, rate: float, seed: int) -> dict[str, Any]:
        if cell.batch_size == 100:
            return {"macro_accuracy": 0.1}
        per_class = {1.0: [0.3, 0.9, 0.5], 0.1: [0.1, 0.8, 0.7]}[float(cell.clipping_bound)]
        return {
            "macro_accuracy": 0.5,
            "per_class_accuracy": [a - 0.1 * (seed == 2) for a in per_class],
        }

    write_cells(study, paths, outcome)
    write_dataset(paths, "digits", [2, 2, 2])
    labels = [0, 0, 1, 1, 2, 2]
    norms = {1.0: [1, 4, 2, 2, 10, 10], 0.1: [1, 1, 0.2, 0.2, 0.1, 0.05]}
    for cell in study.sweep_cells("s"):
        if cell.batch_size == norms_of:
            values = norms[float(cell.clipping_bound)]
            earlier = [5.0] * 6  # after the first epoch: not what is drawn
            write_gradient_norms(study, paths, cell, 0.01, [(labels, earlier), (labels, values)])


def test_per_class_numbers_by_hand(tmp_path: Path) -> None:
    study, paths = per_class_study(), Paths(tmp_path)
    write_per_class(study, paths)
    numbers = drawn(study, paths).set_index(["clipping_bound", "class_rank"])
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


def test_the_retained_weight_may_be_that_of_the_classifier(tmp_path: Path) -> None:
    study, paths = per_class_study(retained_weight_of="classifier"), Paths(tmp_path)
    write_per_class(study, paths)
    base = drawn(study, paths).query("clipping_bound == 1.0")
    # The classifier's norms are half of those above: 1/2, 2; 1, 1; 5, 5.
    assert base["retained_weight"].tolist() == pytest.approx([1.0, 0.2, 0.75])


def test_the_baseline_is_drawn_even_if_the_panel_does_not_name_it(tmp_path: Path) -> None:
    study = per_class_study()
    content = study.model_dump(mode="json", exclude_none=True)
    content["figures"]["drawn"]["panels"][0]["clipping_bound"] = 0.1
    study, paths = Study.model_validate(content), Paths(tmp_path)
    write_per_class(study, paths)
    assert set(drawn(study, paths)["clipping_bound"]) == {0.1, 1.0}


def test_without_the_weights_row_no_gradient_norms_are_needed(tmp_path: Path) -> None:
    study, paths = per_class_study(rows=["accuracy_difference"]), Paths(tmp_path)
    write_per_class(study, paths, norms_of=-1)
    numbers = drawn(study, paths)
    assert numbers["retained_weight"].isna().all()
    assert numbers["accuracy_difference"].notna().all()


def test_gradient_norms_of_another_trial_are_refused(tmp_path: Path) -> None:
    study, paths = per_class_study(), Paths(tmp_path)
    write_per_class(study, paths, norms_of=100)
    with pytest.raises(
        UnreadableResultsError,
        match=r"of digits_small_film at C = 0.1 is digits_small_film/eps8_epochs2_B200_C0\.1",
    ):
        draw(study, paths, "drawn")


def test_many_classes_carry_a_running_mean(tmp_path: Path) -> None:
    panel = {"title": "Many"}
    study = make_study(
        {"s": {"clipping_bound": [0.1, 1.0]}},
        classes=100,
        figures=figure("per_class", baseline=1.0, rows=["accuracy_difference"], panels=[panel]),
    )
    # At C = 0.1 even classes gain 0.02 and odd ones lose 0.02 (classes fall in accuracy).
    sign = np.where(np.arange(100) % 2 == 0, 1.0, -1.0)

    def outcome(cell: Cell, rate: float, seed: int) -> dict[str, Any]:
        per_class = np.linspace(0.9, 0.1, 100) + (0.02 * sign if cell.clipping_bound == 0.1 else 0)
        return {"macro_accuracy": 0.5, "per_class_accuracy": list(per_class)}

    write_cells(study, Paths(tmp_path), outcome)
    line = drawn(study, Paths(tmp_path)).query("clipping_bound == 0.1")
    assert line["accuracy_difference"].tolist() == pytest.approx(list(0.02 * sign))
    inner = line["accuracy_difference_smooth"].iloc[5:-5]
    assert inner.abs().max() == pytest.approx(0.02 / 5)  # a window of 5: three against two


# -- method comparison ---------------------------------------------------------------------


def test_methods_are_compared_at_each_epsilon(tmp_path: Path) -> None:
    sweep = {"epsilon": [1.0, 8.0], "seeds": 2, "clipping_bound": [0.1, 1.0]}
    lines = [{"label": "AUTO-S", "clipping_bound": "automatic"}, {"label": "tuned"}]
    study = make_study(
        {"flat": sweep, "auto": sweep | {"clipping_bound": "automatic"}},
        figures=figure("method_comparison", panels=[{"title": "Digits", "lines": lines}]),
    )
    table = {
        (1.0, "automatic"): [0.30, 0.40], (8.0, "automatic"): [0.80, 0.90],
        (1.0, 0.1): [0.50, 0.60], (8.0, 0.1): [0.70, 0.70],
        (1.0, 1.0): [0.40, 0.95], (8.0, 1.0): [0.60, 0.60],
    }  # fmt: skip
    axes = ("epsilon", "clipping_bound")
    write_cells(study, Paths(tmp_path), accuracies(table, *axes))
    points = drawn(study, Paths(tmp_path)).set_index(["label", "epsilon"])
    band = points[["centre", "minimum", "maximum"]]
    assert band.loc[("AUTO-S", 1.0)].tolist() == pytest.approx([-0.325, -0.375, -0.275])
    assert band.loc[("tuned", 1.0)].tolist() == pytest.approx([0.0, -0.275, 0.275])
    assert band.loc[("AUTO-S", 8.0)].tolist() == pytest.approx([0.0, -0.05, 0.05])
    assert band.loc[("tuned", 8.0)].tolist() == pytest.approx([-0.15, -0.15, -0.15])
    assert points.loc[("tuned", 1.0), "clipping_bound"] == 1.0  # the better mean
    # The first seed alone chooses C = 0.1, and the other one measures it.
    assert points.loc[("tuned", 1.0), "cross_fitted"] == pytest.approx(0.60)
    assert points.loc[("AUTO-S", 1.0), "cross_fitted_difference"] == pytest.approx(-0.20)


# -- noise ---------------------------------------------------------------------------------


def test_noise_and_accuracy_of_every_run(tmp_path: Path) -> None:
    axes = [
        {"title": "Step", "quantity": "effective", "x": "batch_size"},
        {"title": "All", "quantity": "cumulative", "x": "steps"},
    ]
    study = make_study(
        {
            "s": {
                "epsilon": [1.0, 8.0],
                "batch_size": [250, "full"],
                "clipping_bound": [0.1, 1.0],
                "epochs": [4],
            }
        },
        figures=figure("noise_curve", cells={}, axes=axes),
    )

    def outcome(cell: Cell, rate: float, seed: int) -> dict[str, Any]:
        accuracy = 0.5 + 0.01 * cell.epsilon + (0.1 if cell.batch_size == 250 else 0.0)
        return {
            "macro_accuracy": accuracy - (0.3 if cell.clipping_bound == 0.1 else 0.0),
            "noise_multiplier": 10 / cell.epsilon,
        }

    write_cells(study, Paths(tmp_path), outcome)
    points = drawn(study, Paths(tmp_path))
    assert len(points) == 2 * 4
    step = points[points["axes"] == 0].set_index(["epsilon", "batch_size"])
    assert step["noise"].to_dict() == pytest.approx(
        {(1.0, 250): 0.04, (1.0, 1000): 0.01, (8.0, 250): 0.005, (8.0, 1000): 0.00125}
    )
    assert step["accuracy_difference"].to_dict() == pytest.approx(
        {(1.0, 250): 0.0, (1.0, 1000): -0.1, (8.0, 250): 0.0, (8.0, 1000): -0.1}
    )
    assert set(step["clipping_bound"]) == {1.0}
    every = points[points["axes"] == 1].set_index(["epsilon", "batch_size"])
    assert every["steps"].to_dict() == {
        (1.0, 250): 16, (1.0, 1000): 4, (8.0, 250): 16, (8.0, 1000): 4
    }  # fmt: skip
    assert every.loc[(1.0, 250), "noise"] == pytest.approx(40.0)
    assert every.loc[(8.0, 1000), "noise"] == pytest.approx(2.5)


# -- norm trace ----------------------------------------------------------------------------


def test_the_trace_is_of_the_first_seed_of_the_best_cell(tmp_path: Path) -> None:
    study = make_study(
        {
            "s": {
                "epsilon": [1.0, 8.0],
                "batch_size": [200, 500],
                "learning_rate": [0.01, 0.02],
                "seeds": 2,
            }
        },
        figures=figure("norm_trace", panels=[{"title": "2 epochs"}]),
    )

    def outcome(cell: Cell, rate: float, seed: int) -> dict[str, Any]:
        best = (cell.batch_size == 500) == (cell.epsilon == 8) and rate == 0.02
        steps = 2 * 1000 // int(cell.batch_size)
        return {
            "macro_accuracy": 0.9 if best else 0.5,
            "step_norms": 100 * seed + (10 if best else 0) + np.arange(steps),
        }

    write_cells(study, Paths(tmp_path), outcome, steps_too=True)
    trace = drawn(study, Paths(tmp_path))
    assert trace.groupby("epsilon")["mean_gradient_norm"].apply(list).to_dict() == {
        1.0: [110.0 + step for step in range(10)],  # B = 200
        8.0: [110.0 + step for step in range(4)],  # B = 500
    }
    assert trace["step"].tolist() == [*range(1, 11), *range(1, 5)]


def test_a_long_trace_is_smoothed(tmp_path: Path) -> None:
    study = make_study(
        {"s": {"batch_size": [5]}},
        figures=figure("norm_trace", panels=[{"title": "2 epochs"}]),
    )
    norms = np.tile([1.0, 3.0], 200)
    write_cells(
        study, Paths(tmp_path), lambda cell, rate, seed: {"step_norms": norms}, steps_too=True
    )
    trace = drawn(study, Paths(tmp_path))
    assert trace["mean_gradient_norm"].tolist() == list(norms)
    # A window of 9 holds five of one and four of the other.
    inner = trace["mean_gradient_norm_smooth"].iloc[4:-4]
    assert set(inner.round(6)) == {round((5 + 12) / 9, 6), round((15 + 4) / 9, 6)}


# -- optimal batch size --------------------------------------------------------------------


def test_the_best_batch_size_is_the_one_that_all_seeds_choose_together(tmp_path: Path) -> None:
    study = make_study(
        {"s": {"batch_size": [100, 200, 400], "epochs": [1, 2], "seeds": 2}},
        figures=figure("optimal_batch_size", panels=[{"epochs": "all"}]),
    )
    # Each seed has a favourite after one epoch, and both like 400 nearly as much.
    best = {(1, 1): 100, (1, 2): 200, (2, 1): 400, (2, 2): 400}

    def outcome(cell: Cell, rate: float, seed: int) -> dict[str, Any]:
        nearly = 0.8 if cell.batch_size == 400 else 0.5
        return {"macro_accuracy": 0.9 if best[cell.epochs, seed] == cell.batch_size else nearly}

    write_cells(study, Paths(tmp_path), outcome)
    points = drawn(study, Paths(tmp_path)).set_index("epochs")
    assert points["batch_size"].to_dict() == pytest.approx({1: 400.0, 2: 400.0})
    assert points[["minimum", "maximum", "repeats"]].to_numpy().tolist() == [
        [100, 200, 2],
        [400, 400, 2],
    ]
