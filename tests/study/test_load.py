"""Reading YAML: overlays, numbers, and files that cannot be read."""

import copy
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import yaml
from pydantic import ValidationError
from tests.config.small import SMALL, load_small
from tests.described import described

from dpsweep.config import FileWeights, HubWeights
from dpsweep.study import Study, StudyError, load_study


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """The small study, for others to extend."""
    path = tmp_path / "base.yaml"
    path.write_text(yaml.safe_dump(described(SMALL, tmp_path), sort_keys=False))
    return path


def overlay(base: Path, text: str, name: str = "overlay.yaml") -> Path:
    path = base.with_name(name)
    path.write_text(f"extends: {base.name}\n{dedent(text)}")
    return path


def refused(path: Path) -> str:
    with pytest.raises(StudyError) as error:
        load_study(path)
    assert "Traceback" not in str(error.value)
    assert error.value.__suppress_context__ or error.value.__context__ is None
    return str(error.value)


# -- overlays ------------------------------------------------------------------------------


def test_an_overlay_without_changes_is_its_base(base: Path) -> None:
    assert load_study(overlay(base, "")) == load_study(base)


def test_a_notebook_names_a_study_by_a_string(base: Path) -> None:
    assert load_study(str(base)) == load_study(base)


def test_mappings_merge_and_the_rest_is_replaced(base: Path) -> None:
    path = overlay(
        base,
        """
        title: Other
        sweeps:
          flat:
            epsilon: [2]
          added:
            dataset: digits
            backbone: random
            method: film
            epsilon: [4]
            epochs: [1]
            batch_size: [full]
            clipping_bound: [1]
            learning_rate: [0.1]
            seeds: 1
        figures: none
        """,
    )
    study, below = load_study(path), load_study(base)
    assert study.title == "Other"
    assert list(study.sweeps) == ["flat", "automatic", "added"]
    assert study.sweeps["flat"].epsilon == [2]  # a list is not merged with the list below
    assert study.sweeps["flat"].clipping_bound == below.sweeps["flat"].clipping_bound
    assert study.sweeps["automatic"] == below.sweeps["automatic"]
    assert study.datasets == below.datasets


def test_a_section_of_another_kind_keeps_nothing_from_below(base: Path) -> None:
    path = overlay(
        base,
        """
        backbones:
          random: {weights: {kind: hub, id: someone/net}}
        """,
    )
    changed = path.with_name("changed.yaml")
    changed.write_text(
        f"extends: {path.name}\nbackbones: {{random: {{weights: {{kind: file, path: a.safetensors}}}}}}\n"
    )
    weights = load_study(changed).backbones["random"].weights
    assert weights == FileWeights(kind="file", path="a.safetensors")
    # A section of the same kind is merged.
    changed.write_text(
        f"extends: {path.name}\n"
        f"backbones: {{random: {{weights: {{kind: hub, revision: {'a' * 40}}}}}}}\n"
    )
    weights = load_study(changed).backbones["random"].weights
    assert weights == HubWeights(kind="hub", id="someone/net", revision="a" * 40)


def test_only_a_mapping_is_marked_as_replaced(base: Path) -> None:
    path = overlay(base, "audit: !replace null")
    with pytest.raises(
        StudyError, match=r"line 2: found !replace before something else than a mapping"
    ):
        load_study(path)


def test_replacing_deep_in_a_mapping_spares_its_neighbours(base: Path) -> None:
    path = overlay(
        base,
        """
        sweeps:
          flat:
            learning_rate: !replace {first: 1, last: 2, count: 2}
        """,
    )
    sweep = load_study(path).sweeps["flat"]
    assert sweep.learning_rates == [1, 2]
    assert sweep.epochs == [2, 4]


def test_a_mapping_merges_where_only_one_of_its_keys_changes(base: Path) -> None:
    path = overlay(base, "sweeps: {flat: {learning_rate: {count: 2}}}")
    assert load_study(path).sweeps["flat"].learning_rates == [0.001, 0.1]


def test_overlays_stack(base: Path) -> None:
    middle = overlay(base, "sweeps: {flat: {seeds: 7, epochs: [1, 2]}}", "middle.yaml")
    top = overlay(middle, "sweeps: {flat: {epochs: [2, 4, 8]}}", "top.yaml")
    sweep = load_study(top).sweeps["flat"]
    assert (sweep.seeds, sweep.epochs) == (7, [2, 4, 8])


def test_a_replaced_mapping_can_be_extended_again(base: Path) -> None:
    (name, sweep), *_ = SMALL["sweeps"].items()
    middle = overlay(base, "sweeps: !replace {}", "middle.yaml")
    top = overlay(middle, yaml.safe_dump({"sweeps": {name: sweep}}), "top.yaml")
    assert list(load_study(top).sweeps) == [name]


def test_extends_is_relative_to_the_overlay(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = base.parent / "studies"
    folder.mkdir()
    path = folder / "overlay.yaml"
    path.write_text("extends: ../base.yaml\ntitle: Other\n")
    monkeypatch.chdir("/")
    assert load_study(path).title == "Other"


# -- reference values ----------------------------------------------------------------------


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
    (entry,) = study.tables["compared"].selections()
    assert getattr(entry, "reference", None) == tuned


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (None, "paper.csv: cannot be read"),
        ("dataset,value\ndigits,high\n", "references[0].value: found"),
    ],
)
def test_references_that_cannot_be_used(base: Path, rows: str | None, said: str) -> None:
    if rows is not None:
        (base.parent / "paper.csv").write_text(rows)
    assert said in refused(overlay(base, "references: paper.csv"))


# -- numbers -------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["1e-5", "1E-5", "1.0e-5", "0.00001", "+1e-5", "10e-6", "1.e-5"])
def test_numbers_as_people_write_them(tmp_path: Path, text: str) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(f"privacy: {{delta: {text}}}\n{yaml.safe_dump(described(SMALL, tmp_path))}")
    assert load_study(path).privacy.delta == 1e-5


@pytest.mark.parametrize("text", ["'1e-5'", "1e-5x", "e-5", "1e", "1e-5 1"])
def test_text_that_looks_like_a_number_stays_text(tmp_path: Path, text: str) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(f"privacy: {{delta: {text}}}\n{yaml.safe_dump(described(SMALL, tmp_path))}")
    assert 'privacy.delta: found "' in refused(path)


def test_infinite_epsilon_trains_without_privacy(tmp_path: Path) -> None:
    study = load_small(
        tmp_path,
        {
            "sweeps/flat/epsilon": [float("inf")],
            "sweeps/flat/clipping_bound": "none",
            "figures": {},
            "tables": {},
        },
    )
    names = [cell.name for cell in study.sweep_cells("flat")]
    assert names[0] == "epsinf_epochs2_B64_Cnone"


# -- files ---------------------------------------------------------------------------------


@pytest.mark.parametrize("section", ["sweeps", "datasets"])
def test_a_name_that_stands_twice_is_refused_with_both_lines(tmp_path: Path, section: str) -> None:
    name = next(iter(SMALL[section]))
    last = {section: SMALL[section]}  # at the end of the file, where a line can be added
    above = {key: value for key, value in described(SMALL, tmp_path).items() if key != section}
    text = yaml.safe_dump(above, sort_keys=False) + yaml.safe_dump(last, sort_keys=False)
    path = tmp_path / "study.yaml"
    path.write_text(f"{text}  {name}: {{}}\n")
    lines = path.read_text().splitlines()
    first = lines.index(f"{section}:") + 2
    assert f'line {len(lines)}: "{name}" is defined twice, first on line {first}' in refused(path)


def test_a_section_that_stands_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text("title: a\nsweeps: {}\ntitle: b\n")
    assert "line 3" in refused(path)
    assert '"title" is defined twice, first on line 1' in refused(path)


def test_an_anchor_with_changes_is_no_second_definition(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(
        yaml.safe_dump(described({**SMALL, "methods": None}, tmp_path)).replace(
            "methods: null",
            "methods:\n  film: {kind: film}\n  scratch: {kind: scratch}\n"
            "  lora: &lora {kind: lora, rank: 2, target_modules: [a]}\n"
            "  larger: {<<: *lora, rank: 4}",
        )
    )
    methods = load_study(path).methods
    assert methods["larger"].model_dump() == methods["lora"].model_dump() | {"rank": 4}


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "absent.yaml"
    assert refused(path) == f"{path}: cannot be read: No such file or directory"


def test_a_base_that_is_not_there_names_the_overlay(base: Path) -> None:
    path = overlay(base, "")
    base.unlink()
    message = refused(path)
    assert f'{path}: extends: no such file as {base}: found "base.yaml"' in message


def test_a_folder_is_no_study(tmp_path: Path) -> None:
    assert "cannot be read: Is a directory" in refused(tmp_path)


def test_files_that_extend_each_other(tmp_path: Path) -> None:
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    one.write_text("extends: two.yaml\n")
    two.write_text("extends: one.yaml\n")
    assert "extends itself" in refused(one)


@pytest.mark.parametrize("value", ["3", "[a.yaml]", "{a: b}", "true"])
def test_extends_must_be_a_path(tmp_path: Path, value: str) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(f"extends: {value}\n")
    assert "extends: found" in refused(path)
    assert "allowed: the path of another study file" in refused(path)


@pytest.mark.parametrize("text", ["", "- a\n- b\n", "just text\n", "3\n", "# a comment\n"])
def test_a_file_that_is_no_mapping(tmp_path: Path, text: str) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(text)
    assert "allowed: a mapping of sections (title, datasets," in refused(path)


@pytest.mark.parametrize(
    "text",
    [
        "title: [1, 2\n",
        "title: 'open\n",
        "a:\n\t- b\n",
        "a: b: c\n",
        "? [1, 2]\n: 3\n",
        "? {a: 1}\n: 3\n",
        "a: *missing\n",
        "a: &a {b: *a}\n",
        "a: !unknown {}\n",
        "a: !!python/object/apply:os.system ['true']\n",
    ],
)
def test_broken_yaml_is_refused_with_its_place(tmp_path: Path, text: str) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(text)
    message = refused(path)
    assert message.startswith(f"{path}: not valid YAML\n")
    assert f'"{path}", line ' in message
    assert len(message.splitlines()) <= 24


def test_mistakes_of_the_base_show_in_the_overlay(base: Path) -> None:
    path = overlay(base, "sweeps: {flat: {epsilom: [1]}}")
    assert "sweeps.flat.epsilom: unknown key" in refused(path)
    assert str(path) in refused(path)


@pytest.mark.parametrize(
    ("key", "other"), [("learning_rate", [0.5]), ("seeds", 7), ("engine", "loop")]
)
def test_sweeps_that_share_a_cell_agree_about_its_training(key: str, other: Any) -> None:
    content = described(copy.deepcopy(SMALL))
    name, sweep = next(iter(content["sweeps"].items()))
    content["sweeps"]["again"] = copy.deepcopy(sweep)
    Study.model_validate(content)
    content["sweeps"]["again"][key] = other
    with pytest.raises(ValidationError, match=f"sweeps.again.{key}: found .*sweeps.{name}"):
        Study.model_validate(content)
