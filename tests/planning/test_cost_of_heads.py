"""Estimates of a head on cached features: they do not depend on the network below it."""

from pathlib import Path

import pytest
import yaml
from tests.planning.finished import cell_cost

from dpsweep.planning.cost import Device, ProblemCost, Stage
from dpsweep.planning.plan import Plan
from dpsweep.study import Study, load_study
from dpsweep.study.paths import Paths

ROOT = Path(__file__).parents[2]
IMAGES, TENTH = "cifar100_vit-tiny_head", "cifar100-10pct_vit-tiny_head"
TEXTS = "20newsgroups_minilm_head"
# Seconds of a trial on one core that multiplies matrices at 0.098 Tflop/s.
CORE = Device("a core", "core", 0.098, start_seconds=3.0, step_seconds=0.005)


def frozen(folder: Path, **sections: object) -> Study:
    """Load the study on frozen features with other settings, without figures."""
    content = {"extends": str(ROOT / "studies/frozen-features.yaml"), **sections}
    text = yaml.safe_dump(content) + "figures: none\n"
    (folder / "study.yaml").write_text(text)
    return load_study(folder / "study.yaml")


def test_a_larger_network_raises_only_the_cost_of_features(tmp_path: Path) -> None:
    small = frozen(tmp_path)
    # Four times the patches and twice the layers, but the same number of features.
    larger = {"vit-tiny": {"arguments": {"depth": 24, "patch_size": 8}}}
    large = frozen(tmp_path, backbones=larger)
    costs = [ProblemCost(each, IMAGES, CORE) for each in (small, large)]
    assert costs[0].cell(4) == costs[1].cell(4)
    stages: tuple[Stage, ...] = ("train", "gradient_norms", "theory")
    for stage in stages:
        assert costs[0].seconds(stage, 4) == costs[1].seconds(stage, 4)
    before, after = (each.seconds("features", 4) - CORE.start_seconds for each in costs)
    assert after > 7 * before
    plans = [Plan(each, Paths(tmp_path), [IMAGES]).estimates() for each in (small, large)]
    names = [name for name in plans[0] if plans[0][name] != plans[1][name]]
    assert names == ["features (1)"]


@pytest.mark.parametrize(
    ("problem", "epochs", "batch_size", "seconds"),
    [
        (IMAGES, 4, 512, 1.84),
        (IMAGES, 4, 4096, 1.24),
        (IMAGES, 4, "full", 0.98),
        (TENTH, 32, 256, 1.58),
        (TENTH, 2, "full", 0.03),
        (TEXTS, 8, 256, 1.03),
        (TEXTS, 8, "full", 0.50),
    ],
)
def test_estimates_of_trials_are_near_the_measured_times(
    tmp_path: Path, problem: str, epochs: int, batch_size: int | str, seconds: float
) -> None:
    one = {"batch_size": [batch_size], "epochs": [epochs]}
    names = [problem, f"{problem}_autos", f"{problem}_short"]
    known = frozen(tmp_path).sweeps
    study = frozen(tmp_path, sweeps={name: one for name in names if name in known})
    (estimate, without) = (cell_cost(study, problem, epochs, CORE, each) for each in (2, 1))
    assert seconds / 3 < estimate.seconds - without.seconds < 3 * seconds
