"""Figures and tables of test studies: written as mappings, and converted to Python files."""

import hashlib
import re
import tempfile
from pathlib import Path
from typing import Any

from dpsweep import figures
from dpsweep.study import Study
from dpsweep.study.cells import AXES, NAMED
from dpsweep.study.targets import Figure, Target

# For studies without a file; it is removed at the end of the process.
_FOLDER = tempfile.TemporaryDirectory(prefix="described-")


def by_name(name: str) -> Any:
    """Return a class of figures or tables by the name of its family."""
    for each in vars(figures).values():
        if isinstance(each, type) and getattr(each, "family", None) == name:
            return each
    raise KeyError(name)


def _code(key: str, value: Any, family: type[Target], drawn: tuple[str, ...]) -> str:
    """Return the Python code of a value, with classes for panels, lines, entries and the like."""
    kinds = {"lines": "Line", "panels": "Panel", "entries": "Selection", "cells": "Selection"}
    if key == "panels" and family in (figures.ClippingCurve, figures.MethodComparison):
        panels = (_lines(each, drawn) for each in value)
        return f"[{', '.join(panels)}]"
    if key == "axes":
        return f"[figures.NoiseAxes(**each) for each in {value!r}]"
    if key not in kinds or not isinstance(value, list | dict):
        return repr(value)
    if isinstance(value, dict):
        return _cells(kinds[key], value, drawn)
    return f"[{', '.join(_cells(kinds[key], each, drawn) for each in value)}]"


def _lines(panel: dict[str, Any], drawn: tuple[str, ...]) -> str:
    """Return the code of a panel with lines, which take missing settings from the panel."""
    above = {key: value for key, value in panel.items() if key not in ("title", "lines")}
    lines = ", ".join(_cells("Line", above | line, drawn) for line in panel["lines"])
    return f"figures.LinePanel(title={panel.get('title', '')!r}, lines=[{lines}])"


def _cells(name: str, settings: dict[str, Any], drawn: tuple[str, ...]) -> str:
    """Return the code of the cells of a panel, line or entry."""
    rest = dict(settings)
    of = {key: rest.pop(key) for key in NAMED if key in rest}
    if rest.get("epochs") == "all":
        drawn = (*drawn, "epochs")
    rest = {key: value for key, value in rest.items() if value != "all"}
    axes = {key: rest.pop(key) for key in AXES if key in rest}
    if isinstance(axes.get("clipping_bound"), str):
        of["clipping"] = axes.pop("clipping_bound")
    of["several"] = tuple(axis for axis in drawn if axis not in axes)
    return f"figures.{name}.of(grids.one(**({of!r} | roles)).at(**{axes!r}), **{rest!r})"


def _call(settings: dict[str, Any], family: type[Target]) -> str:
    drawn = family.drawn
    if family is figures.Heatmap:
        drawn = (settings.get("x", "clipping_bound"), settings.get("y", "batch_size"))
    if family.part == "cells":
        settings = {"cells": {}} | settings
    given = (f"{key!r}: {_code(key, value, family, drawn)}" for key, value in settings.items())
    return f"figures.{family.__name__}(**{{{', '.join(given)}}})"


def source(targets: list[tuple[str, dict[str, Any]]]) -> str:
    """Return a Python file with a function for each target, from its settings, ``family`` and ``section``."""
    lines = ["from dpsweep import figures", "", 'inf = float("inf")']
    for name, target in targets:
        settings = dict(target)
        family = by_name(settings.pop("family"))
        section, each = settings.pop("section", "Section"), settings.pop("series", ({},))
        kind = "figure" if issubclass(family, Figure) else "table"
        function = re.sub(r"\W", "_", f"{name}")
        function = function if function.isidentifier() else f"_{function}"
        while f"def {function}(grids, **roles):" in lines:
            function += "_"
        lines += ["", "", f"@figures.{kind}({section!r}, name={name!r}, each={each!r})"]
        lines += [f"def {function}(grids, **roles):"]
        lines += [f"    return {_call(settings, family)}"]
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
