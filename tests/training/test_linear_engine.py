"""The closed form of a linear layer gives the per-example gradients of the loop."""

import pytest
import torch
from torch import Tensor, nn

from dpsweep.clipping import AutomaticClipping, Clipping, FlatClipping, NoClipping
from dpsweep.training.gradients import UnsupportedModelError, make_engine
from dpsweep.training.gradients.linear import LinearEngine
from dpsweep.training.gradients.loop import LoopEngine

HEAD = frozenset({"weight", "bias"})


def example(rows: int = 7) -> tuple[nn.Linear, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    layer = nn.Linear(5, 4)
    with torch.no_grad():
        for each in layer.parameters():
            each.copy_(torch.randn(each.shape, generator=generator))
    inputs = torch.randn(rows, 5, generator=generator)
    labels = torch.randint(4, (rows,), generator=generator)
    mask = torch.arange(rows) != 2
    return layer, inputs, labels, mask


@pytest.mark.parametrize(
    "clipping",
    [FlatClipping(1.0), FlatClipping(1e-5), FlatClipping(1e5), AutomaticClipping(), NoClipping()],
)
def test_sums_and_norms_are_those_of_the_loop(clipping: Clipping) -> None:
    layer, inputs, labels, mask = example()
    found = LinearEngine(layer).clipped_sum(inputs, labels, mask, clipping)
    wanted = LoopEngine(layer, HEAD).clipped_sum(inputs, labels, mask, clipping)
    for name in HEAD:
        torch.testing.assert_close(found.gradients[name].float(), wanted.gradients[name])
    torch.testing.assert_close(found.norms, wanted.norms)
    torch.testing.assert_close(found.losses, wanted.losses)
    norms = LinearEngine(layer).norms(inputs, labels, mask)
    torch.testing.assert_close(norms, LoopEngine(layer, HEAD).norms(inputs, labels, mask))


def test_what_is_not_finite_counts_and_adds_nothing() -> None:
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


def test_written_out_gradients_are_those_of_the_loop() -> None:
    layer, inputs, labels, _ = example()
    found, nonfinite = LinearEngine(layer).gradients(inputs, labels)
    wanted, _ = LoopEngine(layer, HEAD).gradients(inputs, labels)
    torch.testing.assert_close(found, wanted)
    assert not nonfinite.any()
    inputs[1, 0] = float("nan")
    found, nonfinite = LinearEngine(layer).gradients(inputs, labels)
    assert nonfinite.nonzero().flatten().tolist() == [1]
    assert not found[1].any()


def test_no_example_contributes_more_than_one() -> None:
    layer, inputs, labels, mask = example()
    for bound in (1e-6, 0.1, 1.0, 100.0):
        for row in range(len(inputs)):
            part = LinearEngine(layer).clipped_sum(
                inputs[row : row + 1], labels[row : row + 1], mask[:1], FlatClipping(bound)
            )
            flat = torch.cat([each.flatten() for each in part.gradients.values()])
            assert flat.norm() <= 1 + 1e-6


def test_a_linear_layer_takes_it_by_itself() -> None:
    layer, inputs, labels, _ = example()
    engine = make_engine("auto", layer, HEAD)
    name, _ = engine.choose(inputs, labels)  # type: ignore[attr-defined]
    assert name == "linear"


@pytest.mark.parametrize("features", [13, 192, 384, 1024])
def test_a_head_takes_it_whatever_the_label_of_the_first_example_is(features: int) -> None:
    for label in range(20):
        engine = make_engine("auto", nn.Linear(features, 20), HEAD)
        inputs, labels = torch.zeros(2, features), torch.full((2,), label)
        assert engine.choose(inputs, labels)[0] == "linear"  # type: ignore[attr-defined]


def test_other_models_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="found Sequential"):
        LinearEngine(nn.Sequential(nn.Linear(2, 2)))
    layer = nn.Linear(2, 2)
    layer.bias.requires_grad_(False)
    with pytest.raises(UnsupportedModelError, match="with weight that trains"):
        LinearEngine(layer)
    with pytest.raises(UnsupportedModelError, match="found Linear with weight"):
        LinearEngine(nn.Linear(2, 2, bias=False))
