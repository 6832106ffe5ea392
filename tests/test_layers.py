"""The table of layers in docs/design.md matches the imports of the code."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "dpsweep"

DESIGN = SOURCE.parents[1] / "docs" / "design.md"
BASE = {"base", ""}
"""Modules that every package may import; "" is the package itself, with its version numbers."""


def allowed() -> dict[str, set[str]]:
    """Return the modules that each module may import, by the table of layers."""
    table = DESIGN.read_text().split("## Layers")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", table, re.MULTILINE)
    found = {module: set(re.findall(r"`(\w+)`", imports)) for module, imports in rows}
    return {module: named | BASE for module, named in found.items()}


ALLOWED = allowed()


@cache
def imported_modules(path: Path) -> frozenset[str]:
    """Return absolute names of everything that a module imports, at any place in its code."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
            if node.module == "dpsweep":
                found |= {f"dpsweep.{alias.name}" for alias in node.names}
                found.discard("dpsweep")
    return frozenset(found)


def layer(module: str) -> str:
    name = module.removeprefix("dpsweep").removeprefix(".").split(".")[0]
    return "" if name.isupper() or name == "__version__" else name


def test_imports_match_the_table() -> None:
    wrong = []
    imported: dict[str, set[str]] = {module: set() for module in ALLOWED}
    for path in SOURCE.rglob("*.py"):
        own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if own in ("cli", "__init__", "__main__"):
            continue
        for module in imported_modules(path):
            if module == "dpsweep" or module.startswith("dpsweep."):
                target = layer(module)
                imported.setdefault(own, set()).add(target)
                if target != own and target not in ALLOWED.get(own, set()):
                    wrong.append(f"{path.relative_to(SOURCE)} imports {module}")
    assert not wrong, "\n".join(wrong)
    idle = {module: named - imported[module] - BASE for module, named in ALLOWED.items()}
    assert not any(idle[module] for module in idle if module != "cli"), idle
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    modules = {path.stem for path in SOURCE.glob("*.py")} - {"__init__", "__main__"}
    assert packages | modules == set(ALLOWED)


def test_imports_point_upwards_in_the_table() -> None:
    order = list(ALLOWED)
    wrong = [
        (module, named)
        for module, imported in ALLOWED.items()
        for named in imported - BASE
        if order.index(named) >= order.index(module)
    ]
    assert not wrong


# In the order of import in one process, each with what must not be imported by then.
LIGHT = {
    "dpsweep": "torch pandas numpy scipy",
    # Each job of a study imports the figures of the paper.
    "dpsweep.study.fingerprints, dpsweep.planning.plan, dpsweep.cli.main, dpsweep.figures.paper": (
        "torch pandas numpy matplotlib scipy seaborn"
    ),
    "dpsweep.data.prepare, dpsweep.models.backbone": (
        "torch timm datasets sklearn scipy matplotlib transformers"
    ),
    "dpsweep.cli.check, dpsweep.figures.style": "torch scipy seaborn dp_accounting",
    "dpsweep.figures, dpsweep.tables, dpsweep.report, dpsweep.analysis.frames": "torch",
}
FEW = {
    "dpsweep.privacy": "torch pandas opacus",
    # A machine with a GPU may have few libraries (make gpu).
    "benchmarks.gpu.pieces": "opacus dp_accounting snakemake typer datasets pyarrow pandas scipy",
}


@pytest.mark.parametrize("light", [LIGHT, FEW])
def test_heavy_packages_are_not_imported(light: dict[str, str]) -> None:
    code = "import sys\n" + "".join(f"import {each}; print(*sys.modules)\n" for each in light)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for (modules, banned), imported in zip(light.items(), run.stdout.splitlines(), strict=True):
        assert not set(banned.split()) & set(imported.split()), modules
