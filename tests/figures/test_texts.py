"""Texts of users are escaped for matplotlib, Markdown, LaTeX and HTML."""

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import html5lib
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from matplotlib.cbook import is_math_text
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from pydantic import TypeAdapter, ValidationError
from tests.figures.test_draw import FAMILIES, FIGURES, SWEEP
from tests.synthetic import make_study

from dpsweep.base.units import markdown, one_line
from dpsweep.figures import classes, style
from dpsweep.figures.drawing import plot
from dpsweep.report.explore import _json
from dpsweep.study.paths import Paths
from dpsweep.study.section import Title
from dpsweep.tables.text import TextTable, latex

# Characters with a special meaning in some format.
MARKS = "$_*`~|\\<>&;#[](){}^%!-+=.'\"\n\r\t/:@ \u200b\x00\x07\x85\u2028ab1é"
TEXTS = st.one_of(st.text(), st.text(alphabet=MARKS))
NASTY = (
    *("$5 to $9", "$\\frac{$", "_hidden", "__", "5 % & #1 {~^}", "\\$", "<b>|`*x*", "$"),
    *("two\nlines", '"&amp;"', "a$_{b}$", "\\n\\alpha"),
)


# Figures of these families do not show all titles.
UNTITLED = ("noise_curve", "predicted_clipping")


def titled(value: Any, names: Iterator[str]) -> Any:
    """Replace the titles and labels in the description of a figure."""
    if isinstance(value, dict):
        return {
            key: next(names) if key in ("title", "label") else titled(each, names)
            for key, each in value.items()
        }
    return [titled(each, names) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("family", FAMILIES)
def test_titles_are_drawn_literally(results: Path, tmp_path: Path, family: str) -> None:
    given_names: list[str] = []
    names = (
        given_names.append(each) or each
        for each in itertools.cycle(NASTY[FAMILIES.index(family) % len(NASTY) :])
    )
    settings = {"caption": "c", "section": "s", **titled(FIGURES[family], names)}
    study = make_study(
        {"s": SWEEP, "auto": SWEEP | {"clipping_bound": "automatic"}},
        figures={family: {"family": family, **settings}},
    )
    numbers = study.figures[family].compute(study, Paths(results))
    if family == "per_class":
        numbers["class_name"] = [NASTY[each] for each in pd.factorize(numbers["class_name"])[0]]
    with style.style():
        picture = plot(study.figures[family], numbers)
        picture.draw_without_rendering()
        if family == "heatmap":  # all families write files in the same way
            style.save(picture, tmp_path / "a.pdf", tmp_path / "a.png")
    texts = [each.get_text() for each in picture.findobj(Text) if isinstance(each, Text)]
    # matplotlib removes escapes from texts without mathematics.
    plain = [text.replace("\\$", "$") for text in texts if not is_math_text(text)]
    for name in given_names if family not in UNTITLED else ():
        assert any(one_line(name) in text for text in plain), (name, plain)


def test_long_names_are_not_cut_inside_an_escape() -> None:
    for dollars in range(20):
        name = style.literal("a" * dollars + "$" * 30)
        (short,) = classes._short_names(pd.DataFrame({"class_name": [name]}))
        assert re.fullmatch(r"a*(\\\$)*…", short)


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


@given(TEXTS)
def test_a_line_of_markdown_is_one_paragraph(text: str) -> None:
    assert read_markdown(markdown(text)) in ([one_line(text)], [])


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


@given(TEXTS)
def test_a_row_of_latex_does_not_begin_like_an_argument(text: str) -> None:
    table = TextTable(["h"], [["x"], [text]], ["l"]).latex("caption", "label")
    row = table.split("x \\\\\n")[1]
    assert not row.lstrip().startswith(("[", "*"))


@given(TEXTS)
@example("</script><script>alert(1)</script>")
@example("<!--<script>")
def test_html_contains_texts_without_new_elements(text: str) -> None:
    text = one_line(text)
    source = (
        f'<!DOCTYPE html><title>t</title><script type="application/json">{_json([text])}</script>'
    )
    page = html5lib.parse(source, namespaceHTMLElements=False)
    (script,) = page.iter("script")
    assert json.loads(script.text) == [text]
    assert [each.tag for each in page.iter()] == ["html", "head", "title", "script", "body"]


@pytest.mark.parametrize(
    ("title", "read"), [("two\n  lines \n", "two lines"), ("ε $ _", "ε $ _"), ("a\x07", None)]
)
def test_a_title_is_one_line_of_printable_characters(title: str, read: str | None) -> None:
    adapter = TypeAdapter(Title)
    if read is not None:
        assert adapter.validate_python(title) == read
        return
    with pytest.raises(
        ValidationError, match=r"characters that can be written, but found 'a\\x07'"
    ):
        adapter.validate_python(title)
