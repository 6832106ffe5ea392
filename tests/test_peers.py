"""The programs that measure other libraries find what is wrong, and nothing else."""

import pytest
from benchmarks.peers import layers
from torch import Tensor


def test_wrong_sums_and_contributions_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_long(name: str, rows: Tensor, bound: float) -> layers.Measured:
        gradients = layers.reference(name)[rows]
        return gradients.norm(dim=1), (
            gradients * (2 * bound / gradients.norm(dim=1))[:, None]
        ).sum(0)

    monkeypatch.setitem(layers.LIBRARIES, "too long", too_long)
    found = layers.compare("GroupNorm", "too long")
    assert found["norms"] < 1e-12
    assert found["sum"] > 0.5
    assert found["contribution"] == pytest.approx(2)
