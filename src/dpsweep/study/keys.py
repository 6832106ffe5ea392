"""All keys of a study, each with its type, default, meaning and an example, read from the models.

``python -m dpsweep.study.keys > docs/keys.md`` writes the page of them.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.resources import files
from typing import Any

import yaml

from dpsweep.base.errors import DpsweepError
from dpsweep.study.load import parse_yaml
from dpsweep.study.messages import unknown
from dpsweep.study.study import Study

NAME = "NAME"
"""The part of a path that the author of a study chooses."""
REQUIRED = "required"
_NAMES = {
    "integer": "whole number",
    "boolean": "true or false",
    "string": "text",
    "object": "mapping",
}
_WIDEST = 45  # characters of a column at a terminal

_PAGE = """# Keys

Every key of a study. `NAME` is a name of yours. `dpsweep keys datasets` prints a section, and
`dpsweep keys gpus` every key of a name. [your-own-data.md](your-own-data.md) has complete studies.
This page is made from the models by `python -m dpsweep.study.keys`.
"""


@dataclass(frozen=True)
class Key:
    """A key of a study."""

    path: str
    """dotted, such as ``datasets.NAME.train_size``"""
    type: str
    default: str
    """as in YAML; ``required`` without one, empty if the key is left out"""
    meaning: str
    example: str = ""
    kinds: tuple[str, ...] = ()
    """the kinds of its section that have the key; empty if all have it"""

    @property
    def explained(self) -> str:
        """The meaning, behind the kinds that have the key."""
        return f"({', '.join(self.kinds)}) {self.meaning}" if self.kinds else self.meaning


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
    keys = list(_Walk().keys())
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


def as_lines(keys: Iterable[Key]) -> list[str]:
    """Return a line for each key, in columns."""
    rows = [(key.path, key.type, key.default, key.example, key.explained) for key in keys]
    lines = [("key", "type", "default", "example", "meaning"), *rows]
    # A longer cell moves only its own line.
    widths = [min(_WIDEST, max(map(len, column))) for column in zip(*lines, strict=True)][:-1]
    return ["  ".join([*map(str.ljust, row, widths), row[-1]]).rstrip() for row in lines]


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
        [f"`{key.path}`", key.type, _code(key.default), key.explained, _code(key.example)]
        for key in keys
    ]
    lines = [columns, ["---"] * len(columns), *rows]
    written = (
        "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |\n" for row in lines
    )
    return f"\n## {title}\n\n{''.join(written)}"


def _code(value: str) -> str:
    return f"`{value}`" if value and value != REQUIRED else value


class _Walk:
    """Reads the keys from the JSON schema of a study."""

    def __init__(self) -> None:
        self.schema = study_schema()

    @cached_property
    def example(self) -> Any:
        text = files("dpsweep.study").joinpath("every_key.yaml").read_text(encoding="utf-8")
        return parse_yaml(text)

    def keys(self) -> Iterator[Key]:
        """Yield all keys."""
        yield _EXTENDS
        yield from self._section([self.schema], "", [self.example])

    def _section(
        self, models: list[dict[str, Any]], path: str, examples: list[Any]
    ) -> Iterator[Key]:
        """Yield the keys of a section, which may be of one of several kinds.

        Args:
            models: schemas of the kinds.
            path: of the section, with a dot at its end.
            examples: mappings that are such sections.
        """
        found: dict[str, list[tuple[Key, dict[str, Any]]]] = {}
        for model in models:
            kind = _kind(model)
            properties = model["properties"]
            for name in sorted(properties, key=lambda name: name != "kind"):
                field = properties[name]
                key = self._key(f"{path}{name}", name in model.get("required", ()), field)
                alike = found.setdefault(name, [])
                at = [
                    index
                    for index, (other, _) in enumerate(alike)
                    if replace(other, kinds=()) == key
                ]
                if at:
                    other = alike[at[0]][0]
                    alike[at[0]] = replace(other, kinds=(*other.kinds, kind)), field
                else:
                    alike.append((replace(key, kinds=(kind,)), field))
        for name, alike in found.items():
            if name == "kind" and _kind(models[0]):
                each = "; ".join(f"{_kind(model)}: {_first_sentence(model)}" for model in models)
                yield Key(f"{path}kind", "text", REQUIRED, each, _kind(models[0]))
                continue
            values = [example[name] for example in examples if name in example]
            key = _one_row([key for key, _ in alike])
            kinds = () if len(key.kinds) == len(models) else key.kinds
            yield replace(key, kinds=kinds, example=_example(values))
            for _, field in alike:
                yield from self._inside(f"{path}{name}", field, values)

    def _key(self, path: str, required: bool, field: dict[str, Any]) -> Key:
        default = REQUIRED if required else _yaml(field.get("default"))
        return Key(path, self._type(field), default, field.get("description", "").replace("``", ""))

    def _inside(self, path: str, field: dict[str, Any], examples: list[Any]) -> Iterator[Key]:
        """Yield the keys of the sections that a value may be."""
        sections, named = [], []
        for variant in self._variants(field):
            values = [
                *variant.get("patternProperties", {}).values(),
                variant.get("additionalProperties"),
            ]
            for value in (value for value in values if isinstance(value, dict)):
                named += [each for each in self._variants(value) if "properties" in each]
            items = self._variants(variant.get("items", {}))
            sections += [each for each in (variant, *items) if "properties" in each]
        mappings = [
            each
            for value in examples
            for each in (value if isinstance(value, list) else [value])
            if isinstance(each, dict)
        ]
        for models, prefix, inner in (
            (sections, f"{path}.", mappings),
            (named, f"{path}.{NAME}.", [value for each in mappings for value in each.values()]),
        ):
            if models:
                known = [each for each in inner if isinstance(each, dict)]
                yield from self._section(models, prefix, known)

    def _variants(self, field: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the alternatives of a field, references resolved, without null."""
        if "$ref" in field:
            return [self.schema["$defs"][field["$ref"].rpartition("/")[2]]]
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


def _one_row(keys: list[Key]) -> Key:
    """Return one key for those of one path, with what differs between kinds of its section."""
    types = " or ".join(dict.fromkeys(key.type for key in keys))
    kinds = tuple(kind for key in keys for kind in key.kinds)
    default, meaning = keys[0].default, keys[0].meaning
    if any(key.default != default for key in keys):
        default = ", ".join(f"{key.default or 'none'} ({', '.join(key.kinds)})" for key in keys)
    if any(key.meaning != meaning for key in keys):
        meaning, kinds = "; ".join(key.explained for key in keys), ()
    return Key(keys[0].path, types, default, meaning, kinds=kinds)


def _kind(model: dict[str, Any]) -> str:
    return str(model["properties"].get("kind", {}).get("const", ""))


def _first_sentence(model: dict[str, Any]) -> str:
    paragraph = " ".join(model["description"].partition("\n\n")[0].split())
    return paragraph.removesuffix(".").replace("``", "")


def _limited(name: str, field: dict[str, Any]) -> str:
    signs = {"exclusiveMinimum": ">", "minimum": "≥", "exclusiveMaximum": "<", "maximum": "≤"}
    limits = [f"{sign} {field[key]:g}" for key, sign in signs.items() if key in field]
    return " ".join([name, " and ".join(limits)]).rstrip()


def _yaml(value: Any) -> str:
    """Return a value as YAML on one line, empty for None, an empty text and an empty section."""
    if value in (None, "") or isinstance(value, dict):
        return ""
    return (
        yaml.safe_dump(value, default_flow_style=True, width=10**6).removesuffix("\n...\n").strip()
    )


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
