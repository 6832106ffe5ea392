"""Every failed job is listed with the last error of its log."""

from pathlib import Path

import pytest

from dpsweep.planning.status import Failure, summary


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("10:00:00 started\nerror: no data\n  a hint\n", "no data\n  a hint"),
        (
            "10:00:00 x\nValueError: is old\n10:00:01 y\n",
            "it ended without an error, after: 10:00:01 y",
        ),
        (
            "bash: dpsweep: command not found\n",
            "it ended without an error, after: bash: dpsweep: command not found",
        ),
        ("", "it ended without an error, after: nothing"),
        (None, "it ended without an error, after: nothing"),
    ],
)
def test_the_reason_is_the_error_at_the_end_of_the_log(
    written: str | None, expected: str, tmp_path: Path
) -> None:
    log = tmp_path / "cell.log"
    if written is not None:
        log.write_text(written)
    assert Failure.of("a job", log).reason == expected


def test_the_summary_has_every_reason_once_and_counts_all_jobs(tmp_path: Path) -> None:
    alike = [Failure(f"sweep/cell{n}", Path(f"{n}.log"), "out of memory") for n in range(40)]
    lines = list(summary([*alike, Failure("noise", Path("noise.log"), "negative")]))
    assert lines.count("  out of memory") == 1
    assert lines[0].startswith("sweep/cell0, ") and lines[0].endswith(" and 35 more:")
    assert lines[lines.index("noise:") + 1 :][:2] == ["  negative", "  log: noise.log"]
    assert lines[-1].startswith("41 failed or stopped.")
