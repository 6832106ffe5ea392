"""Values and texts of figures: short, told apart, escaped, and in a font that has them."""

import math
import warnings
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from hypothesis import example, given, settings
from matplotlib.cbook import is_math_text
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from tests.tables.test_tables import TEXTS

from dpsweep.base.formatting import one_line
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


def test_the_ends_of_an_axis_have_labels_before_powers_of_ten() -> None:
    axes = mpl.figure.Figure().subplots()
    style.value_axis(axes, "x", [1, 10, 10.1], labels=3)
    assert axes.get_xticks().tolist() == [1, 10.1]


@settings(max_examples=50)
@given(TEXTS)
@example("_")
@example("\\$")
def test_matplotlib_draws_escaped_texts_without_mathematics_and_in_full(text: str) -> None:
    escaped = style.literal(text)
    assert not is_math_text(escaped)
    assert escaped.replace("\\$", "$").removeprefix("\N{ZERO WIDTH SPACE}") == one_line(
        text
    ).removeprefix("\N{ZERO WIDTH SPACE}")
    legend = Figure().legend(handles=[Line2D([], [], label=escaped)])
    assert [each.get_text() for each in legend.get_texts()] == [escaped]


def test_characters_come_from_the_first_font_that_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two fonts that ship with matplotlib."""
    monkeypatch.setattr(style, "font_family", lambda: [style.FONT, "STIXGeneral"])
    style._characters.cache_clear()
    for text, written in (("cat", True), ("\U0001d49c", True), ("\U00014400", False)):
        with style.style(), warnings.catch_warnings():
            warnings.simplefilter("error")  # matplotlib warns about every box
            figure, png = Figure(), tmp_path / f"{text}.png"
            figure.add_subplot(title=text)
            if written:
                style.save(figure, tmp_path / "figure.pdf", png)
            else:
                with pytest.raises(style.UnwritableTextError, match=r"can write.*apt install"):
                    style.save(figure, tmp_path / "figure.pdf", png)
        assert png.exists() == written
    style._characters.cache_clear()
