"""Times and sizes with their units."""

from dpsweep.base.formatting import duration, size


def test_durations_have_suitable_units() -> None:
    shown = {
        **{0: "0 s", 0.04: "0.1 s", 0.4: "0.4 s", 9.9: "9.9 s", 9.96: "10 s", 40.4: "40 s"},
        **{90: "2 min", 720: "12 min", 5399: "90 min", 5400: "1.5 h", 12_240: "3.4 h"},
        **{36_000: "10 h", 36_001: "11 h", 4_636_800: "1,288 h"},
    }
    assert {seconds: duration(seconds) for seconds in shown} == shown


def test_sizes_have_suitable_units() -> None:
    shown = {0: "0.0 MB", 55_300_000: "55.3 MB", 1e8: "0.1 GB", 1_350_000_000: "1.4 GB"}
    assert {number_of_bytes: size(number_of_bytes) for number_of_bytes in shown} == shown
