"""The programs that measure other libraries find what is wrong, and nothing else."""

import math
from functools import partial

import pytest
import torch
from benchmarks.peers import layers
from benchmarks.tables import peers
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


@pytest.mark.parametrize("name", ["embedding bag, mean", "a layer used twice", "DoRA"])
def test_dpsweep_is_right(name: str) -> None:
    found = layers.compare(name, "dpsweep")
    assert peers._is_right(found), found


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


def test_a_refusal_keeps_its_sentence() -> None:
    found = layers.compare("a layer used twice", "Opacus, ghost")
    assert "tying is not supported" in found["refused"]


def test_cells_tell_right_from_wrong() -> None:
    cell = partial(peers._cell, sentences=[])
    assert cell({"norms": 1e-6, "sum": 3e-6, "contribution": 1.0}) == "3e-6"
    for key in ("norms", "sum"):
        wrong = {"norms": 1e-6, "sum": 3e-6, "contribution": 1.0} | {key: 0.2}
        assert "20%" in cell(wrong)
    assert "1.4 C" in cell({"norms": 1e-6, "sum": 3e-6, "contribution": 1.4})
    assert cell({"refused": "no"}) == "refused (1)"


def test_the_epsilon_of_what_ran_is_exact_for_the_full_batch() -> None:
    """One step of the Gaussian mechanism at σ = 1: δ(1) = Φ(-1/2) - e Φ(-3/2)."""
    from benchmarks.peers import budgets
    from scipy.stats import norm

    setting = {"epsilon": 1.0, "delta": float(norm.cdf(-0.5) - math.e * norm.cdf(-1.5))}
    ran = {"noise_multiplier": 1.0, "rate": 1, "steps": 1}
    found = budgets.with_epsilons(ran, setting)
    assert found["pld"] == pytest.approx(1, rel=1e-3)
    assert found["second"] == pytest.approx(1, rel=1e-6)


def test_more_than_the_budget_is_bold() -> None:
    ran = {"rate": 0.1, "steps": 3, "mean_batch": 9.9, "divisor": 10, "noise_multiplier": 1.0}
    cells = peers._ran(ran | {"reported": 2.01, "pld": 1.99, "second": 2.0}, 2.0)
    assert cells[-3:] == ["**2.0100**", "1.9900", "2.0000"]
    cells = peers._ran(ran | {"reported": 2.0, "pld": 2.02, "second": 2.01}, 2.0)
    assert cells[-3:] == ["2.0000", "**2.0200**", "**2.0100**"]
