"""The section `style`: colours and sizes of figures."""

from typing import Annotated

from pydantic import AfterValidator, Field

from dpsweep.study.section import Section


def _colour_map(name: str) -> str:
    from matplotlib import colormaps  # noqa: PLC0415 (a study without a style does not need it)

    if name not in colormaps:
        raise ValueError("allowed: a colour map of matplotlib, such as viridis, magma or cividis")
    return name


def _colour(name: str) -> str:
    from matplotlib.colors import is_color_like  # noqa: PLC0415

    if not is_color_like(name):
        raise ValueError('allowed: a colour of matplotlib, such as "#0173b2" or navy')
    return name


class Style(Section):
    """Colours and sizes of all figures."""

    colour_map: Annotated[str, AfterValidator(_colour_map)] = "viridis"
    """of squares, and of lines for ordered values such as ε"""
    palette: Annotated[list[Annotated[str, AfterValidator(_colour)]], Field(min_length=7)] = [
        # Seaborn's "colorblind" palette, distinguishable with common colour-vision deficiencies.
        *("#0173b2", "#949494", "#d55e00"),
        *("#029e73", "#cc78bc", "#56b4e9", "#000000"),
    ]
    """seven colours: of an easy, a medium and a hard problem, and of up to four methods"""
    font_size: Annotated[float, Field(ge=4, le=24)] = 8.0
    """in points; small type scales with it"""
    page_width: Annotated[float, Field(ge=3, le=20)] = 5.5
    """of a figure across the page, in inches"""

    @property
    def difficulty(self) -> dict[str, str]:
        """The colours of an easy, a medium and a hard problem."""
        return dict(zip(("easy", "medium", "hard"), self.palette, strict=False))

    @property
    def easy(self) -> str:
        """The colour of an easy problem, and of a single line."""
        return self.palette[0]

    @property
    def hard(self) -> str:
        """The colour of a hard problem, and of marks."""
        return self.palette[2]

    @property
    def small(self) -> float:
        """The font size of notes beside a drawing, such as the chosen settings, in points."""
        return self.points(6)

    def points(self, size: float) -> float:
        """Scale a font size, given for the base size 8, to this style; points."""
        return size * self.font_size / 8
