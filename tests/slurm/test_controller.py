"""A restart of the controller, a job cancelled by hand, and types of GPUs, on a real Slurm."""

import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.slurm import cluster
from tests.slurm.site import Site
from tests.slurm.test_slurm import SHORT, ten_cells, training_pid
from tests.waiting import PATIENCE, wait_for
from tests.workflow.chain import ROOT, Chain

pytestmark = pytest.mark.nightly
if "DPSWEEP_TEST_SLURM" not in os.environ:
    pytest.skip("takes a cluster: make test-slurm", allow_module_level=True)

EXAMPLES = [
    yaml.safe_load(block)
    for block in re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/cluster.md").read_text(), re.DOTALL)
]


def few_cells() -> dict[str, Any]:
    study = ten_cells()
    study["sweeps"] = {SHORT: study["sweeps"][SHORT] | {"clipping_bound": [1.0, 2.0]}}
    return study


def with_account(site: Site, **asked: Any) -> Site:
    """Set the account of a site, and the resources of ``check_gpu``."""
    file = site.folder / "profiles/slurm/config.yaml"
    profile = yaml.safe_load(file.read_text())
    profile["default-resources"]["slurm_account"] = "good"
    profile["set-resources"]["check_gpu"] = asked
    file.write_text(yaml.safe_dump(profile))
    return site


def test_a_run_survives_a_restart_of_the_controller(
    slurm: None, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    local = Chain(tmp_path_factory.mktemp("local"), few_cells())
    local.run("results/data/digits/metadata.json", "results/backbones/vit/metadata.json")
    site = with_account(Site(tmp_path / "clone", few_cells(), local.results))
    run = site.start("--verbose", "--", f"results/problems/{SHORT}.parquet")
    try:
        _, cell = wait_for(lambda: [s[1:3] for s in site.starts(SHORT)], "first cell", run)[0]
        pid = wait_for(lambda: training_pid(cell), "training", run)
        os.kill(pid, signal.SIGSTOP)
        cluster.stop_controller()
        # The plugin asks the controller for MinJobAge before each status check.
        unanswered = "MinJobAge=None"
        wait_for(lambda: site.snakemake_log().count(unanswered) > 2, "three status checks", run)
        cluster.start_controller()
        number = next(job for job, _, name, _ in site.starts(SHORT) if name == cell)
        subprocess.run(["scancel", number], check=True)
        assert run.wait(timeout=PATIENCE) == 0, site.said
    finally:
        if run.poll() is None:
            run.kill()
    assert len(site.cells()) == 4
    assert "SLURM status is: 'CANCELLED'" in site.snakemake_log()


@pytest.mark.parametrize(
    ("example", "kind"), [(1, "gpu:a100-sxm4-80gb:1"), (2, "gpu:"), (None, "gpu:1g.10gb:1")]
)
def test_the_examples_get_the_gpus_that_they_request(
    slurm: None, example: int | None, kind: str, tmp_path: Path
) -> None:
    """``check_cluster``, with the requests for GPUs of the page's examples, and with a MIG slice."""
    asked = {"gpu": 0, "gres": "gpu:1g.10gb:1"}
    if example is not None:
        settings = EXAMPLES[example]
        asked = dict(settings["set-resources"]["check_gpu"])
        extra = settings.get("default-resources", {}).get("slurm_extra")
        asked |= {"slurm_extra": extra} if extra else {}
    site = with_account(Site(tmp_path / "clone", few_cells()), **asked)
    run = site.start("check_cluster")
    try:
        number = wait_for(lambda: [n for n, _ in cluster.queue()], "job", run)[0]
        given = wait_for(lambda: cluster.gpus_of(number), "GPU of the job", run)
        assert run.wait(timeout=PATIENCE) == 0, site.said
    finally:
        if run.poll() is None:
            run.kill()
    assert kind in given
    assert f"signal and requeue: Slurm job {number} went on after" in site.said
