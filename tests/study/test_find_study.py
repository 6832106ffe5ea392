"""Commands find their study, or report what they looked for."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpsweep import __version__
from dpsweep.base.errors import DpsweepError
from dpsweep.cli.main import app
from dpsweep.cli.run import target_files
from dpsweep.study import load, load_study
from dpsweep.study.paths import Paths

TEXT = "extends: demo\nresults: results/pets\nfigures: none\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder outside of the clone, with one study."""
    (tmp_path / "pets.yaml").write_text(TEXT)
    (tmp_path / "other.yaml").write_text("name: no study\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(*words: str) -> str:
    """Return the output of a command, or its error."""
    done = CliRunner().invoke(app, words)
    return str(done.exception) if done.exception else done.output


@pytest.mark.parametrize(
    "words", [["pets.yaml"], ["--study", "pets.yaml"], []], ids=["argument", "option", "only one"]
)
def test_a_study_is_found(folder: Path, words: list[str]) -> None:
    said = call("plan", *words, "digits_vit-weak_film")
    assert re.match(r"0 of \d+ cells are done\.", said), said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("plan pest.yaml", "no such file as pest.yaml"),
        ("plan pest.yaml", "did you mean pets.yaml?"),
        ("plan nowhere/pets.yaml", "cannot be read"),
        ("status", "results/pets: no such folder"),
        ("status", "begin with: "),
        ("check dmo", "did you mean demo?"),
        ("--version", f"dpsweep {__version__}\n"),
    ],
)
def test_unknown_names_are_answered_with_known_ones(folder: Path, words: str, said: str) -> None:
    assert said in call(*words.split())
    assert "did you mean" not in call("plan", "nope.yaml")


def test_a_study_elsewhere_is_run_in_its_own_folder(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "results" / "pets").mkdir(parents=True)
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.chdir(elsewhere)
    assert "digits_vit-weak_film" in call("status", str(folder / "pets.yaml"))
    assert Path.cwd() == folder
    assert list(elsewhere.iterdir()) == []


def test_targets_are_named_as_in_the_study() -> None:
    study = load_study(load.packaged_studies()["demo"])
    paths = Paths(Path("results"))

    def files(target: str) -> list[str]:
        return target_files(study, paths, target)

    # Every file, because Snakemake makes only the files that are named.
    figure = [
        f"results/figures/fig1_accuracy_heatmaps.{suffix}" for suffix in ("pdf", "png", "csv")
    ]
    assert files("fig1_accuracy_heatmaps") == figure
    table = "results/tables/tab1_tuning_implications"
    assert {f"{table}.md", f"{table}.tex", f"{table}.comparisons.csv"} < {
        *files(table.rsplit("/", maxsplit=1)[-1])
    }
    assert files("digits_vit-weak_film") == ["results/problems/digits_vit-weak_film.parquet"]
    assert files("report") == ["report"]
    assert files("results/explore.html") == ["results/explore.html"]
    cells = study.sweep_cells("digits_vit-weak_film_epochs")
    of_cells = [
        str(file(study, cell)) for cell in cells for file in (paths.cell_trials, paths.cell_steps)
    ]
    assert len(cells) > 1
    assert files("digits_vit-weak_film_epochs") == of_cells
    assert files(f"{cells[0].problem}/{cells[0].name}") == of_cells[:2]
    wrong_cell = cells[0].name.replace("epochs", "epoch")
    for wrong, right in (
        ("alll", "all"),
        ("fig1_acuracy_heatmaps", "fig1_accuracy_heatmaps"),
        (f"{cells[0].problem}/{wrong_cell}", cells[0].name),
        (f"results/cells/{cells[0].problem}/{wrong_cell}", cells[0].name),
    ):
        with pytest.raises(DpsweepError, match=rf"did you mean {right}\?"):
            files(wrong)
    with pytest.raises(DpsweepError, match="the study has no section `release`"):
        files("release")


@pytest.mark.parametrize("elsewhere", [False, True])
def test_suggested_commands_work_where_the_user_stands(
    folder: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    """Where a command changes to the folder of the study, the next one must still find it."""
    start = folder / "sub" if elsewhere else folder
    start.mkdir(exist_ok=True)
    monkeypatch.chdir(start)
    named = "../pets.yaml" if elsewhere else "pets.yaml"
    *_, suggested = shlex.split(call("status", named))
    monkeypatch.chdir(start)
    assert Path(suggested).samefile(folder / "pets.yaml")


def test_commands_take_several_studies_of_another_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each path starts where the user stands, also after the first study was opened."""
    (folder / "cats.yaml").write_text(TEXT)
    trials = folder / "results" / "pets" / "cells" / "former" / "cell.parquet"
    trials.parent.mkdir(parents=True)
    trials.touch()
    (folder / "sub").mkdir()
    monkeypatch.chdir(folder / "sub")
    said = call("clean", "../pets.yaml", "../cats.yaml")
    assert said.splitlines()[:2] == [str(trials), "1 file of former settings, 0.0 MB"]
