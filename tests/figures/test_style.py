import math
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

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


def test_formats_of_batch_sizes_bounds_and_shares() -> None:
    assert style.write_batch_size(87002, full_batch=True) == "Full"
    assert style.write_batch_size(4096, full_batch=False) == "4096"
    assert style.write_batch_size(4096, full_batch=False, power=True) == "$2^{12}$"
    assert style.write_batch_size(1000, full_batch=False, power=True) == "1000"
    # 0 and 100 per cent stand for exactly none and all.
    written = [style.write_percentage(share) for share in (0.0, 0.001, 0.12, 0.999, 1.0)]
    assert written == ["0 %", "< 1 %", "12 %", "> 99 %", "100 %"]


@pytest.mark.parametrize("count", [2, 3, 6, 10])
def test_ordered_colours_get_brighter(count: int) -> None:
    light = [float(np.dot(to_rgb(c), (0.299, 0.587, 0.114))) for c in style.ordered_colours(count)]
    assert len(set(style.ordered_colours(count))) == count
    assert light == sorted(light)


def test_difficulty_has_its_colours() -> None:
    assert style.line_colours(["easy", "hard"]) == [style.look().easy, style.look().hard]
    assert style.look().easy not in style.category_colours(4)
    with pytest.raises(ValueError, match="at most 4"):
        style.category_colours(5)


SIZES = [2.0**k for k in range(8, 17)]


@pytest.mark.parametrize(
    ("values", "options", "labelled", "short"),
    [
        ([0.1, 1, 10, 12, 14, 18, 26, 42, 42], {}, ["0.1", "1", "10", "26", "42"], {12.0, 14, 18}),
        ([1.0], {}, ["1"], set()),
        ([0.1, 1.0, 100.0, 110.0], {"labels": 4}, ["0.1", "1", "110"], {100.0}),
        # Two of three powers have no room, and Full has a label because it is the last value.
        ([*SIZES, 87002], {"labels": 4, "texts": [*map(str, range(8, 17)), "Full"]},
         ["8", "11", "14", "Full"], {*SIZES} - {2**8, 2**11, 2**14}),
    ],
)  # fmt: skip
def test_a_value_axis_labels_its_ends_and_powers_of_ten(
    values: list[float], options: dict[str, Any], labelled: list[str], short: set[float]
) -> None:
    axes = Figure().subplots()
    style.value_axis(axes, "x", values, **options)
    assert [label.get_text() for label in axes.get_xticklabels()] == labelled
    assert {*axes.get_xticks(minor=True)} == short


def test_the_style_does_not_leak() -> None:
    before = dict(mpl.rcParams)
    with style.style():
        assert mpl.rcParams["pdf.fonttype"] == 42
    assert dict(mpl.rcParams) == before


def test_a_missing_font_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(style, "FONT", "No Such Font")
    with pytest.raises(style.MissingFontError, match="'No Such Font' was not found"), style.style():
        pass
