"""Messages about mistakes in a study: the key, the value found, and the allowed values."""

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from dpsweep.base.errors import DpsweepError

T = TypeVar("T")

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
LONGEST_JOINED_NAME = 200
"""Most characters of joined names: a file name has 255 bytes, with its suffix and a temporary prefix."""
HUB_ID_PATTERN = r"^\w[\w.-]*/\w[\w.-]*$"
# A folder inside another one, or "." for the outer folder itself.
FOLDER_PATTERN = r"^(\.|\w[\w .-]*)$"
COMMIT_PATTERN = r"^[0-9a-f]{40}$"
LAYER_PATTERN = r"^[A-Za-z]\w*(\.\w+)*$"
MODULE_PATTERN = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$"
ARGUMENT_PATTERN = r"^[A-Za-z][A-Za-z0-9_]*$"
CHARACTERS_PATTERN = r"^[0-9A-Za-z]+$"

_PATTERNS = {
    NAME_PATTERN: "letters, digits, '.', '_' and '-', with a letter or digit first (names become files)",
    HUB_ID_PATTERN: "owner/name",
    FOLDER_PATTERN: "a folder's name, or '.'",
    COMMIT_PATTERN: "a commit, which is 40 hexadecimal digits",
    LAYER_PATTERN: "the dotted name of a layer in the network, as blocks.5",
    MODULE_PATTERN: "the dotted name of a Python module",
    ARGUMENT_PATTERN: "a name in Python: ASCII letters, digits and '_', with a letter first",
    CHARACTERS_PATTERN: "ASCII letters and digits",
}

_MOST_LINES = 20  # of a message
_NAMES = 12
_FIRST_NAMES = 5
_LONGEST_VALUE = 80
_LONGEST_NAME = 200  # of a file, or of two


def unknown(found: str, allowed: Iterable[str]) -> str:
    """Return a message that ``found`` is not an ``allowed`` name, with the nearest names."""
    return f"found {value(found) if found else 'nothing'}; {nearest(found, allowed)}"


def nearest(found: str, allowed: Iterable[str]) -> str:
    """List the allowed names, only the nearest of many, behind a question if one is almost ``found``."""
    names = [str(name) for name in allowed]
    # The common suffix of studies would make all their names look similar.
    stems = {name.removesuffix(".yaml"): name for name in names}
    hint = [
        stems[each] for each in difflib.get_close_matches(found.removesuffix(".yaml"), stems, n=1)
    ]
    listed = ", ".join(names) or "nothing (none is defined)"
    if len(names) > _NAMES:
        closest = difflib.get_close_matches(found, names, n=_NAMES, cutoff=0.0)
        listed = f"{', '.join(closest)}, ... ({len(names) - _NAMES} more)"
    question = "".join(f"did you mean {name}? " for name in hint)
    return f"{question}allowed: {listed}"


def pick(kind: str, name: str, named: Mapping[str, T]) -> T:
    """Look up a name that a user typed.

    Raises:
        DpsweepError: there is no such name; the message begins with ``kind`` and lists the names.
    """
    if name not in named:
        raise DpsweepError(f"{kind}: {unknown(name, named)}")
    return named[name]


def shorten(names: Iterable[Any]) -> str:
    """Join the first five names for a message, and count the others."""
    texts = [_cut(str(name), _LONGEST_NAME) for name in names]
    more = f" and {len(texts) - _FIRST_NAMES} more" if len(texts) > _FIRST_NAMES else ""
    return ", ".join(texts[:_FIRST_NAMES]) + more or "nothing"


def group_by_message(said: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Group names by their sentence, so that each sentence is printed once.

    >>> group_by_message([("a", "late"), ("b", "lost"), ("c", "late"), ("a", "late")])
    {'late': ['a', 'c'], 'lost': ['b']}
    """
    found: dict[str, dict[str, None]] = {}
    for name, what in said:
        found.setdefault(what, {})[name] = None
    return {what: list(names) for what, names in found.items()}


def brief(error: Exception) -> str:
    """Shorten a library's error message to five lines, each at most as long as a file name."""
    lines = [_cut(line, _LONGEST_NAME) for line in str(error).splitlines()]
    more = len(lines) - _FIRST_NAMES
    return "\n".join(lines[:_FIRST_NAMES] + [f"... and {more} more lines"] * (more > 0))


def value(found: Any) -> str:
    """Format a value on one line, shortened if it is long.

    >>> value([1, "full", True])
    '[1, "full", true]'
    """
    return _cut(json.dumps(found, ensure_ascii=False, skipkeys=True, default=str), _LONGEST_VALUE)


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 3] + "..."


def screen(title: str, mistakes: list[str]) -> str:
    """Format mistakes for one screen of a terminal, and count those that do not fit."""
    more = len(mistakes) - _MOST_LINES
    rest = [f"... and {more} more"] * (more > 0)
    return "\n  ".join([title, *mistakes[:_MOST_LINES], *rest])


def explain(error: ValidationError, content: Any) -> list[str]:
    """Return pydantic's messages about ``content``, each with the path of its key and the value found.

    Args:
        error: the validation error.
        content: the mapping that was validated.
    """
    found: dict[tuple[int | str, ...], list[ErrorDetails]] = {}
    for each in error.errors():
        # An error of a default follows from another wrong value.
        if each["type"] != "default_factory_not_called":
            found.setdefault(_path(each["loc"], content), []).append(each)
    lines = []
    for path, errors in found.items():
        # Of the alternatives of a union, the one is meant that has the kind of the value.
        meant = [each for each in errors if not _is_of_other_kind(each)]
        below = any(len(other) > len(path) and other[: len(path)] == path for other in found)
        if not meant and not below:
            allowed = " or ".join(dict.fromkeys(map(_allowed, errors)))
            lines.append(f"{_dotted(path)}: found {value(errors[0]['input'])}; allowed: {allowed}")
        lines += [line for each in meant for line in _lines(path, each)]
    return lines


def _path(location: Iterable[Any], content: Any) -> tuple[int | str, ...]:
    """Return the keys of an error, without the kinds and alternatives that pydantic puts between them."""
    path = []
    for part in location:
        is_place = isinstance(content, list) and isinstance(part, int)
        if is_place or (isinstance(content, dict) and part in content):
            content = content[part]
            path.append(part)
    return tuple(path)


def _is_of_other_kind(error: ErrorDetails) -> bool:
    return error["type"].endswith("_type") or error["type"] == "literal_error"


def _lines(path: tuple[int | str, ...], error: ErrorDetails) -> list[str]:
    context = error.get("ctx", {})
    match error["type"]:
        case "missing" | "union_tag_not_found":
            key = context.get("discriminator", str(error["loc"][-1])).strip("'")
            return [f"{_dotted((*path, key))}: missing"]
        case "union_tag_invalid":
            key, tags = (
                context[name].replace("'", "") for name in ("discriminator", "expected_tags")
            )
            return [f"{_dotted((*path, key))}: {unknown(context['tag'], tags.split(', '))}"]
        case "value_error" if isinstance(error["input"], dict):
            # A validator that compares keys begins each line with the key at fault.
            where = f"{_dotted(path)}." if path else ""
            return [f"{where}{line}" for line in str(context["error"]).splitlines()]
        case "value_error":
            allowed = str(context["error"])
        case _:
            allowed = f"allowed: {_allowed(error)}"
    return [f"{_dotted(path)}: found {value(error['input'])}; {allowed}"]


def _allowed(error: ErrorDetails) -> str:
    if error["type"] == "string_pattern_mismatch":
        return _PATTERNS.get(error["ctx"]["pattern"], error["msg"])
    if error["type"] == "bool_type":
        return "true or false"
    unneeded = r"^\w+ should (be|have) | after validation.*| or object to .*"
    return re.sub(unneeded, "", error["msg"])


def _dotted(path: tuple[int | str, ...]) -> str:
    """Write a path of keys: sweeps.pets.epsilon[0]."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            key = part if re.fullmatch(NAME_PATTERN, part) else value(part)
            text += f".{key}" if text else key
    return text or "the study"
