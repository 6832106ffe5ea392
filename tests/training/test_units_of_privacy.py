"""Units of privacy are sampled as a whole, kept whole, and clipped as a whole."""

from collections import Counter

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from tests.training.tiny_study import calibrate
from torch import Tensor, nn

import dpsweep
from dpsweep.privacy.record import Sampling
from dpsweep.study.clipping import FlatClipping
from dpsweep.training.randomness import PoissonSampler, microbatches, whole_units

RAGGED = np.repeat([3, 1, 9, 4, 0], [1, 2, 7, 3, 5])[np.random.default_rng(0).permutation(18)]


def sampler(**options: object) -> PoissonSampler:
    sampling = Sampling(5, 2, 1)
    return PoissonSampler(sampling, "t", secret=b"", units=RAGGED, **options)  # type: ignore[arg-type]


def test_units_are_sampled_with_probability_b_over_n_and_their_rows_evenly():
    made, steps = sampler(rows_per_unit=3), 4000
    rows, units = Counter[int](), Counter[int]()
    pairs = Counter[tuple[int, int]]()
    for step in range(steps):
        batch = made.batch(step)
        found = Counter(RAGGED[batch].tolist())
        assert all(count == min(3, (unit == RAGGED).sum()) for unit, count in found.items())
        assert len(set(batch.tolist())) == len(batch)
        rows.update(batch.tolist())
        units.update(found.keys())
        of_nine = batch[RAGGED[batch] == 9].tolist()
        pairs.update((a, b) for a in of_nine for b in of_nine if a < b)
    for unit in set(RAGGED.tolist()):
        assert stats.binomtest(units[unit], steps, 0.4).pvalue > 1e-4
        of_unit = np.flatnonzero(unit == RAGGED)
        assert sum(rows[row] for row in of_unit) == units[unit] * min(3, len(of_unit))
    # All pairs of rows of the unit of 7 rows are drawn equally often.
    assert len(pairs) == 21 and stats.chisquare(list(pairs.values())).pvalue > 1e-4


def test_a_batch_is_a_function_of_the_secret_stream_and_the_step():
    one, other = sampler(), sampler()
    assert all(np.array_equal(one.batch(step), other.batch(step)) for step in (3, 1, 3))
    assert one.most_rows == 4 and sampler(rows_per_unit=99).most_rows == 7
    options = {"units": RAGGED}
    secret = PoissonSampler(Sampling(5, 5, 1), "t", secret=b"mine", **options)
    public = PoissonSampler(Sampling(5, 5, 1), "t", secret=b"", **options)
    # With the full batch, only the drawn rows differ.
    for each in (secret, public):
        assert len({tuple(each.batch(step)) for step in range(9)}) > 5
    assert any(not np.array_equal(secret.batch(step), public.batch(step)) for step in range(9))


NAMES = [f"p{i}" for i in range(40)]


@pytest.mark.parametrize(
    "names", [np.arange(40), np.arange(40)[::-1], NAMES, pd.Series(NAMES, dtype="category")]
)
def test_units_of_one_row_are_the_rows(names):
    units = PoissonSampler(Sampling(40, 9, 1), "t", secret=b"", units=names)
    rows = PoissonSampler(Sampling(40, 9, 1), "t", secret=b"")
    assert all(np.array_equal(units.batch(step), rows.batch(step)) for step in range(50))


@pytest.mark.parametrize("physical", [4, 5, 8, 30])
def test_microbatches_hold_whole_units(physical):
    made = PoissonSampler(Sampling(5, 5, 1), "t", secret=b"", units=RAGGED)
    seen: list[int] = []
    homes = Counter[int]()
    for rows, mask, units in microbatches(made.batch(0), physical, made.units):
        assert len(rows) == len(mask) == len(units) == physical
        assert (units[~mask] == -1).all() and np.array_equal(units[mask], made.units[rows[mask]])
        seen += rows[mask].tolist()
        homes.update(set(units[mask].tolist()))
    assert seen == made.batch(0).tolist()
    assert set(homes.values()) == {1} and len(homes) == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"units": [1, 1, 2]}, "found 2 different ones, expected train_size = 5: N is the number"),
        ({"units": np.zeros((5, 1))}, r"found float64 of shape \(5, 1\); allowed: an integer or a"),
        ({"units": [1.0] * 5}, "float64"),
        ({"units": pd.Series(["a", None, "b", "c", "d"])}, "found object"),
        ({"units": list("abcde"), "rows_per_unit": 0}, "rows_per_unit = 0"),
        ({"units": list("abcde"), "rows_per_unit": 2.5}, "rows_per_unit = 2.5"),
    ],
)
def test_units_that_the_sampler_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        PoissonSampler(Sampling(5, 2, 1), "t", secret=b"", **options)  # type: ignore[arg-type]


def test_a_unit_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="physical batch of 2 examples: a unit has more rows"):
        list(whole_units(np.array([1, 1, 1]), 2))


# -- private training --------------------------------------------------------------------------


def training(
    units: object, rows: int, count: int, physical: int | None = None
) -> tuple[dpsweep.PrivateTraining, nn.Linear]:
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    noise = calibrate(8.0, 1e-3, count, count // 2, 6)
    made = dpsweep.PrivateTraining(
        *(model, torch.optim.SGD(model.parameters(), lr=0.5)),
        clipping=FlatClipping(1.0),
        calibration=noise,
        units=units,  # type: ignore[arg-type]
        rows_per_unit=rows,
        physical_batch=physical,
    )
    return made, model


def data(rows: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(rows, 6, generator=generator), torch.arange(rows) % 3


def test_the_update_is_that_of_clipped_means_by_hand():
    made, model = training(RAGGED, 3, 5)
    made._optimizer.noise_multiplier = 0.0
    inputs, labels = data(18)
    for batch in made.batches(inputs, labels):
        before = {name: each.detach().clone() for name, each in model.named_parameters()}
        total = {name: torch.zeros_like(each) for name, each in before.items()}
        chosen = RAGGED[batch.rows]
        for unit in set(chosen.tolist()):
            rows = torch.from_numpy(batch.rows[chosen == unit])
            loss = nn.functional.cross_entropy(model(inputs[rows]), labels[rows])
            found = torch.autograd.grad(loss, list(model.parameters()))
            norm = torch.cat([each.flatten() for each in found]).norm()
            for name, each in zip(total, found, strict=True):
                total[name] += each * torch.clamp(1 / norm, max=1.0)
        statistics = made.step(batch)
        assert int(statistics.sampled_examples) == len(set(chosen.tolist()))
        for name, each in model.named_parameters():
            torch.testing.assert_close(each, before[name] - 0.5 * total[name] / 2)


def test_a_state_of_other_units_is_refused():
    state = training(RAGGED, 4, 5)[0].state_dict()
    training(RAGGED, 4, 5)[0].load_state_dict(state)
    for made in (
        training(RAGGED[::-1], 4, 5)[0],
        training(RAGGED, 3, 5)[0],
        training(None, 4, 5)[0],
    ):
        with pytest.raises(ValueError, match="state is of another training"):
            made.load_state_dict(state)


def test_a_unit_in_two_micro_batches_is_refused():
    made, model = training(RAGGED, 4, 5)
    inputs, labels = data(4)
    part = inputs, labels, torch.ones(4, dtype=torch.bool)
    before = model.weight.detach().clone()
    with pytest.raises(ValueError, match="rows of unit 7 in two micro-batches of a step"):
        made._optimizer.step([(*part, np.array([7, 7, 8, -1])), (*part, np.array([5, 7, -1, -1]))])
    assert torch.equal(model.weight, before) and made.steps_taken == 0
