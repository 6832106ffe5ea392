"""A release with an averaging optimizer contains the averaged parameters, and its card names the average."""

from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.release.releases import FIXED
from tests.training.tiny_study import prepare, tiny_sections

from dpsweep.base.files import read_checked_json
from dpsweep.release import CARD, CERTIFICATE, TRAINED, ReleaseError
from dpsweep.release.train import train_and_score, write_release
from dpsweep.release.verify import compare, verify
from dpsweep.study import Study
from dpsweep.training.context import load_trainable
from dpsweep.training.trial import evaluate, train_trial

AVERAGE = {"kind": "tail", "share": 0.5}
SECTION = FIXED | {"epochs": [4], "learning_rate": [0.1]}


def study(average: dict[str, Any] | None = AVERAGE) -> Study:
    sections = tiny_sections({}, {"kind": "film"}, optimizer="mine", batch_size=[64])
    return Study.model_validate(
        sections
        | {"release": SECTION, "privacy": {"delta": 1e-5}}
        | {"optimizers": {"mine": {"kind": "adam", "schedule": "cosine", "average": average}}}
    )


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return prepare(study(), tmp_path_factory.mktemp("averaged") / "results")


@pytest.fixture(scope="module")
def folder(prepared):
    return write_release(study(), prepared.paths)


def test_the_averaged_model_is_released_and_named(folder, prepared):
    found = verify(folder)
    written = read_checked_json(folder / CERTIFICATE)["optimizer"]
    assert written == {"kind": "adam", "schedule": "cosine", "average": AVERAGE}
    assert "an average of the parameters over the steps" in (folder / CARD).read_text()
    context = prepared.context()
    model = context.model(1)
    load_trainable(model, load_file(folder / TRAINED))
    assert evaluate(model, context, context.test)["accuracy"] == found.test_accuracy
    compare(folder, study(), prepared.paths, prepared.paths.ledger)


def test_the_average_is_scored_and_kept(prepared):
    spec, context = prepared.spec(steps=17), prepared.context()
    record, parameters, _ = train_and_score(
        spec, context, b""
    )  # a public stream may be drawn again
    trial, arrays = train_trial(spec, context, None, 1e9, b"")
    for name, value in parameters.items():
        np.testing.assert_array_equal(value, arrays[f"average/{name}"])
        assert (value != arrays[f"epoch{spec.epochs}/{name}"]).any()
    model = context.model(spec.seed)
    load_trainable(model, {name: torch.from_numpy(each) for name, each in parameters.items()})
    measured = evaluate(model, context, context.test)
    assert record["accuracy"] == trial.record["accuracy"] == measured["accuracy"]
    assert record["loss"] == measured["loss"]


@pytest.mark.parametrize("average", [None, {"kind": "ema", "decay": 0.9}, AVERAGE | {"share": 0.2}])
def test_another_average_than_that_of_the_study_is_refused(average, folder, prepared):
    other = study(average)
    with pytest.raises(ReleaseError, match=r"optimizer(\.average)?(\.\w+)?: found "):
        compare(folder, other, prepared.paths, prepared.paths.ledger)
