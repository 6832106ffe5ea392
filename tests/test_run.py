"""`dpsweep run` passes every option to Snakemake, and no option replaces the named study."""

import argparse
import logging
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from snakemake.cli import get_argument_parser
from snakemake_interface_logger_plugins.common import LogEvent
from typer.testing import CliRunner

from dpsweep.cli import run
from dpsweep.cli.main import app
from dpsweep.study.load import PROJECT
from tests.waiting import called

STUDY = """\
extends: demo
results: results/mine
privacy: {check_with_opacus: false}
figures: none
"""
# One option of each kind.
OPTIONS = """
--cores 2
-np
--quiet rules
--until report
--forcerun train figure
--resources gpu=1
--set-threads train=2
--rerun-triggers mtime params
--configfile other.txt
--workflow-profile none
--snakefile other.smk
--replace-workflow-config
"""
PARSER = get_argument_parser()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a user's folder with two studies."""
    for name in ("mine", "other"):
        (tmp_path / f"{name}.yaml").write_text(STUDY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("SNAKEMAKE_PROFILE", raising=False)
    return tmp_path


Call = Callable[..., argparse.Namespace]


@pytest.fixture
def call(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Return a function that calls ``dpsweep run`` and returns the options that Snakemake parses."""
    handed: list[list[str]] = []
    monkeypatch.setattr(run, "run_snakemake", lambda words, **_: handed.append([*words]) or 0)

    def called(*words: str) -> argparse.Namespace:
        done = CliRunner().invoke(app, ["run", *words])
        assert done.exit_code == 0, f"{done.output}{done.exception}"
        profiles = PARSER.parse_args(handed[-1]).profile
        return get_argument_parser(profiles).parse_args(handed[-1])

    return called


def test_options_of_snakemake_do_not_change_study_and_targets(call: Call) -> None:
    alone = vars(PARSER.parse_args(OPTIONS.split()))
    read = vars(call("mine.yaml", "report", "--", *OPTIONS.split()))
    assert read["config"] == ["study=mine.yaml"] and read["targets"] == ["report"]
    not_compared = {"config", "targets", "max_jobs_per_timespan"}  # the last has no equality
    for name, default in vars(PARSER.parse_args([])).items():
        if alone[name] != default and name not in not_compared:
            assert read[name] == alone[name], name


@pytest.mark.parametrize("words", ["--profile slurm", "--profile=slurm"])
def test_a_profile_of_the_package_is_copied_and_one_of_the_user_found(
    folder: Path, call: Call, words: str
) -> None:
    assert call("mine.yaml", "--", *words.split()).profile == ["profiles/slurm"]
    copied, packaged = folder / "profiles" / "slurm", PROJECT / "profiles" / "slurm"
    assert {file.name for file in copied.iterdir()} == {file.name for file in packaged.iterdir()}
    (copied / "config.yaml").write_text("jobs: 7\n")
    assert call("mine.yaml", "--", *words.split()).jobs == 7
    place = folder / "config" / "snakemake" / "slurm"
    place.mkdir(parents=True)
    (place / "config.yaml").write_text("jobs: 5\n")
    assert call("mine.yaml", "--", *words.split()).jobs == 5


def test_targets_reach_snakemake_as_files(call: Call) -> None:
    table = "results/mine/problems/digits_vit-weak_film.parquet"
    for words, targets in {
        "mine.yaml report -- -n": ["report"],
        "mine.yaml report explore": ["report", "explore"],
        "mine.yaml -- report -n": ["report"],
        "mine.yaml digits_vit-weak_film": [table],
    }.items():
        read = call(*words.split())
        assert (list(read.targets), read.config[-1]) == (targets, "study=mine.yaml")


@pytest.mark.usefixtures("call")
def test_a_run_names_a_report_that_exists(folder: Path) -> None:
    def told(*options: str, target: str = "all") -> bool:
        call = ["run", "mine.yaml", *filter(None, [target]), "--", *options]
        return "Report: " in CliRunner().invoke(app, call).stderr

    assert not told("--until", "train")
    (folder / "results" / "mine").mkdir(parents=True)
    (folder / "results" / "mine" / "report.html").touch()
    assert told() and told(target="") and told(target="report") and not told(target="plan")
    assert not told("--unlock") and not told("-n")


def test_a_run_without_a_terminal_tells_the_first_figure_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    handler = run.Tenths()
    for number, rule in enumerate(["train", "figure", "figure"]):
        started = {"event": LogEvent.JOB_INFO, "jobid": number, "rule_name": rule}
        handler.emit(
            logging.makeLogRecord(started | {"output": [f"{number}.pdf", f"{number}.csv"]})
        )
    for number in (0, 2, 1):
        handler.emit(logging.makeLogRecord({"event": LogEvent.JOB_FINISHED, "job_id": number}))
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(r" the first figure is there after .*: 2\.pdf$", line), line


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_a_dry_run_shows_once_what_the_jobs_of_a_rule_ask_for() -> None:
    target = "digits_vit-strong_film"
    asking = ["--default-resources", "slurm_partition=gpu", "slurm_account=mine"]
    run = ["run", "mine.yaml", target, "--", "--profile", "slurm", "-np", *asking]
    done = called([sys.executable, "-m", "dpsweep", *run])
    asked = r"jobs, partition gpu, account mine, GPUs 1, CPUs 1, \d+ MB, \d+( to \d+)? minutes"
    shown = done.stderr
    assert len(re.findall(rf"(?m)^train: \d+ {asked}\n  dpsweep train {target} eps", shown)) == 1
    here = r"(?m)^calibrate: \d+ jobs, on this machine\n  dpsweep calibrate digits "
    assert len(re.findall(here, shown)) == 1
    assert shown.count("  dpsweep train ") == 1


@pytest.mark.slow
def test_plain_snakemake_makes_what_has_a_name(folder: Path) -> None:
    (folder / "drawn.yaml").write_text("extends: demo\nresults: results/drawn\n")
    names = ["digits_vit-strong_film", "fig1_accuracy_heatmaps", "tab1_tuning_implications"]
    project = ["--snakefile", PROJECT / "Snakefile", "--config", "study=drawn.yaml"]
    done = called([sys.executable, "-m", "snakemake", *project, "-n", "--", *names])
    counts = dict(re.findall(r"(?m)^ (\w[\w -]*\w) +(\d+) *$", done.stdout + done.stderr))
    assert (counts["figure"], counts["table with comparisons"]) == ("1", "1")
    assert int(counts["train"]) > 100
