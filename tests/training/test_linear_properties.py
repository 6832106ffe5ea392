"""The linear engine under autocast, on a layer whose bias is as large as its weights."""

import pytest
import torch
from torch import Tensor, nn

from dpsweep.study.clipping import FlatClipping, NoClipping
from dpsweep.training.gradients.linear import LinearEngine
from dpsweep.training.gradients.loop import LoopEngine

HEAD = frozenset({"weight", "bias"})


def example(rows: int = 7) -> tuple[nn.Linear, Tensor, Tensor, Tensor]:
    """A layer, inputs, labels, and a mask that leaves out one example."""
    generator = torch.Generator().manual_seed(0)
    layer = nn.Linear(5, 4)
    with torch.no_grad():
        for each in layer.parameters():
            each.copy_(torch.randn(each.shape, generator=generator))
    inputs = torch.randn(rows, 5, generator=generator)
    labels = torch.randint(4, (rows,), generator=generator)
    return layer, inputs, labels, torch.arange(rows) != 2


@pytest.mark.parametrize("bound", [None, 0.5, 5.0])
def test_under_autocast_gradients_are_those_of_the_loop_to_its_precision(
    bound: float | None,
) -> None:
    layer, inputs, labels, mask = example(rows=40)
    with torch.no_grad():
        layer.bias.copy_(torch.tensor([3.0, -2.0, 0.5, -1.0]))
    clipping = NoClipping() if bound is None else FlatClipping(bound)
    engine = LinearEngine(layer, autocast=torch.bfloat16)
    found = engine.clipped_sum(inputs, labels, mask, clipping)
    wanted = LoopEngine(layer, HEAD).clipped_sum(inputs, labels, mask, clipping)
    # bfloat16 has 8 bits: logits differ by a share of 2^-8 of their largest term.
    torch.testing.assert_close(found.losses, wanted.losses, rtol=0.05, atol=0.05)
    torch.testing.assert_close(found.norms, wanted.norms, rtol=0.05, atol=0.05)
    for name in HEAD:
        difference = found.gradients[name].float() - wanted.gradients[name]
        assert difference.norm() < 0.05 * wanted.gradients[name].norm()
    # What is left of the example without its bias is another gradient.
    rows, _ = engine.gradients(inputs, labels)
    exact, _ = LoopEngine(layer, HEAD).gradients(inputs, labels)
    assert (rows - exact).norm() < 0.05 * exact.norm()
    with torch.no_grad():
        layer.bias.zero_()
    without, _ = LoopEngine(layer, HEAD).gradients(inputs, labels)
    assert (without - exact).norm() > 0.25 * exact.norm()


def test_the_gradient_of_the_bias_is_clipped_with_the_rest() -> None:
    """The sum's bias is the sum of residuals, each scaled as its example is."""
    layer, inputs, labels, mask = example(rows=9)
    engine = LinearEngine(layer)
    rows, _ = engine.gradients(inputs, labels)
    factors = FlatClipping(0.7).factors(rows.norm(dim=1)) * mask
    total = (rows * factors[:, None]).sum(0)
    found = engine.clipped_sum(inputs, labels, mask, FlatClipping(0.7)).gradients
    flat = torch.cat([found["weight"].flatten(), found["bias"]]).float()
    torch.testing.assert_close(flat, total)


def test_gradients_that_are_not_finite_count_and_add_nothing() -> None:
    layer, inputs, labels, mask = example()
    inputs[1, 0], inputs[2, 1], inputs[4, 2] = float("nan"), float("inf"), float("inf")
    found = LinearEngine(layer).clipped_sum(inputs, labels, mask, FlatClipping(1.0))
    assert found.nonfinite.tolist() == [False, True, False, False, True, False, False]
    kept = mask & ~found.nonfinite
    wanted = LinearEngine(layer).clipped_sum(
        inputs[kept], labels[kept], mask[kept], FlatClipping(1.0)
    )
    for name in HEAD:
        torch.testing.assert_close(found.gradients[name], wanted.gradients[name])
    assert (found.norms[~kept] == 0).all()
