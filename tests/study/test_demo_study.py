"""``studies/demo.yaml``: every target of the paper, on small grids that still show something."""

import math
import re
from pathlib import Path

from dpsweep.figures.families import Heatmap
from dpsweep.study import Study, load_study
from dpsweep.tables.comparison import ComparisonTable

ROOT = Path(__file__).parents[2]
# Names of the paper that no text of the demo may contain.
PAPERS = re.compile(r"SUN397|CIFAR|Cassava|Newsgroups|ViT-(Tiny|Base)|ResNet-50|WRN-16|[35] seeds")


def test_no_text_names_the_papers_data(demo: Study) -> None:
    for name, target in {**demo.figures, **demo.tables}.items():
        drawn = target.model_dump(mode="json", exclude={"family"})
        assert not PAPERS.search(str(drawn)), name


def test_no_entry_has_a_number_of_the_paper(demo: Study) -> None:
    compared = [each for each in demo.tables.values() if isinstance(each, ComparisonTable)]
    assert len(compared) == 2
    assert len(demo.reference_values) == 40
    assert not any(entry.reference for table in compared for entry in table.entries)


def test_heatmaps_have_three_bounds_and_two_batch_sizes_to_full(demo: Study) -> None:
    maps = {name: each for name, each in demo.figures.items() if isinstance(each, Heatmap)}
    assert len(maps) == 6
    for name, figure in maps.items():
        for panel in figure.panels:
            assert len(panel.values("clipping_bound")) >= 3, name
            sizes = panel.values("batch_size")
            assert len(sizes) >= 2, name
            assert sizes[-1] == "full", name


def test_every_private_sweep_is_drawn(demo: Study) -> None:
    drawn = {
        cell
        for target in (demo.figures | demo.tables).values()
        for selection in target.selections()
        for cell in selection.cells()
    }
    assert drawn == {cell for cell in demo.all_cells() if math.isfinite(cell.epsilon)}


def test_learning_rates_are_tuned_and_trials_repeated(demo: Study) -> None:
    for name, sweep in demo.sweeps.items():
        assert len(sweep.learning_rates) >= 2, name
        assert sweep.seeds >= 2, name


def test_the_demo_has_every_way_of_training(demo: Study) -> None:
    sweeps = demo.sweeps.values()
    assert {demo.methods[sweep.method].kind for sweep in sweeps} == {
        "film", "lora", "all", "scratch",
    }  # fmt: skip
    assert {sweep.optimizer for sweep in sweeps} == {"adam", "sgd"}
    assert {demo.datasets[sweep.dataset].kind for sweep in sweeps} == {"image", "text"}
    automatic = [sweep for sweep in sweeps if sweep.clipping_bound == "automatic"]
    assert len(automatic) == 3
    assert all(len(sweep.epsilon) >= 2 for sweep in automatic)


def test_the_dense_demo_has_larger_grids_for_the_same_problems(demo: Study) -> None:
    dense = load_study(ROOT / "studies" / "demo-dense.yaml")
    assert dense.results != demo.results
    for axis in ("epsilon", "epochs", "batch_size", "clipping_bound"):
        for problem in demo.problems:
            values, fewer = (
                {getattr(cell, axis) for cell in study.all_cells() if cell.problem == problem}
                for study in (dense, demo)
            )
            assert len(values) >= len(fewer), (problem, axis)
    assert len(dense.all_cells()) >= 2 * len(demo.all_cells())
