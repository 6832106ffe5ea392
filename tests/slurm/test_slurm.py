"""Ten cells on a real Slurm without accounting, and everything that can end jobs there; requests for GPUs.

In the first call, a cell fails, one runs out of memory, one reaches its time limit, one is cancelled by
hand, and the node is lost. Ctrl-C ends the second call, and the third makes the missing outputs. All counts
come from the jobs' own journal.

The tests do not depend on the speed of the machine: a cell to be disturbed is suspended (SIGSTOP) once it has
a checkpoint, until it is ended.
"""

import copy
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest
import yaml
from tests.slurm import cluster
from tests.slurm.site import Site
from tests.waiting import PATIENCE, called, wait_for
from tests.workflow.chain import ROOT, STUDY, Chain

if "DPSWEEP_TEST_SLURM" not in os.environ:
    pytest.skip("takes a cluster: make test-slurm", allow_module_level=True)

SHORT, LONG = "digits_vit_film", "digits_vit_film_sgd"
BOUNDS = ("0.1", "1", "3", "10")
LIMITED, CANCELLED, LOST, KILLED = (f"eps8_epochs30_B16_C{bound}" for bound in BOUNDS)
BAD, GREEDY = "eps8_epochs2_B64_C1", "eps8_epochs2_B64_C2"
MEGABYTES = 2500
TARGETS = [f"results/problems/{name}.parquet" for name in (LONG, SHORT)]
# One cell fails while a file exists, one uses too much memory at its first attempt.
TROUBLE = f"""\
case "$* " in
    *" {BAD} "*) [ ! -e bad ] || {{ echo 'error: broken on purpose'; exit 1; }} ;;
    *" {GREEDY} "*) [ -e tried ] || {{
        touch tried; exec python -c 'import time; lost = b"1" * {2 * MEGABYTES}_000_000; time.sleep(10**6)'
    }} ;;
esac
"""


def ten_cells() -> dict[str, Any]:
    study = {key: STUDY[key] for key in ("title", "datasets", "backbones", "methods", "sweeps")}
    study = copy.deepcopy(study)
    one = {"learning_rate": [0.003], "seeds": 1}
    study["sweeps"][SHORT] |= one | {"batch_size": [64, 128], "clipping_bound": [1.0, 2.0, 3.0]}
    # 2,526 steps, with a checkpoint every few of them.
    study["sweeps"][LONG] = study["sweeps"][SHORT] | {
        **{"optimizer": "sgd", "epochs": [30], "batch_size": [16]},
        "clipping_bound": [float(bound) for bound in BOUNDS],
    }
    study["training"] = {"checkpoint_minutes": 0.01}
    return study


def training_pid(cell: str) -> int | None:
    """Return the Python process that trains a cell."""
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or [""]
        if "python" in words[0] and {"train", cell} <= set(words):
            return int(process.pid)
    return None


def was_told(pid: int) -> bool:
    """Return whether SIGUSR1 is pending for a suspended process, or has already ended it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return True
    bits = int(re.findall(r"^ShdPnd:\s*([0-9a-f]+)$", status, re.MULTILINE)[0], 16)
    return bool(bits >> (signal.SIGUSR1 - 1) & 1)


@pytest.fixture(scope="module")
def slurm() -> Iterator[None]:
    """Start a fresh cluster."""
    if reason := cluster.missing():
        pytest.skip(reason)
    with cluster.running():
        yield


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    """Return the same study on this machine without Slurm, with the inputs of jobs."""
    chain = Chain(tmp_path_factory.mktemp("local"), ten_cells())
    chain.run(*TARGETS, options=("--until", "calibrate", "prepare_dataset", "prepare_backbone"))
    return chain


@pytest.fixture(scope="module")
def disturbed(slurm: None, local: Chain, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Return the study after the disturbed first call."""
    folder = tmp_path_factory.mktemp("slurm") / "clone"
    site = Site(folder, ten_cells(), local.results, TROUBLE)
    (folder / "bad").touch()
    limits = ("--resources", f"mem_mb={MEGABYTES}", "runtime=60")
    run = site.start("--prioritize", TARGETS[0], *limits, "--", *TARGETS)
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


class LongCells:
    """The jobs and processes of the cells that are disturbed."""

    def __init__(self, site: Site, run: "subprocess.Popen[bytes]") -> None:
        self.site, self.run = site, run
        self.processes: dict[str, list[psutil.Process]] = {}

    def starts(self, cell: str) -> list[str]:
        """Return Slurm's jobs that started a cell."""
        return [job for job, _, name, _ in self.site.starts(LONG) if name == cell]

    def suspend(self, *cells: str, start: int = 1) -> None:
        """Stop the processes of each cell once it has this number of starts and a checkpoint.

        Parallel cells are watched together, because one could end while another is awaited.
        """
        left = set(cells)

        def suspended() -> bool:
            cluster.let_start_first(LONG)
            for cell in sorted(left):
                # A start empties the log.
                logs = (self.site.results / "logs/cells" / LONG).glob(f"{cell}-*.log")
                saved = any("checkpoint at step" in log.read_text() for log in logs)
                jobs = self.starts(cell)
                pid = training_pid(cell) if len(jobs) == start and saved else None
                if pid is not None:
                    first = psutil.Process(pid)
                    self.processes[cell] = [first, *first.children()]
                    for process in self.processes[cell]:
                        process.suspend()
                    # On a busy machine a cell takes longer than its limit.
                    cluster.update(f"JobId={jobs[-1]}", "TimeLimit=60")
                    left.discard(cell)
            return not left

        wait_for(suspended, f"checkpoints of {', '.join(cells)}", self.run, every=0.5)

    def wait_for_another(self, cell: str) -> None:
        """Wait until another job continues an ended cell."""

        def goes_on() -> bool:
            cluster.let_start_first(LONG)
            return continued(self.site, self.starts(cell)[1:]) > 0

        wait_for(goes_on, f"another {cell}", self.run, every=0.5)

    def resume(self, cell: str) -> None:
        for process in self.processes[cell]:
            with suppress(psutil.NoSuchProcess):
                process.resume()

    def meet_limit(self, cell: str) -> None:
        """Shorten a suspended cell's time limit, so that Slurm signals now: 120 s before the limit."""
        job = self.starts(cell)[-1]
        hours, minutes, _ = map(int, cluster.job(job)["RunTime"].split(":"))
        restarts = int(cluster.job(job)["Restarts"])
        cluster.update(f"JobId={job}", f"TimeLimit={60 * hours + minutes + 2}")
        wait_for(
            lambda: was_told(self.processes[cell][0].pid), "signal before the time limit", self.run
        )
        self.resume(cell)
        requeued = str(restarts + 1)
        wait_for(lambda: cluster.job(job)["Restarts"] == requeued, f"requeue of {cell}", self.run)
        # Slurm signals only once, so not while the next start still imports its libraries.
        cluster.update(f"JobId={job}", "TimeLimit=60")


def continued(site: Site, jobs: list[str]) -> int:
    """Return how often jobs of Slurm continued from a checkpoint, or found their trial finished.

    The latter happens if a node is lost between the last step of a trial and the end of its job.
    """
    pattern = r"^(\d+) .*(?:continuing from step|best learning rate .* 0 of 1 trials trained now)"
    said = re.findall(pattern, site.journal_text(), re.MULTILINE)
    return sum(job in jobs for job in said)


def disturb(site: Site, run: "subprocess.Popen[bytes]") -> None:
    cells = LongCells(site, run)
    cells.suspend(LIMITED, CANCELLED, LOST, KILLED)
    cells.processes[KILLED][0].kill()
    subprocess.run(["scancel", *cells.starts(CANCELLED)], check=True)
    cells.meet_limit(LIMITED)
    cells.suspend(LIMITED, start=2)
    # Wait, because output of a job before it continues from its checkpoint would be lost with the node.
    for cell in (CANCELLED, KILLED):
        cells.wait_for_another(cell)
    # All jobs on the node end with it.
    cluster.lose_node()


@pytest.mark.slow
def test_only_the_bad_cell_is_missing(disturbed: Site) -> None:
    done = disturbed.cells()
    assert len(done) == 9
    assert f"{SHORT}/{BAD}" not in done
    assert (disturbed.results / f"problems/{LONG}.parquet").exists()
    assert not (disturbed.results / f"problems/{SHORT}.parquet").exists()
    # A cell without enough memory is tried again.
    starts = disturbed.starts(SHORT)
    assert len({job for job, _, cell, _ in starts if cell == GREEDY}) == 2
    assert f"{SHORT}/{GREEDY}" in done
    # No trial is trained twice, and every job had a GPU.
    finished = re.findall(r"learning rate \S+, seed \d+: macro accuracy", disturbed.journal_text())
    assert len(finished) == len(disturbed.stored_trials()) == 9
    gpus = {gpu for _, gpu, _, _ in starts + disturbed.starts(LONG)}
    assert gpus == {str(number) for number in range(cluster.GPUS)}


@pytest.mark.slow
def test_slurm_restarts_jobs_that_met_their_limit_or_lost_their_node(disturbed: Site) -> None:
    """The same job of Slurm is requeued; after a cancellation or kill it is another job."""
    jobs = {
        cell: [job for job, _, name, _ in disturbed.starts(LONG) if name == cell]
        for cell in (LIMITED, CANCELLED, LOST, KILLED)
    }
    assert {cell: len(set(each)) for cell, each in jobs.items()} == {
        LIMITED: 1, CANCELLED: 2, LOST: 1, KILLED: 2,
    }  # fmt: skip
    assert len(jobs[LIMITED]) == 3  # after its limit, and after the loss of the node
    assert len(jobs[LOST]) == 2
    journal = disturbed.journal_text()
    assert journal.count("stopped by SIGUSR1, exit status 75") == 1
    assert {cell: continued(disturbed, each) for cell, each in jobs.items()} == {
        cell: len(each) - 1 for cell, each in jobs.items()
    }


def status(site: Site, *options: str) -> str:
    command = [sys.executable, "-m", "dpsweep", "status", *options]
    return called(command, site.folder, site.environment).stdout


@pytest.mark.slow
def test_status_lists_failures_from_files(disturbed: Site) -> None:
    everything = next(line for line in status(disturbed).splitlines() if line.startswith("all "))
    assert everything.split()[1:5] == ["9", "0", "1", "0"]
    said = status(disturbed, "--failed")
    assert f"{SHORT}/{BAD}" in said
    assert "broken on purpose" in said
    assert "1 job failed" in said
    # Slurm's messages about the others are in its logs.
    assert "SLURM status is: 'CANCELLED'" in disturbed.snakemake_log()
    slurms = (disturbed.folder / ".snakemake/slurm_logs").rglob("*.log")
    assert any("exceeded memory limit" in log.read_text() for log in slurms)


@pytest.mark.slow
def test_ctrl_c_cancels_the_jobs_and_the_same_call_continues(disturbed: Site) -> None:
    before, trials, begun = disturbed.cells(), disturbed.stored_trials(), disturbed.journal_text()
    (disturbed.folder / "bad").unlink()
    run = disturbed.start("--", *TARGETS)
    pid = wait_for(lambda: training_pid(BAD), "training", run)
    os.kill(pid, signal.SIGSTOP)
    run.send_signal(signal.SIGINT)
    assert run.wait(timeout=PATIENCE) != 0
    subprocess.run(["scancel", "--me"], check=True)  # if its status was just being asked
    wait_for(lambda: not cluster.queue(), "empty queue")
    disturbed.run("--", *TARGETS)
    after = disturbed.cells()
    assert {name: after[name] for name in before} == before
    assert after.keys() - before.keys() == {f"{SHORT}/{BAD}"}
    stored = disturbed.stored_trials()
    assert {key: stored[key] for key in trials} == trials
    new = disturbed.journal_text().removeprefix(begun)
    started = re.findall(r"^start .* train .* (\S+) --planned \S+$", new, re.MULTILINE)
    assert Counter(started).keys() == {BAD}
    assert "Nothing to be done" in disturbed.run("--", *TARGETS)


@pytest.mark.slow
def test_interrupted_cells_equal_those_of_an_undisturbed_run(disturbed: Site, local: Chain) -> None:
    local.run(TARGETS[0])
    ours, alone = (
        pd.read_parquet(chain.results / f"problems/{LONG}.parquet") for chain in (disturbed, local)
    )
    measured = [column for column in ours if "second" not in column and "time" not in column]
    pd.testing.assert_frame_equal(ours[measured], alone[measured])


# -- GPUs ----------------------------------------------------------------------------------------


def one_cell(gpus: int) -> dict[str, Any]:
    study = copy.deepcopy(ten_cells())
    study["sweeps"] = {LONG: study["sweeps"][LONG] | {"clipping_bound": [0.1]}}
    study["training"]["gpus"] = gpus
    return study


def ended(cells: LongCells) -> bool:
    return not any(process.is_running() for process in cells.processes[LIMITED])


@pytest.mark.nightly
def test_two_processes_of_a_job_survive_its_limit_and_a_cancellation(
    slurm: None, tmp_path: Path
) -> None:
    (tmp_path / "local").mkdir()
    local = Chain(tmp_path / "local", one_cell(gpus=1))
    local.run(TARGETS[0], options=("--until", "calibrate", "prepare_dataset", "prepare_backbone"))
    site = Site(tmp_path / "clone", one_cell(gpus=2), local.results)
    run = site.start("--", TARGETS[0])
    cells = LongCells(site, run)
    try:
        cells.suspend(LIMITED)
        (number,) = cells.starts(LIMITED)
        assert cluster.job(number)["NumCPUs"] == "2"
        assert sum(map(int, re.findall(r":(\d+)(?:[,(]|$)", cluster.gpus_of(number)))) == 2
        commands = [" ".join(process.cmdline()) for process in cells.processes[LIMITED]]
        assert sum("spawn_main" in command for command in commands) == 2
        cells.meet_limit(LIMITED)
        wait_for(lambda: ended(cells), "end of the processes at the limit", run)
        cells.suspend(LIMITED, start=2)
        subprocess.run(["scancel", number], check=True)
        cells.resume(LIMITED)
        wait_for(lambda: ended(cells), "end of the cancelled processes", run)
        assert run.wait(timeout=PATIENCE) == 0, site.said
    except AssertionError as error:
        error.add_note(site.evidence())
        raise
    finally:
        if run.poll() is None:
            run.kill()
    jobs = cells.starts(LIMITED)
    assert [job == number for job in jobs] == [True, True, False]
    assert continued(site, jobs) == 2
    assert site.journal_text().count("stopped by SIGUSR1, exit status 75") == 1

    local.run(TARGETS[0])
    (found,), (expected,) = (
        pd.read_parquet(chain.results / f"problems/{LONG}.parquet").to_dict("records")
        for chain in (site, local)
    )
    assert (found["trial_key"], found["steps"]) == (expected["trial_key"], expected["steps"])
    numbers = [name for name, value in expected.items() if isinstance(value, float)]
    measured = [name for name in numbers if "second" not in name]
    assert {name: found[name] for name in measured} == pytest.approx(
        {name: expected[name] for name in measured}, rel=1e-5
    )


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("example", "kind"), [(1, "gpu:a100-sxm4-80gb:1"), (2, "gpu:"), (None, "gpu:1g.10gb:1")]
)
def test_the_examples_get_the_gpus_that_they_request(
    slurm: None, example: int | None, kind: str, tmp_path: Path
) -> None:
    """``check_cluster``, with the requests for GPUs of the page's examples, and with a MIG slice."""
    asked = {"gpu": 0, "gres": "gpu:1g.10gb:1"}
    if example is not None:
        blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/cluster.md").read_text(), re.DOTALL)
        settings = yaml.safe_load(blocks[example])
        asked = dict(settings["set-resources"]["check_gpu"])
        extra = settings.get("default-resources", {}).get("slurm_extra")
        asked |= {"slurm_extra": extra} if extra else {}
    site = Site(tmp_path / "clone", ten_cells())
    file = site.folder / "profiles/slurm/config.yaml"
    profile = yaml.safe_load(file.read_text())
    profile["default-resources"]["slurm_account"] = "good"
    profile["set-resources"]["check_gpu"] = asked
    file.write_text(yaml.safe_dump(profile))
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
