"""What `recommend` prints, read back and compared field by field with what the study and the rule say."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpsweep.privacy.calibration import calibrate
from dpsweep.privacy.explain import in_words
from dpsweep.privacy.trade_off import attacks_on_training
from dpsweep.recommend import text
from dpsweep.recommend.rule import (
    Recommendation,
    Reference,
    SettingEstimate,
    Situation,
    batch_size,
)
from dpsweep.recommend.situation import expected_gradient_norm, situation_of
from dpsweep.recommend.text import recommendation
from dpsweep.study import Study, load_study

FEATURES = Path(__file__).parents[2] / "studies" / "frozen-features.yaml"
SWEEP = "cifar100_vit-tiny_head"
POINT = Reference("pets", "vit", "film", "adam", 2.0, 8, 100, 80, 1.0, 0.01, gradient_norm=10.0)


def other_study() -> Study:
    """A study none of whose settings is a default."""
    content = load_study(FEATURES).model_dump(by_alias=True)
    content["privacy"] |= {"delta": 3e-6, "step_rounding": "ceil"}
    content["sweeps"] = {SWEEP: content["sweeps"][SWEEP] | {"optimizer": "sgd"}}
    content["backbones"]["vit-tiny"]["features"] = {}
    content |= {"figures": {}, "tables": {}, "audit": None}
    return Study.model_validate(content)


def read_back(lines: list[str], *, tuned: bool) -> dict[str, Any]:
    """The printed section as YAML has it, with the lines for tuning if they are asked for."""
    section = lines[lines.index("release:") :]
    if tuned:
        own = [line for line in section if not line.startswith("  #")]
        more = [line.replace("  # ", "  ") for line in section if line.startswith("  # ")][1:]
        replaced = {line.partition(":")[0] for line in more}
        section = [line for line in own if line.partition(":")[0] not in replaced] + more
    found: dict[str, Any] = yaml.safe_load("\n".join(section))["release"]
    return found


@pytest.fixture
def made() -> Recommendation:
    """A recommendation none of whose numbers is another one's."""
    return Recommendation(
        512, 88, SettingEstimate(0.35, 3.0), SettingEstimate(0.0072, 4.0), (POINT,)
    )


@pytest.mark.parametrize("size", [512, "full"])
def test_the_section_says_what_was_recommended(
    monkeypatch: pytest.MonkeyPatch, made: Recommendation, size: int | str
) -> None:
    study = other_study()
    whole = study.datasets[study.sweeps[SWEEP].dataset].train_size
    made = replace(made, batch_size=whole if size == "full" else 512)
    monkeypatch.setattr(text, "recommend", lambda *_: made)
    lines = list(recommendation(study, SWEEP, 1.5, 6, []))
    assert read_back(lines, tuned=False) == {
        "sweep": SWEEP,
        "epsilon": 1.5,
        "epochs": [6],
        "batch_size": [size],
        "clipping_bound": [0.35],
        "learning_rate": [0.0072],
    }
    assert read_back(lines, tuned=True) == {
        "sweep": SWEEP,
        "epsilon": 1.5,
        "epochs": [6],
        "batch_size": [size],
        "selection": "private",
        "clipping_bound": [0.12, 0.35, 1.0],
        "learning_rate": [0.0018, 0.0072, 0.029],
    }
    # The same numbers stand in the table above.
    assert lines[0] == f"batch size       {made.batch_size}, 88 steps"
    assert lines[1] == "clipping bound   0.35, reference points scatter by a factor of 3.0"
    assert lines[2] == "learning rate    0.0072, reference points scatter by a factor of 4.0"
    assert lines[3] == "read: the study's file and 1 reference points (pets film); no data"
    noise = calibrate(1.5, 3e-6, whole, made.batch_size, 88)
    meaning = list(in_words(1.5, 3e-6, attacks_on_training(noise)))
    assert lines[5 : 5 + len(meaning)] == meaning


def is_accepted(study: Study, release: dict[str, Any]) -> bool:
    """Whether the study is valid with a section as it was read back from the output."""
    content = study.model_dump(by_alias=True) | {"release": release}
    return Study.model_validate(content).release is not None


@pytest.mark.parametrize(
    "features", [None, {}, {"transformation": "layer-norm"}, {"transformation": "unit-norm"}]
)
def test_what_is_printed_is_a_section_that_a_study_accepts(features: dict[str, Any] | None) -> None:
    content = other_study().model_dump(by_alias=True)
    content["backbones"]["vit-tiny"]["features"] = features
    content["sweeps"][SWEEP]["optimizer"] = "adam"
    study = Study.model_validate(content)
    lines = list(recommendation(study, SWEEP, 2.0, 4, []))
    if features:
        assert lines[-2] == "no section release, because the study would be refused with it:"
        assert "found cifar100_vit-tiny_head, whose head reads other features" in lines[-1]
        assert "release:" not in lines
    else:
        assert all(is_accepted(study, read_back(lines, tuned=tuned)) for tuned in (False, True))


def test_tuning_that_holds_out_too_much_is_not_proposed(
    monkeypatch: pytest.MonkeyPatch, made: Recommendation
) -> None:
    content = other_study().model_dump(by_alias=True)
    content["datasets"]["cifar100"] |= {"train_size": 520, "train_counts": None}
    content["sweeps"][SWEEP]["batch_size"] = ["full"]
    study = Study.model_validate(content)
    # A tenth is held out, which leaves 468 examples for a batch of 512.
    monkeypatch.setattr(text, "recommend", lambda *_: made)
    lines = list(recommendation(study, SWEEP, 1.5, 6, []))
    assert is_accepted(study, read_back(lines, tuned=False))
    assert not [line for line in lines if "private" in line]


def test_the_situation_is_that_of_the_study() -> None:
    study = other_study()
    dataset = study.datasets[study.sweeps[SWEEP].dataset]
    found = situation_of(study, SWEEP, 1.5, 6)
    assert found == Situation(
        train_size=dataset.train_size,
        epsilon=1.5,
        delta=3e-6,
        epochs=6,
        optimizer="sgd",
        gradient_norm=expected_gradient_norm(study, SWEEP),
        rounding="ceil",
    )
    # A head of zeros on 192 normalised features and a bias.
    assert found.gradient_norm == pytest.approx(math.sqrt((1 - 1 / dataset.classes) * 193))


def test_everything_that_is_known_reaches_the_rule(
    monkeypatch: pytest.MonkeyPatch, made: Recommendation
) -> None:
    study, given = other_study(), []

    def keep(situation: Situation, references: Any) -> Recommendation:
        given.append((situation, [each.dataset for each in references]))
        return made

    same = replace(POINT, dataset="cifar100-half")
    monkeypatch.setattr(text, "recommend", keep)
    monkeypatch.setattr(text, "read_references", lambda: [POINT, same])
    list(recommendation(study, SWEEP, 1.5, 6, []))
    # Points of the same data say what was learnt from them.
    assert given == [(situation_of(study, SWEEP, 1.5, 6), ["pets"])]


def test_the_noise_that_is_compared_is_that_of_the_delta(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def noise(epsilon: float, delta: float, rate: float, steps: int) -> float:
        asked.append((epsilon, delta, rate, steps))
        return 1.0

    monkeypatch.setattr("dpsweep.recommend.rule.noise_multiplier", noise)
    size = batch_size(Situation(1001, 2.0, 3e-6, 5, "adam", 1.0, rounding="ceil"))
    # All are as noisy: the least cumulative noise is that of the fewest steps, of at least 20.
    assert size == 256
    assert {(epsilon, delta) for epsilon, delta, *_ in asked} == {(2.0, 3e-6)}
    sizes = [32, 64, 128, 256, 512, 1001]
    assert sorted((rate, steps) for *_, rate, steps in asked) == sorted(
        (each / 1001, 5 * math.ceil(1001 / each)) for each in sizes
    )
