"""Tests read tracked files only, and every package has its tests in the map."""

import re
import subprocess
from pathlib import Path

from tests.tracked import tracked

ROOT = Path(__file__).parents[1]


def test_only_tracked_files_are_listed(tmp_path: Path) -> None:
    (tmp_path / "studies").mkdir()
    for name in ("paper.yaml", "studies/demo.yaml", "studies/mine.yaml"):
        (tmp_path / name).touch()
    everything = tracked("*.yaml", "studies/*.yaml", root=tmp_path)
    assert [file.name for file in everything] == ["paper.yaml", "demo.yaml", "mine.yaml"]
    for command in (["init", "-q"], ["add", "paper.yaml", "studies/demo.yaml"]):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    found = tracked("*.yaml", "studies/*.yaml", root=tmp_path)
    assert [file.name for file in found] == ["paper.yaml", "demo.yaml"]


def test_every_package_has_its_tests_in_the_map() -> None:
    """Check the map of CONTRIBUTING.md, which `make test-for` reads."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| ((?:`tests/[^`]*` ?)+)\|$", page, re.MULTILINE))
    packages = {file.parent.name for file in (ROOT / "src" / "dpsweep").glob("*/__init__.py")}
    assert rows.keys() == packages
    for tests in rows.values():
        assert all((ROOT / test).exists() for test in re.findall(r"`(.*?)`", tests))
    folders = {f"tests/{name}" for name in packages if (ROOT / "tests" / name).is_dir()}
    assert folders <= set(re.findall(r"`(.*?)`", " ".join(rows.values())))
