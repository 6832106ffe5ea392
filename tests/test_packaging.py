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
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCK = {
    requirement.name.lower(): requirement
    for line in (ROOT / "requirements.lock").read_text().splitlines()
    if line and not line.startswith("#")
    for requirement in [Requirement(line)]
}
ENVIRONMENT = yaml.safe_load((ROOT / "environment.yml").read_text())


def test_the_lock_pins_every_requirement() -> None:
    wanted = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]]
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    for requirement in map(Requirement, [*wanted, *build]):
        pins = [each.version for each in LOCK[requirement.name.lower()].specifier]
        assert requirement.specifier.contains(pins[0]), f"{requirement}: locked at {pins}"


def test_the_lock_has_exact_releases_and_no_registry() -> None:
    for requirement in LOCK.values():
        (pin,) = requirement.specifier
        assert pin.operator == "==", requirement
        assert not Version(pin.version).is_prerelease, requirement
        assert requirement.url is None
    assert not re.search(r"https?:|--index|file:", (ROOT / "requirements.lock").read_text())


def test_conda_environment_uses_the_same_python_and_the_same_pins() -> None:
    python, *others = ENVIRONMENT["dependencies"]
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
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    packaged = build["targets"]["wheel"]["force-include"]
    source = "\n".join(file.read_text() for file in (ROOT / "src").rglob("*.py"))
    named = set(re.findall(r"documentation\(['\"](.+?)['\"]\)", source))
    assert named and all(packaged[f"docs/{page}"].endswith(f"docs/{page}") for page in named)
    assert not re.search(r"^ +f?\".*\(docs/", source, re.MULTILINE)
