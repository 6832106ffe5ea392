"""Every package has its tests in the map."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


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
