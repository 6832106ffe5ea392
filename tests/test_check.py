"""`dpsweep check` finds errors of a study without training."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

from dpsweep.cli.check import check
from dpsweep.data.prepare import prepare
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
    study: dict[str, Any], edits: dict[str, Any], message: str
) -> None:
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
    assert re.search(r"datasets.pets: .*\n  train/dog/0.tif: .*pixels of mode F", errors), errors
    assert said(study, {"datasets.pets.corrupt": "skip"}, seconds=0)[1] == ""


@cases("notes")
def test_settings_that_may_be_unintended_are_notes(
    study: dict[str, Any], edits: dict[str, Any], message: str
) -> None:
    tried = "sweeps" in message or "networks" in message
    lines, errors = said(study, edits, seconds=PATIENCE if tried else 0)
    assert errors == "" and re.search(message, lines), (lines, errors)
    assert edits or "note: " not in lines


def test_an_engine_that_refuses_is_an_error(
    study: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Any:
        raise ValueError("no gradients here")

    monkeypatch.setattr("dpsweep.training.dry_run.make_engine", refuse)
    assert said(study, {})[1] == "sweeps.one: no gradients here"


def test_the_source_of_prepared_data_may_be_missing(study: dict[str, Any]) -> None:
    Path("study.yaml").write_text(yaml.safe_dump(study))
    prepare("pets", load_study(Path("study.yaml")).datasets["pets"], Path("results/data/pets"))
    Path("pets").rename("elsewhere")
    assert said(study, {}, seconds=0)[1] == ""
    _, errors = said(study, {"datasets.pets.train_size": 61}, seconds=0)
    assert "datasets.pets: pets: no such folder" in errors  # preparing it again would fail
