"""Sweeps of several optimizers and methods, and the search along a grid of learning rates."""

from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.study.small import load_small
from tests.study.test_optimizers import DEFINED

from dpsweep.study.fingerprints import trainer_fingerprint
from dpsweep.study.networks import Augmentations
from dpsweep.study.sweeps import bracket_maximum, bracket_trials


def test_a_sweep_of_several_optimizers_becomes_one_sweep_each(tmp_path: Path) -> None:
    own = {"momentum": [0.5, 5], "late": None, "sgd": {"first": 1, "last": 4, "count": 3}}
    study = load_small(tmp_path, {"optimizers": DEFINED, "sweeps/flat/optimizer": own})
    assert list(study.sweeps) == ["flat_momentum", "flat_late", "flat_sgd", "automatic"]
    rates = [sweep.learning_rates for sweep in study.sweeps.values()]
    assert rates == [[0.5, 5], [0.001, 0.01, 0.1], [1, 2, 4], [0.01, 0.1]]
    problems = [sweep.problem.name for sweep in study.sweeps.values()]
    assert problems[:2] == ["digits_pretrained_film_momentum", "digits_pretrained_film_late"]
    listed = load_small(
        tmp_path, {"optimizers": DEFINED, "sweeps/flat/optimizer": ["momentum", "late"]}
    )
    assert list(listed.sweeps)[:2] == ["flat_momentum", "flat_late"]
    # The expanded study is valid, and has the same files as sweeps that name one optimizer each.
    again = type(study).model_validate(study.model_dump(mode="json", by_alias=True))
    assert again.sweeps == study.sweeps
    assert trainer_fingerprint(study, problems[0]) == trainer_fingerprint(listed, problems[0])


def test_a_sweep_of_counts_of_views_is_a_sweep_of_each(tmp_path: Path) -> None:
    edits: dict[str, Any] = {
        f"methods/views{count}": {"kind": "film", "augmentations": {"count": count, "flip": True}}
        for count in (1, 4)
    }
    edits["sweeps/flat/method"] = ["views1", "views4", "film"]
    study = load_small(tmp_path, edits | {"sweeps/flat/optimizer": ["adam", "sgd"]})
    assert [name for name in study.sweeps if name.startswith("flat")] == [
        *("flat_views1_adam", "flat_views1_sgd", "flat_views4_adam", "flat_views4_sgd"),
        *("flat_film_adam", "flat_film_sgd"),
    ]
    sweep = study.sweeps["flat_views4_sgd"]
    assert sweep.problem.name == "digits_pretrained_views4_sgd"
    assert study.methods[sweep.method].augmentations == Augmentations(count=4, flip=True)


# -- the search for the best learning rate ---------------------------------------------------

grids = st.lists(st.floats(0, 1), min_size=1, max_size=40)


@given(grids, st.integers(0, 39))
def test_it_finds_the_peak_of_a_unimodal_grid_with_few_trials(
    heights: list[float], turn: int
) -> None:
    distinct = sorted(set(heights))
    peak = turn % len(distinct)
    # Strictly rising to the peak, strictly falling after it.
    values = [*distinct[:peak], *reversed(distinct[peak:])]
    calls: list[int] = []

    def score(position: int) -> float:
        calls.append(position)
        return values[position]

    assert values[bracket_maximum(len(values), score)] == max(values)
    assert len(calls) == len(set(calls)) <= bracket_trials(len(values))
    assert [bracket_trials(count) for count in (1, 2, 3, 7, 8, 10, 12)] == [1, 2, 3, 4, 5, 5, 5]


@given(grids)
def test_on_any_grid_it_returns_the_best_computed_value(values: list[float]) -> None:
    seen: dict[int, float] = {}

    def score(position: int) -> float:
        return seen.setdefault(position, values[position])

    best = bracket_maximum(len(values), score)
    assert best == min(position for position in seen if seen[position] == max(seen.values()))
