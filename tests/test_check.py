"""`dpsweep check` finds errors of a study without training."""

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
from dpsweep.figures import style
from dpsweep.study import StudyError, load_study
from dpsweep.study.paths import Paths
from tests.described import described
from tests.waiting import PATIENCE

CELLS = {
    "epsilon": [8], "epochs": [1], "batch_size": ["full"], "clipping_bound": [1],
    "learning_rate": [0.1], "seeds": 1,
}  # fmt: skip
CASES = yaml.safe_load(Path(__file__).with_name("checks.yaml").read_text(encoding="utf-8"))
TINY, ARCHITECTURE = CASES["shared"]["tiny"], "backbones.vit.architecture"


def cases(kind: str) -> Any:
    """Parametrise a test with the edits of a kind and their messages."""
    listed = [(case["edits"], case["said"]) for case in CASES[kind]]
    return pytest.mark.parametrize(("edits", "message"), listed, ids=lambda each: str(each)[:60])


@pytest.fixture(autouse=True)
def no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the hub unreachable."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return a study with sixty images, a small transformer, and FiLM."""
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
    """Return the lines about an edited study, and its errors."""
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


@cases("errors")
def test_settings_that_would_fail_are_errors(
    study: dict[str, Any], edits: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        style, "_fonts_for", lambda characters: ()
    )  # independent of installed fonts
    if "pth" in str(edits):
        Path("pets/vit.pth").write_bytes(b"")
    lines, errors = said(study, edits, seconds=PATIENCE if "sweeps" in message else 0)
    assert re.search(message, errors), (lines, errors)


def test_unsupported_images_are_errors_before_a_run(
    study: dict[str, Any],
) -> None:
    for file in Path("pets").glob("*/dog/*.png"):
        Image.new("F", (2, 2)).save(file.with_suffix(".tif"))
        file.unlink()
    _, errors = said(study, {}, seconds=0)
    assert re.search(r"datasets.pets: .*\n  train/dog/0.tif: .*floating-point", errors), errors
    assert said(study, {"datasets.pets.corrupt": "skip"}, seconds=0)[1] == ""


@cases("notes")
def test_settings_that_may_be_unintended_are_notes(
    study: dict[str, Any], edits: dict[str, Any], message: str
) -> None:
    tried = "sweeps" in message or "networks" in message
    lines, errors = said(study, edits, seconds=PATIENCE if tried else 0)
    assert errors == "" and re.search(message, lines), (lines, errors)
    assert edits or "note: " not in lines


def test_a_note_about_several_sections_is_printed_once(study: dict[str, Any]) -> None:
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
    """Make the hub answer with a repository of these files, or with this error."""
    info = Mock(side_effect=answer)
    if isinstance(answer, list):
        info = Mock(return_value=Mock(siblings=[Mock(rfilename=name) for name in answer]))
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", info)


def refused(status: int) -> HfHubHTTPError:
    return HfHubHTTPError(f"{status}: no such repository", response=Mock(status_code=status))


def test_a_network_of_the_hub_is_checked_if_the_hub_answers(
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
        # These do not depend on the repository.
        (refused(429), "does not answer (HfHubHTTPError)", ""),
        (refused(503), "does not answer (HfHubHTTPError)", ""),
    ],
    ids=["no answer", "found", "pickled", "404", "429", "503"],
)  # fmt: skip
def test_weights_of_the_hub_are_checked_if_the_hub_answers(
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


def test_an_error_of_several_sweeps_is_printed_once(study: dict[str, Any]) -> None:
    other = {"dataset": "pets", "backbone": "vit", "method": "head", **CELLS}
    edits = {ARCHITECTURE: "vit_tyni", "methods.head": {"kind": "head"}, "sweeps.two": other}
    (line,) = said(study, edits)[1].splitlines()
    assert line.startswith("sweeps.one and 1 more: timm cannot build 'vit_tyni'")


def test_a_note_lists_networks_that_were_not_tried_in_time(study: dict[str, Any]) -> None:
    lines, errors = said(study, {}, seconds=1e-9)
    assert errors == "" and "no time was left for a first step of one" in lines
    assert "network" not in said(study, {}, seconds=0)[0]


def test_the_source_of_prepared_data_may_be_missing(study: dict[str, Any]) -> None:
    Path("study.yaml").write_text(yaml.safe_dump(study))
    prepare("pets", load_study(Path("study.yaml")).datasets["pets"], Path("results/data/pets"))
    Path("pets").rename("elsewhere")
    assert said(study, {}, seconds=0)[1] == ""
    _, errors = said(study, {"datasets.pets.train_size": 61}, seconds=0)
    assert "datasets.pets: pets: no such folder" in errors  # preparing it again would fail
