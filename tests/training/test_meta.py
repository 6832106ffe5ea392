"""A step without a GPU that mixes no devices, and waits for none.

Tensors of torch's device ``meta`` have no numbers: whoever asks for one gets an error, and so does whoever
mixes them with tensors of the CPU. So a step that passes here would do neither on a GPU.
"""

from contextlib import nullcontext

import pytest
import torch
from tests.training.tiny_models import CASES, CLASSES, make
from torch import Tensor

from dpsweep.study.clipping import FlatClipping
from dpsweep.training.gradients import GradientEngine
from dpsweep.training.gradients.checked import CheckedEngine
from dpsweep.training.gradients.engines import (
    BookkeepingEngine,
    ExpandedEngine,
    LinearEngine,
)
from dpsweep.training.optimizer import PrivateOptimizer

ENGINES: dict[str, type[GradientEngine]] = {
    "linear": LinearEngine,
    "expanded": ExpandedEngine,
    "bookkeeping": BookkeepingEngine,
}


def computes(engine: str, case: str) -> bool:
    """Whether an engine is tried with a case: each with what it is for."""
    if engine == "linear":
        return case == "linear-head"
    if engine == "expanded":
        return not case.endswith("all")
    return case in ("vit-all", "vit-lora", "bit-film", "linear-head")


STEPS = [(engine, case) for engine in ENGINES for case in CASES if computes(engine, case)]


class Noise:
    """A stand-in: the generators of a device without numbers have no state."""

    def add_to(self, total: Tensor, step: int, standard_deviation: float) -> None:
        total.add_(torch.randn(total.shape, dtype=total.dtype, device=total.device))


def on_meta(engine: str, case: str) -> tuple[CheckedEngine, tuple[Tensor, Tensor, Tensor]]:
    """An engine that has been chosen already: only the first call may look at numbers."""
    small = make(case, torch.float32)
    model = small.model.to("meta")
    made = CheckedEngine(model, small.head, {}, (engine, ENGINES[engine](model, small.head)))
    made._training, made._classes = [each.training for each in model.modules()], CLASSES
    return made, (small.inputs.to("meta"), small.labels.to("meta"), small.mask.to("meta"))


@pytest.fixture(autouse=True)
def no_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Autocast knows no such device, even where it is off."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())


@pytest.mark.parametrize(("engine", "case"), STEPS)
def test_a_step_mixes_no_devices_and_waits_for_none(engine: str, case: str) -> None:
    made, batch = on_meta(engine, case)
    optimizer = PrivateOptimizer(
        torch.optim.Adam(made.parameters.values()),
        made,
        FlatClipping(1.0),
        noise_multiplier=1.0,
        expected_batch_size=4,
        noise=Noise(),  # type: ignore[arg-type]
    )
    for _ in range(2):
        statistics = optimizer.step([batch, batch])
    assert all(each.is_meta for each in statistics)
    assert all(each.is_meta for each in made.norms(*batch))
