"""The studies of the repository: the paper's grids, targets and numbers; keys and their pages."""

from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import yaml
from benchmarks.catalogue import catalogue
from tests.described import described
from tests.study.small import edited
from tests.tracked import tracked

from dpsweep.planning.outputs import Outputs
from dpsweep.study import Cell, Study, load_study
from dpsweep.study.keys import NAME, as_lines, page, schema_text, study_keys, study_schema
from dpsweep.study.load import parse_yaml
from dpsweep.study.paths import Paths

ROOT = Path(__file__).parents[2]


# -- grids ---------------------------------------------------------------------------------

# Table A1: sweep | largest power of two of B | learning rates: first, last, count | C.
# The smallest B is 2^8, powers of two are below N, and every sweep has the full batch.
TABLE_A1 = """
cifar100_vit-tiny_film      |14| 0.001  0.02  8  | 1e-5 1e-4 1e-3 1e-2 0.1 1 10
cifar100_vit-base_film      |14| 0.001  0.02  8  | 1e-5 1e-4 1e-3 1e-2 0.1 1 10
cifar100_resnet50_film      |14| 0.0005 0.01  10 | 1e-5 1e-4 1e-3 1e-2 0.1 1 10
cifar100-10pct_vit-tiny_film|14| 0.001  0.02  8  | 1e-4 1e-2 0.1 1 5 10
cifar100-10pct_vit-base_film|14| 0.001  0.02  8  | 1e-4 1e-2 0.1 1 5 10
cifar100-10pct_resnet50_film|14| 0.0005 0.01  10 | 1e-3 1e-2 0.1 1 10 26 42
sun397_vit-tiny_film        |16| 0.001  0.02  8  | 0.1 1 10 12 14 18 26 42
sun397_vit-base_film        |16| 0.001  0.02  8  | 0.1 1 10 26 42
sun397_vit-tiny_lora-r1     |16| 0.005  0.025 8  | 0.1 1 10 12 14 18 26 42
sun397_vit-base_lora-r1     |16| 0.005  0.025 8  | 0.1 1 10 26 42
sun397_vit-tiny_all         |12| 0.0001 0.002 10 | 1e-3 1e-2 0.1 1 10 25 29.5 34.22 40.03 46.84 54.79 64.11 75
sun397_vit-base_all         |12| 0.0001 0.002 10 | 1e-3 1e-2 0.1 1 10 25 29.5 34.22 40.03 46.84 54.79 64.11 75
cassava_vit-tiny_film       |14| 0.001  0.02  8  | 0.1 1 10 26 42
cassava_vit-base_film       |14| 0.001  0.02  8  | 0.1 1 10 26 42
20newsgroups_distilbert_lora|13| 0.001  0.02  8  | 1e-3 1e-2 0.1 1 10 42
cifar10_wrn-16-4_scratch    |12| 0.0001 0.01  10 | 1e-5 1 10 50
sun397_vit-tiny_film_sgd    |12| 0.1    20    10 | 0.1 1 26 42
"""
SIZES = {"sun397": 87_002, "cassava": 7_545, "cifar100": 50_000, "cifar100-10pct": 5_000}
SIZES |= {"cifar10": 50_000, "20newsgroups": 11_314}
ROWS = [[cell.strip() for cell in line.split("|")] for line in TABLE_A1.strip().splitlines()]


@pytest.mark.parametrize(("name", "power", "rates", "bounds"), ROWS, ids=[row[0] for row in ROWS])
def test_grids_are_those_of_table_a1(
    paper: Study, name: str, power: str, rates: str, bounds: str
) -> None:
    sweep = paper.sweeps[name]
    size = SIZES[name.split("_", maxsplit=1)[0]]
    powers = [2**exponent for exponent in range(8, int(power) + 1) if 2**exponent < size]
    assert sweep.batch_size == [*powers, "full"]
    assert sweep.clipping_bound == [float(bound) for bound in bounds.split()]
    first, last, count = map(float, rates.split())
    wanted = np.geomspace(first, last, int(count)).tolist()
    assert sweep.learning_rates == pytest.approx(wanted, rel=1e-5)


# -- cells behind targets ------------------------------------------------------------------


def cells(study: Study, name: str) -> set[Cell]:
    target = study.figures.get(name) or study.tables[name]
    return {cell for selection in target.selections() for cell in selection.cells()}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # ten batch sizes; five bounds for ViT-Base, eight for each of two ViT-Tiny panels
        ("fig1_accuracy_heatmaps", 10 * (5 + 8 + 8)),
        # left: ViT-Tiny at two epsilons; right: ViT-Base at 0.25, ViT-Tiny at 0.25 once more
        ("fig2_clipping_vs_difficulty", 10 * (8 + 8 + 5)),
        # six epsilons, C = 1, all batch sizes
        ("fig3_gradnorm_distributions", 6 * 10),
        # three difficulties, three bounds
        ("fig4_perclass_retained_accuracy", 3 * 3 * 10),
        # five epsilons; AUTO-S has one cell, flat clipping one for each bound
        ("fig5_autoclip_vs_tuned", 5 * (10 * (1 + 8) + 8 * (1 + 7) + 6 * (1 + 5))),
        ("tab_autoclip", 5 * (10 * (1 + 8) + 8 * (1 + 7) + 6 * (1 + 5))),
        # five epsilons, five numbers of epochs, eight batch sizes, seven bounds
        ("fig7_cumulative_noise", 5 * 5 * 8 * 7),
        ("eps_cifar100-10pct_resnet50", 2 * 6 * 7),
        ("scratch_heatmaps", 4 * 6 * 4),
        ("tab_lora_rank", 5 * 2 * 10),
        # six epsilons at one batch size and one bound
        ("mean_gradnorm_8epochs", 6),
    ],
)
def test_cells_behind_a_target_counted_by_hand(paper: Study, name: str, expected: int) -> None:
    found = cells(paper, name)
    assert len(found) == expected
    if name in paper.figures:
        files = Outputs(paper, Paths(Path("R"))).figure(name).inputs
        assert sum(file.name.startswith("trials-") for file in files) == expected


def test_the_retained_accuracy_of_classes_needs_gradient_norms(paper: Study) -> None:
    inputs = Outputs(paper, Paths(Path("R"))).figure("fig4_perclass_retained_accuracy").inputs
    assert sum(file.parts[1] == "gradnorms" for file in inputs) == 3 * 3
    assert any(file.name == "metadata.json" for file in inputs)  # names of classes


def test_every_cell_is_drawn(paper: Study) -> None:
    """AUTO-S was not trained for all of the problems that a figure of the theory compares."""
    assert set(paper.targets.undrawn) <= {"parts of theory_predictions"}
    drawn = {cell for name in (*paper.figures, *paper.tables) for cell in cells(paper, name)}
    assert drawn == set(paper.all_cells())


# -- the paper's numbers -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "count", "epsilon", "expected"),
    [
        ("tab_lora_rank", 5 * 2, 0.5, (0.3924, None, None)),
        ("tab_autoclip", 3 * 5 * 2, 2, (0.759, 0.757, 0.762)),
    ],
)
def test_every_entry_of_a_comparison_has_the_papers_number(
    paper: Study, name: str, count: int, epsilon: float, expected: tuple[float | None, ...]
) -> None:
    table = paper.tables[name]
    numbers = table.further_settings()["references"]
    assert len(set(map(repr, numbers))) == count and None not in numbers
    keys = ("value", "minimum", "maximum")
    assert expected in [
        tuple(map(each.get, keys)) for each in numbers if each["epsilon"] == epsilon
    ]
    for entry in table.leaves():
        assert entry.epochs == [32 if entry.dataset == "cassava" else 8]


# -- keys and pages ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "file", tracked("config.yaml", "studies/*.yaml"), ids=lambda file: file.stem
)
def test_a_shipped_study_is_valid(file: Path) -> None:
    assert load_study(file).all_cells()


def test_generated_pages_are_up_to_date(paper: Study) -> None:
    """CONTRIBUTING.md has the commands that write them."""
    for file, text in (
        ("docs/keys.md", page()),
        ("docs/figures.md", catalogue(paper)),
        ("workflow/schemas/config.schema.yaml", schema_text()),
    ):
        assert (ROOT / file).read_text(encoding="utf-8") == text, file


def test_the_schema_is_valid_and_accepts_valid_studies() -> None:
    schema = study_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    for study in (described(edited({})), yaml.safe_load((ROOT / "config.yaml").read_text())):
        assert not list(jsonschema.Draft202012Validator(schema).iter_errors(study))


def test_every_key_of_the_models_is_listed_explained_and_shown() -> None:
    schema, keys = study_schema(), study_keys()
    names = {
        name
        for model in (schema, *schema["$defs"].values())
        for name in model.get("properties", {})
    }
    assert {key.path.rpartition(".")[2] for key in keys} - {"extends"} == names
    assert [key.path for key in keys if not key.meaning] == []
    paths = [key.path for key in keys]
    assert sorted(set(paths)) == sorted(paths)  # one row, also for several kinds of a section
    lines = list(as_lines(keys, 80))
    assert max(map(len, lines)) <= 80
    shown = " ".join(map(str.strip, lines))
    assert all(each.path in shown and each.meaning in shown for each in keys)


def test_examples_are_values_of_a_valid_study() -> None:
    example = Path(str(files("dpsweep.study").joinpath("every_key.yaml")))
    load_study(example)
    content = parse_yaml(example.read_text(encoding="utf-8"))
    for key in study_keys():
        if key.example and key.path != "extends":
            assert parse_yaml(key.example) in values_at(content, key.path.split(".")), key


def values_at(content: Any, path: list[str]) -> list[Any]:
    """Return all values at a path, in which NAME is any key."""
    if isinstance(content, list) and path and isinstance(content[0], dict):
        return [value for each in content for value in values_at(each, path)]
    if not path or not isinstance(content, dict):
        return [] if path else [content]
    chosen = [value for key, value in content.items() if path[0] in (NAME, key)]
    return [value for each in chosen for value in values_at(each, path[1:])]
