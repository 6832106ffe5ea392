"""The accuracy of a release beside that of always naming the largest class, wherever a person reads it."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from tests.release.releases import FIXED, forge, put, study

from dpsweep.base.files import read_checked_json
from dpsweep.cli.main import app
from dpsweep.data.prepared import PreparedDataset
from dpsweep.release import CARD, CERTIFICATE, card
from dpsweep.release.certificate import TestSet as MeasuredTestSet
from dpsweep.report import page


def certificate(right: int, size: int, largest: int) -> Any:
    test_set = MeasuredTestSet(size=size, largest_class=largest)
    return SimpleNamespace(test_accuracy=right / size, test_set=test_set)


def test_the_interval_is_wilsons():
    """Newcombe (1998), table I, method 3: 81 of 263, 15 of 148, 0 of 20, 1 of 29."""
    for right, size, interval in (
        (81, 263, "0.255 to 0.366"),
        (15, 148, "0.062 to 0.160"),
        (0, 20, "0.000 to 0.161"),
        (1, 29, "0.006 to 0.172"),
    ):
        assert f"interval {interval})" in card.accuracy_in_words(certificate(right, size, 1))


@pytest.mark.parametrize(
    ("right", "size", "largest", "verdict"),
    [
        (418, 800, 418, "is no better than"),
        (300, 800, 418, "is no better than"),
        (20, 30, 15, "is not shown to be better than"),  # one image is 3.3 points
        (28, 30, 15, None),
        (6640, 10_000, 5000, None),
        (10_000, 10_000, 10_000, "is no better than"),  # the test set has one class
    ],
)
def test_a_model_is_compared_with_the_largest_class(right, size, largest, verdict):
    advice = card.advice_if_no_better(certificate(right, size, largest))
    assert (advice is None) == (verdict is None)
    if verdict:
        assert (
            advice is not None and f"This model {verdict} always naming the largest class" in advice
        )
        assert "learning rate" in advice and "dpsweep recommend" in advice


def test_card_log_and_verification_say_what_the_model_is_worth(paths, capsys, monkeypatch):
    file = paths.results.with_name("study.yaml")
    fixed = study(FIXED)
    sections = fixed.model_dump(mode="json", exclude_defaults=True)
    budget = {"epsilon": FIXED["epsilon"], "delta": fixed.privacy.delta}
    file.write_text(yaml.safe_dump(sections | {"results": paths.results.name, "budget": budget}))
    monkeypatch.setattr("dpsweep.training.job.refuse_network", lambda: None)
    monkeypatch.chdir(file.parent)
    app(["release", "--study", str(file)], standalone_mode=False)
    folder, log = paths.release, capsys.readouterr().out
    counts = np.bincount(PreparedDataset.open(paths.dataset("digits")).test_labels)
    found = read_checked_json(folder / CERTIFICATE)
    assert found["test_set"] == {"size": counts.sum(), "largest_class": counts.max()}
    elsewhere = paths.results / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)  # paths in the study still start at its folder
    app(["verify", "../release", "--study", "../../study.yaml"], standalone_mode=False)
    assert "nothing is left for a next model" in capsys.readouterr().out
    share = f"always naming the largest class: {counts.max() / counts.sum():.3f}"
    assert share in log and any(share in each for each in page._worth(paths))
    for right, useless in ((counts.max(), True), (counts.sum() - 1, False)):
        forge(folder, put("test_accuracy", value=right / counts.sum()))
        forge(folder, put("earlier_sweeps", value=["first"]))
        app(["verify", str(folder), "--no-ledger"], standalone_mode=False)
        said, card = capsys.readouterr().out, (folder / CARD).read_text()
        assert share in said and share in card
        assert "not covered: choices made by looking at the sweep first" in said
        assert said.startswith("This model is no better") == useless
        assert card.split("\n\n")[1].startswith("**This model is no better") == useless
