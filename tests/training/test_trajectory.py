"""Gradient norms and overlaps of a finished trial: their numbers, and the reuse of finished epochs."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from tests.synthetic import make_study, write_cells
from tests.training.tiny_study import N, Prepared, tiny_sections, tiny_study

from dpsweep.analysis.frames import (
    load_gradient_norms,
    load_steps,
    load_trials,
    present_trials,
    write_problem,
)
from dpsweep.analysis.predictions import load_overlaps
from dpsweep.base.files import UnreadableResultsError
from dpsweep.gradients.engines import LoopEngine
from dpsweep.study import Cell, Study
from dpsweep.study.choice import choose
from dpsweep.study.grid import Selection
from dpsweep.study.paths import Paths
from dpsweep.theory import ClippedSums
from dpsweep.training import gradient_norms
from dpsweep.training.cell import run_cell
from dpsweep.training.context import load_trainable
from dpsweep.training.gradient_norms import Trajectory, TrajectoryError
from dpsweep.training.processes import EXIT_AGAIN, Interrupted
from dpsweep.training.store import TrialStore, parameters_after

PROBLEM, EPOCHS = "digits_vit_method", 2
CELL = Cell.parse(PROBLEM, f"eps8_epochs{EPOCHS}_B30_C1")
SWEEP = {"epochs": [EPOCHS], "batch_size": [30], "learning_rate": [0.05], "seeds": 2}
THEORY = {"draws": 2, "largest_batch": 20}
STAGES = ("norms", "theory")


def study(physical_batch: int = 32, **section: int) -> Study:
    sections = tiny_sections({}, {"kind": "film"}, **SWEEP, physical_batch=physical_batch)
    return Study.model_validate(sections | {"theory": THEORY | section})


@pytest.fixture(scope="module")
def trained(tiny: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """A study with its only cell trained."""
    made = tiny._replace(study=study()).ready(tmp_path_factory.mktemp("trajectory"))
    run_cell(made.study, made.paths, CELL)
    return made


def edited(trained: Prepared, **changes: int) -> Prepared:
    """Return another study that finds the same trials, under its own file name."""
    made = trained._replace(study=study(**changes))
    trials, others = (each.paths.cell_trials(each.study, CELL) for each in (trained, made))
    if trials != others:
        shutil.copy(trials, others)
    return made


def measure(made: Prepared, stage: str, saves: int | None = None) -> pd.DataFrame:
    """Measure, check that no unfinished file is left, and delete the output.

    Args:
        made: the trained study.
        stage: of `STAGES`.
        saves: stop as by a signal when so many epochs are saved and one is left.
    """
    study, paths, told = made.study, made.paths, []

    def interruption(*, saved: bool) -> Interrupted | None:
        told.append(saved)
        return Interrupted(EXIT_AGAIN) if sum(told) == saves else None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gradient_norms, "interruption", interruption)
        if stage == "norms":
            gradient_norms.measure_gradient_norms(study, paths, PROBLEM, 8.0, EPOCHS, 1.0)
            output = paths.gradient_norms(study, PROBLEM, 8.0, EPOCHS, 1.0)
        else:
            gradient_norms.measure_overlap(study, paths, CELL)
            output = paths.theory(study, CELL)
            assert pq.read_schema(output).metadata[b"privacy"].startswith(b"not private")
    assert list(output.parent.glob(f"{output.stem}*")) == [output]
    found = pd.read_parquet(output)
    output.unlink()
    return found


def stopped(made: Prepared, stage: str, saves: int) -> None:
    with pytest.raises(Interrupted):
        measure(made, stage, saves)


def test_norms_use_the_batch_size_that_figures_choose(tmp_path: Path) -> None:
    study, paths = make_study({"s": {"batch_size": [100, 200], "seeds": 2}}), Paths(tmp_path)
    accuracy = {100: [0.8, 0.6], 200: [0.7, 0.9]}  # the first seed alone would choose 100
    write_cells(
        study,
        paths,
        lambda cell, rate, seed: {"macro_accuracy": accuracy[int(cell.batch_size)][seed - 1]},
    )
    cell, row = gradient_norms.best_cell(study, paths, "digits_small_film", 8.0, 2, 1.0)
    drawn = choose(load_trials(study, paths, study.sweep_cells("s")), by=["clipping_bound"]).iloc[0]
    assert cell.batch_size == drawn["batch_size"] == 200
    assert row["trial_key"] == drawn["trial_key"]
    assert row["seed"] == 1


def test_theory_uses_the_first_seeds_at_the_best_learning_rate(tmp_path: Path) -> None:
    study, paths = tiny_study({}, {"kind": "film"}), Paths(tmp_path)
    (cell,) = study.all_cells()
    paths.cell(cell).mkdir(parents=True)
    for seeds, measured, first in (
        ((1, 2, 3), 1, [1]),
        ((2, 3), 1, [2]),
        ((1, 2, 3), 2, [1, 2]),
        ((1, 2, 3), 9, [1, 2, 3]),
    ):
        rows = [(0.1, 1, False), (0.001, 1, False)]
        rows += [(0.01, seed, True) for seed in reversed(seeds)]
        table = pd.DataFrame(rows, columns=["learning_rate", "seed", "best"])
        table.to_parquet(paths.cell_trials(study, cell))
        found = gradient_norms.best_trials(study, paths, cell, measured)
        wanted = [(0.01, seed) for seed in first]
        assert [(row["learning_rate"], row["seed"]) for row in found] == wanted


def test_a_trial_of_another_study_is_refused(trained: Prepared) -> None:
    # Its trials have the file name of other settings.
    made = edited(trained, physical_batch=16)
    with pytest.raises(TrajectoryError, match="another study") as raised:
        measure(made, "norms")
    (trials,) = raised.value.remake
    assert str(raised.value).startswith(f"{trials}: found trial")


def test_a_flipped_bit_of_a_result_is_found(trained: Prepared) -> None:
    study, paths, *_ = trained
    norms = paths.gradient_norms(study, PROBLEM, 8.0, EPOCHS, 1.0)
    overlaps, trials = paths.theory(study, CELL), paths.cell_trials(study, CELL)
    steps, drawn = (
        paths.cell_steps(study, CELL),
        Selection.of(study.grid("digits", "vit", "method")),
    )
    gradient_norms.measure_gradient_norms(study, paths, PROBLEM, 8.0, EPOCHS, 1.0)
    gradient_norms.measure_overlap(study, paths, CELL)
    write_problem(study, paths, PROBLEM)
    for file, column, read in (
        (norms, "norm", lambda: load_gradient_norms(study, paths, [drawn])),
        (overlaps, "norm", lambda: load_overlaps(study, paths, [CELL])),
        (paths.problem(PROBLEM), "macro_accuracy", lambda: present_trials(study, paths)),
        (steps, "mean_gradient_norm", lambda: load_steps(study, paths, [CELL])),
        (trials, "macro_accuracy", lambda: load_trials(study, paths, [CELL])),
        (trials, "macro_accuracy", lambda: gradient_norms.best_trials(study, paths, CELL, 1)),
    ):
        read()
        whole = file.read_bytes()
        group = pq.read_metadata(file).row_group(0)
        chunks = {each.path_in_schema: each for each in map(group.column, range(group.num_columns))}
        start = chunks[column].dictionary_page_offset or chunks[column].data_page_offset
        last = start + chunks[column].total_compressed_size - 1
        file.write_bytes(whole[:last] + bytes([whole[last] ^ 1]) + whole[last + 1 :])
        with pytest.raises(UnreadableResultsError, match=f"{file}: cannot be read") as error:
            read()
        assert error.value.remake == (file,)
        file.write_bytes(whole)
    norms.unlink()
    overlaps.unlink()


@pytest.mark.parametrize("stage", STAGES)
def test_numbers_equal_those_of_the_loop_after_every_epoch(
    trained: Prepared, tmp_path: Path, stage: str
) -> None:
    found = measure(trained, stage)
    study, paths = trained.study, trained.paths
    (row,) = gradient_norms.best_trials(study, paths, CELL, 1)
    replayed = Trajectory.open(study, paths, CELL, row, tmp_path)
    context, model = replayed.context, replayed.model
    stored = TrialStore(paths.trials).load_parameters(row["trial_key"])
    assert stored is not None
    first = 0 if stage == "theory" else 1
    assert sorted(found["epoch"].unique()) == list(range(first, EPOCHS + 1))
    for column in set(row.index) & set(found.columns):
        assert found[column].unique().tolist() == [row[column]]
    for epoch, rows in found.groupby("epoch"):
        context.model(int(row["seed"]))
        if epoch:
            after = parameters_after(int(epoch), stored)
            load_trainable(model, {name: torch.from_numpy(each) for name, each in after.items()})
        if stage == "norms":
            loop = context.engine("loop", model)
            inputs, labels = context.batch(context.train, torch.arange(N))
            wanted = loop.norms(inputs, labels, torch.ones(N, dtype=torch.bool))
            for column, norms in zip(("norm", "head_norm"), wanted, strict=True):
                np.testing.assert_allclose(rows[column], norms.numpy(), rtol=1e-4)
            assert rows["label"].tolist() == labels.tolist()
        else:
            check_overlaps(LoopEngine(model, frozenset()), replayed, rows)
    assert found["norm"].groupby(found["epoch"]).mean().nunique() == EPOCHS + 1 - first


def check_overlaps(loop: LoopEngine, replayed: Trajectory, rows: pd.DataFrame) -> None:
    """Compare the overlaps of one epoch's draws with the loop's gradients."""
    context = replayed.context
    for draw, batch in gradient_norms.draw_batches(N, 20, 2).items():
        drawn = rows[rows["draw"] == draw]
        gradients, _ = loop.gradients(*context.batch(context.train, torch.from_numpy(batch)))
        wanted = ClippedSums.of(gradients.double().numpy())
        np.testing.assert_allclose(drawn["norm"], wanted.norms, rtol=1e-4)
        scale = float(wanted.norms.sum())
        for column, values, size in (
            ("dot_smaller", wanted.smaller, scale**2),
            ("dot_larger", wanted.larger, scale**2),
            ("dot_larger_units", wanted.larger_units, scale * len(drawn)),
        ):
            np.testing.assert_allclose(drawn[column], values, atol=1e-5 * size)
        assert drawn["trainable_parameters"].unique().tolist() == [gradients.shape[1]]


def test_theory_measures_several_seeds(
    trained: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store has no parameters of the second seed: it is trained again once, however often jobs end."""
    study, paths = trained.study, trained.paths
    first = measure(trained, "theory")
    both, again, train = edited(trained, seeds=2), [], gradient_norms.train_trial
    monkeypatch.setattr(
        gradient_norms,
        "train_trial",
        lambda spec, *rest: again.append(spec.seed) or train(spec, *rest),
    )
    for _ in range(EPOCHS + 2):  # the epochs of the first seed, and one of the second
        stopped(both, "theory", 1)
    assert again == [2]
    found = measure(both, "theory")
    assert again == [2]
    pd.testing.assert_frame_equal(found[found["seed"] == 1], first)
    replayed = Trajectory.open(
        study, paths, CELL, gradient_norms.best_trials(study, paths, CELL, 2)[1], tmp_path
    )
    others = found[found["seed"] == 2]
    assert sorted(others["epoch"].unique()) == list(range(EPOCHS + 1))
    for epoch, rows in others.groupby("epoch"):
        replayed.go_to(int(epoch))
        check_overlaps(LoopEngine(replayed.model, frozenset()), replayed, rows)
    assert others["norm"].sum() != first["norm"].sum()


def test_theory_batches_have_the_allowed_size(trained: Prepared) -> None:
    """It is the trial's batch size, or the largest allowed; a draw of all examples is made only once."""
    for largest, size in ((20, 20), (100, 30)):
        made = edited(trained, largest_batch=largest)
        assert measure(made, "theory")["examples"].unique().tolist() == [size]
    (whole,) = gradient_norms.draw_batches(5, 5, 3).values()
    several = gradient_norms.draw_batches(50, 5, 3).values()
    assert [len(set(batch)) for batch in (whole, *several)] == 4 * [5]
    assert len({tuple(batch) for batch in several}) == 3


def test_gradients_that_are_not_finite_are_left_out_and_counted(
    trained: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(engine: Any, inputs: Any, labels: Any) -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.ones(len(labels), sum(each.numel() for each in engine.parameters.values()))
        rows[0] = 0
        return rows, torch.arange(len(labels)) == 0

    monkeypatch.setattr("dpsweep.gradients.checks.ValidatingEngine.gradients", broken)
    found = measure(trained, "theory")
    found = found.groupby(["epoch", "draw"]).agg({"norm": "size", "nonfinite_examples": "first"})
    assert (found["norm"] == 20 - found["nonfinite_examples"]).all()
    assert (found["nonfinite_examples"] > 0).all()


@pytest.mark.parametrize("stage", STAGES)
def test_finished_epochs_are_kept(trained: Prepared, stage: str) -> None:
    whole = measure(trained, stage)
    epochs = whole["epoch"].nunique()
    stopped(trained, stage, epochs - 1)
    # Only the last epoch is left to measure.
    pd.testing.assert_frame_equal(measure(trained, stage, saves=1), whole)
    if stage == "theory":  # epochs of other settings are not used
        stopped(trained, stage, 1)
        found = measure(edited(trained, draws=3), stage)
        assert found.groupby("epoch")["draw"].nunique().tolist() == epochs * [3]
