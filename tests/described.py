"""Figures and tables of test studies: written as mappings, and converted to Python files."""

import hashlib
import re
import tempfile
from pathlib import Path
from typing import Any

from dpsweep.figures import families
from dpsweep.study import Study
from dpsweep.study.targets import Figure, Target

# For studies without a file; it is removed at the end of the process.
_FOLDER = tempfile.TemporaryDirectory(prefix="described-")


def by_name(name: str) -> Any:
    """Return a class of figures or tables by the name of its family."""
    for each in vars(families).values():
        if isinstance(each, type) and getattr(each, "family", None) == name:
            return each
    raise KeyError(name)


def _code(key: str, value: Any, family: type[Target]) -> str:
    """Return the Python code of a value, with classes for panels, lines, entries and the like."""
    kinds = {"lines": "Line", "entries": "ComparedCells", "axes": "NoiseAxes", "cells": "Selection"}
    if key == "panels":
        lined = family in (families.ClippingCurve, families.MethodComparison)
        kinds["panels"] = "LinePanel" if lined else "Panel"
    if isinstance(value, list) and key in kinds:
        return f"[{', '.join(_call(kinds[key], each, family) for each in value)}]"
    if isinstance(value, dict) and key in kinds:
        return _call(kinds[key], value, family)
    return repr(value)


def _call(name: str, settings: Any, family: type[Target]) -> str:
    if not isinstance(settings, dict):
        return repr(settings)
    given = (f"{key!r}: {_code(key, value, family)}" for key, value in settings.items())
    member = " | member" * (name == "Panel")
    return f"families.{name}(**({{{', '.join(given)}}}{member}))"


def source(targets: list[tuple[str, dict[str, Any]]]) -> str:
    """Return a Python file with a function for each target, from its settings, ``family`` and ``section``."""
    lines = ["from dpsweep.figures import families, figure, table", "", 'inf = float("inf")']
    for name, target in targets:
        settings = dict(target)
        family = by_name(settings.pop("family"))
        section, each = settings.pop("section", "Section"), settings.pop("series", ({},))
        kind = "figure" if issubclass(family, Figure) else "table"
        function = re.sub(r"\W", "_", f"{name}")
        function = function if function.isidentifier() else f"_{function}"
        while f"def {function}(**member):" in lines:
            function += "_"
        lines += ["", "", f"@{kind}({section!r}, name={name!r}, each={each!r})"]
        lines += [f"def {function}(**member):"]
        lines += [f"    return {_call(family.__name__, settings, family)}"]
    return "\n".join(lines) + "\n"


def described(content: dict[str, Any], folder: Path | None = None) -> dict[str, Any]:
    """Move the figures and tables of a study, given as mappings, to a Python file.

    Args:
        content: of the study; it can have ``figures`` and ``tables`` by name.
        folder: the folder for the Python file, beside the study file; by default a temporary one, for a study
            without a file.
    """
    if isinstance(content.get("figures"), str | list):
        return content
    targets = [*(content.get("figures") or {}).items(), *(content.get("tables") or {}).items()]
    rest = {key: value for key, value in content.items() if key not in ("figures", "tables")}
    if not targets:
        return rest | {"figures": "none"}
    text = source(targets)
    file = (folder or Path(_FOLDER.name, hashlib.sha256(text.encode()).hexdigest())) / "figures.py"
    file.parent.mkdir(exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return rest | {"figures": ["none", file.name if folder else str(file)]}


def study_of(content: dict[str, Any]) -> Study:
    """Return the study of a content with figures and tables as mappings."""
    return Study.model_validate(described(content))
