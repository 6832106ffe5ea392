"""An output is current exactly while its files, its inputs and its settings are those it was made of."""

import copy
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.planning.finished import AUDIT, finish_all, finish_cell, finish_output
from tests.workflow.chain import STUDY

from dpsweep.planning.outputs import Output, Outputs
from dpsweep.planning.provenance import clear_the_way, explain, making, not_current
from dpsweep.study import Study, load_study
from dpsweep.study.paths import Paths

SWEEP = "digits_vit_film"
CONTENT: dict[str, Any] = copy.deepcopy(STUDY)
CONTENT["datasets"]["letters"] = {
    "title": "Letters",
    "source": {"kind": "glyphs"},
    "image_size": 8,
    "classes": 62,
    "train_size": 18600,
    "test_size": 1860,
}
CONTENT["backbones"]["vit"]["weights"] = {"kind": "pretrain", "dataset": "letters", "epochs": 1}
CONTENT["tables"]["rules"] = {
    **{"family": "tuning_implications", "section": "Tables", "caption": "What follows."}
}
CONTENT["audit"] = AUDIT


@pytest.fixture
def study() -> Study:
    return Study.model_validate(CONTENT | {"results": "results"})


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(tmp_path / "results")


def lacking(study: Study, paths: Paths) -> dict[str, str]:
    found = not_current(paths, Outputs(study, paths).every())
    return {name: problem.kind for name, problem in found.items()}


def followers(outputs: list[Output], first: Output) -> set[str]:
    """The outputs that are made from one, directly or not."""
    files, names = set(first.files), set()
    for output in outputs:  # in the order of their making
        if files & set(output.inputs):
            names.add(output.name)
            files |= set(output.files)
    return names


@pytest.mark.parametrize("chosen", ["tiny", "paper"])
def test_names_and_files_are_made_in_one_place(chosen: str, study: Study, paths: Paths) -> None:
    if chosen == "paper":
        study = load_study(Path(__file__).parents[2] / "config.yaml")
    outputs = list(Outputs(study, paths).every())
    assert len({output.name for output in outputs}) == len(outputs)
    cells = sum(len(study.sweep_cells(name)) for name in study.sweeps)
    assert sum(output.name.startswith("cells/") for output in outputs) == cells
    made: set[Path] = set()
    for output in outputs:
        assert {paths.output_name(file) for file in output.files} == {output.name}
        assert made >= set(output.inputs), "made before it is needed"
        assert not made & set(output.files)
        made |= set(output.files)


def test_what_was_just_made_is_current(study: Study, paths: Paths) -> None:
    assert set(lacking(study, paths).values()) == {"missing"}
    finish_all(study, paths)
    assert lacking(study, paths) == {}


@pytest.mark.parametrize("seed", range(20))
def test_damage_is_found_with_all_that_was_made_from_it(
    study: Study, paths: Paths, seed: int
) -> None:
    outputs = finish_all(study, paths)
    draw = random.Random(seed)
    output = draw.choice(outputs)
    file = draw.choice(output.files)
    said = paths.provenance(output.name)

    def append() -> str:
        file.write_text(file.read_text() + "!")
        return "changed"

    def rewrite_in_place() -> str:
        file.write_text("?" * file.stat().st_size)
        return "changed"

    def delete() -> str:
        file.unlink()
        return "missing"

    def delete_folder() -> str:
        shutil.rmtree(file.parent)
        return "missing"

    def forget() -> str:
        said.unlink()
        return "outdated"

    def garble() -> str:
        said.write_text(said.read_text()[:40])
        return "outdated"

    damages: list[Callable[[], str]] = [
        *(append, rewrite_in_place, delete, delete_folder, forget, garble)
    ]
    kind = draw.choice(damages)()
    found = lacking(study, paths)
    assert found.pop(output.name) == kind
    others = {name for name, each in found.items() if each != "inputs"}
    # What lies in a folder goes with it.
    inside = {each.name for each in outputs if each.files[0].is_relative_to(file.parent)}
    assert others <= inside
    assert kind != "missing" or file.parent.exists() or others | {output.name}
    if not others:
        assert set(found) == followers(outputs, output)


def test_a_new_time_of_writing_is_no_change(study: Study, paths: Paths) -> None:
    for output in finish_all(study, paths):
        for file in output.files:
            os.utime(file, (1e9, 1e9))
    assert lacking(study, paths) == {}


def test_an_output_made_again_to_the_same_content_leaves_the_others_alone(
    study: Study, paths: Paths
) -> None:
    outputs = finish_all(study, paths)
    for output in outputs:
        finish_output(paths, output)
        assert lacking(study, paths) == {}


def test_a_longer_axis_leaves_old_cells_alone(study: Study, paths: Paths) -> None:
    finish_all(study, paths)
    content = copy.deepcopy(CONTENT) | {"results": "results"}
    content["sweeps"][SWEEP]["clipping_bound"] = [0.1, 1.0, 10.0]
    found = lacking(Study.model_validate(content), paths)
    new = {name for name in found if name.startswith("cells/")}
    assert all(name.endswith("_C10") for name in new)
    assert len(new) == 2


def test_a_renamed_dataset_is_another_one(study: Study, paths: Paths) -> None:
    finish_all(study, paths)
    content = copy.deepcopy(CONTENT) | {"results": "results"}
    content["datasets"]["numbers"] = content["datasets"].pop("digits")
    content["sweeps"][SWEEP]["dataset"] = "numbers"
    content["roles"] = content["roles"] | {"datasets": {"main": "numbers"}}
    found = lacking(Study.model_validate(content), paths)
    assert found["data/numbers"] == "missing"
    assert found["cells/numbers_vit_film/eps8_epochs2_B128_C1"] == "missing"


def test_a_job_that_fails_leaves_an_output_that_is_not_current(study: Study, paths: Paths) -> None:
    finish_all(study, paths)
    cell = study.sweep_cells(SWEEP)[0]
    output = Outputs(study, paths).cell(cell)
    with pytest.raises(KeyboardInterrupt), making(paths, output) as job:
        job.note({"trial_seconds": 7.0})
        raise KeyboardInterrupt
    # Its files are as good as they were, and it does not matter: the job had begun to replace them.
    assert lacking(study, paths)[output.name] == "outdated"
    finish_cell(study, paths, cell)
    assert lacking(study, paths) == {}


def test_an_input_that_changes_under_a_job_makes_its_output_outdated(
    study: Study, paths: Paths
) -> None:
    finish_all(study, paths)
    output = Outputs(study, paths).problem(SWEEP)
    outputs, cell = Outputs(study, paths), study.sweep_cells(SWEEP)[0]
    with making(paths, output), making(paths, outputs.cell(cell)):
        output.inputs[0].write_text("replaced while it was read")
    found = lacking(study, paths)
    assert outputs.cell(cell).name not in found
    assert found[output.name] == "outdated"


def test_local_files_that_change_while_they_are_read_make_the_output_outdated(
    paths: Paths, tmp_path: Path
) -> None:
    image = tmp_path / "images" / "train" / "cat" / "1.png"
    image.parent.mkdir(parents=True)
    image.write_bytes(b"read")
    content = copy.deepcopy(CONTENT)
    content["datasets"]["digits"]["source"] = {"kind": "folder", "path": str(image.parents[2])}
    output = Outputs(Study.model_validate(content), paths).dataset("digits")
    finish_output(paths, output)
    assert not_current(paths, [output]) == {}
    with making(paths, output):
        image.with_name("2.png").write_bytes(b"came too late")
    assert not_current(paths, [output])[output.name].kind == "outdated"


def test_lines_name_what_is_wrong_and_count_the_rest(study: Study, paths: Paths) -> None:
    finish_all(study, paths)
    file = paths.figure("heatmap", "pdf")
    file.unlink()
    found = not_current(paths, Outputs(study, paths).every())
    assert explain(found) == [
        f"figures/heatmap: {file} is missing",
        "1 more that are made from these",
    ]


def test_results_may_be_moved(study: Study, paths: Paths, tmp_path: Path) -> None:
    finish_all(study, paths)
    paths.results.rename(tmp_path / "elsewhere")
    assert lacking(study, Paths(tmp_path / "elsewhere")) == {}


def test_what_stands_in_the_place_of_a_file_is_set_aside(study: Study, paths: Paths) -> None:
    finish_all(study, paths)
    outputs = list(Outputs(study, paths).every())
    assert list(clear_the_way(paths, outputs)) == []
    full, empty, link, pipe, *_ = [
        each for output in outputs if output.name.startswith("figures/") for each in output.files
    ]
    parent = next(output.files[0] for output in outputs if output.name.startswith("tables/"))
    for file in (full, empty, link, pipe):
        file.unlink()
    full.mkdir()
    (full / "mine").write_text("kept")
    empty.mkdir()
    link.symlink_to(paths.results / "nothing")
    os.mkfifo(pipe)
    shutil.rmtree(parent.parent)
    parent.parent.write_text("a file")
    record = paths.provenance(outputs[-1].name)
    record.unlink()
    record.mkdir()

    said = list(clear_the_way(paths, outputs))
    assert len(said) == 6
    assert (full.with_name(f"{full.name}.set-aside") / "mine").read_text() == "kept"
    assert parent.parent.with_name(f"{parent.parent.name}.set-aside").read_text() == "a file"
    for file in (full, empty, link, pipe, parent.parent, record):
        assert not os.path.lexists(file), file
    assert list(clear_the_way(paths, outputs)) == []
    finish_all(study, paths)
    assert lacking(study, paths) == {}
