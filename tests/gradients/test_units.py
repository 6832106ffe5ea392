"""A unit's gradient is the mean of its rows' gradients, and is clipped as a whole, in every engine."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.gradients.reference import build, check
from tests.gradients.tiny_models import CASES, EACH_ENGINE, Case, make
from torch import Tensor, nn

from dpsweep.gradients import UnsupportedModelError, make_engine
from dpsweep.gradients.refusals import BatchError
from dpsweep.study.clipping import AutomaticClipping, FlatClipping

RAGGED = [4, 7, 7, 1, 1, 1, 1, 1, 1, 1, 9, 0, 0, 0, 2, 2]
"""Units of 1, 2, 7, 1, 3 and 2 rows."""
ENGINES = [
    *(("linear", "linear-head"), ("loop", "vit-film"), ("loop", "vit-all")),
    *(("expanded", name) for name in ("linear-head", "vit-lora", "bit-film", "distilbert-film")),
    *(("bookkeeping", name) for name in CASES),
    *(("vmap", name) for name in ("vit-lora", "convolutions-all", "distilbert-lora")),
]

# One case for each way in which an engine stores gradients.
EACH_WAY = [
    *((engine, name) for engine, name in EACH_ENGINE if engine != "opacus"),
    ("bookkeeping", "wide_resnet-all"),
]


def case_of(name: str, dtype: torch.dtype = torch.float64) -> Case:
    """Return a case in which two rows of a unit are masked, and a whole unit."""
    case = make(name, dtype, examples=len(RAGGED))
    mask = torch.ones(len(RAGGED), dtype=torch.bool)
    mask[[4, 8, 14, 15]] = False
    return replace(case, mask=mask)


@pytest.mark.parametrize(("engine", "name"), ENGINES)
def test_every_engine_gives_the_means_of_units(engine: str, name: str) -> None:
    check(case_of(name), engine, 1e-5 if engine == "linear" else 1e-9, units=RAGGED)


@pytest.mark.parametrize(("engine", "name"), EACH_WAY)
def test_units_of_one_row_are_rows_bit_for_bit(engine: str, name: str) -> None:
    case = case_of(name, torch.float32)
    made = build(case, engine)
    rows = made.clipped_sum(*case.batch, FlatClipping(0.1))
    units = made.clipped_sum(*case.batch, FlatClipping(0.1), np.arange(len(RAGGED))[::-1])
    for key, each in rows.gradients.items():
        assert torch.equal(each, units.gradients[key])
    assert torch.equal(rows.norms, units.norms) and torch.equal(rows.losses, units.losses)


@pytest.mark.parametrize(("engine", "name"), EACH_WAY)
@pytest.mark.parametrize("size", [2, 7])
def test_no_unit_contributes_more_than_one(engine: str, name: str, size: int) -> None:
    """Neither with equal rows nor with rows that nearly cancel each other."""
    case = make(name, torch.float32, examples=3 * size)
    made = build(case, engine)
    ids, mask = np.repeat([0, 1, 2], size), torch.ones(3 * size, dtype=torch.bool)
    alone = mask & torch.from_numpy(ids == 1)

    def total(some: Tensor, clipping: FlatClipping | AutomaticClipping) -> Tensor:
        sums = made.clipped_sum(case.inputs, case.labels, some, clipping, ids).gradients
        return torch.cat([each.flatten().double() for each in sums.values()])

    for clipping in (FlatClipping(1e-5), AutomaticClipping()):
        assert float(total(alone, clipping).norm()) <= 1 + 2e-7
        added = total(mask, clipping) - total(mask & ~alone, clipping)
        # The sums of bookkeeping and vmap are float32.
        rounding = 2e-7 if engine in ("expanded", "linear") else 2e-6
        assert float(added.norm()) <= 1 + rounding


@pytest.mark.parametrize("engine", ["linear", "expanded", "bookkeeping", "vmap", "loop"])
def test_rows_that_cancel_each_other(engine: str) -> None:
    """Of one input with the two labels of a fair coin nothing is left, and nothing is scaled up."""
    model = nn.Linear(8, 2)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    x = torch.randn(1, 8, generator=torch.Generator().manual_seed(0))
    made = make_engine(engine, model)
    mask, labels = torch.ones(2, dtype=torch.bool), torch.tensor([0, 1])
    for error in (0.0, 1e-7, 1e-5, 1e-3, 1.0):
        inputs = torch.cat([x, x * (1 + error)])
        sums = made.clipped_sum(inputs, labels, mask, FlatClipping(1e-12), [3, 3]).gradients
        length = math.hypot(*(float(each.double().norm()) for each in sums.values()))
        assert length <= 1 + 2e-7
        assert error < 1e-6 or length >= 1 - 1e-3


@pytest.mark.parametrize(("engine", "name"), EACH_WAY)
def test_a_unit_with_a_row_that_is_not_finite_counts_as_zero(engine: str, name: str) -> None:
    case = case_of(name, torch.float32)
    if not case.inputs.is_floating_point():
        pytest.skip("tokens are finite")
    made = build(case, engine)
    inputs = case.inputs.clone()
    inputs[2] = math.nan
    # Row 4 is masked in a unit whose other rows count.
    inputs[4] = math.inf
    found = made.clipped_sum(inputs, case.labels, case.mask, FlatClipping(1.0), RAGGED)
    assert found.nonfinite.tolist() == [False, True, False, False, False, False]
    without = case.mask & (torch.tensor(RAGGED) != 7)
    wanted = made.clipped_sum(case.inputs, case.labels, without, FlatClipping(1.0), RAGGED)
    for key, each in wanted.gradients.items():
        torch.testing.assert_close(found.gradients[key], each, rtol=1e-5, atol=1e-6)


def test_chunks_of_vmap_hold_whole_units(monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of("convolutions-all")
    size = sum(each.numel() for each in case.model.parameters())
    monkeypatch.setattr("dpsweep.gradients.engines._AT_ONCE", (15 * size, 1))
    check(case, "vmap", units=RAGGED)


@pytest.mark.parametrize("engine", ["auto", "loop", "vmap"])
@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([0, 0, 1, 1, 0, 0], "several places"),
        ([0, 0, 1], r"shape \(3,\); allowed: .* integers of shape \(6,\)"),
        ([0.0, 0.0, 1.0, 1.0, 2.0, 2.0], "float64"),
    ],
)
def test_units_that_are_refused(ids: list[int], message: str, engine: str) -> None:
    case = make("linear-head", examples=6)
    with pytest.raises(BatchError, match=message):
        make_engine(engine, case.model).clipped_sum(*case.batch, FlatClipping(1.0), ids)


def test_opacus_refuses_units_of_several_rows() -> None:
    case = make("linear-head", torch.float32, examples=4)
    made = make_engine("opacus", case.model)
    made.clipped_sum(*case.batch, FlatClipping(1.0), [3, 2, 1, 0])
    with pytest.raises(UnsupportedModelError, match="units of several rows; use engine auto"):
        made.norms(*case.batch, [3, 3, 1, 0])
    with pytest.raises(UnsupportedModelError, match="units of several rows; use engine auto"):
        made.clipped_sum(*case.batch, FlatClipping(1.0), [3, 3, 1, 0])
