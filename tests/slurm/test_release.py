"""``snakemake --profile slurm release`` makes one model; kills and a preemption leave no parts of it."""

import copy
import os
import re
import subprocess
import sys

import pytest
from benchmarks.campaigns.campaign import processes
from tests.slurm import cluster
from tests.slurm.site import Site
from tests.waiting import PATIENCE, wait_for
from tests.workflow.chain import STUDY, Chain
from tests.workflow.test_release_rule import FILES, RELEASE, files

pytestmark = pytest.mark.nightly
if "DPSWEEP_TEST_SLURM" not in os.environ:
    pytest.skip("takes a cluster: make test-slurm", allow_module_level=True)

LIMIT_MINUTES = 25
MADE = ("data/digits/metadata.json", "backbones/vit/metadata.json")


@pytest.fixture(scope="module")
def site(slurm: None, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Return a clone on a cluster, with prepared data and network."""
    # 758 steps a trial: long enough to be interrupted.
    study = copy.deepcopy(STUDY) | {
        "release": RELEASE | {"epochs": [10], "batch_size": [16], "mean_trials": 2.0}
    }
    local = Chain(tmp_path_factory.mktemp("local"), study)
    local.run(*(f"results/{file}" for file in MADE))
    folder = tmp_path_factory.mktemp("slurm") / "clone"
    return Site(folder, study, local.results, runtime=str(LIMIT_MINUTES))


def begun(site: Site) -> list[str]:
    """Return Slurm's numbers of the jobs that started to train for release."""
    return re.findall(r"^start (\d+) \S+ \d+ release\b", site.journal_text(), re.MULTILINE)


def wait_for_training(site: Site, starts: int) -> str:
    """Wait until the release with this number of starts trains; return Slurm's number of its job."""

    def trains() -> bool:
        said = site.journal_text().split("\nstart ")[-1]
        return len(begun(site)) == starts and "a secret number of trials" in said

    wait_for(trains, "release that trains")
    return begun(site)[-1]


def kill_training(site: Site) -> None:
    """Kill the process that trains for release."""
    for process in processes(site.folder):
        words = process.cmdline()
        if "release" in words and "snakemake" not in words and "python" in words[0]:
            process.kill()


def test_a_release_survives_kills_and_a_preemption(site: Site) -> None:
    before = files(site.results)
    run = site.start("release")
    try:
        number = wait_for_training(site, starts=1)
        # A limit that only long runs reach would reveal their length.
        hours, minutes, _ = map(int, cluster.job(number)["TimeLimit"].split(":"))
        assert 60 * hours + minutes == LIMIT_MINUTES
        kill_training(site)
        # Snakemake tries again.
        second = wait_for_training(site, starts=2)
        assert second != number
        assert files(site.results) == before
        subprocess.run(["scontrol", "requeue", second], check=True)
        third = wait_for_training(site, starts=3)
        assert third == second
        assert files(site.results) == before
        # The job continues, and the next call submits another one.
        run.kill()
        run.wait()
        site.run("--unlock")
        run = site.start("release")
        assert run.wait(timeout=PATIENCE) == 0, site.said
        wait_for(lambda: not cluster.queue(), "end of the job of the killed call")
    finally:
        if run.poll() is None:
            run.terminate()
            run.wait()
    assert files(site.results) - before == FILES
    verify = [sys.executable, "-m", "dpsweep", "verify", str(site.results / "release")]
    done = subprocess.run(verify, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "(8, 1e-05)-differentially private" in done.stdout

    # The same command verifies the model, and does not make another one.
    started = begun(site)
    made = {file: (site.results / file).read_bytes() for file in FILES}
    assert "differentially private" in site.run("release")
    assert {file: (site.results / file).read_bytes() for file in FILES} == made
    assert begun(site) == started
