"""The output of `recommend`, parsed and compared with the study and the rule."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from benchmarks.common import RESULTS
from typer.testing import CliRunner

from dpsweep.base.files import read_json
from dpsweep.cli.main import app
from dpsweep.privacy.explain import in_words
from dpsweep.recommend import text
from dpsweep.recommend.rule import (
    ProblemFacts,
    Recommendation,
    expected_gradient_norm,
    facts_of_sweep,
)
from dpsweep.recommend.text import recommendation
from dpsweep.study import Study, load_study

FEATURES = Path(__file__).parents[2] / "studies" / "frozen-features.yaml"
SWEEP = "cifar100_vit-tiny_head"
# A recommendation with different numbers everywhere.
GRID = {128: [0.0018, 0.0036, 0.007], 512: [0.004, 0.0072, 0.014], 2048: [0.0073, 0.015, 0.03]}
NO_FEATURES: dict[str, Any] = {}
MADE = Recommendation(512, 88, 0.351, 0.0072, GRID)


def other_study(features: Any = NO_FEATURES, size: int | None = None, **sweep: Any) -> Study:
    """Return a study without default settings."""
    content = load_study(FEATURES).model_dump(by_alias=True)
    content["privacy"] |= {"delta": 3e-6, "step_rounding": "ceil"}
    content["sweeps"] = {SWEEP: content["sweeps"][SWEEP] | {"optimizer": "sgd"} | sweep}
    content["backbones"]["vit-tiny"]["features"] = features
    if size is not None:
        content["datasets"]["cifar100"] |= {"train_size": size, "train_counts": None}
        content["sweeps"][SWEEP]["batch_size"] = ["full"]
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

        monkeypatch.setattr(text, "recommend", recommend)
        return list(recommendation(study, SWEEP, 1.5, 6))

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
    noise = text.calibrate(1.5, 3e-6, whole, made.batch_size, 88)
    meaning = list(in_words(1.5, 3e-6, text.attacks_on_training(noise)))
    assert lines[meaning_at : meaning_at + len(meaning)] == meaning


def is_accepted(study: Study, release: dict[str, Any]) -> bool:
    """Return whether the study is valid with a parsed section."""
    content = study.model_dump(by_alias=True) | {"release": release}
    return Study.model_validate(content).release is not None


@pytest.mark.parametrize("features", [None, {"transformation": "unit-norm"}])
def test_the_printed_section_is_valid_for_all_features(
    features: dict[str, Any] | None, printed: Printed
) -> None:
    study = other_study(features)
    lines = printed(study)
    assert all(is_accepted(study, read_back(lines, tuned=tuned)) for tuned in (False, True))


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
    assert {str(epochs) for epochs, said in text.GAINED.items() if said} == set(gained)
    for epochs, (mean, low, high, count) in gained.items():
        said = text.GAINED[int(epochs)]
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
