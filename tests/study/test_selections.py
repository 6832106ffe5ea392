"""The cells of selections and figures, and their order."""

import re
from pathlib import Path

import pytest
from tests.config.small import Edits, load_small

from dpsweep.planning.outputs import Outputs
from dpsweep.study import Cell, Study
from dpsweep.study.paths import Paths
from dpsweep.study.targets import Selection


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return load_small(tmp_path, {})


def test_defaults_are_the_usual_epochs_and_all_values_of_other_axes(study: Study) -> None:
    cells = study.cells(Selection())
    # Two epsilons, three B, three C. With AUTO-S, most cells are trained for 2 epochs.
    assert len(cells) == 2 * 3 * 3
    assert {cell.epochs for cell in cells} == {2}
    assert cells[0] == Cell("digits_pretrained_film", 1, 2, 64, 0.1)
    assert cells[-1] == Cell("digits_pretrained_film", 8, 2, "full", 10)
    whole = study.cells(Selection(epochs="all"))
    assert whole == study.sweep_cells("flat")


def test_one_value_and_several(study: Study) -> None:
    selection = Selection(
        epsilon=8.0, epochs=4, batch_size=["full", 64], clipping_bound=[10.0, 0.1]
    )
    assert study.cells(selection) == [  # in the order of the selection
        Cell("digits_pretrained_film", 8, 4, "full", 10),
        Cell("digits_pretrained_film", 8, 4, "full", 0.1),
        Cell("digits_pretrained_film", 8, 4, 64, 10),
        Cell("digits_pretrained_film", 8, 4, 64, 0.1),
    ]


def test_automatic_clipping_is_selected_by_name(study: Study) -> None:
    cells = study.cells(Selection(epsilon=1.0, clipping_bound="automatic"))
    assert cells == [
        Cell("digits_pretrained_film", 1, 2, 64, "automatic"),
        Cell("digits_pretrained_film", 1, 2, "full", "automatic"),
    ]


def test_batch_sizes_as_numbers(study: Study) -> None:
    selection = Selection(clipping_bound="automatic")
    assert [study.batch_size(cell) for cell in study.cells(selection)] == [64, 1347, 64, 1347]


@pytest.mark.parametrize(
    ("key", "rates"),
    [
        ({"first": 0.001, "last": 0.1, "count": 3}, [0.001, 0.01, 0.1]),
        ({"first": 1, "last": 16, "count": 5}, [1, 2, 4, 8, 16]),
        ({"first": 0.001, "last": 0.02, "count": 2}, [0.001, 0.02]),
        ([0.1, 0.3], [0.1, 0.3]),
    ],
)
def test_learning_rates(tmp_path: Path, key: object, rates: list[float]) -> None:
    study = load_small(tmp_path, {"sweeps/flat/learning_rate": key})
    assert study.sweeps["flat"].learning_rates == rates


PER_CLASS = {
    "family": "per_class",
    "section": "Main",
    "caption": "Classes.",
    "baseline": 1,
    "panels": [{"title": "Tight", "epsilon": 1, "epochs": 2, "clipping_bound": [0.1, 10]}],
}


def inputs(tmp_path: Path, edits: Edits, figure: str) -> list[str]:
    study = load_small(tmp_path, edits)
    files = Outputs(study, Paths(Path("R"))).figure(figure).inputs
    assert len(set(files)) == len(files)
    # Without the ten digits of their settings.
    return [re.sub("-[0-9a-f]{10}", "", str(file)) for file in files]


def test_a_figure_needs_exactly_the_cells_that_it_draws(tmp_path: Path) -> None:
    files = inputs(tmp_path, {"figures/map/panels/0/clipping_bound": 10}, "map")
    assert files == [
        "R/cells/digits_pretrained_film/eps1_epochs2_B64_C10/trials.parquet",
        "R/cells/digits_pretrained_film/eps1_epochs2_B256_C10/trials.parquet",
        "R/cells/digits_pretrained_film/eps1_epochs2_Bfull_C10/trials.parquet",
    ]


@pytest.mark.parametrize(
    ("changes", "bounds"),
    [({}, ["0.1", "1", "10"]), ({"rows": ["accuracy_difference"]}, [])],
)
def test_a_per_class_figure_needs_its_baseline_and_norms_for_retained_weight(
    tmp_path: Path, changes: dict[str, object], bounds: list[str]
) -> None:
    files = inputs(tmp_path, {"figures/classes": PER_CLASS | changes}, "classes")
    norms = sorted(file for file in files if "gradnorms" in file)
    names = [file for file in files if file.endswith("metadata.json")]
    assert len(names) == 1  # the names of the classes
    # Three bounds (0.1, 10, the baseline 1), three B.
    assert len(files) - len(norms) - len(names) == 3 * 3
    assert norms == [
        f"R/gradnorms/digits_pretrained_film/eps1_epochs2_C{bound}.parquet" for bound in bounds
    ]


def test_a_caption_omits_panels_that_are_left_out(tmp_path: Path) -> None:
    compared = {"epochs": 2, "lines": [{"epsilon": 1}, {"epsilon": 8}]}
    with_itself = {"epochs": 4, "lines": [{"epsilon": 1}, {"epsilon": "tight"}]}
    edits = {
        "figures/curve/caption": "{epochs}.",
        "figures/curve/panels": [compared, with_itself],
    }
    study = load_small(tmp_path, edits)
    assert study.figures["curve"].caption == "2 epochs."
    assert "one value of what is compared" in study.targets.undrawn["parts of curve"]
