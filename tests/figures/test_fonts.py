"""Characters that the figures' own font lacks come from another font, or are an error."""

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from matplotlib import get_data_path
from matplotlib.figure import Figure

from dpsweep.figures import style

OTHER = "STIXGeneral"  # ships with matplotlib too
UNWRITTEN = "\U00014400"  # a hieroglyph of Anatolia


def foreign() -> str:
    """Return two characters that another installed font has, but not the figures' own font."""
    files = style._font_files()
    beyond = style._characters(files[OTHER]) - style._characters(files[style.FONT])
    return "".join(map(chr, [each for each in sorted(beyond) if chr(each).isalpha()][:2]))


@pytest.fixture(autouse=True)
def only_fonts_of_matplotlib(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make two fonts of matplotlib the only installed ones."""
    folder = Path(get_data_path()) / "fonts" / "ttf"
    own = {style.FONT: str(folder / "DejaVuSans.ttf"), OTHER: str(folder / "STIXGeneral.ttf")}
    monkeypatch.setattr(style, "_font_files", lambda: own)
    style._fonts_for.cache_clear()
    yield
    style._fonts_for.cache_clear()


def titled(text: str) -> Figure:
    figure = Figure()
    axes = figure.add_subplot(title="Plain")
    axes.set_xticks([0, 1], ["cat", text])
    return figure


def test_another_font_supplies_missing_characters(tmp_path: Path) -> None:
    figure = titled(foreign())
    with style.style(), warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib warns about every box
        style.save(figure, tmp_path / "figure.pdf", tmp_path / "figure.png")
    (axes,) = figure.axes
    plain, other = axes.get_xticklabels()
    assert OTHER in other.get_fontfamily() and OTHER not in plain.get_fontfamily()


def test_a_text_that_no_font_can_write_is_refused(tmp_path: Path) -> None:
    with style.style(), pytest.raises(style.UnwritableTextError, match=r"can write.*apt install"):
        style.save(titled(UNWRITTEN), tmp_path / "figure.pdf", tmp_path / "figure.png")
    assert not (tmp_path / "figure.png").exists()
