"""The table of the slowest tests is read from the log of a run."""

from benchmarks.durations import durations

LOG = """\
============================= slowest 15 durations =============================
2.50s call     tests/test_a.py::test_a[x y]
1.00s setup    tests/test_a.py::test_a[x y]
beside: 3.00s call     tests/slurm/test_b.py::test_b
======================= 7 passed, 2 skipped in 12.30s ========================
beside: ================= 1 passed, 1 deselected in 3.10s (0:00:03) =================
"""


def test_tests_of_both_lanes_are_found() -> None:
    found = durations(LOG)
    assert {each["test"]: each["seconds"] for each in found["tests"]} == {
        "tests/test_a.py::test_a[x y]": 3.5,
        "tests/slurm/test_b.py::test_b": 3.0,
    }
    assert [each["seconds"] for each in found["runs"]] == [12.3, 3.1]
