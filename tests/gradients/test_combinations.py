"""Everything that the paper's study combines trains, and its gradients are those of the loop.

The combinations are read from `config.yaml`, so that a new one is tested or fails here. Networks
are the study's own with fewer and smaller layers, where they have arguments for it.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from tests.training.tiny_study import CPU, SPEC
from tokenizers.models import WordLevel

from dpsweep.data import Split, write_prepared
from dpsweep.data.prepared import PADDING, PreparedDataset
from dpsweep.data.tokenizer import Tokenizer, save_tokenizer
from dpsweep.data.tokenizer import prepare as prepare_tokenizer
from dpsweep.gradients import make_engine
from dpsweep.models.build import head_parameter_names, trainable_parameters
from dpsweep.models.prepare import prepare as prepare_backbone
from dpsweep.study import load_study
from dpsweep.study.clipping import AutomaticClipping, Clipping, FlatClipping, NoClipping
from dpsweep.study.config import FileTokenizer, RandomWeights, Scratch
from dpsweep.study.paths import Paths
from dpsweep.training.context import TrialContext, load_trainable
from dpsweep.training.specification import TrialSpec
from dpsweep.training.trial import train_trial

ROOT = Path(__file__).parents[2]
STUDY = load_study(ROOT / "config.yaml")
CLASSES, TRAIN, TEST, SIZE, LENGTH = 5, 24, 10, 32, 12

VIT = {"img_size": SIZE, "patch_size": 16, "embed_dim": 24, "num_heads": 2}
SMALLER: dict[str, dict[str, Any]] = {
    "vit-tiny": VIT | {"depth": 2},
    "vit-base": VIT | {"depth": 3, "embed_dim": 48},
    "resnet50": {},
    "wrn-16-4": {"depth": 10, "width": 1},
    "distilbert": {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32}
    | {"max_position_embeddings": LENGTH},
}


@dataclass(frozen=True)
class Combination:
    """What a sweep trains, apart from its numbers."""

    kind: str
    """of the data: image or text"""
    backbone: str
    method: str

    def __str__(self) -> str:
        return f"{self.kind} {self.backbone} {self.method}"


# The dataset of a sweep is no part: images of all datasets reach the network in one form.
COMBINATIONS = sorted(
    {
        Combination(STUDY.datasets[sweep.dataset].kind, sweep.backbone, sweep.method)
        for sweep in STUDY.sweeps.values()
    },
    key=str,
)
OPTIMIZERS: dict[str, tuple[str, Clipping, float]] = {
    "DP-Adam": ("adam", FlatClipping(1.0), 0.003),
    "DP-SGD": ("sgd", FlatClipping(1.0), 0.5),
    "AUTO-S": ("adam", AutomaticClipping(0.01), 0.003),
    "non-private": ("adam", NoClipping(), 0.003),
}


def noise(folder: Path, draw: Callable[[int], np.ndarray], **description: Any) -> PreparedDataset:
    """Write a dataset of meaningless inputs; ``draw`` makes some."""
    train, test = (Split(draw(size), np.arange(size) % CLASSES) for size in (TRAIN, TEST))
    return write_prepared(
        folder,
        name="noise",
        title="Noise",
        source="numpy",
        revision=None,
        classes=[str(label) for label in range(CLASSES)],
        train=train,
        test=test,
        **description,
    )


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    random = np.random.default_rng(0)

    def pixels(size: int) -> np.ndarray:
        return random.integers(256, size=(size, SIZE, SIZE, 3), dtype=np.uint8)

    return noise(tmp_path_factory.mktemp("images"), pixels)


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer of thirty words."""
    words = {word: number for number, word in enumerate(["[UNK]", *map(str, range(29))])}
    path = tmp_path_factory.mktemp("vocabulary") / "tokenizer.json"
    tokenizer = tokenizers.Tokenizer(WordLevel(words, unk_token="[UNK]"))  # noqa: S106
    tokenizer.save(str(path))
    save_tokenizer(tokenizer, path.with_name("prepared.json"))
    return path


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory, vocabulary: Path) -> PreparedDataset:
    random = np.random.default_rng(0)

    def tokens(size: int) -> np.ndarray:
        drawn = random.integers(30, size=(size, LENGTH), dtype=np.int32)
        for row, length in enumerate(random.integers(3, LENGTH + 1, size=size)):
            drawn[row, length:] = PADDING
        return drawn

    folder = tmp_path_factory.mktemp("texts")
    return noise(
        folder,
        tokens,
        kind="text",
        tokenizer=Tokenizer.open(vocabulary.with_name("prepared.json")).identity,
    )


@pytest.fixture(scope="module", params=COMBINATIONS, ids=str)
def context(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    vocabulary: Path,
) -> TrialContext:
    """What the trials of one combination share."""
    torch.set_num_threads(1)
    combination = request.param
    published = STUDY.backbones[combination.backbone]
    backbone = published.model_copy(
        update={
            "arguments": published.arguments | SMALLER[combination.backbone],
            "weights": RandomWeights(kind="random"),
        }
    )
    paths = Paths(tmp_path_factory.mktemp("backbone"))
    if combination.kind == "text":
        words = FileTokenizer(kind="file", path=str(vocabulary))
        backbone = backbone.model_copy(update={"tokenizer": words})
        prepare_tokenizer(combination.backbone, backbone, {}, paths.tokenizer(combination.backbone))
    prepared = prepare_backbone(combination.backbone, backbone, paths)
    data = request.getfixturevalue(f"{combination.kind}s")
    return TrialContext(data, prepared, STUDY.methods[combination.method], device=CPU)


def spec(context: TrialContext, optimizer: str, clipping: Clipping, rate: float) -> TrialSpec:
    private = clipping.kind != "none"
    return replace(
        SPEC,
        data="noise",
        backbone=context.backbone.metadata.checksum,
        method=context.method.model_dump(mode="json"),
        optimizer=optimizer,
        epsilon=8.0 if private else float("inf"),
        noise_multiplier=0.5 if private else 0.0,
        train_size=TRAIN,
        batch_size=8,
        steps=3,
        clipping=clipping,
        learning_rate=rate,
        physical_batch=6,
    )


# What clips and updates knows no backbone: it is tried with one of every kind of method.
ONE_OF_EACH = {(each.kind, STUDY.methods[each.method].kind): each for each in COMBINATIONS}.values()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("context", "how"),
    [
        *((each, "DP-Adam") for each in COMBINATIONS),
        *((each, how) for each in ONE_OF_EACH for how in OPTIMIZERS if how != "DP-Adam"),
    ],
    indirect=["context"],
    ids=str,
)
def test_every_combination_trains_what_its_method_says(context: TrialContext, how: str) -> None:
    model = context.model(1)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    chosen = spec(context, *OPTIMIZERS[how])
    trial, epochs = train_trial(chosen, context, None, 1e9)
    assert not trial.record["diverged"]
    assert trial.record["trainable_parameters"] == sum(
        each.numel() for each in trainable_parameters(model).values()
    )
    assert trial.steps["sampled_examples"].sum() > 0
    trainable = set(trainable_parameters(model))
    assert {name.removeprefix("epoch1/") for name in epochs} == trainable
    moved = {
        name for name, value in model.named_parameters() if not torch.equal(value, before[name])
    }
    if chosen.noise_multiplier > 0:
        assert moved == trainable
    else:
        # Few parameters (keys of attention, say) may have no gradient at all.
        assert head_parameter_names(model) < moved <= trainable
    if isinstance(context.method, Scratch):
        assert trainable == set(before)


@pytest.mark.slow
def test_gradients_are_those_of_the_loop_after_training(context: TrialContext) -> None:
    """At trained parameters: at the start the head is zero, and nothing else has a gradient."""
    _, epochs = train_trial(spec(context, *OPTIMIZERS["DP-Adam"]), context, None, 1e9)
    model = context.model(1)
    load_trainable(
        model,
        {name.removeprefix("epoch1/"): torch.from_numpy(value) for name, value in epochs.items()},
    )
    model = copy.deepcopy(model).double()
    head = head_parameter_names(model)
    rows = torch.arange(6)
    inputs, labels = context.batch(context.train, rows)
    if inputs.is_floating_point():
        inputs = inputs.double()
    mask = rows < 5
    loop = make_engine("loop", model, head)
    bound = FlatClipping(float(loop.norms(inputs, labels, mask)[0][:5].median()))
    wanted = loop.clipped_sum(inputs, labels, mask, bound)
    found = make_engine("auto", model, head).clipped_sum(inputs, labels, mask, bound)
    torch.testing.assert_close(found.norms, wanted.norms, rtol=1e-8, atol=0)
    assert found.gradients.keys() == wanted.gradients.keys()
    largest = max(float(each.abs().max()) for each in wanted.gradients.values())
    for name, gradient in wanted.gradients.items():
        torch.testing.assert_close(
            found.gradients[name], gradient, rtol=1e-7, atol=1e-9 * largest, msg=name
        )


def test_every_kind_of_data_is_tested() -> None:
    assert {each.kind for each in COMBINATIONS} == {"image", "text"}
    assert len(COMBINATIONS) >= 12
