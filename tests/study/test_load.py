"""Reading studies from YAML: overlays, numbers, and files that are refused."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError
from tests.described import described
from tests.study.small import SMALL

from dpsweep.study import Study, StudyError, load_study
from dpsweep.study.backbones import FileWeights, HubWeights


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """The small study, for others to extend."""
    path = tmp_path / "base.yaml"
    path.write_text(yaml.safe_dump(described(SMALL, tmp_path), sort_keys=False))
    return path


def overlay(base: Path, text: str, name: str = "overlay.yaml") -> Path:
    path = base.with_name(name)
    path.write_text(f"extends: {base.name}\n{text}")
    return path


def refused(path: Path) -> str:
    with pytest.raises(StudyError) as error:
        load_study(path)
    message = str(error.value)
    assert str(path) in message and "Traceback" not in message
    assert error.value.__suppress_context__ or error.value.__context__ is None
    assert len(message.splitlines()) <= 24
    return message


# -- overlays ------------------------------------------------------------------------------

WEIGHTS = "backbones: {random: {weights: {kind: %s}}}"
HUB = WEIGHTS % "hub, id: someone/net"
ADDED = """
title: Other
sweeps:
  flat: {epsilon: [2]}
  added: {dataset: digits, backbone: random, method: film, epsilon: [4], epochs: [1], batch_size: [full],
    clipping_bound: [1], learning_rate: [0.1], seeds: 1}
figures: none
"""


def test_mappings_are_merged_and_other_values_replaced(base: Path) -> None:
    study, below = load_study(overlay(base, ADDED)), load_study(base)
    assert study.title == "Other"
    assert list(study.sweeps) == ["flat", "automatic", "added"]
    assert study.sweeps["flat"].epsilon == [2]  # a list is not merged with the list below
    assert study.sweeps["flat"].clipping_bound == below.sweeps["flat"].clipping_bound
    assert study.sweeps["automatic"] == below.sweeps["automatic"]
    assert study.datasets == below.datasets


@pytest.mark.parametrize(
    ("overlays", "read", "expected"),
    [
        # A section of another kind replaces the one below; one of the same kind is merged.
        (
            [HUB, WEIGHTS % "file, path: a.safetensors"],
            lambda study: study.backbones["random"].weights,
            FileWeights(kind="file", path="a.safetensors"),
        ),
        (
            [HUB, WEIGHTS % f"hub, revision: {'a' * 40}"],
            lambda study: study.backbones["random"].weights,
            HubWeights(kind="hub", id="someone/net", revision="a" * 40),
        ),
        # A replacement or a single key deep in a mapping keeps the keys beside it.
        (
            ["sweeps: {flat: {learning_rate: !replace {first: 1, last: 2, count: 2}}}"],
            lambda study: (study.sweeps["flat"].learning_rates, study.sweeps["flat"].epochs),
            ([1, 2], [2, 4]),
        ),
        (
            ["sweeps: {flat: {learning_rate: {count: 2}}}"],
            lambda study: study.sweeps["flat"].learning_rates,
            [0.001, 0.1],
        ),
        # Overlays stack.
        (
            ["sweeps: {flat: {seeds: 7, epochs: [1, 2]}}", "sweeps: {flat: {epochs: [2, 4, 8]}}"],
            lambda study: (study.sweeps["flat"].seeds, study.sweeps["flat"].epochs),
            (7, [2, 4, 8]),
        ),
        (
            ["sweeps: !replace {}", yaml.safe_dump({"sweeps": {"flat": SMALL["sweeps"]["flat"]}})],
            lambda study: list(study.sweeps),
            ["flat"],
        ),
    ],
)
def test_overlays_merge_and_replace(
    base: Path, overlays: list[str], read: Callable[[Study], Any], expected: Any
) -> None:
    for number, text in enumerate(overlays):
        base = overlay(base, text, f"overlay{number}.yaml")
    assert read(load_study(base)) == expected


def test_extends_is_relative_to_the_overlay(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = base.parent / "studies"
    folder.mkdir()
    path = folder / "overlay.yaml"
    path.write_text("extends: ../base.yaml\ntitle: Other\n")
    monkeypatch.chdir("/")
    assert load_study(path).title == "Other"


def test_references_are_read_from_a_file_beside_the_study(base: Path) -> None:
    (base.parent / "paper.csv").write_text(
        "dataset,backbone,method,clipping_bound,epsilon,epochs,value,minimum,maximum\n"
        "digits,pretrained,film,tuned,1,2,0.5,0.4,0.625\n"
        "digits,pretrained,film,0.1,8,2,0.75,,\n"
    )
    study = load_study(overlay(base, "references: paper.csv"))
    tuned, single = study.reference_values
    assert (tuned.clipping_bound, tuned.value, tuned.maximum) == ("tuned", 0.5, 0.625)
    assert (single.clipping_bound, single.epsilon, single.maximum) == (0.1, 8, None)
    shown = study.tables["compared"].further_settings()["references"]
    assert shown == [tuned.model_dump(mode="json")]


@pytest.mark.parametrize("text", ["1e-5", "1E-5", "1.0e-5", "0.00001", "+1e-5", "10e-6", "1.e-5"])
def test_common_notations_of_numbers_are_read(base: Path, text: str) -> None:
    assert load_study(overlay(base, f"privacy: {{delta: {text}}}")).privacy.delta == 1e-5


@pytest.mark.parametrize("text", ["0300", "-017", "1:30", "1:30:05", "0_17", "1:30.5"])
def test_octal_and_base_60_numbers_are_texts(base: Path, text: str) -> None:
    """YAML 1.1 reads them as other numbers than a person does."""
    said = refused(overlay(base, f"datasets: {{digits: {{train_size: {text}}}}}"))
    assert f'datasets.digits.train_size: found "{text}"; allowed: a valid integer' in said
    assert load_study(overlay(base, f"title: {text}")).title == text


@pytest.mark.parametrize("text", ["1e400", "1.5E+999", "1" + 400 * "0"])
def test_numbers_beyond_those_of_floats_are_refused(base: Path, text: str) -> None:
    """An infinite epsilon would train without privacy."""
    said = refused(overlay(base, f"sweeps: {{flat: {{epsilon: [8, {text}]}}}}"))
    assert "sweeps.flat.epsilon[1]: found " in said and "; allowed: a valid number" in said


# -- refused files ------------------------------------------------------------------------

EXTENDS = "extends: base.yaml\n"
BROKEN = [
    *("title: [1, 2\n", "title: 'open\n", "a:\n\t- b\n", "a: b: c\n", "? [1, 2]\n: 3\n"),
    *("? {a: 1}\n: 3\n", "a: *missing\n", "a: &a {b: *a}\n", "a: !unknown {}\n"),
    "a: !!python/object/apply:os.system ['true']\n",
]
REFUSED = [
    *((text, 'cannot be read as YAML: *", line ') for text in BROKEN),
    *(
        (text, "allowed: a mapping of sections (title, datasets,")
        for text in ("", "- a\n- b\n", "just text\n", "3\n", "# a comment\n")
    ),
    *(
        (f"extends: {value}\n", "extends: found *, or the path of a file")
        for value in ("3", "[a.yaml]", "{a: b}", "true")
    ),
    *(
        (f"{EXTENDS}privacy: {{delta: {text}}}", 'privacy.delta: found "')
        for text in ("'1e-5'", "1e-5x", "e-5", "1e", "1e-5 1")
    ),
    (f"{EXTENDS}audit: !replace null", "expected a mapping node, but found scalar*line 2"),
    (f"{EXTENDS}references: paper.csv", "references: [Errno 2] No such file"),
    (f"{EXTENDS}references: wrong.csv", "references[0].value: found"),
    (f"{EXTENDS}sweeps: {{flat: {{epsilom: [1]}}}}", "sweeps.flat.epsilom: unknown key"),
    ("title: a\nsweeps: {}\ntitle: b\n", 'line 3: "title" is defined twice, first on line 1'),
    ("a: 1\nsweeps:\n  x: 1\n  y: 2\n  x: 3\n", 'line 5: "x" is defined twice, first on line 3'),
    ("extends: other.yaml\n", "extends itself"),
    ("extends: absent.yaml\n", 'extends: no such file as *absent.yaml: found "absent.yaml"'),
]


@pytest.mark.parametrize(("text", "said"), REFUSED)
def test_invalid_study_files_are_refused(base: Path, text: str, said: str) -> None:
    base.with_name("wrong.csv").write_text("dataset,value\ndigits,high\n")
    base.with_name("other.yaml").write_text("extends: study.yaml\n")
    path = base.with_name("study.yaml")
    path.write_text(text)
    message = refused(path)
    for part in said.split("*"):
        assert part in message


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "absent.yaml"
    assert (
        refused(path)
        == f"{path}: cannot be read as YAML: [Errno 2] No such file or directory: '{path}'"
    )
    assert "cannot be read as YAML: [Errno 21] Is a directory" in refused(tmp_path)


@pytest.mark.parametrize(
    ("key", "other"), [("learning_rate", [0.5]), ("seeds", 7), ("engine", "loop")]
)
def test_sweeps_with_a_common_cell_must_train_it_in_the_same_way(key: str, other: Any) -> None:
    content = described(copy.deepcopy(SMALL))
    name, sweep = next(iter(content["sweeps"].items()))
    content["sweeps"]["again"] = copy.deepcopy(sweep)
    Study.model_validate(content)
    content["sweeps"]["again"][key] = other
    with pytest.raises(ValidationError, match=f"sweeps.again.{key}: found .*sweeps.{name}"):
        Study.model_validate(content)
