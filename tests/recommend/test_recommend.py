"""Recommended settings: batch size, C and learning rate; and the printed section, compared with the study."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from benchmarks.common import RESULTS
from tests.training.test_features import with_weights
from tests.training.tiny_study import prepare, tiny_sections
from torch.nn import functional
from typer.testing import CliRunner

from dpsweep.base.files import read_json
from dpsweep.cli.main import app
from dpsweep.models.build import build_head, build_model
from dpsweep.privacy import Calibration
from dpsweep.privacy.trade_off import GROUPS, Attack, GaussianTradeOff, best_attack, in_words
from dpsweep.recommend import rule
from dpsweep.recommend.rule import (
    NoAdviceError,
    ProblemFacts,
    Recommendation,
    best_batch_size,
    expected_gradient_norm,
    facts_of_sweep,
    recommend,
)
from dpsweep.study import Study, load_study
from dpsweep.study.networks import HeadOnly

FEATURES = Path(__file__).parents[2] / "studies" / "frozen-features.yaml"
SWEEP = "cifar100_vit-tiny_head"
FACTS = ProblemFacts(5000, 2.0, 1e-5, 8, "adam", gradient_norm=5.0)
NOISE_MULTIPLIER, CALIBRATE = cache(rule.noise_multiplier), cache(rule.calibrate)


def attacks(noise: Calibration) -> list[Attack]:
    """Return attacks on Gaussian noise that depend on all settings, in no time."""
    mean = noise.sampling_rate * noise.steps**0.5 / noise.noise_multiplier
    return [best_attack(GaussianTradeOff(each * mean), each) for each in GROUPS]


@pytest.fixture(autouse=True)
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule, "noise_multiplier", NOISE_MULTIPLIER)
    monkeypatch.setattr(rule, "calibrate", CALIBRATE)
    monkeypatch.setattr(rule, "attacks_on_training", attacks)


# -- the formulas ----------------------------------------------------------------------------


def test_the_batch_size_trades_noise_against_steps() -> None:
    noise = {32: 30.0, 64: 20.9, 128: 20.1, 256: 20.0}
    asked: list[int] = []

    def best(noise: dict[int, float], parameters: int) -> int:
        def looked_up(size: int) -> float:
            asked.append(size)
            return noise[size]

        return best_batch_size(looked_up, noise, parameters)

    def cost(size: int, parameters: int) -> float:
        return math.log(noise[size]) + 0.05 * size / noise[size] / math.sqrt(parameters)

    for parameters in (1, 10, 1000, 10**8):
        assert best(noise, parameters) == min(noise, key=lambda each: cost(each, parameters))
    # In many dimensions noise is above every signal: the least noise is best.
    assert best(noise, 10**8) == 256
    # With equal noise many small steps are best.
    assert best(dict.fromkeys(noise, 20.0), 1000) == 32
    # The many steps of small batches are not calibrated in vain.
    asked.clear()
    best({32: 1000.0, 64: 500.0, 128: 20.1, 256: 20.0}, 1000)
    assert asked == [256, 128, 64]


def test_the_formula_scales_with_the_norm_and_the_steps() -> None:
    made, longer = recommend(FACTS), recommend(replace(FACTS, gradient_norm=20.0))
    size = made.batch_size
    assert size == longer.batch_size == rule.batch_size(FACTS)
    assert made.steps == round(5000 * 8 / size)
    assert made.clipping_bound == pytest.approx(0.75) and longer.clipping_bound == pytest.approx(3)
    assert longer.learning_rate == pytest.approx(made.learning_rate / 4)
    # In a random walk of T steps, the logits of an example with gradient norm G move by about 1 or 2.
    walk = math.sqrt(made.steps) * FACTS.gradient_norm
    for source, far in (("exact", 2), ("measured on made-up inputs", 1), ("a guess", 1)):
        found = recommend(replace(FACTS, norm_source=source))
        assert found.learning_rate * walk == pytest.approx(far)
    # The small grid has rates for each batch size, and batch sizes up to N.
    assert list(made.small_grid) == [size // 4, size, min(4 * size, 5000)]
    for each, rates in made.small_grid.items():
        walk = math.sqrt(FACTS.steps(each)) * FACTS.gradient_norm
        assert [rate * walk for rate in rates] == pytest.approx([1, 2, 4])
    few = replace(FACTS, train_size=60, epochs=40)
    assert max(recommend(few).small_grid) == 60
    assert list(recommend(replace(few, train_size=2, delta=0.1)).small_grid) == [1, 2]


def test_infinite_epsilon_and_sgd_are_refused() -> None:
    with pytest.raises(NoAdviceError, match="epsilon: found inf; allowed: finite"):
        recommend(ProblemFacts(1000, math.inf, 1e-5, 1, "adam", 5.0))
    with pytest.raises(NoAdviceError, match="optimizer: found sgd; allowed: adam"):
        recommend(replace(FACTS, optimizer="sgd"))


def gradient_norm(model: torch.nn.Module, inputs: torch.Tensor) -> float:
    """Return the norm of the gradient of one example of class 3."""
    model.zero_grad()
    functional.cross_entropy(model(inputs), torch.tensor([3])).backward()
    gradients = [each.grad.flatten() for each in model.parameters() if each.grad is not None]
    return torch.cat(gradients).norm().item()


def test_the_expected_gradient_norm_is_that_of_a_head() -> None:
    study = load_study(FEATURES)
    for sweep, width, square, classes in (
        ("cifar100_vit-tiny_head", 192, 192, 100),
        ("20newsgroups_minilm_head", 384, 1, 20),
    ):
        features = torch.randn(1, width)
        features *= math.sqrt(square) / features.norm()
        expected = expected_gradient_norm(study, sweep).value
        found = gradient_norm(build_head(width, classes), features)
        assert found == pytest.approx(expected, rel=1e-5)


def test_the_measured_norm_of_a_prepared_network_is_that_of_its_gradients(
    tmp_path: Path,
) -> None:
    study = Study.model_validate(tiny_sections({}, {"kind": "film"}))
    paths = prepare(study, tmp_path).paths
    with_weights(paths.backbone("vit"), scale=5.0)
    found = expected_gradient_norm(study, "digits", paths)
    assert found.source == "measured on made-up inputs"
    model = build_model(paths.backbone("vit"), HeadOnly(kind="head"), 10, seed=1).eval()
    inputs = torch.randn(16, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    norms = [gradient_norm(model, row[None]) for row in inputs]
    assert found.value == pytest.approx(np.median(norms), rel=0.05)
    # The guess is far off: the network scales its features.
    assert expected_gradient_norm(study, "digits").source == "a guess"
    assert expected_gradient_norm(study, "digits").value < found.value / 3


# -- the printed section -----------------------------------------------------------------------

# A recommendation with different numbers everywhere.
GRID = {128: [0.0018, 0.0036, 0.007], 512: [0.004, 0.0072, 0.014], 2048: [0.0073, 0.015, 0.03]}
NO_FEATURES: dict[str, Any] = {}
MADE = Recommendation(512, 88, 0.351, 0.0072, GRID)


def other_study(features: Any = NO_FEATURES) -> Study:
    """Return a study without default settings."""
    content = load_study(FEATURES).model_dump(by_alias=True)
    content["privacy"] |= {"delta": 3e-6, "step_rounding": "ceil"}
    content["sweeps"] = {SWEEP: content["sweeps"][SWEEP] | {"optimizer": "sgd"}}
    content["backbones"]["vit-tiny"]["features"] = features
    return Study.model_validate(content | {"figures": "none", "audit": None})


def read_back(lines: list[str], *, tuned: bool) -> dict[str, Any]:
    """Parse the printed section, with the lines for tuning if ``tuned``."""
    section = lines[lines.index("release:") :]
    if tuned:
        own = [line for line in section if not line.startswith("  #")]
        more = [line.replace("  # ", "  ") for line in section if line.startswith("  # ")][1:]
        replaced = {line.partition(":")[0] for line in more}
        section = [line for line in own if line.partition(":")[0] not in replaced] + more
    found: dict[str, Any] = yaml.safe_load("\n".join(section))["release"]
    return found


Printed = Callable[..., list[str]]


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> Printed:
    """A function that prints a made-up recommendation for a study."""

    def lines(study: Study, made: Recommendation = MADE) -> list[str]:
        def recommend(facts: ProblemFacts) -> Recommendation:
            whole = study.datasets["cifar100"].train_size
            asked = facts.train_size, facts.epsilon, facts.delta, facts.epochs
            assert asked == (whole, 1.5, 3e-6, 6)
            return made

        monkeypatch.setattr(rule, "recommend", recommend)
        return list(rule.recommendation(study, SWEEP, 1.5, 6))

    return lines


@pytest.mark.parametrize("size", [512, "full"])
def test_the_printed_section_has_the_recommended_setting(printed: Printed, size: int | str) -> None:
    study, made = other_study(), MADE
    whole = study.datasets[study.sweeps[SWEEP].dataset].train_size
    if size == "full":
        made = replace(made, batch_size=whole, small_grid={whole: GRID[512]})
    lines = printed(study, made)
    section = {"sweep": SWEEP, "epsilon": 1.5, "epochs": [6], "clipping_bound": [0.35]}
    assert read_back(lines, tuned=False) == section | {
        **{"batch_size": [size], "learning_rate": [0.0072]},
    }
    assert read_back(lines, tuned=True) == section | {
        **{"selection": "private", "learning_rate": [0.0036, 0.0072, 0.014]},
        "batch_size": ["full"] if size == "full" else [128, 512, 2048],
    }
    # The table above has the same numbers.
    assert lines[:3] == [
        f"batch size       {made.batch_size}, 88 steps",
        "clipping bound   0.35",
        "learning rate    0.0072",
    ]
    runs = 3 * len(made.small_grid)
    assert lines[3] == f"small grid       {runs} runs, with this clipping bound:"
    assert f"batch size {made.batch_size}, learning rate 0.004, 0.0072 or 0.014" in "".join(lines)
    meaning_at = 4 + len(made.small_grid) + 3
    norm = expected_gradient_norm(study, SWEEP).value
    assert lines[meaning_at - 3].startswith(f"gradient norm    {norm:.3g} of an example")
    assert lines[meaning_at - 2] == "read: the study's file; no data"
    noise = rule.calibrate(1.5, 3e-6, whole, made.batch_size, 88)
    meaning = list(in_words(1.5, 3e-6, rule.attacks_on_training(noise)))
    assert lines[meaning_at : meaning_at + len(meaning)] == meaning


@pytest.mark.parametrize("features", [None, {"transformation": "unit-norm"}])
def test_the_printed_section_is_valid_for_all_features(
    features: dict[str, Any] | None, printed: Printed
) -> None:
    study = other_study(features)
    lines = printed(study)
    for tuned in (False, True):
        release = {"release": read_back(lines, tuned=tuned)}
        assert Study.model_validate(study.model_dump(by_alias=True) | release).release is not None


def test_problem_facts_are_those_of_the_study() -> None:
    study = other_study()
    dataset = study.datasets[study.sweeps[SWEEP].dataset]
    found = facts_of_sweep(study, SWEEP, 1.5, 6)
    assert found == ProblemFacts(
        train_size=dataset.train_size,
        epsilon=1.5,
        delta=3e-6,
        epochs=6,
        optimizer="sgd",
        gradient_norm=expected_gradient_norm(study, SWEEP).value,
        norm_source="a guess",
        parameters=dataset.classes * 193,
        rounding="ceil",
    )
    # A head of zeros on 192 normalised features and a bias.
    assert found.gradient_norm == pytest.approx(math.sqrt((1 - 1 / dataset.classes) * 193))


def test_printed_gains_equal_those_of_the_stored_sweeps() -> None:
    gained = read_json(RESULTS / "recommend.json")["gained"]
    assert {str(epochs) for epochs, said in rule.GAINED.items() if said} == set(gained)
    for epochs, (mean, low, high, count) in gained.items():
        said = rule.GAINED[int(epochs)]
        assert said == f"{mean:+.1f} ({low:+.1f} to {high:+.1f}, {count} settings)".replace(
            "-", "−"
        )


def test_the_only_sweep_of_a_study_needs_no_name(tmp_path: Path) -> None:
    file = tmp_path / "one.yaml"
    sweep = load_study(FEATURES).model_dump(mode="json", by_alias=True)["sweeps"][SWEEP]
    file.write_text(
        f"extends: {FEATURES}\nfigures: none\naudit: null\nsweeps: !replace {json.dumps({SWEEP: sweep})}\n"
    )
    options = ["--epsilon", "1", "--epochs", "8"]
    named, only, other = (
        CliRunner().invoke(app, ["recommend", *words, *options])
        for words in ([SWEEP, "--study", str(file)], [str(file)], [str(file), "pets"])
    )
    assert only.exit_code == 0 and only.output == named.output
    assert str(other.exception).startswith('sweep: found "pets"')
