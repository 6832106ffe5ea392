"""Invalid micro-batches are refused with one sentence; valid ones are computed."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.gradients.reference import check
from tests.gradients.tiny_models import CLASSES, HEAD, Case, Net
from torch import Tensor, nn

from dpsweep.gradients import UnsupportedModelError, make_engine
from dpsweep.study.clipping import NoClipping

WIDTH, TOKENS, EXAMPLES = 4, 3, 5


def net() -> Net:
    return Net(nn.Linear(WIDTH, WIDTH), WIDTH)


def batch(**changes: Any) -> dict[str, Any]:
    inputs = torch.randn(EXAMPLES, TOKENS, WIDTH, generator=torch.Generator().manual_seed(0))
    labels, mask = torch.arange(EXAMPLES) % CLASSES, torch.ones(EXAMPLES, dtype=torch.bool)
    return {"inputs": inputs, "labels": labels, "mask": mask} | changes


# Invalid parts of a micro-batch, and the messages.
WRONG: dict[str, list[tuple[Any, str]]] = {
    "labels": [
        (torch.tensor([0, 1, -100, 2, 3]), "found one that is not a class.*allowed: 0 to 4"),
        (torch.tensor([0, 1, CLASSES, 2, 3]), "found one that is not a class.*allowed: 0 to 4"),
        (torch.eye(EXAMPLES), r"found float32 of shape \(5, 5\).*argmax"),
        (torch.zeros(EXAMPLES, 1).long(), r"found int64 of shape \(5, 1\).*\(5,\)"),
        (torch.ones(EXAMPLES, dtype=torch.int32), "found int32"),
        ([0, 1, 2, 3, 4], "found a list"),
        (torch.zeros(4).long(), r"found .*shape \(4,\).*\(5,\)"),
        (torch.zeros(EXAMPLES, device="meta").long(), "found on meta"),
    ],
    "mask": [
        (torch.ones(EXAMPLES), "found float32"),
        (torch.ones(2, dtype=torch.bool), r"found .*\(2,\).*\(5,\)"),
    ],
    "inputs": [
        ({"input_ids": torch.zeros(5, 3)}, "found a dict"),
        (torch.tensor(1.0), r"found float32 of shape \(\)"),
        (torch.nested.nested_tensor(list(torch.zeros(5, 3, 4))), "found a nested tensor"),
        (torch.zeros(5, 3, 4).to_sparse(), "found a tensor of layout sp"),
        (torch.zeros(5, 3, 4, device="meta"), "found on meta"),
        # The network cannot read them.
        (torch.zeros(5, 3, 4).double(), "found float64 .*Net cannot read"),
        (torch.zeros(5, 3, 7), r"found float32 of shape \(3, 3, 7\).*cannot be multiplied"),
    ],
}


@pytest.mark.parametrize("engine", ["auto", "loop"])
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [(name, *each) for name, several in WRONG.items() for each in several],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_invalid_micro_batches_are_refused(
    name: str, value: Any, message: str, engine: str
) -> None:
    made = make_engine(engine, net())
    # At a later call, inputs that the network cannot read are an error of the network.
    again = "cannot" not in message
    for _ in range(1 + again):
        with pytest.raises(UnsupportedModelError, match=f"^{name}: {message}"):
            made.clipped_sum(**batch(**{name: value}), clipping=NoClipping())
        made.clipped_sum(**batch(), clipping=NoClipping())


def test_invalid_labels_of_a_linear_layer_are_refused() -> None:
    """Without the check torch would crash. Labels of masked examples are ignored."""
    made = make_engine("auto", nn.Linear(WIDTH, CLASSES))
    labels, mask = torch.tensor([0, -100]), torch.ones(2, dtype=torch.bool)
    with pytest.raises(UnsupportedModelError, match=r"labels: .*allowed: 0 to 4"):
        made.norms(torch.ones(2, WIDTH), labels, mask)
    norms, _ = made.norms(torch.ones(2, WIDTH), labels, torch.tensor([True, False]))
    assert norms[0] > 0 and norms[1] == 0


class Reads(nn.Module):
    """A network that reads only certain numbers."""

    def __init__(self, read: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.read, self.head = read, nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.read(x)
        logits: Tensor = self.head(rows if rows.dim() == 2 else rows.mean(1))
        return logits


NUMBERS = batch()["inputs"].double().sigmoid()


@pytest.mark.parametrize(
    ("read", "inputs"),
    [
        (torch.log, 2 * NUMBERS),
        (lambda x: torch.distributions.Bernoulli(probs=x).entropy(), NUMBERS),
        (lambda x: torch.eye(WIDTH, dtype=x.dtype)[x[..., 0].long()] + x, 3 * NUMBERS),
        (nn.Embedding(20, WIDTH), torch.tensor([3, 4, 3, 7, 1])),
    ],
    ids=["logarithms", "probabilities", "categories", "integers of one dimension"],
)
def test_networks_with_restricted_inputs(read: Callable[[Tensor], Tensor], inputs: Tensor) -> None:
    check(Case(Reads(read).double(), HEAD, **batch(inputs=inputs)))


@pytest.mark.parametrize("engine", ["auto", "loop", "opacus"])
def test_empty_micro_batch_contributes_nothing(engine: str) -> None:
    made = make_engine(engine, net())
    empty = {name: each[:0] for name, each in batch().items()}
    for _ in range(2):
        found = made.clipped_sum(**empty, clipping=NoClipping())
        assert found.norms.shape == found.losses.shape == found.nonfinite.shape == (0,)
        assert all(not each.any() for each in found.gradients.values())
        assert made.norms(**empty)[0].shape == (0,)
        made.clipped_sum(**batch(), clipping=NoClipping())
