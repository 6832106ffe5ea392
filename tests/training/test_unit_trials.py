"""Studies of data with units: they are split, counted, sampled and released by unit."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import softmax
from scipy.stats import binomtest
from tests.training.tiny_study import calibrate
from typer.testing import CliRunner

from dpsweep.cli.check import check
from dpsweep.cli.main import app
from dpsweep.data.examples import cut_test_set
from dpsweep.data.prepare import load, prepare
from dpsweep.data.prepared import DatasetError, PreparedDataset
from dpsweep.models.prepare import prepare as prepare_backbone
from dpsweep.planning.plan import Plan
from dpsweep.privacy import CalibrationError
from dpsweep.privacy.noise import write_calibration
from dpsweep.privacy.trade_off import explanation
from dpsweep.recommend.rule import facts_of_sweep, recommendation
from dpsweep.release import ReleaseError
from dpsweep.release import train as release_training
from dpsweep.release.ledger import open_ledger, released_together
from dpsweep.release.train import train_and_score, tuning_noise, write_release
from dpsweep.release.verify import verify
from dpsweep.study import Study
from dpsweep.study.datasets import Dataset, held_out_rows, origins
from dpsweep.study.paths import Paths
from dpsweep.theory import ClippedSums
from dpsweep.training.cell import CellError, OpenCell, _row, check_size, run_cell, trial_table
from dpsweep.training.context import Examples, TrialContext
from dpsweep.training.gradient_norms import draw_batches, measure_gradient_norms, measure_overlap
from dpsweep.training.store import TrialStore, parameters_after
from dpsweep.training.trial import evaluate, train_trial

PATIENTS, IMAGES, WIDTH = 60, 10, 16
SCHEDULE = {"batch_size": [20], "clipping_bound": [1.0]}
RELEASE = SCHEDULE | {"sweep": "coins", "epsilon": 4.0, "epochs": [2], "learning_rate": [0.1]}


@pytest.fixture(scope="module")
def coins(tmp_path_factory):
    """A file of images of patients whose labels are thrown by a coin for each patient."""
    random = np.random.default_rng(0)
    patients = np.repeat(np.arange(PATIENTS), IMAGES)
    places = 4 * random.normal(size=(PATIENTS, WIDTH))
    inputs = places[patients] + 0.1 * random.normal(size=(len(patients), WIDTH))
    labels = (np.arange(PATIENTS) % 2)[random.permutation(PATIENTS)][patients]
    path = tmp_path_factory.mktemp("coins") / "coins.npz"
    np.savez(path, x=inputs.astype(np.float32), y=labels, patient=patients)
    return path


def section(path: Path, **keys: Any) -> dict[str, Any]:
    source = {"kind": "arrays", "train": str(path), "test_from_train": 0.25, "label_column": "y"}
    found = {"title": "Coins", "source": source, "kind": "embedding", "dimension": WIDTH}
    return found | {"classes": 2, "train_size": 1, "test_size": 1} | keys


def counted(path: Path, **keys: Any) -> dict[str, Any]:
    """Return a section with the counts that its data have."""
    units = {"train_units": 1} if keys.get("unit", "row") != "row" else {}
    data = load(Dataset.model_validate(section(path, **keys, **units)))
    if units:
        units = {"train_units": len(set(data.train.units))}
    sizes = {"train_size": len(data.train.labels), "test_size": len(data.test.labels)}
    return section(path, **keys) | sizes | units


def study_of(dataset: Any, release: dict[str, Any] | None = None, **training: Any) -> Study:
    more = {} if release is None else {"release": release, "privacy": {"delta": 1e-3}}
    network = {"title": "None", "library": "dpsweep", "architecture": "identity"}
    network |= {"arguments": {"dimension": WIDTH}, "weights": {"kind": "none"}}
    sweep = {"dataset": "coins", "backbone": "none", "method": "head", "seeds": 1}
    sweep |= SCHEDULE | {"epsilon": [8.0], "epochs": [20], "learning_rate": [0.05]}
    return Study.model_validate(
        {"title": "Coins", "training": training, "datasets": {"coins": dataset}}
        | {"backbones": {"none": network}, "methods": {"head": {"kind": "head"}}}
        | {"sweeps": {"coins": sweep}, **more}
    )


def prepared(study: Study, folder: Path) -> Paths:
    torch.set_num_threads(1)
    paths = Paths(folder)
    prepare("coins", study.datasets["coins"], paths.dataset("coins"))
    prepare_backbone("none", study.backbones["none"], paths)
    return paths


def opened(study: Study, folder: Path) -> OpenCell:
    paths = prepared(study, folder)
    (cell,) = study.all_cells()
    sampling = study.sampling("coins", cell.epochs, cell.batch_size)
    noise = calibrate(8.0, study.privacy.delta, sampling.units, 20, sampling.steps)
    write_calibration(paths.noise(study, "coins", 8.0, cell.epochs, 20), noise)
    return OpenCell.open(study, paths, cell)


def accuracy(opened: OpenCell) -> float:
    (spec,) = opened.specs.values()
    return float(train_trial(spec, opened.context, None, 1e9)[0].record["accuracy"])


def test_coins_of_patients_cannot_be_learnt(coins, tmp_path):
    """By row, every test image has a twin in training; by patient, accuracy is within chance."""
    by_row = opened(study_of(counted(coins)), tmp_path / "row")
    by_unit = opened(study_of(counted(coins, unit="patient")), tmp_path / "unit")
    assert accuracy(by_row) > 0.75
    test_patients = by_unit.context.test.protected
    # Four standard deviations of a fair coin for each patient.
    assert abs(accuracy(by_unit) - 0.5) < 4 * 0.5 / np.sqrt(15)
    assert test_patients >= 15


def test_a_unit_is_right_if_more_than_half_of_its_rows_are(coins, tmp_path):
    found = opened(study_of(counted(coins, unit="patient")), tmp_path)
    rows = found.context.test
    # Of every unit 0, 1, ... 10 rows are right: those with 5 and fewer count as wrong.
    right = np.concatenate(
        [np.arange(size) < number % 11 for number, size in enumerate(np.bincount(rows.units))]
    )
    right = right[np.argsort(np.argsort(rows.units, kind="stable"))]

    class Oracle(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.place = 0

        def forward(self, inputs):
            here = slice(self.place, self.place + len(inputs))
            self.place += len(inputs)
            wanted = rows.labels[here] ^ ~torch.from_numpy(right[here])
            return torch.nn.functional.one_hot(wanted, 2).float()

    measured = evaluate(Oracle(), found.context, rows)
    expected = np.mean([number % 11 > 5 for number in range(rows.protected)])
    assert measured["unit_accuracy"] == expected
    assert measured["accuracy"] == right.mean() != expected
    assert "unit_accuracy" not in evaluate(Oracle(), found.context, replace(rows, units=None))
    (spec,) = found.specs.values()
    trial, _ = train_trial(spec, found.context, None, 1e9)
    table = trial_table([_row(found, spec, trial.record) | {"best": True}])
    assert table["unit_accuracy"].to_pylist() == [trial.record["unit_accuracy"]]


def test_noise_and_key_count_units(coins, tmp_path):
    study = study_of(counted(coins, unit="patient", rows_per_unit=3))
    found = opened(study, tmp_path)
    (spec,) = found.specs.values()
    units = study.datasets["coins"].train_units
    assert units < PATIENTS
    assert found.noise.train_size == spec.train_size == found.context.train.protected == units
    assert study.train_size("coins") == units and study.steps("coins", 20, 20) == units
    trial, _ = train_trial(spec, found.context, None, 1e9)
    # Statistics count units: 20 are sampled in a step, and never more than there are.
    assert 15 < trial.steps["sampled_examples"].mean() < 25
    with pytest.raises(CellError, match=rf"found {units} units to train on, expected {units + 1}"):
        wrong = calibrate(8.0, 1e-5, units + 1, 20, 9)
        data = PreparedDataset.open(Paths(tmp_path).dataset("coins"))
        check_size(wrong, found.context, data)


def test_holdout_is_by_unit(coins, tmp_path):
    training = {"select_on": "holdout", "holdout_share": 0.2}
    study = study_of(counted(coins, unit="patient"), **training)
    found = opened(study, tmp_path)
    data = PreparedDataset.open(Paths(tmp_path).dataset("coins"))
    rows, held_out = data.hold_out(0.2)
    held = set(data.train_units[held_out])
    assert held == set(held_out_rows(data.metadata.train_units, 0.2)) and held
    assert not held & set(data.train_units[rows])
    assert len(rows) + len(held_out) == len(data.train_units)
    assert found.context.train.protected == study.train_size("coins")


# -- measurements ------------------------------------------------------------------------------


def test_norms_and_overlaps_are_those_of_mean_gradients(coins, tmp_path):
    study = study_of(counted(coins, unit="patient", rows_per_unit=IMAGES))
    found, paths = opened(study, tmp_path), Paths(tmp_path)
    run_cell(study, paths, found.cell)
    measure_gradient_norms(study, paths, found.cell.problem, 8.0, 20, 1.0)
    measure_overlap(study, paths, found.cell)
    data = PreparedDataset.open(paths.dataset("coins"))
    inputs, labels, units = data.train_inputs, data.train_labels, data.train_units
    store = TrialStore(paths.trials).load_parameters(next(iter(found.specs.values())).key)
    last = parameters_after(20, store)
    weight, bias = (each.astype(float) for name, each in sorted(last.items(), reverse=True))
    logits = inputs @ weight.T + bias
    residuals = softmax(logits, axis=1) - np.eye(2)[labels]
    of_rows = residuals[:, :, None] * np.append(inputs, np.ones((len(inputs), 1)), 1)[:, None]
    in_order = pd.unique(units)  # by their first rows
    means = np.stack([of_rows[units == unit].mean(0).ravel() for unit in in_order])
    norms = pd.read_parquet(paths.gradient_norms(study, found.cell.problem, 8.0, 20, 1.0))
    norms = norms[norms["epoch"] == 20]
    np.testing.assert_allclose(norms["norm"], np.linalg.norm(means, axis=1), rtol=1e-4, atol=1e-5)
    assert norms["label"].tolist() == [labels[units == unit][0] for unit in in_order]
    overlaps = pd.read_parquet(paths.theory(study, found.cell)).query("epoch == 20 and draw == 1")
    batch = draw_batches(len(means), 20, 1)[1]
    wanted = ClippedSums.of(means[batch])
    np.testing.assert_allclose(overlaps["norm"], wanted.norms, rtol=1e-4, atol=1e-5)
    scale = float(wanted.norms.sum())
    np.testing.assert_allclose(overlaps["dot_smaller"], wanted.smaller, atol=1e-5 * scale**2)


# -- reading -----------------------------------------------------------------------------------


def test_units_are_cut_by_the_class_of_most_of_their_rows():
    """24, 12 and 4 units of three classes, each with a row of the next class: a quarter of each class."""
    classes = [0] * 24 + [1] * 12 + [2] * 4
    names = [f"u{unit}" for unit in range(40) for _ in range(3)]
    labels = np.array([each for first in classes for each in (first, (first + 1) % 3, first)])
    train, test = cut_test_set(names, labels, 0.25, seed=1, by_class=True)
    tested = {names[place] for place in test}
    assert not tested & {names[place] for place in train} and len(train) + len(test) == 120
    assert np.bincount([classes[int(name[1:])] for name in tested]).tolist() == [6, 3, 1]
    # By names, not by places, and at most one unit moves with one more.
    order = np.random.default_rng(0).permutation(120)
    _, again = cut_test_set([names[i] for i in order], labels[order], 0.25, seed=1, by_class=True)
    assert {names[order[place]] for place in again} == tested
    _, more = cut_test_set([*names, "new"], np.append(labels, 0), 0.25, seed=1, by_class=True)
    assert len(tested - {[*names, "new"][place] for place in more}) <= 1


def test_a_unit_on_both_sides_and_a_wrong_number_of_units_are_refused(coins, tmp_path):
    other = shutil.copy(coins, tmp_path / "test.npz")
    source = {"kind": "arrays", "train": str(coins), "test": str(other), "label_column": "y"}
    sizes = {"train_size": 600, "test_size": 600, "train_units": PATIENTS, "unit": "patient"}
    dataset = Dataset.model_validate(section(coins) | sizes | {"source": source})
    with pytest.raises(DatasetError, match="found 60 units in the training and in the test set"):
        prepare("coins", dataset, tmp_path / "prepared")
    right = counted(coins, unit="patient")
    wrong = Dataset.model_validate(right | {"train_units": 7})
    with pytest.raises(DatasetError, match=r"train_units: the study says 7, \d+ found"):
        prepare("coins", wrong, tmp_path / "prepared")


# -- release -----------------------------------------------------------------------------------


def test_a_release_states_and_verifies_its_unit(coins, tmp_path):
    dataset = counted(coins, unit="patient", rows_per_unit=3)
    study = study_of(dataset, release=RELEASE)
    paths = prepared(study, tmp_path / "results")
    write_release(study, paths)
    found = verify(paths.release)
    units = study.datasets["coins"].train_units
    assert found.adjacency == "add or remove one unit"
    split = found.split
    assert (split.examples, split.unit, split.rows_per_unit) == (units, "patient", 3)
    assert found.noise.train_size == units
    card = (paths.release / "README.md").read_text()
    test = found.test_set
    assert test.units == 16 and test.size == 10 * test.units
    assert f"; {test.unit_accuracy:.3f} of {test.units} units, of which more than half" in card
    # Ten rows of a patient are right or wrong together: the interval is that of 16 rows, not of 160.
    lower, upper = binomtest(round(found.test_accuracy * 16), 16).proportion_ci(method="wilson")
    assert f"95 % interval {lower:.3f} to {upper:.3f}" in card
    assert f"| units trained on | {units} |" in card and "One example is protected" not in card
    assert "one patient: all of their embeddings, at most 3 of them in a step" in card
    assert "neighbours add or remove one unit" in card and "A record is here one patient" in card
    # Releases of rows and of units on the same data have no joint epsilon, in either order.
    with open_ledger(paths.ledger) as ledger:
        (line,) = ledger.lines_of("", origins(study.datasets["coins"].source))
    assert (line.model.unit, line.model.rows_per_unit) == ("patient", 3)
    rows = study_of(counted(coins), release=RELEASE)
    paths.release.rename(tmp_path / "first")
    prepare("coins", rows.datasets["coins"], paths.dataset("coins"))
    with pytest.raises(CalibrationError, match=r"found 1 earlier .* with unit: patient, and this"):
        write_release(rows, paths)
    of_rows = line.model.model_copy(update={"unit": None})
    for earlier, unit in ((line.model, None), (of_rows, "patient"), (line.model, "folder")):
        with pytest.raises(CalibrationError, match="which have no joint one"):
            released_together([earlier], line.model.model_copy(update={"unit": unit}))
    assert released_together([line.model], line.model).joint_epsilon > 4
    said = CliRunner().invoke(app, ["verify", str(tmp_path / "first"), "--no-ledger"])
    assert said.exit_code == 0, said.output
    words = "one patient: all of their embeddings, at most 3 of them in a step; N ="
    assert f"{words} {units} of them" in said.output


def test_recommend_check_and_plan_name_the_unit_and_count_it(coins, tmp_path):
    dataset = counted(coins, unit="patient", private=True)
    study, paths = study_of(dataset), Paths(tmp_path / "results")
    units = study.datasets["coins"].train_units
    words = f"one patient: all of their embeddings, at most 4 of them in a step; N = {units}"
    for lines in (
        recommendation(study, "coins", 8.0, 4),
        check(study, paths, 0),
        Plan(study, paths).lines(),
    ):
        assert words in "\n".join(lines)
    assert facts_of_sweep(study, "coins", 8.0, 4).train_size == units
    assert "A record is here one patient: all of their" in " ".join(
        explanation(2, 1e-5, unit=study.datasets["coins"].protects)
    )


def test_one_unit_changes_the_score_of_tuning_by_at_most_one(coins, tmp_path, monkeypatch):
    """Whatever its rows: ten of them change the number of right rows by up to ten."""
    found = opened(study_of(counted(coins, unit="patient")), tmp_path)
    data = PreparedDataset.open(Paths(tmp_path).dataset("coins"))
    context = TrialContext(data, found.context.backbone, found.context.method, 0.5)
    (spec,) = found.specs.values()
    trained = train_trial(spec, found.context, None, 1e9)
    monkeypatch.setattr(release_training, "train_trial", lambda *_: trained)
    whole = context.holdout
    # Some rows of each unit get the other label, so that units are right by any number of rows.
    flipped = torch.arange(len(whole.labels)) % 7 < torch.from_numpy(whole.units) % 8
    whole = replace(whole, labels=whole.labels ^ flipped)

    def score(examples):
        context.holdout = examples
        return train_and_score(replace(spec, holdout=examples.protected), context, b"")[2]

    def without(unit):
        kept = np.flatnonzero(whole.units != unit)
        return Examples(whole.inputs, whole.labels[kept], whole.rows[kept], whole.units[kept])

    last = parameters_after(spec.epochs, trained[1])
    weight, bias = (each for _, each in sorted(last.items(), reverse=True))
    said = (data.train_inputs[whole.rows.numpy()] @ weight.T + bias).argmax(1)
    hits = said == whole.labels.numpy()
    shares = {unit: hits[whole.units == unit].mean() for unit in np.unique(whole.units).tolist()}
    assert len(set(shares.values())) > 3 and max(np.bincount(whole.units)) == IMAGES
    assert score(whole) == sum(share > 0.5 for share in shares.values())
    changes = {unit: score(whole) - score(without(unit)) for unit in shares}
    assert changes == {unit: int(share > 0.5) for unit, share in shares.items()}
    assert set(changes.values()) == {0, 1}


def test_a_release_tuned_on_units_scores_and_verifies_them(coins, tmp_path):
    release = RELEASE | {"epsilon": 9.0, "learning_rate": [0.1, 0.2], "selection": "private"}
    release |= {"holdout_share": 0.2, "mean_trials": 2}
    study = study_of(counted(coins, unit="patient"), release=release)
    paths = prepared(study, tmp_path / "results")
    write_release(study, paths)
    found = verify(paths.release)
    units = study.datasets["coins"].train_units
    held_out = len(held_out_rows(units, 0.2))
    assert (found.split.examples, found.split.held_out) == (units, held_out)
    assert found.noise.train_size == units - held_out
    # The score counts units: with 5 standard deviations of noise it is no number of rows.
    assert found.tuning.score < held_out + 5 * found.tuning.score_noise < IMAGES * held_out / 2
    card = (paths.release / "README.md").read_text()
    assert f"| units that only scored | {held_out} |" in card
    assert "A unit scores once: it is right if more than half of its rows are." in card
    # The part that is held out is too small where noise exceeds the scatter of so many units.
    small = study.release.model_copy(update={"holdout_share": 0.05, "epsilon": 2.0})
    with pytest.raises(ReleaseError, match=r"holds out \d units\. Scores need noise"):
        tuning_noise(study.model_copy(update={"release": small}))
