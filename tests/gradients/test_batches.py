"""Micro-batches and outputs that are none get one sentence; what can be computed is."""

import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.gradients.tiny_models import CLASSES, Net
from torch import Tensor, nn

from dpsweep.gradients import UnsupportedModelError, make_engine
from dpsweep.study.clipping import FlatClipping, NoClipping
from dpsweep.training.optimizer import PrivateOptimizer
from dpsweep.training.randomness import GaussianNoise, PoissonSampler, PublicStreamWarning

WIDTH, TOKENS, EXAMPLES = 4, 3, 5


def net() -> Net:
    return Net(nn.Linear(WIDTH, WIDTH), WIDTH)


def batch() -> dict[str, Any]:
    inputs = torch.randn(EXAMPLES, TOKENS, WIDTH, generator=torch.Generator().manual_seed(0))
    labels, mask = torch.arange(EXAMPLES) % CLASSES, torch.ones(EXAMPLES, dtype=torch.bool)
    return {"inputs": inputs, "labels": labels, "mask": mask}


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "ignored label": ({"labels": torch.tensor([0, 1, -100, 2, 3])}, r"labels: .*allowed: 0 to 4"),
    "label beyond": ({"labels": torch.tensor([0, 1, CLASSES, 2, 3])}, r"labels: .*allowed: 0 to 4"),
    "one-hot": (
        {"labels": torch.eye(EXAMPLES)},
        r"labels: found float32 of shape \(5, 5\).*argmax",
    ),
    "one-hot integers": (
        {"labels": torch.eye(5, dtype=torch.int64)},
        r"labels: found int64 of shape \(5, 5\)",
    ),
    "float": ({"labels": torch.zeros(EXAMPLES)}, r"labels: found float32 of shape \(5,\).*long"),
    "column": (
        {"labels": torch.zeros(EXAMPLES, 1, dtype=torch.int64)},
        r"labels: .*\(5, 1\).*\(5,\)",
    ),
    "bool": ({"labels": torch.ones(EXAMPLES, dtype=torch.bool)}, "labels: found bool"),
    "uint8": ({"labels": torch.ones(EXAMPLES, dtype=torch.uint8)}, "labels: found uint8"),
    "int32": ({"labels": torch.ones(EXAMPLES, dtype=torch.int32)}, "labels: found int32"),
    "list": ({"labels": [0, 1, 2, 3, 4]}, "labels: found a list"),
    "too few": ({"labels": torch.zeros(4, dtype=torch.int64)}, r"labels: .*shape \(4,\).*\(5,\)"),
    "elsewhere": (
        {"labels": torch.zeros(5, dtype=torch.int64, device="meta")},
        "labels: found on meta",
    ),
    "mask of numbers": ({"mask": torch.ones(EXAMPLES)}, "mask: found float32"),
    "short mask": ({"mask": torch.ones(2, dtype=torch.bool)}, r"mask: .*\(2,\).*\(5,\)"),
    "dictionary": ({"inputs": {"input_ids": torch.zeros(5, 3)}}, "inputs: found a dict"),
    "a number": ({"inputs": torch.tensor(1.0)}, r"inputs: found float32 of shape \(\)"),
    "nested": (
        {"inputs": torch.nested.nested_tensor([torch.zeros(3, 4), torch.zeros(2, 4)])},
        "inputs: found a nested tensor",
    ),
    "sparse": ({"inputs": torch.zeros(5, 3, 4).to_sparse()}, "inputs: found a tensor of layout sp"),
    "inputs elsewhere": ({"inputs": torch.zeros(5, 3, 4, device="meta")}, "inputs: found on meta"),
}


@pytest.mark.parametrize("engine", ["auto", "loop"])
@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_micro_batch_is_refused(case: str, engine: str) -> None:
    changed, message = WRONG[case]
    model = net()
    made = make_engine(engine, model)
    for first in (True, False):
        with pytest.raises(UnsupportedModelError, match=message):
            made.clipped_sum(**{**batch(), **changed}, clipping=NoClipping())
        if first:
            made.clipped_sum(**batch(), clipping=NoClipping())


def test_labels_of_a_head_alone() -> None:
    """A crash of torch, were they not looked at."""
    made = make_engine("auto", nn.Linear(WIDTH, CLASSES))
    labels, mask = torch.tensor([0, -100]), torch.ones(2, dtype=torch.bool)
    with pytest.raises(UnsupportedModelError, match=r"labels: .*allowed: 0 to 4"):
        made.norms(torch.ones(2, WIDTH), labels, mask)
    # What is masked counts for nothing, whatever its label is.
    norms, _ = made.norms(torch.ones(2, WIDTH), labels, torch.tensor([True, False]))
    assert norms[0] > 0 and norms[1] == 0


@pytest.mark.parametrize("engine", ["auto", "loop"])
@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (torch.zeros(5, 3, 4, dtype=torch.float64), "found float64 .*with weights in float32"),
        (torch.zeros(5, 3, 4, dtype=torch.uint8), "found uint8 .*with weights in float32"),
        (torch.zeros(5, 3, 7), r"found float32 of shape \(3, 3, 7\).*cannot be multiplied"),
    ],
    ids=["float64", "uint8", "width"],
)
def test_inputs_that_the_network_cannot_read(engine: str, inputs: Tensor, message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=f"inputs: {message}"):
        make_engine(engine, net()).clipped_sum(
            **{**batch(), "inputs": inputs}, clipping=NoClipping()
        )


def test_no_gradients_in_inference_mode() -> None:
    made = make_engine("auto", net())
    with torch.inference_mode(), pytest.raises(UnsupportedModelError, match="inference_mode"):
        made.clipped_sum(**batch(), clipping=NoClipping())


def test_what_is_no_network() -> None:
    with pytest.raises(UnsupportedModelError, match="found a function; allowed: a torch"):
        make_engine("auto", lambda x: x)  # type: ignore[arg-type]


class Reads(nn.Module):
    """Reads numbers of a certain kind only."""

    def __init__(self, read: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.read, self.head = read, nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.read(x).mean(1))
        return logits


@pytest.mark.parametrize(
    ("read", "largest"),
    [
        (torch.log, 2.0),
        (lambda x: torch.distributions.Bernoulli(probs=x).entropy(), 1.0),
        (lambda x: torch.eye(WIDTH, dtype=x.dtype)[x[..., 0].long()] + x, 3.0),
    ],
    ids=["logarithms", "probabilities", "categories"],
)
def test_networks_that_read_no_normal_numbers(
    read: Callable[[Tensor], Tensor], largest: float
) -> None:
    model = Reads(read).double()
    values = {**batch(), "inputs": largest * batch()["inputs"].double().sigmoid()}
    found = make_engine("auto", model).clipped_sum(**values, clipping=FlatClipping(0.5))
    parameters = dict(model.named_parameters())
    wanted = {name: torch.zeros_like(each) for name, each in parameters.items()}
    for x, y in zip(values["inputs"], values["labels"], strict=True):
        loss = nn.functional.cross_entropy(model(x[None]), y[None])
        gradients = torch.autograd.grad(loss, list(parameters.values()))
        norm = sum(float(each.square().sum()) for each in gradients) ** 0.5
        for name, each in zip(wanted, gradients, strict=True):
            wanted[name] += each * min(1 / 0.5, 1 / norm)
    torch.testing.assert_close(found.gradients, wanted)


class Outputs(nn.Module):
    def __init__(self, change: Callable[[Tensor], Any], classes: int = CLASSES) -> None:
        super().__init__()
        self.head, self.change = nn.Linear(WIDTH, classes), change

    def forward(self, x: Tensor) -> Any:
        return self.change(self.head(x.mean(1)))


OUTPUTS: dict[str, tuple[nn.Module, str]] = {
    "one logit": (Outputs(lambda y: y, 1), "found 1 for each example.*two or more"),
    "no dimension of classes": (
        Outputs(lambda y: y[:, 0]),
        r"outputs: found float32 of shape \(3,\)",
    ),
    "another dimension": (Outputs(lambda y: y[..., None]), r"\(3, 5, 1\) for 3 examples"),
    "pairs": (Outputs(lambda y: (y, y)), "outputs: found a tuple"),
    "a dictionary": (Outputs(lambda y: {"logits": y}), "outputs: found a dict"),
    "an output of transformers": (
        Outputs(lambda y: SimpleNamespace(logits=y)),
        "outputs: found a SimpleNamespace.*return its logits",
    ),
    "classes": (Outputs(lambda y: y.argmax(1)), "outputs: found int64"),
    "fewer rows": (Outputs(lambda y: y[:1]), r"\(1, 5\) for 3 examples"),
}


@pytest.mark.parametrize("engine", ["auto", "loop"])
@pytest.mark.parametrize("case", OUTPUTS)
def test_outputs_that_are_no_logits_are_refused(case: str, engine: str) -> None:
    model, message = OUTPUTS[case]
    with pytest.raises(UnsupportedModelError, match=message):
        make_engine(engine, model).clipped_sum(**batch(), clipping=NoClipping())


class Single(nn.Module):
    """Reads one token for each example."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(20, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.table(tokens).tanh())
        return logits


def test_integers_of_one_dimension() -> None:
    model = Single().double()
    values = {**batch(), "inputs": torch.tensor([3, 4, 3, 7, 1])}
    found = make_engine("auto", model).clipped_sum(**values, clipping=FlatClipping(0.5))
    wanted = make_engine("loop", model).clipped_sum(**values, clipping=FlatClipping(0.5))
    torch.testing.assert_close(found.gradients, wanted.gradients, check_dtype=False)


@pytest.mark.parametrize("engine", ["auto", "loop", "opacus"])
def test_an_empty_micro_batch_counts_for_nothing(engine: str) -> None:
    model = net()
    made = make_engine(engine, model)
    empty = {name: each[:0] for name, each in batch().items()}
    for _ in range(2):
        found = made.clipped_sum(**empty, clipping=NoClipping())
        assert found.norms.shape == found.losses.shape == found.nonfinite.shape == (0,)
        assert all(not each.any() for each in found.gradients.values())
        assert made.norms(**empty)[0].shape == (0,)
        made.clipped_sum(**batch(), clipping=NoClipping())


def test_inputs_with_gradients_of_their_own() -> None:
    model = net()
    values = batch()
    wanted = make_engine("auto", model).clipped_sum(**values, clipping=NoClipping())
    values["inputs"].requires_grad_()
    found = make_engine("auto", model).clipped_sum(**values, clipping=NoClipping())
    torch.testing.assert_close(found.gradients, wanted.gradients, rtol=0, atol=0)
    assert values["inputs"].grad is None


@pytest.mark.parametrize("engine", ["auto", "expanded", "vmap"])
def test_dropout_is_called_by_its_name(engine: str) -> None:
    model = Net(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5)), WIDTH)
    with pytest.raises(
        UnsupportedModelError, match=r"random numbers in 'layer\.1' \(Dropout\).*eval\(\)"
    ):
        make_engine(engine, model).norms(**batch())
    make_engine(engine, model.eval()).norms(**batch())


# -- the optimizer and its streams -----------------------------------------------------------


@pytest.mark.parametrize("kind", [torch.optim.LBFGS, torch.optim.SparseAdam])
def test_optimizers_that_no_private_gradient_fits(kind: type[torch.optim.Optimizer]) -> None:
    model = net()
    with pytest.raises(ValueError, match=rf"found {kind.__name__}; allowed.*LBFGS"):
        private(model, kind(model.parameters()))


def private(model: nn.Module, optimizer: Any) -> PrivateOptimizer:
    return PrivateOptimizer(
        optimizer,
        make_engine("auto", model),
        FlatClipping(1.0),
        noise_multiplier=1.0,
        expected_batch_size=4,
        noise=GaussianNoise("here", secret=b""),
    )


def test_a_scheduler_takes_the_optimizer_inside() -> None:
    model = net()
    optimizer = private(model, torch.optim.SGD(model.parameters(), lr=1.0))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer.optimizer, 1, gamma=0.0)
    optimizer.step([tuple(batch().values())])
    scheduler.step()
    before = model.head.weight.clone()
    optimizer.step([tuple(batch().values())])
    assert torch.equal(model.head.weight, before)


def test_an_optimizer_that_gets_other_parameters_later() -> None:
    model, other = net(), nn.Parameter(torch.zeros(2))
    optimizer = private(model, torch.optim.SGD(model.parameters(), lr=1.0))
    optimizer.optimizer.add_param_group({"params": [other]})
    with pytest.raises(ValueError, match="has 1 that do not train"):
        optimizer.step([])
    optimizer.optimizer.param_groups.pop()
    model.head.bias.requires_grad_(False)
    with pytest.raises(ValueError, match=r"what trains has changed.*'head\.bias'"):
        optimizer.step([])


@pytest.mark.filterwarnings("always::dpsweep.training.randomness.PublicStreamWarning")
@pytest.mark.parametrize(
    "stream", [GaussianNoise, lambda *name, **given: PoissonSampler(9, 3, *name, **given)]
)
def test_a_stream_without_a_secret_warns(
    stream: Callable[..., object], recwarn: pytest.WarningsRecorder
) -> None:
    stream("noise", secret=b"")
    stream("noise", secret=b"secret")
    assert not recwarn
    with pytest.warns(PublicStreamWarning, match=r"new_secret\(\)"):
        stream("noise")


def test_a_program_is_warned_once() -> None:
    program = """
from dpsweep import GaussianNoise, PoissonSampler
GaussianNoise("a")
GaussianNoise("b")
PoissonSampler(9, 3)
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300
    )
    assert ran.stderr.count("new_secret()") == 1


def test_the_package_is_a_program() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "dpsweep", "--version"],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert ran.stdout.partition(" ")[0] == "dpsweep"
