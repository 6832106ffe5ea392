"""``snakemake --profile slurm all`` on a real Slurm, disturbed in every way that its users fear.

One run trains short cells in packs and long cells alone; four short ones are made to fail, and the
long ones meet a time limit, scancel, preemption and kill -9, with the controller away for a while.
The second call repairs the failed cells. Everything is counted from what the jobs themselves wrote.

Nothing depends on the speed of the machine: a cell that is to be disturbed is suspended (SIGSTOP)
once it has something to lose, until it is hit.
"""

import copy
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.slurm import cluster
from tests.slurm.site import Site
from tests.waiting import PATIENCE, wait_for
from tests.workflow.chain import STUDY, Chain

from dpsweep.planning.cost import cell_cost
from dpsweep.study import load_study

pytestmark = pytest.mark.slow
if "DPSWEEP_TEST_SLURM" not in os.environ:
    pytest.skip("takes a cluster: make test-slurm", allow_module_level=True)

SHORT, LONG = "digits_vit_film", "digits_vit_film_sgd"
BOUNDS = ("0.1", "1", "3", "10")
BAD = "eps8_epochs2_B96_C1"
BAD_CELLS = "_B96_"
JOB_MINUTES = 3
# Some cells fail while there is a file.
TROUBLE = f"""\
if [ -e bad ] && [[ "$*" = *{BAD_CELLS}* ]]; then
    echo 'error: broken on purpose'; exit 1
fi
"""


def small_study() -> dict[str, Any]:
    study = copy.deepcopy(STUDY)
    short = study["sweeps"][SHORT]
    short |= {"batch_size": [64, 96, 128], "clipping_bound": [float(bound) for bound in BOUNDS]}
    # 2,526 steps, with a checkpoint every few of them: too long for two in a job.
    study["sweeps"][LONG] = short | {
        "optimizer": "sgd",
        "epochs": [30],
        "batch_size": [16],
        "learning_rate": [0.003],
        "seeds": 1,
    }
    study["training"] = {"checkpoint_minutes": 0.01}
    heatmap = study["figures"]["heatmap"]
    heatmap["panels"].append({"title": "long", "optimizer": "sgd", "epochs": 30, "batch_size": 16})
    sound = {"title": "sound", "epochs": 2, "batch_size": [64, 128]}
    study["figures"]["sound"] = heatmap | {"panels": [sound]}
    return study


def site_of(folder: Path, local: Chain) -> Site:
    return Site(folder, small_study(), local.results, TROUBLE, job_minutes=JOB_MINUTES)


def training_pid(cell: str) -> int | None:
    """The Python process that trains a cell."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if cell in words and "train" in words and any("python" in word for word in words[:1]):
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
    """The same study, run on this machine without Slurm."""
    chain = Chain(tmp_path_factory.mktemp("local"), small_study())
    chain.run()
    return chain


@pytest.fixture(scope="module")
def disturbed(slurm: None, local: Chain, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """The study after a first call that was disturbed."""
    site = site_of(tmp_path_factory.mktemp("slurm") / "clone", local)
    # One calibration is left to the cluster, and four cells fail.
    (site.results / "noise/digits/eps8_epochs2_B128.json").unlink()
    (site.folder / "bad").touch()
    run = site.start("all")
    try:
        disturb(site, run)
        assert run.wait(timeout=PATIENCE) == 1
    finally:
        if run.poll() is None:
            run.terminate()
            run.wait()
    return site


def disturb(site: Site, run: "subprocess.Popen[bytes]") -> None:
    cells = [f"eps8_epochs30_B16_C{bound}" for bound in BOUNDS]
    pids: dict[str, int] = {}
    extended: set[str] = set()

    def all_suspended() -> bool:
        """Suspend each of the long cells as soon as it has a checkpoint."""
        assert run.poll() is None, site.said[-4000:]
        for number in {number for number, _, _, _ in site.starts(LONG)} - extended:
            # On a busy machine all of them take longer than one of them is given.
            cluster.update(number, "TimeLimit=60")
            extended.add(number)
        for cell in cells:
            log = site.results / "logs/cells" / LONG / f"{cell}.log"
            if cell not in pids and log.exists() and "checkpoint at step" in log.read_text():
                pid = training_pid(cell)
                assert pid is not None, log.read_text()
                os.kill(pid, signal.SIGSTOP)
                pids[cell] = pid
        return len(pids) == len(cells)

    wait_for(all_suspended, "checkpoints of long cells")
    limited, cancelled, preempted, killed = cells
    job = {cell: number for number, _, cell, _ in site.starts(LONG)}
    # The time limit comes near: the job is told 118 s before, which is now. Slurm looks every 30 s.
    minutes = int(cluster.job(job[limited])["RunTime"].split(":")[-2]) + 2
    cluster.update(job[limited], f"TimeLimit={minutes}")
    subprocess.run(["scancel", job[cancelled]], check=True)
    subprocess.run(["scontrol", "requeue", job[preempted]], check=True)
    os.kill(pids[killed], signal.SIGKILL)
    wait_for(lambda: was_told(pids[limited]), "signal before the time limit")
    with suppress(ProcessLookupError):
        os.kill(pids[limited], signal.SIGCONT)
    for cell in (limited, preempted):
        wait_for(lambda cell=cell: cluster.job(job[cell])["Restarts"] == "1", f"requeue of {cell}")
        cluster.update(job[cell], "TimeLimit=60")
    # The controller goes away, but not while it starts a job (which would fail, and be tried again)
    # or clears one up (which then takes a minute).
    cluster.partition("gpu", "DOWN")
    cluster.partition("cpu", "DOWN")

    def calm() -> bool:
        jobs = cluster.queue()
        running = {number for number, state in jobs if state == "RUNNING"}
        return {state for _, state in jobs} <= {"RUNNING", "PENDING"} and running == cluster.steps()

    wait_for(calm, "calm")
    cluster.stop_controller()
    time.sleep(8)  # longer than the time between two looks of Snakemake
    cluster.start_controller()
    cluster.partition("gpu", "UP")
    cluster.partition("cpu", "UP")


def test_bad_cells_stop_no_other_cell(disturbed: Site) -> None:
    assert set(disturbed.cells()) == {
        f"{SHORT}/eps8_epochs2_B{batch}_C{bound}" for batch in (64, 128) for bound in BOUNDS
    } | {f"{LONG}/eps8_epochs30_B16_C{bound}" for bound in BOUNDS}
    summary = disturbed.said[disturbed.said.rindex("Exiting because a job execution failed") :]
    assert f"{SHORT}/{BAD}" in summary
    assert "broken on purpose" in summary
    assert re.search(r"Slurm job \d+: FAILED", summary)
    assert f"results/logs/cells/{SHORT}/{BAD}.log" in summary
    assert "4 failed" in summary
    assert "This runs just what is missing:\n  snakemake --profile slurm all\n" in summary


def test_cells_beside_a_failed_one_are_done_and_drawn(disturbed: Site) -> None:
    packs: dict[str, set[bool]] = defaultdict(set)
    starts: Counter[str] = Counter()
    for job, _, cell, _ in disturbed.starts(SHORT):
        packs[job].add("_B96_" in cell)
        starts[cell] += 1
    assert {True, False} in packs.values()  # at least one pack was mixed
    assert {cell: count for cell, count in starts.items() if "_B96_" not in cell} == {
        f"eps8_epochs2_B{batch}_C{bound}": 1 for batch in (64, 128) for bound in BOUNDS
    }
    assert all(starts[f"eps8_epochs2_B96_C{bound}"] == 2 for bound in BOUNDS)
    assert (disturbed.results / "figures/sound.csv").exists()
    assert not (disturbed.results / "figures/heatmap.csv").exists()


def test_cells_were_packed_as_planned(disturbed: Site) -> None:
    first: dict[str, str] = {}
    for job, _, cell, _ in disturbed.starts(SHORT):
        first.setdefault(cell, job)
    assert len(first) == 12
    study = load_study(disturbed.folder / "config.yaml")
    fitting = int(60 * JOB_MINUTES // cell_cost(study, SHORT, 2).seconds)
    assert fitting == 4
    assert sorted(Counter(first.values()).values()) == [4, 4, 4]
    alone: dict[str, set[str]] = defaultdict(set)
    for job, _, cell, _ in disturbed.starts(LONG):
        alone[job].add(cell)
    assert all(len(cells) == 1 for cells in alone.values())


def test_every_job_had_a_gpu_of_its_own(disturbed: Site) -> None:
    spans = accounted("gpu")
    gpus: dict[str, set[str]] = defaultdict(set)
    for sweep in (SHORT, LONG):
        for job, gpu, _, _ in disturbed.starts(sweep):
            gpus[job].add(gpu)
    # A job that was requeued may get another GPU; all others keep one index.
    ends = Counter(job for job, _, _ in spans)
    for job, indices in gpus.items():
        assert indices <= {str(index) for index in range(cluster.GPUS)}
        assert len(indices) <= ends[job]
    once = [(job, begin, end) for job, begin, end in spans if ends[job] == 1 and job in gpus]
    for job, begin, end in once:
        for other, other_begin, other_end in once:
            if job < other and begin < other_end and other_begin < end:
                assert gpus[job] != gpus[other], (job, other)
    changes = sorted([(end, -1) for _, _, end in spans] + [(begin, 1) for _, begin, _ in spans])
    running = highest = 0
    for _, change in changes:
        running += change
        highest = max(highest, running)
    assert 2 <= highest <= cluster.GPUS


def accounted(partition: str) -> list[tuple[str, datetime, datetime]]:
    """Runs of jobs as Slurm recorded them: (job, begin, end)."""
    found = []
    for line in (cluster.STATE / "jobs.txt").read_text().splitlines():
        record = dict(part.split("=", 1) for part in line.split() if "=" in part)
        if record["Partition"] == partition and record["StartTime"][0].isdigit():
            begin, end = (datetime.fromisoformat(record[f"{w}Time"]) for w in ("Start", "End"))
            found.append((record["JobId"], begin, end))
    return found


def test_interrupted_trials_went_on_and_none_was_trained_twice(disturbed: Site) -> None:
    journal = disturbed.journal_text()
    finished = re.findall(r"learning rate \S+, seed \d+: macro accuracy", journal)
    assert len(finished) == len(disturbed.stored_trials()) == 8 * 3 + 4
    assert journal.count("stopped by SIGUSR1, exit status 75") == 1
    assert journal.count("stopped by SIGTERM, exit status 143") == 2
    starts = disturbed.starts(LONG)
    jobs = {
        bound: [job for job, _, cell, _ in starts if cell == f"eps8_epochs30_B16_C{bound}"]
        for bound in BOUNDS
    }
    assert all(len(started) == 2 for started in jobs.values())
    limited, cancelled, preempted, killed = (len(set(started)) for started in jobs.values())
    assert limited == preempted == 1  # the same job of Slurm, requeued
    assert cancelled == killed == 2
    continued = [int(step) for step in re.findall(r"continuing from step (\d+)", journal)]
    saved = {int(step) for step in re.findall(r"checkpoint at step (\d+)", journal)}
    # Every start of a long cell but its first went on from where it was.
    assert len(continued) == len(BOUNDS)
    assert set(continued) <= saved


def test_second_call_trains_only_what_failed(disturbed: Site, local: Chain) -> None:
    before, trials, begun = disturbed.cells(), disturbed.stored_trials(), disturbed.journal_text()
    (disturbed.folder / "bad").unlink()
    disturbed.run("all")
    after = disturbed.cells()
    assert {name: after[name] for name in before} == before
    assert len(after) == len(before) + 4
    stored = disturbed.stored_trials()
    assert {key: stored[key] for key in trials} == trials
    new = disturbed.journal_text().removeprefix(begun)
    trained = re.findall(r"^start .* train --study \S+ \S+ (\S+)$", new, re.MULTILINE)
    assert sorted(trained) == sorted(f"eps8_epochs2_B96_C{bound}" for bound in BOUNDS)
    assert disturbed.drawn_numbers() == local.drawn_numbers()
    assert (
        json.loads((disturbed.results / f"provenance/cells/{SHORT}/{BAD}.json").read_text())[
            "timing"
        ]["trained"]
        == 3
    )


def test_status_agrees(disturbed: Site) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dpsweep.cli", "status"],
        cwd=disturbed.folder,
        env=disturbed.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    everything = next(line for line in done.stdout.splitlines() if line.startswith("all "))
    assert everything.split()[1:6] == ["16", "0", "0", "0", "0"]


def test_a_stopped_run_starts_again_beside_another_one(
    slurm: None, local: Chain, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Ctrl-C in the first cell of a pack; then the same call, twice at once, from two clones."""
    folder = tmp_path_factory.mktemp("shared")
    first, second = (site_of(folder / name, local) for name in ("one", "two"))
    shutil.rmtree(second.results)
    second.results.symlink_to(first.results)
    names = [f"{SHORT}/eps8_epochs2_B64_C{bound}" for bound in BOUNDS[:2]]
    files = [f"{name}/{each}" for name in names for each in ("trials", "steps")]
    targets = [f"results/cells/{name}/trials.parquet" for name in names]
    # Both have outputs, which are older than what they depend on.
    for name in names:
        shutil.copytree(local.results / "cells" / name, first.results / "cells" / name)
        for path in (first.results / "cells" / name).iterdir():
            os.utime(path, (1, 1))

    run = first.start(*targets)
    begun = wait_for(lambda: first.starts(SHORT), "first cell")[0][2]
    pid = wait_for(lambda: training_pid(begun), "training")
    os.kill(pid, signal.SIGSTOP)
    run.send_signal(signal.SIGINT)
    assert run.wait(timeout=PATIENCE) == 128 + signal.SIGINT
    wait_for(lambda: not cluster.queue(), "empty queue")
    # Nothing old may pass for new.
    assert not first.cells()
    assert len(first.starts(SHORT)) == 1

    runs = [site.start(*targets) for site in (first, second)]
    assert [run.wait(timeout=PATIENCE) for run in runs] == [0, 0], first.said + second.said
    assert set(first.cells()) == set(names)
    for file in files:
        ours, alone = (
            pd.read_parquet(chain.results / "cells" / f"{file}.parquet") for chain in (first, local)
        )
        measured = [column for column in ours if "second" not in column]
        pd.testing.assert_frame_equal(ours[measured], alone[measured])
    assert set(first.stored_trials()) <= set(local.stored_trials())
