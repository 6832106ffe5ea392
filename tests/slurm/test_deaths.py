"""Whatever ends a job on Slurm is named at the end of the run: its cell, Slurm's own words, the log."""

import copy
import os
import re
from pathlib import Path

import pytest
from tests.slurm import cluster
from tests.slurm.site import Site
from tests.waiting import PATIENCE, wait_for
from tests.workflow.chain import STUDY, Chain

pytestmark = pytest.mark.slow
if "DPSWEEP_TEST_SLURM" not in os.environ:
    pytest.skip("takes a cluster: make test-slurm", allow_module_level=True)

PROBLEM = "digits_vit_film"
MEGABYTES = 1500
# A cell for every death, by its clipping bound; one that needs a calibration of its own; one that is well.
MEMORY, DISK, TIME, NODE, WELL = (f"eps8_epochs2_B128_C{c}" for c in (1, 2, 3, 4, 5))
REFUSED = "eps8_epochs2_B64_C1"
CALIBRATION = "results/noise/digits/eps8_epochs2_B64.json"
TROUBLE = f"""\
case "$*" in
    *{MEMORY}) python -c 'import time; lost = b"1" * {2 * MEGABYTES}_000_000; time.sleep(10**6)' ;;
    *{DISK})
        mkdir -p results/cells/{PROBLEM}/{DISK}
        exec unshare --mount sh -c 'mount -t tmpfs -o size=8k none "$0" && exec dpsweep "$@"' \\
            results/cells/{PROBLEM}/{DISK} "$@" ;;
    *{TIME}) touch waits-for-its-limit; exec sleep infinity ;;
    *{NODE}) touch waits-for-its-node; exec sleep infinity ;;
esac
"""


@pytest.fixture(scope="module")
def said(slurm: None, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What a run says in which jobs die in five ways."""
    study = {key: STUDY[key] for key in ("title", "datasets", "backbones", "methods", "sweeps")}
    study = copy.deepcopy(study)
    study["sweeps"][PROBLEM] |= {
        **{"batch_size": [64, 128], "clipping_bound": [1.0, 2.0, 3.0, 4.0, 5.0]},
        **{"learning_rate": [0.01], "seeds": 1},
    }
    local = Chain(tmp_path_factory.mktemp("local"), study)
    made = ("data/digits/metadata.json", "backbones/vit/metadata.json")
    local.run(*(f"results/{file}" for file in (*made, "noise/digits/eps8_epochs2_B128.json")))
    return run_and_die(
        Site(
            tmp_path_factory.mktemp("deaths") / "clone",
            study,
            local.results,
            TROUBLE,
            cpu_partition="nowhere",
            # No second chance: a lost node would otherwise give its jobs back to the queue.
            options=f"--mem={MEGABYTES} --time=30 --no-requeue",
        )
    )


def run_and_die(site: Site) -> str:
    cells = (MEMORY, DISK, TIME, NODE, REFUSED, WELL)
    run = site.start(
        *("--retries", "0", "--"),
        *(f"results/cells/{PROBLEM}/{cell}/trials.parquet" for cell in cells),
    )
    try:
        wait_for((site.folder / "waits-for-its-limit").exists, "job that waits")
        number = next(job for job, _, cell, _ in site.starts(PROBLEM) if cell == TIME)
        cluster.update(number, "TimeLimit=1")
        wait_for((site.folder / "waits-for-its-node").exists, "job that waits")
        # The node takes all its jobs along, so it comes last.
        wait_for(lambda: len(cluster.queue()) == 1, "end of the other jobs")
        cluster.node("DOWN")
        assert run.wait(timeout=PATIENCE) == 1
    finally:
        if run.poll() is None:
            run.terminate()
            run.wait()
    assert (site.results / f"cells/{PROBLEM}/{WELL}/trials.parquet").exists(), site.said
    return site.said


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (f"{PROBLEM}/{MEMORY}", r"slurmstepd\S*: error: .*exceeded memory limit"),
        (f"{PROBLEM}/{DISK}", r"No space left on device"),
        (f"{PROBLEM}/{TIME}", r"Slurm job \d+: TIMEOUT; reason TimeLimit"),
        (f"{PROBLEM}/{NODE}", r"Slurm job \d+: NODE_FAIL"),
        (CALIBRATION, r"submission refused: .*[Ii]nvalid partition"),
    ],
)
def test_what_ended_a_job_is_named(said: str, name: str, words: str) -> None:
    summary = said[said.rindex("Exiting because a job execution failed") :]
    found = re.search(rf"^{re.escape(name)}\n((?:  .*\n)+)", summary, re.MULTILINE)
    assert found, summary
    assert re.search(words, found[1]), found[1]
    log = "logs/noise/digits" if name == CALIBRATION else f"logs/cells/{PROBLEM}"
    assert f"log: results/{log}/{Path(name).stem}.log" in found[1]


def test_all_deaths_are_counted(said: str) -> None:
    assert "5 failed, 1 not started. This runs just what is missing:" in said
