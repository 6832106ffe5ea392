"""Fonts for characters that the figures' own font lacks, such as Chinese class names."""

import contextlib
from collections.abc import Iterable
from functools import lru_cache

from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, findSystemFonts, fontManager
from matplotlib.ft2font import FT2Font
from matplotlib.text import Text

from dpsweep.base.errors import DpsweepError

FONT = "DejaVu Sans"
"""The font of the figures. It ships with matplotlib, so every machine draws the same glyphs."""
# This font draws a box for every character.
_LAST_RESORT = "Last Resort"


class UnwritableTextError(DpsweepError):
    """A text with characters that no installed font has."""


def write_all(figure: Figure) -> None:
    """Give every text of a figure fonts that have its characters.

    Raises:
        UnwritableTextError: no font has some character, which would become a box.
    """
    texts = [each for each in figure.findobj(Text) if isinstance(each, Text)]
    foreign = {each: found for each in texts if (found := _foreign(each.get_text()))}
    require_fonts(each.get_text() for each in foreign)
    for text, characters in foreign.items():
        text.set_fontfamily([FONT, *_fonts_for(characters)])


def require_fonts(texts: Iterable[str]) -> None:
    """Check that installed fonts have the characters of texts.

    Raises:
        UnwritableTextError: they lack some; the message names the texts, and fonts to install.
    """
    unwritten = [text for text in texts if (found := _foreign(text)) and not _fonts_for(found)]
    if unwritten:
        raise UnwritableTextError(
            f"no installed font can write {', '.join(map(repr, sorted(set(unwritten))))}. Install one "
            "(on Debian: apt install fonts-noto-cjk fonts-noto-core), or put its file into "
            "~/.local/share/fonts, or write these names in other letters"
        )


@lru_cache
def _fonts_for(characters: frozenset[int]) -> tuple[str, ...]:
    """Return names of installed fonts that together have all characters, or none if that is impossible."""
    files = _font_files()
    # Prefer sans serif fonts, like the other text.
    names = sorted(files, key=lambda each: ("Sans" not in each, each))
    chosen: list[str] = []
    missing = characters
    while missing:
        best = max(names, key=lambda name: len(missing & _characters(files[name])))
        if not missing & _characters(files[best]):
            return ()
        missing -= _characters(files[best])
        chosen.append(best)
    return tuple(chosen)


@lru_cache(maxsize=1)
def _font_files() -> dict[str, str]:
    """Return the files of the installed upright fonts of normal weight, by name."""
    # matplotlib's cached list lacks fonts that were installed later.
    known = {font.fname for font in fontManager.ttflist}
    for file in set(findSystemFonts()) - known:
        with contextlib.suppress(OSError, RuntimeError):  # matplotlib cannot read this font
            fontManager.addfont(file)
    return {
        font.name: font.fname
        for font in fontManager.ttflist
        if font.style == "normal"
        and font.weight in (400, "normal", "regular", "book")
        and not font.name.startswith(_LAST_RESORT)
    }


@lru_cache
def _characters(file: str) -> frozenset[int]:
    return frozenset(FT2Font(file).get_charmap())


def _foreign(text: str) -> frozenset[int]:
    """Return the printable characters of a text that the figures' own font lacks."""
    return frozenset(map(ord, filter(str.isprintable, text))) - _characters(findfont(FONT))
