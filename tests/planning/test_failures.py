"""Every failed job is named with what ended it and where to look."""

from pathlib import Path

import pytest

from dpsweep.planning.failures import Failure, describe, failure, note, summary

OUTPUTS = [
    "results/cells/digits/eps8_B64/trials.parquet",
    "results/cells/digits/eps8_B64/timing.json",
]
WORDS = "Slurm job 7: TIMEOUT\nslurmstepd: error: DUE TO TIME LIMIT"


def reason(log: Path) -> str:
    return describe("a job", log).reason


def test_a_job_that_was_never_started_has_the_schedulers_words(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "cell.log"
    note(log, "submission refused: sbatch: error: invalid partition specified: gpux")
    assert reason(log) == "submission refused: sbatch: error: invalid partition specified: gpux"


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("10:00:00 started\nerror: no data\n  a hint\n", f"no data\n  a hint\n{WORDS}"),
        ("10:00:00 checkpoint at step 7", WORDS),  # killed in the middle of a line
        ("10:00:00 checkpoint at step 7\n", WORDS),
        ("10:00:00 x\nValueError: is old\n10:00:01 y\n", WORDS),
        ("bash: dpsweep: command not found\n", f"bash: dpsweep: command not found\n{WORDS}"),
        ("error: of the job\n", f"of the job\n{WORDS}"),
        ("", WORDS),
    ],
)
def test_the_jobs_own_error_stands_before_the_schedulers(
    written: str, expected: str, tmp_path: Path
) -> None:
    log = tmp_path / "cell.log"
    log.write_text(written)
    note(log, WORDS)
    assert reason(log) == expected


def test_only_some_of_what_is_no_known_error_is_shown(tmp_path: Path) -> None:
    log = tmp_path / "cell.log"
    log.write_text("".join(f"line {number}\n" for number in range(100)))
    assert not describe("a job", log).is_error
    note(log, WORDS)
    assert reason(log) == f"line 97\nline 98\nline 99\n{WORDS}"


def test_a_log_that_cannot_be_written_loses_no_words(tmp_path: Path) -> None:
    (tmp_path / "cell.log").mkdir()
    note(tmp_path / "cell.log", WORDS)
    found = reason(tmp_path / "cell.log")
    assert found.startswith(WORDS)
    assert "could not be written" in found


def test_cells_are_named_as_cells_and_other_jobs_by_their_file() -> None:
    assert failure(OUTPUTS, ["a.log"], "train").name == "digits/eps8_B64"
    assert failure(["results/report.html"], ["a.log"], "report").name == "results/report.html"
    assert failure([], ["a.log"], "audit").name == "audit"


def test_summary_names_every_reason_once_and_counts_all() -> None:
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


def test_a_run_that_was_stopped_does_not_claim_that_nothing_is_wrong() -> None:
    text = "\n".join(summary([], "snakemake all", 3))
    assert "the run was stopped before its end, 3 not started." in text
    assert "0 failed" not in text
