"""The import arrows of docs/design.md hold."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "dpsweep"

BASE = {"errors", "files", "gpus", ""}  # "" is the package itself: its version numbers
ALLOWED = {
    "errors": set(),
    "files": {"errors"},
    "gpus": set(),
    "choice": set(),
    "clipping": set(),
    "records": set(),
    "units": set(),
    "study": BASE | {"clipping"},
    "planning": BASE | {"study", "clipping", "units"},
    "privacy": BASE,
    "theory": set(),
    "data": BASE | {"study"},
    "models": BASE | {"study", "data"},
    "training": BASE
    | {"study", "data", "models", "privacy", "choice", "clipping", "records", "theory"},
    "analysis": BASE | {"study", "privacy", "choice", "clipping", "records", "theory"},
    "figures": BASE | {"study", "analysis", "choice", "clipping", "theory"},
    "tables": BASE | {"study", "analysis", "choice", "clipping"},
    "report": BASE | {"study", "analysis", "choice", "clipping", "tables", "units"},
    "new": BASE | {"study"},
    "recommend": BASE | {"study", "models", "privacy"},
    "release": BASE | {"study", "data", "models", "privacy", "training", "clipping"},
    "check": BASE | {"study", "planning", "data", "training", "figures"},
}


def imported_modules(path: Path) -> set[str]:
    """Absolute names of everything that a module imports, wherever the import stands."""
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
    return found


def layer(module: str) -> str:
    name = module.removeprefix("dpsweep").removeprefix(".").split(".")[0]
    return "" if name.isupper() or name == "__version__" else name


def test_imports_follow_the_arrows() -> None:
    wrong = []
    for path in SOURCE.rglob("*.py"):
        own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if own in ("cli", "preload", "__init__"):
            continue
        for module in imported_modules(path):
            if module == "dpsweep" or module.startswith("dpsweep."):
                target = layer(module)
                if target != own and target not in ALLOWED[own]:
                    wrong.append(f"{path.relative_to(SOURCE)} imports {module}")
    assert not wrong, "\n".join(wrong)


def test_every_layer_has_its_arrows() -> None:
    found = {
        path.stem
        for path in SOURCE.iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert found - {"__init__", "cli", "preload"} == set(ALLOWED)


def test_the_library_knows_nothing_of_snakemake() -> None:
    users = [
        path
        for path in SOURCE.rglob("*.py")
        if any(module.split(".")[0].startswith("snakemake") for module in imported_modules(path))
    ]
    assert not users


@pytest.mark.parametrize(
    ("modules", "banned"),
    [
        (
            "dpsweep.study, dpsweep.study.inputs, dpsweep.planning.plan",
            {"torch", "pandas", "numpy"},
        ),
        ("dpsweep.privacy", {"torch", "pandas", "opacus"}),
        ("dpsweep.cli", {"torch", "pandas", "numpy", "matplotlib"}),
        ("dpsweep.figures, dpsweep.tables, dpsweep.report, dpsweep.analysis.frames", {"torch"}),
    ],
)
def test_heavy_packages_stay_out(modules: str, banned: set[str]) -> None:
    code = f"import sys, {modules}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not banned & set(run.stdout.split())
