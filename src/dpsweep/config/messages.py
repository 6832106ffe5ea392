"""Messages about mistakes in a study: the key, the value found, and the allowed values."""

import difflib
import itertools
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

# Former names of keys.
_RENAMED = {
    "second_opinion": "check_with_opacus",
    "steps": "step_rounding",
    "targets": "target_modules",
    "vocabulary": "vocab_size",
}

_WIDTH, _LINES = 80, 24  # a terminal
_NAMES = 12
_FIRST_NAMES = 5
_LONGEST_VALUE = 80
_LONGEST_NAME = 200  # of a file, or of two


def unknown(found: str, allowed: Iterable[str]) -> str:
    """Return a message that ``found`` is not an ``allowed`` name, with the nearest names."""
    names = [str(name) for name in allowed]
    # The common suffix of studies would make all their names look similar.
    stems = {name.removesuffix(".yaml"): name for name in names}
    hint = [
        stems[each] for each in difflib.get_close_matches(found.removesuffix(".yaml"), stems, n=1)
    ]
    listed = ", ".join(names) or "nothing (none is defined)"
    if len(names) > _NAMES:
        nearest = difflib.get_close_matches(found, names, n=_NAMES, cutoff=0.0)
        listed = f"{', '.join(nearest)}, ... ({len(names) - _NAMES} more)"
    question = "".join(f"did you mean {name}? " for name in hint)
    return f"found {value(found)}; {question}allowed: {listed}"


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


def told_once(said: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Group names by their sentence, so that each sentence is printed once.

    >>> told_once([("a", "late"), ("b", "lost"), ("c", "late"), ("a", "late")])
    {'late': ['a', 'c'], 'lost': ['b']}
    """
    found: dict[str, dict[str, None]] = {}
    for name, what in said:
        found.setdefault(what, {})[name] = None
    return {what: list(names) for what, names in found.items()}


def merged(sentences: Iterable[str]) -> list[str]:
    """Merge sentences that begin with the same three words: list the words that differ.

    >>> merged(["no sweep trains A with C", "no sweep trains B with C", "no role weak"])
    ['no sweep trains A, B with C', 'no role weak']
    """
    groups: dict[tuple[str, ...], list[list[str]]] = {}
    for words in dict.fromkeys(tuple(each.split()) for each in sentences):
        groups.setdefault(words[:3], []).append(list(words))
    return [" ".join(_joined(group)) for group in groups.values()]


def _joined(sentences: list[list[str]]) -> list[str]:
    if len(sentences) == 1:
        return sentences[0]
    start = _shared(sentences)
    # Do not count a word both at the beginning and at the end.
    end = min(_shared([each[::-1] for each in sentences]), min(map(len, sentences)) - start)
    places = [slice(start, len(each) - end) for each in sentences]
    middles = [" ".join(each[place]) for each, place in zip(sentences, places, strict=True)]
    return [
        *sentences[0][:start],
        ", ".join(filter(None, middles)),
        *sentences[0][places[0].stop :],
    ]


def _shared(sentences: list[list[str]]) -> int:
    """Return the number of words that all sentences begin with."""
    alike = (len(set(words)) == 1 for words in zip(*sentences, strict=False))
    return sum(1 for _ in itertools.takewhile(bool, alike))


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


def explain(error: ValidationError, content: Any, schema: dict[str, Any]) -> list[str]:
    """Return one line for every mistake that pydantic found in ``content``.

    Args:
        error: the validation error.
        content: the mapping that was validated.
        schema: the JSON schema of the model, with the allowed keys of every section.
    """
    # Skip errors that follow from another wrong value.
    errors = [
        (each["loc"], each)
        for each in error.errors()
        if each["type"] != "default_factory_not_called"
    ]
    return list(_mistakes(errors, content, [schema], "", schema))


# The errors of one value, each with the rest of its location below that value.
_Located = list[tuple[tuple[int | str, ...], ErrorDetails]]


def _mistakes(
    errors: _Located, content: Any, schemas: list[Any], where: str, root: dict[str, Any]
) -> Iterator[str]:
    """Explain the errors of the value ``content`` at the key path ``where``."""
    missing: list[str] = []
    unknown_keys: list[str] = []
    keys: dict[int | str, _Located] = {}
    alternatives: dict[int | str, _Located] = {}
    for location, error in errors:
        if not location:
            if where:
                yield _at(where, error, schemas)
            else:  # comparisons of sections: one mistake a line, with its keys
                yield from str(error["ctx"]["error"]).splitlines()
            continue
        part, rest = location[0], location[1:]
        if rest == ("[key]",) or (error["type"] == "invalid_key" and not rest):
            named = f"found the name {value(error['input'])}; allowed: {_allowed(error)}"
            yield f"{where or 'the study'}: {named}"
        elif error["type"] == "missing" and not rest:
            missing.append(str(part))
        elif error["type"] == "extra_forbidden" and not rest:
            unknown_keys.append(str(part))
        elif _has(content, part):
            keys.setdefault(part, []).append((rest, error))
        else:
            # pydantic puts the alternatives of a union into the location; they are not keys.
            alternatives.setdefault(part, []).append((rest, error))
    if missing:
        yield f"{where or 'the study'}: missing {', '.join(missing)}"
    allowed = _keys(schemas)
    for key in unknown_keys:
        near = [name for name in (_RENAMED.get(key),) if name in allowed]
        near = near or difflib.get_close_matches(key, allowed, n=1)
        hint = "".join(f"did you mean {name}? " for name in near)
        yield f"{_join(where, key)}: unknown key; {hint}allowed: {', '.join(allowed)}"
    for part, located in keys.items():
        below = _below(schemas, part, root, content[part])
        yield from _mistakes(located, content[part], below, _join(where, part), root)
    if alternatives:
        yield from _union(alternatives, content, schemas, where, root)


def _union(
    alternatives: dict[int | str, _Located],
    content: Any,
    schemas: list[Any],
    where: str,
    root: dict[str, Any],
) -> Iterator[str]:
    """Explain the alternative that matches the kind of the value; if none does, list all kinds."""
    for located in alternatives.values():
        if any(rest or error["type"] not in _OTHER_KINDS for rest, error in located):
            yield from _mistakes(located, content, schemas, where, root)
            return
    kinds = [_allowed(error) for located in alternatives.values() for _, error in located]
    yield f"{where}: found {value(content)}; allowed: {' or '.join(dict.fromkeys(kinds))}"


def _at(where: str, error: ErrorDetails, schemas: list[Any]) -> str:
    kind, found = error["type"], error.get("input")
    prefix = f"{where}: " if where else ""
    if kind == "value_error":
        message = str(error["ctx"]["error"])
        # A message about several keys of a mapping begins with the key at fault.
        compares = isinstance(found, dict)
        return f"{where}.{message}" if compares else f"{prefix}found {value(found)}; {message}"
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        key = error["ctx"]["discriminator"].strip("'")
        allowed = [
            tag for each in schemas for tag in each.get("discriminator", {}).get("mapping", {})
        ]
        if kind == "union_tag_not_found" or not isinstance(found, dict):
            return f"{_join(where, key)}: missing; allowed: {', '.join(allowed)}"
        return f"{_join(where, key)}: {unknown(str(found[key]), allowed)}"
    return f"{prefix}found {value(found)}; allowed: {_allowed(error)}"


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


# -- keys and key paths --------------------------------------------------------------------


def _has(content: Any, part: int | str) -> bool:
    if isinstance(content, dict):
        return part in content
    return isinstance(content, list) and isinstance(part, int)


def _join(where: str, part: int | str) -> str:
    if isinstance(part, int):
        return f"{where}[{part}]"
    key = part if re.match(NAME_PATTERN, part) else value(part)
    return f"{where}.{key}" if where else key


# -- walking the JSON schema along with the content ----------------------------------------


def _resolve(schema: Any, root: dict[str, Any]) -> Any:
    reference = schema.get("$ref")
    return root["$defs"][reference.rpartition("/")[2]] if reference else schema


def _options(schema: Any, root: dict[str, Any], content: Any) -> list[Any]:
    """Return the plain schemas of a value; for a tagged union the schema of the value's tag."""
    schema = _resolve(schema, root)
    if "discriminator" in schema and isinstance(content, dict):
        mapping = schema["discriminator"]["mapping"]
        tag = content.get(schema["discriminator"]["propertyName"])
        if isinstance(tag, str) and tag in mapping:
            return [_resolve({"$ref": mapping[tag]}, root)]
        return [schema]
    alternatives = schema.get("anyOf", [])
    if alternatives:
        return [option for each in alternatives for option in _options(each, root, content)]
    return [schema]


def _below(schemas: list[Any], part: int | str, root: dict[str, Any], content: Any) -> list[Any]:
    """Return the schemas of the value at key ``part``, for parents with one of ``schemas``."""
    found = []
    for schema in schemas:
        if isinstance(part, int):
            found.append(schema.get("items"))
        elif part in schema.get("properties", {}):
            found.append(schema["properties"][part])
        else:
            found += schema.get("patternProperties", {}).values()
    return [option for each in found if each for option in _options(each, root, content)]


def _keys(schemas: list[Any]) -> list[str]:
    return list(dict.fromkeys(key for each in schemas for key in each.get("properties", {})))
