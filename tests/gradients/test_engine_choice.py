"""`auto` chooses the fastest engine that gives the gradients of the loop, and warns if it is slow."""

import logging

import pytest
import torch
from tests.gradients.tiny_models import LAYERS, make, on_layer
from torch import nn

from dpsweep.gradients import UnsupportedModelError, make_engine
from dpsweep.gradients import engine as engine_module
from dpsweep.gradients.checks import ValidatingEngine
from dpsweep.gradients.engines import ExpandedEngine
from dpsweep.gradients.per_example import PerExampleGradients


def chosen(model: nn.Module, head: frozenset[str], inputs: torch.Tensor) -> str:
    made = make_engine("auto", model, head)
    assert isinstance(made, ValidatingEngine)
    return made.choose(inputs)[0]


@pytest.mark.parametrize("value", [0.0, float("nan"), float("inf"), 1e30])
def test_choice_does_not_depend_on_parameter_values(value: float) -> None:
    """A diverged trial uses the same engine when it is continued."""
    case = make("vit-all")
    for parameter in case.model.parameters():
        nn.init.constant_(parameter, value)
    assert chosen(case.model, case.head, case.inputs * value) == "bookkeeping"


@pytest.mark.parametrize("features", [13, 1024])
def test_linear_layers_use_the_linear_engine(features: int) -> None:
    head = frozenset({"weight", "bias"})
    assert chosen(nn.Linear(features, 20), head, torch.zeros(2, features)) == "linear"


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("tokens first", "'layer.weight'"),
        ("Conv1d", "'layer.weight' of a Conv1d is used by conv1d()"),
        ("attention", "'layer.self_attn.in_proj_weight' of a MultiheadAttention"),
        ("LSTM", "'layer.weight_ih_l0' of a Recurrent is used by lstm()"),
        ("reads values", "any() chooses, orders or merges rows of a batch by their content"),
        ("function of autograd", "'layer.scale' are used where this engine does not see it"),
        ("two names, factors", "'layer.one.weight'"),
    ],
)
def test_slow_engines_warn_once_with_the_layer(
    name: str, found: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The warning does not recommend `auto`, which is in use already."""
    _, for_few, for_many = LAYERS[name]
    monkeypatch.setattr("dpsweep.gradients._FEW_PARAMETERS", 0 if for_many else 2**20)
    case = on_layer(name)
    made = make_engine("auto", case.model, case.head)
    with caplog.at_level(logging.WARNING):
        made.norms(*case.batch)
        made.norms(*case.batch)
    (record,) = caplog.records
    message, engine = record.getMessage(), for_many or for_few
    assert message.startswith(f"engine '{engine}', which is slow, because ")
    assert found in message and "auto" not in message
    assert len(message) < 300 and "\n" not in message


def test_named_engine_that_cannot_compute_the_model_is_an_error() -> None:
    """The message of torch for a vectorised pass names neither the engine nor the network."""
    case = on_layer("LSTM")
    with pytest.raises(UnsupportedModelError, match=r"^engine 'vmap' cannot compute Net \(.+\)"):
        make_engine("vmap", case.model, case.head).norms(*case.batch)


def test_out_of_memory_does_not_change_the_choice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_memory(*_: object) -> None:
        raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`")

    case = make("vit-film", torch.float32)
    made = make_engine("auto", case.model, case.head)
    assert isinstance(made, ValidatingEngine)
    with monkeypatch.context() as patch:
        patch.setattr(ExpandedEngine, "_per_example", no_memory)
        with pytest.raises(RuntimeError, match="ALLOC_FAILED"):
            made.norms(*case.batch)
    assert made.choose(case.inputs)[0] == "expanded"


def test_wrong_engine_is_not_chosen_for_a_zero_head(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Training starts with such a head, which makes the gradients of all layers before it zero."""
    grouped = ExpandedEngine._grouped

    def wrong(engine: ExpandedEngine, rows: dict[str, torch.Tensor]) -> list[PerExampleGradients]:
        return grouped(
            engine, {name: row if "head" in name else 2 * row for name, row in rows.items()}
        )

    case = make("vit-film", torch.float32)
    nn.init.zeros_(case.model.head.weight)
    assert chosen(case.model, case.head, case.inputs) == "expanded"
    monkeypatch.setattr(ExpandedEngine, "_grouped", wrong)
    assert chosen(case.model, case.head, case.inputs) != "expanded"


@pytest.mark.parametrize("error", [0.004, 0.015])
@pytest.mark.parametrize("part", ["gradients", "norms"])
def test_comparison_allows_an_error_of_one_per_cent(
    part: str, error: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    grouped, norms = ExpandedEngine._grouped, engine_module._norms

    def longer(engine: ExpandedEngine, rows: dict[str, torch.Tensor]) -> list[PerExampleGradients]:
        first = next(name for name in rows if "norm" in name)
        return grouped(engine, {**rows, first: rows[first] * (1 + error)})

    case = make("vit-film", torch.float32)
    if part == "gradients":
        monkeypatch.setattr(ExpandedEngine, "_grouped", longer)
    else:
        monkeypatch.setattr(engine_module, "_norms", lambda *of: norms(*of) * (1 + error))
    found = chosen(case.model, case.head, case.inputs)
    assert (found == "expanded") == (error < 0.01)
