"""Times and sizes with their units, and numbers that are rounded to their safe side."""

import random

from dpsweep.base.formatting import duration, rounded_down, rounded_up, size


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


def test_rounded_numbers_stay_on_their_side() -> None:
    chosen = random.Random(0)
    for _ in range(2000):
        number, digits = 10 ** chosen.uniform(-12, 3), chosen.randint(1, 6)
        below, above = rounded_down(number, digits), rounded_up(number, digits)
        assert float(below) <= number <= float(above)
        assert float(above) - float(below) < 1.001 * 10 ** (1 - digits) * float(above)
    found = rounded_up(0.3, 3), rounded_down(2e-5), rounded_up(float("inf"))
    assert found == ("0.3", "2e-05", "inf")
