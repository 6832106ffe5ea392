"""What can be known of a study without training is said before anything runs."""

import re
import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import yaml
from huggingface_hub.errors import HfHubHTTPError
from PIL import Image

from dpsweep.cli.check import check
from dpsweep.data.prepare import prepare
from dpsweep.figures import fonts
from dpsweep.study import StudyError, load_study
from dpsweep.study.paths import Paths
from tests.described import described
from tests.waiting import PATIENCE

CELLS = {
    "epsilon": [8], "epochs": [1], "batch_size": ["full"], "clipping_bound": [1],
    "learning_rate": [0.1], "seeds": 1,
}  # fmt: skip
TINY = {"img_size": 32, "patch_size": 16, "depth": 1, "embed_dim": 32, "num_heads": 2}


@pytest.fixture(autouse=True)
def no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub answers nobody."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Sixty images, a small transformer, and FiLM."""
    monkeypatch.chdir(tmp_path)
    Image.new("L", (2, 2)).save(tmp_path / "one.png")
    for split, count in (("train", 30), ("test", 5)):
        for name in ("cat", "dog"):
            folder = tmp_path / "pets" / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                shutil.copy(tmp_path / "one.png", folder / f"{number}.png")
    return {
        "title": "Pets",
        "datasets": {
            "pets": {
                **{"title": "Pets", "classes": 2, "train_size": 60, "test_size": 10},
                **{"image_size": 32, "source": {"kind": "folder", "path": "pets"}},
            }
        },
        "backbones": {
            "vit": {
                **{"title": "ViT", "architecture": "vit_tiny_patch16_224", "arguments": TINY},
                "weights": {"kind": "random"},
            }
        },
        "methods": {"film": {"kind": "film"}},
        "sweeps": {"one": {"dataset": "pets", "backbone": "vit", "method": "film", **CELLS}},
    }


def said(
    study: dict[str, Any], edits: dict[str, Any], seconds: float = PATIENCE
) -> tuple[str, str]:
    """Return what is said of an edited study, and the errors."""
    for path, value in edits.items():
        *parents, last = path.split(".")
        content = study
        for key in parents:
            content = content.setdefault(key, {})
        content[last] = value
    if "figures" in study:
        study = described(study, Path())
    Path("study.yaml").write_text(yaml.safe_dump(study))
    lines: list[str] = []
    try:
        loaded = load_study(Path("study.yaml"))
        lines.extend(check(loaded, Paths(Path(loaded.results)), seconds))
    except StudyError as error:
        return "\n".join(lines), str(error)
    return "\n".join(lines), ""


ARCHITECTURE = "backbones.vit.architecture"
LORA = {"kind": "lora", "rank": 1}
RANDOM, HUB_TOKENIZER = {"kind": "random"}, {"kind": "hub", "id": "a/b"}
TEXT = {
    **{"title": "BERT", "library": "transformers", "architecture": "distilbert"},
    **{"weights": RANDOM, "tokenizer": HUB_TOKENIZER},
}
DIGITS = {
    **{"title": "Digits", "source": {"kind": "sklearn-digits"}, "image_size": 8},
    **{"classes": 10, "train_size": 1347, "test_size": 450},
}
GLYPHS = DIGITS | {"source": {"kind": "glyphs", "characters": "abc"}, "classes": 3}
MAILS = {
    **{"title": "Mails", "kind": "text", "classes": 2, "train_size": 40, "test_size": 4},
    **{"tokenizer": "vit", "max_length": 9999, "source": {"kind": "hub", "id": "a/mails"}},
}
DOCSTRINGS = MAILS | {
    "max_length": 8,
    "source": {
        **{"kind": "docstrings", "modules": ["numpy.linalg", "numpy.fft"]},
        **{"train_per_class": 10, "test_per_class": 2},
    },
}
TINY_ROBERTA = TEXT | {
    "architecture": "roberta",
    "arguments": {
        **{"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 20},
        **{"intermediate_size": 8, "max_position_embeddings": 12},
    },
}
TINY_T5 = TEXT | {
    "architecture": "t5",
    "arguments": {
        **{"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2, "vocab_size": 20},
        **{"pad_token_id": 0, "eos_token_id": 3},
    },
}
# Scales of float32 that are zero, as of residual blocks that start as the identity.
DEAD = {
    "backbones.vit.arguments": TINY | {"init_values": 1e-46},
    "methods.film": LORA | {"target_modules": ["qkv", "fc1"]},
}

# Edits of a study, and what is said of them. Those about sweeps try a first step.
ERRORS: list[tuple[dict[str, Any], str]] = [
    ({ARCHITECTURE: "vit_tyni"}, r"sweeps\.one: timm cannot build 'vit_tyni'"),
    ({"backbones.vit.arguments": {"dept": 1}}, "sweeps.one: timm cannot build.*dept"),
    (
        {"backbones.vit.library": "dpsweep"},
        "sweeps.one: found architecture 'vit_tiny_patch16_224' of library 'dpsweep'",
    ),
    (
        {ARCHITECTURE: "resnet18", "backbones.vit.arguments": {}},
        "sweeps.one: ResNet has batch normalisation",
    ),
    ({"datasets.pets.image_size": 48}, r"sweeps\.one: .*48.*32"),
    ({"backbones.vit.mean": [0.5], "backbones.vit.std": [0.5]}, "sweeps.one: .*1 channels"),
    (
        {"methods.film": LORA | {"target_modules": ["query"]}},
        "sweeps.one: LoRA target 'query' matches no layer",
    ),
    (
        DEAD,
        "sweeps.one: nothing but the head would train: .* at blocks.0.attn.qkv, blocks.0.mlp.fc1",
    ),
    (
        {"backbones.vit": TEXT, "datasets.pets": MAILS},
        "sweeps.one: the texts have 9999 tokens, .* reads at most 512",
    ),
    # Its positions begin after the padding's.
    (
        {"backbones.vit": TINY_ROBERTA, "datasets.pets": DOCSTRINGS | {"max_length": 11}},
        "sweeps.one: the texts have 11 tokens, Roberta.* reads at most 10",
    ),
    ({"training.threads": 100_000}, "threads: found 100000; allowed: at most 512"),
    ({"datasets.pets.classes": 99}, "train_size: found 60; .* at least 99"),
    ({"datasets.pets.train_counts": 15}, "train_counts: found 2 numbers, 30 in all"),
    (
        {"datasets.pets.classes": 3},
        r"datasets.pets.classes: the study says 3, 2 found\n  the classes are: cat, dog",
    ),
    ({"datasets.pets.train_size": 61}, "train_size: the study says 61, 60 found"),
    (
        {"datasets.pets": DIGITS | {"train_size": 1348}},
        "datasets.pets.train_size: the study says 1348, 1347 found",
    ),
    (
        {"datasets.pets": DIGITS | {"image_size": 32}},
        "datasets.pets.image_size: found 32, allowed: 8",
    ),
    (
        {"datasets.pets": GLYPHS},
        "train_size: the study says 1347, 900 found\n.*test_size: the study says 450, 90 found",
    ),
    (
        {"datasets.pets": DOCSTRINGS, "backbones.vit": TEXT},
        "datasets.pets.train_size: the study says 40, 20 found",
    ),
    (
        {"datasets.pets.source.path": "dogs"},
        "datasets.pets.source.path: found dogs, which is not there; allowed: a folder",
    ),
    (
        {"backbones.vit.weights": {"kind": "file", "path": "vit.safetensors"}},
        "backbones.vit.weights.path: found vit.safetensors, which is not there; allowed: a file",
    ),
    (
        {"backbones.vit.weights": {"kind": "file", "path": "pets/vit.pth"}},
        "backbones.vit.weights.path: found pets/vit.pth; allowed: a .safetensors file",
    ),
    ({"results": "pets/train/results"}, "results: .* lies in datasets.pets"),
    ({"datasets.pets.title": "\U00014400"}, "figures: no installed font"),
    (
        {"training": {"select_on": "holdout", "holdout_share": 0.001}},
        "training.holdout_share: found 0.001, which leaves no example of pets",
    ),
]


@pytest.mark.parametrize(("edits", "message"), ERRORS, ids=lambda each: str(each)[:60])
def test_what_would_fail_is_an_error(
    study: dict[str, Any], edits: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fonts, "_fonts_for", lambda characters: ())  # whatever is installed here
    if "pth" in str(edits):
        Path("pets/vit.pth").write_bytes(b"")
    lines, errors = said(study, edits, seconds=PATIENCE if "sweeps" in message else 0)
    assert re.search(message, errors), (lines, errors)


def test_a_kind_of_image_that_is_refused_is_known_before_anything_runs(
    study: dict[str, Any],
) -> None:
    for file in Path("pets").glob("*/dog/*.png"):
        Image.new("F", (2, 2)).save(file.with_suffix(".tif"))
        file.unlink()
    _, errors = said(study, {}, seconds=0)
    assert re.search(r"datasets.pets: .*\n  train/dog/0.tif: .*floating-point", errors), errors
    assert said(study, {"datasets.pets.corrupt": "skip"}, seconds=0)[1] == ""


HEATMAP = {
    **{"family": "heatmap", "section": "Figures", "caption": "Accuracy."},
    "panels": [{"title": "pets", "dataset": "large"}],
}
# Edits that are no mistake, and what is said of them.
NOTES: list[tuple[dict[str, Any], str]] = [
    ({}, "pets: 2 classes, and sizes as the study says"),
    ({}, "networks: 1 fit their data and methods; a first step of 1 was tried"),
    ({"privacy.delta": 0.02}, "note: privacy.delta: 0.02 is not below 1/N of pets"),
    ({"results": "../results"}, "note: results: ../results lies outside"),
    (
        {ARCHITECTURE: "convnextv2_atto", "backbones.vit.arguments": {}},
        r"note: sweeps.one: FiLM leaves out GlobalResponseNorm \(stages.0.blocks.0.mlp.grn, .* and 7 "
        r"more\): it trains layer, group",
    ),
    (
        {"training.select_on": "holdout"},
        r"note: training.holdout_share: holds fewer than 10 examples of a class out of pets \(...\);",
    ),
    ({"training.threads": 512}, "note: training.threads: 512, and this machine has"),
    (
        {"datasets.pets.source": {"kind": "hub", "id": "a/pets"}},
        "pets: looked at when fetched, before anything is trained",
    ),
    ({"figures.large": HEATMAP}, r"(?m)^drawn: nothing\nnot drawn: large\n  .*large"),
    # Networks with a decoder.
    (
        {"backbones.vit": TINY_T5, "datasets.pets": DOCSTRINGS | {"train_size": 20}}
        | {"methods.film": {"kind": "all"}},
        "networks: 1 fit their data and methods; a first step of 1 was tried",
    ),
    # Pretrained adapters are not dead.
    (DEAD | {"backbones.vit.weights": {"kind": "hub", "id": "a/vit"}}, "networks: 1 fit"),
]


@pytest.mark.parametrize(("edits", "message"), NOTES, ids=lambda each: str(each)[:60])
def test_what_may_not_be_meant_is_a_note(
    study: dict[str, Any], edits: dict[str, Any], message: str
) -> None:
    tried = "sweeps" in message or "networks" in message
    lines, errors = said(study, edits, seconds=PATIENCE if tried else 0)
    assert errors == "" and re.search(message, lines), (lines, errors)
    assert edits or "note: " not in lines


def test_what_holds_for_several_is_said_once(study: dict[str, Any]) -> None:
    names = ("one", "two", "three")
    pets, vit, sweep = study["datasets"]["pets"], study["backbones"]["vit"], study["sweeps"]["one"]
    for each in names:
        study["datasets"][each] = pets | {"source": {"kind": "hub", "id": f"a/{each}"}}
        study["backbones"][each] = vit | {"weights": {"kind": "hub", "id": f"b/{each}"}}
        study["sweeps"][each] = sweep | {"dataset": each, "backbone": each}
    edits = {"privacy.delta": 0.02, "training.select_on": "holdout"}
    lines, errors = said(study, edits, seconds=0)
    assert errors == ""
    assert "one, three, two: looked at when fetched" in lines
    for once in ("looked at when fetched", "does not answer", "not below 1/N", "by so few"):
        assert lines.count(once) == 1, lines
    assert "model.safetensors of b/one, model.safetensors of b/three, model.saf" in lines


def test_too_small_a_disk_is_an_error(
    study: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(0, 0, 10_000))
    assert "results: 0.0 GB are needed" in said(study, {}, seconds=0)[1]


def test_an_engine_that_refuses_is_an_error(
    study: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Any:
        raise ValueError("no gradients here")

    monkeypatch.setattr("dpsweep.training.first_step.make_engine", refuse)
    assert said(study, {})[1] == "sweeps.one: no gradients here"


def answering(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    """The hub has a repository with these files, or this error."""
    info = Mock(side_effect=answer)
    if isinstance(answer, list):
        info = Mock(return_value=Mock(siblings=[Mock(rfilename=name) for name in answer]))
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", info)


def refused(status: int) -> HfHubHTTPError:
    return HfHubHTTPError(f"{status}: no such repository", response=Mock(status_code=status))


def test_what_is_of_the_hub_is_looked_at_where_the_hub_answers(
    study: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, errors = said(study, {ARCHITECTURE: "hf-hub:timm/vit"})
    assert errors == ""
    assert "note: backbones.vit.architecture: not looked at: cannot fetch config.json" in lines
    answering(monkeypatch, refused(404))
    assert re.search(r"^backbones.vit.architecture: cannot .* 404: no", said(study, {})[1])


@pytest.mark.parametrize(
    ("answer", "note", "error"),
    [
        (None, "https://huggingface.co does not answer", ""),
        (["model.safetensors"], "", ""),
        (
            ["pytorch_model.bin"], "",
            "backbones.vit.weights: found a/vit, which has no model.safetensors; it has pytorch_model.bin",
        ),
        (refused(404), "", "backbones.vit.weights: found a/vit, which the hub refuses (404"),
        # These say nothing of the repository.
        (refused(429), "does not answer (HfHubHTTPError)", ""),
        (refused(503), "does not answer (HfHubHTTPError)", ""),
    ],
    ids=["nobody", "there", "pickled", "404", "429", "503"],
)  # fmt: skip
def test_weights_of_the_hub_are_looked_at_where_the_hub_answers(
    study: dict[str, Any], answer: Any, note: str, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if answer is not None:
        answering(monkeypatch, answer)
    weights = {"backbones.vit.weights": {"kind": "hub", "id": "a/vit"}}
    lines, errors = said(study, weights, seconds=0)
    assert errors.startswith(error) and bool(errors) == bool(error)
    notes = [line for line in lines.splitlines() if line.startswith("note: not looked at: ")]
    assert len(notes) == bool(note)
    assert not note or (
        note in notes[0] and "model.safetensors of a/vit, because https" in notes[0]
    )


def test_a_mistake_of_several_sweeps_is_said_once(study: dict[str, Any]) -> None:
    other = {"dataset": "pets", "backbone": "vit", "method": "head", **CELLS}
    edits = {ARCHITECTURE: "vit_tyni", "methods.head": {"kind": "head"}, "sweeps.two": other}
    (line,) = said(study, edits)[1].splitlines()
    assert line.startswith("sweeps.one and 1 more: timm cannot build 'vit_tyni'")


def test_without_time_no_step_is_tried_and_that_is_said(study: dict[str, Any]) -> None:
    lines, errors = said(study, {}, seconds=1e-9)
    assert errors == "" and "no time was left for a first step of one" in lines
    assert "network" not in said(study, {}, seconds=0)[0]


def test_prepared_data_is_not_asked_for_again(study: dict[str, Any]) -> None:
    Path("study.yaml").write_text(yaml.safe_dump(study))
    prepare("pets", load_study(Path("study.yaml")).datasets["pets"], Path("results/data/pets"))
    Path("pets").rename("elsewhere")
    assert said(study, {}, seconds=0)[1] == ""
    _, errors = said(study, {"datasets.pets.train_size": 61}, seconds=0)
    assert "datasets.pets: pets: no such folder" in errors  # preparing it again would fail
