"""Calls of the workflow from another folder: environment, SIGTERM, profiles."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from benchmarks.common import snakemake
from snakemake.cli import get_argument_parser
from tests.waiting import PATIENCE, called, wait_for
from tests.workflow.chain import ROOT
from tests.workflow.tiny import SWEEP, TinyChain
from workflow.resources import JobResources

from dpsweep.study import load_study
from dpsweep.study.paths import Paths

STUDY = f"""\
extends: {ROOT}/studies/demo.yaml
results: results
privacy: {{check_with_opacus: false}}
figures: none
"""


@pytest.mark.slow
def test_the_workflow_runs_without_an_activated_environment(tmp_path: Path) -> None:
    study = tmp_path / "mine.yaml"
    study.write_text(STUDY)
    noise = str(Paths(Path("results")).noise(load_study(study), "digits", 8.0, 4, 64))
    called(
        snakemake(tmp_path, "--config", f"study={study}", "--", noise),
        tmp_path,
        os.environ | {"PATH": os.defpath},
    )
    assert (tmp_path / noise).exists()


@pytest.mark.slow
def test_sigterm_ends_a_run_as_ctrl_c_does(tmp_path: Path) -> None:
    """Snakemake's own handler waits for a lock that its thread may hold; then the run never ends."""
    (tmp_path / "mine.yaml").write_text(STUDY)
    run = subprocess.Popen(
        snakemake(tmp_path, "--config", "study=mine.yaml", "--", "all"),
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=(tmp_path / "said.txt").open("w"),
    )
    said = tmp_path / "said.txt"
    wait_for(lambda: "Select jobs to execute" in said.read_text(), "jobs", run)
    run.send_signal(signal.SIGTERM)
    # Inside a function of a rule, Snakemake reports the signal as an error of the rule, and ends as well.
    assert run.wait(timeout=PATIENCE) in (1, -signal.SIGINT)
    assert re.search("Terminating processes on user request|KeyboardInterrupt", said.read_text())


def test_jobs_get_the_minutes_of_the_profile() -> None:
    """Of the lowest and the newest Snakemake (make test-lowest); some between would give 24 minutes."""
    given = get_argument_parser([str(ROOT / "profiles/slurm")]).parse_args([]).resources["runtime"]
    assert getattr(given, "value", given) == 1440


def test_profiles_have_no_keys_that_the_default_one_decides() -> None:
    keys = {
        file.parent.name: yaml.safe_load(file.read_text()).keys()
        for file in (ROOT / "profiles").glob("*/config.yaml")
    }
    default = keys.pop("default")
    assert {name: default & own for name, own in keys.items() if default & own} == {}


@pytest.mark.parametrize("typed", ["1.4", "0.5", "20", "1e3", '"0.5"', "abc"])
def test_a_profile_gives_the_speed_that_was_typed(tmp_path: Path, typed: str) -> None:
    """YAML takes 1e3 for text, which Snakemake puts into quotes."""
    (tmp_path / "config.yaml").write_text(f"set-resources: {{plan: {{teraflops: {typed}}}}}\n")
    given = get_argument_parser([str(tmp_path)]).parse_args([]).set_resources
    assert JobResources.plan_teraflops(given) == typed.strip('"')


@pytest.mark.slow
def test_another_workflow_uses_this_one_as_a_module(tmp_path: Path) -> None:
    """As in docs/your-own-data.md."""
    chain = TinyChain(tmp_path)
    chain.study["sweeps"][SWEEP] |= {"batch_size": [32], "learning_rate": [0.01], "seeds": 1}
    chain.write()
    page = (ROOT / "docs" / "your-own-data.md").read_text()
    (block,) = re.findall(r"```python\n(.*?module dpsweep.*?)```", page, re.DOTALL)
    (tmp_path / "Snakefile").write_text(block.replace("pets.yaml", "study.yaml"))
    (tmp_path / "heading.txt").write_text("ours")

    command = [sys.executable, "-m", "snakemake", "--cores", "2", "--quiet", "progress"]
    called(command, tmp_path, chain.environment)
    assert (tmp_path / "summary.txt").read_text() == "ours\npets_vit_film\n"

    # Changed inputs of the other workflow's rules trigger only these rules.
    (tmp_path / "heading.txt").write_text("newer")
    table = chain.results / "problems" / "pets_vit_film.parquet"
    made = table.stat().st_mtime_ns
    os.utime(chain.results / "data" / "pets" / "metadata.json", (2e9, 2e9))
    called(command, tmp_path, chain.environment)
    assert (tmp_path / "summary.txt").read_text() == "newer\npets_vit_film\n"
    assert table.stat().st_mtime_ns == made


# -- an installed package in an empty folder -------------------------------------------------------

# One trial on a network without weights.
TINY = """\
extends: demo
results: results/tiny
privacy: {check_with_opacus: false}
audit: null
sweeps: !replace
  tiny: {dataset: digits-tenth, backbone: vit-random, method: film, epsilon: [8], epochs: [1],
    batch_size: [full], clipping_bound: [1], learning_rate: [0.01], seeds: 1}
roles: !replace
  datasets: {main: digits-tenth}
  backbones: {weak: vit-random}
  methods: {main: film}
figures: none
"""
SUBMIT = """\
#!/bin/sh
# Like the command of a scheduler: start the job elsewhere, and print its number.
nohup sh "$1" > /dev/null 2>&1 &
echo $! | tee -a submitted
"""


@pytest.mark.nightly
def test_a_study_runs_in_an_empty_folder_by_the_commands_of_another_scheduler(
    installed: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "tiny.yaml").write_text(TINY)
    submit = tmp_path / "submit.sh"
    submit.write_text(SUBMIT)
    submit.chmod(0o755)
    cluster = ("--executor", "cluster-generic", "--cluster-generic-submit-cmd", str(submit))
    run = [sys.executable, "-m", "dpsweep", "run", "--"]
    called([*run, *cluster, "--jobs", "2"], tmp_path, installed)
    assert (tmp_path / "results" / "tiny" / "report.html").exists()
    # Only the cell is submitted; jobs without a GPU run here.
    assert len((tmp_path / "submitted").read_text().splitlines()) == 1
    # A profile of the package is copied, to be edited.
    done = called([*run, "--profile", "slurm", "-n"], tmp_path, installed)
    assert "Nothing to be done" in done.stdout + done.stderr
    assert (tmp_path / "profiles" / "slurm" / "config.yaml").exists()
