"""Tests do not depend on results in the checkout, or on the folders of the user."""

import os
import re
import subprocess
from contextlib import suppress
from pathlib import Path

import matplotlib
import pytest
from huggingface_hub import constants

from tests.tracked import tracked

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", ["results/demo/report.html", "data/pets", ".snakemake/metadata"])
def test_reads_of_results_of_the_checkout_are_recorded(
    name: str, looked_at: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    for look in (Path.read_bytes, os.listdir):
        with suppress(OSError):
            look(Path(name))
        assert looked_at == [str(ROOT / name)]
        looked_at.clear()


def test_the_rest_of_the_checkout_may_be_read(looked_at: list[str]) -> None:
    assert (ROOT / "results" / "README.md").read_text(encoding="utf-8")
    assert (ROOT / "README.md").read_text(encoding="utf-8")
    assert looked_at == []


def test_caches_and_settings_are_separate_from_the_users() -> None:
    homes = [Path(os.environ["XDG_CACHE_HOME"]), Path(os.environ["XDG_CONFIG_HOME"])]
    assert Path.home() / ".cache" not in homes
    assert Path.home() / ".config" not in homes
    for folder in (constants.HF_HOME, matplotlib.get_cachedir(), matplotlib.get_configdir()):
        assert any(Path(folder).is_relative_to(home) for home in homes), folder


# -- files that git does not track ------------------------------------------------------------


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
