"""The recommendation: the batch size's rule, and estimates from reference points."""

import math
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from dpsweep.recommend.references import (
    read_references,
    references_of,
    swept_problems,
    trained_settings,
    unrelated,
    write_references,
)
from dpsweep.recommend.rule import (
    LEAST_STEPS,
    Estimate,
    NoReferenceError,
    Reference,
    Situation,
    batch_size,
    recommend,
    smallest_batch_size,
)
from dpsweep.recommend.text import recommendation
from dpsweep.study import load_study

DEMO = Path(__file__).parents[2] / "studies" / "demo.yaml"
SITUATION = Situation(5000, 2.0, 1e-5, 8, "film", "adam")
POINT = Reference("pets", "vit", "film", "adam", 1000, 2.0, 8, 100, 1.0, 0.01)


def test_the_smallest_batch_of_nearly_least_noise() -> None:
    noise = {32: 30.0, 64: 20.9, 128: 20.1, 256: 20.0}
    steps = {32: 400, 64: 200, 128: 100, 256: 50}
    assert smallest_batch_size(noise, steps) == 64
    # A batch with too few steps neither counts nor sets the minimum.
    assert smallest_batch_size(noise | {512: 10.0}, steps | {512: LEAST_STEPS - 1}) == 64
    assert smallest_batch_size(noise | {512: 10.0}, steps | {512: LEAST_STEPS}) == 512
    assert smallest_batch_size({64: 3.0, 128: 1.0}, {64: 8, 128: 4}) == 64


def test_weaker_privacy_and_more_epochs_allow_larger_batches() -> None:
    assert batch_size(replace(SITUATION, epsilon=8.0)) >= batch_size(
        replace(SITUATION, epsilon=0.5)
    )
    assert batch_size(replace(SITUATION, train_size=20, epochs=40)) == 20


def test_reference_points_are_scaled_and_averaged() -> None:
    points = [POINT, replace(POINT, clipping_bound=4.0, learning_rate=0.04)]
    made = recommend(SITUATION, points, lambda _: 400)
    assert made.batch_size == 400 and made.steps == 100
    assert made.clipping_bound.value == pytest.approx(2)
    assert made.clipping_bound.factor == pytest.approx(2)
    # sqrt(400 / 100) with Adam, 400 / 100 with SGD.
    assert made.learning_rate.value == pytest.approx(0.04)
    sgd = [replace(each, optimizer="sgd") for each in points]
    made = recommend(replace(SITUATION, optimizer="sgd"), [*points, *sgd], lambda _: 400)
    assert made.learning_rate.value == pytest.approx(0.08)
    assert len(made.references) == 2


def test_near_points_of_the_same_kind_count() -> None:
    far = replace(POINT, epsilon=16.0, clipping_bound=100.0)
    other = replace(POINT, method="lora-r4", clipping_bound=7.0)
    made = recommend(SITUATION, [POINT, far, other], lambda _: 100)
    assert made.clipping_bound.value == pytest.approx(100 ** (0.25 / 1.25))
    lora = recommend(replace(SITUATION, method="lora-r1"), [POINT, far, other], lambda _: 100)
    assert lora.references == (other,)
    head = recommend(replace(SITUATION, method="head"), [POINT, other], lambda _: 100)
    assert len(head.references) == 2
    with pytest.raises(NoReferenceError, match="no reference point of the optimizer sgd"):
        recommend(replace(SITUATION, optimizer="sgd"), [POINT], lambda _: 100)


def test_grids_are_never_too_narrow_or_wide() -> None:
    assert Estimate(1.0, 1.0).grid == [0.5, 1, 2]
    assert Estimate(1.0, 4.0).grid == [0.25, 1, 4]
    assert Estimate(1.0, 100.0).grid == [0.1, 1, 10]


def test_data_of_the_same_source_say_nothing() -> None:
    points = [replace(POINT, dataset=name) for name in ("digits", "digits-half", "pets")]
    assert unrelated(points, "digits-tenth") == points[2:]


def test_references_are_the_best_of_each_swept_problem(tmp_path: Path) -> None:
    rows = []
    for size in (64, 256):
        for bound in (0.1, 1.0):
            for seed, shift in ((1, 0.0), (2, 0.02)):
                rows.append(
                    {"dataset": "pets", "backbone": "vit", "method": "film", "optimizer": "adam"}
                    | {"epsilon": 2.0, "epochs": 8, "batch_size": size, "clipping_bound": bound}
                    | {"learning_rate": 0.01, "train_size": 1000, "steps": 8000 // size}
                    | {"noise_multiplier": 1.0, "clipping": "flat", "seed": seed}
                    | {"macro_accuracy": shift + (0.9 if (size, bound) == (256, 0.1) else 0.5)}
                )
    frame = pd.DataFrame(rows)
    pd.concat([frame, frame.assign(epsilon=math.inf)]).to_parquet(tmp_path / "pets.parquet")
    settings = trained_settings([tmp_path])
    assert len(settings) == 4 and settings["macro_accuracy"].max() == pytest.approx(0.91)
    found = references_of(swept_problems(settings))
    assert found == [replace(POINT, batch_size=256, clipping_bound=0.1)]
    write_references(tmp_path / "points.csv", found)
    assert read_references(tmp_path / "points.csv") == found


def test_what_is_printed_is_a_section_of_the_study(monkeypatch: pytest.MonkeyPatch) -> None:
    import yaml

    from dpsweep.study import Study

    monkeypatch.setattr("dpsweep.recommend.text.batch_size", lambda *_: 256)
    study = load_study(DEMO)
    lines = list(recommendation(study, "digits_vit-weak_film", 2, 8, []))
    text = "\n".join(lines)
    assert "no data" in text and "digits" not in text.partition("read:")[2].partition("\n")[0]
    section = yaml.safe_load(text[text.index("release:") :])
    copy = Study.model_validate(
        study.model_dump(by_alias=True) | section | {"figures": {}, "tables": {}}
    )
    assert copy.release is not None and len(copy.release.candidates("")) == 9
