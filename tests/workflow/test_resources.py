"""What jobs ask of a cluster follows from the cost model and the attempt."""

import math
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from workflow.resources import JobResources

from dpsweep.planning.cost import ProblemCost, Stage
from dpsweep.study import Study, load_study

ROOT = Path(__file__).parents[2]
CELL = {"problem": "sun397_vit-base_all", "epochs": "8"}


@pytest.fixture(scope="module")
def paper() -> Study:
    return load_study(ROOT / "config.yaml")


@pytest.mark.parametrize("stage", ["train", "gradient_norms", "theory"])
def test_time_and_memory_grow_with_the_work_and_the_attempt(paper: Study, stage: Stage) -> None:
    jobs = JobResources(paper)
    cost = ProblemCost(paper, CELL["problem"])
    minutes = [jobs.runtime(stage)(CELL, attempt) for attempt in (1, 2, 3)]
    needed = cost.seconds(stage, 8) / 60
    assert 1.4 * needed < minutes[0] < 1.6 * needed + 15
    assert minutes == [minutes[0], 2 * minutes[0], 3 * minutes[0]]
    memory = [jobs.mem_mb()(CELL, attempt) for attempt in (1, 2)]
    assert memory[0] == 1000 * math.ceil(cost.cell(8).host_gigabytes)
    assert memory[1] == 2 * memory[0]


def test_a_job_may_be_known_by_its_rule_or_by_a_dataset_and_a_backbone(paper: Study) -> None:
    jobs = JobResources(paper)
    problem, other = CELL["problem"], "cassava_vit-tiny_film"
    assert jobs.mem_mb(problem=problem, epochs=8)({}, 1) == jobs.mem_mb()(CELL, 1)
    assert jobs.mem_mb(problem=other, epochs=8)(CELL, 1) != jobs.mem_mb()(CELL, 1)
    parts = paper.problems[other]
    source = {"dataset": parts.dataset, "backbone": parts.backbone}
    found = jobs.runtime("features")(source, 1)
    assert found == jobs.runtime("features", **source)({}, 1)
    seconds = ProblemCost(paper, other).seconds("features", 1)
    assert seconds / 60 < found < 2 * seconds / 60 + 15


def test_a_release_asks_for_the_memory_of_its_longest_trial_and_for_all_time(paper: Study) -> None:
    """As the rule says it: a limit that only many trials meet would tell their number."""
    rule = (ROOT / "workflow/rules/release.smk").read_text()
    mem, time = (re.search(rf"{key}=(.*),\n", rule)[1] for key in ("mem_mb", "runtime"))  # type: ignore[index]
    problem = "sun397_vit-base_all"  # whose parameters after every epoch take memory
    study = SimpleNamespace(release=SimpleNamespace(epochs=[2, 32, 8]))
    jobs = JobResources(paper)
    names = {"JOBS": jobs, "STUDY": study, "RELEASED": problem}
    asked = [eval(mem, names)({}, attempt) for attempt in (1, 2)]  # noqa: S307 (it is ours)
    one = [jobs.mem_mb(problem=problem, epochs=epochs)({}, 1) for epochs in (2, 8, 32)]
    assert one[0] < one[1] < one[2]
    assert asked == [one[2], 2 * one[2]]
    assert eval(time) >= 30 * 24 * 60  # noqa: S307


@pytest.mark.parametrize(("status", "asked"), [(75, True), (143, False), (1, False), (0, False)])
def test_a_job_of_slurm_is_requeued_if_its_state_is_saved(
    status: int, asked: bool, tmp_path: Path
) -> None:
    """Only with exit status 75, and with the job's own status where Slurm refuses."""
    (tmp_path / "scontrol").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\nexit 1\n')
    (tmp_path / "scontrol").chmod(0o755)
    script = ROOT / "workflow/scripts/requeue.sh"
    for number in ("", "17"):
        done = subprocess.run(
            ["bash", "-c", f". '{script}'; exit {status}"],
            env={"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": number},
            check=False,
        )
        assert done.returncode == status
    said = tmp_path / "asked"
    assert (said.read_text() if said.exists() else "") == ("requeue 17\n" if asked else "")


def test_a_shell_of_slurm_waits_for_the_command_that_saves_its_state(tmp_path: Path) -> None:
    script = ROOT / "workflow/scripts/requeue.sh"
    saving = tmp_path / "saving.sh"
    saving.write_text(
        "trap 'sleep 0.3; echo saved; exit 143' TERM; kill -TERM $PPID; kill -TERM $$; sleep 60\n"
    )
    done = subprocess.run(
        ["bash", "-c", f". '{script}'; bash {saving}; echo on"],
        env={"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "17"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("saved\n", 143)


def test_a_job_of_slurm_is_no_child_of_what_is_preloaded_here() -> None:
    script = ROOT / "workflow/scripts/requeue.sh"
    done = subprocess.run(
        ["bash", "-c", f". '{script}'; echo ${{DPSWEEP_PRELOADED:-none}}"],
        env={"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "17", "DPSWEEP_PRELOADED": "here"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "none\n"


@pytest.mark.parametrize("failing", ["false", "false | true", "echo $not_there"])
def test_a_shell_ends_at_the_first_command_that_fails(failing: str) -> None:
    """A prefix of shells takes the place of Snakemake's own, which says so."""
    script = ROOT / "workflow/scripts/requeue.sh"
    done = subprocess.run(
        ["bash", "-c", f". '{script}'; {failing}; echo on"], capture_output=True, check=False
    )
    assert (done.stdout, done.returncode) == (b"", 1)


def test_another_command_may_stand_for_dpsweep() -> None:
    """For containers; the command is asked for by its name, as rules do."""
    script = ROOT / "workflow/scripts/requeue.sh"
    done = subprocess.run(
        ["bash", "-c", f". '{script}'; dpsweep train 'a b'"],
        env={"PATH": "/usr/bin:/bin", "DPSWEEP_COMMAND": "printf <%s> in"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "<in><train><a b>"


def test_only_jobs_with_a_gpu_go_to_a_cluster() -> None:
    """The profile sends every job to the GPU partition that does not run where Snakemake runs."""
    for file in (ROOT / "workflow/rules").glob("*.smk"):
        text = file.read_text()
        block = "".join(re.findall(r"^ *localrules:\n((?: +\w+,\n)+)", text, re.MULTILINE))
        local = set(re.findall(r"\w+", block))
        for rule in re.split(r"(?m)^ *(?:use )?rule ?", text)[1:]:
            name = re.match(r"\w*", rule)[0]  # type: ignore[index]
            here = name in local or "localrule: True" in rule
            assert here != ("gpu=1" in rule), (file.name, name)


def profiles_of_the_page() -> list[dict[str, object]]:
    page = (ROOT / "docs/cluster.md").read_text()
    blocks = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    return [yaml.safe_load(block) for block in blocks]


def test_the_profile_and_the_examples_name_rules_that_exist() -> None:
    rules = "\n".join(file.read_text() for file in (ROOT / "workflow/rules").glob("*.smk"))
    committed = (ROOT / "profiles/slurm/config.yaml").read_text()
    settings, named = committed.split("set-resources:\n")
    named = re.sub(r"(?m)^  # (.*)$", r"  \1", named)
    whole = yaml.safe_load(f"{settings}set-resources:\n{named}")
    assert whole["default-resources"]["slurm_partition"] == "gpu"
    for profile in [whole, *profiles_of_the_page()]:
        for rule in profile.get("set-resources", {}):
            assert re.search(rf"rule {rule}:|f\"{rule}_", rules), rule
