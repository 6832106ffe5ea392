"""The files of a release: the card, its code, and what it says of the accuracy."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from tests.release.releases import FIXED, forge, put, study

from dpsweep.base.files import read_checked_json
from dpsweep.cli.main import app
from dpsweep.data.images import Transform
from dpsweep.data.prepared import PreparedDataset, Resize
from dpsweep.data.texts import Tokenizer, byte_tokenizer, save_tokenizer, train_word_pieces
from dpsweep.models.architectures import create, seeded
from dpsweep.models.build import apply_method, trainable_parameters
from dpsweep.models.preprocess import Widen, make_preprocess
from dpsweep.release import CARD, CERTIFICATE, FROZEN, TOKENIZER, TRAINED, files
from dpsweep.release.certificate import Network
from dpsweep.release.certificate import TestSet as MeasuredTestSet
from dpsweep.release.files import head_layers, loading_code, reading_code, save_parameters
from dpsweep.report import page
from dpsweep.study.networks import AllParameters, Architecture, Film, HeadOnly, LoRA

VIT = Architecture(
    library="timm",
    name="vit_tiny_patch16_224",
    arguments={"img_size": 8, "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2},
)
TEXT = Architecture(
    library="transformers",
    name="distilbert",
    arguments={"vocab_size": 50, "dim": 16, "hidden_dim": 16, "n_layers": 1, "n_heads": 2},
)
VECTORS = Architecture(
    library="dpsweep",
    name="identity",
    arguments={"dimension": 6, "transformation": "group-norm", "groups": 2},
)
NGRAMS = Architecture(library="dpsweep", name="hashed_ngrams", arguments={"dimension": 8})
SCATTERING = Architecture(library="dpsweep", name="scattering", arguments={"image_size": 8})
WIDE = Architecture(library="dpsweep", name="wide_resnet", arguments={"depth": 10, "width": 1})


def described(architecture: Architecture, **changed: Any) -> Network:
    """Return the network of a certificate."""
    return Network.model_validate(
        {"library": architecture.library, "architecture": architecture.name}
        | {"arguments": architecture.arguments, "classes": ["a", "b", "c"], "kind": "image"}
        | {"mean": [0.5], "std": [0.5], "shape": [8, 8, 3], "resize": None, "tokenizer": None}
        | {"method": {"kind": "film"}, "head_layers": [], "backbone": "0" * 64}
        | {"weights": "0" * 64, "pretraining": {"kind": "random"}, "trained_parameters": 1}
        | changed
    )


@pytest.mark.parametrize(
    ("architecture", "method"),
    [
        (VIT, Film(kind="film")),
        (VIT, LoRA(kind="lora", rank=2, target_modules=["qkv"])),
        (TEXT, LoRA(kind="lora", rank=2, target_modules=["q_lin"])),
        (WIDE, AllParameters(kind="all")),
        (SCATTERING, HeadOnly(kind="head")),
        (NGRAMS, HeadOnly(kind="head")),
        (VECTORS, HeadOnly(kind="head")),
    ],
    ids=["timm", "timm-lora", "transformers-lora", "dpsweep", "scattering", "ngrams", "identity"],
)
def test_the_code_loads_every_parameter(architecture, method, tmp_path, monkeypatch):
    with seeded(0):
        model = create(architecture, classes=3)
        apply_method(model, method)
    trained = {name: torch.randn_like(each) for name, each in trainable_parameters(model).items()}
    save_parameters(model, trained, tmp_path)
    network = described(
        architecture, method=method.model_dump(mode="json"), head_layers=head_layers(model)
    )
    monkeypatch.chdir(tmp_path)
    loaded: dict[str, Any] = {}
    code = loading_code(network)
    assert len(code.splitlines()) <= 10
    assert FROZEN in code and TRAINED in code
    exec(code, loaded)  # noqa: S102 (our own code)
    expected = model.state_dict() | trained
    found = loaded["model"].state_dict()
    assert len(found) == len(expected)
    for name, each in expected.items():
        assert torch.equal(found[name.removeprefix("network.")], each), name


@pytest.mark.parametrize("crop", [None, 0.875], ids=["whole", "crop"])
@pytest.mark.parametrize("stored", [None, (12, 12)], ids=["resized", "resized-with-its-batch"])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_an_image_is_prepared_as_in_training(mode, stored, crop, tmp_path, monkeypatch, capsys):
    resize = Resize(size=24, interpolation="bicubic", crop=crop)
    height, width = stored or (41, 30)
    pixels = np.random.default_rng(0).integers(256, size=(height, width, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    transform = Transform(resize, stored)
    mean, std = [0.5, 0.4, 0.3], [0.2, 0.3, 0.4]
    if mode == "L":
        image, mean, std = image.convert("L"), mean[:1], std[:1]
    monkeypatch.chdir(tmp_path)
    image.save("image.png")
    seen: list[torch.Tensor] = []

    def second_class(inputs):
        seen.append(inputs)
        return torch.tensor([[0.1, 0.7, 0.2]])

    network = described(VIT, mean=mean, std=std, resize=resize)
    Path(CERTIFICATE).write_text(json.dumps({"network": {"classes": network.classes}}))
    exec(reading_code(network), {"model": second_class})  # noqa: S102 (our own code)
    assert capsys.readouterr().out == "b\n"
    # dpsweep stores images with three channels, except those that it generates.
    batch = torch.from_numpy(transform(Path("image.png"))[None, :, :, : len(mean)].copy())
    expected = make_preprocess(mean, std, resize if stored else None, batch.shape[1:])(batch)
    assert seen[0].shape == expected.shape == (1, len(mean), 24, 24)
    level = 1 / 255 / min(std)  # images that are resized in a batch are not rounded at the end
    assert torch.allclose(seen[0], expected, atol=level if stored else 1e-6)


@pytest.mark.parametrize(
    ("architecture", "kind", "length"),
    [(TEXT, "words", 6), (NGRAMS, "bytes", 8), (VECTORS, "embedding", 6)],
)
def test_other_inputs_are_prepared_as_in_training(
    architecture, kind, length, tmp_path, monkeypatch, capsys
):
    """The card loads the model, reads "Some text." or embedding.npy, and prints the class of training."""
    monkeypatch.chdir(tmp_path)
    texts = ["Some text.", "Some more of the text, and longer than is read."]
    fields: dict[str, Any] = {"kind": "embedding"}
    embedding = np.random.default_rng(0).normal(size=6).astype(np.float16)
    np.save("embedding.npy", embedding)
    stored, inputs = embedding[None], ["embedding.npy"]
    if kind != "embedding":
        library = train_word_pieces(texts, 50) if kind == "words" else byte_tokenizer()
        save_tokenizer(library, tmp_path / "prepared.json")
        tokenizer = Tokenizer.open(tmp_path / "prepared.json")
        tokenizer.export(Path(TOKENIZER))
        fields = {"kind": "text", "tokenizer": tokenizer.identity}
        (stored,), inputs = tokenizer.blocks(texts, length), texts
        assert (stored[1] >= 0).all()  # the second text is cut
    network = described(architecture, shape=[length], mean=[], std=[], **fields)
    Path(CERTIFICATE).write_text(json.dumps({"network": {"classes": network.classes}}))
    with seeded(0):
        model = create(architecture, classes=3).eval()
    save_parameters(model, trainable_parameters(model), tmp_path)
    code = f"{loading_code(network)}\n{reading_code(network)}"
    exec(code, names := dict[str, Any]())  # noqa: S102 (our own code)
    expected = Widen()(torch.from_numpy(stored))
    for each, row in zip(inputs, expected, strict=True):
        (prepared,) = names["prepare"](each)
        assert torch.equal(prepared[: len(row)], row[row >= 0] if kind != "embedding" else row)
    with torch.no_grad():
        best = model(expected[:1]).argmax().item()
    assert capsys.readouterr().out == f"{network.classes[best]}\n"


def measured(right: int, size: int, largest: int) -> Any:
    test_set = MeasuredTestSet(size=size, largest_class=largest)
    return SimpleNamespace(test_accuracy=right / size, test_set=test_set)


def test_the_interval_is_wilsons():
    """Newcombe (1998), table I, method 3: 81 of 263, 15 of 148, 0 of 20, 1 of 29."""
    for right, size, interval in (
        (81, 263, "0.255 to 0.366"),
        (15, 148, "0.062 to 0.160"),
        (0, 20, "0.000 to 0.161"),
        (1, 29, "0.006 to 0.172"),
    ):
        assert f"interval {interval})" in files.accuracy_in_words(measured(right, size, 1))


@pytest.mark.parametrize(
    ("right", "size", "largest", "verdict"),
    [
        (418, 800, 418, "is no better than"),
        (300, 800, 418, "is no better than"),
        (20, 30, 15, "is not shown to be better than"),  # one image is 3.3 points
        (28, 30, 15, None),
        (6640, 10_000, 5000, None),
        (10_000, 10_000, 10_000, "is no better than"),  # the test set has one class
    ],
)
def test_a_model_is_compared_with_the_largest_class(right, size, largest, verdict):
    advice = files.advice_if_no_better(measured(right, size, largest))
    assert (advice is None) == (verdict is None)
    if verdict:
        assert (
            advice is not None and f"This model {verdict} always naming the largest class" in advice
        )
        assert "learning rate" in advice and "dpsweep recommend" in advice


def test_card_log_and_verification_say_what_the_model_is_worth(paths, capsys, monkeypatch):
    file = paths.results.with_name("study.yaml")
    fixed = study(FIXED)
    sections = fixed.model_dump(mode="json", exclude_defaults=True)
    budget = {"epsilon": FIXED["epsilon"], "delta": fixed.privacy.delta}
    file.write_text(yaml.safe_dump(sections | {"results": paths.results.name, "budget": budget}))
    monkeypatch.setattr("dpsweep.training.processes.refuse_network", lambda: None)
    monkeypatch.chdir(file.parent)
    app(["release", "--study", str(file)], standalone_mode=False)
    folder, log = paths.release, capsys.readouterr().out
    counts = np.bincount(PreparedDataset.open(paths.dataset("digits")).test_labels)
    found = read_checked_json(folder / CERTIFICATE)
    assert found["test_set"] == {"size": counts.sum(), "largest_class": counts.max()}
    elsewhere = paths.results / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)  # paths in the study still start at its folder
    app(["verify", "../release", "--study", "../../study.yaml"], standalone_mode=False)
    assert "nothing is left for a next model" in capsys.readouterr().out
    share = f"always naming the largest class: {counts.max() / counts.sum():.3f}"
    assert share in log and any(share in each for each in page._worth(paths))
    for right, useless in ((counts.max(), True), (counts.sum() - 1, False)):
        forge(folder, put("test_accuracy", value=right / counts.sum()))
        forge(folder, put("earlier_sweeps", value=["first"]))
        app(["verify", str(folder), "--no-ledger"], standalone_mode=False)
        said, card = capsys.readouterr().out, (folder / CARD).read_text()
        assert share in said and share in card
        guarantee = f"({FIXED['epsilon']:g}, {fixed.privacy.delta:g})-differentially private"
        assert f"{folder}: {guarantee}, add or remove one example; epsilon" in said
        assert "not covered: choices made by looking at the sweep first" in said
        assert said.startswith("This model is no better") == useless
        assert card.split("\n\n")[1].startswith("**This model is no better") == useless
