"""All keys of a study, each with its type, default, meaning and an example, read from the models.

Most models are in `dpsweep.study.file`, those of a section in the module of its name.

``python -m dpsweep.study.keys > docs/keys.md`` writes the page of them.
"""

import argparse
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

import yaml

from dpsweep.base.errors import DpsweepError
from dpsweep.study.file import Study
from dpsweep.study.load import parse_yaml, yaml_line
from dpsweep.study.messages import group_by_message, unknown

NAME = "NAME"
"""The part of a path that the author of a study chooses."""
REQUIRED = "required"
_NAMES = {
    "integer": "whole number",
    "boolean": "true or false",
    "string": "text",
    "object": "mapping",
}

_PAGE = """# Keys

Every key of a study. `NAME` is a name of yours. `dpsweep keys datasets` prints a section, and
`dpsweep keys gpus` every key of a name. [your-own-data.md](your-own-data.md) has complete studies.
This page is made from the models by `python -m dpsweep.study.keys`.
"""


class Key(NamedTuple):
    """A key of a study."""

    path: str
    """dotted, such as ``datasets.NAME.train_size``"""
    type: str
    default: str
    """as in YAML; ``required`` without one, empty if the key is left out"""
    meaning: str
    """behind the kinds of its section that have the key, unless all have it"""
    example: str = ""


_EXTENDS = Key(
    "extends",
    "text",
    "",
    "a study to take over: mappings are merged key by key; lists, values and mappings with the tag "
    "!replace are replaced",
    "config.yaml",
)


def study_keys(part: str = "") -> list[Key]:
    """Return the keys of a study, section by section.

    >>> [(key.path, key.default) for key in study_keys("privacy.delta")]
    [('privacy.delta', '1.0e-05')]

    Args:
        part: a section (``release``), a path (``datasets.source``; names of yours may be left out), or the
            last name of keys (``gpus``); by default all keys.

    Raises:
        DpsweepError: no key has this path or name.
    """
    keys = [_EXTENDS, *_study_keys()]
    chosen = [key for key in keys if _is_in(key.path, part)]
    if not chosen:
        sections = dict.fromkeys(key.path.partition(".")[0] for key in keys)
        names = dict.fromkeys(key.path.rpartition(".")[2] for key in keys)
        raise DpsweepError(f"SECTION: {unknown(part, {**sections, **names} - {NAME: None}.keys())}")
    return chosen


def _is_in(path: str, part: str) -> bool:
    short = path.replace(f".{NAME}", "")
    inside = any(f"{each}.".startswith(f"{part}.") for each in (path, short))
    return not part or inside or path.rpartition(".")[2] == part


def as_lines(keys: Iterable[Key], width: int) -> Iterator[str]:
    """Yield the keys for a terminal of so many columns, each with its meaning below it."""
    wrap = textwrap.TextWrapper(width, subsequent_indent="    ", break_on_hyphens=False).wrap
    for key in keys:
        default = key.default if key.default == REQUIRED else f"default {key.default}"
        facts = [
            key.type,
            default * bool(key.default),
            f"such as {key.example}" * bool(key.example),
        ]
        yield from wrap(f"{key.path}: {', '.join(filter(None, facts))}")
        yield from wrap(f"    {key.meaning}")


def page() -> str:
    """Return docs/keys.md."""
    sections: dict[str, list[Key]] = {}
    for key in study_keys():
        first, inside, _ = key.path.partition(".")
        sections.setdefault(first if inside else "Sections", []).append(key)
    return _PAGE + "".join(_table(name, keys) for name, keys in sections.items())


def _table(title: str, keys: list[Key]) -> str:
    columns = ["key", "type", "default", "meaning", "example"]
    rows = [
        [f"`{key.path}`", key.type, _code(key.default), key.meaning, _code(key.example)]
        for key in keys
    ]
    lines = [columns, ["---"] * len(columns), *rows]
    written = (
        "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |\n" for row in lines
    )
    return f"\n## {title}\n\n{''.join(written)}"


def _code(value: str) -> str:
    return f"`{value}`" if value and value != REQUIRED else value


def _study_keys() -> Iterator[Key]:
    text = files("dpsweep.study").joinpath("every_key.yaml").read_text(encoding="utf-8")
    schema = study_schema()
    return _Walk(schema["$defs"]).section([schema], "", [parse_yaml(text)])


class _Walk:
    """Reads keys from the JSON schema of a study.

    Args:
        models: schemas of the sections by name.
    """

    def __init__(self, models: dict[str, Any]) -> None:
        self._models = models

    def section(
        self, kinds: Sequence[dict[str, Any]], path: str, examples: Sequence[Any]
    ) -> Iterator[Key]:
        """Yield the keys of a section, and of the sections in it.

        Args:
            kinds: schemas of the kinds that the section may have.
            path: of the section, with a dot at its end.
            examples: mappings that are such sections.
        """
        names = dict.fromkeys(name for kind in kinds for name in kind["properties"])
        for name in sorted(names, key=lambda name: name != "kind"):
            if name == "kind" and _kind(kinds[0]):
                each = "; ".join(f"{_kind(kind)}: {_first_sentence(kind)}" for kind in kinds)
                yield Key(f"{path}kind", "text", REQUIRED, each, _kind(kinds[0]))
                continue
            having = [kind for kind in kinds if name in kind["properties"]]
            fields = [kind["properties"][name] for kind in having]
            values = [example[name] for example in examples if name in example]
            types = dict.fromkeys(map(self._type, fields))
            defaults = group_by_message((_kind(kind), _default(kind, name)) for kind in having)
            meanings = group_by_message((_kind(kind), _meaning(kind, name)) for kind in having)
            default, meaning = next(iter(defaults)), next(iter(meanings))
            if len(defaults) > 1:
                default = ", ".join(
                    f"{text or 'none'} ({', '.join(of)})" for text, of in defaults.items()
                )
            if len(meanings) > 1 or len(having) < len(kinds):
                meaning = "; ".join(f"({', '.join(of)}) {text}" for text, of in meanings.items())
            yield Key(f"{path}{name}", " or ".join(types), default, meaning, _example(values))
            yield from self._inside(f"{path}{name}", fields, values)

    def _inside(
        self, path: str, fields: Sequence[dict[str, Any]], values: Sequence[Any]
    ) -> Iterator[Key]:
        """Yield the keys of the sections that a value may be, or that its items or entries may be."""
        sections, entries = [], []
        for variant in (each for field in fields for each in self._variants(field)):
            sections += [variant, *self._variants(variant.get("items", {}))]
            inner = [*variant.get("patternProperties", {}).values()]
            inner += [variant.get("additionalProperties")]
            entries += [
                each for model in inner if isinstance(model, dict) for each in self._variants(model)
            ]
        flat = [
            each for value in values for each in (value if isinstance(value, list) else [value])
        ]
        mappings = [each for each in flat if isinstance(each, dict)]
        named = [value for each in mappings for value in each.values() if isinstance(value, dict)]
        for models, place, examples in (
            (sections, f"{path}.", mappings),
            (entries, f"{path}.{NAME}.", named),
        ):
            # Several kinds of the section around it may have the same one.
            if kinds := {id(each): each for each in models if "properties" in each}:
                yield from self.section([*kinds.values()], place, examples)

    def _variants(self, field: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the alternatives of a field, references resolved, without null."""
        if "$ref" in field:
            return [self._models[field["$ref"].rpartition("/")[2]]]
        several = field.get("anyOf") or field.get("oneOf")
        if isinstance(kinds := field.get("type"), list):
            several = [field | {"type": kind} for kind in kinds]
        if several is None:
            return [] if field.get("type") == "null" else [field]
        return [variant for each in several for variant in self._variants(each)]

    def _type(self, field: dict[str, Any]) -> str:
        names = dict.fromkeys(self._name(variant) for variant in self._variants(field))
        return " or ".join(names)

    def _name(self, variant: dict[str, Any]) -> str:
        if "enum" in variant:
            return " or ".join(variant["enum"])
        if "const" in variant:
            return str(variant["const"])
        if variant.get("type") == "array":
            return f"list of {self._type(variant['items'])}"
        if "properties" in variant:
            return "section"
        return _limited(_NAMES.get(variant["type"], variant["type"]), variant)


def _kind(model: dict[str, Any]) -> str:
    return str(model["properties"].get("kind", {}).get("const", ""))


def _default(model: dict[str, Any], name: str) -> str:
    required = name in model.get("required", ())
    return REQUIRED if required else _yaml(model["properties"][name].get("default"))


def _meaning(model: dict[str, Any], name: str) -> str:
    return str(model["properties"][name].get("description", "")).replace("``", "")


def _first_sentence(model: dict[str, Any]) -> str:
    paragraph = " ".join(model["description"].partition("\n\n")[0].split())
    return paragraph.removesuffix(".").replace("``", "")


def _limited(name: str, field: dict[str, Any]) -> str:
    signs = {"exclusiveMinimum": ">", "minimum": "≥", "exclusiveMaximum": "<", "maximum": "≤"}
    limits = [f"{sign} {field[key]:g}" for key, sign in signs.items() if key in field]
    return " ".join([name, " and ".join(limits)]).rstrip()


def _yaml(value: Any) -> str:
    """Return a value as YAML on one line, empty for None, an empty text and an empty section."""
    return "" if value in (None, "") or isinstance(value, dict) else yaml_line(value)


def _example(values: list[Any]) -> str:
    """Return the first example that is not a section."""
    plain = [value for value in values if not isinstance(value, dict)]
    plain = [each for each in plain if not (isinstance(each, list) and isinstance(each[0], dict))]
    return _yaml(plain[0]) if plain else ""


_HEADER = (
    "# Every section and key of a study, and what is allowed in it. Made from dpsweep.study by\n"
    "# `python -m dpsweep.study.keys --schema > workflow/schemas/config.schema.yaml`; do not edit.\n"
)


def study_schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of a whole study, overlays merged."""
    schema = Study.model_json_schema()
    for model in (schema, *schema["$defs"].values()):
        for field in model.get("properties", {}).values():
            if "description" in field:
                field["description"] = " ".join(field["description"].split())
    # pydantic's schema allows names that do not match the pattern; a study refuses them.
    for section in schema["properties"].values():
        if "patternProperties" in section:
            section["additionalProperties"] = False
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def schema_text() -> str:
    """Return the text of the YAML file with the schema in the repository."""
    return _HEADER + yaml.safe_dump(study_schema(), sort_keys=False, allow_unicode=True, width=100)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schema", action="store_true", help="the JSON schema instead of the page")
    sys.stdout.write(schema_text() if parser.parse_args().schema else page())
