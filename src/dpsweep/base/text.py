"""A user's text, such as a title or the name of a class, as what it says in every medium.

Each medium has one escape: `markdown` here, `dpsweep.figures.style.literal` for matplotlib,
`dpsweep.tables.text.latex`, and Jinja's own for HTML.
"""

import re
import unicodedata

# Where it stands decides whether a character means something: an underscore inside a word does not.
_MARKDOWN = re.compile(
    r"[`*~$|]"
    r"|(?<![^\W_])_|_(?![^\W_])"
    r"|\\(?=[!-/:-@\[-`{-~]|$)"
    r"|<(?=[A-Za-z/!?])"
    r"|&(?=#?\w+;)"
    r"|\](?=[(\[:])"
    # What begins a quotation, a heading, a list or a rule.
    r"|^(?:>|[#+=-](?=[#+=\-\s]|$))"
)


def one_line(text: str) -> str:
    r"""A text without line ends, control characters and halves of characters, which no medium can write.

    >>> one_line("two\n lines\x07")
    'two lines�'
    """
    joined = " ".join(text.split())
    return "".join("�" if unicodedata.category(each) in ("Cc", "Cs") else each for each in joined)


def markdown(text: str) -> str:
    r"""A text as Markdown of GitHub, in a line or in a cell of a table.

    >>> markdown("a|b costs $5 and *more*")
    'a\\|b costs \\$5 and \\*more\\*'
    """
    escaped = _MARKDOWN.sub(r"\\\g<0>", one_line(text))
    return re.sub(r"^(\d+)([.)])(?=\s|$)", r"\1\\\2", escaped)
