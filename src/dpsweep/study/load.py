"""Read a study from YAML: overlays, and errors for the person who wrote the file."""

import re
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from dpsweep.errors import DpsweepError
from dpsweep.study.config import Study
from dpsweep.study.messages import explain, screen, value


class StudyError(DpsweepError):
    """A study file that cannot be used; the message is for the person who wrote it."""


class _Replace(dict[Any, Any]):
    """A mapping that replaces the one it overlays instead of merging with it."""


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Safe YAML that reads 1e-5 as a number and refuses a key that stands twice.

    It is read by libyaml where PyYAML has it: every job reads the study, and this is ten times as
    fast.
    """


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: dict[Any, int] = {}
    for key_node, _ in node.value:
        line = key_node.start_mark.line + 1
        # A key that is itself a list or a mapping is refused by YAML's own constructor.
        if isinstance(key_node, yaml.ScalarNode):
            if key_node.value in seen:
                raise StudyError(
                    f"{key_node.start_mark.name}, line {line}: {value(key_node.value)} is defined "
                    f"twice, first on line {seen[key_node.value]}; every name must be unique"
                )
            seen[key_node.value] = line
    mapping: dict[Any, Any] = loader.construct_mapping(node, deep=True)
    return mapping


def _replacing_mapping(loader: _Loader, node: yaml.MappingNode) -> _Replace:
    return _Replace(_mapping(loader, node))


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)
_Loader.add_constructor("!replace", _replacing_mapping)
# YAML 1.1 wants a dot in floats; everyone writes 1e-5.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def _read(path: Path, overlays: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Read a study file on top of the one that it extends; ``overlays`` are those that extend it."""
    whole = f"{path} (which {overlays[-1]} extends)" if overlays else str(path)
    if path.resolve() in (overlay.resolve() for overlay in overlays):
        raise StudyError(f"{whole}: extends itself; allowed: a chain of files that ends")
    try:
        with path.open(encoding="utf-8") as stream:
            content = yaml.load(stream, Loader=_Loader)  # noqa: S506 (a SafeLoader)
    except OSError as error:
        raise StudyError(f"{whole}: cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise StudyError(f"{whole}: not valid YAML\n{error}") from None
    if not isinstance(content, dict):
        raise StudyError(
            f"{whole}: found {value(content)}; allowed: a mapping of sections (title, datasets, "
            "backbones, methods, sweeps, ...)"
        )
    base = content.pop("extends", None)
    words = content.pop("reword", {})
    if base is None:
        if words:
            raise StudyError(f"{whole}: reword: found without extends; there is nothing to reword")
        return content
    if not isinstance(base, str):
        raise StudyError(
            f"{whole}: extends: found {value(base)}; allowed: the path of another study file"
        )
    below = _reworded(_read(path.parent / base, (*overlays, path)), words, whole)
    merged = _merge(below, content)
    assert isinstance(merged, dict)  # noqa: S101 (two mappings merge into one)
    return merged


def _reworded(below: dict[str, Any], words: Any, whole: str) -> dict[str, Any]:
    """Replace words in every text of the figures and tables below, the names of sweeps included.

    A word is a part of a text between characters that are no letters or digits. Where several
    words fit, the longest one counts; what is put in place is not looked at again.
    """
    if not (
        isinstance(words, dict)
        and all(isinstance(text, str) and text for text in words)
        and all(isinstance(text, str) for text in words.values())
    ):
        raise StudyError(
            f"{whole}: reword: found {value(words)}; allowed: a mapping of words (text) of the "
            "study below to what stands for them here (text)"
        )
    if not words:
        return below
    alternatives = "|".join(map(re.escape, sorted(words, key=len, reverse=True)))
    pattern = re.compile(rf"(?<![^\W_])(?:{alternatives})(?![^\W_])")
    found: set[str] = set()

    def replacement(match: re.Match[str]) -> str:
        found.add(match[0])
        return str(words[match[0]])

    def reword(content: Any) -> Any:
        if isinstance(content, dict):
            # What a family is called is not a text of the study.
            return {key: each if key == "family" else reword(each) for key, each in content.items()}
        if isinstance(content, list):
            return [reword(each) for each in content]
        return pattern.sub(replacement, content) if isinstance(content, str) else content

    changed = {key: reword(below[key]) for key in ("figures", "tables") if key in below}
    for word in words:
        if word not in found:
            raise StudyError(
                f"{whole}: reword: found {value(word)}; allowed: a word in the figures or tables "
                "of the study below"
            )
    return below | changed


def _merge(below: Any, above: Any) -> Any:
    if isinstance(below, dict) and isinstance(above, dict) and not isinstance(above, _Replace):
        return below | {key: _merge(below.get(key), value) for key, value in above.items()}
    return dict(above) if isinstance(above, _Replace) else above


def load_study(path: Path) -> Study:
    """Read and check a study file.

    A study may build on another with ``extends: other.yaml`` (relative to itself): mappings are
    merged key by key, anything else is replaced, and a mapping tagged ``!replace`` is replaced
    as a whole. ``reword: {word: other}`` first changes words in the texts of the figures and
    tables that are taken over, the names of their sweeps included.

    Raises:
        StudyError: the file is missing, is not YAML, or does not fit the schema. The message
            names each key, what was found, and what is allowed.
    """
    content = _read(path)
    try:
        return Study.model_validate(content)
    except ValidationError as error:
        problems = explain(error, content, Study.model_json_schema())
    raise StudyError(screen(f"{path} is not a valid study:", problems))
