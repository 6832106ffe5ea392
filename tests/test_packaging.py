"""The files for installation agree: pyproject.toml, requirements.lock, environment.yml."""

import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
LOCK = {
    requirement.name.lower(): requirement
    for line in (ROOT / "requirements.lock").read_text().splitlines()
    if line and not line.startswith("#")
    for requirement in [Requirement(line)]
}


def test_the_lock_pins_every_requirement_to_a_release_without_a_registry() -> None:
    wanted = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]]
    wanted += PYPROJECT["build-system"]["requires"]
    pins = {}
    for name, locked in LOCK.items():
        (pin,) = locked.specifier
        assert pin.operator == "==" and locked.url is None, locked
        assert not Version(pin.version).is_prerelease, locked
        pins[name] = pin.version
    for requirement in map(Requirement, wanted):
        assert requirement.specifier.contains(pins[requirement.name.lower()]), requirement
    assert not re.search(r"https?:|--index|file:", (ROOT / "requirements.lock").read_text())


def test_conda_environment_uses_the_same_python_and_the_same_pins() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    python, *others = environment["dependencies"]
    assert python.replace(" ", "") == "python" + PROJECT["requires-python"]
    pip = next(each["pip"] for each in others if isinstance(each, dict))
    assert pip == ["-r requirements.lock", "-e ."]


def test_imports_of_rules_are_declared() -> None:
    """Deptry does not read Snakefiles."""
    files = [ROOT / "Snakefile", *(ROOT / "workflow" / "rules").glob("*.smk")]
    found = re.findall(r"^\s*(?:import|from) (\w+)", "\n".join(map(Path.read_text, files)), re.M)
    imported = set(found) - sys.stdlib_module_names - {"dpsweep", "workflow"}
    distributions = packages_distributions()
    declared = {Requirement(each).name for each in PROJECT["dependencies"]}
    assert "snakemake" in imported
    assert all(declared & set(distributions[name]) for name in imported), imported


def test_pages_that_messages_name_come_with_the_package() -> None:
    packaged = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    source = "\n".join(file.read_text() for file in (ROOT / "src").rglob("*.py"))
    named = set(re.findall(r"documentation\(['\"](.+?)['\"]\)", source))
    assert named and all(packaged[f"docs/{page}"].endswith(f"docs/{page}") for page in named)
    assert not re.search(r"^ +f?\".*\(docs/", source, re.MULTILINE)
