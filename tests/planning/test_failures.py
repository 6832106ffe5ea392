"""Every failed job is listed with its reason and its log."""

from pathlib import Path

import pytest

from dpsweep.planning.failures import Failure, describe, failure, read_endings, summary

OUTPUTS = [
    "results/cells/digits/eps8_B64/trials.parquet",
    "results/cells/digits/eps8_B64/timing.json",
]
DETAILS = (
    "Detailed failure reason unavailable (status command is not 'sacct').For further error details see the "
    "cluster/cloud log and the log files of the involved rule(s)."
)
# The format of Snakemake 9.27 and its plugin for Slurm 2.8.
RUN = """\
[Wed Nov 25 15:56:04 2026]
Error in rule train:
    message: SLURM-job '9' failed, SLURM status is: '{status}'. {details}
    jobid: 4
    input: results/data/digits/metadata.json, results/backbones/vit/metadata.json
    output: results/cells/a.parquet
    log: logs/cell.log, {slurm} (check log file(s) for error details)
    shell:
        (sleep 300; touch o/cancel) > logs/cancel.log 2>&1
        (command exited with non-zero exit code)
    external_jobid: 9
Logfile {slurm}:
================================================================================
Error in rule train:
    message: None
    jobid: 0
    input: results/data/digits/metadata.json
    output: results/cells/a.parquet
    log: logs/cell.log (check log file(s) for error details)
    shell:
        (command exited with non-zero exit code)
[Wed Nov 25 15:56:37 2026]
Error in rule train:
    message: SLURM sbatch failed. The error message was 'sbatch: error: invalid partition specified: gpux
sbatch: error: Batch job submission failed: Invalid partition name specified'.
    sbatch call:
        sbatch --parsable -p gpux --wrap="python -m snakemake"

    jobid: 2
    output: results/cells/b.parquet
    log: logs/refused.log (check log file(s) for error details)
    shell:
        dpsweep train
Error in rule train:
    message: None
    jobid: 7
    output: results/cells/c.parquet
    log: logs/known.log (check log file(s) for error details)
"""
SLURM = """\
Building DAG of jobs...
slurmstepd-node7: error: StepId=9.0 exceeded memory limit (590266368 > 314572800), being killed
slurmstepd-node7: error: Exceeded job memory limit
slurmstepd-node7: error: Exceeded job memory limit
srun: error: node7: task 0: Killed
"""
SAID = """\
SLURM-job '9' failed, SLURM status is: 'FAILED'.
slurmstepd-node7: error: StepId=9.0 exceeded memory limit (590266368 > 314572800), being killed
slurmstepd-node7: error: Exceeded job memory limit"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an ended run: two failed jobs of Slurm, and one that failed by itself."""
    monkeypatch.chdir(tmp_path)
    for name in ("logs", ".snakemake/log", ".snakemake/slurm_logs/rule_train/a"):
        Path(name).mkdir(parents=True)
    slurm = tmp_path / ".snakemake/slurm_logs/rule_train/a/9.log"
    slurm.write_text(SLURM)
    for day, status in ((24, "TIMEOUT"), (25, "FAILED")):
        run = Path(f".snakemake/log/2026-11-{day}T155524.522040.snakemake.log")
        run.write_text(RUN.format(slurm=slurm, status=status, details=DETAILS))
    return tmp_path


def reason(log: str) -> str:
    return describe("a job", Path(log), endings=read_endings()).reason


def test_the_reason_of_a_job_that_was_never_started_is_slurms_message(folder: Path) -> None:
    assert reason("logs/refused.log") == (
        "SLURM sbatch failed. The error message was 'sbatch: error: invalid partition specified: gpux\n"
        "sbatch: error: Batch job submission failed: Invalid partition name specified'."
    )


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("10:00:00 started\nerror: no data\n  a hint\n", "no data\n  a hint"),
        ("10:00:00 checkpoint at step 7", f"10:00:00 checkpoint at step 7\n{SAID}"),
        (
            "10:00:00 x\nValueError: is old\n10:00:01 y\n",
            f"10:00:00 x\nValueError: is old\n10:00:01 y\n{SAID}",
        ),
        ("bash: dpsweep: command not found\n", f"bash: dpsweep: command not found\n{SAID}"),
        ("", SAID),
    ],
)
def test_a_jobs_own_error_comes_before_slurms(written: str, expected: str, folder: Path) -> None:
    Path("logs/cell.log").write_text(written)
    assert reason("logs/cell.log") == expected


def test_a_job_without_any_message_was_killed(folder: Path) -> None:
    Path("logs/known.log").write_text("".join(f"line {number}\n" for number in range(100)))
    found = describe("a job", Path("logs/known.log"), endings=read_endings())
    assert not found.is_error
    assert found.reason.startswith("no message")


def test_cells_are_named_as_cells_and_other_jobs_by_their_file() -> None:
    assert failure(OUTPUTS, ["a.log"], "train").name == "digits/eps8_B64"
    assert failure(["results/report.html"], ["a.log"], "report").name == "results/report.html"
    assert failure([], ["a.log"], "audit").name == "audit"


def test_the_summary_has_every_reason_once_and_counts_all_jobs() -> None:
    refused = [
        Failure(f"sweep/cell{n}", Path(f"{n}.log"), f"Slurm job {n}: FAILED", True)
        for n in range(40)
    ]
    other = describe("results/noise.json", Path("noise.log"))
    lines = list(summary([*refused, other], "snakemake all", 12))
    assert lines.count("  Slurm job 0: FAILED") == 1
    assert "... and 35 more with the same reason" in lines
    assert any("log" in line and "0.log" in line for line in lines)
    assert lines[lines.index("results/noise.json") + 1].startswith("  no message")
    assert lines[-2].startswith("40 failed, 1 stopped, 12 not started.")
    assert lines[-1] == "  snakemake all"


def test_the_summary_of_a_stopped_run_does_not_count_zero_failures() -> None:
    text = "\n".join(summary([], "snakemake all", 3))
    assert "the run was stopped before its end, 3 not started." in text
    assert "0 failed" not in text
