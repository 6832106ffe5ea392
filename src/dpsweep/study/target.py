"""Base of figures and tables: a heading, a caption, and the cells that they select."""

from typing import Annotated, ClassVar

from pydantic import Field

from dpsweep.study.selections import Foreach, LinePanel, Selection, Settings


class Target(Settings):
    """A figure or a table of a study."""

    title: ClassVar[str]
    """What targets of the family show, as a heading."""
    part: ClassVar[str] = "panels"
    """The key of the target's selections."""
    needs_bounds: ClassVar[bool] = False
    """Whether the target draws C, which AUTO-S and training without clipping do not have."""
    table_files: ClassVar[tuple[str, ...]] = ("tex", "md", "csv")
    """Suffixes of the files of a table."""
    ordered: ClassVar[bool] = False
    """Whether the lines of a panel are listed from the easy problem to the hard one."""
    tunes: ClassVar[bool] = False
    """Whether settings are chosen by accuracy for what is drawn; the caption then says how."""
    shows_means: ClassVar[bool] = False
    """Whether accuracies are means over the seeds that chose; the caption then says what that means."""
    tuning_note: ClassVar[str] = ""
    """Further words of the caption on how settings were chosen."""

    family: str
    section: Annotated[
        str, Field(min_length=1, description="heading of the report that it appears under")
    ]
    caption: Annotated[
        str,
        Field(
            min_length=1,
            description="in the report; {dataset}, {epochs}, {seeds} and others stand for what is drawn "
            "(dpsweep.study.captions)",
        ),
    ]
    select: Annotated[
        Selection | None, Field(description="of all parts, where they do not say otherwise")
    ] = None
    foreach: Annotated[
        Foreach | list[Foreach] | None,
        Field(description="one target for each of these; its name holds them in braces"),
    ] = None

    def selections(self) -> list[Selection]:
        """Every selection of the target."""
        return self.leaves()

    def leaves(self) -> list[Selection]:
        """The parts that select cells, in the order of the file."""
        found: list[Selection] = []
        for part in getattr(self, self.part):
            found += part.lines if isinstance(part, LinePanel) else [part]
        return found

    def gradient_norms(self) -> list[Selection]:
        """Selections whose gradient norms the target draws (all batch sizes compete)."""
        return []

    def overlaps(self) -> list[Selection]:
        """Selections of cells of whose best trials the target draws how the gradients overlap."""
        return []

    def single_axes(self) -> tuple[str, ...]:
        """Axes of which each selection must have one value: drawing tunes over the others."""
        return ()

    def drawn_axes(self) -> tuple[str, ...]:
        """Axes of which each selection must have two values or more: they are what is drawn."""
        return ()

    def caption_end(self) -> str:
        """End of the caption, once the selections have names and values."""
        return ""
