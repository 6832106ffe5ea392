"""Escapes of a user's text, such as titles and names of classes.

Each output format has one escape: `markdown` here, `dpsweep.figures.style.literal` for matplotlib,
`dpsweep.tables.text.latex`, and Jinja's own for HTML.
"""

import re
import unicodedata

# Characters of markup. Some are markup only in certain places: an underscore inside a word is not.
_MARKDOWN = re.compile(
    r"[`*~$|]"
    r"|(?<![^\W_])_|_(?![^\W_])"
    r"|\\(?=[!-/:-@\[-`{-~]|$)"
    r"|<(?=[A-Za-z/!?])"
    r"|&(?=#?\w+;)"
    r"|\](?=[(\[:])"
    # The start of a quotation, a heading, a list or a rule.
    r"|^(?:>|[#+=-](?=[#+=\-\s]|$))"
)


def one_line(text: str) -> str:
    r"""Return a text with spaces for line ends, and � for control characters and surrogates.

    >>> one_line("two\n lines\x07")
    'two lines�'
    """
    joined = " ".join(text.split())
    return "".join("�" if unicodedata.category(each) in ("Cc", "Cs") else each for each in joined)


def markdown(text: str) -> str:
    r"""Escape a text for GitHub's Markdown, for a line or a cell of a table.

    >>> markdown("a|b costs $5 and *more*")
    'a\\|b costs \\$5 and \\*more\\*'
    """
    escaped = _MARKDOWN.sub(r"\\\g<0>", one_line(text))
    return re.sub(r"^(\d+)([.)])(?=\s|$)", r"\1\\\2", escaped)
