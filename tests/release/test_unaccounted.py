"""Sweeps of private data run only with the user's permission, and their joint epsilon is shown."""

import contextlib
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from scipy.optimize import brentq
from snakemake.cli import parse_config
from tests.release.releases import FIXED
from tests.training.tiny_study import tiny_sections
from typer.testing import CliRunner

from dpsweep.base.errors import DpsweepError
from dpsweep.cli import run
from dpsweep.cli.main import app
from dpsweep.release.ledger import epsilon_of_sweeps, price, private_sweeps, refuse_unaccounted
from dpsweep.study import Study, StudyError
from dpsweep.study.load import UNACCOUNTED, begin
from dpsweep.study.paths import Paths


def sections(private: bool = True, **sweep: Any) -> dict[str, Any]:
    made = tiny_sections({}, {"kind": "film"}, **sweep)
    made["datasets"]["digits"] |= {"private": private}
    return made | {"release": FIXED}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(UNACCOUNTED, raising=False)
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(sections()))
    return tmp_path


def test_all_trials_together_are_the_composed_gaussian_mechanisms():
    """Compare with another library's composition of the Gaussian mechanisms."""
    rates = [0.1, 0.2, 0.3, 0.4]
    study = Study.model_validate(sections(epsilon=[2.0], learning_rate=rates, seeds=3))
    delta = study.privacy.delta
    without = Study.model_validate(sections(epsilon=[1.0, math.inf]))
    assert epsilon_of_sweeps(without, without.sweeps) == math.inf
    assert price(Study.model_validate(sections(private=False))) == ""

    def composed(sigma: float, trials: int) -> float:
        event = SelfComposedDpEvent(GaussianDpEvent(sigma), trials)
        return float(PLDAccountant().compose(event).get_epsilon(delta))

    sigma = brentq(lambda each: composed(each, 1) - 2.0, 1.0, 3.0, xtol=1e-4)
    expected = composed(sigma, len(rates) + 2)
    assert epsilon_of_sweeps(study, study.sweeps) == pytest.approx(expected, rel=2e-3)


def test_the_same_data_under_another_name_is_private_too():
    made = sections()
    made["datasets"]["copy"] = made["datasets"]["digits"] | {"private": False}
    made["sweeps"]["copied"] = made["sweeps"]["digits"] | {"dataset": "copy"}
    assert private_sweeps(Study.model_validate(made)) == ["digits", "copied"]


@pytest.mark.parametrize("stage", ["train", "theory", "gradient-norms"])
def test_a_job_refuses_private_data_without_permission(folder, monkeypatch, stage):
    """The job itself refuses, so a direct call of Snakemake is refused too."""
    study = Study.model_validate(sections())
    (cell,) = study.all_cells()
    words = [cell.problem, cell.name]
    if stage == "gradient-norms":
        words = [cell.problem, f"{cell.epsilon:g}", str(cell.epochs), f"{cell.clipping_bound:g}"]
    call = [stage, *words, "--study", "mine.yaml"]
    done = CliRunner().invoke(app, call)
    assert isinstance(done.exception, StudyError), done.output
    assert "--unaccounted" in str(done.exception)
    monkeypatch.setenv(UNACCOUNTED, "1")
    assert "--unaccounted" not in str(CliRunner().invoke(app, call).exception)


@pytest.mark.parametrize(
    ("words", "allowed"),
    [
        ([], False),
        (["digits_vit_method"], False),
        (["report", "release"], False),
        (["release"], True),
        (["all", "--unaccounted", "--", "--cores", "1"], True),
        (["--", "-n"], True),
        (["--", "--cores", "1"], False),
        (["results/data/digits/metadata.json"], True),
    ],
)
def test_a_call_that_would_sweep_private_data_needs_the_option(folder, monkeypatch, words, allowed):
    handed: list[list[str]] = []
    monkeypatch.setattr(run, "run_snakemake", lambda given: handed.append([*given]) or 0)
    done = CliRunner().invoke(app, ["run", "mine.yaml", *words])
    assert bool(handed) == allowed, done.output
    if not allowed:
        assert "dpsweep run release" in str(done.exception)
    assert any("unaccounted=true" in given for given in handed) == ("--unaccounted" in words)
    assert not any("--unaccounted" in given for given in handed)


def test_a_finished_sweep_is_drawn_without_asking_again(folder, monkeypatch):
    study = Study.model_validate(sections())
    for cell in study.all_cells():
        file = Paths(Path(study.results)).cell_trials(study, cell)
        file.parent.mkdir(parents=True)
        file.touch()
    monkeypatch.setattr(run, "run_snakemake", lambda _: 0)
    assert CliRunner().invoke(app, ["run", "mine.yaml"]).exit_code == 0


def test_a_study_of_private_data_is_complete_without_its_sweeps(folder):
    more = {"budget": {"epsilon": 9.0, "delta": 2e-5}, "figures": "none"}
    (folder / "mine.yaml").write_text(yaml.safe_dump(sections() | more))
    said = {
        word: CliRunner().invoke(app, [word, "mine.yaml", *options]).output
        for word, *options in (["report"], ["status"], ["check", "--seconds", "0"])
    }
    page = (folder / "results" / "report.html").read_text()
    assert not re.search('unfinished|id="incomplete|not finished|planned cell|no trial yet', page)
    assert "digits_vit_method: private, trained only with --unaccounted" in said["status"]
    assert "waiting\nThe study's" in said["status"] and "time left" not in said["status"]
    rest = "By basic composition a next model may have at least ε = 9 at δ = 1e-05"
    for each in (page, said["status"], said["check"]):
        assert f"budget is ε = 9 at δ = 2e-05. {rest}" in each


def given(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin the workflow as Snakemake does with ``--config unaccounted=word``."""
    monkeypatch.setattr("sys.argv", ["snakemake"])
    monkeypatch.setattr("os.environ", {"PATH": "", UNACCOUNTED: os.environ.get(UNACCOUNTED, "0")})
    begin(parse_config(["study=mine.yaml", f"unaccounted={word}"]))


@pytest.mark.parametrize(
    ("word", "allowed"), [("True", True), ("1", True), ("false", False), ("0", False)]
)
@pytest.mark.parametrize("inherited", ["1", "0"])
def test_the_workflow_passes_the_permission_to_its_jobs(monkeypatch, word, allowed, inherited):
    """Whatever the environment says; Snakemake passes ``false`` as text, which Python takes for true."""
    monkeypatch.setenv(UNACCOUNTED, inherited)
    given(word, monkeypatch)
    refused = (
        contextlib.nullcontext() if allowed else pytest.raises(StudyError, match="--unaccounted")
    )
    with refused:
        refuse_unaccounted(Study.model_validate(sections()), "digits")


@pytest.mark.parametrize("word", ["no", "yes", "2", "[]", ""])
def test_other_words_than_true_and_false_are_refused(folder, monkeypatch, word):
    with pytest.raises(DpsweepError, match=r"unaccounted: .*allowed: true or false"):
        given(word, monkeypatch)
    monkeypatch.setenv(UNACCOUNTED, word)
    asked: list[Callable[[], object]] = [
        lambda: refuse_unaccounted(Study.model_validate(sections()), "digits"),
        lambda: begin({"study": "mine.yaml"}),  # before any job, also in a dry run
    ]
    for each in asked:
        with pytest.raises(DpsweepError, match=rf"{UNACCOUNTED}: .*allowed: true or false") as said:
            each()
        assert f"found {word or 'nothing'};" in str(said.value)


@pytest.mark.parametrize(
    "given", [{"target": "lora"}, {"partial": "true"}, {"extends": "demo", "sweeps": {}}, {"": ""}]
)
def test_names_that_config_does_not_have_are_refused(given):
    """A plan of everything would be the answer to ``target=``; ``--configfile mine.yaml`` is no study."""
    with pytest.raises(
        DpsweepError, match=r"--config: found .*allowed: study, targets, unaccounted"
    ):
        begin(given)
