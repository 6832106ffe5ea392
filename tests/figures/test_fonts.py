"""Characters that the figures' own font lacks come from another font, or are an error."""

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from dpsweep.figures import style


@pytest.fixture
def two_fonts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Take missing characters from another font that ships with matplotlib."""
    monkeypatch.setattr(style, "font_family", lambda: [style.FONT, "STIXGeneral"])
    style._characters.cache_clear()
    yield
    style._characters.cache_clear()


@pytest.mark.usefixtures("two_fonts")
def test_characters_come_from_the_first_font_that_has_them(tmp_path: Path) -> None:
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
