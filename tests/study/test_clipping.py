import math
from typing import get_args

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from dpsweep.study.clipping import (
    RULES,
    AutomaticClipping,
    FlatClipping,
    NoClipping,
    RuleName,
    clipping_kind,
    clipping_rule,
)

norms = st.floats(0, 1e30, allow_subnormal=False)
bounds = st.floats(1e-12, 1e12)


@given(norm=norms, bound=bounds, gamma=st.floats(1e-6, 1.0))
@example(
    norm=1.1e-5, bound=1e-5, gamma=0.01
)  # the paper's smallest C, with an error of 8 % in Opacus
def test_factors_are_those_of_their_papers(norm: float, bound: float, gamma: float) -> None:
    length = torch.tensor([norm], dtype=torch.float64)
    wanted = 1 / bound if norm == 0 else min(1 / bound, 1 / norm)
    assert float(FlatClipping(bound).factors(length)) == pytest.approx(wanted, rel=1e-15)
    factor = AutomaticClipping(gamma).factors(length)
    assert float(factor) == pytest.approx(1 / (norm + gamma), rel=1e-15)


@given(norm=st.floats(0, 2.0**50, width=32, allow_subnormal=False), bound=bounds)
def test_scaled_norm_is_at_most_one(norm: float, bound: float) -> None:
    """Except for the rounding of float32; see the module's docstring."""
    length = torch.tensor([norm], dtype=torch.float32)
    for rule in (FlatClipping(bound), AutomaticClipping()):
        assert float((length * rule.factors(length)).double()) <= 1 + 1e-6
        assert rule.sensitivity == 1


def test_gradients_longer_than_the_bound_count_as_clipped() -> None:
    length = torch.tensor([0.0, 0.9, 1.0, 1.1])
    assert FlatClipping(1.0).clipped(length).tolist() == [False, False, False, True]
    assert not AutomaticClipping().clipped(length).any()
    assert not NoClipping().clipped(length).any()
    assert torch.equal(NoClipping().factors(length), torch.ones(4))
    assert math.isinf(NoClipping().sensitivity)
    for rule in (FlatClipping(2.0), AutomaticClipping(), NoClipping()):
        for dtype in (torch.float32, torch.float64):
            assert rule.factors(length.to(dtype)).dtype == dtype


@pytest.mark.parametrize("value", [0.0, -1.0, 1e-13, math.inf, math.nan])
def test_impossible_bounds_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="clipping bound"):
        FlatClipping(value)
    with pytest.raises(ValueError, match="gamma"):
        AutomaticClipping(value)


def test_the_rule_of_a_value_of_the_grid() -> None:
    assert clipping_rule(0.5, gamma=0.1) == FlatClipping(0.5)
    assert clipping_rule(2, gamma=0.1) == FlatClipping(2.0)
    assert clipping_kind(2) == "flat"
    assert clipping_rule("automatic", gamma=0.1) == AutomaticClipping(0.1)
    assert AutomaticClipping().gamma == 0.01, "as in its paper"
    names = {name for part in get_args(RuleName) for name in (get_args(part) or (part,))}
    assert set(RULES) == names
    for name in names:
        rule = clipping_rule(name, gamma=0.01)
        assert (type(rule), rule.kind) == (RULES[name], name)
        assert clipping_kind(name) == name
