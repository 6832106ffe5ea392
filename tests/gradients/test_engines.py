"""Every engine gives the reference gradients, for all layers and clipping rules."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.gradients.reference import build, check, one_by_one
from tests.gradients.tiny_models import (
    CASES,
    EACH_ENGINE,
    HEAD,
    LAYERS,
    Layer,
    make,
    on_layer,
    random,
)
from torch import Tensor, nn

from dpsweep.gradients import engines, make_engine
from dpsweep.gradients.checks import ValidatingEngine
from dpsweep.study.clipping import FlatClipping, NoClipping

NETWORKS = {
    "linear": ["linear-head"],
    "loop": ["vit-film", "distilbert-all"],
    "expanded": [name for name in CASES if not name.endswith("-all")],
    "bookkeeping": CASES,
    "vmap": ["vit-lora", "bit-film", "resnet-all", "convolutions-all", "distilbert-all"],
    "opacus": ["vit-film", "bit-all", "distilbert-lora"],
}


@pytest.mark.parametrize(
    ("engine", "name"), [(engine, name) for engine, names in NETWORKS.items() for name in names]
)
def test_networks(engine: str, name: str) -> None:
    """In float64 with its precision; the norms of the linear engine are always float32."""
    check(make(name), engine, 1e-5 if engine == "linear" else 1e-10)


@pytest.mark.parametrize(("engine", "name"), [*EACH_ENGINE, ("bookkeeping", "wide_resnet-all")])
def test_networks_in_float32(engine: str, name: str) -> None:
    check(make(name, torch.float32), engine, 2e-5)


# Why no fast engine computes some layers.
BECAUSE = {
    "tokens first": "'layer.weight'",
    "Conv1d": "'layer.weight' of a Conv1d is used by conv1d()",
    "attention": "'layer.self_attn.in_proj_weight' of a MultiheadAttention",
    "LSTM": "'layer.weight_ih_l0' of a Recurrent is used by lstm()",
    "reads values": "any() chooses, orders or merges rows of a batch by their content",
    "function of autograd": "'layer.scale' are used where this engine does not see it",
    "two names, factors": "'layer.one.weight'",
}


@pytest.mark.parametrize(
    ("name", "limit", "engine"),
    [
        (name, limit, engine)
        for name, (_, few, many) in LAYERS.items()
        for limit, engine in ((2**20, few), (0, many))
        if engine
    ],
)
def test_layers(
    name: str,
    limit: int,
    engine: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each layer uses the fastest engine that supports it, for few and for many parameters.

    A slow one warns once, and does not recommend `auto`, which is in use already.
    """
    monkeypatch.setattr("dpsweep.gradients._FEW_PARAMETERS", limit)
    case = on_layer(name)
    made = check(case)
    assert isinstance(made, ValidatingEngine)
    assert made.choose(case.inputs)[0] == engine
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == (engine in ("vmap", "loop"))
    for message in messages:
        assert message.startswith(f"engine '{engine}', which is slow, because ")
        assert BECAUSE.get(name, "") in message and "auto" not in message
        assert len(message) < 300 and "\n" not in message


def every_rule() -> nn.Module:
    """Return a network with all rules for few parameters: layers, factors of the head, elementwise ones."""

    def function(self: Any, images: Tensor) -> Tensor:
        x = F.relu_(self.group_norm(self.stem(images))).flatten(2).mT
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1)
        x = x + self.adapter(self.norm(x))
        return self.head(self.rms(x).mean(1)[:, :, None, None]).flatten(1)

    return Layer(
        function,
        stem=nn.Conv2d(3, 8, 8, stride=8).requires_grad_(False),
        group_norm=nn.GroupNorm(2, 8),
        token=random(1, 1, 8),
        norm=nn.LayerNorm(8),
        adapter=nn.Linear(8, 8),
        rms=nn.RMSNorm(8),
        head=nn.Conv2d(8, 5, 1),
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rules", "vit-lora", "bit-film"])
def test_expanded_engine_is_one_graph(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole forward pass is one graph, as compiling requires."""
    case = make("vit-film" if name == "rules" else name)
    if name == "rules":
        case = replace(case, model=every_rule().double(), head=HEAD)
    torch.compiler.reset()
    # Do not generate code, which takes half a minute.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    made = check(case, "expanded", compile=True)
    # On a CPU, batches are not padded to a fixed size.
    fewer = [each[:3] for each in case.batch]
    found = made.clipped_sum(*fewer, NoClipping()).gradients
    for key, each in one_by_one(case)[1].items():
        torch.testing.assert_close(found[key], each[:3].sum(0), rtol=1e-8, atol=1e-10)


# -- bfloat16 ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "name"),
    [
        *(("expanded", "vit-film"), ("auto", "vit-lora"), ("auto", "wide_resnet-all")),
        *((each, "vit-all") for each in ("bookkeeping", "vmap", "loop")),
    ],
)
def test_autocast_keeps_norms_and_sums_in_float32(engine: str, name: str) -> None:
    case = make(name, torch.float32, examples=16)
    exact, made = (build(case, engine, autocast=each) for each in (None, torch.bfloat16))
    full, half = (each.clipped_sum(*case.batch, FlatClipping(1.0)) for each in (exact, made))
    assert half.norms.dtype == half.losses.dtype == torch.float32
    # Rounding errors are at most 1/256. Group normalisation over few numbers enlarges them.
    bound = 0.2 if name == "wide_resnet-all" else 4 / 256
    sums = [torch.cat([each.flatten() for each in one.gradients.values()]) for one in (half, full)]
    assert 0 < (sums[0] - sums[1]).norm() < bound * sums[1].norm()
    assert 0 < (half.norms - full.norms).norm() < 2 * bound * full.norms.norm()
    for row in range(5):
        alone = made.clipped_sum(*(each[[row]] for each in case.batch), FlatClipping(1e-5))
        wide = torch.float64 if name in ("vit-film", "vit-lora") else torch.float32
        assert {gradient.dtype for gradient in alone.gradients.values()} == {wide}
        flat = torch.cat([gradient.float().flatten() for gradient in alone.gradients.values()])
        # A norm of numbers in bfloat16 would be off by 1e-3.
        torch.testing.assert_close(flat.norm(), torch.tensor(1.0), rtol=0, atol=2e-5)


@pytest.mark.parametrize("bound", [None, 0.5, 5.0])
def test_linear_engine_keeps_the_bias_under_autocast(bound: float | None) -> None:
    """The bias is as large as the weights; without it the gradients would be different."""
    case = make("linear-head", torch.float32, examples=40)
    assert isinstance(case.model, nn.Linear)
    with torch.no_grad():
        case.model.bias.copy_(torch.tensor([3.0, -2.0, 0.5, -1.0, 0.0]))
    clipping = NoClipping() if bound is None else FlatClipping(bound)
    engine = engines.LinearEngine(case.model, autocast=torch.bfloat16)
    found = engine.clipped_sum(*case.batch, clipping)
    wanted = make_engine("loop", case.model, case.head).clipped_sum(*case.batch, clipping)
    # bfloat16 has 8 bits: errors of logits are 2^-8 times their largest term.
    torch.testing.assert_close(found.losses, wanted.losses, rtol=0.05, atol=0.05)
    torch.testing.assert_close(found.norms, wanted.norms, rtol=0.05, atol=0.05)
    for name, gradient in wanted.gradients.items():
        assert (found.gradients[name].float() - gradient).norm() < 0.05 * gradient.norm()
    rows = engine.gradients(case.inputs, case.labels)[0]
    exact = torch.cat([each.flatten(1) for each in one_by_one(case)[1].values()], dim=1)
    assert (rows - exact).norm() < 0.05 * exact.norm()
