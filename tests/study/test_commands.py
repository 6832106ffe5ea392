"""The commands that messages suggest make the targets of the study."""

import os
import shlex
from pathlib import Path

import pytest

from dpsweep.study.load import DEFAULT_STUDY, OPTIONS, begin, make_command


@pytest.fixture(autouse=True)
def _no_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(OPTIONS, raising=False)


def test_the_study_is_named_unless_it_is_the_default() -> None:
    assert make_command(DEFAULT_STUDY, ["audit"]) == "snakemake -- audit"
    command = shlex.split(make_command(Path("studies/my pets.yaml"), ["a", Path("b/c.json")]))
    assert command == ["snakemake", "--config", "study=studies/my pets.yaml", "--", "a", "b/c.json"]


def test_only_existing_targets_are_forced(tmp_path: Path) -> None:
    target = tmp_path / "metadata.json"
    assert "--force" not in make_command(DEFAULT_STUDY, [target])
    target.touch()
    assert "--force" in make_command(DEFAULT_STUDY, [target])


@pytest.mark.parametrize("own", ["", "USR1@600"])
def test_jobs_of_slurm_get_the_signal_before_their_limit(
    monkeypatch: pytest.MonkeyPatch, own: str
) -> None:
    """Also where options on the command line replace those of the profile."""
    monkeypatch.setattr("os.environ", {"PATH": ""} | ({"SBATCH_SIGNAL": own} if own else {}))
    monkeypatch.setattr("sys.argv", ["snakemake"])
    begin({})
    assert os.environ["SBATCH_SIGNAL"] == (own or "USR1@120")


def test_a_folder_without_a_snakefile_gets_a_command_that_works_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = make_command(Path("pets.yaml"), ["audit"])
    assert shlex.split(command) == ["dpsweep", "run", "pets.yaml", "audit"]
