"""Resources of jobs on a cluster, by the cost model and the attempt, and the shell of jobs."""

import logging
import math
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from snakemake_executor_plugin_slurm.partitions import get_best_partition, read_partition_file
from tests.waiting import called
from workflow.resources import JobResources

from dpsweep.planning.cost import ProblemCost, Stage
from dpsweep.study import Study

ROOT = Path(__file__).parents[2]
CELL = {"problem": "sun397_vit-base_all", "epochs": "8"}


@pytest.mark.parametrize("stage", ["train", "gradient_norms", "theory"])
def test_time_and_memory_grow_with_the_work_and_the_attempt(paper: Study, stage: Stage) -> None:
    job = JobResources(paper).on_gpu(stage)
    cost = ProblemCost(paper, CELL["problem"])
    minutes = [job["runtime"](CELL, attempt) for attempt in (1, 2, 3)]
    needed = cost.seconds(stage, 8) / 60
    assert 1.4 * needed < minutes[0] < 1.6 * needed + 15
    assert minutes == [minutes[0], 2 * minutes[0], 3 * minutes[0]]
    memory = [job["mem_mb"](CELL, attempt) for attempt in (1, 2)]
    assert memory[0] == 1000 * math.ceil(cost.cell(8).host_gigabytes)
    assert memory[1] == 2 * memory[0]


def test_a_release_requests_memory_of_its_longest_trial_and_the_longest_time(paper: Study) -> None:
    """A shorter limit, which only many trials reach, would reveal their number."""
    rule = (ROOT / "workflow/rules/release.smk").read_text()
    assert "epochs=max(STUDY.release.epochs)" in rule
    jobs = JobResources(paper)
    # The parameters after every epoch take memory.
    short, long = (jobs.on_gpu("release", problem=CELL["problem"], epochs=each) for each in (2, 32))
    assert short["mem_mb"]({}, 1) < long["mem_mb"]({}, 1)
    assert long["mem_mb"]({}, 2) == 2 * long["mem_mb"]({}, 1)
    assert long["runtime"]({}, 1) >= 30 * 24 * 60


def test_a_job_has_the_gpus_of_its_problem_and_as_many_cpus(paper: Study) -> None:
    problem, other = CELL["problem"], {"problem": "cassava_vit-tiny_film", "epochs": "8"}
    sweeps = {
        name: sweep.model_copy(update={"gpus": 4}) if sweep.problem.name == problem else sweep
        for name, sweep in paper.sweeps.items()
    }
    training = paper.training.model_copy(update={"threads": 8})
    jobs = JobResources(paper.model_copy(update={"sweeps": sweeps, "training": training}))
    for stage, expected in [("train", 4), ("gradient_norms", 4), ("theory", 1), ("audit", 1)]:
        asked = {
            key: each(CELL) if callable(each) else each
            for key, each in jobs.on_gpu(stage).items()
            if key in ("gpu", "cpus_per_task")
        }
        assert asked == {"gpu": expected, "cpus_per_task": 8 * expected}
    divided, alone = jobs.on_gpu("train"), JobResources(paper).on_gpu("train")
    assert divided["gpu"](other) == 1
    # Nothing but the start of the job and the overhead of steps is not divided.
    assert 0.25 < divided["runtime"](CELL, 1) / alone["runtime"](CELL, 1) < 0.4
    assert divided["mem_mb"](CELL, 1) > 1.5 * alone["mem_mb"](CELL, 1)
    assert divided["runtime"](other, 1) == alone["runtime"](other, 1)
    assert jobs.on_gpu("audit")["runtime"](CELL, 1) == alone["runtime"](CELL, 1)


def in_a_job(command: str, environment: dict[str, str], status: int) -> str:
    """Run a command as a job's shell does, behind requeue.sh; return its output."""
    script = ROOT / "workflow/scripts/requeue.sh"
    environment = {"PATH": "/usr/bin:/bin"} | environment
    return called(["bash", "-c", f". '{script}'; {command}"], None, environment, status).stdout


@pytest.mark.parametrize(("status", "asked"), [(75, True), (143, False), (1, False), (0, False)])
def test_a_job_of_slurm_is_requeued_if_its_state_is_saved(
    status: int, asked: bool, tmp_path: Path
) -> None:
    """Only with exit status 75; the job's own exit status stays if Slurm refuses."""
    said = tmp_path / "asked"
    said.touch()
    (tmp_path / "scontrol").write_text(f'#!/bin/sh\necho "$@" >> {said}\nexit 1\n')
    (tmp_path / "scontrol").chmod(0o755)
    for number in ("", "17"):
        path = f"{tmp_path}:/usr/bin:/bin"
        in_a_job(f"exit {status}", {"PATH": path, "SLURM_JOB_ID": number}, status)
    assert said.read_text() == ("requeue 17\n" if asked else "")


SAVING = "trap 'sleep 0.3; echo saved; exit 143' TERM; kill -TERM $PPID; kill -TERM $$; sleep 60\n"


@pytest.mark.parametrize(
    ("command", "environment", "said"),
    [
        # A job does not use the preloaded process of the machine that submitted it.
        ("echo ${DPSWEEP_PRELOADED:-none}", {"SLURM_JOB_ID": "17", "DPSWEEP_PRELOADED": "x"}, "none\n"),
        # In a container, rules still call the command by its name.
        ("dpsweep train 'a b'", {"DPSWEEP_COMMAND": "printf <%s> in"}, "<in><train><a b>"),
        # The script replaces Snakemake's own prefix, so it must end at the first failure too.
        *((f"{failing}; echo on", {}, "") for failing in ("false", "false | true", "echo $not_there")),
        # A job of Slurm waits until its command has saved state.
        ("bash saving.sh; echo on", {"SLURM_JOB_ID": "17"}, "saved\n"),
    ],
)  # fmt: skip
def test_shells_of_jobs_begin_with_requeue_sh(
    command: str, environment: dict[str, str], said: str, tmp_path: Path
) -> None:
    (tmp_path / "saving.sh").write_text(SAVING)
    status = 143 if said == "saved\n" else int(not said)
    assert (
        in_a_job(command.replace("saving.sh", f"{tmp_path}/saving.sh"), environment, status) == said
    )


def test_only_jobs_with_a_gpu_go_to_a_cluster() -> None:
    """The profile sends every job that is not local to the GPU partition."""
    for file in (ROOT / "workflow/rules").glob("*.smk"):
        for rule in re.split(r"(?m)^ *rule ", file.read_text())[1:]:
            here = "localrule: True" in rule
            assert here != bool(re.search(r"gpu=1|JOBS.on_gpu", rule)), (file.name, rule)


def test_jobs_go_to_the_shorter_partition_that_lets_them_end(tmp_path: Path) -> None:
    """By the example of the page."""
    page = (ROOT / "docs/cluster.md").read_text()
    examples = map(yaml.safe_load, re.findall(r"```yaml\n(.*?)```", page, re.DOTALL))
    (example,) = (each for each in examples if "partitions" in each)
    (tmp_path / "partitions.yaml").write_text(yaml.safe_dump(example))
    partitions = read_partition_file(tmp_path / "partitions.yaml")
    for minutes, partition in ((12, "short"), (60, "short"), (61, "long")):
        for asks in ({"gpu": 1}, {"gpu": 0, "gres": "gpu:h100:1"}):
            resources = asks | {"runtime": minutes, "cpus_per_task": 4, "mem_mb": 3000}
            job = SimpleNamespace(name="train", threads=1, resources=resources)
            assert get_best_partition(partitions, job, logging) == partition
