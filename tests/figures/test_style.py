import math

import matplotlib as mpl
import numpy as np
import pytest

from dpsweep.figures import style


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (8.0, "8"), (0.25, "0.25"), (40.03, "40.03"), (0.01, "0.01"), (1e-3, "$10^{-3}$"),
        (1e-5, "$10^{-5}$"), (2e-4, r"$2{\cdot}10^{-4}$"), (math.inf, "∞"), (87002.0, "87002"),
    ],
)  # fmt: skip
def test_grid_values_are_short(value: float, text: str) -> None:
    assert style.write_value(value) == text


def test_values_are_written_with_the_fewest_digits_that_tell_them_apart() -> None:
    assert list(style.write_values([1e-3, 2e-3]).values()) == ["$10^{-3}$", r"$2{\cdot}10^{-3}$"]
    alike = style.write_values([0.001234, 0.001235, math.nan])
    assert list(alike.values()) == [r"$1.234{\cdot}10^{-3}$", r"$1.235{\cdot}10^{-3}$"]
    single = style.write_values([0.1, np.float32(0.1)])
    assert list(single.values()) == ["0.1", "0.100000001"]
    assert list(style.write_values([0.011, 0.0112], style.write_rate).values()) == [
        "0.011",
        "0.0112",
    ]


def test_the_style_does_not_leak() -> None:
    before = dict(mpl.rcParams)
    with style.style():
        assert mpl.rcParams["pdf.fonttype"] == 42
    assert dict(mpl.rcParams) == before


def test_the_ends_of_an_axis_have_labels_before_powers_of_ten() -> None:
    axes = mpl.figure.Figure().subplots()
    style.value_axis(axes, "x", [1, 10, 10.1], labels=3)
    assert axes.get_xticks().tolist() == [1, 10.1]
