"""The study on Fashion-MNIST judges what `dpsweep recommend` advises there."""

from pathlib import Path

import pytest

from dpsweep.recommend.rule import recommend
from dpsweep.recommend.situation import situation_of
from dpsweep.study import load_study

STUDY = Path(__file__).parents[2] / "studies" / "fashion-mnist.yaml"


@pytest.mark.parametrize(("level", "epsilon"), [("low", 0.5), ("middle", 2), ("high", 8)])
def test_the_small_grids_of_the_study_are_the_advised_ones(level: str, epsilon: float) -> None:
    study = load_study(STUDY)
    advised = recommend(situation_of(study, "shorter", epsilon, 10))
    sweeps = [study.sweeps[f"{level}-{place}"] for place in ("quarter", "advised", "fourfold")]
    swept = {
        study.numeric_batch_size("fashion-mnist", size): sweep.learning_rates
        for sweep in sweeps
        for size in sweep.batch_size
    }
    assert swept.keys() == advised.small_grid.keys()
    for size, rates in advised.small_grid.items():
        assert swept[size] == pytest.approx(rates, rel=0.05)
    for sweep in sweeps:
        assert sweep.epsilon == [epsilon] and sweep.epochs == [10]
        assert sweep.clipping_bound == pytest.approx([advised.clipping_bound], rel=0.05)
