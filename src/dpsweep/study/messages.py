"""Messages about mistakes in a study: the key, the value found, and the allowed values."""

import difflib
import json
import math
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from dpsweep.base.errors import DpsweepError
from dpsweep.base.units import count

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

_PATTERNS = {
    NAME_PATTERN: "letters, digits, '.', '_' and '-', with a letter or digit first (names become files)",
    HUB_ID_PATTERN: "owner/name",
    FOLDER_PATTERN: "a folder's name, or '.'",
    COMMIT_PATTERN: "a commit, which is 40 hexadecimal digits",
    LAYER_PATTERN: "the dotted name of a layer in the network, as blocks.5",
    MODULE_PATTERN: "the dotted name of a Python module",
}

# Errors about the type of a value.
_KINDS = {
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "float_type": "a number",
    "int_type": "a whole number",
    "list_type": "a list",
    "model_attributes_type": "a mapping",
    "model_type": "a mapping",
    "string_type": "text",
    "tuple_type": "a tuple",
}

# Errors of the alternatives of a union that are not meant.
_OTHER_KINDS = _KINDS.keys() | {"literal_error"}

_LIMITS = {
    "finite_number": "a finite number",
    "invalid_key": "text",
    "greater_than": "above {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than": "below {lt:g}",
    "less_than_equal": "at most {le:g}",
    "string_too_long": "at most {max_length} characters",
    "string_too_short": "at least {min_length} character",
}

_WIDTH, _LINES = 80, 24  # a terminal
_NAMES = 12
_FIRST_NAMES = 5
_LONGEST_VALUE = 80
_LONGEST_NAME = 200  # of a file, or of two


def unknown(found: str, allowed: Iterable[str]) -> str:
    """Return a message that ``found`` is not an ``allowed`` name, with the nearest names."""
    return f"found {value(found)}; {nearest(found, allowed)}"


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
    """Format a value as YAML on one line, shortened if it is long."""
    return _cut(_flow(found), _LONGEST_VALUE)


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 3] + "..."


def _flow(found: Any) -> str:
    match found:
        case None:
            return "nothing"
        case str() | bool():
            return json.dumps(found, ensure_ascii=False)
        case float() if not math.isfinite(found):
            return ".nan" if math.isnan(found) else ".inf" if found > 0 else "-.inf"
        case list():
            return f"[{', '.join(map(_flow, found))}]"
        case dict():
            return f"{{{', '.join(f'{key}: {_flow(each)}' for key, each in found.items())}}}"
    return type(found).__name__ if isinstance(found, BaseModel) else str(found)


def screen(title: str, mistakes: list[str]) -> str:
    """Format mistakes for one screen of a terminal, and count those that do not fit."""
    lines = [title]
    for index, mistake in enumerate(mistakes):
        wrapped = textwrap.wrap(
            mistake,
            _WIDTH,
            initial_indent="  ",
            subsequent_indent="      ",
            break_on_hyphens=False,
            break_long_words=False,
        )
        # Keep one line for the count. Always show the first mistake.
        if index > 0 and len(lines) + len(wrapped) > _LINES - 1:
            lines.append(f"  ... and {len(mistakes) - index} more")
            break
        lines += wrapped
    return "\n".join(lines)


def explain(error: ValidationError, content: Any) -> list[str]:
    """Return one line for every mistake that pydantic found in ``content``: key path, value, allowed values.

    Args:
        error: the validation error.
        content: the mapping that was validated.
    """
    found: dict[tuple[int | str, ...], list[ErrorDetails]] = {}
    for each in error.errors():
        # An error of a default follows from another wrong value.
        if each["type"] != "default_factory_not_called":
            found.setdefault(_path(each, content), []).append(each)
    return [
        line
        for path, errors in found.items()
        # Of the alternatives of a union, the one is meant that has the kind of the value.
        if not _is_other_kind(errors) or not any(_is_below(other, path) for other in found)
        for line in _lines(_key(path), errors)
    ]


def _path(error: ErrorDetails, content: Any) -> tuple[int | str, ...]:
    """Return the keys of an error, without the kinds and alternatives that pydantic puts between them."""
    path: list[int | str] = []
    location = (
        error["loc"][: -1 - (error["type"] != "invalid_key")] if _is_name(error) else error["loc"]
    )
    for part in location:
        is_key = isinstance(content, dict) and part in content
        is_place = isinstance(content, list) and isinstance(part, int)
        if is_key or is_place:
            content = content[part]
            path.append(part)
    return tuple(path)


def _is_name(error: ErrorDetails) -> bool:
    """Return whether an error is about a key itself."""
    return error["type"] == "invalid_key" or error["loc"][-1:] == ("[key]",)


def _is_below(other: tuple[int | str, ...], path: tuple[int | str, ...]) -> bool:
    return len(other) > len(path) and other[: len(path)] == path


def _is_other_kind(errors: list[ErrorDetails]) -> bool:
    return all(each["type"] in _OTHER_KINDS and not _is_name(each) for each in errors)


def _lines(where: str, errors: list[ErrorDetails]) -> Iterator[str]:
    """Yield the mistakes at one key."""
    if missing := [str(each["loc"][-1]) for each in errors if each["type"] == "missing"]:
        yield f"{where or 'the study'}: missing {', '.join(missing)}"
    others = [each for each in errors if each["type"] != "missing"]
    if others and _is_other_kind(others):
        allowed = " or ".join(dict.fromkeys(map(_allowed, others)))
        yield f"{where or 'the study'}: found {value(others[0]['input'])}; allowed: {allowed}"
        return
    for each in others:
        if not _is_other_kind([each]):
            yield from _mistake(where, each)


def _mistake(where: str, error: ErrorDetails) -> Iterator[str]:
    found, context = error["input"], error.get("ctx", {})
    kind = context.get("discriminator", "").strip("'")
    if error["type"] == "value_error" and isinstance(found, dict):
        # A validator that compares keys begins each line with the key at fault.
        lines = str(context["error"]).splitlines()
        yield from (f"{where}.{line}" if where else line for line in lines)
    elif error["type"] == "value_error":
        yield f"{where}: found {value(found)}; {context['error']}"
    elif error["type"] == "union_tag_not_found":
        yield f"{where}.{kind}: missing"
    elif error["type"] == "union_tag_invalid":
        tags = context["expected_tags"].replace("'", "").split(", ")
        yield f"{where}.{kind}: {unknown(context['tag'], tags)}"
    else:
        name = "the name " * _is_name(error)
        yield f"{where or 'the study'}: found {name}{value(found)}; allowed: {_allowed(error)}"


def _allowed(error: ErrorDetails) -> str:
    """Describe the values that an error allows."""
    limits = error.get("ctx", {})
    if error["type"] == "literal_error":
        return str(limits["expected"]).replace("'", "")
    if error["type"] == "string_pattern_mismatch":
        return _PATTERNS.get(limits["pattern"], f"text that matches {limits['pattern']}")
    if error["type"] == "model_type" and isinstance(error["input"], BaseModel):
        return f"a {limits['class_name']}"
    if error["type"] == "too_short":
        return f"at least {count(limits['min_length'], 'entry', 'entries')}"
    words = (_KINDS | _LIMITS).get(error["type"], error["msg"])
    return words.format(**limits)


def _key(path: tuple[int | str, ...]) -> str:
    """Write a path of keys: sweeps.pets.epsilon[0]."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            key = part if re.match(NAME_PATTERN, part) else value(part)
            text += f".{key}" if text else key
    return text
