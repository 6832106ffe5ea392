"""Networks that order, drop or merge rows by their content have the gradients of single examples.

Made-up examples have the same length here, so that their rows keep their order, and the comparison of engines
with the loop does not show that rows belong to other examples.
"""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.gradients.reference import check
from tests.gradients.tiny_models import CLASSES, HEAD, Case, Layer, make
from tests.models.networks import BERT, FILM, GPT2, network
from torch import Tensor, nn
from torch.nn.utils import rnn

from dpsweep.data.prepared import PADDING
from dpsweep.gradients import UnsupportedModelError, make_engine
from dpsweep.gradients.checks import ValidatingEngine
from dpsweep.gradients.data_dependence import data_dependent
from dpsweep.models.build import apply_method
from dpsweep.study.clipping import FlatClipping

WIDTH, TOKENS, EXAMPLES, END = 4, 6, 8, -9.0

Forward = Callable[[Any, Tensor], Tensor]


def present(x: Tensor) -> Tensor:
    """Return which tokens a set has: those before the first number `END`."""
    return x[..., 0] != END


def lengths(x: Tensor) -> Tensor:
    return present(x).sum(1)


def bags(self: Any, x: Tensor) -> Tensor:
    """Take the tokens of all sets as rows, without padding."""
    owner, place = present(x).nonzero(as_tuple=True)
    rows = self.norm(x[owner, place])
    logits: Tensor = self.head(rows.new_zeros(len(x), WIDTH).index_add(0, owner, rows))
    return logits


def packed(self: Any, x: Tensor) -> Tensor:
    given = rnn.pack_padded_sequence(x, lengths(x), batch_first=True, enforce_sorted=False)
    states, _ = self.gru(given)
    states = states._replace(data=self.norm(states.data))
    logits: Tensor = self.head(rnn.pad_packed_sequence(states, batch_first=True)[0].sum(1))
    return logits


def by_permutation(self: Any, x: Tensor) -> Tensor:
    """Sort with a matrix product, which reads no row by an index."""
    long = lengths(x) - torch.arange(len(x)) / len(x)
    rank = (long[:, None] < long).sum(1)
    matrix = (rank[:, None] == torch.arange(len(x))).to(x.dtype)
    logits: Tensor = matrix @ self.head(self.norm((matrix.T @ x.flatten(1)).view_as(x)).sum(1))
    return logits


def dropped(self: Any, x: Tensor) -> Tensor:
    """Leave out tokens beyond the capacity of the batch; nothing is taken by an index."""
    place = (~present(x)).flatten().cumsum(0).view_as(x[..., 0])
    logits: Tensor = self.head(self.norm(x * (place <= 3)[..., None]).sum(1))
    return logits


def merged(self: Any, x: Tensor) -> Tensor:
    """Merge neighbours that are equal in their second number."""
    _, owner = torch.unique_consecutive(x[:, 0, 1], return_inverse=True)
    total = torch.zeros_like(x).scatter_add_(0, owner[:, None, None].expand_as(x), x)
    logits: Tensor = self.head(self.norm(total).sum(1))
    return logits[owner]


def largest(self: Any, x: Tensor) -> Tensor:
    """Limit numbers if one of the batch is too large."""
    logits: Tensor = self.head(self.norm(x).sum(1))
    return torch.where(x.abs().amax() > 1e3, logits.tanh(), logits)


def case(function: Forward) -> Case:
    """Return a network on sets of 1 to 6 tokens, 16 in 4 examples, that need another order."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        gru = nn.GRU(WIDTH, WIDTH, batch_first=True).requires_grad_(False)
        layers = {"norm": nn.LayerNorm(WIDTH), "head": nn.Linear(WIDTH, CLASSES), "gru": gru}
        model = Layer(function, **layers).double()
        for parameter in model.parameters():
            parameter.data += 0.2 * torch.randn_like(parameter)
        inputs = torch.randn(EXAMPLES, TOKENS, WIDTH).double()
    sizes = torch.tensor([2, 6, 1, 5, 3, 6, 4, 5])
    inputs[torch.arange(TOKENS) >= sizes[:, None]] = END
    inputs[3, 0, 1] = inputs[2, 0, 1]
    inputs[5, 0, 2] = 2e3
    return Case(model, HEAD, inputs, torch.arange(EXAMPLES) % CLASSES, torch.arange(EXAMPLES) < 7)


NETWORKS = [bags, packed, by_permutation, dropped, merged, largest]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("limit", [0, 2**20])
@pytest.mark.parametrize("function", NETWORKS)
def test_rows_belong_to_their_examples(
    function: Forward, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpsweep.gradients._FEW_PARAMETERS", limit)
    given = case(function)
    made = check(given)
    rule = FlatClipping(1e-3)

    def total(mask: Tensor) -> Tensor:
        some = [each[mask] for each in (given.inputs, given.labels, mask)]
        found = made.clipped_sum(*some, rule).gradients
        return torch.cat([each.flatten() for each in found.values()])

    everything = torch.ones(EXAMPLES, dtype=torch.bool)
    for left_out in range(EXAMPLES):
        others = everything.clone()
        others[left_out] = False
        assert float((total(everything) - total(others)).norm()) <= 1 + 1e-6


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("engine", ["expanded", "bookkeeping"])
@pytest.mark.parametrize("function", NETWORKS)
def test_engines_that_assign_rows_by_place_refuse(function: Forward, engine: str) -> None:
    given = case(function)
    with pytest.raises(UnsupportedModelError, match=r"\(\) .*rows of a batch by their content"):
        make_engine(engine, given.model).norms(*given.batch)


def chosen(row: Tensor) -> Tensor:
    return row[:, 0] > 0.5


@torch.library.custom_op("dpsweep_tests::shrunk", mutates_args=())
def shrunk(x: Tensor) -> Tensor:
    return x / x.amax()


def copied_by_list(x: Tensor) -> object:
    (copy,) = copies = [torch.zeros(len(x))]
    torch._foreach_copy_(copies, [x[:, 0, 0]])
    return copy.sort()


X = torch.rand(3, TOKENS, WIDTH, generator=torch.Generator().manual_seed(0))
Function = Callable[[Tensor], object]
BY_CONTENT: dict[str, Function] = {
    "mask": lambda x: x[chosen(x[:, 0])],
    "mask of tokens and rows": lambda x: x.transpose(0, 1)[(x[..., 0] > 0.5).T],
    "product of rows": lambda x: x[:, 0] @ x[:, 0].T @ x[:, 0],
    "copied by list": copied_by_list,
    "index": lambda x: torch.arange(len(x))[(2 * x[:, 0, 0]).long()],
    "table": lambda x: F.embedding((2 * x[:, 0, 0]).long(), x[:, 0]),
    "top": lambda x: x.flatten(0, 1)[:, 0].topk(2),
    "masked select": lambda x: x.masked_select(x > 0.5),
    "repeats": lambda x: x.repeat_interleave((3 * x[:, 0, 0]).long(), 0),
    "into a row": lambda x: torch.zeros(9, WIDTH).index_put_(((9 * x[:, 0, 0]).long(),), x[:, 0]),
    "copied before": lambda x: torch.zeros(len(x)).copy_(x[:, 0, 0]).sort(),
    "item": lambda x: x[0, 0, 0].item(),
    "equal": lambda x: torch.equal(x, 2 * x),
    "numpy": lambda x: x.detach().numpy(),
    "loss": lambda x: F.mse_loss(x, torch.zeros_like(x)),
    "sum by ones": lambda x: torch.ones(len(x)) @ x[:, 0],
    "attention to rows": lambda x: F.scaled_dot_product_attention(*3 * (x[None, :, 0],)),
    "normalised rows": lambda x: F.layer_norm(x[:, 0, 0], (len(x),)),
    "pooled rows": lambda x: F.max_pool1d(x[None, :, 0, 0], 2),
    "rolled rows": lambda x: x.roll(3, 0),
    "reversed rows": lambda x: x.flip(0),
    "random order": lambda x: x[torch.randperm(len(x))],
    "order of random numbers": lambda x: x[torch.rand(len(x)).argsort()],
    "operation of others": shrunk,
    "sparse": lambda x: x[:, 0].to_sparse(),
    "split": lambda x: x[:, 0, 0].tensor_split((x[:1, 0, 0] > 0.5).long()),
    "nested": lambda x: torch.nested.as_nested_tensor(list(x)).to_padded_tensor(0.0),
    "conditional": lambda x: torch.ops.higher_order.cond(
        x.amax() > 9, torch.tanh, torch.relu, (x,)
    ),
    "text": lambda x: str(x[0]),
    "copy": copy.deepcopy,
    "called": lambda x: x.detach().clone().apply_(abs),
    "classes of the batch": lambda x: F.one_hot(x[:, 0].long()),
}
IN_PLACE: dict[str, Function] = {
    "sorted tokens": lambda x: x.sort(dim=1),
    "best tokens": lambda x: x.gather(1, x[..., :1].topk(2, 1).indices.expand(-1, -1, WIDTH)),
    "last token": lambda x: x[torch.arange(len(x)), (x[..., 0] > 0.5).sum(1) - 1],
    "tokens of rows": lambda x: torch.zeros(len(x), 9).index_put_(
        (torch.arange(len(x))[:, None], (9 * x[..., 0]).long()), x[..., 0]
    ),
    "counts of words": lambda x: torch.zeros(len(x), 9).scatter_add_(
        1, (9 * x[..., 0]).long(), x[..., 0]
    ),
    "numbers below a bound": lambda x: x.masked_fill(x < 0.5, 0).cumsum(1),
    "classes": lambda x: F.one_hot((2 * x).long(), 3),
    "table of the network": lambda x: F.embedding((2 * x).long(), torch.ones(9, 2)),
    "bag of words": lambda x: F.embedding_bag((9 * x[..., 0]).long(), torch.ones(9, 2)),
    "constant order": lambda x: x[torch.ones(len(x)).argsort()],
    "size of the batch": lambda x: torch.zeros_like(x[:, 0, 0]).sort(),
    "layers": lambda x: F.group_norm(
        F.max_pool1d(F.layer_norm(F.conv1d(x, X[..., :1]), (WIDTH,)), 1), 1
    ),
    "statistics of the network": lambda x: F.batch_norm(x, torch.zeros(TOKENS), torch.ones(TOKENS)),
    "shifted windows": lambda x: x.roll((1, 1), (1, 2)).flip(1).tril(),
    "recurrence": nn.LSTM(WIDTH, 2, batch_first=True).requires_grad_(False),
    "padding": lambda x: F.hardswish(F.pad(x.half().float(), (0, 1)).repeat(1, 2, 1)),
    "order of tokens at random": lambda x: x[:, torch.rand(TOKENS).argsort()],
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x) + (x @ x.mT).softmax(-1) @ x,
}


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch 2.10 warns of slow and of new operations
@pytest.mark.parametrize("name", [*BY_CONTENT, *IN_PLACE])
def test_operations_by_content(name: str) -> None:
    found = data_dependent((BY_CONTENT | IN_PLACE)[name], X)
    assert (found is not None) == (name in BY_CONTENT), found


@pytest.mark.parametrize(
    "name", ["bert", "gpt2", "vit-all", "vit-lora", "resnet-all", "distilbert-lora"]
)
def test_common_networks_stay_on_fast_engines(name: str) -> None:
    if name in ("bert", "gpt2"):
        arguments = BERT if name == "bert" else GPT2 | {"pad_token_id": 0}
        model, inputs = network(name, arguments), torch.arange(24).view(4, 6) % 11
        inputs[1, 3:] = inputs[2, 5:] = PADDING
        if name == "gpt2":  # bookkeeping has no rule for its linear layers
            apply_method(model, FILM)
    else:
        given = make(name, torch.float32)
        model, inputs = given.model, given.inputs
    made = make_engine("auto", model)
    assert isinstance(made, ValidatingEngine)
    assert made.choose(inputs)[0] in ("expanded", "bookkeeping")


def early_exit(self: Any, x: Tensor) -> Tensor:
    if float(x.abs().max()) < 5:
        return self.experts[0](x)[:, :CLASSES]  # type: ignore[no-any-return]
    logits: Tensor = self.head(self.experts[1](x) + self.experts[2](x).tanh())
    return logits


def mixture(self: Any, x: Tensor) -> Tensor:
    """Weight the two best experts of each row, as mixtures of experts do."""
    weights, best = self.gate(x).softmax(1).topk(2)
    found = torch.zeros_like(x)
    for number, expert in enumerate(self.experts):
        rows, places = (best == number).nonzero(as_tuple=True)
        if len(rows):
            found = found.index_add(0, rows, expert(x[rows]) * weights[rows, places][:, None])
    logits: Tensor = self.head(found)
    return logits


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("trains", ["everything", "one expert"])
@pytest.mark.parametrize("function", [early_exit, mixture])
def test_parts_that_no_made_up_example_reaches_have_gradients_where_examples_reach_them(
    function: Forward, trains: str
) -> None:
    width = 6
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = {
            "experts": nn.ModuleList(nn.Linear(width, width) for _ in range(3)),
            "gate": nn.Linear(width, 3).requires_grad_(False),
            "head": nn.Linear(width, CLASSES),
        }
        model = Layer(function, **layers).double()
        first, inputs = torch.randn(3, width).double() / 10, torch.randn(8, width).double()
    if trains == "one expert":
        model.requires_grad_(False)
        model.experts[2].requires_grad_(True)
    inputs[:, 0] = torch.tensor([0.0, 1.0, 9.0, 12.0, 19.0, 21.0, 25.0, 0.0])
    labels, mask = torch.arange(8) % CLASSES, torch.arange(8) < 7
    made = make_engine("auto", model)
    made.norms(first, labels[:3], mask[:3])
    check(Case(model, frozenset(), inputs, labels, mask), made=made)
