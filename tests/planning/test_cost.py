"""Estimates of the cost of a study from its file."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.synthetic import make_study

from dpsweep.base.gpus import Gpu
from dpsweep.models.architectures import OWN
from dpsweep.planning.cost import CPU, GPU, Device, ProblemCost, Stage, count_network, device_of
from dpsweep.planning.plan import Plan
from dpsweep.study import Study, load_study
from dpsweep.study.datasets import Dataset
from dpsweep.study.networks import Augmentations
from dpsweep.study.paths import Paths

ROOT = Path(__file__).parents[2]


def test_gpu_memory_is_that_of_the_state_of_training(paper: Study) -> None:
    """With a batch of one: 28 bytes for each parameter that trains, 4 for each other one."""
    sweeps = {
        name: sweep.model_copy(update={"physical_batch": 1}) for name, sweep in paper.sweeps.items()
    }
    study = paper.model_copy(update={"sweeps": sweeps})
    film, whole = (ProblemCost(study, f"sun397_vit-base_{method}") for method in ("film", "all"))
    found = whole.cell(8).gpu_gigabytes - film.cell(8).gpu_gigabytes
    more = whole.trained_parameters - film.trained_parameters
    assert found == pytest.approx(24 * more / 1e9, rel=0.01)


def test_cost_follows_the_work(paper: Study) -> None:
    tiny, base = "sun397_vit-tiny_film", "sun397_vit-base_film"
    assert paper.trials_per_cell(tiny) == 8 + 5 - 1
    eight, sixteen = (ProblemCost(paper, tiny).cell(epochs).seconds for epochs in (8, 16))
    assert 1.8 < sixteen / eight < 2
    # ViT-Base has 12 to 16 times the operations of ViT-Tiny.
    assert 10 < ProblemCost(paper, base).cell(8).seconds / eight < 16
    assert ProblemCost(paper, base, replace(GPU, teraflops=200)).cell(8).seconds < eight * 3
    assert ProblemCost(paper, tiny).seconds("gradient_norms", 8) < eight / 5
    # SUN397 at 224 x 224 is 16 GB of pixels, training and test.
    assert 16 < ProblemCost(paper, tiny).cell(8).host_gigabytes < 25


@pytest.mark.parametrize(
    ("architecture", "arguments", "kind"),
    [
        ("hashed_ngrams", {}, {"kind": "text", "max_length": 1024}),
        ("hashed_ngrams", {"dimension": 64}, {"kind": "text", "max_length": 1024}),
        ("scattering", {"image_size": 32, "in_chans": 3}, {"image_size": 32}),
        ("scattering", {"image_size": 32, "scales": 3, "angles": 4}, {"image_size": 32}),
    ],
)
def test_fixed_features_have_the_width_of_their_network_and_take_milliseconds(
    paper: Study, architecture: str, arguments: dict[str, int], kind: dict[str, Any]
) -> None:
    network = OWN[architecture](num_classes=2, **arguments)
    section = paper.backbones[architecture.replace("_", "-")].model_copy(
        update={"arguments": arguments}
    )
    source = paper.datasets["sun397"].source
    sizes = {"title": "New", "classes": 2, "train_size": 9, "test_size": 9, "source": source}
    found = count_network(section, Dataset.model_validate(sizes | kind))
    assert found.width == network.get_classifier().in_features
    assert found.operations < 0.02 * CPU.teraflops * 1e12
    assert found.parameters == 0


def test_work_counts_the_views_of_images(paper: Study) -> None:
    def operations(study: Study) -> float:
        cost = ProblemCost(study, "sun397_vit-tiny_film", replace(GPU, step_seconds=0.0))
        two, one = (cost.cell(epochs, trials=1).seconds for epochs in (2, 1))
        return two - one

    for count in (1, 4):
        views = Augmentations(count=count, flip=True)
        film = paper.methods["film"].model_copy(update={"augmentations": views})
        study = paper.model_copy(update={"methods": paper.methods | {"film": film}})
        assert operations(study) == pytest.approx(count * operations(paper))


def test_the_time_of_a_cell_is_the_sum_of_its_parts() -> None:
    """The parts are a start, and for each trial training, evaluation and steps, with the largest counts."""
    sweep = {"epochs": [3], "batch_size": [64, 500, "full"]}
    study = make_study(
        {
            "bounds": sweep | {"seeds": 2},
            "automatic": sweep | {"clipping_bound": "automatic", "seeds": 5},
        }
    )
    none = {"teraflops": math.inf, "start_seconds": 0.0, "step_seconds": 0.0}

    def seconds(**device: float) -> float:
        return (
            ProblemCost(study, "digits_small_film", replace(GPU, **none | device)).cell(3).seconds
        )

    trials, steps = 5, round(3 * 1000 / 64)
    assert seconds(start_seconds=7.0) == 7
    assert seconds(step_seconds=2.0) == trials * steps * 2
    network = count_network(study.backbones["small"], study.datasets["digits"])
    # A forward and a backward pass over 1,000 examples in each epoch, and 200 test examples.
    passes = 2 * 3 * 1000 + 200
    computed = seconds(teraflops=1e-12)
    assert computed == pytest.approx(trials * passes * network.operations, rel=1e-9)
    assert study.trials_per_cell("automatic") == trials > study.trials_per_cell("bounds")


def test_parameters_after_every_epoch_are_kept_in_memory(paper: Study) -> None:
    problem = "sun397_vit-base_all"
    few, many = (ProblemCost(paper, problem).cell(epochs).host_gigabytes for epochs in (1, 3))
    trained = ProblemCost(paper, problem).trained_parameters
    assert many - few == pytest.approx(2 * 4 * trained / 1e9, rel=1e-6)


def test_the_device_of_estimates() -> None:
    assert device_of(0.0, []) == CPU
    assert device_of(0.0, [Gpu("0", "GPU-0", "H100", 80.0)]) == GPU
    assert device_of(5.0, []) == replace(GPU, teraflops=5.0)


# -- heads on cached features, which do not depend on the network below ---------------------------

IMAGES, TENTH = "cifar100_vit-tiny_head", "cifar100-10pct_vit-tiny_head"
TEXTS = "20newsgroups_minilm_head"
# Seconds of a trial on one core that multiplies matrices at 0.098 Tflop/s.
CORE = Device("a core", "core", 0.098, start_seconds=3.0, step_seconds=0.005)


def frozen(folder: Path, **sections: object) -> Study:
    """Load the study on frozen features with other settings, without figures."""
    content = {"extends": str(ROOT / "studies/frozen-features.yaml"), "figures": "none", **sections}
    (folder / "study.yaml").write_text(yaml.safe_dump(content))
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
        (IMAGES, 4, "full", 0.98),
        (TENTH, 32, 256, 1.58),
        (TENTH, 2, "full", 0.03),
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
    cost = ProblemCost(study, problem, CORE)
    (estimate, without) = (cost.cell(epochs, trials) for trials in (2, 1))
    assert seconds / 3 < estimate.seconds - without.seconds < 3 * seconds
