"""What tests leave alone, their order, and what examples of Hypothesis may take."""

import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).parents[1]
# What the studies of whoever works here have left, and what Snakemake says of them.
STUDIES = tuple(f"{ROOT / name}{os.sep}" for name in ("results", "data", ".snakemake"))
# A file of the repository, and a folder that Snakemake adds to the places where Python looks for modules.
OURS = (str(ROOT / "results" / "README.md"), str(ROOT / ".snakemake" / "pip-deployments"))
# Where programs keep caches and settings, unless a variable names a folder of their own.
HOMES = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME")
OWN_FOLDERS = ("HF_HOME", "HF_HUB_CACHE", "MPLCONFIGDIR", "TORCH_HOME", "SNAKEMAKE_PROFILE")

# A slow machine is no failure.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

# A worker that begins these last leaves the others with nothing to do.
LONGEST = (
    *("test_wheel.py", "test_your_own_data.py", "test_chain.py", "test_transfer.py"),
    *("test_legibility.py", "test_suggested_commands.py", "test_interruption.py"),
    *("test_gpu_kit.py", "test_release_rule.py", "test_embeddings.py", "test_calling.py"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files that take longest first; all others stay in their order."""
    order = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.name, len(LONGEST)))


def pytest_collection_finish() -> None:
    """Leave what is imported by now out of garbage collections: each would look at all of it for a second."""
    gc.collect()
    gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    """Give the tests caches and settings of their own; workers have those of the process that starts them."""
    if hasattr(config, "workerinput"):
        return
    folder = tempfile.mkdtemp(prefix="dpsweep-tests-")
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    os.environ.update({name: str(Path(folder, name)) for name in HOMES})
    for name in OWN_FOLDERS:
        os.environ.pop(name, None)


@pytest.fixture(autouse=True)
def _own_environment() -> Iterator[None]:
    """Take back what commands tell the processes that they start."""
    before = {name: value for name, value in os.environ.items() if name.startswith("DPSWEEP_")}
    yield
    for name in [name for name in os.environ if name.startswith("DPSWEEP_")]:
        del os.environ[name]
    os.environ.update(before)


_looked_at: list[str] = []
# Python cannot remove an audit hook; one of a test (a training job refuses the network) must end with it.
_hooks: list[Callable[[str, tuple[Any, ...]], None]] = []


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("open", "os.listdir", "os.scandir") and isinstance(
        arguments[0], str | os.PathLike
    ):
        path = os.path.abspath(arguments[0])  # noqa: PTH100 (of every file that is opened)
        if path.startswith(STUDIES) and not path.startswith(OURS):
            _looked_at.append(path)
    for hook in _hooks:
        hook(event, arguments)


sys.addaudithook(_watch)
sys.addaudithook = _hooks.append


@pytest.fixture(autouse=True)
def _own_audit_hooks() -> Iterator[None]:
    """Take back the audit hooks that a test adds."""
    before = len(_hooks)
    yield
    del _hooks[before:]


@pytest.fixture(autouse=True)
def looked_at() -> Iterator[list[str]]:
    """Fail a test that looks at results of the checkout: it would depend on them, there or not.

    Files that a test opens and folders that it lists in this process are seen, not those of programs
    that it starts.
    """
    _looked_at.clear()
    yield _looked_at
    first = list(dict.fromkeys(_looked_at))[:5]
    assert not first, f"the test looks at {', '.join(first)} and {len(_looked_at)} places in all"
