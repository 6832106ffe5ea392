"""Which settings change which file names."""

import inspect
import os
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.described import described
from tests.study.small import DELETE, SMALL, Edits, edited

import dpsweep
from dpsweep.base.errors import DpsweepError
from dpsweep.base.formatting import one_line
from dpsweep.data.prepared import Resize
from dpsweep.figures import draw
from dpsweep.gradients import make_engine
from dpsweep.models.build import build_model
from dpsweep.planning.outputs import Output, Outputs
from dpsweep.study import Study, fingerprints
from dpsweep.study.cells import Cell
from dpsweep.study.clipping import FlatClipping
from dpsweep.study.fingerprints import (
    _DRAWING,
    _WRITING,
    audit_fingerprint,
    prepared_fingerprint,
    report_fingerprint,
    source_files,
    source_fingerprint,
    sources,
    tokenizer_fingerprint,
)
from dpsweep.study.paths import Paths
from dpsweep.training.optimizer import PrivateOptimizer
from dpsweep.training.randomness import GaussianNoise

PATHS = Paths(Path("R"))

FLAT = SMALL["sweeps"]["flat"] | {"epochs": [2], "batch_size": [64, "full"]}
FLAT |= {"clipping_bound": [0.1, 1.0], "learning_rate": [0.01, 0.1]}
BASE: Edits = {
    **{"figures": {}, "tables": {}, "privacy": {}, "training": {}, "theory": {}, "optimizers": {}},
    "datasets/digits/source": {"kind": "folder", "path": "images"},
    "backbones/fixed": SMALL["backbones"]["pretrained"] | {"features": {"pooling": "mean"}},
    "methods/head": {"kind": "head"},
    "sweeps": {
        **{"film": FLAT, "lora": FLAT | {"method": "lora"}},
        "head": FLAT | {"backbone": "fixed", "method": "head"},
    },
}


def study_with(edits: Edits) -> Study:
    """Return the study with other values at some keys, ``section/key/...``."""
    return Study.model_validate(described(edited(BASE | edits)))


def names(study: Study) -> dict[tuple[str, str], str]:
    """Return the names of one file of each kind of each sweep, by kind and sweep."""
    found = {}
    for name, sweep in study.sweeps.items():
        cell = Cell(sweep.problem.name, 8.0, 2, 64, 1.0)
        files = {
            "trials": PATHS.cell_trials(study, cell),
            "steps": PATHS.cell_steps(study, cell),
            "log": PATHS.cell_log(study, cell),
            "norms": PATHS.gradient_norms(study, cell.problem, 8.0, 2, 1.0),
            "theory": PATHS.theory(study, cell),
            "noise": PATHS.noise(study, sweep.dataset, 8.0, 2, 64),
        }
        found |= {(kind, name): str(file) for kind, file in files.items()}
    return found


@cache
def unchanged() -> dict[tuple[str, str], str]:
    """Return the names of the study without edits."""
    return names(study_with({}))


OF_CELLS = ("trials", "steps", "log", "norms", "theory")
EVERY = ("film", "lora", "head")


def of(*sweeps: str, noise: bool = False) -> set[tuple[str, str]]:
    """Return the files of the cells of some sweeps, and with ``noise`` the calibrations of all."""
    calibrations = {("noise", name) for name in EVERY} if noise else set()
    return {(kind, name) for kind in OF_CELLS for name in sweeps} | calibrations


# Edits, each made alone, and the files whose names they change.
CHANGES: list[tuple[dict[str, Any], set[tuple[str, str]]]] = [
    ({"sweeps/film/seeds": 3, "sweeps/film/learning_rate": [0.01, 0.2], "sweeps/film/engine": "vmap",
        "sweeps/film/physical_batch": 32}, of("film")),
    ({"methods/lora/rank": 3, "methods/lora/target_modules": ["proj"], "methods/lora/engine": "vmap"},
        of("lora")),
    ({"privacy/check_with_opacus": True}, of(noise=True)),
    ({"privacy/delta": 1e-6, "privacy/step_rounding": "ceil", "training/select_on": "holdout",
        "datasets/digits/train_size": 800}, of(*EVERY, noise=True)),
    ({"training/engine": "vmap", "training/precision": "float32", "training/physical_batch": 64,
        "training/selection": "exhaustive", "training/threads": 2, "training/compile": True,
        "training/automatic_clipping_gamma": 0.1}, of(*EVERY)),
    ({"datasets/digits/source/path": "others", "datasets/digits/source/seed": 1,
        "datasets/digits/image_size": 16, "datasets/digits/interpolation": "nearest",
        "datasets/digits/crop": 0.9, "datasets/digits/corrupt": "skip",
        # The pretraining data of both networks.
        "datasets/letters/source/seed": 1}, of(*EVERY)),
    ({"theory/draws": 5, "theory/largest_batch": 32, "theory/seeds": 2},
        {("theory", name) for name in EVERY}),
    ({"backbones/pretrained/weights/epochs": 3, "backbones/pretrained/weights": {"kind": "random"},
        "backbones/pretrained/arguments": {"depth": 2}, "backbones/pretrained/mean": [0.1, 0.5, 0.5]},
        of("film", "lora")),
    ({"backbones/fixed/features/pooling": "token"}, of("head")),
    # Longer axes add cells only, but more batch sizes compete for gradient norms.
    ({"sweeps/film/batch_size": [64, 128, "full"]}, {("norms", "film")}),
    ({"sweeps/film/epsilon": [1.0, 2.0, 8.0], "sweeps/film/clipping_bound": [0.1, 1.0, 10.0],
        "sweeps/film/epochs": [2, 4]}, set()),
    # Settings that no number depends on.
    ({"title": "Other", "datasets/digits/title": "Other", "datasets/digits/description": "Other",
        "datasets/digits/duplicates": "refuse", "backbones/pretrained/title": "Other",
        "methods/film/title": "Other", "training/checkpoint_minutes": 1.0, "training/gpus": 4,
        "sweeps/film/gpus": 4}, set()),
]  # fmt: skip


@pytest.mark.parametrize(
    ("edit", "changed"),
    [
        pytest.param(each, changed, id=each[0])
        for edits, changed in CHANGES
        for each in edits.items()
    ],
)
def test_a_setting_changes_the_names_of_its_results(
    edit: tuple[str, Any], changed: set[tuple[str, str]]
) -> None:
    after = names(study_with(dict([edit])))
    assert {key for key, name in unchanged().items() if after[key] != name} == changed


def test_a_setting_of_an_optimizer_changes_the_names_of_its_sweeps() -> None:
    def with_momentum(momentum: float, title: str = "Momentum") -> dict[tuple[str, str], str]:
        optimizer = {"kind": "sgd", "momentum": momentum, "title": title}
        edits = {"optimizers/momentum": optimizer, "sweeps/film/optimizer": "momentum"}
        return names(study_with(edits))

    before = with_momentum(0.9)
    assert with_momentum(0.9, title="Heavy ball") == before
    after = with_momentum(0.5)
    assert {key for key, name in before.items() if after[key] != name} == of("film")


@pytest.mark.parametrize("constant", ["TRAINER_VERSION", "IMAGES_VERSION"])
def test_a_version_of_the_code_changes_names(
    constant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = unchanged()
    monkeypatch.setattr(fingerprints, constant, 1000)
    after = names(study_with({}))
    assert {key for key, name in before.items() if after[key] != name} == of(*EVERY)


def text_study(tokenizer: dict[str, Any], train: str = "public.csv") -> Study:
    """Return a study of texts, whose network reads them with a tokenizer."""
    texts = {"title": "Texts", "kind": "text", "tokenizer": "pretrained", "max_length": 16}
    texts |= {"classes": 10, "train_size": 1347, "test_size": 450}
    reader = {
        **{"title": "Reader", "library": "transformers", "architecture": "distilbert"},
        **{"weights": {"kind": "random"}, "tokenizer": tokenizer},
    }
    edits: Edits = {
        "datasets/digits": texts | {"source": {"kind": "files", "train": "a.csv", "test": "b.csv"}},
        "datasets/public": texts | {"source": {"kind": "files", "train": train, "test": "p.csv"}},
        "backbones/pretrained": reader,
        "sweeps/head": DELETE,
    }
    return study_with(edits)


FILE = {"kind": "file", "path": "vocab.txt"}
TRAINED = {"kind": "train", "dataset": "public", "vocab_size": 200}


@pytest.mark.parametrize(
    ("study", "other"),
    [
        (text_study(FILE), text_study(FILE | {"path": "other.txt"})),
        (text_study(TRAINED), text_study(TRAINED | {"vocab_size": 300})),
        (text_study(TRAINED), text_study(TRAINED, train="other.csv")),
    ],
    ids=["its file", "its size", "its training texts"],
)
def test_the_tokenizer_of_texts_changes_all_that_is_made_with_it(
    study: Study, other: Study
) -> None:
    before, after = names(study), names(other)
    assert {key for key, name in before.items() if after[key] != name} == of("film", "lora")
    # The texts are read with it, the network's embedding has its numbers.
    same = text_study(study.backbones["pretrained"].tokenizer.model_dump())
    prepared = {"dataset": "digits", "backbone": "pretrained", "tokenizer": "pretrained"}
    for kind, name in prepared.items():
        assert prepared_fingerprint(study, kind, name) == prepared_fingerprint(same, kind, name)
        assert prepared_fingerprint(study, kind, name) != prepared_fingerprint(other, kind, name)
    assert tokenizer_fingerprint(study, "pretrained") != tokenizer_fingerprint(other, "pretrained")


def test_an_edited_file_of_a_tokenizer_is_prepared_again(tmp_path: Path) -> None:
    vocabulary, texts = tmp_path / "vocab.txt", tmp_path / "a.csv"
    for file, study in (
        (vocabulary, text_study(FILE | {"path": str(vocabulary)})),
        (texts, text_study(TRAINED, train=str(texts))),
    ):
        file.write_text("before")
        before = tokenizer_fingerprint(study, "pretrained")
        assert tokenizer_fingerprint(study, "pretrained") == before
        file.write_text("afterwards")
        assert tokenizer_fingerprint(study, "pretrained") != before


@pytest.mark.parametrize(
    "edits",
    [
        {"privacy/delta": 1e-6},
        {"privacy/check_with_opacus": True},
        {"datasets/digits/train_size": 800},
        {"audit/canaries": 20},
        {"methods/film/engine": "vmap"},
    ],
    ids=str,
)
def test_settings_of_an_audit_change_its_fingerprint(edits: dict[str, Any]) -> None:
    audit = {"sweep": "film", "epsilon": [8.0], "epochs": 2, "batch_size": ["full"]}
    audit |= {"clipping_bound": 1.0, "learning_rate": 0.1, "canaries": 10}
    before, after = (
        audit_fingerprint(study_with({"audit": dict(audit)} | each)) for each in ({}, edits)
    )
    assert before != after
    # More points are more jobs; the others keep their files.
    longer = study_with({"audit": audit | {"epsilon": [1.0, 8.0]}})
    assert audit_fingerprint(longer) == before


def test_data_are_prepared_again_after_every_edit_of_their_files(tmp_path: Path) -> None:
    file = tmp_path / "train" / "cat" / "1.png"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"one")
    section = study_with({"datasets/digits/source/path": str(tmp_path)}).datasets["digits"]
    before = source_fingerprint(section)
    assert source_fingerprint(section) == before
    found = {before}
    file.write_bytes(b"two")  # of the same size
    os.utime(file, ns=(1, 1))
    found.add(source_fingerprint(section))
    file.write_bytes(b"three")
    os.utime(file, ns=(1, 1))  # of the same time
    found.add(source_fingerprint(section))
    file.with_name("2.png").write_bytes(b"three")
    found.add(source_fingerprint(section))
    assert len(found) == 4


@pytest.mark.parametrize(
    ("drawing", "hashed"),
    [(_DRAWING, _DRAWING), (("report",), _WRITING)],
    ids=["figures", "report"],
)
def test_drawing_code_imports_only_modules_in_its_hash(
    drawing: tuple[str, ...], hashed: tuple[str, ...]
) -> None:
    """An edit of another module would not draw figures, tables or pages again."""
    package = Path(fingerprints.__file__).parents[1]
    files = {file for part in hashed for file in source_files(package / part)}
    for file in (each for part in drawing for each in source_files(package / part)):
        for module in re.findall(r"^ *from dpsweep\.([\w.]+) import", file.read_text(), re.M):
            place = package / module.replace(".", "/")
            assert {place / "__init__.py", place.with_suffix(".py")} & files, (file, module)


def test_a_note_tells_the_settings_that_a_file_was_made_for(tmp_path: Path) -> None:
    file = tmp_path / "map.csv"
    assert fingerprints.has_settings(file, "one") is None
    fingerprints.write_settings(file, "one")
    assert fingerprints.has_settings(tmp_path / "map.pdf", "one") is True
    assert fingerprints.has_settings(file, "other") is False
    assert not list(tmp_path.glob("[!.]*")), "a listing shows results only"


@pytest.mark.parametrize("axis", ["epsilon", "clipping_bound", "batch_size"])
def test_a_shorter_grid_outdates_what_keeps_its_name(tmp_path: Path, axis: str) -> None:
    whole, problem = study_with({}), "digits_pretrained_film"

    def outputs(study: Study) -> list[Output]:
        every = Outputs(study, Paths(tmp_path))
        return [every.problem(problem), every.explore(), every.report()]

    page = fingerprints.report_fingerprint(whole)
    hashes = [fingerprints.problem_fingerprint(whole, problem), page, page]
    for output, settings in zip(outputs(whole), hashes, strict=True):
        assert output.outdated(), "nothing tells what it was made for"
        fingerprints.write_settings(output.files[0], settings)
        assert not output.outdated()
    first = FLAT[axis][:1]
    assert all(each.outdated() for each in outputs(study_with({f"sweeps/film/{axis}": first})))
    moved = study_with({"results": str(tmp_path / "elsewhere")})
    assert not any(each.outdated() for each in outputs(moved)), "a clone names the folder otherwise"


def test_prepared_files_are_outdated_and_refused_only_if_their_note_differs(tmp_path: Path) -> None:
    """Also without Snakemake's records; it takes hours to prepare data without a reason."""
    paths, study = Paths(tmp_path), study_with({})

    def outdated(study: Study) -> list[str]:
        every = Outputs(study, paths)
        found = []
        for kind, name, output in (
            ("dataset", "digits", every.dataset("digits")),
            ("backbone", "pretrained", every.backbone("pretrained")),
        ):
            try:
                fingerprints.check_settings(study, paths, kind, name)  # type: ignore[arg-type]
            except DpsweepError as error:
                assert "prepared for other settings" in str(error)
                assert error.remake[0].name == "metadata.json"
                found.append(name)
            assert output.outdated() == (name in found)
        return found

    assert outdated(study) == []
    fingerprints.note_settings(study, paths, "dataset", "digits")
    fingerprints.note_settings(study, paths, "backbone", "pretrained")
    titles = {"datasets/digits/title": "Other", "backbones/pretrained/title": "Other"}
    assert outdated(study) == outdated(study_with(titles)) == []
    assert outdated(study_with({"datasets/digits/image_size": 16})) == ["digits"]
    assert outdated(study_with({"backbones/pretrained/mean": [0.4, 0.5, 0.5]})) == ["pretrained"]


def test_the_sources_of_trainer_and_report_include_every_module_that_they_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An edit of any of these files, including templates, makes the report outdated."""
    package = Path(dpsweep.__file__).parent
    trainer = {file for part in fingerprints.TRAINER for file in source_files(package / part)}
    trains = (build_model, make_engine, PrivateOptimizer, GaussianNoise, FlatClipping, Resize)
    assert {Path(inspect.getfile(each)) for each in trains} <= trainer
    hashed: set[Path] = set()
    monkeypatch.setattr(fingerprints, "checksum", lambda file: hashed.add(file) or "")
    sources.cache_clear()
    report_fingerprint(study_with({}))
    sources.cache_clear()
    files = ("page.html.j2", "style.css", "numbers.js")
    assert {package / "report" / file for file in files} <= hashed
    assert {Path(inspect.getfile(each)) for each in (draw, one_line, FlatClipping)} <= hashed
    assert not any("__pycache__" in file.parts for file in hashed)
