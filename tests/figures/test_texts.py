"""Texts of users are escaped for matplotlib, Markdown, LaTeX and HTML."""

import re

from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from matplotlib.cbook import is_math_text
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dpsweep.base.units import one_line
from dpsweep.figures import style
from dpsweep.tables.text import TextTable, latex

# Characters with a special meaning in some format.
MARKS = "$_*`~|\\<>&;#[](){}^%!-+=.'\"\n\r\t/:@ \u200b\x00\x07\x85\u2028ab1é"
TEXTS = st.one_of(st.text(), st.text(alphabet=MARKS))


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


MARKDOWN = MarkdownIt("gfm-like", {"linkify": False})


def read_markdown(source: str) -> list[str]:
    """Return the texts of a page of Markdown without marks, by another parser than GitHub's."""
    found = []
    for token in MARKDOWN.parse(source):
        if token.type == "inline":
            children = token.children or []
            assert {child.type for child in children} <= {"text", "text_special"}, source
            found.append("".join(child.content for child in children))
    return found


@given(TEXTS, TEXTS)
def test_markdown_keeps_texts(cell: str, caption: str) -> None:
    caption = f"a{caption}"
    source = TextTable(["h", "i"], [[cell, "x"]], ["l", "l"]).markdown(caption)
    assert read_markdown(source) == [one_line(caption), "h", "i", one_line(cell), "x"]
    assert "$" not in re.sub(r"\\\$", "", source)  # GitHub would render mathematics


_OF_LATEX = re.compile(
    r"\\text(backslash|asciitilde|asciicircum|bar|asciigrave)\{\}|\\dots\{\}|\\([&%$#_{}])"
    r"|\$([<>-]|\\\w+|\^\{[\d-]+\}|\^\{\\circ\})\$|\{\}|([^\\&%$#_{}~^`])"
)
_MEANT = {
    **{"backslash": "\\", "asciitilde": "~", "asciicircum": "^", "bar": "|", "asciigrave": "`"},
}


@given(st.text(alphabet="".join(set(MARKS) - set("\u200b"))))
def test_latex_keeps_texts(text: str) -> None:
    """A small parser reads LaTeX back; every special character must be part of a command for it."""
    source, read = latex(text), ""
    while source:
        found = _OF_LATEX.match(source)
        assert found, source
        word, mark, mathematics, letter = found.groups()
        read += _MEANT.get(word, "") + (mark or "") + (mathematics or "") + (letter or "")
        source = source[found.end() :]
    assert read == one_line(text)
    assert not re.search("--|''", latex(text))
