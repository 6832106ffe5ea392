"""What can be known of a study without training is said before anything runs."""

import re
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
    for split, count in (("train", 30), ("test", 5)):
        for name in ("cat", "dog"):
            (tmp_path / "pets" / split / name).mkdir(parents=True)
            for number in range(count):
                Image.new("L", (2, 2)).save(tmp_path / "pets" / split / name / f"{number}.png")
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
    Path("study.yaml").write_text(yaml.safe_dump(study))
    lines: list[str] = []
    try:
        loaded = load_study(Path("study.yaml"))
        lines.extend(check(loaded, Paths(Path(loaded.results)), seconds))
    except StudyError as error:
        return "\n".join(lines), str(error)
    return "\n".join(lines), ""


def test_a_good_study_has_no_errors_and_no_notes(study: dict[str, Any]) -> None:
    lines, errors = said(study, {})
    assert errors == "" and "note" not in lines
    assert "pets: 2 classes, and sizes as the study says" in lines
    assert "1 fit their data and methods; a first step of 1 was tried" in lines


ARCHITECTURE = "backbones.vit.architecture"
LORA = {"kind": "lora", "rank": 1}
TEXT = {"title": "BERT", "library": "transformers", "architecture": "distilbert"}

DIGITS = {
    **{"title": "Digits", "source": {"kind": "sklearn-digits"}, "image_size": 8},
    **{"classes": 10, "train_size": 1347, "test_size": 450},
}
GLYPHS = DIGITS | {"source": {"kind": "glyphs", "characters": "abc"}, "classes": 3}
DOCSTRINGS = {
    **{"title": "Docstrings", "kind": "text", "classes": 2, "train_size": 40, "test_size": 4},
    **{"tokenizer": "vit", "max_length": 8},
    "source": {
        **{"kind": "docstrings", "modules": ["numpy.linalg", "numpy.fft"]},
        **{"train_per_class": 10, "test_per_class": 2},
    },
}
TINY_ROBERTA = {
    **{"title": "RoBERTa", "library": "transformers", "architecture": "roberta"},
    "arguments": {
        **{"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 20},
        **{"intermediate_size": 8, "max_position_embeddings": 12},
    },
    **{"weights": {"kind": "random"}, "tokenizer": {"kind": "hub", "id": "a/b"}},
}
TINY_T5 = TINY_ROBERTA | {
    **{"title": "T5", "architecture": "t5"},
    "arguments": {
        **{"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2, "vocab_size": 20},
        **{"pad_token_id": 0, "eos_token_id": 3},
    },
}

ERRORS: dict[str, tuple[dict[str, Any], str]] = {
    "no such architecture": (
        {ARCHITECTURE: "vit_tyni"},
        r"sweeps\.one: timm cannot build 'vit_tyni'",
    ),
    "no such argument": (
        {"backbones.vit.arguments": {"dept": 1}},
        "sweeps.one: timm cannot build.*dept",
    ),
    "no such library": (
        {"backbones.vit.library": "dpsweep"},
        "sweeps.one: found architecture 'vit_tiny_patch16_224' of library 'dpsweep'",
    ),
    "batch normalisation": (
        {
            ARCHITECTURE: "resnet18",
            "backbones.vit.arguments": {},
            "backbones.vit.weights": {"kind": "random"},
        },
        "sweeps.one: ResNet has batch normalisation",
    ),
    "another size of image": ({"datasets.pets.image_size": 48}, r"sweeps\.one: .*48.*32"),
    "channels": (
        {"backbones.vit.mean": [0.5], "backbones.vit.std": [0.5]},
        "sweeps.one: .*1 channels",
    ),
    "no such layer": (
        {"methods.film": LORA | {"target_modules": ["query"]}},
        "sweeps.one: LoRA target 'query' matches no layer",
    ),
    "adapters that nothing can move": (
        {
            # Scales of float32 that are zero, as of residual blocks that start as the identity.
            "backbones.vit.arguments": TINY | {"init_values": 1e-46},
            "methods.film": LORA | {"target_modules": ["qkv", "fc1"]},
        },
        "sweeps.one: nothing but the head would train: .* at blocks.0.attn.qkv, blocks.0.mlp.fc1",
    ),
    "too long a text": (
        {
            "backbones.vit": TEXT
            | {"weights": {"kind": "random"}, "tokenizer": {"kind": "hub", "id": "a/b"}},
            "datasets.pets": {
                **{"title": "Mails", "kind": "text", "classes": 2, "train_size": 40},
                **{"test_size": 4, "tokenizer": "vit", "max_length": 9999},
                "source": {"kind": "hub", "id": "a/mails"},
            },
        },
        "sweeps.one: the texts have 9999 tokens, .* reads at most 512",
    ),
    "a text that is too long for positions after the padding's": (
        {"backbones.vit": TINY_ROBERTA, "datasets.pets": DOCSTRINGS | {"max_length": 11}},
        "sweeps.one: the texts have 11 tokens, Roberta.* reads at most 10",
    ),
    "threads": ({"training.threads": 100_000}, "threads: found 100000; allowed: at most 512"),
    "more classes than images": (
        {"datasets.pets.classes": 99},
        "train_size: found 60; .* at least 99",
    ),
    "unequal counts": (
        {"datasets.pets.train_counts": 15},
        "train_counts: found 2 numbers, 30 in all",
    ),
    "another number of classes": (
        {"datasets.pets.classes": 3},
        r"datasets.pets.classes: the study says 3, 2 found\n  the classes are: cat, dog",
    ),
    "another size": ({"datasets.pets.train_size": 61}, "train_size: the study says 61, 60 found"),
    "another size of digits": (
        {"datasets.pets": DIGITS | {"train_size": 1348}},
        "datasets.pets.train_size: the study says 1348, 1347 found",
    ),
    "digits of another size in pixels": (
        {"datasets.pets": DIGITS | {"image_size": 32}},
        "datasets.pets.image_size: found 32, allowed: 8",
    ),
    "another size of glyphs": (
        {"datasets.pets": GLYPHS},
        "train_size: the study says 1347, 900 found\n.*test_size: the study says 450, 90 found",
    ),
    "another size of docstrings": (
        {
            "datasets.pets": DOCSTRINGS,
            "backbones.vit": TEXT
            | {"weights": {"kind": "random"}, "tokenizer": {"kind": "hub", "id": "a/b"}},
        },
        "datasets.pets.train_size: the study says 40, 20 found",
    ),
    "no such folder": (
        {"datasets.pets.source.path": "dogs"},
        "datasets.pets.source.path: found dogs, which is not there; allowed: a folder",
    ),
    "no such weights": (
        {"backbones.vit.weights": {"kind": "file", "path": "vit.safetensors"}},
        "backbones.vit.weights.path: found vit.safetensors, which is not there; allowed: a file",
    ),
    "pickled weights": (
        {"backbones.vit.weights": {"kind": "file", "path": "pets/vit.pth"}},
        "backbones.vit.weights.path: found pets/vit.pth; allowed: a .safetensors file",
    ),
    "results among the data": (
        {"results": "pets/train/results"},
        "results: .* lies in datasets.pets",
    ),
    "a title that no font has": (
        {"datasets.pets.title": "\U00014400"},
        "figures: no installed font",
    ),
    "nothing held out": (
        {"training": {"select_on": "holdout", "holdout_share": 0.001}},
        "training.holdout_share: found 0.001, which leaves no example of pets",
    ),
}


@pytest.mark.parametrize("kind", ERRORS)
def test_what_would_fail_is_an_error(
    study: dict[str, Any], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fonts, "_fonts_for", lambda characters: ())  # whatever is installed here
    edits, message = ERRORS[kind]
    if "pth" in str(edits):
        Path("pets/vit.pth").write_bytes(b"")
    lines, errors = said(study, edits, seconds=PATIENCE if "sweeps" in message else 0)
    assert re.search(message, errors), (lines, errors)


def test_a_kind_of_image_that_is_refused_is_known_before_anything_runs(
    study: dict[str, Any],
) -> None:
    for split in ("train", "test"):
        for file in (Path("pets") / split / "dog").iterdir():
            Image.new("F", (2, 2)).save(file.with_suffix(".tif"))
            file.unlink()
    _, errors = said(study, {}, seconds=0)
    assert re.search(r"datasets.pets: .*\n  train/dog/0.tif: .*floating-point", errors), errors
    _, errors = said(study, {"datasets.pets.corrupt": "skip"}, seconds=0)
    assert errors == ""


NOTES: dict[str, tuple[dict[str, Any], str]] = {
    "delta": ({"privacy.delta": 0.02}, "note: privacy.delta: 0.02 is not below 1/N of pets"),
    "results elsewhere": ({"results": "../results"}, "note: results: ../results lies outside"),
    "normalisation that FiLM does not know": (
        {ARCHITECTURE: "convnextv2_atto", "backbones.vit.arguments": {}},
        r"note: sweeps.one: FiLM leaves out GlobalResponseNorm \(stages.0.blocks.0.mlp.grn, .* and 7 "
        r"more\): it trains layer, group",
    ),
    "few held out": (
        {"training.select_on": "holdout"},
        r"note: training.holdout_share: holds fewer than 10 examples of a class out of pets \(...\);",
    ),
    "threads": (
        {"training.threads": 512},
        "note: training.threads: 512, and this machine has",
    ),
    "a hub": (
        {"datasets.pets.source": {"kind": "hub", "id": "a/pets"}},
        "pets: looked at when fetched, before anything is trained",
    ),
}


@pytest.mark.parametrize("kind", NOTES)
def test_what_may_not_be_meant_is_a_note(study: dict[str, Any], kind: str) -> None:
    edits, message = NOTES[kind]
    lines, errors = said(study, edits, seconds=PATIENCE if "sweeps" in message else 0)
    assert errors == "" and re.search(message, lines), (lines, errors)


def test_what_holds_for_several_is_said_once(
    study: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    names = ("one", "two", "three")
    pets, vit, sweep = study["datasets"]["pets"], study["backbones"]["vit"], study["sweeps"]["one"]
    study["datasets"] |= {
        each: pets | {"source": {"kind": "hub", "id": f"a/{each}"}} for each in names
    }
    study["backbones"] |= {
        each: vit | {"weights": {"kind": "hub", "id": f"b/{each}"}} for each in names
    }
    study["sweeps"] |= {each: sweep | {"dataset": each, "backbone": each} for each in names}
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


def test_a_network_of_the_hub_is_looked_at_where_the_hub_answers(
    study: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    edits = {ARCHITECTURE: "hf-hub:timm/vit"}
    lines, errors = said(study, edits)
    assert errors == ""
    assert "note: backbones.vit.architecture: not looked at: cannot fetch config.json" in lines

    def refuse(*_: Any, **__: Any) -> Any:
        raise HfHubHTTPError("404: no such repository", response=Mock(status_code=404))

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", refuse)
    assert re.search(r"^backbones.vit.architecture: cannot .* 404: no", said(study, edits)[1])


def test_weights_of_the_hub_are_looked_at_where_the_hub_answers(
    study: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    edits = {"backbones.vit.weights": {"kind": "hub", "id": "a/vit"}}
    lines, errors = said(study, edits, seconds=0)
    assert errors == ""
    (note,) = [line for line in lines.splitlines() if line.startswith("note: not looked at: ")]
    assert "model.safetensors of a/vit, because https://huggingface.co does not answer" in note

    def info(*names: str) -> Any:
        return lambda *_, **__: Mock(siblings=[Mock(rfilename=name) for name in names])

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", info("model.safetensors"))
    assert "not looked at" not in said(study, {}, seconds=0)[0] + said(study, {}, seconds=0)[1]
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", info("pytorch_model.bin"))
    assert said(study, {}, seconds=0)[1] == (
        "backbones.vit.weights: found a/vit, which has no model.safetensors; it has pytorch_model.bin"
    )

    def refuse(*_: Any, **__: Any) -> Any:
        raise HfHubHTTPError("404: no such repository", response=Mock(status_code=404))

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", refuse)
    assert "weights: found a/vit, which the hub refuses (404" in said(study, {}, seconds=0)[1]
    for status in (429, 503):  # which say nothing of the repository
        error = HfHubHTTPError("busy", response=Mock(status_code=status))
        monkeypatch.setattr("huggingface_hub.HfApi.model_info", Mock(side_effect=error))
        lines, errors = said(study, {}, seconds=0)
        assert errors == "" and "does not answer (HfHubHTTPError)" in lines


def test_a_mistake_of_several_sweeps_is_said_once(study: dict[str, Any]) -> None:
    other = {"dataset": "pets", "backbone": "vit", "method": "head", **CELLS}
    edits = {ARCHITECTURE: "vit_tyni", "methods.head": {"kind": "head"}, "sweeps.two": other}
    (line,) = said(study, edits)[1].splitlines()
    assert line.startswith("sweeps.one and 1 more: timm cannot build 'vit_tyni'")


def test_pretrained_adapters_are_not_taken_for_dead(study: dict[str, Any]) -> None:
    edits = ERRORS["adapters that nothing can move"][0]
    weights = {"kind": "hub", "id": "a/vit"}
    assert said(study, edits | {"backbones.vit.weights": weights})[1] == ""


def test_without_time_no_step_is_tried_and_that_is_said(study: dict[str, Any]) -> None:
    lines, errors = said(study, {}, seconds=1e-9)
    assert errors == "" and "no time was left for a first step of one" in lines
    assert "network" not in said(study, {}, seconds=0)[0]


def test_what_is_not_drawn_is_named_with_its_reason(study: dict[str, Any]) -> None:
    heatmap = {"family": "heatmap", "section": "Figures", "caption": "Accuracy."}
    panels = [{"title": "pets", "dataset": "large"}]
    lines, errors = said(study, {"figures.large": heatmap | {"panels": panels}}, seconds=0)
    assert errors == ""
    assert re.search(r"^drawn: nothing\nnot drawn: large\n  .*large", lines, re.MULTILINE), lines


def test_prepared_data_is_not_asked_for_again(study: dict[str, Any]) -> None:
    Path("study.yaml").write_text(yaml.safe_dump(study))
    prepare("pets", load_study(Path("study.yaml")).datasets["pets"], Path("results/data/pets"))
    Path("pets").rename("elsewhere")
    assert said(study, {}, seconds=0)[1] == ""
    _, errors = said(study, {"datasets.pets.train_size": 61}, seconds=0)
    assert "datasets.pets: pets: no such folder" in errors  # preparing it again would fail


def test_networks_with_a_decoder_pass(study: dict[str, Any]) -> None:
    texts = DOCSTRINGS | {"train_size": 20}
    edits = {"backbones.vit": TINY_T5, "datasets.pets": texts, "methods.film": {"kind": "all"}}
    lines, errors = said(study, edits)
    assert errors == ""
    assert "1 fit their data and methods; a first step of 1 was tried" in lines
