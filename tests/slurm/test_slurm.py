"""Eight cells on a real Slurm, and what ends jobs there: a failure, a time limit, a preemption, kill -9.

The first call meets them all, the second one is ended by Ctrl-C, and the third makes what is missing. All is
counted from what the jobs themselves wrote. Nothing depends on the speed of the machine: a cell that is to be
disturbed is suspended (SIGSTOP) once it has something to lose, until it is hit.
"""

import copy
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from tests.slurm import cluster
from tests.slurm.site import Site
from tests.waiting import PATIENCE, wait_for
from tests.workflow.chain import ROOT, STUDY, Chain

pytestmark = pytest.mark.slow
if "DPSWEEP_TEST_SLURM" not in os.environ:
    pytest.skip("takes a cluster: make test-slurm", allow_module_level=True)

SHORT, LONG = "digits_vit_film", "digits_vit_film_sgd"
BOUNDS = ("0.1", "1", "3")
LIMITED, PREEMPTED, KILLED = (f"eps8_epochs30_B16_C{bound}" for bound in BOUNDS)
BAD = "eps8_epochs2_B128_C1"
TARGETS = [f"results/problems/{name}.parquet" for name in (LONG, SHORT)]
# One cell fails while there is a file.
TROUBLE = f"""\
case "$* " in *" {BAD} "*) [ ! -e bad ] || {{ echo 'error: broken on purpose'; exit 1; }} ;; esac
"""


def eight_cells() -> dict[str, Any]:
    study = {key: STUDY[key] for key in ("title", "datasets", "backbones", "methods", "sweeps")}
    study = copy.deepcopy(study)
    study["sweeps"][SHORT] |= {
        **{"learning_rate": [0.003], "seeds": 1, "batch_size": [128]},
        "clipping_bound": [1.0, 2.0, 3.0, 4.0, 5.0],
    }
    # 2,526 steps, with a checkpoint every few of them.
    study["sweeps"][LONG] = study["sweeps"][SHORT] | {
        **{"optimizer": "sgd", "epochs": [30], "batch_size": [16]},
        "clipping_bound": [float(bound) for bound in BOUNDS],
    }
    study["training"] = {"checkpoint_minutes": 0.01}
    return study


def training_pid(cell: str) -> int | None:
    """The Python process that trains a cell."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if cell in words and "train" in words and "python" in words[0]:
            return int(folder.name)
    return None


def was_told(pid: int) -> bool:
    """Whether SIGUSR1 waits for a suspended process, or has woken and ended it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return True
    bits = int(re.findall(r"^ShdPnd:\s*([0-9a-f]+)$", status, re.MULTILINE)[0], 16)
    return bool(bits >> (signal.SIGUSR1 - 1) & 1)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    """The same study on this machine without Slurm, with what jobs read."""
    chain = Chain(tmp_path_factory.mktemp("local"), eight_cells())
    chain.run(*TARGETS, options=("--until", "calibrate", "prepare_dataset", "prepare_backbone"))
    return chain


@pytest.fixture(scope="module")
def disturbed(slurm: None, local: Chain, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """The study after a first call that was disturbed."""
    folder = tmp_path_factory.mktemp("slurm") / "clone"
    site = Site(folder, eight_cells(), local.results, TROUBLE)
    (folder / "bad").touch()
    run = site.start("--prioritize", TARGETS[0], "--resources", "runtime=60", "--", *TARGETS)
    try:
        disturb(site, run)
        assert run.wait(timeout=PATIENCE) == 1
    except AssertionError as error:
        error.add_note(site.evidence())
        raise
    finally:
        if run.poll() is None:
            run.kill()
    return site


def disturb(site: Site, run: "subprocess.Popen[bytes]") -> None:
    """End three cells that have a checkpoint."""
    cells = {LIMITED: "", PREEMPTED: "", KILLED: ""}
    pids: dict[str, int] = {}

    def suspended() -> bool:
        # Cells that run side by side are watched together: one may end while another is waited for.
        for cell in cells.keys() - pids.keys():
            logs = (site.results / "logs/cells" / LONG).glob(f"{cell}-*.log")
            pid = training_pid(cell)
            if pid and any("checkpoint at step" in log.read_text() for log in logs):
                os.kill(pid, signal.SIGSTOP)
                pids[cell], cells[cell] = pid, site.jobs(LONG, cell)[-1]
                # On a busy machine others take longer than this cell is given.
                cluster.update(cells[cell], "TimeLimit=60")
        return pids.keys() == cells.keys()

    wait_for(suspended, "checkpoints", run, every=0.2)
    os.kill(pids[KILLED], signal.SIGKILL)
    # A job is told 120 s before its limit, which is now.
    hours, minutes, _ = map(int, cluster.job(cells[LIMITED])["RunTime"].split(":"))
    cluster.update(cells[LIMITED], f"TimeLimit={60 * hours + minutes + 2}")
    wait_for(lambda: was_told(pids[LIMITED]), "signal before the time limit", run)
    os.kill(pids[LIMITED], signal.SIGCONT)
    subprocess.run(["scontrol", "requeue", cells[PREEMPTED]], check=True)  # as Slurm preempts
    os.kill(pids[PREEMPTED], signal.SIGCONT)
    wait_for(lambda: cluster.job(cells[LIMITED])["Restarts"] == "1", "requeue", run)
    # Slurm signals once: not while the next start is still reading its libraries.
    cluster.update(cells[LIMITED], "TimeLimit=60")


def status(site: Site, *options: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", "dpsweep.cli", "status", *options],
        cwd=site.folder,
        env=site.environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_only_the_bad_cell_is_missing_and_status_tells_why(disturbed: Site) -> None:
    done = disturbed.cells()
    assert len(done) == 7 and f"{SHORT}/{BAD}" not in done
    assert (disturbed.results / f"problems/{LONG}.parquet").exists()
    assert not (disturbed.results / f"problems/{SHORT}.parquet").exists()
    everything = next(line for line in status(disturbed).splitlines() if line.startswith("all "))
    assert everything.split()[1:6] == ["7", "0", "1", "0", "0"]
    said = status(disturbed, "--failed")
    assert all(words in said for words in (f"{SHORT}/{BAD}", "broken on purpose", "1 failed"))


def test_jobs_go_on_from_their_checkpoints(disturbed: Site) -> None:
    """Slurm requeues what met its limit or was preempted. What was killed is another job."""
    jobs = {cell: disturbed.jobs(LONG, cell) for cell in (LIMITED, PREEMPTED, KILLED)}
    assert {cell: (len(each), len(set(each))) for cell, each in jobs.items()} == {
        LIMITED: (2, 1), PREEMPTED: (2, 1), KILLED: (2, 2),
    }  # fmt: skip
    journal = disturbed.journal_text()
    assert journal.count("stopped by SIGUSR1, exit status 75") == 1
    went_on = re.findall(r"^(\d+) .*continuing from step", journal, re.MULTILINE)
    assert sorted(went_on) == sorted(each[-1] for each in jobs.values())


def test_no_trial_is_trained_twice_and_every_job_had_a_gpu(disturbed: Site) -> None:
    finished = re.findall(r"learning rate \S+, seed \d+: macro accuracy", disturbed.journal_text())
    assert len(finished) == len(disturbed.stored_trials()) == 7
    gpus = re.findall(r"^start \d+ (\S+) \d+ train ", disturbed.journal_text(), re.MULTILINE)
    assert set(gpus) <= {str(number) for number in range(cluster.GPUS)}


def test_ctrl_c_cancels_the_jobs_and_the_same_call_goes_on(disturbed: Site, local: Chain) -> None:
    before, trials = disturbed.cells(), disturbed.stored_trials()
    (disturbed.folder / "bad").unlink()
    run = disturbed.start("--", *TARGETS)
    pid = wait_for(lambda: training_pid(BAD), "training", run)
    os.kill(pid, signal.SIGSTOP)
    run.send_signal(signal.SIGINT)
    assert run.wait(timeout=PATIENCE) != 0
    subprocess.run(["scancel", "--me"], check=True)  # if its status was just being asked
    wait_for(lambda: not cluster.queue(), "empty queue")
    disturbed.run("--", *TARGETS)
    assert disturbed.cells() == before | {f"{SHORT}/{BAD}": disturbed.cells()[f"{SHORT}/{BAD}"]}
    assert disturbed.stored_trials().items() > trials.items()
    assert "Nothing to be done" in disturbed.run("--", *TARGETS)

    # After all that, cells are those of a run that nobody disturbed.
    local.run(TARGETS[0])
    ours, alone = (pd.read_parquet(chain.folder / TARGETS[0]) for chain in (disturbed, local))
    measured = [column for column in ours if "second" not in column and "time" not in column]
    pd.testing.assert_frame_equal(ours[measured], alone[measured])


def test_check_cluster_gets_the_gpus_that_the_page_asks_for(slurm: None, tmp_path: Path) -> None:
    """With the requests of the examples of docs/cluster.md that this cluster has, and for a MIG slice."""
    page = (ROOT / "docs/cluster.md").read_text()
    blocks = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    _, hyphen, lumi = (yaml.safe_load(block) for block in blocks)
    any_kind = lumi["default-resources"]["slurm_extra"]
    asked = (
        (hyphen["set-resources"]["check_gpu"], "01"),
        (lumi["set-resources"]["check_gpu"] | {"slurm_extra": any_kind}, "0123"),
        ({"gpu": 0, "gres": "gpu:1g.10gb:1"}, "23"),
    )
    runs = []
    for number, (request, _) in enumerate(asked):
        site = Site(tmp_path / f"clone{number}", eight_cells())
        file = site.folder / "profiles/slurm/config.yaml"
        profile = yaml.safe_load(file.read_text())
        profile["set-resources"]["check_gpu"] = request
        file.write_text(yaml.safe_dump(profile))
        runs.append((site, site.start("check_cluster")))
    for (site, run), (_, gpus) in zip(runs, asked, strict=True):
        assert run.wait(timeout=PATIENCE) == 0, site.said
        assert "signal and requeue: Slurm job" in site.said
        given = re.findall(r"^start \d+ (\S+) \d+ check-machine", site.journal_text(), re.MULTILINE)
        assert len(given) == 2 and set(given) <= set(gpus), given
