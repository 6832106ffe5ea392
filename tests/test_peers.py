"""The programs that measure other libraries find what is wrong, and nothing else."""

import pytest
import torch
from benchmarks.peers import layers
from torch import Tensor


def test_the_reference_is_the_gradient_of_a_linear_layer() -> None:
    """The loss of the tanh of the layer's outputs has a closed form: (p - y) H (1 - tanh²) xᵀ."""
    model, inputs, labels = layers.make("linear without bias")
    model, inputs = model.double(), inputs.double()
    with torch.no_grad():
        hidden = model.layer(inputs).tanh()  # type: ignore[operator]
        errors = model.head(hidden).softmax(1)  # type: ignore[operator]
        errors[torch.arange(len(labels)), labels] -= 1
        deltas = errors @ model.head.weight * (1 - hidden.square())  # type: ignore[operator]
        wanted = torch.einsum("bo,bi->boi", deltas, inputs).flatten(1)
    torch.testing.assert_close(layers.reference("linear without bias"), wanted)


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
