"""`dpsweep run` passes every option to Snakemake, and no option replaces the named study."""

import argparse
import logging
import os
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from snakemake.cli import get_argument_parser
from snakemake_interface_logger_plugins.common import LogEvent
from typer.testing import CliRunner

from dpsweep.cli import options, progress, run
from dpsweep.cli.main import app
from dpsweep.cli.snakemake_call import read_call
from dpsweep.study import load_study
from dpsweep.study.find import PROJECT
from tests.synthetic import make_study
from tests.waiting import called

STUDY = """\
extends: demo
results: results/mine
privacy: {check_with_opacus: false}
figures: none
"""
# One option of each kind, and every spelling of options whose value looks like a study.
SPELLED = """
--cores 2
--cores=2
-c2
-np
--verbose
--quiet
--quiet rules
--until report
--forcerun train figure
-R train
--resources gpu=1
--set-threads train=2
--rerun-triggers mtime params
--config a=1 b=2
--config=a=1
-C a=1
--configfile other.txt
--configfiles=other.txt
-d .
-d.
--dir .
--directory=.
--workflow-profile none
--workflow-prof=none
--snakefile other.smk
-s other.smk
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
load_once = cache(lambda text: load_study(Path("mine.yaml")))


@pytest.fixture
def call(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Return a function that calls ``dpsweep run`` and returns the options that Snakemake parses."""
    handed: list[list[str]] = []

    def parser(profiles: list[str] | None = None) -> argparse.ArgumentParser:
        """Return Snakemake's own parser, made once because it has hundreds of options."""
        return get_argument_parser(profiles) if profiles else PARSER

    monkeypatch.setattr("snakemake.cli.get_argument_parser", parser)
    monkeypatch.setattr(options, "load_study", lambda *_: load_once(STUDY))
    monkeypatch.setattr(run, "run_snakemake", lambda words, **_: handed.append([*words]) or 0)

    def called(*words: str) -> argparse.Namespace:
        done = CliRunner().invoke(app, ["run", *words])
        assert done.exit_code == 0, f"{done.output}{done.exception}"
        read = PARSER.parse_args(handed[-1])
        return parser(read.profile).parse_args(handed[-1]) if read.profile else read

    return called


def study_of(read: argparse.Namespace) -> str:
    return read.config[-1]


@pytest.mark.parametrize("words", SPELLED.strip().split("\n"))
def test_options_of_snakemake_do_not_change_study_and_targets(call: Call, words: str) -> None:
    alone, read = (
        vars(PARSER.parse_args(words.split())),
        vars(call(*words.split(), "--", "mine.yaml", "report")),
    )
    assert Path(read["config"].pop().removeprefix("study=")).name == "mine.yaml"
    assert read["targets"] == ["report"] and read["config"] == (alone["config"] or [])
    not_compared = {"config", "targets", "max_jobs_per_timespan"}  # the last has no equality
    for name, default in vars(PARSER.parse_args([])).items():
        if alone[name] != default and name not in not_compared:
            assert read[name] == alone[name], name


@pytest.mark.parametrize(
    "words", [["--profile", "own"], ["--profile=own"], ["--prof=own"]], ids=" ".join
)
def test_a_profile_does_not_replace_the_named_study(
    folder: Path, call: Call, words: list[str]
) -> None:
    (folder / "own").mkdir()
    (folder / "own" / "config.yaml").write_text("config: [study=other.yaml, targets=x]\njobs: 3\n")
    read = call("mine.yaml", "--cores", "2", *words)
    assert study_of(read) == "study=mine.yaml"
    assert read.config[:-1] == ["study=other.yaml", "targets=x"] and read.jobs == 3
    assert (
        study_of(call(*words)) == "study=other.yaml"
    )  # without a named study, the profile's is used
    (folder / "own" / "config.yaml").write_text("configfile: named.yaml\n")
    (folder / "own" / "named.yaml").write_text("study: other.yaml\n")
    assert study_of(call(*words)) == "study=other.yaml"
    assert study_of(call("mine.yaml", *words)) == "study=mine.yaml"


@pytest.mark.parametrize("words", ["--profile slurm", "--profile=slurm", "--prof=slurm"])
def test_a_profile_of_the_package_is_copied_and_one_of_the_user_found(
    folder: Path, call: Call, words: str
) -> None:
    assert call("mine.yaml", *words.split()).profile == ["profiles/slurm"]
    copied, packaged = folder / "profiles" / "slurm", PROJECT / "profiles" / "slurm"
    assert {file.name for file in copied.iterdir()} == {file.name for file in packaged.iterdir()}
    (copied / "config.yaml").write_text("jobs: 7\n")
    assert call("mine.yaml", *words.split()).jobs == 7
    place = folder / "config" / "snakemake" / "site"
    place.mkdir(parents=True)
    (place / "config.yaml").write_text("jobs: 5\n")
    assert call("mine.yaml", "--profile=site").jobs == 5


@pytest.mark.usefixtures("call")
def test_standard_output_is_only_that_of_snakemake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise ``dpsweep run --dag | dot`` would fail."""
    monkeypatch.setattr(run, "_note_on_sources", lambda *_: "others")
    words = ["run", "mine.yaml", "--dag", "--profile", "slurm", "--set", "title=x"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0 and not done.stdout
    for said in ("note: others", "copied from the package", "the study with title=x"):
        assert said in done.stderr


@pytest.mark.parametrize(
    ("words", "targets"),
    [
        (["mine.yaml", "report", "-n"], ["report"]),
        (["mine.yaml", "-n", "report"], ["report"]),
        (["-n", "mine.yaml", "report"], ["report"]),
        (["mine.yaml", "report", "-n", "explore"], ["report", "explore"]),
        (["mine.yaml", "--until", "report", "--", "explore"], ["explore"]),
        (["mine.yaml", "--until", "report", "-n", "report"], ["report"]),
        (
            ["mine.yaml", "-n", "digits_vit-weak_film"],
            ["results/mine/problems/digits_vit-weak_film.parquet"],
        ),
    ],
)
def test_targets_may_be_between_options(call: Call, words: list[str], targets: list[str]) -> None:
    read = call(*words)
    assert list(read.targets) == targets
    assert study_of(read) == "study=mine.yaml"


@pytest.mark.parametrize(
    "words",
    [["-C", "study=other.yaml"], ["--config=study=other.yaml"], ["--configfile", "other.yaml"]],
    ids=" ".join,
)
def test_two_studies_are_refused_and_one_is_used(call: Call, words: list[str]) -> None:
    said = CliRunner().invoke(app, ["run", "mine.yaml", "-n", *words])
    assert "found mine.yaml, and other.yaml in the options" in str(said.exception)
    assert study_of(call("-n", *words)) == "study=other.yaml"


@pytest.mark.parametrize("words", ["--set privacy.delta=1e-6", "--set=privacy.delta=1e-6"])
def test_every_spelling_of_set_changes_the_study(folder: Path, call: Call, words: str) -> None:
    read = call("mine.yaml", "-n", *words.split(), "report")
    assert study_of(read) == "study=mine.set.yaml"
    assert "1.0e-06" in (folder / "mine.set.yaml").read_text() and list(read.targets) == ["report"]


def test_an_unknown_option_is_refused_in_two_lines(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        app(["run", "mine.yaml", "--no-such", "-n"], prog_name="dpsweep")
    said = capsys.readouterr().err.splitlines()[1:]
    assert said == ["dpsweep run: error: unrecognized arguments: --no-such"]


@pytest.mark.parametrize(
    "words",
    [
        "--resources gpu=x",
        "--cores x",
        "--default-resources mem_mb=100 report",
        "--set-threads train=2 report",
        "--set-resources train",
        "--groups a=1 report",
        "--consider-ancient a",
    ],
)
def test_values_that_snakemake_refuses_end_in_one_sentence(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Snakemake's parser raises errors of many kinds for them."""
    with pytest.raises(SystemExit) as end:
        read_call(["mine.yaml", *words.split()])
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert f"dpsweep run: error: Snakemake cannot read mine.yaml {words} (" in said
    assert "Targets stand before the options, or behind --" in said


def test_a_study_elsewhere_runs_in_its_own_folder(
    folder: Path,
    call: Call,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.chdir(elsewhere)
    (elsewhere / "own.yaml").write_text("a: 1\n")
    read = call(str(folder / "mine.yaml"), "--configfile", "own.yaml")
    assert read.directory == folder and study_of(read) == "study=mine.yaml"
    assert read.configfile == [Path("own.yaml")]  # relative to the current folder
    read = call(str(folder / "mine.yaml"), "-d", str(elsewhere))
    assert study_of(read) == f"study={folder / 'mine.yaml'}"


def test_a_folder_that_cannot_be_written_is_refused(folder: Path) -> None:
    said = CliRunner().invoke(app, ["run", "mine.yaml", "-d", "/proc", "-n"])
    assert "/proc: cannot be written, and Snakemake keeps its records" in str(said.exception)


@pytest.mark.parametrize(
    ("words", "made", "said"),
    [
        ([], True, "Report: "),
        ([], False, ""),
        (["--touch"], True, "--touch made nothing: 1 files have a new time, and "),
        (["-n"], True, ""),
        (["--touch", "-n"], True, ""),
        (["--delete-all-output"], False, ""),
    ],
    ids=str,
)
def test_a_run_prints_what_it_made(
    folder: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], made: bool, said: str
) -> None:
    report = folder / "results" / "mine" / "report.html"
    report.parent.mkdir(parents=True)
    report.touch()
    os.utime(report, (1e9, 1e9))
    monkeypatch.setattr(run, "run_snakemake", lambda _: (made and report.touch()) or 0)
    printed = CliRunner().invoke(app, ["run", "mine.yaml", *words]).output
    assert printed.startswith(said) and bool(printed) == bool(said)


def test_a_run_without_a_terminal_writes_ten_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 10_000, 2))
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    handler = progress.Tenths()
    for done in range(1, 38):
        record = logging.makeLogRecord({"event": LogEvent.PROGRESS, "done": done, "total": 37})
        handler.emit(record)
        handler.emit(logging.makeLogRecord({"msg": "another message"}))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 10
    assert re.search(r" 4 of 37 jobs \(11%\), 2\.0 s spent, about 16 s left$", lines[0]), lines[0]
    assert re.search(r" 37 of 37 jobs \(100%\), 20 s spent$", lines[-1]), lines[-1]


def test_a_run_without_a_terminal_tells_the_first_figure_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    handler = progress.Tenths()
    for number, rule in enumerate(["train", "figure", "figure"]):
        started = {"event": LogEvent.JOB_INFO, "jobid": number, "rule_name": rule}
        handler.emit(
            logging.makeLogRecord(started | {"output": [f"{number}.pdf", f"{number}.csv"]})
        )
    for number in (0, 2, 1):
        handler.emit(logging.makeLogRecord({"event": LogEvent.JOB_FINISHED, "job_id": number}))
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(r" the first figure is there after .*: 2\.pdf$", line), line


@pytest.mark.parametrize(
    ("words", "terminal", "shown"), [([], False, 1), ([], True, 0), (["--touch"], False, 0)]
)
def test_progress_is_written_if_jobs_run_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch, words: list[str], terminal: bool, shown: int
) -> None:
    root = logging.Logger("root")
    monkeypatch.setattr(logging, "getLogger", lambda: root)
    monkeypatch.setattr(sys, "argv", ["snakemake", *words, "all"])
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    progress.start()
    assert len(root.handlers) == shown


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        "--config=targets=x -d work --profile=demo",
        "--replace-workflow-config --configfile other.yaml --workflow-profile none --cores=1",
    ],
)
def test_snakemake_plans_the_named_study(folder: Path, words: str) -> None:
    (folder / "other.yaml").write_text("title: no study\n")
    made = "results/mine/data/digits/metadata.json"  # only in the named study
    done = called(
        [sys.executable, "-m", "dpsweep.cli", "run", "mine.yaml", "-n", *words.split(), "--", made]
    )
    assert re.search("prepare.dataset +1", done.stdout + done.stderr)
    assert (done.stdout + done.stderr).count("This was a dry-run") == 1
    assert not (folder / "results").exists() and not (folder / "work" / "results").exists()


def test_new_values_that_no_panel_draws_are_listed() -> None:
    """Panels with the ends of a grid do not draw new values between them."""
    panels = [{"epsilon": "loose"}, {"epsilon": "tight"}]
    figure = {"family": "heatmap", "section": "s", "caption": "c", "panels": panels}
    grid = {"epsilon": [1.0, 8.0], "batch_size": [100, 200], "clipping_bound": [0.1, 1.0]}
    before, between, wider = (
        make_study({"s": grid | {"epsilon": values}}, figures={"map": figure})
        for values in ([1.0, 8.0], [1.0, 2.0, 8.0], [0.5, 1.0, 8.0])
    )
    (line,) = run.undrawn_values(before, between, ["map"])
    assert line == "map does not draw epsilon 2 of sweeps.s: none of its panels has it"
    files = [f"results/figures/map.{suffix}" for suffix in ("pdf", "csv")]
    assert list(run.undrawn_values(before, between, files)) == [line]
    # Now 0.5 is the tight end, and 1 is between the ends; but only new values are listed.
    assert list(run.undrawn_values(before, wider, ["map"])) == []
    assert list(run.undrawn_values(before, between, ["all"])) == []
